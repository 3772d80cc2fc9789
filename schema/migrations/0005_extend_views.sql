-- What users of older systems look for: their own job groups and edges, and where the jobs of a step went.

-- ---------------------------------------------------------------- jobs that were resubmitted

create index jobqueue_resubmitted on drover.jobqueue (jq_resubmit_of) where jq_resubmit_of is not null;

-- ---------------------------------------------------------------- own groups and edges

create view drover.my_job_groups with (security_barrier) as
select * from drover.job where job_user = session_user;

create view drover.my_jobdepends with (security_barrier) as
select d.* from drover.jobdepends d join drover.jobqueue j on j.jq_pk = d.jdep_jq_fk
 where j.jq_submitter = session_user;

-- ---------------------------------------------------------------- removing jobs

-- Remove jobs with all that is known of them; return how many there were. Edges to jobs that wait for one are removed.
create function drover.remove_jobs(jobs bigint[]) returns bigint
language plpgsql set search_path = drover, pg_temp set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off as $$
declare
  removed bigint;
begin
  delete from jobdepends where jdep_jq_depends_fk = any (jobs);
  delete from attempt_kept where att_jq_fk = any (jobs);
  delete from log where log_jq_fk = any (jobs);
  delete from output where out_jq_fk = any (jobs);
  delete from item_failure where item_jq_fk = any (jobs);
  delete from command_ack where ack_jq_fk = any (jobs);
  delete from jobqueue where jq_pk = any (jobs);
  get diagnostics removed = row_count;
  return removed;
end $$;

-- Remove one piece of what ended before an instant, with all that belongs to it; failed jobs only if asked. A pass has
-- three stages: jobs, then groups that have none, then log lines about no job. Each goes along a primary key from a
-- place on, `most` rows of it at a time, for no index says what has ended: that would make every end dearer. It stops
-- where rows were queued after the instant; gives the stage and place to go on at, and no stage at its end.
-- A job is kept while a dependency of it is not met, to or from a job that may still run or be retried; so are rows
-- that another session has locked.
create or replace function drover.flush(before timestamptz, failed_too boolean, most integer, inout stage text,
                                        inout place bigint, out removed bigint)
  language plpgsql security definer set search_path = drover, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  old      bigint[];
  looked   integer;
  is_young boolean;  -- rows from here on are: one was queued after the instant, and was never put back to the end
  first    bigint := place;
begin
  if stage = 'jobs' then
    select count(*), max(jq_pk),
           coalesce(bool_or(jq_queued >= before and jq_attempt <= (jq_endtime is not null)::integer), false),
           array_agg(jq_pk) filter (where jq_endtime < before)
      into looked, place, is_young, old
      from (select jq_pk, jq_queued, jq_attempt, jq_endtime from jobqueue
             where jq_pk > first order by jq_pk limit most) w;
    old := array(
      select jq_pk from jobqueue
       where jq_pk = any (old) and jq_endtime < before and (jq_state <> 'failed' or jq_type = 'command' or failed_too)
       order by jq_pk for update skip locked);
    old := array(  -- by another statement: it sees the edges that came before the lock
      select pk from unnest(old) as pk
       where not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_fk
                where jdep_jq_depends_fk = pk and jdep_met_at is null and (jq_endtime is null or jq_state = 'failed'))
         and not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_depends_fk
                where jdep_jq_fk = pk and jdep_met_at is null and jq_endtime is null));
    removed := drover.remove_jobs(old);
    if is_young or looked < most then
      stage := 'groups';
      place := 0;
    end if;
  elsif stage = 'groups' then
    select count(*), max(job_pk), coalesce(bool_or(job_queued >= before), false) into looked, place, is_young
      from (select job_pk, job_queued from job where job_pk > first order by job_pk limit most) w;
    delete from job where job_pk = any (array(
      select job_pk from job
       where job_pk > first and job_pk <= place and job_queued < before
         and not exists (select from jobqueue where jq_job_fk = job_pk) for update skip locked));
    get diagnostics removed = row_count;
    if is_young or looked < most then
      stage := 'log';
      place := 0;
    end if;
  else
    delete from log where log_pk = any (array(
      select log_pk from (select log_pk, log_date from log where log_jq_fk is null order by log_pk limit most) w
       where log_date < before));
    get diagnostics removed = row_count;
    if removed < most then
      stage := null;
    end if;
  end if;
end $$;

-- ---------------------------------------------------------------- where a job runs

-- jq_done_host and jq_done_pid are written when a job of one parameter is shown as running, too, and null while it is
-- queued. Only with jq_done_by are they of a plain success, whose attempt is not in drover.attempt_kept.

