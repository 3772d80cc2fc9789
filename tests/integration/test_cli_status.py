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
    assert text.startswith("group default: alpha.77 is active since ")
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
    assert (alone.status, alone.out.splitlines()[1]) == (
        0,
        "note: the group has no standby, which would take over if this scheduler ended",
    )
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
        {"type": "noop", "queued": 1, "done": 1, "failed": 1},
        {"type": "sha256", "queued": 1, "done": 0, "failed": 0},
    ]
    assert status["queues"] == [{"queue": "default", "concurrency": None, "paused": False, "in_hand": 0, "queued": 2}]


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
        pair for pair in pairwise(drover("status").out.splitlines()) if pair[0].split()[-1:] == ["SUCCESSES"]
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
