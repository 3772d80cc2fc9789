-- What people ask about one job costs the same beside ten million others, whoever asks, and also while the tables were
-- never analysed.

-- The sentence is made once (`offset 0`), though drover.why looks at it too before it asks for a rate limit. Jobs in
-- hand are looked up by number, one by one (`limit 1`): a plan made without statistics would read the whole queue.
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
  said.says
from drover.jobqueue j left join drover.recorded c on c.jq_pk = j.jq_pk
cross join lateral (select case when c.jq_pk is null then j.jq_state else 'claimed' end as state) s
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host
left join drover.room r on r.room_scheduler = g.group_owner and r.room_agent = j.jq_type
                       and coalesce(r.room_host, '') = coalesce(j.jq_host, '')
cross join lateral (
  select
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
          || coalesce(a.agent_reason, r.room_closed, r.room_full, r.room_busy), 'in hand, waits for an agent') end
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
        when q.queue_concurrency <= (
          select count(distinct pk)
            from drover.in_hand, unnest(hand_jobs) as pk,
                 lateral (select from drover.jobqueue t
                           where t.jq_pk = pk and t.jq_queue = q.queue_name
                             and (t.jq_state in ('claimed', 'running')
                                  or t.jq_state = 'queued' and t.jq_unmet = 0 and t.jq_wait_until is null
                                     and t.jq_type <> 'command' and not drover.has_token(t))
                           limit 1) t)
          then 'queue ' || q.queue_name || ' is full'
        when a.agent_reason is not null then 'waits its turn: ' || a.agent_reason
        when coalesce(r.room_closed, r.room_full) is not null then coalesce(r.room_closed, r.room_full)
        when j.jq_msq and a.agent_queries_wait
          then 'waits its turn: others of its type wait for an expansion connection'
        else 'waits its turn' || coalesce(': ' || r.room_busy, (
          select '; agents are reserved for queue ' || string_agg(o.queue_name, ', ' order by o.queue_name)
            from drover.queue o
           where o.queue_group = q.queue_group and o.queue_name <> q.queue_name and o.queue_present
             and o.queue_reserved > 0), '') end
      else s.state::text
    end as says offset 0) said;

-- Each is looked up by its number (`offset 0`), however many the server expects.
create or replace view drover.detached_jobs as
select d.det_jq_fk as jq_pk, j.jq_type, j.jq_state, d.det_attempt as attempt, d.det_host as host,
       d.det_spool || '/' || (select site_uuid from drover.site) || '/' || d.det_jq_fk || '.' || d.det_attempt as entry,
       d.det_since as since,
       t.runs, case when t.runs then j.jq_done_pid end as pid, slot.is_attached is not null as attached,
       case when not t.runs then 'its entry is to be removed'
                                 || coalesce(': host ' || h.host_name || ' is down: ' || t.down, '')
            when slot.is_attached then null
            when g.group_owner is null or g.group_lease_until < now()
            then 'no scheduler is active for group ' || q.queue_group
            when not coalesce(a.agent_present, false) then 'agent type ' || j.jq_type || ' is not configured'
            when not coalesce(h.host_present, false) then 'host ' || d.det_host || ' is not configured'
            when t.down is not null then 'host ' || h.host_name || ' is down: ' || t.down
            when j.jq_owner <> g.group_owner then 'the scheduler that owns group ' || q.queue_group || ' adopts it next'
            when not exists (select from drover.scheduler_status
                              where status_scheduler = g.group_owner and status_host = d.det_host
                                and status_agent = j.jq_type and status_state = 1)
            then 'agent type ' || j.jq_type || ' has no free slot on host ' || d.det_host
            else 'it is adopted within seconds' end as waits_for
  from drover.detached d
 cross join lateral (
   select jq_type, jq_state, jq_queue, jq_attempt, jq_owner, jq_done_pid
     from drover.jobqueue where jq_pk = d.det_jq_fk offset 0) j
  left join drover.queue q on q.queue_name = j.jq_queue
  left join drover.scheduler_group g on g.group_name = q.queue_group
  left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
  left join drover.host h on h.host_name = d.det_host
 cross join lateral (
   select j.jq_state = 'running' and j.jq_attempt = d.det_attempt as runs,
          case when h.host_down_until > now() - interval '1 minute' then coalesce(h.host_reason, '?') end as down) t
  left join lateral (
    select true as is_attached from drover.scheduler_status
     where t.runs and status_scheduler = g.group_owner and status_slot >= 0 and status_jq_fk = d.det_jq_fk
     limit 1) slot on true;

-- What a member of a tenant sees of one job: its row says whose it is, and those in hand are not asked about.
create or replace view drover.our_log with (security_barrier) as
select l.* from drover.log l join drover.jobqueue on jq_pk = log_jq_fk
 where jq_submitter = any ((select drover.fellows())::name[])
    or jq_pk = any ((select drover.shared_jobs())::bigint[]);

create or replace view drover.our_output with (security_barrier) as
select o.* from drover.output o join drover.jobqueue on jq_pk = out_jq_fk
 where jq_submitter = any ((select drover.fellows())::name[])
    or jq_pk = any ((select drover.shared_jobs())::bigint[]);

create or replace view drover.our_why with (security_barrier) as
select w.* from drover.why w join drover.jobqueue j on j.jq_pk = w.jq_pk
 where j.jq_submitter = any ((select drover.fellows())::name[])
    or j.jq_pk = any ((select drover.shared_jobs())::bigint[]);

create or replace view drover.our_detached with (security_barrier) as
select d.*
  from drover.detached_jobs d
 cross join lateral (
   select from drover.jobqueue j
    where j.jq_pk = d.jq_pk and (jq_submitter = any ((select drover.fellows())::name[])
                                 or jq_pk = any ((select drover.shared_jobs())::bigint[])) offset 0) j;