-- The attempt of a running job has no end and no outcome yet.
create or replace view drover.attempt as
select * from drover.attempt_kept
union all
select jq_pk, jq_attempt, jq_done_by, jq_done_host, jq_type, jq_done_pid, jq_endtime - jq_processedtime, jq_endtime,
       'done', jq_exitcode, null, null
  from drover.jobqueue where jq_done_by is not null
union all
select jq_pk, jq_attempt, jq_owner, jq_done_host, jq_type, jq_done_pid, coalesce(jq_attempt_start, jq_starttime), null,
       null, null, null, null
  from drover.jobqueue where jq_state = 'running';

create or replace view drover.jobs_masked as
select jq_pk, jq_job_fk, jq_name, jq_type, length(jq_args) as jq_args_length, jq_msq, jq_runonpfile, jq_host, jq_key,
  jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_max_interruptions,
         jq_retries,
       jq_timeout, jq_mode, jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued,
         jq_retry_at,
       jq_unmet, drover.word(jq_wanted, 1) as jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_end_bits, jq_exitcode,
         jq_signal,
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_expected_end,
       jq_submitter, jq_done_host, jq_done_pid
  from drover.jobs;

-- A daemon of the version before leaves jq_done_host as it was when it gives a job back or ends it by `save`.
create or replace function drover.clean_up() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  insert into drover.jobqueue (jq_type, jq_name, jq_args, jq_host, jq_retries, jq_max_interruptions, jq_submitter)
  select 'cleanup', 'cleanup.' || new.jq_pk,
         json_build_object(
           'folder', coalesce((select agent_cwd from drover.agent join drover.queue on queue_group = agent_group
                                where queue_name = new.jq_queue and agent_type = new.jq_type), ''),
           'names', new.jq_delete)::text,
         coalesce(case when new.jq_done_by is not null then new.jq_done_host end,
                  (select att_host from drover.attempt_kept
                    where att_jq_fk = new.jq_pk and att_attempt = new.jq_attempt),
                  new.jq_host),
         3, 2147483647, new.jq_submitter
   where new.jq_delete <> '{}'
  on conflict (jq_name) do nothing;
  return null;
end $$;

-- ---------------------------------------------------------------- the priorities that a host takes

-- host_letters has what the pattern of a host matches: the ranges of priorities as from-below,from-below; from a daemon
-- of the version before their first characters.
create function drover.takes_priority(letters text, priority text) returns boolean
  language sql immutable parallel safe
  return case when letters is null then true
              when strpos(letters, '-') = 0 then strpos(letters, left(priority, 1)) > 0
              else exists (select from unnest(string_to_array(letters, ',')) as each
                            where priority collate "C" >= split_part(each, '-', 1)
                              and priority collate "C" < split_part(each, '-', 2)) end;

-- ---------------------------------------------------------------- hosts that are down

-- host_down_until is the next attempt to reach the host, which takes its time: it counts as down a minute longer.
create or replace view drover.room as
with used as (
  select status_scheduler, status_host, count(*) as used from drover.scheduler_status
   where status_slot >= 0 and status_state > 1 group by status_scheduler, status_host),
place as (
  select s.status_scheduler, s.status_agent, s.status_host, count(*) filter (where status_state = 1) as free,
         count(*) filter (where status_state = 5) as ready, count(*) filter (where status_state in (3, 4)) as starting,
         count(*) filter (where status_state = 0) = count(*) as is_failed,
         max(status_reason) filter (where status_state = 0) as failure
    from drover.scheduler_status s where status_slot >= 0 group by s.status_scheduler, s.status_agent, s.status_host),
host as (
  select p.*, h.host_max, h.host_enabled, h.host_reason, coalesce(u.used, 0) as used,
         h.host_max >= 0 and coalesce(u.used, 0) >= h.host_max as is_full,
         h.host_enabled and coalesce(h.host_down_until <= now() - interval '1 min', true) as is_open
    from place p
    join drover.host h on h.host_name = p.status_host
    left join used u on u.status_scheduler = p.status_scheduler and u.status_host = p.status_host)
select status_scheduler as room_scheduler, status_agent as room_agent, status_host as room_host,
       case when bool_or(is_open) then null
            when count(*) > 3 then 'all ' || count(*) || ' hosts with slots are disabled or down'
            else string_agg('host ' || status_host || case when host_enabled then ' is down: '
                              || coalesce(host_reason, '?') else ' is disabled' end,
                            '; ' order by status_host) end as room_closed,
       case when bool_or(is_open and (ready > 0 or free > 0 and not is_full)) or not bool_or(is_open and free > 0)
            then null
            when count(*) filter (where is_open and free > 0) > 3
            then 'all ' || count(*) filter (where is_open and free > 0) || ' hosts with slots to spare are full'
            else string_agg('host ' || status_host || ' is full: ' || used || ' of ' || host_max || ' agents', '; '
                            order by status_host)
                   filter (where is_open and free > 0) end as room_full,
       case when bool_or(is_open and (ready > 0 or free > 0)) then null
            when bool_and(is_failed) then coalesce(max(failure), 'its agents failed')
            when bool_or(starting > 0) then 'its agents are starting'
            else 'every agent of the type is busy' end || coalesce(' on host ' || status_host, '') as room_busy
  from host group by grouping sets ((status_scheduler, status_agent, status_host), (status_scheduler, status_agent));

