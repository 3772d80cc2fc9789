-- A job may ask for attributes of its agent: its type is given as `license version=2`. It becomes a job of an agent
-- type that has them all, chosen when the job is inserted, so that a claim knows nothing of attributes.

-- In steps: the minor releases of PostgreSQL of November 2026 add no column with a default to a table whose row is the
-- argument of a function with an SQL-standard body, as that of drover.rests is until 0030.
alter table drover.agent add column agent_attributes jsonb;
update drover.agent set agent_attributes = '{}';
alter table drover.agent alter column agent_attributes set default '{}', alter column agent_attributes set not null;

-- Return the agent type that a job goes to which asks for attributes, in a group; null if no type has them all. Its
-- first word is the name of a type, or the attribute `agent` of one. Of several: one of the group, one that is enabled,
-- the one of that name, the one with the fewest attributes.
create function drover.agent_type_for(asked text, in_group text default 'default') returns text
language sql stable security definer set search_path = drover, pg_temp as $$
  with word as (select w, n from regexp_split_to_table(btrim(asked), '\s+') with ordinality as t(w, n)),
  called as (select w as name from word where n = 1),
  wanted as (select split_part(w, '=', 1) as key, substr(w, strpos(w, '=') + 1) as value from word where n > 1)
  select agent_type from agent, called
   where agent_present and name in (agent_type, agent_attributes ->> 'agent')
     and not exists (select from wanted where agent_attributes ->> key is distinct from value)
   order by agent_group <> in_group, not agent_enabled, agent_type <> name,
            (select count(*) from jsonb_object_keys(agent_attributes)), agent_type
   limit 1
$$;

-- Give a job that asks for attributes the type of the agents that have them.
create function drover.choose_agent() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  in_group text := coalesce(
    case when new.jq_queue is null or new.jq_queue = 'default'
         then (select host_group from host where host_name = new.jq_host) end,
    (select queue_group from queue where queue_name = new.jq_queue), 'default');
  chosen   text := drover.agent_type_for(new.jq_type, in_group);
begin
  if chosen is null then
    raise exception 'no agent type has the attributes of %', new.jq_type
      using errcode = 'check_violation', hint = 'They are in drover.agent, and drover agent prints them.';
  elsif new.jq_name is not null then
    raise exception 'a job that asks for attributes has no jq_name, which begins with its type: give jq_unique_key'
      using errcode = 'check_violation', hint = format('Or queue it for the agent type %s itself.', chosen);
  end if;
  new.jq_type := chosen;
  return new;
end $$;

-- Its name comes before those that look at the type of the job.
create trigger jobqueue_choose_agent before insert on drover.jobqueue for each row
  when (new.jq_type like '% %=%' and octet_length(new.jq_type) <= 2000)
  execute function drover.choose_agent();
