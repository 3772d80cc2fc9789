"""A queue as it is after months: many jobs that ended, many that wait, a thousand in hand, and what people look at.

Types, queues, hosts and submitters are mixed, in blocks as sites hand them in; a daemon is entered that seems to live.
"""

from collections.abc import Sequence
from typing import Any, Final

import psycopg

Database = psycopg.Connection[Any]

IN_HAND: Final = 1000
BLOCK: Final = 40  # jobs of one kind that a front-end hands in at once
KINDS: Final = 200  # of type, queue, host and submitter
BULK: Final = 5000  # jobs of one insert
OWNER: Final = "12345678-1234-1234-1234-123456789abc"
UNWATCHED: Final = """
do $$
declare
  name regclass;
begin
  for name in select oid from pg_class where relnamespace = 'drover'::regnamespace and relkind = 'r' loop
    execute format('alter table %s set (autovacuum_enabled = off)', name);
  end loop;
end $$
"""
SITE: Final = """
insert into drover.queue (queue_name, queue_group, queue_concurrency)
select case n when 0 then 'default' else 'queue' || n end, case n when 9 then 'idle' else 'default' end,
       nullif(n, 0) * 40
  from generate_series(0, 9) n on conflict do nothing;
insert into drover.agent (agent_group, agent_type) select 'default', 'type' || n from generate_series(0, 19) n;
insert into drover.host (host_name, host_group, host_max)
select 'host' || n, 'default', 500 from generate_series(0, 4) n;
insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id,
    scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_seen, scheduler_takes_shared,
    scheduler_counts)
values ('{owner}', 'default', 'host0', 4711, 'boot', 'space', 1, '1', now() + interval '1 year', true, true);
insert into drover.scheduler_group (group_name, group_owner, group_lease_until, group_taken_at, group_number)
values ('default', '{owner}', now() + interval '1 year', now(), 1)
    on conflict (group_name) do update set group_owner = excluded.group_owner,
       group_lease_until = excluded.group_lease_until;
insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name, status_since,
    status_host, status_agent, status_pid, status_parameter, status_updated)
select '{owner}', n, case n when -1 then 1 else 7 end, case n when -1 then 'owner' else 'working' end, now(),
       case when n >= 0 then 'host' || mod(n, 5) end, case when n >= 0 then 'type' || mod(n, 20) end, n + 5000,
       case n when -1 then '{{"jobs": 1000, "troubles": [], "statements": {{}}}}' end, now() + interval '1 year'
  from generate_series(-1, 99) n;
insert into drover.job (job_name, job_user)
select 'group' || n, 'user' || mod(n, 5) from generate_series(1, 200) n;
"""
# The columns of a job. Front-ends hand in blocks of one kind: i is the number of the job among all, b that of its kind.
KIND: Final = """
'type' || mod(b, 20), case mod(b / 20, 10) when 0 then 'default' else 'queue' || mod(b / 20, 10) end,
case mod(b, 7) when 0 then 'host' || mod(b / 7, 5) end,
case when mod(b, 50) = 0 then 'ann' else 'user' || mod(b, 4) end,
case mod(b, 3) when 0 then mod(b, 200) + 1 end, 'argument ' || i
"""
ENDED: Final = f"""
insert into drover.jobqueue (jq_type, jq_queue, jq_host, jq_submitter, jq_job_fk, jq_args, jq_state, jq_attempt,
    jq_queued, jq_starttime, jq_endtime, jq_end_bits, jq_endtext, jq_itemsprocessed, jq_itemstotal, jq_elapsedtime,
    jq_processedtime, jq_done_by, jq_done_host, jq_done_pid)
select {KIND}, state, 1, queued, started, started + ran, case state when 'done' then 1 else 2 end,
       case state when 'done' then 'all data processed' when 'failed' then 'exit status 1' else 'cancelled' end, 1, 1,
       ran, ran, case state when 'done' then cast('{OWNER}' as uuid) end, 'host' || mod(i, 5), mod(i, 30000) + 2
  from generate_series(cast(%s as bigint), %s) i,
       lateral (select mod(i / %s, {KINDS}) as b, now() - (%s - i) * (interval '30 days' / %s) as queued) k,
       lateral (select queued + (mod(b, 600)) * interval '1 s' as started, mod(i, 90) * interval '1 s' as ran,
                       cast(case mod(i, 60) when 0 then 'failed' when 1 then 'cancelled' when 2 then 'skipped'
                            else 'done' end as drover.job_state) as state) s
"""
TRIES: Final = f"""
insert into drover.attempt_kept (att_jq_fk, att_attempt, att_scheduler, att_host, att_agent, att_pid, att_start,
                                 att_end, att_outcome, att_exitcode)
select jq_pk, 1, '{OWNER}', jq_done_host, jq_type, 1, jq_starttime, jq_endtime, 'failed', 1
  from drover.jobqueue where jq_state = 'failed';
insert into drover.log (log_date, log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
select jq_endtime, jq_pk, case jq_state when 'failed' then 'ERROR' else 'INFO' end, jq_done_host, jq_type, 1,
       'what it said of its argument'
  from drover.jobqueue where mod(jq_pk, 10) = 0 and jq_endtime is not null;
insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)
select jq_pk, 1, 1, 'out', 'one line' || chr(10)
  from drover.jobqueue where mod(jq_pk, 20) = 0 and jq_endtime is not null;
insert into drover.event (ev_date, ev_jq_fk, ev_kind, ev_old, ev_new, ev_owner, ev_is_final)
select jq_endtime, jq_pk, 'status', 'claimed', jq_state, jq_submitter, true
  from drover.jobqueue where mod(jq_pk, 20) = 0 and jq_endtime is not null;
"""
WAITING: Final = f"""
insert into drover.jobqueue (jq_type, jq_queue, jq_host, jq_submitter, jq_job_fk, jq_args, jq_priority, jq_state,
                             jq_not_before)
select {KIND}, case mod(b, 11) when 0 then 'a5' else 'n' end,
       cast(case mod(b, 23) when 1 then 'held' else 'queued' end as drover.job_state),
       case mod(b, 13) when 2 then now() + (mod(i, 1000)) * interval '1 h' end
  from generate_series(cast(%s as bigint), %s) i, lateral (select mod(i / %s, {KINDS}) as b) k
"""
UNSERVED: Final = """
insert into drover.jobqueue (jq_type, jq_queue, jq_args)
select 'stray' || mod(i / 10, 50), case mod(i, 2) when 0 then 'nowhere' || mod(i / 20, 50) else 'default' end,
       'argument ' || i
  from generate_series(cast(%s as bigint), %s) i
"""
SINGLE: Final = """
do $$ begin
  for i in 1..{count} loop
    insert into drover.jobqueue (jq_type, jq_args) values ('type' || mod(i, 20), 'single ' || i);
  end loop;
end $$
"""
CHILDREN: Final = """
with child as (
  insert into drover.jobqueue (jq_type, jq_args)
  select 'type' || mod(i, 20), 'child ' || i from generate_series(1, %s) i
  returning jq_pk)
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select jq_pk, parent from child, (select min(jq_pk) as parent from drover.jobqueue where jq_state = 'held') p
"""
BLOCKED: Final = """
insert into drover.recovery (recovery_group, recovery_condition, recovery_policy, recovery_next)
select 'default', 'condition' || n, 'policy', now() + interval '1 h' from generate_series(0, 9) n;
with stuck as (
  insert into drover.jobqueue (jq_type, jq_queue, jq_args, jq_state, jq_endtext)
  select 'type' || mod(i, 20), 'default', 'blocked ' || i, 'blocked', 'the disk is full'
    from generate_series(1, {count}) i returning *)
insert into drover.blocked (blocked_jq_fk, blocked_recovery, blocked_queue, blocked_rank, blocked_queued)
select jq_pk, (select min(recovery_pk) from drover.recovery) + mod(jq_pk, 10), jq_queue, '1n', jq_queued from stuck;
"""
# Half of the jobs in hand are so by the record of their claim alone, the others are marked in their rows too.
TAKEN: Final = f"""
with taken as (
  insert into drover.jobqueue (jq_type, jq_queue, jq_host, jq_submitter, jq_job_fk, jq_args)
  select {KIND} from generate_series(1, cast(%s as integer)) i, lateral (select mod(i, {KINDS}) as b) k
  returning jq_pk),
recorded as (
  insert into drover.in_hand (hand_owner, hand_jobs)
  select '{OWNER}', array_agg(jq_pk) from taken group by jq_pk / 100 returning hand_jobs)
select hand_jobs from recorded
"""
MARKED: Final = f"""
update drover.jobqueue
   set jq_state = case when mod(jq_pk, 4) < 2 then 'running' else 'claimed' end::drover.job_state, jq_attempt = 1,
       jq_owner = '{OWNER}', jq_starttime = now(), jq_endtext = 'in progress', jq_done_host = 'host1'
 where jq_pk = any (%s) and mod(jq_pk, 2) = 0
"""
COUNTED: Final = """
select drover.recount(zone, 1024)
  from generate_series(0, (select drover.zone_of(max(jq_pk)) from drover.jobqueue), 1024) as zone;
select drover.add_up_changes(2147483647)
"""
BEHIND: Final = "set session_replication_role = replica"  # no trigger fires
BEFORE: Final = "set session_replication_role = origin"