create or replace view drover.reason as
select j.jq_pk, j.jq_type, s.state as jq_state,
  case
    when s.state = 'blocked' or s.state = 'claimed' and j.jq_msq and j.jq_endtext <> 'in progress' then j.jq_endtext
    when s.state = 'queued' and j.jq_type <> 'command' and j.jq_unmet = 0 and j.jq_wait_until > now()
      and j.jq_retry_at is not null
      then coalesce(j.jq_endtext, 'back-off')
    when j.jq_endtime is not null then coalesce(j.jq_endtext, '')
      || case when j.jq_msq and j.jq_itemsfailed > 0 then '; the reason of each: drover log ' || j.jq_pk else '' end
  end as text,
  case
    when s.state = 'held' then case j.jq_mode when 'manual' then 'manual: waits for run'
      else 'held: waits for release' end
    when s.state = 'blocked' then 'blocked'
    when s.state in ('claimed', 'running') then case
      when s.state = 'running' and j.jq_msq and (not a.agent_enabled or r.room_closed is not null)
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: '
          || case when a.agent_enabled then r.room_closed else 'agent type ' || a.agent_type || ' is disabled' end
      when s.state = 'running' and j.jq_msq and a.agent_blocked_until > now()
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: ' || drover.rests(a)
      when s.state = 'running' and j.jq_expected_end is not null then 'running: ' || drover.items(j) || ', about '
        || drover.about(extract(epoch from j.jq_expected_end - now())::float8) || ' left' || case when j.jq_repeat
          then ' of this slice' else '' end
      when s.state = 'running'
        then 'running' || coalesce(' on host ' || j.jq_done_host || coalesce(', pid ' || j.jq_done_pid, ''), '')
        || ', in hand since ' || date_trunc('second', coalesce(j.jq_attempt_start, j.jq_starttime))
        || case when j.jq_msq then coalesce(': ' || drover.items(j), '') else '' end
      when j.jq_msq and j.jq_endtext <> 'in progress' then 'in hand'
      when not h.host_enabled then 'in hand, waits for an agent: host ' || h.host_name || ' is disabled'
      when h.host_down_until > now() - interval '1 min'
        then 'in hand, waits for an agent: host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      else coalesce('in hand, waits for an agent: '
        || coalesce(a.agent_reason, r.room_closed, r.room_full, r.room_busy), 'in hand: waits for an agent') end
    when s.state = 'queued' and j.jq_type = 'command'
      then case when j.jq_wait_until is null then 'waits for an active scheduler'
        else 'waits for the jobs that it runs' end
    when s.state = 'queued' then case
      when j.jq_unmet > 0 then 'waits for ' || j.jq_unmet || case j.jq_unmet when 1 then ' dependency: job '
        else ' dependencies: jobs ' end
        || coalesce((select string_agg(pk || coalesce(' (' || name || ')', ''), ', ' order by pk)
                       from (select p.jq_pk as pk, p.jq_name as name
                               from drover.jobdepends join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
                              where jdep_jq_fk = j.jq_pk and jdep_met_at is null limit 10) d), '?')
        || coalesce((select '; job ' || p.jq_pk || case p.jq_state when 'failed'
          then ' has failed: retry it, or cancel or ice this one'
                                                       else ' is ' || p.jq_state
                                                         || ' for good: cancel or ice this one' end
                       from drover.jobdepends join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
                      where jdep_jq_fk = j.jq_pk and jdep_met_at is null and jdep_on_unmet = 'wait'
                        and p.jq_endtime is not null and p.jq_end_bits & jdep_depends_bits = 0
                      order by p.jq_state = 'failed', p.jq_pk limit 1), '')
      when j.jq_wait_until > now() then 'waits until ' || date_trunc('second', j.jq_wait_until)
      when q.queue_name is null then 'no queue ' || quote_literal(j.jq_queue)
      when q.queue_paused then 'queue ' || q.queue_name || ' is paused'
      when a.agent_type is null
        then 'no agent type ' || quote_literal(j.jq_type) || ' is configured in group ' || q.queue_group
      when not a.agent_present then 'agent type ' || a.agent_type || ' is no longer configured'
      when not a.agent_enabled then 'agent type ' || a.agent_type || ' is disabled'
      when h.host_name is null and j.jq_host is not null then 'no host ' || quote_literal(j.jq_host)
      when h.host_group <> q.queue_group
        then 'host ' || h.host_name || ' belongs to group ' || h.host_group || ', queue ' || q.queue_name || ' to '
        || q.queue_group
      when not h.host_present then 'host ' || h.host_name || ' is no longer configured'
      when r.room_agent is null and exists (
             select from drover.scheduler_status
              where status_scheduler = g.group_owner and status_slot = -1 and status_updated > a.agent_registered)
        then 'agent type ' || a.agent_type || ' has no slots on ' || coalesce('host ' || h.host_name, 'any host')
      when not h.host_enabled then 'host ' || h.host_name || ' is disabled'
      when h.host_down_until > now() - interval '1 min'
        then 'host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      when not exists (
        select from drover.host t
         where t.host_group = q.queue_group and t.host_present and t.host_name = coalesce(j.jq_host, t.host_name)
           and coalesce(j.jq_queue = any (t.host_queues), true)
             and drover.takes_priority(t.host_letters, j.jq_priority))
        then coalesce('host ' || j.jq_host || ' does not take', 'no host takes') || ' jobs of queue ' || q.queue_name
          || ' with priority ' || j.jq_priority
      when g.group_owner is null
        or g.group_lease_until < now() then 'no scheduler is active for group ' || q.queue_group
      when a.agent_blocked_until > now() then drover.rests(a)
      when q.queue_concurrency <= (select count(distinct r.jq_pk)
                                     from drover.in_hand, unnest(hand_jobs) as pk join drover.jobqueue r on r.jq_pk = pk
                                    where r.jq_queue = q.queue_name and (r.jq_state in ('claimed', 'running')
                                      or r.jq_pk in (select jq_pk from drover.recorded)))
        then 'queue ' || q.queue_name || ' is full'
      when a.agent_reason is not null then 'waits its turn: ' || a.agent_reason
      when coalesce(r.room_closed, r.room_full) is not null then coalesce(r.room_closed, r.room_full)
      when j.jq_msq and a.agent_queries_wait then 'waits its turn: others of its type wait for an expansion connection'
      else 'waits its turn' || coalesce(': ' || r.room_busy, (
        select '; agents are reserved for queue ' || string_agg(o.queue_name, ', ' order by o.queue_name)
          from drover.queue o
         where o.queue_group = q.queue_group and o.queue_name <> q.queue_name and o.queue_present
           and o.queue_reserved > 0), '') end
    else s.state::text
  end as says
