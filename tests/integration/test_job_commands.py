"""Commands about jobs that wait, failed, or are to be run by hand: what becomes of the row, and of those below it."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, Row, agent, lines, python, rec
from tests.integration.puppets import Meeting
from tests.integration.test_commands import HOST, QUICK, command, told, working

ROWS = "select i as id from generate_series(1, 20) i"
PRINTS = "echo out {args}; echo err {args} >&2; exit {args}"


@pytest.fixture
def text(record: Path) -> str:
    return HOST + agent("a", rec(record), slots=2)


def held(daemon: Daemon, **columns: object) -> int:
    return daemon.insert(**{"jq_type": "a", "jq_state": "held", "jq_args": "x", **columns})


def below(daemon: Daemon, child: int, *parents: int, role: str | None = None) -> None:
    """Let a job wait for others."""
    for parent in parents:
        insert = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
        daemon.execute(insert, child, parent, role=role)


def states(daemon: Daemon, pks: Sequence[int]) -> list[str]:
    return [daemon.row(pk)["jq_state"] for pk in pks]


def settled(daemon: Daemon) -> None:
    """Wait until the daemon has read a command that came after all that is queued."""
    told(daemon, "status")


# ---- release


def test_a_held_job_runs_when_it_is_released_and_not_before_r28_r72(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk = held(daemon)
    daemon.wait(daemon.insert(jq_type="a", jq_args="another"))
    assert daemon.row(pk)["jq_state"] == "held"
    assert told(daemon, f"release {pk}") == f"job {pk}: released"
    daemon.wait(pk)


def test_a_release_releases_all_held_descendants_and_they_run_in_order_r39_r31(
    launch: Launch, text: str, record: Path
) -> None:
    daemon = launch(text)
    root, left, right, last = (held(daemon, jq_args=name) for name in ("root", "left", "right", "last"))
    below(daemon, left, root)
    below(daemon, right, root)
    below(daemon, last, left, right)
    assert told(daemon, f"release {root}") == f"job {root}: released, and 3 that wait for it"
    daemon.wait_all([root, left, right, last])
    ran = lines(record)
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("root", ["left", "right"], "last")


def test_a_dummy_parent_waits_for_the_real_parent_added_later_r41(launch: Launch, text: str, record: Path) -> None:
    daemon = launch(text)
    dummy, child, real = held(daemon, jq_args="dummy"), held(daemon, jq_args="child"), held(daemon, jq_args="real")
    below(daemon, child, dummy)
    below(daemon, dummy, real)
    told(daemon, f"release {real}")
    daemon.wait(child)
    assert lines(record) == ["real", "dummy", "child"]


def test_a_job_is_released_by_its_name_r24(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk = held(daemon, jq_name="a.monday")
    assert told(daemon, "release a.monday") == f"job {pk}: released"
    daemon.wait(pk)


def test_release_of_a_missing_job_fails_and_of_a_released_job_changes_nothing_r30(launch: Launch, text: str) -> None:
    daemon = launch(text)
    done = daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_pk"]
    child = held(daemon)
    below(daemon, child, done)
    assert told(daemon, "release 999999", "failed") == "no job 999999"
    assert told(daemon, "release a.nobody", "failed") == "no job a.nobody"
    assert told(daemon, f"release {done}") == f"job {done} has ended: it is done"
    assert states(daemon, [done, child]) == ["done", "held"]


def test_a_release_skips_a_manual_job_and_releases_its_descendants_j39(launch: Launch, text: str) -> None:
    daemon = launch(text)
    root, manual, last = held(daemon), daemon.insert(jq_type="a", jq_mode="manual"), held(daemon)
    below(daemon, manual, root)
    below(daemon, last, manual)
    assert told(daemon, f"release {root}") == f"job {root}: released, and 1 that wait for it"
    daemon.wait(root)
    assert states(daemon, [manual, last]) == ["held", "queued"]
    assert told(daemon, f"release {manual}", "failed") == f"job {manual} is manual: run {manual}"


def test_an_owner_may_release_own_jobs_only_j93(launch: Launch, text: str) -> None:
    daemon = launch(text)
    mine = held(daemon, role="drover_frontend", jq_name="a.mine")
    other = held(daemon)
    below(daemon, other, mine)
    (row,) = daemon.execute("select drover.command('release a.mine') as pk", role="drover_frontend")
    daemon.wait(row["pk"])
    daemon.wait(mine)
    assert daemon.row(other)["jq_state"] == "held"


@pytest.mark.slow
def test_a_released_job_still_waits_for_its_start_time(launch: Launch, text: str) -> None:
    daemon = launch(text)
    soon, past = held(daemon, jq_not_before="2000-01-01"), held(daemon, jq_not_after="2000-01-01")
    told(daemon, f"release {soon}")
    daemon.wait(soon)
    told(daemon, f"release {past}")
    assert daemon.wait(past, "failed")["jq_endtext"].startswith("not started by 2000-01-01")


@pytest.mark.slow
def test_a_release_waits_for_a_locked_descendant_and_then_releases_all(launch: Launch, text: str) -> None:
    daemon = launch(text)
    root, child = held(daemon), held(daemon)
    below(daemon, child, root)
    with daemon.login("postgres").transaction():
        daemon.execute("select from drover.jobqueue where jq_pk = %s for update", child, role="postgres")
        pk = command(daemon, f"release {root}")
        settled(daemon)
        assert states(daemon, [root, pk]) == ["held", "queued"]
    daemon.wait_all([pk, root, child])


# ---- hold and ice


def test_a_queued_job_is_held_until_it_is_released(launch: Launch, text: str) -> None:
    daemon = launch(text)
    told(daemon, "pause")
    pk = daemon.insert(jq_type="a", jq_args="x")
    assert told(daemon, f"hold {pk}") == f"job {pk}: held"
    assert told(daemon, f"hold {pk}") == f"job {pk}: held"
    told(daemon, "continue")
    daemon.wait(daemon.insert(jq_type="a", jq_args="another"))
    assert daemon.row(pk)["jq_state"] == "held"
    told(daemon, f"release {pk}")
    daemon.wait(pk)


def test_commands_about_one_job_that_come_together_are_done_one_after_the_other(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk, other = held(daemon, jq_not_before="2100-01-01"), held(daemon, jq_not_before="2100-01-01")
    below(daemon, other, pk)
    words = [f"release {pk}", f"hold {pk}", f"hold {other}", f"release {pk}"]
    rows = daemon.wait_all(
        daemon.insert_all([{"jq_type": "command", "jq_args": each} for each in words], role="drover_operator")
    )
    assert [row["jq_endtext"] for row in rows] == [
        f"job {pk}: released, and 1 that wait for it", f"job {pk}: held", f"job {other}: held",
        f"job {pk}: released, and 1 that wait for it",
    ]  # fmt: skip
    assert states(daemon, [pk, other]) == ["queued", "queued"]


def test_running_and_ended_jobs_are_not_held(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    assert told(daemon, f"hold {pk}", "failed") == f"job {pk} is in hand: it is running"
    gate.touch()
    daemon.wait(pk)
    assert told(daemon, f"hold {pk}", "failed") == f"job {pk} has ended: it is done"


def test_a_job_on_ice_is_skipped_and_its_children_run(launch: Launch, text: str, record: Path) -> None:
    daemon = launch(text)
    first, second = held(daemon, jq_args="first"), daemon.insert(jq_type="nobody")
    child = daemon.insert(jq_type="a", jq_state="held", jq_args="child")
    below(daemon, child, first, second)
    told(daemon, f"release {child}")
    for pk in (first, second):
        assert told(daemon, f"ice {pk}") == f"job {pk}: on ice"
        row = daemon.row(pk)
        assert (row["jq_state"], row["jq_end_bits"], row["jq_endtext"]) == ("skipped", 1, "on ice")
    daemon.wait(child)
    assert lines(record) == ["child"]
    assert told(daemon, f"ice {child}", "failed") == f"job {child} is neither held nor queued: it is done"


@pytest.mark.slow
def test_hold_keeps_successors_waiting_and_a_change_to_ice_starts_nothing_but_them_c51(
    launch: Launch, text: str, record: Path
) -> None:
    daemon = launch(text)
    nightly = daemon.insert(jq_type="a", jq_args="nightly", jq_state="held")
    report = daemon.insert(jq_type="a", jq_args="report", jq_state="held")
    below(daemon, report, nightly)
    told(daemon, f"release {report}")
    daemon.wait(daemon.insert(jq_type="a", jq_args="another"))
    waiting = [daemon.row(pk)["jq_state"] for pk in (nightly, report)]
    told(daemon, f"ice {nightly}")
    daemon.wait(report)
    assert waiting == ["held", "queued"]
    assert daemon.row(nightly)["jq_state"] == "skipped"
    assert lines(record) == ["another", "report"]


@pytest.mark.slow
@pytest.mark.alone
def test_an_urgent_job_behind_a_hundred_thousand_starts_within_a_second_c55(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.execute(
        "insert into drover.jobqueue (jq_type, jq_args) select 'a', 'nap:0.01' from generate_series(1, 100000)"
    )
    daemon.until(lambda: daemon.value("select count(*) from drover.jobqueue where jq_state = 'done'") > 20)
    urgent = [daemon.insert(jq_type="a", jq_args=str(n), jq_urgent=True) for n in range(5)]
    rows = daemon.wait_all(urgent)
    assert max((row["jq_starttime"] - row["jq_queued"]).total_seconds() for row in rows) < 1.0


# ---- priority


@pytest.mark.slow
@pytest.mark.parametrize("fair", [False, True])
def test_priority_moves_jobs_that_wait_f20(launch: Launch, record: Path, fair: bool) -> None:
    daemon = launch(HOST + agent("a", rec(record), fair=fair, window=1))
    told(daemon, "pause")
    jobs = [daemon.insert(jq_type="a", jq_args=args, role="drover_frontend") for args in ("first", "second", "third")]
    told(daemon, f"hold {jobs[1]}")
    for pk, letters in ((jobs[0], "z"), (jobs[1], "b"), (jobs[2], "a1")):
        (row,) = daemon.execute(f"select drover.command('priority {pk} {letters}') as pk", role="drover_frontend")
        assert daemon.wait(row["pk"])["jq_endtext"] == f"job {pk}: priority {letters}"
    told(daemon, f"release {jobs[1]}")
    told(daemon, "continue")
    daemon.wait_all(jobs)
    assert lines(record) == ["third", "second", "first"]


def test_priority_of_a_job_in_hand_or_ended_is_refused_f20(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    assert told(daemon, f"priority {pk} a", "failed") == f"job {pk} is in hand: it is running"
    gate.touch()
    daemon.wait(pk)
    assert told(daemon, f"priority {pk} a", "failed") == f"job {pk} has ended: it is done"


@pytest.mark.parametrize("letters", ["-1", "a.b", "a" * 17])
def test_priority_is_of_letters_and_digits_f20(launch: Launch, text: str, letters: str) -> None:
    daemon = launch(text)
    said = told(daemon, f"priority {held(daemon)} {letters}", "failed")
    assert said == f"a priority has letters and digits, 16 at most (got '{letters}'): priority JOB LETTERS"


# ---- retry


@pytest.mark.slow
def test_a_retried_job_keeps_the_output_of_earlier_attempts_r7(launch: Launch, tmp_path: Path) -> None:
    good = tmp_path / "good"
    daemon = launch(HOST + agent("s", ["sh", "-c", f"echo first; test -e {good}"], kind="exec"))
    pk = daemon.insert(jq_type="s", jq_retries=1)
    failed = daemon.wait(pk, "failed")
    assert (failed["jq_attempt"], failed["jq_failures"], failed["jq_exitcode"]) == (2, 2, 1)
    good.touch()
    assert told(daemon, f"retry {pk}") == f"job {pk}: queued again"
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_failures"], row["jq_exitcode"]) == (3, 0, 0)
    printed = daemon.execute("select out_attempt, out_data from drover.output where out_jq_fk = %s order by 1", pk)
    assert [tuple(each.values()) for each in printed] == [(1, "first\n"), (2, "first\n"), (3, "first\n")]
    assert [each["att_outcome"] for each in daemon.attempts(pk)] == ["retry", "failed", "done"]


PICKY = """
import json, os, sys
print("OK")
for line in sys.stdin:
    print(line.strip(), file=open({record!r}, "a"))
    if int(line.split('"')[1]) in json.load(open({bad!r})): print("FAIL bad")
    print("OK")
