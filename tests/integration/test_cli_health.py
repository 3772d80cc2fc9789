"""drover health and the screen of drover status, on a real database."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from scheduler.cli.health import OF_DATABASE
from tests.cli_tools import ACTIVE, DROVER, OWNER, Done, Drover, environment, insert, run_as
from tests.connection_tools import OTHER
from tests.terminal_tools import shown_on_terminal

FAILED = """
update drover.agent set agent_blocked_since = now() - interval '2 min', agent_blocked_until = now() + interval '3 min',
       agent_reason = 'no OK within 60 s' where agent_type = 'noop'
"""
SLOTS = """
insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent, status_state,
                                     status_state_name, status_since)
  select %s, n, 'alpha', 'noop', 6, case when n %% 3 = 0 then 'ST_READY' else 'ST_RUNNING' end, now()
    from generate_series(1, 90) n
"""
OTHER_GROUP = f"""
insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id,
                              scheduler_pid_space, scheduler_pid_start, scheduler_version)
  values ('{OTHER}', 'other', 'beta', 78, 'boot', 'space', 1, '0.1.0');
insert into drover.scheduler_group (group_name, group_owner, group_lease_until)
  values ('other', '{OTHER}', now() + interval '1 hour');
insert into drover.queue (queue_name, queue_group) values ('theirs', 'other');
insert into drover.host (host_name, host_group, host_transport, host_down_since, host_down_until, host_reason)
  values ('far', 'other', 'ssh', now(), now() + interval '1 hour', 'refused');
insert into drover.agent (agent_group, agent_type, agent_blocked_since, agent_blocked_until, agent_reason)
  values ('other', 'noop', now(), now() + interval '1 hour', 'no OK within 60 s');
insert into drover.agent (agent_group, agent_type, agent_trial)
  values ('other', 'sha256', '{{"state": "HELD_BACK", "text": "it is slower"}}');
insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_state, status_state_name,
                                     status_since, status_reason, status_parameter)
  values ('{OTHER}', -1, 'beta', 6, 'ST_RUNNING', now(), 'a statement is refused',
          '{{"shortages": ["no more agents"], "troubles": [{{"what": "queue", "seconds": 9, "reason": "no room"}}]}}');
insert into drover.jobqueue (jq_type, jq_queue) values ('noop', 'theirs'), ('nosuch', 'theirs'), ('noop', 'default')
"""


@pytest.fixture
def safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the settings of the server, which those of tests have switched off."""
    monkeypatch.setattr(
        "scheduler.cli.health.OF_DATABASE", [each for each in OF_DATABASE if each.kind != "setting off"]
    )


@pytest.mark.usefixtures("safe")
def test_health_of_a_group_in_order_is_0(drover: Drover, active: psycopg.Connection) -> None:
    done = drover("health")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("ok: group default: scheduler alpha.77 is active since ")
    assert json.loads(drover("health", "--json").out) == {
        "health": "ok", "group": "default", "reasons": [], "unseen": [],
    }  # fmt: skip


@pytest.mark.usefixtures("safe")
def test_health_with_a_warning_is_1_with_a_line_for_it(drover: Drover, active: psycopg.Connection) -> None:
    insert(active, "nosuch")
    done = drover("health")
    assert (done.status, len(done.out.splitlines())) == (1, 1)
    assert done.out == (
        "warning: unserved: type nosuch: no scheduler serves it, it is not configured; jobs that wait: 1; "
        "next: configure it, or cancel them: drover cancel --type nosuch\n"
    )


@pytest.mark.usefixtures("safe")
def test_health_is_2_if_work_stands(drover: Drover, active: psycopg.Connection) -> None:
    insert(active)
    insert(active, "nosuch")
    active.execute(FAILED)
    done = drover("health")
    assert [line.split(": ")[:2] for line in done.out.splitlines()] == [
        ["critical", "agents failed"],
        ["warning", "unserved"],
    ]
    assert "try it at once: drover agent enable noop" in done.out
    told = json.loads(drover("health", "--json").out)
    assert (done.status, told["health"], [each["level"] for each in told["reasons"]]) == (
        2, "critical", ["critical", "warning"],
    )  # fmt: skip


