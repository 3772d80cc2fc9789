"""Jobs that are blocked on a condition: how they wait, are let go, end by commands and by their policy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, Row, agent, python
from tests.integration.test_commands import HOST, QUICK, told

LONG = "wait = 3600\n"
TWICE = "select jq_pk from drover.jobs join drover.blocked on blocked_jq_fk = jq_pk where jq_state <> 'blocked'"
DONE = "select count(*) from drover.jobqueue where jq_type = 'b' and jq_state = 'done'"
TRIES = "select coalesce(max(recovery_tries), 0) from drover.recovery"
CONDITION = "select * from drover.conditions order by condition, policy"
INVARIANT = """
select jq_pk, jq_state, blocked_jq_fk from drover.jobqueue full join drover.blocked on blocked_jq_fk = jq_pk
 where (jq_state is not distinct from 'blocked') <> (blocked_jq_fk is not null)
"""


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a file: where it is, the conditions of `licensed` are over."""
    return tmp_path / "ready"


@pytest.fixture
def licensed(ready: Path) -> Callable[..., str]:
    """Return a function that makes agent types that say BLOCKED with the parameter until the file is there."""
    script = f"""
import os, sys
print("OK")
for line in sys.stdin:
    if not os.path.exists({str(ready)!r}): print("BLOCKED " + line.strip())
    print("OK")
"""
    return lambda name="b", **keys: agent(name, python(script), slots=3, **keys)


@pytest.fixture
def probe(tmp_path: Path) -> tuple[Path, str]:
    """Return a file, and an agent type `probe` that answers 75 until it is there."""
    there = tmp_path / "there"
    return there, agent("probe", ["sh", "-c", f"echo {{args}}; test -e {there} || exit 75"], kind="exec")


def policy(name: str, keys: str) -> str:
    return f"[conditions.{name}]\n{keys}\n"


def blocked(daemon: Daemon, *texts: str, **columns: Any) -> list[int]:
    """Insert jobs that say these words of a condition, and wait until all are blocked."""
    rows = [{"jq_type": "b", "jq_args": text, **columns} for text in texts]
    pks = daemon.insert_all(rows)
    daemon.wait_all(pks, "blocked")
    return pks


def conditions(daemon: Daemon) -> list[Row]:
    assert daemon.execute(INVARIANT) == []
    return daemon.execute(CONDITION)


# ---- blocked


def test_jobs_of_one_condition_are_one_list_t12_t76_t78_t82_t32(launch: Launch, licensed: Callable[..., str]) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    pks = blocked(daemon, "tape is away", "tape is away", "disk is full", "tape is away")
    disk, tape = conditions(daemon)
    assert (disk["condition"], disk["jobs"], disk["policy"]) == ("disk", 1, "")
    assert (tape["condition"], tape["jobs"], tape["policy"], tape["tries"]) == ("tape", 3, "tape", 0)
    assert tape["text"] == "blocked: tape is away"
    assert daemon.why(pks[0]).startswith("waits for the end of a condition since 2")
    assert daemon.why(pks[0]).endswith(": blocked: tape is away")


def test_block_is_one_transaction_with_the_end_of_the_attempt_t76(launch: Launch, licensed: Callable[..., str]) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    (pk,) = blocked(daemon, "tape")
    (row,) = daemon.execute(
        "select j.xmin = b.xmin as with_list, j.xmin = a.xmin as with_attempt, att_outcome from drover.jobqueue j"
        " join drover.blocked b on blocked_jq_fk = jq_pk join drover.attempt_kept a on att_jq_fk = jq_pk"
        " where jq_pk = %s",
        pk,
    )
    assert row == {"with_list": True, "with_attempt": True, "att_outcome": "blocked"}


def test_slot_of_a_blocked_job_works_for_others_t92(launch: Launch, licensed: Callable[..., str], ready: Path) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    blocked(daemon, *["tape"] * 5)
    ready.touch()
    assert daemon.wait(daemon.insert(jq_type="b", jq_args="another"))["jq_attempt"] == 1


def test_types_follow_policies_of_their_own_t13(launch: Launch, licensed: Callable[..., str]) -> None:
    own = policy("slow", LONG + 'condition = "tape"\ntypes = ["b"]') + policy("tape", "wait = 60")
    daemon = launch(HOST + licensed() + licensed("c") + own)
    blocked(daemon, "tape")
    daemon.wait(daemon.insert(jq_type="c", jq_args="tape"), "blocked")
    slow, usual = sorted(conditions(daemon), key=lambda row: row["policy"])
    assert (slow["policy"], usual["policy"]) == ("slow", "tape")
    assert (slow["next_check"] - usual["next_check"]).total_seconds() > 3000


