-- Routing: a job that names no queue goes to the first whose filter holds for it. And rate limits of queues.

-- What was validated of queue_filter: {"text": the filter, "zone": of its times, "tree": see drover.filter_sql}.
alter table drover.queue add column queue_route jsonb;

-- Return the value of a job's variables or else of its group's data, as text; and a text as number, null if it is none.
create function drover.datum(variables jsonb, data jsonb, key text) returns text immutable parallel safe
  return coalesce(variables ->> key, data ->> key);

create function drover.number_of(value text) returns numeric immutable parallel safe
  return case when value ~ '^-?[0-9]{1,15}([.][0-9]{1,15})?$' then value::numeric end;

-- Print the tree of a filter (scheduler/model/queue_filters.py) as SQL: words of this function, and quoted literals.
-- Whoever wrote the tree, nothing else gets into the SQL.
create function drover.filter_sql(tree jsonb, zone text) returns text
  language plpgsql immutable set search_path = drover, pg_temp as $$
declare
  word  text := tree ->> 0;
  value text := tree ->> 1;
  clock text := format('(now() at time zone %L)', zone);
  parts text[];
  made  text;
begin
  if jsonb_typeof(tree) is distinct from 'array' or word is null then
    raise exception 'no tree of a filter: %', left(tree::text, 100) using errcode = 'invalid_parameter_value';
  elsif word = any ('{and,or,not,=,<>,<,<=,>,>=,like,in,between,is_null}') then
    select array_agg(drover.filter_sql(part, zone) order by n) into parts
      from jsonb_array_elements(tree) with ordinality as t(part, n) where n > 1;
  end if;
  made := case
    when word in ('and', 'or') then '(' || array_to_string(parts, ' ' || word || ' ') || ')'
    when word = 'not' then '(not ' || parts[1] || ')'
    when word = 'is_null' then '(' || parts[1] || ' is null)'
    when word = 'in' then '(' || parts[1] || ' in (' || array_to_string(parts[2:], ', ') || '))'
    when word = 'between' then '(' || parts[1] || ' between ' || parts[2] || ' and ' || parts[3] || ')'
    when parts is not null then '(' || parts[1] || ' ' || word || ' ' || parts[2] || ')'
    when value is null then null
    when word = 'text' then format('%L::text', value)
    when word = 'number' and drover.number_of(value) is not null then format('%L::numeric', value)
    when word = 'boolean' and value in ('true', 'false') then value
    when word = 'data' and tree ->> 2 = 'text'
      then format('(drover.datum(job.jq_variables, above.job_data, %L) collate "C")', value)
    when word = 'data' and tree ->> 2 = 'number'
      then format('drover.number_of(drover.datum(job.jq_variables, above.job_data, %L))', value)
    when word = 'column' then case value
      when 'type' then '(job.jq_type collate "C")'
      when 'name' then '(job.jq_name collate "C")'
      when 'submitter' then '(job.jq_submitter::text collate "C")'
      when 'host' then '(job.jq_host collate "C")'
      when 'priority' then '(job.jq_priority collate "C")'
      when 'mode' then '(job.jq_mode::text collate "C")'
      when 'urgent' then 'job.jq_urgent'
      when 'sql' then 'job.jq_msq'
      when 'minutes' then '(extract(epoch from job.jq_timeout) / 60)'
      when 'tenant' then '(above.job_tenant collate "C")'
      when 'group_name' then '(above.job_name collate "C")'
      when 'group_priority' then 'above.job_priority::numeric'
      when 'hour' then 'extract(hour from ' || clock || ')'
      when 'weekday' then 'extract(isodow from ' || clock || ')'
      when 'time' then '(to_char(' || clock || $f$, 'HH24:MI') collate "C")$f$
      when 'date' then '(to_char(' || clock || $f$, 'YYYY-MM-DD') collate "C")$f$ end end;
  if made is null then
    raise exception 'no tree of a filter: %', left(tree::text, 100) using errcode = 'invalid_parameter_value';
  end if;
  return made;
end $$;

-- Return the queue for a job, of the group of its host if it has one (`home`); null if no filter holds.
-- This one is replaced by drover.install_routes: each filter is a line of it.
create function drover.route(job drover.jobqueue, above drover.job, home text) returns text language sql stable as
'select null::text';

-- Return the body of drover.route as the filters are now; null if there is none.
create function drover.routes() returns text
  language plpgsql stable set search_path = drover, pg_temp as $$
declare
  each  record;
  lines text := '';