from drover.jobqueue j left join drover.recorded c on c.jq_pk = j.jq_pk
cross join lateral (select case when c.jq_pk is null then j.jq_state else 'claimed' end as state) s
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host
left join drover.room r on r.room_scheduler = g.group_owner and r.room_agent = j.jq_type
                       and coalesce(r.room_host, '') = coalesce(j.jq_host, '');

-- ---------------------------------------------------------------- what users of jobd read

-- `sig` is the name that jobd has for the signal. Where one ended the process there is no return code, as in jobd; and
-- a job that failed has none of 0, though its program may have exited so when it was killed.
create or replace view drover.jobd as
select jq_pk as id, jq_queue as target,
       extract(epoch from coalesce((select job_queued from drover.job
         where job_pk = jq_job_fk), jq_queued))::bigint as time_created,
       coalesce(extract(epoch from jq_starttime), 0)::bigint as time_started,
       coalesce(extract(epoch from jq_endtime), 0)::bigint as time_finished,
       case when jq_state = 'held' then 'manual' when jq_state in ('queued', 'blocked') then 'waiting'
            when jq_state = 'claimed' then 'accepted' when jq_state = 'running' then 'running'
            when jq_state in ('ignored', 'skipped') then 'ignored' else 'done' end as status,
       case when jq_endtime is not null then case when jq_end_bits & 1 = 1 then 'ok' else 'fail' end end as result,
       case when jq_endtime is null or jq_signal is not null then null
            when jq_end_bits & 1 = 1 then coalesce(jq_exitcode, 0)
            else coalesce(nullif(jq_exitcode, 0), 1) end as return_code,
       jq_signal as signal,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'out') as stdout,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'err') as stderr,
       jq_signal as sig
  from drover.jobs where jq_type <> 'command';

create or replace view drover.my_jobd with (security_barrier) as
select d.* from drover.jobd d join drover.jobqueue j on j.jq_pk = d.id where j.jq_submitter = session_user;
