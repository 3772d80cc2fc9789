"""What one program hands over to the next: what travels, what has to end first, and how an older state is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Config, Host, Scheduler
from scheduler.model.states import ST_READY, ST_RUNNING, QueryState
from scheduler.policy.core import Core
from scheduler.policy.handover import VERSION, UnreadableError
from scheduler.policy.query_progress import KeyProgress
from tests.core_tools import claim, make_core, ready, saved, sent, settle, spawned, turn

RECORDED = Path(__file__).with_name("handover_1.json")  # by version 1, of `busy_core`
KINDS = {"sha": AgentType(command=("agent",), slots=2), "run": AgentType(command=("run",), kind="exec")}


def handed_over(core: Core, now: float = 0.0) -> Core:
    """Return a core that knows only what the document of another says."""
    return restored(json.loads(json.dumps(core.document(now))), core.config, now)


def restored(document: dict[str, Any], config: Config, now: float = 0.0) -> Core:
    core = Core.restored(document, config, now)
    core.handle(
        e.TablesRead([{"name": "default", "concurrency": None, "paused": False, "reserved": 0}], [], [], []), now
    )
    core.handle(e.Serve(10_000.0), now)
    return core


def row(n: int) -> tuple[bytes, ...]:
    return (b"%d" % n,)


def query_core(key: str | None, fetched: int, total: int = 10) -> Core:
    """Return a core with a query of which so many rows are fetched, and one agent that works on the first."""
    core = make_core()
    turn(core, claim(1, msq=True, key=key))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), total), 0.0)
    core.take_effects(0.0)
    core.handle(e.Fetched(1, [row(n) for n in range(1, fetched + 1)], fetched < total), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    return core


def busy_core() -> Core:
    """Return a core that has a bit of everything in hand."""
    core = make_core(KINDS)
    turn(core, claim(1), claim(2), claim(3), claim(4, "run", variables={"a": "1"}, variables_json='{"a": "1"}'))
    for number in spawned(core):
        core.handle(e.Created(number, 100 + number), 1.0)
    core.agent_output(0, b"OK\n", 1.5)
    core.agent_output(1, b"OK\n", 1.5)
    core.take_effects(1.5)
    core.agent_output(0, b"ItemsProcessed 7\nLOG ha", 2.0)
    core.exec_output(2, "out", b"some \xe2\x82", 2.0)
    core.save_output(2.0)
    settle(core, 2.0)
    core.take_effects(2.0)
    return core


# ---- there and back


def test_document_of_a_restored_core_is_the_same() -> None:
    core = busy_core()
    document = json.loads(json.dumps(core.document(3.0)))
    again = restored(document, core.config, 3.0)
    assert json.loads(json.dumps(again.document(3.0))) == document


def test_agent_at_work_finishes_its_item_for_the_next_program() -> None:
    core = handed_over(busy_core())
    slot = core.state.slots.all[0]
    assert (slot.state, slot.pid, slot.job and slot.job.pk) == (ST_RUNNING, 100, 1)
    core.agent_output(0, b"lf a line\nOK\n", 4.0)
    rows = {each.pk: each for each in saved(settle(core, 4.0))}
    assert (rows[1].state, rows[1].processed) == ("done", 7)


def test_what_waits_in_lanes_is_worked_by_the_next_program() -> None:
    core = handed_over(busy_core())
    assert core.agent_output(1, b"OK\n", 4.0) == b"item 3\n"


def test_output_of_a_command_goes_on_in_the_middle_of_a_character() -> None:
    core = handed_over(busy_core())
    core.exec_output(2, "out", b"\xac", 4.0)
    core.handle(e.Gone(2, 0), 4.0)
    assert [row.text for row in core.state.outbox.outputs] == ["\u20ac"]


def test_agent_that_died_meanwhile_is_told_at_once_and_its_item_is_settled() -> None:
    core = handed_over(busy_core())
    core.handle(e.Gone(0, signal="SIGKILL"), 4.0)
    assert [row.state for row in saved(settle(core, 4.0))] == ["failed"]


def test_throttle_history_travels() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.handle(e.Gone(slot.number, 1), 2.0)
    assert slot.starts == [0.0]
    assert handed_over(core, 3.0).state.slots.all[slot.number].starts == [0.0]


# ---- queries


def test_query_with_a_key_is_run_again_behind_the_last_row_that_was_fetched() -> None:
    core = handed_over(query_core("n", 4))
    assert core.state.jobs[1].query.state is not QueryState.WAITING  # it was opened at once
    (expand,) = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Expand)]
    assert "> E'4'" in expand.query.replace("> '4'", "> E'4'")
    core.handle(e.Opened(1, (b"n",), 6), 1.0)
    core.handle(e.Fetched(1, [row(n) for n in range(5, 11)], False), 1.0)
    for n in range(2, 11):
        assert core.agent_output(0, b"OK\n", 2.0) == b'n="%d"\n' % n
    assert core.agent_output(0, b"OK\n", 2.0) is None
    (end,) = [each for each in saved(settle(core, 3.0)) if each.outcome]
    assert (end.state, end.processed, end.total) == ("done", 10, 10)


def test_query_without_a_key_has_to_be_fetched_first() -> None:
    core = query_core(None, 4)
    core.hold(1.0)
    assert core.obstacle() == "job 1: rows of its query are being fetched"
    core.handle(e.Fetched(1, [row(5)], True), 1.0)
    core.hold(1.0)
    assert [type(effect) for effect in core.take_effects(1.0)] == [e.Fetch]
    core.handle(e.Fetched(1, [row(n) for n in range(6, 11)], False), 1.0)
    assert core.obstacle() == ""
    assert handed_over(core).state.jobs[1].is_fed is False


def test_long_query_without_a_key_is_named_and_goes_on() -> None:
    core = query_core(None, 4, total=10**9)
    unfinished = core.unfinished_query()
    assert unfinished is not None
    assert unfinished.pk == 1


def test_keys_to_be_done_again_that_were_not_fetched_are_asked_for() -> None:
    progress = KeyProgress({"watermark": "9", "again": ["2", "5"]})
    progress.came([b"2"])
    later = KeyProgress.restored(progress.snapshot())
    assert (later.again, later.coming) == (["2", "5"], ["5"])


def test_progress_goes_on_with_items_done_out_of_order() -> None:
    progress = KeyProgress(None)
    for number in (0, 2, 3):
        progress.finish(number, f"k{number}")
    later = KeyProgress.restored(progress.snapshot())
    later.finish(1, "k1")
    assert later.checkpoint() == {"watermark": "k3", "beyond": []}


# ---- what has to end first


def test_held_core_claims_and_starts_nothing() -> None:
    core = make_core(KINDS)
    core.hold(0.0)
    assert core.next_request(0.0) is None
    core.release()
    assert core.next_request(0.0) is not None


def test_a_command_that_begins_when_no_program_takes_over_has_its_whole_time() -> None:
    core = make_core({"run": AgentType(command=("run",), kind="exec", slots=1)})
    turn(core, claim(1, "run"))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    turn(core, claim(2, "run", timeout=60.0), now=690.0)
    core.hold(691.0)
    core.handle(e.Gone(number, code=0), 692.0)
    core.release()
    assert spawned(core, 700.0) == [number]
    core.handle(e.Created(number, 101), 700.0)
    core.tick(700.0)
    assert e.Kill(number) not in core.take_effects(700.0)


def test_row_that_is_not_read_yet_goes_back_to_the_queue() -> None:
    core = make_core()
    turn(core, claim(1, unread=True))
    core.hold(0.0)
    assert [(each.pk, each.state, each.outcome) for each in saved(settle(core))] == [(1, "queued", "given back")]
    assert core.obstacle() == ""


def test_agent_that_is_being_started_is_waited_for() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.hold(0.0)
    assert core.obstacle() == "slot 0, agent sha: it is being started"
    core.handle(e.Created(number, 100), 0.0)
    assert core.obstacle() == ""


def test_statement_of_an_agent_waits_while_another_program_is_to_take_over() -> None:
    core = make_core({"sha": AgentType(command=("agent",), db="sql")})
    slot = ready(core, claim(1))
    sent(core)
    core.hold(0.0)
    core.agent_output(slot.number, b"DB: select 1;\n", 0.0)
    assert [effect for effect in core.take_effects(0.0) if isinstance(effect, e.RunStatement)] == []
    after = handed_over(core)
    after.release()
    assert [effect.text for effect in after.take_effects(0.0) if isinstance(effect, e.RunStatement)] == [b"select 1;"]


# ---- versions


def test_state_of_another_version_is_refused() -> None:
    document = busy_core().document(0.0) | {"version": VERSION + 1}
    with pytest.raises(UnreadableError, match=f"version {VERSION + 1}, this program reads"):
        restored(document, Config(scheduler=Scheduler(), hosts={"alpha": Host()}, agents=KINDS))


def test_recorded_state_of_version_1_is_read() -> None:
    core = restored(json.loads(RECORDED.read_text()), busy_core().config, 3.0)
    assert sorted(core.state.jobs) == [1, 2, 3, 4]
    assert [slot.state for slot in core.state.slots.all] == [ST_RUNNING, ST_RUNNING, ST_RUNNING]


def test_keys_that_are_not_known_or_missing_change_nothing() -> None:
    document = json.loads(RECORDED.read_text())
    document["of a later version"] = 1
    for name in ("rates", "counts", "second_tries", "types"):
        del document[name]
    for slot in document["slots"]:
        slot["of a later version"] = 1
        del slot["output"], slot["ahead"], slot["failed"]
    for job in document["jobs"]:
        job["of a later version"] = 1
        job["rules"]["of a later version"] = 1
    core = restored(document, busy_core().config, 3.0)
    assert core.agent_output(1, b"OK\n", 4.0) == b"item 3\n"
    assert core.state.slots.all[0].state != ST_READY
