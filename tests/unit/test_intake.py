"""Claims about rows that come in hand: which are refused, given back or put off, and about bad rows of a query."""

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.protocol import LINE_LIMIT
from scheduler.model.queue_requests import Claim, ClaimRequest, MarkRow, SaveRow
from scheduler.policy import intake
from scheduler.policy.core import Core
from tests.core_tools import claim, logged, make_core, saved, settle, spawned, turn, turned

REFUSAL = "agent 'sha': cannot start 'agent': No such file or directory (errno 2)"


def core_of(**keys: Any) -> Core:
    """Return a core with one type of these settings."""
    return make_core({"sha": AgentType(command=("agent",), **keys)})


def guarded(each: Claim) -> Claim:
    return each._replace(request=each.request._replace(guarded=True))


def ends(core: Core, now: float = 0.0) -> dict[int, tuple[str, str]]:
    """Return the state and the text of each job that is in hand no more."""
    return {row.pk: (row.state, row.text) for row in saved(settle(core, now)) if row.outcome is not None}


def fetch(core: Core, names: Sequence[bytes], rows: Sequence[Sequence[bytes | None]], **rules: Any) -> None:
    """Take a query with these rows in hand, as job 1."""
    turn(core, claim(1, msq=True, **rules))
    core.take_effects(0.0)
    core.handle(e.Opened(1, tuple(names), len(rows)), 0.0)
    core.handle(e.Fetched(1, [tuple(row) for row in rows], more=False), 0.0)


# ---- whose jobs


@pytest.mark.parametrize(
    ("submitters", "taken"),
    [(("staff",), [1]), (("bert",), [2]), (("staff", "bert"), [1, 2]), (("staff", "*"), [1, 2])],
)
def test_a_job_is_worked_only_if_its_submitter_may_queue_its_type(
    submitters: tuple[str, ...], taken: list[int]
) -> None:
    core = core_of(submitters=submitters)
    claims = claim(1, submitter="anna", roles=("anna", "staff")), claim(2, submitter="bert", roles=("bert",))
    turn(core, *map(guarded, claims) if "*" not in submitters else claims)
    assert sorted(core.state.jobs) == taken
    texts = {text for state, text in ends(core).values() if state == "failed"}
    assert texts <= {f"role {name} may not queue agent type sha" for name in ("anna", "bert")}
    assert len(texts) == 2 - len(taken)


def test_a_plain_job_of_a_guarded_type_is_refused_too() -> None:
    core = core_of(submitters=("staff",))
    turn(core, guarded(claim(1)))
    assert ends(core) == {1: ("failed", "role  may not queue agent type sha")}


# ---- which type, by now


def test_rows_that_come_after_their_type_has_failed_go_back() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, respawn_count=0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.state.pools["sha"].rate = 1e6  # so that more is claimed
    core.handle(e.Woken(), 0.0)
    assert core.next_request(0.0) is not None
    core.handle(e.NotCreated(number, REFUSAL), 1.0)
    core.handle(turned(claim(2)), 1.0)
    assert ends(core, 1.0)[2] == ("queued", f"agent failed: {REFUSAL}")
    assert core.state.jobs == {}


@pytest.mark.parametrize("event", ["drain", "disable"])
def test_rows_that_come_when_their_type_begins_nothing_more_go_back(event: str) -> None:
    core = core_of()
    assert core.next_request(0.0) is not None
    if event == "drain":
        core.handle(e.Drain(), 0.0)
    else:
        core.state.pools["sha"].set_may_begin(enabled=False)
    core.handle(turned(claim(1), claim(2, msq=True)), 0.0)
    assert {pk: state for pk, (state, _) in ends(core, 1.0).items()} == {1: "queued", 2: "queued"}
    assert core.state.jobs == {}


# ---- limits for each value


def rated(**queues: dict[str, Any]) -> Core:
    core = make_core()
    rows = [
        {"name": name, "concurrency": None, "paused": False, "reserved": 0, "rate": {"interval": 10.0, **limit}}
        for name, limit in queues.items()
    ]
    core.handle(e.TablesRead(rows, [], [], []), 0.0)
    return core


def of_queue(queue: str, pk: int, **rules: Any) -> Claim:
    return claim(pk, **rules)._replace(request=ClaimRequest("sha", queue, "", False, 1))


def test_a_limit_for_each_value_is_of_its_own_queue_alone() -> None:
    core = rated(default={"rate": 9}, other={"each": 1, "by": "submitter"})
    turn(core, *(of_queue(queue, pk, submitter="anna") for pk, queue in enumerate(["default", "default", "other"])))
    assert sorted(core.state.jobs) == [0, 1, 2]


def test_a_row_that_is_read_later_is_put_off_once_its_value_is_known() -> None:
    core = rated(default={"each": 1, "by": "submitter"})
    turn(core, *(claim(pk, submitter="anna", unread=True) for pk in (1, 2, 3)))
    assert sorted(core.state.jobs) == [1, 2, 3]
    assert {pk: state for pk, (state, _) in ends(core).items()} == {2: "queued", 3: "queued"}
    assert sorted(core.state.jobs) == [1]


# ---- a row that cannot be shown as running


MARK = MarkRow(1, 1, "running", 0)


def marked(*, attempt: int = 1, spool: str | None = None, rescued: int = 1, **rules: Any) -> Core:
    """Return a core with a rescued job in hand whose row was marked once, and is not marked again."""
    core = make_core()
    turn(core, claim(1, rescued=rescued, **rules))
    settle(core)
    intake.refuse_unmarked(core.state, MARK._replace(attempt=attempt, spool=spool), "a trigger refuses", 1.0)
    return core


