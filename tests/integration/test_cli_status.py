"""drover status, on a real database."""

import json
from itertools import pairwise

import psycopg

from tests.cli_tools import OWNER, Done, Drover, insert


def test_status_of_an_unknown_group_is_refused(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("status", "nosuch") == Done(2, "", "no group nosuch: there are default\n")
    assert drover("status", "default").status == 0


def test_status_of_a_group_without_scheduler(drover: Drover, connection: psycopg.Connection) -> None:
    assert drover("status").out.splitlines()[0] == ("group default: no scheduler is active; start one with drover run")


def test_status_shows_owner_slots_jobs_and_queues(drover: Drover, many: psycopg.Connection) -> None:
    many.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since, status_jq_fk)
           values (%s, -1, null, null, 0, 'active', now(), null),
                  (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now(), 3)""",
        (OWNER, OWNER),
    )
    text = drover("status", "-v").out
    assert "\ngroup default: scheduler alpha.77 is active since " in text
    assert "   1  alpha  noop   ST_RUNNING" in text
    assert "Types that no scheduler serves" not in text


def test_status_shows_a_draining_owner_and_its_slots_only(drover: Drover, many: psycopg.Connection) -> None:
    dead = "0a0a0a0a-0000-4000-8000-00000000dead"
    many.execute(
        """insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,
                                         scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)
           values (%s, 'default', 'alpha', 78, '', '', 1, '')""",
        (dead,),
    )
    many.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since)
           values (%s, -1, null, null, 0, 'draining', now()),
                  (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now()), (%s, 2, 'alpha', 'noop', 6, 'ST_RUNNING', now())""",
        (OWNER, OWNER, dead),
    )
    status = json.loads(drover("status", "--json").out)
    assert [scheduler["role"] for scheduler in status["schedulers"]] == ["draining", "standby"]
    assert [slot["slot"] for slot in status["slots"]] == [1]


def test_status_marks_a_scheduler_unseen_for_its_lease_and_later_omits_it_j74(
    drover: Drover, active: psycopg.Connection
) -> None:
    active.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since)
           values (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now())""",
        (OWNER,),
    )
    roles = []
    for unseen in (0, 31, 61):
        age = "update drover.scheduler set scheduler_seen = now() - make_interval(secs => %s)"
        active.execute(age, (unseen,))
        active.execute(
            "update drover.scheduler_group set group_lease_until = now() - interval '1 s' where %s > 0", (unseen,)
        )
        status = json.loads(drover("status", "--json").out)
        roles.append(([scheduler["role"] for scheduler in status["schedulers"]], len(status["slots"])))
    assert roles == [(["owner"], 1), (["gone?"], 0), ([], 0)]


def test_status_notes_a_missing_standby_and_succeeds_c1(drover: Drover, active: psycopg.Connection) -> None:
    alone = drover("status")
    note = "note: the group has no standby, which would take over if this scheduler ended"
    assert (alone.status, note in alone.out.splitlines()) == (0, True)
    active.execute(
        """insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,
                                         scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)
           values (gen_random_uuid(), 'default', 'beta', 78, '', '', 1, '')"""
    )
    assert "note:" not in drover("status").out
    assert json.loads(drover("status", "--json").out)["group"]["standbys"] == 1


def test_status_as_json_has_everything_j71(drover: Drover, many: psycopg.Connection) -> None:
    status = json.loads(drover("status", "--json").out)
    assert (status["group"]["active"], status["group"]["host"]) == (True, "alpha")
    assert [scheduler["role"] for scheduler in status["schedulers"]] == ["owner"]
    assert status["jobs"] == [
        {"type": "noop", "queued": 1, "could_start": 1, "done": 1, "failed": 1},
        {"type": "sha256", "queued": 1, "could_start": 1, "done": 0, "failed": 0},
    ]
    assert {kind: count for kind, count in status["totals"].items() if count} == {
        "could_start": 2, "done": 1, "failed": 1
    }  # fmt: skip
    assert status["queues"] == [
        {"queue": "default", "concurrency": None, "paused": False, "in_hand": 0, "queued": 2, "could_start": 2}
    ]


def test_workers_are_listed_with_name_place_and_targets_j71(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(
        """insert into drover.host (host_name, host_group, host_transport, host_queues, host_types)
           values ('near', 'default', 'local', null, ''), ('far', 'default', 'ssh', '{a,b}', '^sha')"""
    )
    (scheduler,) = json.loads(drover("status", "--json").out)["schedulers"]
    assert (scheduler["host"], scheduler["pid"], scheduler["role"]) == ("alpha", 77, "owner")
    hosts = [json.loads(line) for line in drover("host", "--json").out.splitlines()]
    assert [(each["host"], each["scheduler"], each["transport"], each["filter"]) for each in hosts] == [
        ("far", "alpha.77", "ssh", "types=^sha queues=a,b"),
        ("near", "alpha.77", "local", None),
    ]


def test_status_shows_how_many_success_lines_came_f94(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since, status_parameter)
           select scheduler_uuid, -1, null, null, 0, 'active', now(), '{"successes": 1234}' from drover.scheduler"""
    )
    assert json.loads(drover("status", "--json").out)["schedulers"][0]["successes"] == 1234
    _, values = next(
        pair for pair in pairwise(drover("status", "-v").out.splitlines()) if pair[0].split()[-1:] == ["SUCCESSES"]
    )
    assert values.split()[-1] == "1234"