def test_blocked_jobs_are_listed_with_their_condition_t78(
    launch: Launch, licensed: Callable[..., str], ask: Ask
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    (pk,) = blocked(daemon, "tape is away")
    listed = json.loads(ask("ls --json").out)
    assert (listed["job"], listed["state"], listed["condition"], listed["checks"]) == (pk, "blocked", "tape", 0)
    assert listed["blocked_since"] < listed["next_check"]
    assert "NEXT CHECK" in ask("ls").out
    (shown,) = json.loads(ask("status --json").out)["conditions"]
    assert (shown["condition"], shown["jobs"], shown["policy"]) == ("tape", 1, "tape")
    assert shown["next_check"] == listed["next_check"]


# ---- let go


@pytest.mark.slow
def test_jobs_go_back_to_their_places_by_the_policy_t85_t86_t91(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", "wait = 0.5"))
    place = "select jq_queue, jq_priority, jq_queued from drover.jobqueue where jq_pk = any(%s) order by jq_pk"
    pks = daemon.insert_all([{"jq_type": "b", "jq_args": "tape", "jq_priority": letter} for letter in "mzn"])
    before = daemon.execute(place, pks)
    daemon.wait_all(pks, "blocked")
    daemon.until(lambda: daemon.value("select max(recovery_tries) from drover.recovery") >= 2)
    ready.touch()
    daemon.wait_all(pks)
    assert daemon.execute(place, pks) == before
    daemon.until(lambda: conditions(daemon) == [])
    assert len([row for row in daemon.attempts(pks[0]) if row["att_outcome"] == "blocked"]) >= 2


def test_how_often_a_job_was_blocked_is_counted_t91(launch: Launch, licensed: Callable[..., str], ready: Path) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    (pk,) = blocked(daemon, "tape")
    counted = [daemon.value("select jq_blocked_count from drover.jobs_masked where jq_pk = %s", pk)]
    told(daemon, f"unblock {pk}")
    daemon.until(lambda: daemon.value("select jq_blocked_count from drover.jobqueue where jq_pk = %s", pk) == 2)
    daemon.wait(pk, "blocked")
    ready.touch()
    told(daemon, f"unblock {pk}")
    daemon.wait(pk)
    plain = daemon.insert(jq_type="b", jq_args="x")
    daemon.wait(plain)
    counted += [daemon.value("select jq_blocked_count from drover.jobs where jq_pk = %s", each) for each in (pk, plain)]
    assert counted == [1, 2, 0]


def test_only_so_many_jobs_go_at_once_the_oldest_first_t85(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", "wait = 3600\nat_once = 2"))
    pks = blocked(daemon, *["tape"] * 5)
    ready.touch()
    daemon.execute("update drover.recovery set recovery_next = now()")
    daemon.execute("notify drover_recovery")
    daemon.wait_all(pks[:2])
    assert conditions(daemon)[0]["jobs"] == 3


@pytest.mark.slow
def test_blocked_jobs_survive_the_kill_of_their_daemon_t84(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    text = QUICK + HOST + licensed() + policy("tape", "wait = 0.5\nmax_tries = 1000")
    first = launch(text)
    pks = blocked(first, "tape", "tape")
    first.until(lambda: [row["tries"] for row in first.execute(CONDITION)][:1] > [1])
    first.kill()
    (before,) = first.execute("select recovery_tries, recovery_since from drover.recovery")
    ready.touch()
    second = launch(text)
    second.wait_all(pks)
    assert {row["jq_rescued"] for row in map(second.row, pks)} <= {0, 1}
    assert before["recovery_tries"] >= 2


@pytest.mark.slow
def test_a_job_is_in_recovery_or_in_hand_and_never_in_both_t77_t88(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", "wait = 0.1\nat_once = 7"))
    daemon.insert_all([{"jq_type": "b", "jq_args": "tape"}] * 30)

    def consistent() -> bool:
        assert daemon.execute(INVARIANT) == daemon.execute(TWICE) == []
        return True

    daemon.until(lambda: consistent() and daemon.value(TRIES) >= 5)
    ready.touch()
    daemon.until(lambda: consistent() and daemon.value(DONE) == 30)


# ---- the end


@pytest.mark.slow
def test_jobs_fail_when_their_policy_ends_t90(launch: Launch, licensed: Callable[..., str]) -> None:
    daemon = launch(HOST + licensed() + policy("tape", "wait = 0.3\nmax_tries = 2"))
    pks = daemon.insert_all([{"jq_type": "b", "jq_args": "tape is away"}] * 2)
    child = daemon.insert(jq_type="b", jq_state="held")
    daemon.execute("insert into drover.jobdepends values (%s, %s, 1, 'skip')", child, pks[0])
    rows = daemon.wait_all(pks, "failed")
    text = "recovery_timeout: condition tape was still there after 2 checks: blocked: tape is away"
    assert [(row["jq_endtext"], row["jq_end_bits"]) for row in rows] == [(text, 2)] * 2
    daemon.wait(child, "skipped")
    daemon.until(lambda: conditions(daemon) == [])


# ---- commands


@pytest.mark.parametrize(("words", "state"), [("cancel", "cancelled"), ("hold", "held")])
def test_commands_act_on_blocked_jobs_t62_t89(
    launch: Launch, licensed: Callable[..., str], words: str, state: str
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    one, two = blocked(daemon, "tape", "tape")
    told(daemon, f"{words} {one}")
    assert daemon.wait(one, state)["jq_attempt"] == 1
    assert conditions(daemon)[0]["jobs"] == 1
    assert told(daemon, f"killjob {two}", "failed") == f"job {two} is not being worked: it is blocked"


def test_held_job_that_was_blocked_is_released_to_the_queue_t89(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    daemon = launch(HOST + licensed() + policy("tape", LONG))
    (pk,) = blocked(daemon, "tape")
    told(daemon, f"hold {pk}")
    ready.touch()
    told(daemon, f"release {pk}")
    daemon.wait(pk)
    assert conditions(daemon) == []


# ---- testers


@pytest.mark.slow
def test_tester_says_when_the_jobs_may_go_t80_t81_t12(
    launch: Launch, licensed: Callable[..., str], ready: Path, probe: tuple[Path, str]
) -> None:
    there, type_ = probe
    daemon = launch(HOST + licensed() + type_ + policy("tape", 'wait = 0.3\ntester = "probe"'))
    pks = blocked(daemon, *["tape"] * 3)
    daemon.until(lambda: conditions(daemon)[0]["tries"] >= 2)
    tests = daemon.execute("select jq_args, jq_state::text from drover.jobqueue where jq_type = 'probe' order by jq_pk")
    assert [row["jq_args"] for row in tests][:2] == ["tape", "tape"]
    assert {len(daemon.attempts(pk)) for pk in pks} == {1}
    ready.touch()
    there.touch()
    daemon.wait_all(pks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("until", "closed", "opened"),
    [
        ("host beta", "host-disable beta", "host-enable beta"),
        ("agent c", "agent-disable c", "agent-enable c"),
        ("queue q", "pause q", "continue q"),
    ],
)
def test_jobs_wait_until_a_host_type_or_queue_can_work_t75_t80(
    launch: Launch, licensed: Callable[..., str], ready: Path, until: str, closed: str, opened: str
) -> None:
    site = HOST + "[hosts.beta]\n[queues.q]\n" + licensed() + licensed("c")
    daemon = launch(site + policy("other", f'wait = 0.2\nuntil = "{until}"'))
    told(daemon, closed)
    (pk,) = blocked(daemon, "other")
    daemon.until(lambda: conditions(daemon)[0]["tries"] >= 2)
    assert len(daemon.attempts(pk)) == 1
    ready.touch()
    told(daemon, opened)
    daemon.wait(pk)


@pytest.mark.slow
def test_hung_tester_delays_no_other_job_and_is_ended_t11(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    hung = agent("probe", ["sleep", "600"], kind="exec")
    keys = 'wait = 0.3\ntester = "probe"\ntester_timeout = 0.5\nmax_tries = 2'
    daemon = launch(HOST + licensed() + licensed("c") + hung + policy("tape", keys))
    (pk,) = blocked(daemon, "tape")
    ready.touch()
    daemon.wait_all([daemon.insert(jq_type="c", jq_args="other") for _ in range(5)])
    assert daemon.wait(pk, "failed")["jq_endtext"].startswith("recovery_timeout: ")
    probes = daemon.execute("select jq_pk from drover.jobqueue where jq_type = 'probe'")
    assert [daemon.wait(row["jq_pk"], "failed")["jq_endtext"][:8] for row in probes] == ["timeout:"] * 2


@pytest.mark.slow
def test_tester_waits_for_no_condition_itself_t81(
    launch: Launch, licensed: Callable[..., str], probe: tuple[Path, str]
) -> None:
    keys = 'wait = 0.2\ntester = "probe"\nmax_tries = 2'
    daemon = launch(HOST + licensed() + probe[1] + policy("tape", keys))
    daemon.wait(daemon.insert(jq_type="b", jq_args="tape"), "failed")
    states = daemon.execute("select jq_state::text as state from drover.jobqueue where jq_type = 'probe'")
    assert states == [{"state": "cancelled"}] * 2
    daemon.until(lambda: daemon.value("select count(*) from drover.recovery") == 0)


@pytest.mark.slow
def test_checks_come_in_the_order_of_their_times_t83(launch: Launch, licensed: Callable[..., str]) -> None:
    type_ = agent("probe", ["true"], kind="exec")
    waits = {"late": 1.5, "soon": 0.3, "later": 0.9}
    tables = [policy(name, f'wait = {wait}\ntester = "probe"') for name, wait in waits.items()]
    daemon = launch(HOST + licensed() + type_ + "".join(tables))
    daemon.insert_all([{"jq_type": "b", "jq_args": name} for name in waits])
    asked = "select jq_args from drover.jobqueue where jq_type = 'probe' group by 1 order by min(jq_pk)"
    daemon.until(lambda: len(daemon.execute(asked)) == 3)
    assert [row["jq_args"] for row in daemon.execute(asked)] == ["soon", "later", "late"]


@pytest.mark.slow
def test_failed_tester_fails_the_jobs_where_the_policy_says_so_t90(
    launch: Launch, licensed: Callable[..., str]
) -> None:
    broken = agent("probe", ["false"], kind="exec")
    keys = 'wait = 0.3\ntester = "probe"\ntester_failure = "fail"'
    daemon = launch(HOST + licensed() + broken + policy("tape", keys))
    pk = daemon.insert(jq_type="b", jq_args="tape")
    text = "recovery_failure: the tester of condition tape failed: blocked: tape"
    assert daemon.wait(pk, "failed")["jq_endtext"] == text


@pytest.mark.slow
def test_tester_that_nobody_starts_is_cancelled_after_its_time_t11(
    launch: Launch, licensed: Callable[..., str]
) -> None:
    keys = 'wait = 0.3\ntester = "probe"\ntester_timeout = 0.3'
    off = agent("probe", ["true"], kind="exec", enabled=False)
    daemon = launch(HOST + licensed() + off + policy("tape", keys))
    blocked(daemon, "tape")
    test = daemon.until(lambda: daemon.execute("select jq_pk from drover.jobqueue where jq_type = 'probe'"))[0]
    assert daemon.wait(test["jq_pk"], "cancelled")["jq_endtext"] == "its answer is not waited for any more"


@pytest.mark.slow
def test_job_whose_queue_is_gone_fails_at_once_when_its_condition_is_over_t87(
    launch: Launch, licensed: Callable[..., str], ready: Path
) -> None:
    daemon = launch(HOST + "[queues.q]\n" + licensed() + policy("tape", LONG))
    child = daemon.insert(jq_type="b", jq_state="held")
    lost, kept = daemon.insert_all([{"jq_type": "b", "jq_args": "tape", "jq_queue": name} for name in ("q", "default")])
    daemon.execute("insert into drover.jobdepends values (%s, %s, 1, 'skip')", child, lost)
    daemon.wait_all([lost, kept], "blocked")
    assert told(daemon, "remove-queue q", "failed")  # an operator of the database does it all the same
    daemon.execute("delete from drover.queue where queue_name = 'q'")
    ready.touch()
    daemon.execute("update drover.recovery set recovery_next = now()")
    daemon.execute("notify drover_recovery")
    assert daemon.wait(lost, "failed")["jq_endtext"] == "recovery_failure: its queue is gone: q"
    assert daemon.value("select jq_end_code from drover.jobs where jq_pk = %s", lost) == "recovery_failure"
    daemon.wait(child, "skipped")
    daemon.wait(kept)
