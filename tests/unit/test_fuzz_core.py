"""Whatever agents print, in whatever pieces: the core raises nothing, counts the OKs that count, and loses no job."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.model import events_and_effects as e
from scheduler.model import protocol
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType
from scheduler.model.states import DIE, SLOT_STATES, ST_FREEING, ST_READY, ST_RUNNING, ST_SPAWNED
from scheduler.policy.core import Core
from scheduler.policy.slots import Slot
from tests.core_tools import claim, make_core, saved, settle, spawned, turn

LIMIT = 300  # bytes of a line
WORDS = [
    b"OK", b"OK\r", b"OK well", b"OK:", b"OK\t\x1b[2J", b"OKAY", b" OK", b"ok", b"", b"\r", b"LOG x", b"LOG: \xff\0",
    b"ERROR", b"WARNING w", b"FATAL f", b"FAIL no", b"FAIL", b"FAIL! x", b"BLOCKED tape x", b"BLOCKED", b"Success",
    b"Heartbeat", b"ItemsProcessed 3", b"ItemsProcessed -1", b"ItemsProcessed 99999999999999999999", b"ECHO \x1b[2J",
    b"RESULT {}", b'RESULT "\\u0000\\ud800"', b"RESULT NaN", b"RESULT [", b"hello", b"x" * LIMIT, b"x" * (LIMIT + 1),
]  # fmt: skip
ASKS = [b"DB: select 1;", b"DB: name {}", b"DB: ", b"DB:", b"DB", b"DB: " + b"x" * 290]
LINES = st.one_of(st.just(b"OK"), st.sampled_from(WORDS), st.binary(max_size=20))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces of some output as they are read, none of them empty."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if a != b]


OUTPUT = st.builds(
    cut, st.lists(LINES, max_size=25).map(b"\n".join).map(lambda text: text + b"\n"), st.lists(st.integers(0, 2000))
)


@dataclass
class Reading:
    """What SPEC 2 makes of the same output, told in other words: an agent that has `left` items to do."""

    left: int
    done: int = 0
    state: int = ST_SPAWNED
    sent: int = 0
    held: bytes = b""

    def read(self, piece: bytes) -> None:
        """One read: at most one OK of it can be meant for something that was sent."""
        *lines, self.held = (self.held + piece).split(b"\n")
        is_spent = False
        for line in lines:
            if self.state == ST_FREEING:
                return
            if len(line) > LIMIT:
                self.state = ST_FREEING
            elif line.removesuffix(b"\r") == b"OK" or line[:3] in (b"OK ", b"OK\t", b"OK:"):
                self._ok(is_spent)
                is_spent = True
        if len(self.held) > LIMIT:
            self.state = ST_FREEING
        if self.state == ST_READY and self.left:
            self.state = ST_RUNNING  # fed when the turn ends
        if self.state == ST_RUNNING:
            self.sent = self.done + 1

    def _ok(self, is_spent: bool) -> None:
        if self.state == ST_READY or (is_spent and self.state == ST_RUNNING):
            self.state = ST_FREEING
        elif self.state == ST_SPAWNED:
            self.state = ST_READY
        else:
            self.done, self.left = self.done + 1, self.left - 1
            self.state = ST_RUNNING if self.left else ST_READY


def born(jobs: int, kind: AgentType) -> tuple[Core, Slot]:
    """Return a core with so many jobs and one process for them."""
    core = make_core({"sha": kind}, line_limit=LIMIT)
    turn(core, *(claim(pk) for pk in range(1, jobs + 1)))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    return core, core.state.slots.all[number]


def hear(core: Core, slot: Slot, piece: bytes) -> list[bytes]:
    """One turn of the daemon; return what it sends to the agent."""
    answer = core.agent_output(slot.number, piece, 1.0)
    later = [effect.data for effect in core.take_effects(1.0) if isinstance(effect, e.Send)]
    return later if answer is None else [answer, *later]


@given(OUTPUT, st.integers(1, 6))
@example([b"OK\n", b"OK\nOK\n"], 3)
@example([b"OK\nOK\n"], 1)
def test_an_agent_ends_as_many_items_as_it_said_ok_to_and_no_more_f88_f89(pieces: list[bytes], jobs: int) -> None:
    core, slot = born(jobs, AgentType(command=("agent",)))
    reading, sent = Reading(jobs), []
    for piece in pieces:
        sent += hear(core, slot, piece)
        reading.read(piece)
        assert (slot.total, slot.state) == (reading.done, reading.state)
        assert sent == [b"item %d\n" % number for number in range(1, reading.sent + 1)]


@given(OUTPUT, st.integers(1, 6), st.none() | st.integers(0, 255))
def test_any_agent_output_leaves_each_job_ended_once_or_in_hand_f91(
    pieces: list[bytes], jobs: int, code: int | None
) -> None:
    core, slot = born(jobs, AgentType(command=("agent",)))
    rows = settle(core, 1.0)
    for piece in pieces:
        hear(core, slot, piece)
        rows += settle(core, 1.0)
    core.handle(e.Gone(slot.number, code=code, signal="SIGKILL" if code is None else None), 2.0)
    rows += settle(core, 2.0) + settle(core, 3.0)  # ends may wait for others, for a moment
    ended = [end.pk for request in rows if isinstance(request, r.EndAndClaim) for end in request.ends]
    ended += [row.pk for row in saved(rows) if row.outcome is not None]
    assert sorted([*ended, *core.state.jobs]) == list(range(1, jobs + 1))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("out"), OUTPUT),
        st.tuples(st.just("err"), st.lists(st.binary(min_size=1, max_size=9000), max_size=3)),
        st.tuples(st.sampled_from(["clogged", "unclogged", "answered", "tick", "gone", "turn"]), st.just([])),
    ),
    max_size=12,
)


@given(STEPS, st.sampled_from(["off", "sql"]))
def test_no_order_of_agent_events_reaches_an_impossible_cell(steps: list[tuple[str, list[bytes]]], db: str) -> None:
    kind = AgentType(command=("agent",), db=db, heartbeat=2.0, output_limit=500)  # type: ignore[arg-type]
    core, slot = born(3, kind)
    for now, (what, pieces) in enumerate(steps, 1):
        step(core, slot, what, pieces, float(now))
        assert slot.state in SLOT_STATES
        assert not any(isinstance(c, e.LogMessage) and "impossible" in c.text for c in core.take_effects(float(now)))


def step(core: Core, slot: Slot, what: str, pieces: list[bytes], now: float) -> None:
    """Let something happen that can happen to a slot as it is; nothing if it cannot."""
    if what == "tick":
        core.tick(now)
    elif what == "turn":
        settle(core, now)
        for effect in core.take_effects(now):
            if isinstance(effect, e.Spawn):
                core.handle(e.Created(effect.slot, 100), now)
    elif slot.pid is None:
        return
    elif what == "gone":
        core.handle(e.Gone(slot.number, code=1), now)
    elif slot.wanted is not DIE:
        _say(core, slot, what, pieces, now)


def _say(core: Core, slot: Slot, what: str, pieces: list[bytes], now: float) -> None:
    for piece in pieces:
        (core.agent_output if what == "out" else core.agent_stderr)(slot.number, piece, now)
        core.schedule(now)
        if slot.wanted is DIE:
            return
    event = {"clogged": e.Clogged(slot.number), "unclogged": e.Unclogged(slot.number)}.get(what)
    if what == "answered" and slot.output.is_statement_running:
        event = e.StatementAnswered(slot.number, slot.serial, b"OK\n")  # type: ignore[assignment]
    if event is not None:
        core.handle(event, now)


@example([b"DB: "] * 40, [])
@given(st.lists(st.sampled_from([*ASKS, b"Heartbeat"]), max_size=40), st.lists(st.integers(0, 2000)))
def test_database_requests_of_an_agent_go_out_one_by_one_and_few_wait_f103(
    lines: list[bytes], places: list[int]
) -> None:
    core, slot = born(1, AgentType(command=("agent",), db="sql"))
    hear(core, slot, b"OK\n")
    asked = 0
    for piece in cut(b"".join(line + b"\n" for line in lines), places):
        core.agent_output(slot.number, piece, 1.0)
        asked += sum(isinstance(effect, e.RunStatement) for effect in core.take_effects(1.0))
        assert slot.wanted is DIE or len(slot.output.statements) < LIMIT // 32
    assert asked <= 1


# ---- one line


def meaning(line: bytes) -> tuple[bytes, bytes]:
    """Return what SPEC 2 says of a line, without a regular expression."""
    if line.startswith(b"DB: "):
        return b"DB", line.removesuffix(b"\r")[4:].strip()
    for keyword in (
        b"OK", b"ERROR", b"WARNING", b"FATAL", b"LOG", b"EVENT", b"Success", b"ItemsProcessed", b"Heartbeat", b"ECHO",
        b"FAIL!", b"FAIL", b"BLOCKED", b"RESULT",
    ):  # fmt: skip
        text = line.removesuffix(b"\r").removeprefix(keyword)
        if line.startswith(keyword) and text[:1] in (b"", b" ", b"\t", b":"):
            return keyword, text.lstrip(b" \t:").strip()
    return b"DEBUG", line


@given(st.one_of(LINES, st.sampled_from(ASKS), st.builds(bytes.__add__, st.sampled_from(WORDS), st.binary(max_size=9))))
def test_a_line_is_parsed_as_the_protocol_says_f88_f105(line: bytes) -> None:
    assert protocol.parse(line) == meaning(line)


@given(st.binary())
def test_any_bytes_become_one_line_of_text_that_postgres_accepts_f105(data: bytes) -> None:
    text = protocol.printable(data.replace(b"\n", b""))
    assert "\0" not in text
    assert "\n" not in text
    assert text.encode().decode() == text


@given(st.binary())
def test_parsing_any_bytes_as_a_statement_does_not_fail(text: bytes) -> None:
    found = protocol.parse_statement(text)
    assert found is None or (found[0].isidentifier() and found[1].startswith(b"{") and found[1] in text)