def fill(database: Database, ended: int, waiting: int, in_hand: int = IN_HAND, block: int = BLOCK) -> None:
    """Add so many jobs that have ended and that wait; those that ended with full pages, as after their life.

    The tables are never analysed, unless somebody does.
    """
    _run(database, UNWATCHED)
    _run(database, SITE.format(owner=OWNER))
    _add_ended(database, ended, block)
    _add_waiting(database, waiting, block)
    _take(database, in_hand)
    _run(database, COUNTED)
    _run(database, "vacuum drover.job_change")


def _add_ended(database: Database, count: int, block: int) -> None:
    _run(database, BEHIND)
    _run(database, "alter table drover.jobqueue set (fillfactor = 85)")
    for first, last in _blocks(count, 500_000):
        _run(database, ENDED, first, last, block, count, count)
    _run(database, "alter table drover.jobqueue set (fillfactor = 40)")
    _run(database, TRIES)
    _run(database, BEFORE)


def _add_waiting(database: Database, count: int, block: int) -> None:
    """Add three quarters in bulk, and a part of each kind that waits for something else than its turn."""
    part = max(count // 20, 1)
    for first, last in _blocks(count - 5 * part, BULK):
        _run(database, WAITING, first, last, block)
    for first, last in _blocks(part, BULK):
        _run(database, UNSERVED, first, last)
    _run(database, SINGLE.format(count=part))
    _run(database, CHILDREN, part)
    _run(database, BEHIND)
    _run(database, BLOCKED.format(count=2 * part))
    _run(database, BEFORE)


def _take(database: Database, count: int) -> None:
    _run(database, BEHIND)
    for jobs in _run(database, TAKEN, count):
        _run(database, MARKED, *jobs)
    _run(database, BEFORE)


def _run(database: Database, text: str, *values: object) -> list[tuple[Any, ...]]:
    cursor = database.execute(text.encode(), values or None)
    return cursor.fetchall() if cursor.description else []


def _blocks(count: int, most: int) -> Sequence[tuple[int, int]]:
    return [(first, min(first + most, count + 1) - 1) for first in range(1, count + 1, most)]
