-- The queue as the web front-end of the original FOSSology scheduler knows it: the tables job, jobqueue and jobdepends
-- as views that can be written, in the schema fossology_compat, which goes on the search_path of the front-end's login.
-- `drover init --compat fossology` runs this file, and each later `drover init` does after a migration. It holds no
-- rows of its own, and may be run repeatedly.
--
-- A *step* is a row of jobqueue. What a job asks for never changes in drover, and a job that was done stays done: a
-- step that is reset becomes another job, whose jq_resubmit_of is the step. The views show the latest job of each step
-- under the number of the first, so that a front-end finds the number that it was given.
-- Every function checks that what it changes belongs to the login. Those that need more rights than a front-end has are
-- `security definer`.

create schema if not exists fossology_compat;
drop view if exists fossology_compat.jobdepends, fossology_compat.jobqueue, fossology_compat.job,
  fossology_compat.latest cascade;

-- ---------------------------------------------------------------- helpers

-- Return the jq_priority of a job_priority, where more is sooner and 0 is 'n': from 49, '0', down to -12, 'z'.
create or replace function fossology_compat.letter(priority integer) returns text
  immutable parallel safe
  return substr('zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA9876543210',
                least(greatest(coalesce(priority, 0), -12), 49) + 13, 1);

-- Refuse to change a column, and say what to do.
create or replace function fossology_compat.refuse(view text, col text, advice text) returns void
language plpgsql as $$
begin
  raise exception '%.% cannot be written so: %', view, col, advice using errcode = 'feature_not_supported';
end $$;

-- The latest job of each step: those that were never reset, and those that were. Anybody may give a jq_resubmit_of,
-- so only a job of the same submitter follows another.
create view fossology_compat.latest as
select jq_pk as step_pk, jq_pk as latest_pk, jq_submitter as submitter, jq_job_fk as job_fk
  from drover.jobqueue j
 where jq_resubmit_of is null and jq_job_fk is not null
   and not exists (select from drover.jobqueue later
                    where later.jq_resubmit_of = j.jq_pk and later.jq_submitter = j.jq_submitter)
 union all
select jq_resubmit_of, jq_pk, jq_submitter, jq_job_fk
  from drover.jobqueue j
 where jq_resubmit_of is not null and jq_job_fk is not null
   and not exists (select from drover.jobqueue later
                    where later.jq_resubmit_of = j.jq_resubmit_of and later.jq_submitter = j.jq_submitter
                      and later.jq_pk > j.jq_pk);

-- Return the latest job of a step of the login.
create or replace function fossology_compat.job_of(step bigint) returns bigint
language plpgsql stable security definer set search_path = drover, pg_temp as $$
declare
  job bigint;
begin
  select l.latest_pk into job from fossology_compat.latest l where l.step_pk = step and l.submitter = session_user;
  if job is null then
    raise exception 'no jobqueue row % of yours', coalesce(step::text, '?') using errcode = 'no_data_found';
  end if;
  return job;
end $$;

-- Return how long a step waits that may begin now, for what the front-end says of it in its next transaction.
create or replace function fossology_compat.pause() returns interval
  stable
  return greatest(coalesce(nullif(current_setting('fossology_compat.edges_follow', true), ''), '2 s')::interval,
                  interval '0');

-- Let these wait so if they come free by an edge that is deleted: what waits for it may be deleted next.
create or replace function fossology_compat.defer(jobs bigint[]) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  update jobqueue set jq_wait_until = now() + fossology_compat.pause()
   where jq_pk = any (jobs) and jq_submitter = session_user and jq_state = 'queued' and jq_unmet > 0
     and jq_wait_until is null and fossology_compat.pause() > interval '0';
  perform drover.notify('drover_due', '') where found;
end $$;

-- ---------------------------------------------------------------- job

create view fossology_compat.job with (security_barrier) as
select job_pk, job_queued, job_priority, job_data ->> 'job_email_notify' as job_email_notify, job_name,
       (job_data ->> 'job_upload_fk')::bigint as job_upload_fk, (job_data ->> 'job_folder_fk')::bigint as job_folder_fk,
       (job_data ->> 'job_user_fk')::bigint as job_user_fk
  from drover.job
 where job_user = session_user and not job_hidden;

-- Return what drover.job has no column for.
create or replace function fossology_compat.data_of(job fossology_compat.job) returns jsonb
  stable
  return nullif(jsonb_strip_nulls(jsonb_build_object(
    'job_email_notify', job.job_email_notify, 'job_upload_fk', job.job_upload_fk, 'job_folder_fk', job.job_folder_fk,
    'job_user_fk', job.job_user_fk)), '{}');

