"""In which order the ledger hands out what is to be saved, and how much of it is kept while nobody takes it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import NotSaved
from scheduler.model.queue_requests import (
    ClaimRequest,
    End,
    EndAndClaim,
    FindLocked,
    ItemFailure,
    LogRow,
    Mark,
    MarkRow,
    OutputRow,
    Save,
    SaveRow,
    Settle,
    WriteLog,
    WriteOutput,
)
from scheduler.policy.deadlines import Deadlines
from scheduler.policy.group_lease import hold_if_full
from scheduler.policy.outbox import BATCH, CHUNK, GATHER_MANY_S, GATHER_S, LOG_SIZE, MANY, RESULT_SIZE, Outbox
from tests.core_tools import claim, make_core, settle, spawned, turn

END = End(7, 1, 200_000, 100_000, "here", 99, None)
ROW = SaveRow(8, 1, "failed", outcome="failed")
LOCKED = NotSaved("lock", "somebody locks the table")
WANT = ClaimRequest("noop", "default", "", False, 1)


def log(text: str) -> LogRow:
    return LogRow(7, "LOG", "here", "noop", 99, text)


def test_log_rows_of_a_job_are_saved_before_its_end() -> None:
    ledger = Outbox(Deadlines())
    ledger.log(first := log("first"))
    assert ledger.next_request([WANT], 0.0) == WriteLog([first])
    ledger.answered()
    ledger.log(last := log("last words"))
    ledger.end(END)
    ledger.save(ROW, ())
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([], [WANT])
    ledger.answered()
    assert ledger.next_request([WANT], 0.0) == WriteLog([last])
    ledger.answered()
    assert ledger.next_request([WANT], 0.0) == Save([ROW], [])
    ledger.answered()
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([END], [WANT])


@pytest.mark.parametrize(("before", "wait"), [(1, GATHER_S), (MANY - 1, GATHER_S), (MANY, GATHER_MANY_S)])
def test_ends_wait_longer_for_others_if_many_went_together_p8(before: int, wait: float) -> None:
    ledger = Outbox(Deadlines())
    ledger.ends += [END] * before
    ledger.next_request([], 10.0)
    ledger.answered()
    ledger.ends.append(END)
    assert ledger.gathers(10.0 + wait * 0.99)
    assert not ledger.gathers(10.0 + wait * 1.01)


def test_endless_log_rows_do_not_delay_ends() -> None:
    ledger = Outbox(Deadlines())
    ledger.log(log("first"))
    ledger.end(END)
    assert isinstance(ledger.next_request([], 0.0), WriteLog)
    ledger.answered()
    ledger.log(log("more"))
    assert ledger.next_request([], 0.0) == EndAndClaim([END], [])


def test_an_end_and_a_save_wait_for_all_log_rows_before_them_however_many() -> None:
    ledger = Outbox(Deadlines())
    for _ in range(2 * BATCH + 1):
        ledger.log(log("many"))
    ledger.end(END)
    ledger.save(ROW, ())
    sent = []
    while (request := ledger.next_request([], 0.0)) is not None:
        sent.append(request)
        ledger.answered()
    many = [log("many")]
    assert sent == [
        *map(WriteLog, (many * BATCH, many * BATCH, many)), Save([ROW], []), EndAndClaim([END], []),
    ]  # fmt: skip


def test_log_rows_that_are_to_be_sent_again_are_kept_when_the_group_is_lost() -> None:
    ledger = Outbox(Deadlines())
    ledger.log(log("first"))
    ledger.next_request([], 0.0)
    ledger.failed(NotSaved("again", "the connection was lost"), 0.0)
    ledger.log(log("later"))
    heir = Outbox(Deadlines(), ledger)
    assert heir.next_request([], 0.0) == WriteLog([log("first"), log("later")])


@pytest.mark.parametrize("is_done", [True, False])
def test_log_rows_that_are_on_their_way_when_the_group_is_lost_are_kept_if_they_are_not_written(is_done: bool) -> None:
    ledger = Outbox(Deadlines())
    ledger.log(log("first"))
    ledger.next_request([], 0.0)
    heir = Outbox(Deadlines(), ledger)
    assert heir.drop_foreign(is_done=is_done)
    assert heir.next_request([], 0.0) == (None if is_done else WriteLog([log("first")]))


def test_settling_a_fan_delays_neither_claims_nor_other_children_r33() -> None:
    ledger, rest = Outbox(Deadlines()), Settle([1], beyond=7)
    ledger.parents = [1]
    assert ledger.next_request([WANT], 0.0) == Settle([1])
    ledger.answered()
    ledger.unsettled.append(rest)
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([], [WANT])
    ledger.answered()
    assert ledger.next_request([WANT], 0.0) == rest
    ledger.answered()
    ledger.unsettled.append(rest)
    ledger.parents = [2, 3]
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([], [WANT])
    ledger.answered()
    assert ledger.next_request([WANT], 0.0) == Settle([2, 3])
    ledger.answered()
    assert ledger.next_request([], 0.0) == rest
    ledger.answered()
    assert ledger.is_empty


def test_position_among_children_stays_with_the_first_parent_when_a_batch_is_halved() -> None:
    ledger = Outbox(Deadlines())
    ledger.unsettled.append(Settle([1, 2], beyond=7))
    ledger.next_request([], 0.0)
    ledger.failed(NotSaved("data", "a row is odd"), 0.0)
    assert list(ledger.repeats) == [Settle([1], beyond=7), Settle([2])]


def test_a_locked_row_lets_other_requests_go_first() -> None:
    ledger = Outbox(Deadlines())
    ledger.parents = [1]
    ledger.next_request([], 0.0)
    ledger.failed(NotSaved("lock", "a row is locked"), 5.0)
    assert ledger.next_request([], 5.9) is None
    ledger.parents = [1]
    assert ledger.next_request([WANT], 5.9) == Settle([1])
    ledger.failed(NotSaved("lock", "a row is locked"), 6.0)
    assert list(ledger.locked) == [Settle([1])]
    assert ledger.next_request([WANT], ledger.locked_until) == Settle([1])
    ledger.answered()
    assert ledger.is_empty


def test_a_row_is_not_marked_running_before_an_older_save_of_it() -> None:
    ledger, older = Outbox(Deadlines()), SaveRow(8, 1, "claimed")
    ledger.log(log("first"))
    assert isinstance(ledger.next_request([], 0.0), WriteLog)
    ledger.log(log("more"))
    ledger.save(older, ())
    marks = {pk: MarkRow(pk, 1, "running", 0) for pk in (8, 9)}
    ledger.marks = dict(marks)
    ledger.answered()
    assert ledger.next_request([], 0.0) == Mark([marks[9]])  # the older word on 8 waits for the log
    ledger.answered()
    assert isinstance(ledger.next_request([], 0.0), WriteLog)
    ledger.answered()
    assert ledger.next_request([], 0.0) == Save([older], [])
    ledger.answered()
    assert ledger.next_request([], 0.0) == Mark([marks[8]])


# ---- rows that somebody keeps locked


def ends(*pks: int) -> list[End]:
    return [END._replace(pk=pk) for pk in pks]


def test_locked_rows_delay_neither_other_saves_nor_claims() -> None:
    ledger = Outbox(Deadlines())
    ledger.ends = ends(1, 2, 3)
    ledger.next_request([WANT], 0.0)
    ledger.failed(LOCKED, 5.0)
    assert ledger.next_request([WANT], 5.0) == FindLocked(EndAndClaim(ends(1, 2, 3), ()))
    ledger.found_locked(frozenset([2]), 5.0)
    assert ledger.next_request([WANT], 5.0) == EndAndClaim(ends(1, 3), ())
    ledger.answered()
    ledger.ends = ends(4, 5)
    assert ledger.next_request([WANT], 5.1) == EndAndClaim((), [WANT])
    ledger.answered()
    assert ledger.next_request([WANT], 5.1) == FindLocked(EndAndClaim(ends(4, 5), [WANT]))
    ledger.found_locked(frozenset([4]), 5.1)
    assert ledger.next_request([WANT], 5.1) == EndAndClaim(ends(5), ())
    ledger.answered()
    assert ledger.next_request([], 5.2) is None
    assert sorted(ledger.pending()) == [2, 4]
    assert ledger.next_request([], ledger.locked_until) == FindLocked(EndAndClaim(ends(2, 4), ()))
    ledger.found_locked(frozenset(), 6.1)
    assert ledger.next_request([], 6.1) == EndAndClaim(ends(2, 4), ())
    ledger.answered()
    assert ledger.is_empty


def test_locked_rows_are_probed_once_a_second_however_many() -> None:
    ledger, now, asked = Outbox(Deadlines()), 0.0, 0
    ledger.ends = ends(*range(1000))
    ledger.next_request([], now)
    ledger.failed(LOCKED, now)
    while now < 10.0:
        while (request := ledger.next_request([], now)) is not None:
            assert isinstance(request, FindLocked)
            ledger.found_locked(frozenset(request.request.pks), now)
            asked += 1
        now += 0.01
    assert asked == 10


def test_each_kind_of_blocked_save_is_probed_once_a_second() -> None:
    ledger, asked = Outbox(Deadlines()), []
    for row in SaveRow(7, 1, "failed", outcome="failed"), MarkRow(8, 1, "running", 0):
        ledger.wait_for_lock(Save([row]) if isinstance(row, SaveRow) else Mark([row]), 0.0)
    ledger.wait_for_lock(Settle([1]), 0.0)
    ledger.wait_for_lock(Settle([2, 1]), 0.0)
    for tenth in range(1, 22):
        while (request := ledger.next_request([], tenth / 10)) is not None:
            asked.append(type(getattr(request, "request", request)))
            ledger.failed(LOCKED, tenth / 10)
    assert asked[:3] == [Save, Mark, Settle]
    assert {asked.count(kind) for kind in (Save, Mark, Settle)} <= {1, 2}
    assert Settle([1, 2]) in ledger.locked


def test_a_save_blocked_by_a_lock_that_the_probe_does_not_see_waits() -> None:
    ledger = Outbox(Deadlines())
    ledger.ends = ends(1, 2)
    ledger.next_request([], 0.0)
    ledger.failed(LOCKED, 0.0)
    ledger.next_request([], 0.0)
    ledger.found_locked(frozenset(), 0.0)
    assert ledger.next_request([], 0.0) == EndAndClaim(ends(1, 2), ())
    ledger.failed(LOCKED, 0.2)
    assert ledger.next_request([WANT], 0.2) == EndAndClaim([], [WANT])
    ledger.answered()
    assert ledger.next_request([], 0.2) is None
    assert ledger.next_request([], ledger.locked_until) == FindLocked(EndAndClaim(ends(1, 2), ()))


@pytest.mark.parametrize("why", ["again", "lock", "data"])
def test_a_failed_lock_probe_is_repeated(why: str) -> None:
    ledger = Outbox(Deadlines())
    ledger.ends = ends(1)
    ledger.next_request([], 0.0)
    ledger.failed(LOCKED, 0.0)
    question = ledger.next_request([], 0.0)
    assert ledger.failed(NotSaved(why, "it failed"), 0.0) is None
    assert (
        ledger.next_request([], 0.0 if why == "again" else ledger.locked_until)
        == question
        == FindLocked(EndAndClaim(ends(1), ()))
    )


# ---- while the database takes nothing


def test_output_that_waits_for_a_lock_is_not_overtaken_by_later_output() -> None:
    ledger, pieces = Outbox(Deadlines()), [OutputRow(7, 1, part, "out", "x") for part in (1, 2, 3)]
    ledger.output(pieces[0])
    ledger.output(pieces[1])
    first = ledger.next_request([], 0.0)
    ledger.failed(LOCKED, 5.0)
    ledger.output(pieces[2])
    assert ledger.next_request([WANT], 5.5) == EndAndClaim([], [WANT])
    ledger.answered()
    assert ledger.next_request([], 5.5) is None
    assert ledger.next_request([], ledger.locked_until) == first == WriteOutput(pieces[:2], [])
    ledger.answered()
    assert ledger.next_request([], 7.0) == WriteOutput(pieces[2:], [])


def test_log_rows_that_wait_for_a_lock_count_against_the_limit() -> None:
    ledger, long = Outbox(Deadlines()), "x" * (LOG_SIZE // 8)
    for now in range(100):
        ledger.log(log(long))
        ledger.next_request([], now)
        ledger.failed(LOCKED, now)
    assert (ledger.log_rows, ledger.lost_logs) == (8, 92)
    ledger.locked_until = 0.0
    save_all(ledger)
    assert (ledger.log_rows, ledger.log_size, ledger.lost_logs) == (0, 0, 0)


def test_a_log_row_refused_by_the_database_is_dropped() -> None:
    ledger = Outbox(Deadlines())
    ledger.log(log("odd"))
    ledger.next_request([], 0.0)
    ledger.failed(NotSaved("data", "it is odd"), 0.0)
    assert (ledger.log_rows, ledger.log_size, ledger.is_empty) == (0, 0, True)


@pytest.mark.parametrize(
    ("fill", "what"),
    [
        (lambda ledger: ledger.save(ROW), "to save job 8"),
        (lambda ledger: ledger.end(END), "to save job 7"),
        (lambda ledger: ledger.log(log("odd")), "to save a log line of job 7"),
    ],
)
def test_what_the_database_refuses_is_told_in_words(fill: Callable[[Outbox], object], what: str) -> None:
    ledger = Outbox(Deadlines())
    fill(ledger)
    assert ledger.next_request([], 1e9) is not None
    assert ledger.failed(NotSaved("data", "it is odd"), 1e9) == f"the database refuses {what}: it is odd"


def test_output_is_kept_whole_and_the_outbox_stays_full_until_half_is_saved() -> None:
    ledger, rows = Outbox(Deadlines()), [OutputRow(7, 1, part, "out", "x" * (1 << 20)) for part in range(40)]
    for row in rows:
        ledger.output(row)
    filled = ledger.is_full
    written: list[OutputRow] = []
    while ledger.is_full:
        request = ledger.next_request([], 0.0)
        assert isinstance(request, WriteOutput)
        written += request.rows
        ledger.answered()
    assert (filled, len(written), ledger.result_size) == (True, 40 - 16, RESULT_SIZE // 2)
    assert written == rows[: 40 - 16]


def test_claims_go_on_however_much_output_waits() -> None:
    ledger, requests = Outbox(Deadlines()), []
    for part in range(4):
        ledger.output(OutputRow(7, 1, part, "out", "x"))
        requests.append(type(ledger.next_request([WANT], 0.0)))
        ledger.answered()
    assert requests == [WriteOutput, EndAndClaim, WriteOutput, EndAndClaim]


def test_a_job_ends_when_its_own_output_is_saved() -> None:
    ledger, pieces = Outbox(Deadlines()), [OutputRow(job, 1, 1, "out", "x" * CHUNK) for job in (7, 9)]
    for piece in pieces:
        ledger.output(piece)
    late, row = END._replace(pk=9), replace(ROW, pk=9)
    ledger.ends += [END, late]
    ledger.save(row, ())
    told = []
    while (request := ledger.next_request([], 0.0)) is not None:
        told.append(request)
        ledger.answered()
    first, second = ([WriteOutput([piece], [])] for piece in pieces)
    assert told == [*first, EndAndClaim([END], []), *second, Save([row], []), EndAndClaim([late], [])]


def test_failed_items_fill_the_outbox_until_saved_or_dropped() -> None:
    ledger, long = Outbox(Deadlines()), "x" * RESULT_SIZE
    ledger.save(ROW, [ItemFailure(8, 1, None, long, "here", "noop", 99, "no")])
    filled = ledger.is_full
    assert isinstance(ledger.next_request([], 0.0), Save)
    ledger.failed(NotSaved("data", "it is odd"), 0.0)
    assert (filled, ledger.is_full, ledger.result_size) == (True, False, 0)


def test_agents_are_given_no_work_while_too_much_output_waits() -> None:
    core = make_core({"sha": AgentType(command=("agent",), kind="exec", output_limit=2 * RESULT_SIZE)})
    turn(core, claim(1), claim(2))
    core.handle(e.Created(0, 100), 0.0)
    core.exec_output(0, "out", b"x" * (RESULT_SIZE + 1), 0.0)
    core.handle(e.Gone(0, 0), 0.0)
    waiting = spawned(core)
    settle(core)
    assert (waiting, spawned(core)) == ([0], [0])  # the first was the one for job 1


def test_agents_are_given_work_again_when_failed_items_are_saved() -> None:
    core = make_core()
    core.state.outbox.save(ROW, [ItemFailure(8, 1, None, "x" * 2 * RESULT_SIZE, "here", "noop", 99, "no")])
    hold_if_full(core.state)
    held = not core.state.is_assigning
    settle(core)
    assert (held, core.state.is_assigning) == (True, True)


def test_agents_are_given_work_again_when_the_database_has_refused_failed_items() -> None:
    core = make_core()
    core.state.outbox.save(ROW, [ItemFailure(8, 1, None, "x" * 2 * RESULT_SIZE, "here", "noop", 99, "no")])
    hold_if_full(core.state)
    held = not core.state.is_assigning
    while not isinstance(request := core.next_request(0.0), Save):
        assert request is not None
        core.handle(e.EndedAndClaimed(()), 0.0)
    core.handle(NotSaved("data", "it is odd"), 0.0)
    assert (held, core.state.is_assigning) == (True, True)


def test_a_mark_that_replaces_one_not_yet_sent_keeps_where_a_detached_job_is_kept_c41() -> None:
    ledger = Outbox(Deadlines())
    ledger.mark(MarkRow(7, 1, "claimed", 0, "here", spool="/spool"))
    ledger.mark(last := MarkRow(7, 1, "running", 9, "here", 99))
    assert ledger.next_request([], 0.0) == Mark([last._replace(spool="/spool")])


def save_all(ledger: Outbox) -> None:
    """Let the database take everything."""
    while ledger.next_request([], 0.0) is not None:
        ledger.answered()


# ---- an answer that was lost with its connection


def test_children_of_an_end_whose_answer_was_lost_are_settled() -> None:
    core = make_core()
    core.state.outbox.end(END)
    request = core.next_request(1.0)
    assert isinstance(request, EndAndClaim)
    core.handle(NotSaved("again", "the connection is lost, after the commit"), 1.0)
    assert isinstance(core.next_request(2.0), EndAndClaim)
    core.handle(e.EndedAndClaimed(fenced=[END.pk]), 2.0)
    requests = settle(core, 2.0)
    assert [each.parents for each in requests if isinstance(each, Settle)] == [[END.pk]]


def test_children_of_a_save_whose_answer_was_lost_are_settled() -> None:
    core = make_core()
    core.state.outbox.save(ROW)
    assert isinstance(core.next_request(1.0), Save)
    core.handle(NotSaved("again", "the connection is lost, after the commit"), 1.0)
    assert isinstance(core.next_request(2.0), Save)
    core.handle(e.Saved(frozenset()), 2.0)
    requests = settle(core, 2.0)
    assert [each.parents for each in requests if isinstance(each, Settle)] == [[ROW.pk]]
