-- Values that no program reads back are refused when they are inserted, and so are names and parents for which a job
-- would wait for ever.

-- ---------------------------------------------------------------- JSON

-- Readers of JSON in other languages have limits: Python reads 1,000 levels and integers of 4,300 digits, and most
-- programs keep a number as a double.
create function drover.refuse_json(columns text, value jsonb) returns void
  language plpgsql immutable set search_path = drover, pg_temp as $$
begin
  if jsonb_path_exists(value, 'strict $.**{101}') then
    raise exception '% is nested too deep: 100 levels are let in; put the inner part into a string', columns
      using errcode = 'check_violation';
  elsif jsonb_path_exists(value, 'strict $.** ? (@ >= 1e309 || @ <= -1e309)') then
    raise exception '% has a number that no double holds: write it as a string', columns
      using errcode = 'check_violation';
  end if;
end $$;

create or replace trigger jobqueue_limit before insert on drover.jobqueue for each row
  when (octet_length(new.jq_args) > 65536
        or pg_column_size(new.jq_variables) > 65536 or octet_length(new.jq_variables::text) > 65536
        or jsonb_path_exists(new.jq_variables, 'strict $.**{101}')
        or jsonb_path_exists(new.jq_variables, 'strict $.** ? (@ >= 1e309 || @ <= -1e309)')
        or octet_length(new.jq_name) > 64 or octet_length(new.jq_unique_key) > 2000
        or octet_length(new.jq_runonpfile) > 2000 or octet_length(new.jq_key) > 2000)
  execute function drover.limit_job();

-- ---------------------------------------------------------------- parents

-- Return those of the jobs that have ended without success, with their states; and those that are not there, without.
-- Jobs of others are left out.
create function drover.ended_in_vain(jobs bigint[]) returns table (job bigint, state text)
  language sql stable security definer set search_path = drover, pg_temp as $$
  select pk, jq_state::text from unnest(jobs) as pk left join jobqueue on jq_pk = pk
   where jq_pk is null
      or jq_endtime is not null and jq_end_bits & 1 = 0 and (jq_submitter = session_user or drover.may_command())
   order by pk
$$;

-- ---------------------------------------------------------------- subscriptions

-- Return whether the role of the session may add no subscription about this. Those that have expired do not count: they
-- are removed first, unless something is still to be delivered.
create function drover.has_all_subscriptions(about text) returns boolean
  language plpgsql set search_path = drover, pg_temp as $$
begin
  for n in 1..2 loop
    if (select count(*) from subscription where sub_owner = session_user) < 10000
       and (select count(*) from subscription where sub_key = about and sub_owner = session_user) < 10 then
      return false;
    end if;
    delete from subscription where sub_pk = any (array(
      select sub_pk from subscription
       where sub_owner = session_user and sub_expires <= now()
         and not exists (select from delivery where del_sub = sub_pk and del_state in ('waiting', 'sent'))
         for update skip locked));
  end loop;
  return true;
end $$;

-- ---------------------------------------------------------------- functions that use these

