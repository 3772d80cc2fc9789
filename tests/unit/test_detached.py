"""Claims about detached jobs on a core: begun once their row says where, adopted, let go where others are killed."""

from typing import Any

from scheduler.model import events as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType
from scheduler.model.queue_requests import Adoption
from scheduler.policy.core import Core
from tests.core_tools import answer_to, claim, make_core, turn

KIND = AgentType(command=("tool", "{args}"), kind="exec", detached=True, slots=2)


def core_of(*adoptions: Adoption, kind: AgentType = KIND) -> Core:
    """Return a core that knows its spool, and has adopted these jobs."""
    core = make_core({"long": kind})
    core.handle(e.Adopted("site", "/spool", list(adoptions)), 0.0)
    return core


def adoption(pk: int, *, wanted: str = "", turn: int = 1, age: float = 0.0) -> Adoption:
    return Adoption(claim(pk, "long"), "alpha", "/spool", turn, wanted, age)


def effects(core: Core, kind: type) -> list[Any]:
    return [effect for effect in core.take_effects() if isinstance(effect, kind)]


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


def test_row_that_says_claimed_starts_no_process_c41() -> None:
    """That its row says claimed is on its way when a slot gets free: only the mark that says where counts."""
    core = core_of(adoption(7), adoption(8))
    first, second = effects(core, e.Spawn)
    for spawn in (first, second):
        core.handle(e.Created(spawn.slot, 100), 0.0)
    core.state.set_may_claim(True)
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
