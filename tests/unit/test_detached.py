"""Claims about detached jobs on a core: begun once their row says where, adopted, let go where others are killed."""

from typing import Any

import attrs
import pytest

from scheduler.daemon.detached_jobs import read_entries
from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model import states as s
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.queue_requests import Adoption
from scheduler.policy.core import Core
from tests.core_tools import answer_to, claim, make_core, saved, settle, turn

KIND = AgentType(command=("tool", "{args}"), kind="exec", detached=True, slots=2)


def core_of(*adoptions: Adoption, kind: AgentType = KIND) -> Core:
    """Return a core that knows its spool, and has adopted these jobs."""
    core = make_core({"long": kind})
    core.handle(e.Adopted("site", "/spool", list(adoptions)), 0.0)
    return core


def adoption(pk: int, *, wanted: str = "", turn: int = 1, age: float = 0.0) -> Adoption:
    return Adoption(claim(pk, "long"), "alpha", "/spool", turn, wanted, age)


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def marked(core: Core) -> r.Mark:
    """Let the core ask until it marks a row; return that request, which is not answered yet."""
    while not isinstance(request := core.next_request(0.0), r.Mark):
        assert request is not None
        core.handle(answer_to(request), 0.0)
    return request


def begun(core: Core, pk: int = 1) -> int:
    """Let a detached job begin; return its slot."""
    turn(core, claim(pk, "long"))
    core.handle(answer_to(marked(core)), 0.0)
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    return int(spawn.slot)


def test_process_is_started_when_the_row_says_where_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    assert effects(core, e.Spawn) == []
    request = marked(core)
    assert [(row.state, row.host, row.pid, row.spool) for row in request.rows] == [("running", "alpha", None, "/spool")]
    core.handle(answer_to(request), 0.0)
    (spawn,) = effects(core, e.Spawn)
    assert (spawn.keeper.verb, spawn.keeper.site, spawn.keeper.turn) == ("start", "site", 0)


def test_a_job_whose_row_cannot_say_where_it_runs_fails_with_the_reason_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    marked(core)
    core.handle(e.NotSaved("data", "a trigger refuses"), 0.0)
    core.schedule(1.0)
    assert effects(core, e.Spawn, 1.0) == []
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.text) == ("failed", "its row cannot be shown as running: a trigger refuses")
    assert [slot.state for slot in core.state.slots.all] == [s.ST_FREE, s.ST_FREE]


def test_row_that_says_claimed_starts_no_process_c41() -> None:
    """That its row says claimed is on its way when a slot gets free: only the mark that says where counts."""
    core = core_of(adoption(7), adoption(8))
    first, second = effects(core, e.Spawn)
    for spawn in (first, second):
        core.handle(e.Created(spawn.slot, 100), 0.0)
    core.state.set_may_want_more(True)
    turn(core, claim(1, "long"))
    core.tick(1.0)
    request = core.next_request(1.0)
    while not (isinstance(request, r.Mark) and [row.pk for row in request.rows] == [1]):
        assert request is not None
        core.handle(answer_to(request), 1.0)
        request = core.next_request(1.0)
    assert [(row.state, row.spool) for row in request.rows] == [("claimed", None)]
    core.handle(e.Gone(first.slot, 0), 1.0)
    core.handle(answer_to(request), 1.0)
    assert effects(core, e.Spawn) == []


def test_process_is_not_started_past_the_lease_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    request = marked(core)
    core.handle(e.Serve(1.0), 0.0)
    core.tick(2.0)
    core.handle(answer_to(request), 2.0)
    assert effects(core, e.Spawn) == []
    assert core.state.slots.all[0].state == s.ST_FREE
    assert [row.state for row in saved(settle(core, 2.0))] == ["queued"]


def test_job_goes_back_if_the_database_is_away_when_it_is_to_begin_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    request = marked(core)
    core.handle(e.Serve(20_000.0), 0.0)
    core.tick(100.0)
    core.handle(answer_to(request), 101.0)
    assert effects(core, e.Spawn) == []
    assert [row.state for row in saved(settle(core, 101.0))] == ["queued"]


def test_job_goes_back_if_a_reload_takes_its_slot_before_it_begins_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    request = marked(core)
    core.handle(e.Reloaded(Config(hosts={"beta": Host()}, agents={"long": KIND})), 0.0)
    core.handle(answer_to(request), 0.0)
    assert [spawn for spawn in effects(core, e.Spawn) if spawn.host == "alpha"] == []
    assert [row.state for row in saved(settle(core, 0.0))] == ["queued"]


def test_pid_shown_is_that_of_the_keeper_c41() -> None:
    core = core_of()
    slot = core.state.slots.all[begun(core)]
    assert slot.pid is None
    core.exec_output(slot.number, "out", b"47", 0.0)
    core.exec_output(slot.number, "out", b"11\nfirst line", 0.0)
    assert slot.pid == 4711
    core.tick(5.0)
    (row,) = [row for request in settle(core, 5.0) if isinstance(request, r.Mark) for row in request.rows]
    assert (row.pid, row.spool) == (4711, None)


def test_first_line_is_no_output_of_the_command_c41() -> None:
    core = core_of()
    number = begun(core)
    core.exec_output(number, "out", b"4711\none\n", 0.0)
    core.handle(e.Gone(number, 0), 1.0)
    written = [row for request in settle(core, 1.0) if isinstance(request, r.WriteOutput) for row in request.rows]
    assert "".join(row.text for row in written) == "one\n"


