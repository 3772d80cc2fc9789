-- A subscription is refused whose target the agent for deliveries could not send to, with the reason. Targets of
-- subscriptions that exist stay as they are: their deliveries fail, with the agent's reason, and harm no others.

-- What is wrong with a target; null if nothing is. What it takes, agents/notify/sending.py can send to.
create function drover.target_mistake(target text) returns text
language plpgsql immutable set search_path = drover, pg_temp as $$
declare
  atom  constant text := '[A-Za-z0-9!#$%&''*+/=^_`{|}~-]+';
  label constant text := '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?';
  part  text[];
begin
  if target is null or length(target) > 2000 then
    return 'it has 1 to 2,000 characters';
  elsif target ~ '[^!-~]' or strpos(target, '\') > 0 then
    return 'blanks, backslashes and what is not ASCII are written as %20, a host as xn--...';
  elsif starts_with(target, 'mailto:') then
    part := regexp_match(target, '^mailto:([^@]*)@([^@]*)$');
    if part is null or length(target) > 261 then
      return 'one @ is between NAME and HOST, which have 254 characters at most';
    elsif length(part[1]) > 64 or part[1] !~ ('^' || atom || '([.]' || atom || ')*$') then
      return 'NAME has 1 to 64 letters, digits and !#$%&''*+/=^_`{|}~-, with single dots in between';
    elsif part[2] !~ ('^' || label || '([.]' || label || ')*$') then
      return 'HOST has labels of 1 to 63 letters, digits and hyphens, with single dots in between';
    end if;
    return null;
  end if;
  part := regexp_match(target, '^https?://([[][0-9A-Fa-f:]+[]]|[^][/?#@:]+)(:[0-9]{1,5})?([/?#].*)?$');
  if part is null then
    return 'behind // are a host, an IPv4 address, or an IPv6 address in brackets, and perhaps a colon and a port';
  elsif substr(part[2], 2)::integer not between 1 and 65535 then
    return 'a port is a number from 1 to 65535';
  elsif starts_with(part[1], '[') then
    begin
      perform trim(part[1], '[]')::inet;
    exception when invalid_text_representation then
      return 'in the brackets is no IPv6 address';
    end;
  elsif part[1] !~ '^([A-Za-z0-9_-]{1,63}[.])*[A-Za-z0-9_-]{1,63}[.]?$' or length(part[1]) > 253 then
    return 'a host has labels of 1 to 63 letters, digits, hyphens and underscores, with single dots in between';
  end if;
  return null;
end $$;

create function drover.check_targets() returns trigger language plpgsql set search_path = drover, pg_temp as $$
declare
  wrong text;
  why   text;
begin
  select target, drover.target_mistake(target) into wrong, why from unnest(new.sub_targets) as target
   where drover.target_mistake(target) is not null limit 1;
  if found then
    raise exception 'a target is http://... or https://... without a password, or mailto:NAME@HOST (got %): %',
      quote_nullable(left(wrong, 100)), why using errcode = 'invalid_parameter_value';
  end if;
  return new;
end $$;

-- Not a constraint, which would be checked again when an old subscription is enabled or disabled.
create trigger targets_can_be_sent_to before insert on drover.subscription
for each row execute function drover.check_targets();