def test_status_lists_unserved_types_with_their_counts(drover: Drover, active: psycopg.Connection) -> None:
    for kind in ("nosuch", "nosuch", "off", "noop", "command"):
        insert(active, kind)
    active.execute("insert into drover.agent (agent_group, agent_type, agent_enabled) values ('default', 'off', false)")
    unserved = json.loads(drover("status", "--json").out)["unserved"]
    assert unserved == [
        {"type": "nosuch", "group": "default", "jobs": 2, "elsewhere": 0, "reason": "not configured"},
        {"type": "off", "group": "default", "jobs": 1, "elsewhere": 0, "reason": "disabled"},
    ]


def test_status_lists_jobs_in_a_missing_queue_and_of_unserved_types(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('noop', 'defualt'), ('sha256', 'defualt')")
    told = json.loads(drover("status", "--json").out)
    assert told["unserved"] == []
    assert told["unknown_queues"] == [{"queue": "defualt", "jobs": 2, "types": "noop, sha256"}]


SLOT = """
insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent, status_state,
                                     status_state_name, status_since)
select %s, %s, %s, %s, 0, %s, now()
"""


def add_slots(connection: psycopg.Connection, state: str = "ST_FREE") -> None:
    """Have three hosts with a slot of each of 14 types, one of which is disabled."""
    types = [f"type{n:02}" for n in range(14)]
    connection.execute(
        "insert into drover.agent (agent_group, agent_type, agent_enabled)"
        " select 'default', type, type <> 'type13' from unnest(%s::text[]) as type", (types,),
    )  # fmt: skip
    places = [(host, kind) for host in "abc" for kind in types]
    for number, (host, kind) in enumerate(places):
        connection.execute(SLOT, (OWNER, number, host, kind, "ST_FREE" if kind == "type13" else state))


def healthy(out: str) -> list[str]:
    """Return the lines below the warnings: the server of tests always has one, for its fsync is off."""
    return out[out.index("group default: ") :].splitlines()


def test_healthy_site_fits_25_lines_and_idle_slots_are_a_number(drover: Drover, active: psycopg.Connection) -> None:
    add_slots(active)
    active.execute("""
        insert into drover.queue (queue_name, queue_group) select 'q' || n, 'default' from generate_series(1, 30) n;
        insert into drover.jobqueue (jq_type, jq_queue)
        select 'type' || lpad((n % 13)::text, 2, '0'), 'q' || n % 30 + 1 from generate_series(1, 60) n""")
    lines = healthy(drover("status").out)
    assert "slots: 39 idle, 3 disabled" in lines
    assert "ST_FREE" not in "\n".join(lines)
    assert len(lines) <= 25
    assert drover("status", "-v").out.count("ST_FREE") == 42


def test_status_of_a_type_that_works_shows_it_and_no_idle_one(drover: Drover, active: psycopg.Connection) -> None:
    add_slots(active)
    active.execute("update drover.scheduler_status set status_state_name = 'ST_RUNNING' where status_slot in (0, 28)")
    out = drover("status").out
    assert "slots: 2 working, 37 idle, 3 disabled" in out
    assert [line.split() for line in out.split("Agents\n")[1].splitlines()] == [
        ["HOST", "AGENT", "ST_RUNNING"], ["a", "type00", "1"], ["c", "type00", "1"],
    ]  # fmt: skip


def test_jobs_that_could_start_are_counted_apart_from_those_that_wait(
    drover: Drover, active: psycopg.Connection
) -> None:
    first = insert(active)
    active.execute(
        "insert into drover.jobqueue (jq_type, jq_not_before) select 'noop', now() + interval '2 days'"
        " from generate_series(1, 5)"
    )
    child = insert(active)
    active.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, first))
    out = drover("status").out
    assert "jobs: 1 could start, 5 wait for a time, 1 wait for other jobs" in out.splitlines()
    heading, row = out.split("Jobs\n")[1].splitlines()[:2]
    assert heading == "TYPE  COULD START  WAIT FOR A TIME  WAIT FOR OTHER JOBS"
    assert row.split() == ["noop", "1", "5", "1"]
    (queue,) = json.loads(drover("status", "--json").out)["queues"]
    assert (queue["queued"], queue["could_start"]) == (7, 1)


def test_most_urgent_line_of_status_comes_first(drover: Drover, active: psycopg.Connection) -> None:
    insert(active, "nosuch")
    insert(active, "noop")
    active.execute("insert into drover.host (host_name, host_group, host_transport) values ('far', 'default', 'ssh')")
    active.execute(
        "update drover.agent set agent_blocked_until = now() + interval '1 hour', agent_blocked_since = now(),"
        " agent_reason = 'no OK' where agent_type = 'noop'"
    )
    lines = drover("status").out.splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["Warnings", "agents failed", "unserved"]
    kinds = [row["warning"] for row in json.loads(drover("status", "--json").out)["warnings"]]
    assert kinds[0] == "agents failed"


def test_statements_of_a_scheduler_are_sorted_by_their_total(drover: Drover, active: psycopg.Connection) -> None:
    statements = {
        "a_rare": {"count": 1, "mean_ms": 900.0, "max_ms": 900.0},
        "b_usual": {"count": 5000, "mean_ms": 2.0, "max_ms": 9.0},
    }
    active.execute(
        "insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name,"
        " status_since, status_parameter) values (%s, -1, 0, 'active', now(), %s)",
        (OWNER, json.dumps({"statements": statements})),
    )
    shown = json.loads(drover("status", "--json").out)["statements"]
    assert [(row["statement"], row["total_s"]) for row in shown] == [("b_usual", 10.0), ("a_rare", 0.9)]