do $do$
declare
  changes text[][] := array[
    array['limit_job()', 'new.jq_type <> ''cleanup'';', 'new.jq_type <> ''cleanup'';
  perform drover.refuse_json(''jq_variables'', new.jq_variables);'],
    array['limit_group()', 'drover.json_bytes(new.job_data)]);', 'drover.json_bytes(new.job_data)]);
  perform drover.refuse_json(''job_data'', new.job_data);'],
    array['prepare_schedule()', '    mistake := drover.schedule_mistake(',
          '    perform drover.refuse_json(''schedule_job'', new.schedule_job);
    mistake := drover.schedule_mistake('],
    array['prepare_job()', '  end if;
  if new.jq_mode = ', '  elsif concat(new.jq_queue, new.jq_host) ~ ''[\x01-\x1f\x7f]'' then
    raise exception ''jq_queue or jq_host holds a control character: no queue and no host has such a name (got %)'',
      quote_literal(regexp_replace(
        left(concat_ws('' and '', new.jq_queue, new.jq_host), 64), ''[\x01-\x1f\x7f]'', ''?'', ''g''))
      using errcode = ''check_violation'';
  end if;
  if new.jq_mode = '],
    array['change_jobs(bigint, uuid, integer)', '  said := drover.filter_mistake(filter);',
          '  if entry.verb_name = ''move'' then  -- quotes keep the blanks in a name of a queue
    words := coalesce(substring(words from ''^"([^"]*)"$''), words);
  end if;
  said := drover.filter_mistake(filter);'],
    array['bulk_word_mistake(text, text)', '^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$', '^([^" \t\n\r]{1,64}|"[^"]{1,64}")$'],
    array['is_over(text)', 'queue_name = drover.word(what, 2)', 'queue_name = substr(what, 7)'],
    array['job_setup(text, jsonb)', '  insert into drover.jobdepends',
          '  select format(''job %s is %s'', job, state) into wrong
    from drover.ended_in_vain(array(
           select drover.job_named(parent) from unnest(drover.names(settings -> ''depends'')) as parent))
   where state <> ''failed'' limit 1;
  if found then
    raise exception ''%, and never succeeds: a job that depends on it would wait for ever'', wrong
      using errcode = ''check_violation'';
  end if;
  insert into drover.jobdepends'],
    array['subscribe(text, bigint, name, text, boolean, text[], interval, integer, text)',
          'not is_free and ((select count(*) from drover.subscription where sub_owner = session_user) >= 10000
                         or (select count(*) from drover.subscription
                              where sub_key = scope || '':'' || coalesce(job::text, tenant, session_user)
                                and sub_owner = session_user) >= 10) then',
          'not is_free
        and drover.has_all_subscriptions(scope || '':'' || coalesce(job::text, tenant, session_user)) then']];
  body    text;
begin
  for n in 1..array_length(changes, 1) loop
    body := pg_get_functiondef(('drover.' || changes[n][1])::regprocedure);
    if position(changes[n][2] in body) = 0 then
      raise exception 'drover.% is not as expected', changes[n][1];
    end if;
    execute replace(body, changes[n][2], changes[n][3]);
  end loop;
end $do$;

create or replace trigger jobqueue_prepare before insert on drover.jobqueue for each row
  when (new.jq_type <> 'command'
        and (new.jq_state <> 'queued' or new.jq_mode = 'manual' or new.jq_runonpfile is not null
             or new.jq_queue is null or new.jq_host is not null or new.jq_job_fk is not null
             or new.jq_not_before is not null or new.jq_not_after is not null or new.jq_unique_key is not null
             or octet_length(new.jq_type) + octet_length(new.jq_queue) > 2000
             or new.jq_queue <> 'default' and new.jq_queue ~ '[\x01-\x1f\x7f]'))
  execute function drover.prepare_job();

-- ---------------------------------------------------------------- jobd

-- As before; but a job that never ran has neither a start nor a return code.
create or replace view drover.jobd as
select jq_pk as id, jq_queue as target,
       extract(epoch from coalesce((select job_queued from drover.job
         where job_pk = jq_job_fk), jq_queued))::bigint as time_created,
       case when jq_endtime is not null and jq_attempt = 0 then 0
            else coalesce(extract(epoch from jq_starttime), 0)::bigint end as time_started,
       coalesce(extract(epoch from jq_endtime), 0)::bigint as time_finished,
       case when jq_state = 'held' then 'manual' when jq_state in ('queued', 'blocked') then 'waiting'
            when jq_state = 'claimed' then 'accepted' when jq_state = 'running' then 'running'
            when jq_state in ('ignored', 'skipped') then 'ignored' else 'done' end as status,
       case when jq_endtime is not null then case when jq_end_bits & 1 = 1 then 'ok' else 'fail' end end as result,
       case when jq_endtime is null or jq_attempt = 0 or jq_signal is not null then null
            when jq_end_bits & 1 = 1 then coalesce(jq_exitcode, 0)
            else coalesce(nullif(jq_exitcode, 0), 1) end as return_code,
       jq_signal as signal,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'out') as stdout,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'err') as stderr,
       jq_signal as sig
  from drover.jobs where jq_type <> 'command';