begin
  for each in
    select queue_name, queue_group, queue_route from queue
     where queue_present and queue_route ->> 'text' = queue_filter
     order by queue_priority desc, queue_group, queue_name loop
    perform now() at time zone (each.queue_route ->> 'zone');  -- refused here if there is none, not in an insert
    lines := lines || format(E'\n  when (home = %1$L) is not false and %2$s then %3$L', each.queue_group,
                             filter_sql(each.queue_route -> 'tree', each.queue_route ->> 'zone'), each.queue_name);
  end loop;
  return 'select case' || nullif(lines, '') || E'\n  end';
end $$;

-- Say whether drover.route is another than the filters make it.
create function drover.is_route_stale() returns boolean
  language plpgsql stable security definer set search_path = drover, pg_temp as $$
declare
  body text;
begin
  body := drover.routes();
  return (select prosrc is distinct from coalesce(body, 'select null::text') from pg_catalog.pg_proc
           where oid = 'drover.route(drover.jobqueue, drover.job, text)'::regprocedure)
      or (select (tgenabled = 'D') <> (body is null) from pg_catalog.pg_trigger
           where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_route');
exception when others then
  return true;
end $$;

-- Make drover.route what the filters say, and let inserts call it, or not. Return what went wrong: nothing has changed
-- then. The first filter and the end of the last need a lock on jobqueue, as they enable or disable its trigger.
create function drover.install_routes() returns text
  language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
declare
  body text;
  is_on boolean;
begin
  perform pg_advisory_xact_lock(hashtextextended('drover.install_routes', 0));
  body := drover.routes();
  execute format('create or replace function drover.route(job drover.jobqueue, above drover.job, home text) '
                 'returns text language sql stable as %L', coalesce(body, 'select null::text'));
  perform drover.route(null, null, null);
  select tgenabled <> 'D' into is_on from pg_catalog.pg_trigger
   where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_route';
  if body is not null and not is_on then
    alter table drover.jobqueue enable trigger jobqueue_route;
  elsif body is null and is_on then
    alter table drover.jobqueue disable trigger jobqueue_route;
  end if;
  return null;
exception when others then
  return sqlerrm;
end $$;

-- Send a job to its queue, unless it names one: the queue of a group is as good as none. Filters that fail hold for no
-- job.
create function drover.route_job() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  above drover.job;
  home  text;
  found text;
  said  text := 'no filter of a queue holds for it: queue ';
begin
  if new.jq_host is not null then
    select host_group into home from host where host_name = new.jq_host;
    if new.jq_queue not in ('default', coalesce(home, 'default')) then
      return new;
    end if;
  end if;
  if new.jq_job_fk is not null then
    select * into above from job where job_pk = new.jq_job_fk;
  end if;
  begin
    found := drover.route(new, above, home);
  exception when others then
    said := 'the filters of queues fail: ' || sqlerrm || '; queue ';
  end;
  if found is null then
    insert into log (log_jq_fk, log_type, log_message) values (new.jq_pk, 'INFO', said || new.jq_queue);
  else
    new.jq_queue := found;
  end if;
  return new;
end $$;

-- Enabled by drover.install_routes as long as there is a filter. Its name comes behind jobqueue_prepare.
create trigger jobqueue_route before insert on drover.jobqueue for each row
  when (new.jq_type not in ('command', 'cleanup') and (new.jq_queue = 'default' or new.jq_host is not null))
  execute function drover.route_job();
alter table drover.jobqueue disable trigger jobqueue_route;

-- ---------------------------------------------------------------- rate limits

-- As scheduler/policy/rates.py reads it: {"rate", "each", "by", "interval"}; null is no limit.
alter table drover.queue add column queue_rate jsonb;

-- What was started of queues with a rate limit, by value of the attribute: '' is in all, '=x' the value x. Written by
-- the scheduler, so that the one after it knows; starts before the last interval of the queue mean nothing.
create table drover.queue_start (
  start_queue text not null,
  start_value text not null,
  start_times timestamptz[] not null,
  start_next  timestamptz,              -- when there is room again, if there was none
  primary key (start_queue, start_value)
);

-- Of a job whose queue has started as many as it may: when the next one starts.
create view drover.rate_limited as
select jq_pk,
       'rate limit of queue ' || queue_name || ': ' || (queue_rate ->> 'rate') || ' starts in '
       || (queue_rate ->> 'interval')::float8 || ' s, next at ' || date_trunc('second', start_next + interval '999 ms')
       as says
  from drover.jobqueue
  join drover.queue on queue_name = jq_queue and queue_rate is not null
  join drover.queue_start on start_queue = queue_name and start_value = '' and start_next > now()
 where jq_state = 'queued';

create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(a.says, l.says, r.says) || coalesce(drover.shown_code(j), '') || coalesce(': ' || r.text, '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true;

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state, coalesce(a.says, l.says, r.says) || coalesce(drover.shown_code(j), '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true;
