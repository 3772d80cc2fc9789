-- A job that asks for attributes gets a type that can run it: of its scheduler group, which its submitter may queue,
-- and with agents on the host that it names. If there is none, the refusal says which attribute is wrong.

-- Return the types of a group that answer to the first word of what was asked.
create function drover.agent_types_of(asked text, in_group text) returns setof drover.agent
language sql stable set search_path = drover, pg_temp as $$
  select * from agent
   where agent_present and agent_group = in_group
     and (regexp_split_to_array(btrim(asked), '\s+'))[1] in (agent_type, agent_attributes ->> 'agent')
$$;

-- Return the attributes that were asked for, in their order.
create function drover.attributes_of(asked text, out key text, out value text, out n bigint) returns setof record
language sql immutable set search_path = drover, pg_temp as $$
  select split_part(w, '=', 1), substr(w, strpos(w, '=') + 1), n
    from regexp_split_to_table(btrim(asked), '\s+') with ordinality as t(w, n) where n > 1
$$;

-- Return whether a role may queue jobs of a type.
create function drover.may_queue(who name, submitters text[]) returns boolean
language sql stable set search_path = drover, pg_temp as $$
  select '*' = any (submitters) or exists (
    select from pg_catalog.pg_roles s join pg_catalog.pg_roles r on pg_catalog.pg_has_role(s.oid, r.oid, 'member')
     where s.rolname = who and r.rolname = any (submitters))
$$;

-- Return the type that a job goes to which asks for attributes; null if no type of the group has them all. Of several:
-- one that its submitter may queue, one with agents on the host if there is one, one that is enabled, the one of that
-- name, the one with the fewest attributes.
create function drover.agent_type_for(asked text, in_group text, on_host text, who name) returns text
language sql stable set search_path = drover, pg_temp as $$
  select agent_type from drover.agent_types_of(asked, in_group)
   where not exists (select from drover.attributes_of(asked) where agent_attributes ->> key is distinct from value)
   order by not drover.may_queue(who, agent_submitters),
            on_host is not null and not exists (
              select from scheduler_status where status_host = on_host and status_agent = agent_type),
            not agent_enabled, agent_type <> (regexp_split_to_array(btrim(asked), '\s+'))[1],
            (select count(*) from jsonb_object_keys(agent_attributes)), agent_type
   limit 1
$$;

create or replace function drover.agent_type_for(asked text, in_group text default 'default') returns text
language sql stable security definer set search_path = drover, pg_temp as $$
  select drover.agent_type_for(asked, in_group, null, session_user)
$$;

-- Return why no type of a group has what was asked.
create function drover.no_agent_type(asked text, in_group text) returns text
language sql stable set search_path = drover, pg_temp as $$
  with type as (select * from drover.agent_types_of(asked, in_group)),
  called as (select (regexp_split_to_array(btrim(asked), '\s+'))[1] as name),
  missing as (
    select key from drover.attributes_of(asked)
     where not exists (select from type where agent_attributes ->> key = value) order by n limit 1)
  select format('no agent type has the attributes of %s: ', asked) || case
           when not exists (select from type) then format('group %s has no %s', in_group, name)
           when not exists (select from missing) then format('no %s has all of them', name)
           else coalesce((select format('%s has %s %s', name, key, string_agg(distinct agent_attributes ->> key, ', '))
                            from type, missing where agent_attributes ? key group by key),
                         (select format('no %s has %s', name, key) from missing)) end
    from called
$$;

-- Return the type of a job that asks for attributes, or what is wrong; queue and host may be null.
create function drover.find_agent_type(asked text, queue text, host text, who name, out chosen text, out wrong text)
language plpgsql stable security definer set search_path = drover, pg_temp as $$
declare
  in_group text := coalesce(
    case when queue is null or queue = 'default' then (select host_group from host h where h.host_name = host) end,
    (select queue_group from queue q where q.queue_name = queue), 'default');
begin
  chosen := drover.agent_type_for(asked, in_group, host, who);
  if chosen is null then
    wrong := drover.no_agent_type(asked, in_group);
  end if;
end $$;

create or replace function drover.choose_agent() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  found record;
begin
  found := drover.find_agent_type(new.jq_type, new.jq_queue, new.jq_host, new.jq_submitter);
  if found.chosen is null then
    raise exception '%', found.wrong
      using errcode = 'check_violation', hint = 'drover agent prints the attributes of all types.';
  elsif new.jq_name is not null then
    raise exception 'a job that asks for attributes has no jq_name, which begins with its type: give jq_unique_key'
      using errcode = 'check_violation', hint = format('Or queue it for the agent type %s itself.', found.chosen);
  end if;
  new.jq_type := found.chosen;
  return new;
end $$;

-- A start by hand is a last start too.
create or replace function drover.run_schedule(name text, out started boolean, out said text)
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  s    drover.schedule;
  busy bigint[];
  made bigint[];
begin
  select * into s from schedule where schedule_name = name for no key update skip locked;
  started := false;
  if not found then
    said := (select 'no schedule ' || name where not exists (select from schedule where schedule_name = name));
    return;
  end if;
  busy := array(select jq_pk from jobqueue where jq_pk = any (s.schedule_jobs) and jq_endtime is null);
  if busy <> '{}' and s.schedule_overlap = 'skip' then
    said := 'schedule ' || name || ': skipped: job ' || busy[1] || ' of the start before has not ended';
    return;
  end if;
  made := drover.queue_scheduled(s.schedule_job, s.schedule_submitter, busy);
  insert into schedule_start (start_schedule, start_due_at, start_jobs) values (name, now(), made);
  update schedule set schedule_jobs = made, schedule_reason = null, schedule_last = now() where schedule_name = name;
  started := true;
  said := 'schedule ' || name || ': queued ' || array_to_string(made, ', ');
exception when others then
  if sqlstate !~ '^(22|23|42|P0)' then
    raise;
  end if;
  started := false;
  said := 'schedule ' || name || ': not queued: ' || sqlerrm;
end $$;

-- The configuration that brings a schedule may bring the type that its job asks for, in one statement: which type has
-- the attributes is looked at when it starts.
create function drover.without_attributes(job jsonb) returns jsonb
language sql immutable set search_path = drover, pg_temp as $$
  select case when job ->> 'jq_type' like '% %=%'
              then jsonb_set(job, '{jq_type}', to_jsonb((regexp_split_to_array(btrim(job ->> 'jq_type'), '\s+'))[1]))
              else job end
$$;

create or replace function drover.schedule_mistake(job jsonb) returns text
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if job ->> 'jq_type' = 'command' and drover.word(job ->> 'jq_args', 1) = 'schedule-run' then
    return 'a schedule runs no other one: give it the job of that one, or the same times';
  elsif job - 'jq_args' = '{"jq_type": "command"}'
     and exists (select from verb where verb_name = drover.word(job ->> 'jq_args', 1)) then
    return null;  -- it takes no number of a job to know that
  end if;
  if jsonb_typeof(job -> 'jobs') = 'array' then
    job := jsonb_set(job, '{jobs}', (
      select coalesce(jsonb_agg(drover.without_attributes(one) order by n), '[]')
        from jsonb_array_elements(job -> 'jobs') with ordinality as t(one, n)));
  else
    job := drover.without_attributes(job);
  end if;
  perform drover.queue_scheduled(job, session_user, '{}');
  raise exception using errcode = 'DR000';
exception
  when sqlstate 'DR000' then return null;
  when others then
    if sqlstate ~ '^(22|23|42|P0)' then
      return sqlerrm;
    end if;
    raise;
end $$;