"""


@pytest.fixture
def picky(tmp_path: Path) -> str:
    script = PICKY.format(record=str(tmp_path / "lines"), bad=str(tmp_path / "bad"))
    return HOST + agent("p", python(script), slots=3)


def tried(tmp_path: Path) -> list[int]:
    """Return the items that agents were given since the last look, in order."""
    found = tmp_path / "lines"
    ids = sorted(int(line.split('"')[1]) for line in found.read_text().splitlines())
    found.unlink()
    return ids


@pytest.mark.slow
def test_a_retry_of_a_keyed_job_runs_failed_items_only_r7(launch: Launch, picky: str, tmp_path: Path) -> None:
    daemon, bad = launch(picky), tmp_path / "bad"
    bad.write_text("[3, 7, 20]")
    pk = daemon.insert(jq_type="p", jq_args=ROWS, jq_msq=True, jq_key="id")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "3 items failed, 0 tolerated"
    assert tried(tmp_path) == list(range(1, 21))
    bad.write_text("[7]")
    told(daemon, f"retry {pk}")
    daemon.until(lambda: daemon.row(pk)["jq_attempt"] == 2)
    row = daemon.wait(pk, "failed")
    assert (tried(tmp_path), row["jq_itemsprocessed"], row["jq_itemsfailed"]) == ([3, 7, 20], 19, 1)
    bad.write_text("[]")
    told(daemon, f"retry {pk}")
    row = daemon.wait(pk)
    assert tried(tmp_path) == [7]
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_itemstotal"]) == (20, 0, 20)
    failures = daemon.execute("select item_key from drover.item_failure where item_jq_fk = %s order by item_pk", pk)
    assert sorted(each["item_key"] for each in failures) == ["20", "3", "7", "7"]


def test_a_retry_of_a_query_without_a_key_runs_all_items(launch: Launch, picky: str, tmp_path: Path) -> None:
    daemon, bad = launch(picky), tmp_path / "bad"
    bad.write_text("[3]")
    pk = daemon.insert(jq_type="p", jq_args=ROWS, jq_msq=True)
    daemon.wait(pk, "failed")
    bad.write_text("[]")
    told(daemon, f"retry {pk}")
    row = daemon.wait(pk)
    assert tried(tmp_path) == sorted([*range(1, 21)] * 2)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_itemstotal"]) == (20, 0, 20)


def test_a_child_that_waits_runs_when_its_parent_was_retried_r6(launch: Launch, tmp_path: Path, record: Path) -> None:
    good = tmp_path / "good"
    daemon = launch(HOST + agent("s", ["test", "-e", str(good)], kind="exec") + agent("a", rec(record)))
    parent, child = daemon.insert(jq_type="s", jq_state="held"), held(daemon, jq_args="child")
    below(daemon, child, parent)
    told(daemon, f"release {parent}")
    daemon.wait(parent, "failed")
    assert daemon.row(child)["jq_state"] == "queued"
    good.touch()
    told(daemon, f"retry {parent}")
    daemon.wait_all([parent, child])


@pytest.mark.slow
def test_a_retry_resets_retries_and_interruptions(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args="die:1", jq_retries=1)
    daemon.wait(pk, "failed")
    told(daemon, f"retry {pk}")
    daemon.until(lambda: daemon.row(pk)["jq_attempt"] == 4)
    assert daemon.wait(pk, "failed")["jq_failures"] == 2


def test_a_retry_of_a_job_that_has_not_failed_is_refused(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk = daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_pk"]
    anew = "drover resubmit queues it as another job"
    assert told(daemon, f"retry {pk}", "failed") == f"job {pk} has not failed: it is done; {anew}"
    wrong = command(daemon, "frobnicate")
    daemon.wait(wrong, "failed")
    assert told(daemon, f"retry {wrong}", "failed") == f"job {wrong} is a command"


def test_a_retry_is_refused_when_its_time_is_over_or_its_key_is_taken(launch: Launch, text: str) -> None:
    daemon = launch(text)
    late = daemon.insert(jq_type="a", jq_not_after="2000-01-01")
    daemon.wait(late, "failed")
    assert told(daemon, f"retry {late}", "failed").startswith(f"job {late}: it was to be started by 2000-01-01")
    first = daemon.insert(jq_type="a", jq_args="die:1", jq_unique_key="k")
    daemon.wait(first, "failed")
    held(daemon, jq_unique_key="k")
    refusal = f"job {first}: another job with its jq_unique_key has not ended"
    assert told(daemon, f"retry {first}", "failed") == refusal


# ---- unblock


@pytest.mark.slow
def test_unblock_makes_a_blocked_job_run_at_once(launch: Launch, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"""
import os, sys
print("OK")
for line in sys.stdin:
    if not os.path.exists({str(ready)!r}): print("BLOCKED licence none is free")
    print("OK")