create or replace function fossology_compat.insert_job() returns trigger
language plpgsql as $$
begin
  if new.job_pk is not null then
    perform fossology_compat.refuse('job', 'job_pk', 'the database numbers jobs, leave it out');
  end if;
  new.job_queued := coalesce(new.job_queued, now());
  new.job_priority := coalesce(new.job_priority, 0);
  insert into drover.job (job_name, job_priority, job_queued, job_data)
  values (new.job_name, new.job_priority, new.job_queued, fossology_compat.data_of(new))
  returning job_pk into new.job_pk;
  return new;
end $$;

-- A new job_priority moves what is queued: by a command for each row, as drover priority gives it. A row may have the
-- letter already, but not keep it, for a command that came before is still to be carried out.
create or replace function fossology_compat.update_job() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  data jsonb;
begin
  if new.job_pk is distinct from old.job_pk then
    perform fossology_compat.refuse('job', 'job_pk', 'insert another job');
  elsif new.job_queued is distinct from old.job_queued then
    perform fossology_compat.refuse('job', 'job_queued', 'it is the time of the insert');
  end if;
  new.job_priority := coalesce(new.job_priority, 0);
  update job
     set job_name = new.job_name, job_priority = new.job_priority,
         job_data = nullif(coalesce(job_data, '{}')
                           - '{job_email_notify,job_upload_fk,job_folder_fk,job_user_fk}'::text[]
                           || coalesce(fossology_compat.data_of(new), '{}'), '{}')
   where job_pk = old.job_pk and job_user = session_user returning job_data into data;
  perform drover.refuse_long('{job_name,job_data}', array[octet_length(new.job_name), drover.json_bytes(data)]);
  perform drover.command('priority ' || jq_pk || ' ' || fossology_compat.letter(new.job_priority)) from jobqueue
    where new.job_priority <> old.job_priority and jq_job_fk = old.job_pk and jq_submitter = session_user
      and jq_state in ('held', 'queued', 'blocked');
  return new;
end $$;

create or replace function fossology_compat.delete_job() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform from job where job_pk = old.job_pk and job_user = session_user for update;
  perform fossology_compat.remove(jq_pk) from jobqueue
    where jq_job_fk = old.job_pk and jq_submitter = session_user;
  update jobqueue set jq_job_fk = null where jq_job_fk = old.job_pk and jq_submitter <> session_user;
  delete from job where job_pk = old.job_pk and job_user = session_user;
  return old;
end $$;

-- ---------------------------------------------------------------- jobqueue

create view fossology_compat.jobqueue with (security_barrier) as
select l.step_pk as jq_pk, l.job_fk as jq_job_fk, j.jq_type, j.jq_args,
       case when j.jq_repeat then 'yes' else 'no' end as jq_repeat, j.jq_runonpfile, j.jq_starttime,
       j.jq_endtime,
       regexp_replace(j.jq_endtext, '^cancelled by ("([^"]|"")*"|[a-z_][a-z0-9_$]*): ', '') as jq_endtext,  -- as given
       case when j.jq_endtime is null then 0 when j.jq_end_bits & 1 = 1 then 1 else 2 end as jq_end_bits,
       j.jq_schedinfo, extract(epoch from j.jq_elapsedtime)::bigint as jq_elapsedtime,
       extract(epoch from j.jq_processedtime)::bigint as jq_processedtime, j.jq_itemsprocessed,
       j.jq_itemstotal as jq_length, j.jq_itemsprocessed + j.jq_itemsfailed as jq_progress
  from fossology_compat.latest l
  join drover.jobs j on j.jq_pk = l.latest_pk
 where l.submitter = session_user and j.jq_submitter = session_user;

-- An edge may follow in a statement of its own, which is a transaction of its own to a front-end that opens none: so a
-- row begins to wait for an agent only fossology_compat.edges_follow after it was inserted.
create or replace function fossology_compat.insert_step() returns trigger
language plpgsql as $$
declare
  priority integer;
  pause    interval := fossology_compat.pause();
