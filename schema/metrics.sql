-- Statements of the exporter (scheduler/metrics); the rules of cli.sql hold. None reads jobs that have ended.

-- name: metric_groups
-- Return whether each group has an active scheduler, how long its lease lasts, and how many stand by.
select group_name as group, (coalesce(group_lease_until > now(), false) and group_owner is not null)::integer as active,
       greatest(extract(epoch from group_lease_until - now()), 0)::float8 as lease,
       (select count(*) from drover.scheduler
         where scheduler_group = group_name and scheduler_uuid is distinct from group_owner
           and scheduler_seen > now() - make_interval(secs => scheduler_lease)) as standbys
  from drover.scheduler_group order by group_name

-- name: metric_schedulers
-- Return how each scheduler fares that is alive.
select scheduler_host || '.' || scheduler_pid as scheduler, scheduler_group as group, scheduler_version as version,
       1 as info, jobs, expansions, memory_mb * 1e6 as memory, cpu_s as cpu, slow_turns,
       longest_turn_ms / 1e3 as longest_turn, recent_turn_ms / 1e3 as recent_turn, troubles,
       is_refused::integer as refused, extract(epoch from scheduler_started)::float8 as started,
       greatest(extract(epoch from now() - status_updated), 0)::float8 as age
  from drover.vitals where is_alive order by scheduler

-- name: metric_statements
-- Return how often each named statement of the schedulers ran, and how long it took.
select scheduler_host || '.' || scheduler_pid as scheduler, scheduler_group as group, key as statement,
       (value ->> 'count')::float8 as calls, (value ->> 'total_s')::float8 as seconds,
       (value ->> 'max_ms')::float8 / 1e3 as longest
  from drover.vitals cross join lateral jsonb_each(statements) s
 where is_alive order by scheduler, statement

-- name: metric_jobs
-- Return how many jobs of each type and queue wait or are worked, and how long the oldest is queued.
select type, queue, replace(state, ' ', '_') as state, jobs,
       greatest(extract(epoch from now() - oldest), 0)::float8 as age
  from drover.depth order by type, queue, state

-- name: metric_blocked
-- Return how many jobs are blocked on each condition.
select condition, count(*) as jobs from drover.blocked_jobs group by condition order by condition

-- name: metric_queues
-- Return whether each queue is paused, and its limits.
select queue_name as queue, queue_group as group, queue_paused::integer as paused, queue_concurrency as concurrency,
       queue_max_length as length
  from drover.queue where queue_present order by queue_name

-- name: metric_hosts
-- Return whether each host is enabled and reached, and for how long it has not been.
select host_name as host, host_group as group, host_enabled::integer as enabled,
       (host_down_until is null)::integer as up,
       coalesce(extract(epoch from now() - host_down_since), 0)::float8 as down_seconds
  from drover.host where host_present order by host_name

-- name: metric_types
-- Return whether each agent type is enabled, and whether all its slots have failed.
select agent_type as type, agent_group as group, agent_enabled::integer as enabled,
       coalesce(agent_blocked_until > now(), false)::integer as failed
  from drover.agent where agent_present order by agent_type, agent_group

-- name: metric_slots
-- Return how many slots of each type on each host are in each state.
select group_name as group, status_host as host, status_agent as type, status_state_name as state, count(*) as slots
  from drover.scheduler_status join drover.scheduler_group on group_owner = status_scheduler
 where status_slot >= 0 and group_lease_until > now()
 group by 1, 2, 3, 4 order by 1, 2, 3, 4

-- name: metric_counters
select counter_name, counter_labels, counter_value from drover.counters order by counter_name, counter_labels

-- name: metric_tables
-- Return the rows of the tables that grow, as the server estimates them.
select relname as table, n_live_tup as live, n_dead_tup as dead
  from pg_stat_user_tables
 where schemaname = 'drover' and relname = any ('{jobqueue,claimable,in_hand,blocked,jobdepends,attempt_kept,
         item_failure,log,output,event,delivery,counter,scheduler_status}')
 order by relname

-- name: metric_database
-- Return the bytes of the database, and how full the server's queue of notifications is.
select pg_database_size(current_database()) as bytes, pg_notification_queue_usage() as notifications
