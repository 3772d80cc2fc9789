"""A core with one agent type, driven by hand: what tests of single claims start from."""

from collections import Counter
from typing import Any

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Config, Host, Scheduler
from scheduler.model.queue_requests import PLAIN, Claim, ClaimPosition, ClaimRequest, Rules
from scheduler.policy.core import Core
from scheduler.policy.slots import Slot

TABLES: dict[str, Any] = {
    "queues": [{"name": "default", "concurrency": None, "paused": False, "reserved": 0}],
    "placements": [],
}


def make_core(
    kinds: dict[str, AgentType] | None = None, *, hosts: dict[str, Host] | None = None, **timers: Any
) -> Core:
    """Return a core that serves until 10,000 s; one line agent `sha` on host `alpha` unless told otherwise."""
    hosts = hosts or {"alpha": Host()}
    kinds = kinds or {"sha": AgentType(command=("agent",))}
    core = Core(Config(scheduler=Scheduler(**timers), hosts=hosts, agents=kinds), 0.0)
    core.handle(e.Serve(10_000.0), 0.0)
    rows = [{"name": n, "max": h.max, "urgent": h.urgent, "enabled": h.enabled} | h.filters for n, h in hosts.items()]
    core.handle(e.TablesRead(TABLES["queues"], rows, [{"type": n, "enabled": True} for n in kinds], []), 0.0)
    return core


def claim(pk: int, kind: str = "sha", *, rank: bytes = b"1n", host: str = "", attempt: int = 1, **rules: Any) -> Claim:
    """Return a claimed row; its parameter is `item PK`. One without rules has PLAIN ones, as from `read_claim`."""
    want = ClaimRequest(kind, "default", host, False, 1)
    return Claim(pk, attempt, b"item %d" % pk, rank, want, Rules(**rules) if rules else PLAIN)


def turn(core: Core, *claims: Claim, now: float = 0.0, **more: Any) -> r.EndAndClaim:
    """Let the core ask, through whatever else it wants to save, until it claims; answer with these claims."""
    while not isinstance(request := core.next_request(now), r.EndAndClaim):
        assert request is not None
        core.handle(answer_to(request), now)
    core.handle(turned(*claims, **more), now)
    return request


def turned(*claims: Claim, **more: Any) -> e.EndedAndClaimed:
    """Return the answer that these rows were claimed."""
    reached = {c.request: ClaimPosition(c.rank.decode(), "now", c.pk) for c in claims}
    size = sum(len(c.args) for c in claims)
    return e.EndedAndClaimed(claims, reached=reached, found=Counter(c.request for c in claims), size=size, **more)


def answer_to(request: r.Request) -> e.Event:
    """Return the answer of a database where all goes well."""
    match request:
        case r.Save(rows, _):
            return e.Saved(frozenset(row.pk for row in rows))
        case r.Mark(rows):
            return e.Saved(frozenset(row.pk for row in rows))
        case r.ReadContents(rows):
            return e.ContentsRead({pk: (b"item %d" % pk, b"{}") for pk, _ in rows})
        case r.EndAndClaim():
            return e.EndedAndClaimed([])
        case r.Settle():
            return e.Settled()
        case _:
            return e.Written()


def settle(core: Core, now: float = 0.0) -> list[r.Request]:
    """Let the core save everything; return its requests."""
    requests = []
    while (request := core.next_request(now)) is not None:
        requests.append(request)
        core.handle(answer_to(request), now)
    return requests


def saved(requests: list[r.Request]) -> list[Any]:
    """Return the rows saved in these requests."""
    return [row for request in requests if isinstance(request, r.Save) for row in request.rows]


def spawned(core: Core, now: float = 0.0) -> list[int]:
    """Carry out the commands as far as making processes; return the slots."""
    return [effect.slot for effect in core.take_effects(now) if isinstance(effect, e.Spawn)]


def ready(core: Core, *claims: Claim, now: float = 0.0) -> Slot:
    """Claim rows, make the agent and let it say OK: it has its first line then."""
    turn(core, *claims, now=now)
    (number,) = spawned(core, now)
    core.handle(e.Created(number, 100), now)
    core.agent_output(number, b"OK\n", now)
    core.schedule(now)
    return core.state.slots.all[number]


def sent(core: Core, now: float = 0.0) -> list[bytes]:
    """Return the lines sent by command since the last look."""
    return [effect.data for effect in core.take_effects(now) if isinstance(effect, e.Send)]


def logged(core: Core) -> list[tuple[int | None, str, str]]:
    """Return (job, type, message) of what waits for drover.log."""
    return [(row.job, row.type, row.message) for row in core.state.outbox.logs]