@pytest.mark.parametrize("line", [b"0", b"1", b"-1", b"4194305", b"2147483648", b"9" * 5000, b"\xb2", b"DROVER 1", b""])
def test_first_line_that_is_no_pid_is_output_c41(line: bytes) -> None:
    core = core_of()
    slot = core.state.slots.all[begun(core)]
    core.exec_output(slot.number, "out", line + b"\n", 0.0)
    assert slot.pid is None
    core.handle(e.Gone(slot.number, 0), 1.0)
    written = [row for request in settle(core, 1.0) if isinstance(request, r.WriteOutput) for row in request.rows]
    assert "".join(row.text for row in written).endswith("\n")


def test_no_signal_is_sent_to_an_attached_process_before_it_has_said_so_c41() -> None:
    """It would die of SIGUSR1 before it traps that, and be taken to say that the command was never begun."""
    core = core_of(adoption(1))
    core.schedule(0.0)
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    assert core.signal(1, 10) == 0
    assert effects(core, e.Signal) == []
    core.exec_output(spawn.slot, "out", b"4711\n", 0.0)
    assert core.signal(1, 10) == 1


@pytest.mark.parametrize(
    ("printed", "entries"),
    [
        (b"7.1\n12.3\n", {(7, 1), (12, 3)}),
        (b"9223372036854775807.2147483647\n9223372036854775808.1\n1.2147483648\n", {(2**63 - 1, 2**31 - 1)}),
        (b"Welcome\n1\n-1.1\n7.1.2\n7. 1\n" + b"9" * 5000 + b".1\n\xc2\xb2.1\n", set()),
    ],
)
def test_only_names_of_entries_are_read_from_what_a_host_prints_c41(printed: bytes, entries: set[Any]) -> None:
    assert read_entries(printed) == entries


def test_job_is_forgotten_and_adopted_when_its_link_is_lost_c41() -> None:
    core = core_of()
    number = begun(core)
    core.handle(e.Gone(number, lost=True, why="cut"), 1.0)
    assert (core.state.jobs, saved(settle(core, 1.0))) == ({}, [])
    assert effects(core, e.FindDetached)
    core.handle(e.Adopted("site", "/spool", [adoption(1, turn=2)]), 2.0)
    (spawn,) = effects(core, e.Spawn)
    assert (spawn.keeper.verb, spawn.keeper.turn) == ("adopt", 2)


@pytest.mark.parametrize("event", [e.Stop(), e.Drain()])
def test_job_is_not_adopted_by_a_daemon_that_ends_c41(event: e.Event) -> None:
    core = core_of()
    core.handle(event, 0.0)
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 1.0)
    assert core.state.jobs == {}
    assert core.end_if_over()


def test_adopted_job_waits_for_a_slot_and_for_no_place_of_the_host_c41() -> None:
    core = core_of(adoption(1), adoption(2), adoption(3))
    first, second = effects(core, e.Spawn)
    assert {first.job, second.job} == {1, 2}
    core.handle(e.Created(first.slot, 100), 0.0)
    core.handle(e.Gone(first.slot, 0), 1.0)
    (third,) = effects(core, e.Spawn)
    assert third.job == 3


@pytest.mark.parametrize("agents", [{}, {"long": attrs.evolve(KIND, detached=False)}])
def test_job_that_waits_for_a_slot_of_a_type_that_is_gone_is_adopted_when_it_is_back_c41(agents: Any) -> None:
    core = core_of(adoption(1), adoption(2), adoption(3))
    effects(core, e.Spawn)
    core.handle(e.Reloaded(Config(hosts={"alpha": Host()}, agents=agents)), 1.0)
    assert effects(core, e.FindDetached)
    assert set(core.state.jobs) == {1, 2}
    core.handle(e.Reloaded(Config(hosts={"alpha": Host()}, agents={"long": attrs.evolve(KIND, slots=3)})), 2.0)
    core.handle(e.Adopted("site", "/spool", [adoption(3, turn=2)]), 2.0)
    assert [(spawn.job, spawn.keeper.turn) for spawn in effects(core, e.Spawn)] == [(3, 2)]


def test_adopted_job_of_a_disabled_type_is_attached_c41() -> None:
    core = make_core({"long": KIND})
    hosts = [{"name": "alpha", "max": -1, "urgent": 0, "enabled": True, "types": "", "queues": (), "priorities": ""}]
    queues = [{"name": "default", "concurrency": None, "paused": False, "reserved": 0}]
    core.handle(e.TablesRead(queues, hosts, [{"type": "long", "enabled": False}], []), 0.0)
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 0.0)
    assert [spawn.job for spawn in effects(core, e.Spawn)] == [1]


def test_adopted_job_that_was_to_be_killed_is_killed_c41() -> None:
    core = core_of(adoption(1, wanted="kill"))
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    assert [kill.slot for kill in effects(core, e.Kill)] == [spawn.slot]


@pytest.mark.parametrize(
    ("kept", "state", "interruptions"), [("not begun", "queued", None), ("interrupted", "queued", 1)]
)
def test_what_the_attached_process_says_settles_the_job_c41(kept: str, state: str, interruptions: int | None) -> None:
    core = core_of(adoption(1))
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    core.handle(e.Gone(spawn.slot, signal="SIGUSR1", keeper_said=kept), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.interruptions) == (state, interruptions)


def test_start_that_its_host_refused_is_no_fault_of_the_job_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    core.handle(answer_to(marked(core)), 0.0)
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.NotCreated(spawn.slot, "its host ended the session without a word"), 1.0)
    assert (core.state.jobs, saved(settle(core, 1.0))) == ({}, [])
    assert effects(core, e.FindDetached)


def test_words_that_are_too_long_fail_the_job_c41() -> None:
    core = core_of()
    turn(core, claim(1, "long"))
    core.handle(answer_to(marked(core)), 0.0)
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.NotCreated(spawn.slot, "argument list too long", is_items_fault=True), 1.0)
    assert [row.state for row in saved(settle(core, 1.0))] == ["failed"]