"""
    daemon = launch("[scheduler]\nblocked_delay = 3600\n" + HOST + agent("b", python(script), slots=3))
    one, two, three = (daemon.insert(jq_type="b", jq_args=str(n)) for n in range(3))
    daemon.until(lambda: all("licence" in daemon.why(pk) for pk in (one, two, three)))
    ready.touch()
    assert told(daemon, f"unblock {one}") == f"job {one}: not blocked any more"
    daemon.wait(one)
    assert states(daemon, [two, three]) == ["blocked", "blocked"]
    assert told(daemon, "unblock nothing") == "0 jobs were blocked on nothing"
    assert told(daemon, "unblock licence") == "2 jobs were blocked on licence"
    daemon.wait_all([two, three])
    assert told(daemon, f"unblock {one}", "failed") == f"job {one} is not blocked: it is done"


# ---- run


def answer(daemon: Daemon, words: str, state: str = "done") -> Row:
    return daemon.wait(command(daemon, words), state)


def manual(daemon: Daemon, **columns: object) -> int:
    return daemon.insert(**{"jq_type": "s", "jq_mode": "manual", **columns})


@pytest.fixture
def printing() -> str:
    return HOST + agent("s", ["sh", "-c", PRINTS], kind="exec", slots=3)


def test_a_run_ends_with_its_jobs_and_returns_the_output_of_each_j39_j52_j56(launch: Launch, printing: str) -> None:
    daemon = launch(printing)
    good, bad = manual(daemon, jq_args="0"), manual(daemon, jq_args="3")
    daemon.wait(daemon.insert(jq_type="s", jq_args="0"))
    assert states(daemon, [good, bad]) == ["held", "held"]
    row = answer(daemon, f"run {good} {bad}")
    assert row["jq_endtext"] == "2 jobs have ended"
    assert row["jq_result"] == {
        "jobs": {
            str(good): {"result": "ok", "code": 0, "signal": None, "stdout": "out 0\n", "stderr": "err 0\n"},
            str(bad): {"result": "fail", "code": 3, "signal": None, "stdout": "out 3\n", "stderr": "err 3\n"},
        },
        "errors": {},
    }
    assert states(daemon, [good, bad]) == ["done", "failed"]


@pytest.mark.slow
def test_jobs_of_a_run_work_side_by_side_and_others_go_on_meanwhile_j53_j57_j92(
    launch: Launch, text: str, gate: Path
) -> None:
    daemon = launch(text + '[queues.three]\nconcurrency = 3\n[agents.a2]\ncommand = ["true"]\n')
    pks = [daemon.insert(jq_type="a", jq_args=f"gate:{gate}", jq_mode="manual", jq_queue="three") for _ in range(2)]
    order = command(daemon, f"run {pks[0]} {pks[1]}")
    daemon.wait_all(pks, "running")
    assert told(daemon, "poll")
    assert daemon.row(order)["jq_state"] == "queued"
    assert daemon.why(order) == "waits for the jobs that it runs"
    gate.touch()
    daemon.wait(order)


def test_a_run_over_three_hosts_works_side_by_side_and_gives_one_result_j68(launch: Launch, meeting: Meeting) -> None:
    hosts = "".join(f"[hosts.h{n}]\nmax = 1\n" for n in range(3))
    says = ["sh", "-c", f"{meeting.tell('$DROVER_HOST')}; {meeting.wait}; echo $DROVER_HOST"]
    daemon = launch(hosts + agent("s", says, kind="exec"))
    pks = [manual(daemon, jq_host=f"h{n}") for n in range(3)]
    order = command(daemon, f"run {pks[0]} {pks[1]} {pks[2]}")
    assert sorted(meeting.hear_all(3)) == ["h0", "h1", "h2"]  # all are at work at once
    meeting.let_go(3)
    jobs = daemon.wait(order)["jq_result"]["jobs"]
    assert {pk: jobs[str(pk)]["stdout"] for pk in pks} == {pk: f"h{n}\n" for n, pk in enumerate(pks)}


def test_a_run_counts_a_job_named_twice_once_and_names_jobs_it_cannot_run_j54_j57(
    launch: Launch, printing: str
) -> None:
    daemon = launch(printing)
    good, plain = manual(daemon, jq_args="0"), daemon.wait(daemon.insert(jq_type="s", jq_args="0"))["jq_pk"]
    row = answer(daemon, f"run {good} 999999 {plain} {good}")
    errors = {"999999": "job 999999 not found", str(plain): f"job {plain} is done, not held"}
    assert row["jq_endtext"] == f"1 job has ended; {errors[str(plain)]}; {errors['999999']}"
    assert (list(row["jq_result"]["jobs"]), row["jq_result"]["errors"]) == ([str(good)], errors)
    assert daemon.row(good)["jq_attempt"] == 1
    assert told(daemon, f"run {good} x", "failed") == "a job number is required (got 'x'): run JOB..."


@pytest.mark.slow
def test_a_run_of_a_running_job_does_not_start_it_twice_j54_j55(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}", jq_mode="manual")
    first = command(daemon, f"run {pk}")
    daemon.wait(pk, "running")
    row = answer(daemon, f"run {pk}", "failed")
    assert row["jq_endtext"] == f"job {pk} is running, not held"
    assert row["jq_result"] == {"jobs": {}, "errors": {str(pk): f"job {pk} is running, not held"}}
    assert states(daemon, [pk, first]) == ["running", "queued"]
    gate.touch()
    daemon.wait_all([pk, first])


def test_a_run_in_an_unserved_queue_is_ignored_and_names_the_queue_j69_j27(launch: Launch, printing: str) -> None:
    daemon = launch(printing)
    good, lost = manual(daemon, jq_args="0"), manual(daemon, jq_args="0", jq_queue="nowhere")
    row = answer(daemon, f"run {lost} {good}")
    reason = f"job {lost} is ignored: queue nowhere is served by no scheduler"
    assert row["jq_result"]["errors"] == {str(lost): reason}
    ended = daemon.row(lost)
    assert (ended["jq_state"], ended["jq_end_bits"]) == ("ignored", 2)
    assert answer(daemon, f"run {lost}", "failed")["jq_endtext"] == reason


@pytest.mark.slow
def test_a_run_continues_under_the_next_daemon_j52(launch: Launch, text: str, gate: Path) -> None:
    first = launch(QUICK + text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}", jq_mode="manual")
    order = command(first, f"run {pk}")
    first.wait(pk, "running")
    first.kill()
    second = launch(QUICK + text)
    gate.touch()
    row = second.wait(order)
    assert row["jq_result"]["jobs"][str(pk)]["result"] == "ok"


@pytest.mark.parametrize("ending", ["cancel {}", "ice {}"])
def test_a_run_ends_if_its_job_never_runs(launch: Launch, text: str, ending: str) -> None:
    daemon = launch(text)
    parent, pk = held(daemon), daemon.insert(jq_type="a", jq_mode="manual")
    below(daemon, pk, parent)
    order = command(daemon, f"run {pk}")
    daemon.wait(pk, "queued")
    told(daemon, ending.format(pk))
    assert list(daemon.wait(order)["jq_result"]["jobs"]) == [str(pk)]


@pytest.mark.slow
def test_a_run_ends_if_its_job_is_removed(launch: Launch, text: str) -> None:
    daemon = launch(text)
    parent, pk = held(daemon), daemon.insert(jq_type="a", jq_mode="manual")
    below(daemon, pk, parent)
    order = command(daemon, f"run {pk}")
    daemon.wait(pk, "queued")
    daemon.execute("delete from drover.jobqueue where jq_pk = %s", pk)
    assert daemon.wait(order)["jq_result"]["jobs"] == {str(pk): None}


@pytest.mark.slow
def test_an_owner_may_run_and_retry_own_jobs_only_j93_t24(launch: Launch, printing: str) -> None:
    daemon = launch(printing)
    mine, more, other = (
        manual(daemon, jq_args="1", role="drover_frontend"),
        manual(daemon, jq_args="1", role="drover_frontend"),
        manual(daemon, jq_args="0"),
    )
    for words in (f"run {mine} {more}", f"retry {mine}", f"run {more}"):
        with pytest.raises(InsufficientPrivilege, match=f"job {other} is not yours"):
            daemon.execute(f"select drover.command('run {mine} {other}')", role="drover_frontend")
        (row,) = daemon.execute(f"select drover.command('{words}') as pk", role="drover_frontend")
        daemon.wait(row["pk"], {"done", "failed"})
        daemon.wait(mine, "failed")
    with pytest.raises(InvalidParameterValue, match="run of which job"):
        daemon.execute("select drover.command('run')", role="drover_frontend")
    for words in ("unblock licence", f"hold {other}", f"ice {other}", "pause", "release a.nobody"):
        with pytest.raises(InsufficientPrivilege):
            daemon.execute(f"select drover.command('{words}')", role="drover_frontend")


# ---- signals to several


def test_signals_go_to_several_jobs_and_each_is_reported_j84_j85(launch: Launch) -> None:
    daemon = launch(HOST + agent("sleep", ["sleep", "100"], kind="exec", slots=2))
    one, two = (daemon.insert(jq_type="sleep") for _ in range(2))
    daemon.wait_all([one, two], "running")
    row = answer(daemon, f"signal {one} TERM {two} 9 999999 HUP")
    assert row["jq_result"] == {str(one): True, str(two): True, "999999": False}
    assert row["jq_endtext"] == "2 of 3 jobs are running and were told"
    assert [daemon.wait(pk, "failed")["jq_signal"] for pk in (one, two)] == ["SIGTERM", "SIGKILL"]
    again = answer(daemon, f"signal {one} TERM {two} TERM", "failed")
    assert again["jq_result"] == {str(one): False, str(two): False}
    assert re.match("a signal is required for job 7", told(daemon, f"signal {one} TERM 7", "failed"))
