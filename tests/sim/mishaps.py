"""What goes wrong around a daemon in worlds of the swarm: starts, pipes, ends, connections, hosts, rows and clocks."""

from typing import TYPE_CHECKING, Any, Final

from scheduler.model import events_and_effects as e
from scheduler.model.states import CLAIMED, HELD, QUEUED, RUNNING, ST_SPAWNED
from tests.sim.agents import Process
from tests.sim.keepers import Attached
from tests.sim.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.policy.slots import Slot
    from tests.sim.harness import Daemon
    from tests.sim.world import Sim

SELDOM: Final = 0.08
NEVER_READS: Final = 0.2  # of the agents whose pipe is full
LONG_S: Final = 100.0
LOGIN: Final = "runner"


# ---- processes


def failed_start(daemon: "Daemon", spawn: e.Spawn) -> e.NotCreated | None:
    """Return by whose fault a process is not made; None if it is."""
    sim = daemon.sim
    if spawn.argv == (b"",) and (spawn.keeper is None or spawn.keeper.verb == "start"):
        return e.NotCreated(spawn.slot, "no program has this name", is_items_fault=True)
    if not sim.has("starts") or sim.is_calm or not sim.chance(SELDOM):
        return None
    number = spawn.slot
    return sim.rng.choice(
        (
            e.NotCreated(number, "an argument is too long", is_items_fault=True),
            e.NotCreated(number, "no more processes", is_machines_fault=True),
            e.NotCreated(number, "its file is being written", is_busy=True),
            e.NotCreated(number, "no such program", code=127),
            e.NotCreated(number, "no such directory", code=126),
        )
    )


def end_of(daemon: "Daemon", slot: "Slot", code: int | None, signal: str | None) -> e.Gone:
    """Return how a process ended, as the daemon is told: that is not always known."""
    sim = daemon.sim
    if sim.has("starts") and not sim.is_calm and sim.chance(SELDOM):
        if slot.state != ST_SPAWNED and sim.chance(0.5):
            return e.Gone(slot.number, why="its kill was refused", left=True)
        return e.Gone(slot.number, why="its end is not known")
    if code and sim.has("starts") and sim.chance(0.5):
        return e.Gone(slot.number, code, signal, why="no library")
    return e.Gone(slot.number, code, signal)


def is_clogged(daemon: "Daemon", process: Process | Attached, data: bytes) -> bool:
    """Return whether a process does not read what it is sent: it may later, or say OK all the same, or neither."""
    sim = daemon.sim
    if not isinstance(process, Process) or not sim.has("clogs"):
        return False
    if process.pipe is not None:
        process.pipe += data
        return True
    if sim.is_calm or not sim.chance(SELDOM):
        return False
    process.pipe = data
    daemon.later(0.0, _tell_if_there, daemon, process, e.Clogged(process.slot))
    if not sim.chance(NEVER_READS):
        daemon.later(LONG_S * sim.rng.random() ** 4, _read, daemon, process)
    elif sim.chance(0.5):
        daemon.later(sim.rng.random(), process.lie)
    return True


def _tell_if_there(daemon: "Daemon", process: Process, event: e.Event) -> None:
    if daemon.processes.get(process.slot) is process and process.heard:
        daemon.tell(event)


def _read(daemon: "Daemon", process: Process) -> None:
    if daemon.processes.get(process.slot) is process and process.heard and process.pipe is not None:
        data, process.pipe = process.pipe, None
        process.receive(data)
        daemon.tell(e.Unclogged(process.slot))


def refuse_kill(daemon: "Daemon", number: int) -> None:
    """Say that a signal was refused, at times."""
    if daemon.sim.has("moves") and daemon.sim.chance(SELDOM):
        daemon.later(0.0, daemon.tell, e.Refused(number, "it is another user's by now"))


# ---- acts, as those of frontend.py


def cut_connections(sim: "Sim") -> None:
    """Connections that queries, or DB: lines of agents, need cannot be made for a while, or only some."""
    daemon = sim.daemon
    if daemon.is_alive:
        kind = sim.rng.choice(("queries", "statements"))
        daemon.lack_connections(kind, sim.rng.choice((0, 0, 1, 2)), LONG_S / 2 * sim.rng.random())


def move_host(sim: "Sim") -> None:
    """The name of a host leads elsewhere; it is reached there a while later."""
    daemon = sim.daemon
    if daemon.is_alive and daemon.links:
        daemon.move_host(sim.rng.choice(sorted(daemon.links)))


def steal_row(sim: "Sim") -> None:
    """An update by hand puts a row in hand back in the queue."""
    rows = [row for row in sim.database.hand.values() if row.owner is not None and row.wanted is None]
    rows = [row for row in rows if not sim.database.runs_detached(row) and row.state in (CLAIMED, RUNNING)]
    if rows:
        row = sim.rng.choice(rows)
        sim.disrupt(row.pk)
        row.text = "put back by hand"
        row.was_stolen = True
        sim.database.move(row, QUEUED, sim.now)
        sim.ring()


def sleep(sim: "Sim") -> None:
    """The machine is suspended for a while: all clocks have gone on, and nothing else has."""
    if sim.database.group_owner not in (None, sim.daemon.owner):
        return  # another daemon's lease would run out
    pause = LONG_S * sim.rng.random() ** 2
    sim.now += pause
    if sim.daemon.is_alive:
        sim.daemon.core.resume(pause, sim.now)
        sim.daemon.watch.sees_since = sim.now


def insert_odd(sim: "Sim") -> None:
    """A user queues a row that no agent can be given, in part or at all."""
    from tests.sim import frontend

    row = frontend.make_row(sim)
    if row.state == HELD or row.host:
        return
    is_exec = sim.config.agents[row.type].kind == "exec"
    if row.msq:
        row.odd = sim.rng.choice(("columns", "twice", "no key", "no place", "null key", "long", "newline"))
        row.odd = "long" if row.odd == "null key" and row.key is None else row.odd
        row.key = "absent" if row.odd == "no key" else row.key
        row.runonpfile = "absent" if row.odd == "no place" else row.runonpfile
        row.tolerate = 100
    else:
        row.args += b" nul\0" if is_exec else sim.rng.choice((b" two\nlines", b" nul\0", b"x" * 70_000))
    frontend.insert(sim, row)


def names_of(row: Row) -> tuple[bytes, ...]:
    """Return the columns of the query of a row."""
    odd = {"columns": (b"pk", b"n", b"a place"), "twice": (b"pk", b"n", b"n")}
    return odd.get(row.odd, (b"pk", b"n", b"place"))


def made_odd(row: Row, rows: list[Any]) -> list[Any]:
    """Return rows of a query as it gives them, the last one of them odd."""
    if not rows or row.odd not in ("null key", "long", "newline"):
        return rows
    pk, number, place = rows[-1]
    odd = {
        "null key": (pk, None, place), "long": (pk, number, b"x" * 70_000),
        "newline": (pk, number, b"a\nb"),
    }  # fmt: skip
    return [*rows[:-1], odd[row.odd]]


ACTS: "Final[dict[str, dict[Callable[[Any], None], float]]]" = {  # by feature
    "connections": {cut_connections: 5.0}, "moves": {move_host: 3.0}, "thefts": {steal_row: 5.0},
    "pauses": {sleep: 2.0}, "odd": {insert_odd: 15.0},
}  # fmt: skip