begin
  select job_priority into priority from fossology_compat.job where job_pk = new.jq_job_fk;
  if not found then
    raise exception 'jobqueue.jq_job_fk: no job % of yours', coalesce(new.jq_job_fk::text, 'NULL')
      using errcode = 'foreign_key_violation';
  elsif new.jq_pk is not null then
    perform fossology_compat.refuse('jobqueue', 'jq_pk', 'the database numbers rows, leave it out');
  elsif new.jq_starttime is not null or new.jq_endtime is not null or new.jq_end_bits <> 0 then
    perform fossology_compat.refuse('jobqueue', 'jq_starttime, jq_endtime, jq_end_bits',
                                    'a new row has not begun, leave them out, then update jq_end_bits');
  elsif new.jq_repeat not in ('yes', 'no') then
    perform fossology_compat.refuse('jobqueue', 'jq_repeat', 'it is ''yes'' or ''no''');
  elsif new.jq_repeat = 'yes' and coalesce(new.jq_runonpfile, '') = '' then
    perform fossology_compat.refuse('jobqueue', 'jq_repeat',
                                    'what is repeated is SQL, so name a column in jq_runonpfile');
  end if;
  execute format(  -- the columns of SQL are not granted to every front-end
    'insert into drover.jobqueue (jq_job_fk, jq_type, jq_args, jq_priority, jq_not_before%s)
     values ($1, $2, $3, $4, case when $5 > interval ''0'' then now() + $5 end%s) returning jq_pk',
    case when new.jq_runonpfile <> '' then ', jq_runonpfile, jq_msq, jq_repeat' end,
    case when new.jq_runonpfile <> '' then ', $6, true, $7' end)
    into new.jq_pk
   using new.jq_job_fk, new.jq_type, coalesce(new.jq_args, ''), fossology_compat.letter(priority), pause,
         new.jq_runonpfile, new.jq_repeat = 'yes';
  return new;
end $$;

-- jq_end_bits says what is wanted: 0 resets a step, 1 skips it, 2 ends it as failed.
create or replace function fossology_compat.update_step() returns trigger
language plpgsql as $$
declare
  wrong text;
  job   bigint;
begin
  select key into wrong from jsonb_each(to_jsonb(new)) as n join jsonb_each(to_jsonb(old)) as o using (key)
   where n.value <> o.value and key not in ('jq_starttime', 'jq_endtime', 'jq_endtext', 'jq_end_bits', 'jq_schedinfo')
   order by key limit 1;
  if found then
    perform fossology_compat.refuse('jobqueue', wrong,
                                    'what a row asks for never changes, delete it and insert another');
  elsif new.jq_end_bits is null or new.jq_end_bits not in (0, 1, 2) then
    perform fossology_compat.refuse('jobqueue', 'jq_end_bits', '0 resets a row, 1 skips it, 2 ends it as failed');
  elsif new.jq_end_bits = 0 and coalesce(new.jq_starttime, new.jq_endtime) is null then
    perform fossology_compat.reset(old.jq_pk);
  elsif new.jq_end_bits = 2 and old.jq_end_bits = 0 then
    job := fossology_compat.job_of(old.jq_pk);
    perform drover.command(rtrim('cancel ' || job || ' ' || coalesce(new.jq_endtext, '')));
  elsif new.jq_end_bits = 1 and old.jq_end_bits <> 1 then
    if old.jq_end_bits = 2 then
      perform fossology_compat.reset(old.jq_pk);
    end if;
    job := fossology_compat.job_of(old.jq_pk);
    perform drover.command('ice ' || job);
  elsif new.jq_end_bits <> old.jq_end_bits then
    perform fossology_compat.refuse('jobqueue', 'jq_end_bits',
                                    format('row %s has ended, so reset it: jq_end_bits 0 with jq_starttime and '
                                           'jq_endtime NULL', old.jq_pk));
  elsif new.jq_starttime is distinct from old.jq_starttime or new.jq_endtime is distinct from old.jq_endtime then
    perform fossology_compat.refuse('jobqueue', 'jq_starttime, jq_endtime',
                                    'the scheduler writes them; NULL with jq_end_bits 0 resets a row');
  end if;
  return new;
end $$;

-- Return what is run again with a job: this one and all below it that have ended, each the latest of its step.
create or replace function fossology_compat.ended_below(job bigint) returns bigint[]
language plpgsql stable security definer set search_path = drover, pg_temp set enable_seqscan = off
  set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return array(
    with recursive ended(pk) as (
      select job
       union
      select d.jdep_jq_fk from ended e
       cross join lateral (select jdep_jq_fk from jobdepends where jdep_jq_depends_fk = e.pk offset 0) d
       cross join lateral (
         select from fossology_compat.latest l join jobqueue j on j.jq_pk = l.latest_pk
          where l.latest_pk = d.jdep_jq_fk and l.submitter = session_user and j.jq_endtime is not null offset 0) l)
    select pk from ended order by pk);
end $$;

