"""Worlds of the swarm: every invariant holds, and together they reach what the simulation is for (reach.py)."""

from typing import Final

import pytest

from scheduler.model.states import LeaseEvent, ProgramEvent
from tests.builds import IS_COMPILED
from tests.sim import reach, swarm
from tests.sim.broken import Broken
from tests.sim.test_sim import FEW_STEPS, STEPS, tell

# Cells that no event reaches: what would look them up is decided before.
NOT_LOOKED_UP: Final = {
    "what is late is killed: policy/processes.py fires LATE where there is nothing to kill": {
        ("slot", state, "LATE") for state in ("ST_PREP", "ST_SPAWNED", "ST_READY", "ST_RUNNING")
    },
    "a free slot has no deadline": {("slot", "ST_FREE", "LATE")},
    "only a slot that has failed is thawed (Slot.thaw, Slot.remove)": {
        ("slot", state, "THAWED")
        for state in ("ST_FREE", "ST_FREEING", "ST_PREP", "ST_SPAWNED", "ST_READY", "ST_RUNNING")
    },
    "what a process says that is to die is not looked at": {
        ("slot", "ST_FREEING", "OK"), ("slot", "ST_FREEING", "SAID"),
    },
    "a process that is to die is not killed again (Slot.kill), and one that is kept has no wish to end": {
        ("what is wanted of a process", "DIE", "KILL"), ("what is wanted of a process", "KEEP", "ENDED"),
    },
    "a lost connection ends a take-over, and one that is to come is decided once": {
        ("the lease", "TAKING", "CONNECTED"), ("the lease", "TAKING", "MAY_TAKE"),
    },
    "people decide about a program while there is another one, and the file has that in use anyway": {
        ("the program of a type", "STEADY", event) for event in ("PROMOTE", "ROLLBACK", "CANARY", "RESTORED")
    },
}  # fmt: skip
# What the worlds of `make check` do not meet yet, or only some of them: more worlds do, or other statements' delays.
SELDOM: Final = {
    *[("a query", *cell.split()) for cell in ("KEEPING DROPPED", "KEEPING KEPT", "OPEN KEEP")],
    *[("slot", *cell.split()) for cell in ("ST_FAIL KILLED", "ST_FAIL LATE", "ST_FAIL THAWED", "ST_FREEING LATE")],
    *[("the lease", *cell.split()) for cell in ("RESCUING REFUSED", "RESCUING LEAVE", "TAKING LEAVE")],
    *[("the lease", *cell.split()) for cell in ("SERVING LOST", "SERVING REFUSED")],
    *[("the lease", "STEPPING_DOWN", event.name) for event in LeaseEvent if event.name != "LOST"],
    *[("the program of a type", "HELD_BACK", event.name) for event in ProgramEvent],
    *[("what is wanted of a process", "DIE", "DISMISS"), ("what is wanted of a process", "FINISH", "DISMISS")],
}
SELDOM_WORDS: Final = {"Keep", "Kept", "RenewLease", "Signal"}
LEAST: Final = 85.0  # percent of the branches of policy/; 95 are wanted


STEPS_OF_A_WORLD: Final = 10_000  # beyond the few: for `make sim`


def run(number: int, found: reach.Reached) -> None:
    """Run a world of the swarm, and count."""
    sim = swarm.world(number)
    sim.reached = found.note
    try:
        sim.run(swarm.STEPS)
    except Broken as broken:
        raise AssertionError(f"world {number}: {tell(sim, broken)}") from broken


def test_the_swarm_reaches_the_cells_of_all_tables_events_and_effects() -> None:
    reached, out_of_reach = reach.Reached(), set().union(*NOT_LOOKED_UP.values())
    with reach.counting(reached):
        for number in range(reach.WORLDS):
            run(number, reached)
    assert reach.all_words() - reached.words.keys() <= SELDOM_WORDS
    if IS_COMPILED:
        return  # it has the tables inside, and nothing can count there
    assert reach.all_cells() - reached.cells.keys() - out_of_reach <= SELDOM
    assert out_of_reach & reached.cells.keys() == set()


@pytest.mark.parametrize("number", range(reach.WORLDS, reach.WORLDS + 1 + (STEPS - FEW_STEPS) // STEPS_OF_A_WORLD))
def test_every_invariant_holds_in_other_worlds_of_the_swarm(number: int) -> None:
    reached = reach.Reached()
    run(number, reached)  # raises Broken at an invariant that does not hold
    assert reached.words


@pytest.mark.slow
def test_the_simulation_takes_nearly_all_branches_of_policy() -> None:
    assert reach.share(reach.branches()) >= LEAST
