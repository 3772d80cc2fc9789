"""`drover quota`, and `drover drain --dry-run`: what would be lost now."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.puppets import LOCAL

ROWS = "select i as id, 'gate:{gate}' as act from generate_series(1, 3) i"
KEPT = "nothing is lost: waiting jobs stay in the table until a scheduler is started"
QUOTAS = "select quota_name, quota_most, quota_user, quota_queue from drover.quota"


@pytest.fixture
def daemon(launch: Launch, record: Path) -> Daemon:
    command = agent("sleeper", ["sleep", "600"], kind="exec", slots=3)
    seldom = "[scheduler]\nstatus_interval = 600\n"  # what a test writes into the status stays
    return launch(seldom + LOCAL + "[queues.heavy]\n" + agent("a", rec(record), slots=6) + command)


def test_quota_is_set_changed_listed_and_removed(daemon: Daemon, ask: Ask) -> None:
    assert ask("quota set few 2 --user * --queue heavy").out == "quota few: 2 at once\n"
    assert ask("quota set few 3").out == "quota few: 3 at once\n"
    (row,) = daemon.execute(QUOTAS)
    assert list(row.values()) == ["few", 3, "*", "heavy"]
    shown = json.loads(ask("quota --json").out)
    assert {key: shown[key] for key in ("quota", "most", "queue", "waiting")} == {
        "quota": "few", "most": 3, "queue": "heavy", "waiting": 0,
    }  # fmt: skip
    assert ask("quota remove few").out == "quota few: removed; what waited for it goes on\n"
    assert daemon.execute(QUOTAS) == []


def test_quota_keeps_jobs_back_and_its_removal_lets_them_go(daemon: Daemon, ask: Ask, gate: Path) -> None:
    ask("quota set one 1 --queue heavy")
    jobs = daemon.insert_all([{"jq_type": "a", "jq_queue": "heavy", "jq_args": f"gate:{gate}"}] * 2)
    daemon.until(lambda: {daemon.row(pk)["jq_state"] for pk in jobs} == {"running", "blocked"})
    assert json.loads(ask("quota --json").out)["waiting"] == 1
    ask("quota remove one")
    daemon.until(lambda: {daemon.row(pk)["jq_state"] for pk in jobs} == {"running"})
    gate.touch()
    daemon.wait_all(jobs)


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        ("set new 2", 1, "no quota new; a new one names what it counts"),
        ("set new 2 --queue hevy", 1, "no queue hevy; no quota was set"),
        ("set new 2 --user nobody_of_that_name", 1, "no role nobody_of_that_name"),
        ("set new two --queue heavy", 2, "MOST is how many jobs may be in hand at once"),
        ("set new", 2, "the words are drover quota set NAME MOST"),
        ("set -x 2 --queue heavy", 2, ""),
        ("set .x 2 --queue heavy", 2, "no quota can have the name '.x'"),
        ("set new 2 --group default", 2, "--group alone counts nothing"),
        ("remove new", 1, "no quota new; drover quota lists all"),
        ("list --queue heavy", 2, "takes no options"),
    ],
)
def test_quota_that_makes_no_sense_is_refused_with_the_reason(
    daemon: Daemon, ask: Ask, words: str, status: int, why: str
) -> None:
    done = ask(f"quota {words}")
    assert (done.status, why in done.err) == (status, True), done
    assert daemon.execute(QUOTAS) == []


def test_dry_run_of_a_drain_says_what_a_restart_costs(daemon: Daemon, ask: Ask, gate: Path) -> None:
    sql = {"jq_type": "a", "jq_args": ROWS.format(gate=gate), "jq_msq": True}
    first, *_ = jobs = daemon.insert_all([
        {"jq_type": "sleeper"}, {"jq_type": "sleeper"}, sql | {"jq_key": "id"}, sql,
        {"jq_type": "a", "jq_args": f"gate:{gate}"},
    ])  # fmt: skip
    daemon.wait_all(jobs, "running")
    shown = "select count(*) from drover.scheduler_status where status_jq_fk = %s"
    daemon.until(lambda: daemon.value(shown, first) == 1, what="the first job is not shown in its slot")
    daemon.execute("update drover.jobqueue set jq_starttime = now() - interval '52 h' where jq_pk = %s", first)
    daemon.execute(
        "update drover.scheduler_status set status_since = now() - interval '52 h' where status_jq_fk = %s", first
    )
    drain, restart, kept = ask("drain --dry-run").out.splitlines()
    assert f"2 commands are finished first, the longest has run 2 d 4 h (job {first})" in drain
    assert f"2 commands begin again, the longest has run 2 d 4 h (job {first})" in restart
    assert ("1 SQL job with a key stops at its key" in drain, "1 SQL job with a key goes on at its key" in restart) == (
        True, True,
    )  # fmt: skip
    assert "1 SQL job without a key begins anew" in restart
    assert "1 job of an agent begins again" in restart
    assert kept == f"{KEPT}; what begins again does its work a second time"
    assert daemon.value("select count(*) from drover.jobqueue where jq_type = 'command'") == 0
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="shutdown now"))


def test_dry_run_of_a_drain_says_that_nothing_is_lost(daemon: Daemon, ask: Ask) -> None:
    drain, restart, kept = ask("drain --dry-run").out.splitlines()
    assert {drain.partition(": ")[2], restart.partition(": ")[2]} == {"nothing is in hand"}
    assert kept == KEPT
    assert json.loads(ask("drain --dry-run --json").out) == {"in_hand": []}


def test_drain_says_that_waiting_jobs_stay_in_the_table(daemon: Daemon, ask: Ask) -> None:
    assert ask("drain --wait").out.splitlines()[-1] == KEPT


def test_disabled_host_and_type_say_how_many_agents_go_on(daemon: Daemon, ask: Ask, gate: Path) -> None:
    jobs = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 2)
    daemon.wait_all(jobs, "running")
    assert ask("agent disable a").out.endswith("; 2 agents finish what is in hand\n")
    assert ask("host disable local").out.endswith("; 2 agents finish what is in hand\n")
    gate.touch()
    daemon.wait_all(jobs)
