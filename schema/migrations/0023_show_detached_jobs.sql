-- Detached jobs as people see them: where each is kept, whether its scheduler is attached, and if not, why not yet.

-- A row for each attempt of which a host keeps something. The pid is that of the keeper, and known while the attempt
-- runs. `waits_for` is null while the scheduler is attached.
create view drover.detached_jobs as
select j.jq_pk, j.jq_type, j.jq_state, d.det_attempt as attempt, d.det_host as host,
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
  join drover.jobqueue j on j.jq_pk = d.det_jq_fk
  left join drover.queue q on q.queue_name = j.jq_queue
  left join drover.scheduler_group g on g.group_name = q.queue_group
  left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
  left join drover.host h on h.host_name = d.det_host
 cross join lateral (
   select j.jq_state = 'running' and j.jq_attempt = d.det_attempt as runs,
          case when h.host_down_until > now() - interval '1 minute' then coalesce(h.host_reason, '?') end as down) t
  left join lateral (
    select true as is_attached from drover.scheduler_status
     where t.runs and status_scheduler = g.group_owner and status_slot >= 0 and status_jq_fk = j.jq_pk
     limit 1) slot on true;

-- What a member of a tenant sees of it.
create view drover.our_detached with (security_barrier) as
select d.* from drover.detached_jobs d join drover.our_jobs using (jq_pk);

-- What drover.why says of a job that runs detached.
create view drover.runs_detached as
select jq_pk, 'running detached on host ' || host || coalesce(', keeper pid ' || pid, '') || ', since '
              || date_trunc('second', since) || case when attached then ', attached'
                                                     else ', not attached: ' || waits_for end as says
  from drover.detached_jobs where runs;

create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(d.says, a.says, l.says, r.says) || coalesce(drover.shown_code(j), '') || coalesce(': ' || r.text, '')
         as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true;

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(d.says, a.says, l.says, r.says) || coalesce(drover.shown_code(j), '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true;