def test_a_rescued_job_that_waits_goes_on_though_its_row_cannot_be_marked_again() -> None:
    assert [sorted(marked(**rules).state.jobs) for rules in ({}, {"msq": True})] == [[1], [1]]


def test_a_detached_job_whose_place_cannot_be_recorded_fails() -> None:
    assert ends(marked(spool="/spool/1"))[1] == ("failed", "its row cannot be shown as running: a trigger refuses")


def test_the_refusal_of_an_earlier_attempt_changes_nothing() -> None:
    core = make_core()
    turn(core, claim(1, attempt=2, rescued=1))
    intake.refuse_unmarked(core.state, MARK, "a trigger refuses", 1.0)
    intake.refuse_unmarked(core.state, MARK._replace(pk=7), "a trigger refuses", 1.0)
    assert core.state.jobs[1].verdict is None


# ---- queries


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"key": "id"}, "jq_key names column 'id', and the query has none"),
        ({"runonpfile": "pfile"}, "jq_runonpfile names column 'pfile', and the query has none"),
        ({"key": "b", "runonpfile": "a"}, None),
    ],
)
def test_a_query_without_the_columns_that_its_row_names_fails(rules: dict[str, str], reason: str | None) -> None:
    core = core_of()
    fetch(core, (b"a", b"b"), [(b"1", b"2")], **rules)
    assert ends(core) == ({} if reason is None else {1: ("failed", reason)})


def test_a_row_without_a_key_fails_the_query_that_has_one() -> None:
    core = core_of()
    fetch(core, (b"a",), [(b"1",), (None,)], key="a")
    assert ends(core) == {1: ("failed", "the key column is NULL in a row: every row needs a key")}


def not_expanded(core: Core, **how: Any) -> list[SaveRow]:
    core.take_effects(0.0)
    core.handle(e.NotExpanded(1, "no such table", **how), 1.0)
    return [row for row in saved(settle(core, 1.0)) if row.outcome is not None]


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ({}, ("failed", "failed", None, None)),
        ({"again": True}, ("queued", "given back", None, 5.0)),
        ({"again": True, "interrupted": True}, ("queued", "given back", 1, 5.0)),
    ],
)
def test_a_query_that_failed_is_tried_again_if_it_is_not_to_blame(how: dict[str, bool], end: tuple[Any, ...]) -> None:
    core = make_core(retry_base=5.0)
    turn(core, claim(1, msq=True))
    (row,) = not_expanded(core, **how)
    assert (row.state, row.outcome, row.interruptions, row.retry_in, row.text) == (*end, "no such table")
    assert core.state.jobs == {}


def test_a_query_that_is_interrupted_too_often_fails() -> None:
    core = make_core()
    turn(core, claim(1, msq=True, interruptions=2, max_interruptions=2))
    (row,) = not_expanded(core, again=True, interrupted=True)
    assert (row.state, row.text) == ("failed", "interrupted more than 2 times: no such table")


def test_a_query_that_fails_while_its_job_is_being_killed_ends_killed() -> None:
    core = core_of()
    fetch(core, (b"a",), [(b"1",)])
    core.kill(1, "not needed", 0.0)
    before = core.state.jobs.get(1)
    assert before is None or not_expanded(core) == []


# ---- rows that cannot be sent


def items(core: Core) -> list[bytes]:
    return [item.line for lane in core.state.pools["sha"].queues.any for item in lane.items]


@pytest.mark.parametrize(
    ("keys", "bad"),
    [
        ({"escape": "shell"}, b"two\nlines"),
        ({"nulls": "omit"}, None),
        ({}, b"x" * (LINE_LIMIT - 3)),
    ],
)
def test_a_row_that_is_no_line_fails_alone(keys: dict[str, str], bad: bytes | None) -> None:
    core = core_of(**keys)
    fetch(core, (b"a",), [(b"1",), (bad,), (b"3",)], tolerate=3)
    assert items(core) == [b'a="1"\n', b'a="3"\n']
    job = core.state.jobs[1]
    assert (job.failed, job.waiting, [text[:12] for _, level, text in logged(core) if level == "ERROR"]) == (
        1,
        2,
        ["item failed:"],
    )


def test_a_row_with_an_escaped_newline_is_a_line() -> None:
    core = core_of()
    fetch(core, (b"a",), [(b"two\nlines",), (b"x" * (LINE_LIMIT - 4),)])
    assert [len(line) for line in items(core)] == [len(b'a="two\\nlines"\n'), LINE_LIMIT + 1]


def test_a_type_that_sends_empty_lines_gets_them() -> None:
    core = core_of(empty="send", nulls="omit")
    fetch(core, (b"a",), [(None,), (b"1",)])
    assert items(core) == [b"\n", b'a="1"\n']


# ---- which host


def test_rows_of_a_query_wait_for_the_host_that_their_value_names() -> None:
    core = make_core(hosts={"alpha": Host(), "beta": Host()})
    rows = [(b"1", b"beta"), (b"2", b"alpha"), (b"3", b"elsewhere"), (b"4", None)]
    fetch(core, (b"a", b"p"), rows, runonpfile="p")
    queues = core.state.pools["sha"].queues
    assert [sum(len(lane.items) for lane in queues.of(core.state.jobs[1], at)) for at in ("alpha", "beta", None)] == [
        1,
        1,
        2,
    ]
    assert core.state.counts["placed"] == 2