@pytest.mark.usefixtures("safe")
def test_health_without_a_scheduler_is_2_although_no_job_waits(drover: Drover, connection: psycopg.Connection) -> None:
    done = drover("health")
    assert done == Done(
        2, "critical: no scheduler: group default: no scheduler is active; next: start one with drover run\n", ""
    )


def test_health_without_a_database_is_2_with_the_reason_on_standard_output(
    drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", "host=/nonexistent dbname=x")
    done = drover("health")
    assert (done.status, done.err, len(done.out.splitlines())) == (2, "", 1)
    assert done.out.startswith("critical: database: database not reachable: ")


def blocked(database: str, table: str) -> psycopg.Connection:
    """Return a session that keeps a table locked."""
    holder = psycopg.connect(database)
    holder.execute(f"lock table {table}".encode())
    return holder


@pytest.mark.usefixtures("safe")
def test_health_is_3_with_what_it_could_not_look_for_and_why(
    drover: Drover, active: psycopg.Connection, database: str
) -> None:
    with blocked(database, "drover.suspect"):
        done = drover("health")
        told = json.loads(drover("health", "--json").out)
    assert (done.status, done.err) == (3, "")
    assert done.out == (
        "unknown: not looked for: impossible: lock: canceling statement due to lock timeout; "
        "next: try again; if it stays, end the session that pg_locks names\n"
    )
    assert (told["health"], [each["level"] for each in told["reasons"]]) == ("unknown", ["unknown"])


@pytest.mark.usefixtures("safe")
@pytest.mark.parametrize(("kind", "level", "status"), [("nosuch", "warning", 1), ("noop", "critical", 2)])
def test_what_was_found_wins_over_what_could_not_be_looked_for(
    drover: Drover, active: psycopg.Connection, database: str, kind: str, level: str, status: int
) -> None:
    insert(active, kind)
    active.execute(FAILED)
    with blocked(database, "drover.suspect"):
        done = drover("health")
    assert done.status == status
    assert [line.split(": ")[0] for line in done.out.splitlines()] == [level, "unknown"]


def test_a_check_of_the_group_that_could_not_look_is_unknown(
    drover: Drover, active: psycopg.Connection, database: str
) -> None:
    with blocked(database, "drover.host"):
        done = drover("health")
    assert "unknown: not looked for: host down: lock: canceling statement due to lock timeout; next: " in done.out
    assert "critical" not in done.out


def test_a_check_that_could_not_look_is_told_once(drover: Drover, active: psycopg.Connection, database: str) -> None:
    with blocked(database, "drover.job_total"):
        lines = drover("health").out.splitlines()
    assert sum(line.startswith("unknown: not looked for: unserved: lock: ") for line in lines) == 1
    assert len(set(lines)) == len(lines)


def test_jobs_of_an_unserved_type_in_other_queues_are_told(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("insert into drover.jobqueue (jq_type) values ('nosuch'), ('nosuch')")
    active.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('nosuch', 'defualt')")
    (line,) = [line for line in drover("health").out.splitlines() if "type nosuch:" in line]
    assert "jobs that wait: 2, and 1 in queues that are not of the group; next: configure it, or cancel them" in line


@pytest.mark.usefixtures("safe")
def test_health_tells_what_is_wrong_in_its_own_group_only(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(OTHER_GROUP.encode())
    own, other = [json.loads(drover("health", "--json", name).out) for name in ("default", "other")]
    assert own["reasons"] == []
    told = {each["warning"] for each in other["reasons"]}
    assert told == {
        "agents failed", "connection", "host down", "new program", "no more agents", "refused", "unserved",
    }  # fmt: skip


def test_health_without_a_right_is_unknown_and_not_critical(database_with_roles: str, config: Path) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as owner:
        owner.execute(ACTIVE.encode())
        owner.execute("revoke select on drover.host from drover_readonly")
    done = run_as(database_with_roles, config, "readonly", "health")
    assert "unknown: not looked for: host down: no privilege: permission denied for table host; next: " in done.out
    assert "critical" not in done.out


@pytest.mark.usefixtures("safe")
def test_status_shows_what_could_not_be_looked_for_in_the_words_of_health(
    drover: Drover, active: psycopg.Connection, database: str
) -> None:
    with blocked(database, "drover.suspect"):
        done = drover("status")
    assert done.status == 0
    assert "not looked for  impossible: lock: canceling statement due to lock timeout; next: try again" in done.out


def test_health_tells_a_front_end_what_it_does_not_see(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    done = run_as(database_with_roles, config, "frontend", "health")
    assert "note: role drover_frontend sees its own jobs alone: no others are listed or counted" in done.out
    assert "hidden" not in done.out


def test_status_warns_of_types_and_queues_that_no_scheduler_serves(drover: Drover, active: psycopg.Connection) -> None:
    insert(active, "nosuch")
    active.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('noop', 'defualt')")
    found = [each for each in json.loads(drover("status", "--json").out)["warnings"] if each["warning"] == "unserved"]
    assert [each["who"] for each in found] == ["type nosuch", "queue defualt"]
    assert "drover cancel --type nosuch" in found[0]["next"]


@pytest.fixture
def crowded(active: psycopg.Connection) -> psycopg.Connection:
    """Return a database with more of everything than a screen holds."""
    active.execute(SLOTS, (OWNER,))
    active.execute("insert into drover.queue (queue_name, queue_group) select 'q' || n, 'default' from "
                   "generate_series(1, 40) n")  # fmt: skip
    active.execute("insert into drover.jobqueue (jq_type) select 'kind' || n from generate_series(1, 40) n")
    return active


@pytest.mark.parametrize(("columns", "cut"), [(80, 3), (200, 2)])
def test_status_fits_a_screen_and_says_what_is_left_out(
    database: str, config: Path, crowded: psycopg.Connection, columns: int, cut: int
) -> None:
    status, text = shown_on_terminal([*DROVER, "status"], environment(database, config), 40, columns)
    lines = text.splitlines()
    assert (status, len(lines) <= 40, max(map(len, lines)) <= columns) == (0, True, True)
    titles = [line.strip() for line in lines if line.strip() in ("Warnings", "Agents", "Jobs", "Queues", "Schedulers")]
    assert titles == ["Warnings", "Agents", "Jobs", "Queues"]
    assert len([line for line in lines if line.endswith("more; drover status -v lists all")]) == cut


def test_status_counts_the_slots_of_a_type_by_their_states(drover: Drover, crowded: psycopg.Connection) -> None:
    lines = drover("status").out.splitlines()
    at = lines.index("Agents")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["HOST", "AGENT", "ST_READY", "ST_RUNNING"],
        ["alpha", "noop", "30", "60"],
    ]
    assert "Slots" not in lines
    assert sum(" ST_RUNNING" in line for line in drover("status", "-v").out.splitlines()) == 60


def test_statements_of_the_scheduler_are_shown_with_v_only(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name,
                                                status_since, status_parameter)
           values (%s, -1, 1, 'serving', now(), '{"statements": {"end_and_claim": {"count": 3}}}')""",
        (OWNER,),
    )
    assert "end_and_claim" not in drover("status").out
    assert "end_and_claim" in drover("status", "-v").out


def test_status_loads_nothing_slow_that_it_does_not_need(database: str, config: Path) -> None:
    slow = ("rich", "sqlglot", "cronsim", "paramiko", "scheduler.database.embedded",
            "scheduler.model.queue_requests", "scheduler.policy", "scheduler.daemon")  # fmt: skip
    code = f"""
import sys
from scheduler.cli.main import main
main(["status", "default"])
print([name for name in {slow} if name in sys.modules])
"""
    argv, variables = [sys.executable, "-c", code], environment(database, config)
    done = subprocess.run(argv, capture_output=True, text=True, env=variables, check=False)
    assert done.stdout.splitlines()[-1] == "[]"


def test_status_of_a_scheduler_that_was_seen_after_the_look_began_shows_no_negative_time(
    drover: Drover, active: psycopg.Connection
) -> None:
    active.execute("update drover.scheduler set scheduler_seen = now() + interval '9 seconds'")
    assert "-1 day" not in drover("status").out
    (scheduler,) = json.loads(drover("status", "--json").out)["schedulers"]
    assert scheduler["unseen_for"] == 0