-- Give the jobs that repeat others their edges, to the latest jobs of the same steps; and let what waits for one of the
-- others wait for the new one.
create or replace function fossology_compat.move_edges(jobs bigint[], again bigint[], waiting bigint[]) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)
  select kid, coalesce(l.latest_pk, p.jq_pk), bits, on_unmet
    from (select u.pk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet
            from unnest(jobs, again) as u(was, pk) join jobdepends on jdep_jq_fk = was
           union all
          select jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet
            from jobdepends where jdep_jq_fk = any (waiting) and jdep_jq_depends_fk = any (jobs))
           as e(kid, parent, bits, on_unmet)
    join jobqueue p on p.jq_pk = e.parent and p.jq_submitter = session_user
    left join fossology_compat.latest l
      on l.step_pk = coalesce(p.jq_resubmit_of, p.jq_pk) and l.submitter = session_user
  on conflict do nothing;
  delete from jobdepends where jdep_jq_fk = any (waiting) and jdep_jq_depends_fk = any (jobs);
exception when check_violation then
  raise exception 'a step that depends on jobqueue row % has just begun: try again', jobs[1]
    using errcode = 'object_in_use', detail = sqlerrm;
end $$;

-- Let a step that has ended be worked again, and all that depend on it and have ended; what depends on it and waits
-- waits for it once more. Another session that resets some of these steps waits for the lock of the group, or of the
-- steps if it began in another group, and then finds them reset.
create or replace function fossology_compat.reset(step bigint) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  top     bigint := fossology_compat.job_of(step);
  ended   bigint[];
  seen    bigint[] := '{}';
  again   bigint[];
  waiting bigint[];
  busy    bigint;
begin
  perform from job where job_pk = (select jq_job_fk from jobqueue where jq_pk = top) for no key update;
  loop
    waiting := array(  -- before what has ended is found: a step that ends meanwhile is in either
      select jdep_jq_fk from jobdepends join jobqueue on jq_pk = jdep_jq_fk
       where jdep_jq_depends_fk = any (seen) and jq_endtime is null and jq_submitter = session_user);
    top := fossology_compat.job_of(step);
    ended := case when exists (select from jobqueue where jq_pk = top and jq_endtime is not null)
                  then fossology_compat.ended_below(top) else '{}' end;
    exit when ended = seen or ended = '{}';
    perform drover.lock_in_order(ended, shared => false);
    seen := ended;
  end loop;
  select coalesce(jq_resubmit_of, jq_pk) into busy from jobs
   where jq_pk = any (case when ended = '{}' then array[top] else waiting end)
     and jq_state in ('claimed', 'running', 'blocked') order by jq_pk limit 1;
  if found then
    raise exception 'jobqueue row % is being worked: set its jq_end_bits to 2, and reset it when it has ended', busy
      using errcode = 'object_in_use';
  elsif ended = '{}' then
    return;
  elsif not has_column_privilege(session_user, 'drover.jobqueue', 'jq_msq', 'insert')
        and exists (select from jobqueue where jq_pk = any (ended) and jq_msq) then
    raise exception 'jobqueue row %, or one that depends on it, is SQL, which % may not insert any more',
      step, session_user using errcode = 'insufficient_privilege';
  end if;
  again := array(select drover.job_resubmit(pk) from unnest(ended) as pk);
  update jobqueue j
     set jq_resubmit_of = coalesce(old.jq_resubmit_of, old.jq_pk), jq_priority = fossology_compat.letter(job_priority)
    from unnest(ended, again) as u(was, pk) join jobqueue old on old.jq_pk = was join job on job_pk = old.jq_job_fk
   where j.jq_pk = u.pk;
  perform fossology_compat.move_edges(ended, again, waiting);
end $$;

-- Remove a job with all that is known of it. One that is being worked is cancelled, and is no part of its job group any
-- more; it is removed with what ended long ago.
create or replace function fossology_compat.remove(job bigint) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if not exists (select from jobqueue where jq_pk = job and jq_submitter = session_user) then
    return;
  end if;
  perform fossology_compat.defer(array(select jdep_jq_fk from jobdepends
                                        where jdep_jq_depends_fk = job and jdep_met_at is null));
  if (select jq_state in ('claimed', 'running') from jobs where jq_pk = job) is not true then
    begin
      perform drover.remove_jobs(array[job]);
      return;
    exception when lock_not_available then
      null;  -- it has just been claimed
    end;
  end if;
  perform drover.command('cancel ' || job || ' deleted');
  delete from jobdepends where jdep_jq_depends_fk = job;
  update jobqueue set jq_job_fk = null where jq_pk = job;
end $$;

create or replace function fossology_compat.delete_step() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform fossology_compat.remove(jq_pk) from jobqueue
    where jq_pk = old.jq_pk or jq_resubmit_of = old.jq_pk;
  return old;
end $$;

-- ---------------------------------------------------------------- jobdepends

