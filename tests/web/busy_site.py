"""A site with all that its pages can show: types, queues, hosts and a role with long names, slots, jobs in every state.

The rows are those that a daemon writes; no daemon runs. Triggers are left out, since they take most of the time.
"""

import psycopg

from tests.cli_tools import OWNER

LONG = "a-name-of-sixty-four-characters-that-a-site-gives-a-queue-or-host"[:64]
ROLE = LONG.replace("-", "_")[:63]  # the longest name of a role
TYPES = ("noop", "sha256", "convert", "license", "thumbnails-of-scanned-pages", "mail", "ocr", "unpack")
QUEUES = ("default", "bulk", "night", "interactive", LONG, "paused")
HOSTS = ("alpha", "beta", "gamma.example.org", LONG, "down")
TROUBLED = """
update drover.agent
   set agent_blocked_until = now() + interval '1 hour', agent_blocked_since = now() - interval '10 min',
       agent_reason = 'exit status 127: sh: 1: convert: not found, as it was started for the sixth time on host alpha'
 where agent_type = 'convert';
update drover.host set host_down_until = now() + interval '1 hour',
       host_reason = 'ssh: connect to host down.example.org port 22: Connection refused' where host_name = 'down';
"""
TYPES_AND_HOSTS = """
set session_replication_role = replica;
insert into drover.agent (agent_group, agent_type) select 'default', unnest(%(types)s::text[]) on conflict do nothing;
insert into drover.queue (queue_name, queue_group, queue_concurrency, queue_paused)
select name, 'default', nullif(n, 1) * 10, name = 'paused'
  from unnest(%(queues)s::text[]) with ordinality as q(name, n) on conflict (queue_name) do nothing;
insert into drover.host (host_name, host_group, host_transport, host_max, host_max_file, host_types)
select name, 'default', case n when 1 then 'local' else 'ssh' end, 8, 8, case n when 3 then 'ocr,unpack' else '' end
  from unnest(%(hosts)s::text[]) with ordinality as h(name, n);
insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent, status_state,
       status_state_name, status_since, status_pid, status_items, status_spawns)
select %(owner)s, n, host, type, case n %% 3 when 0 then 1 else 5 end,
       case n %% 3 when 0 then 'ST_FREE' else 'ST_READY' end,
       now() - n * interval '47 s', case n %% 3 when 0 then null else 4000 + n end, n * 1117, n %% 4
  from (select row_number() over () as n, host, type
          from unnest((%(hosts)s::text[])[1:4]) host, unnest(%(types)s::text[]) type, generate_series(1, 2)) s;
"""
# Numbers choose what a job is: most are done, a fifth waits, some are in each other state.
JOBS = """
insert into drover.jobqueue (jq_pk, jq_type, jq_queue, jq_host, jq_submitter, jq_state, jq_owner, jq_attempt, jq_queued,
       jq_starttime, jq_endtime, jq_end_bits, jq_urgent, jq_priority, jq_args, jq_endtext, jq_itemsprocessed,
       jq_itemsfailed, jq_itemstotal, jq_msq, jq_elapsedtime, jq_wait_until, jq_done_host, jq_exitcode)
overriding system value
select n, (%(types)s::text[])[1 + n %% %(kinds)s], (%(queues)s::text[])[1 + n / 7 %% 6],
       case when n %% 11 = 0 then (%(hosts)s::text[])[1 + n / 11 %% 5] end,
       (array['drover_frontend', 'drover_operator', %(role)s])[1 + n %% 3],
       state::drover.job_state, case when state in ('claimed', 'running') then %(owner)s::uuid end,
       case when state in ('held', 'queued') then 0 else 1 end, queued,
       case when state not in ('held', 'queued', 'blocked') then queued + waited end,
       case when ends then queued + waited + ran end,
       case when not ends then 0 when state in ('done', 'skipped') then 1 else 2 end,
       n %% 97 = 0, case n %% 5 when 0 then 'b' else 'n' end,
       case n %% 9 when 0 then 'select pk, path from files where batch = ' || n || ' order by pk'
                   when 1 then '/srv/scans/2026/' || repeat('a-long-folder/', n %% 8) || n || '.tif'
                   else '/srv/in/' || n || '.tif' end,
       case state when 'failed' then 'exit status 7: connection to api.example.org timed out after 30 s'
                  when 'blocked' then 'no licence is free' when 'done' then 'all items were processed' end,
       case when n %% 36 = 0 and state = 'running' then 4567890
            when n %% 9 = 0 and state not in ('held', 'queued') then n %% 490 + 1
            when state in ('done', 'failed') then 1 else 0 end,
       case when n %% 18 = 0 and state not in ('held', 'queued') then n %% 7 else 0 end,
       case when n %% 36 = 0 and state = 'running' then 12000000
            when n %% 9 = 0 and state not in ('held', 'queued') then 500 end, n %% 9 = 0, ran,
       case when state = 'queued' and n %% 13 = 0 then now() + interval '1 hour' end,
       case when state not in ('held', 'queued') then (%(hosts)s::text[])[1 + n %% 4] end,
       case when state = 'failed' then 7 end
  from (select n, case when n > %(jobs)s - 40 then (array['running', 'claimed', 'queued', 'failed'])[1 + n %% 4]
                       when n %% 5 = 0 then 'queued' when n %% 199 = 0 then 'held' when n %% 211 = 0 then 'blocked'
                       when n %% 23 = 0 then 'failed' when n %% 157 = 0 then 'cancelled'
                       when n %% 163 = 0 then 'skipped' when n %% 401 = 0 then 'ignored' else 'done' end as state,
               now() - (%(jobs)s - n) * interval '0.2 s' - interval '2 min' as queued,
               (1 + n %% 40) * interval '1 s' as waited, (1 + n %% 17) * interval '0.7 s' as ran
          from generate_series(1, %(jobs)s) n) j
 cross join lateral (select state in ('done', 'failed', 'cancelled', 'skipped', 'ignored') as ends) e;
"""
# A slot works for each job that runs; jobs that are blocked have a condition.
BESIDE = """
update drover.scheduler_status set status_state = 6, status_state_name = 'ST_RUNNING', status_jq_fk = pk
  from (select jq_pk as pk, row_number() over () as n from drover.jobqueue where jq_state = 'running' limit 20) r
 where status_slot = 3 * n + 1;
insert into drover.recovery (recovery_group, recovery_condition, recovery_policy, recovery_next, recovery_tries)
select 'default', name, 'every', now() + interval '5 min', 4
  from unnest(array['licence', 'disk', 'a-condition-with-a-long-name-that-an-agent-has-chosen']) name
 where exists (select from drover.jobqueue where jq_state = 'blocked');
insert into drover.blocked (blocked_jq_fk, blocked_recovery, blocked_queue, blocked_rank, blocked_queued)
select jq_pk, (select min(recovery_pk) from drover.recovery) + jq_pk %% 3, jq_queue, 'n', jq_queued
  from drover.jobqueue where jq_state = 'blocked';
insert into drover.in_hand (hand_owner, hand_jobs)
select %(owner)s, coalesce(array_agg(jq_pk), '{}') from drover.jobqueue where jq_state in ('claimed', 'running');
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select newest, newest - n from (select max(jq_pk) as newest from drover.jobqueue) j, generate_series(1, 4) n
 where newest > 4;
insert into drover.log (log_date, log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
select now() - n * interval '11 s', case when n %% 4 > 0 then jq_pk end,
       (array['LOG', 'LOG', 'WARNING', 'ERROR', 'LOG'])[1 + n %% 5], 'alpha', jq_type, 4000 + n,
       case n %% 6 when 0 then repeat('a message of several words, and one/path/without/any/blank ', 6)
                   else 'job ' || jq_pk || ' is done' end
  from generate_series(1, 500) n join drover.jobqueue on jq_pk = (select max(jq_pk) from drover.jobqueue) - n;
"""
SCHEDULES = """
insert into drover.schedule (schedule_name, schedule_cron, schedule_zone, schedule_next, schedule_last, schedule_job)
select 'nightly-' || n, '30 2 * * 1-5', (array['UTC', 'Europe/Berlin', 'America/Argentina/Buenos_Aires'])[n],
       date_trunc('hour', now()) + n * interval '1 d', now() - n * interval '1 h', '{"jq_type": "sha256"}'
  from generate_series(1, 3) n;
"""


def fill(connection: psycopg.Connection, jobs: int, *, in_trouble: bool = False, kinds: int = len(TYPES)) -> None:
    """Insert the site and so many jobs, of the first so many types; it is healthy unless said otherwise."""
    values = {
        "types": [*TYPES], "queues": [*QUEUES], "hosts": [*HOSTS], "owner": OWNER, "jobs": jobs, "kinds": kinds,
        "role": ROLE,
    }  # fmt: skip
    with psycopg.ClientCursor(connection) as cursor:
        for script in (TYPES_AND_HOSTS, JOBS, BESIDE):
            cursor.execute(script, values)
        cursor.execute(SCHEDULES)
        if in_trouble:
            cursor.execute(TROUBLED)
        cursor.execute("reset session_replication_role")
        cursor.execute("select setval('drover.jobqueue_jq_pk_seq', greatest(max(jq_pk), 1)) from drover.jobqueue")
        cursor.execute("select drover.recount(0, 4096), drover.recount_ends()")
        cursor.execute("analyze drover.jobqueue")