create view fossology_compat.jobdepends with (security_barrier) as
select kid.step_pk as jdep_jq_fk, parent.step_pk as jdep_jq_depends_fk
  from drover.jobdepends d
  join fossology_compat.latest kid on kid.latest_pk = d.jdep_jq_fk
  join fossology_compat.latest parent on parent.latest_pk = d.jdep_jq_depends_fk
 where kid.submitter = session_user and parent.submitter = session_user;

-- Let the latest job of one step wait for that of another; no more for an earlier job of it.
create or replace function fossology_compat.add_edge(kid bigint, parent bigint) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  kid_job    bigint := fossology_compat.job_of(kid);
  parent_job bigint := fossology_compat.job_of(parent);
begin
  insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (kid_job, parent_job) on conflict do nothing;
  delete from jobdepends
   where jdep_jq_fk = kid_job and jdep_jq_depends_fk <> parent_job
     and jdep_jq_depends_fk in (select jq_pk from jobqueue where parent in (jq_pk, jq_resubmit_of));
end $$;

create or replace function fossology_compat.insert_edge() returns trigger
language plpgsql as $$
begin
  perform fossology_compat.add_edge(new.jdep_jq_fk, new.jdep_jq_depends_fk);
  return new;
end $$;

create or replace function fossology_compat.update_edge() returns trigger
language plpgsql as $$
begin
  perform fossology_compat.refuse('jobdepends', 'jdep_jq_depends_fk', 'delete the row and insert another');
  return null;
end $$;

create or replace function fossology_compat.delete_edge() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  kid_job bigint := fossology_compat.job_of(old.jdep_jq_fk);
begin
  perform fossology_compat.defer(array[kid_job]);
  delete from jobdepends
   where jdep_jq_fk = kid_job
     and jdep_jq_depends_fk in (select jq_pk from jobqueue where old.jdep_jq_depends_fk in (jq_pk, jq_resubmit_of));
  return old;
end $$;

-- ---------------------------------------------------------------- triggers and grants

do $$
declare
  entry text[];
begin
  foreach entry slice 1 in array array[
    ['job', 'insert', 'insert_job'], ['job', 'update', 'update_job'], ['job', 'delete', 'delete_job'],
    ['jobqueue', 'insert', 'insert_step'], ['jobqueue', 'update', 'update_step'], ['jobqueue', 'delete', 'delete_step'],
    ['jobdepends', 'insert', 'insert_edge'], ['jobdepends', 'update', 'update_edge'],
    ['jobdepends', 'delete', 'delete_edge']]
  loop
    execute format('create trigger %3$s instead of %2$s on fossology_compat.%1$s
                    for each row execute function fossology_compat.%3$s()', entry[1], entry[2], entry[3]);
  end loop;
end $$;

revoke all on all functions in schema fossology_compat from public;

-- Only where there are roles: `drover init --roles` comes before this file. The views belong to who owns the schema
-- drover, for their functions act with the rights of that role: drover_owner may be that of another database.
do $$
declare
  command text;
  master  regrole := (select nspowner from pg_namespace where nspname = 'drover');
  who     text := (select string_agg(rolname, ', ') from pg_roles
                    where rolname in ('drover_frontend', 'drover_frontend_sql', 'drover_operator'));
begin
  if who is not null then
    execute format('grant usage on schema fossology_compat to %s', who);
    execute format('grant select, insert, update, delete on fossology_compat.job, fossology_compat.jobqueue,
                      fossology_compat.jobdepends to %s', who);
    -- what runs with their rights; none of the others, which they could call by a trigger of a table of their own
    execute format('revoke all on all functions in schema fossology_compat from %s', who);
    execute format('grant execute on function fossology_compat.letter(integer), fossology_compat.pause(),
                      fossology_compat.refuse(text, text, text), fossology_compat.data_of(fossology_compat.job),
                      fossology_compat.job_of(bigint), fossology_compat.reset(bigint),
                      fossology_compat.add_edge(bigint, bigint) to %s', who);
  end if;
  if master <> current_user::regrole and pg_has_role(current_user, master, 'member') then
    execute format('grant create, usage on schema fossology_compat to %s', master);
    for command in
      select format('alter view %s owner to %s', oid::regclass, master) from pg_class
       where relnamespace = 'fossology_compat'::regnamespace and relkind = 'v'
      union all
      select format('alter function %s owner to %s', oid::regprocedure, master) from pg_proc
       where pronamespace = 'fossology_compat'::regnamespace
      union all
      select format('alter schema fossology_compat owner to %s', master)
    loop
      execute command;
    end loop;
  end if;
end $$;
