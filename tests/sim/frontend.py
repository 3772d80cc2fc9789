"""What users and operators do in the simulator: rows of every kind, and changes of the tables they may change."""

from typing import TYPE_CHECKING, Any, Final

import attrs

from scheduler.model.config import AUTO
from scheduler.model.events_and_effects import Drain, Replaced, Stop
from scheduler.model.queue_requests import SUSPECT_AFTER
from scheduler.model.states import CANCELLED, FAILED, HELD, QUEUED, ProgramEvent
from tests.sim import configs, end_invariants, mishaps, swarm
from tests.sim.keepers import Attached
from tests.sim.rows import Edge, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.world import Sim

MOST_OPEN: Final = 40  # rows in the queue before the front-end waits
MOST_ITEMS: Final = 60
LONG: Final = 150
TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FILTERS: Final[tuple[dict[str, Any], ...]] = (  # what a command may set
    {"types": ""}, {"types": "^[ls]"}, {"queues": ()}, {"queues": ("default", "light")}, {"priorities": ""},
    {"priorities": "^[a-n]"},
)  # fmt: skip


def act(sim: "Sim") -> None:
    """Do something, and something else a while later."""
    if sim.is_calm:
        return
    weights = {do: weight for do, weight in ACTS.items() if do not in sim.never}
    weights |= {do: 30.0 for do in ACTS if do.__name__ in sim.often}
    if sim.has("locks"):
        weights[lock_row] = 10.0
    if sim.has("keepers") or sim.has("few queries"):
        weights[command_job] = 15.0
    if sim.has("lease"):
        weights |= {usurp: 5.0, cut_watch: 5.0}
    for feature, acts in mishaps.ACTS.items():
        weights |= acts if sim.has(feature) else {}
    if configs.has_canaries(sim.seed):
        weights[replace_program] = 16.0 if sim.features else 8.0  # more seldom than trials end
    if configs.has_detached(sim.seed):
        weights |= {kill_daemon: 5.0, stop_daemon: 2.0, cut_link: 5.0, usurp: 3.0, lose_detached: 5.0}
    (do,) = sim.rng.choices(list(weights), list(weights.values()))
    sim.note(do.__name__)
    do(sim)
    sim.at(sim.pace * sim.rng.expovariate(1.0), act, sim)


# ---- rows


def insert_some(sim: "Sim") -> None:
    """A user queues one row or several."""
    for _ in range(sim.rng.choice((1, 1, 2, 5, 12))):
        if len(sim.database.open) < MOST_OPEN:
            insert(sim, make_row(sim))


def insert_placed(sim: "Sim") -> None:
    """A user queues a query whose rows are placed on hosts, some of which kill their agents."""
    row = make_row(sim)
    if not row.msq and sim.config.agents[row.type].kind == "line" and len(sim.database.open) < 2 * MOST_OPEN:
        row.host, row.unstorable = "", False
        _make_query(sim, row)
        row.items, row.runonpfile, row.tolerate = 10, "place", 100
        row.poison = frozenset(sim.rng.sample(range(row.items), 3))
        insert(sim, row)


def insert_crowd(sim: "Sim") -> None:
    """A user queues so many jobs of a type that its agents are given lines ahead, if the type allows that."""
    kinds = [name for name, kind in sim.config.agents.items() if kind.kind == "line" and kind.most_lines > 1]
    if kinds:
        name = sim.rng.choice(kinds)
        for _ in range(min(20, 2 * MOST_OPEN - len(sim.database.open))):
            pk = sim.new_pk()
            insert(sim, Row(pk, name, queue=sim.queue_names[0], queued=sim.now, args=b"one:%d" % pk))


def insert_long(sim: "Sim") -> None:
    """A user queues a query so long that its agents prove to be fast, or not, where lines ahead depend on that."""
    kinds = [name for name, kind in sim.config.agents.items() if kind.window == AUTO and kind.most_lines > 1]
    if kinds and len(sim.database.open) < MOST_OPEN:
        row = Row(sim.new_pk(), sim.rng.choice(kinds), queue=sim.queue_names[0], queued=sim.now)
        row.msq, row.args, row.items, row.tolerate = True, b"select everything;", LONG, 100
        row.key = "n" if sim.chance(0.5) else None
        insert(sim, row)


def insert(sim: "Sim", row: Row) -> None:
    """Queue a row, perhaps below others."""
    edges = []
    if sim.chance(0.2) and sim.database.open:
        parents = sim.rng.sample(list(sim.database.open.values()), min(2, len(sim.database.open)))
        edges = [Edge(row, parent, sim.rng.choice((1, 1, 2, 3)), sim.chance(0.5)) for parent in parents]
    sim.database.insert([row], edges, sim.now)
    if row.wait_until is not None or row.expires is not None:
        sim.daemon.watch.look_due()


def make_row(sim: "Sim") -> Row:
    """Make a row of some kind."""
    rng, chance = sim.rng, sim.chance
    kind = rng.choice(list(sim.config.agents))
    pk = sim.new_pk()
    row = Row(pk, kind, queue=rng.choice(sim.queue_names), queued=sim.now, urgent=chance(0.15))
    row.letter = rng.choice("nnnnaz")
    if pk % 2 and configs.has_longer(sim.config):
        row.letter += "1"
    row.unreadable = pk % 61 == 7
    row.rescued = SUSPECT_AFTER if pk % 11 == 3 else 0  # daemons died with it in hand
    row.submitter = rng.choice(("anna", "anna", "anna", "bert", "carl"))
    row.args = b"%s:%d" % (b"exec" if sim.config.agents[kind].kind == "exec" else b"one", pk)
    if chance(0.2):
        row.host = rng.choice(sim.config.agents[kind].hosts or list(sim.config.hosts))
    if chance(0.1):
        row.wait_until = sim.now + 30 * rng.random()
    if chance(0.05):
        row.expires = sim.now + 60 * rng.random()
    if chance(0.2):
        row.retries = rng.randrange(3)
    if chance(0.1):
        row.timeout = 20 * rng.random()
    if chance(0.05):
        row.state = HELD
    if chance(0.03):
        row.unstorable = True
    if sim.has("variables") and chance(0.4):
        row.variables = {"tape": rng.choice(("a", "b", None)), "traceparent": TRACE if chance(0.5) else "none"}
    if sim.has("refusals") and chance(0.05):
        row.unmarkable = True
    if chance(0.35):
        _make_query(sim, row)
    elif chance(0.03):
        row.poison = frozenset((0,))
    return row


def _make_query(sim: "Sim", row: Row) -> None:
    rng, chance = sim.rng, sim.chance
    row.msq, row.args = True, b"select everything;"
    row.items = rng.choice((0, 1, 3, 10, MOST_ITEMS))
    row.key = "n" if chance(0.1 if sim.has("few queries") else 0.5) else None
    row.runonpfile = "place" if chance(0.3) else None
    row.tolerate = rng.choice((0, 0, 1, 100))
    row.broken = chance(0.05)
    if chance(0.3):
        row.repeat, row.slice = True, rng.choice((0, 1, 7))
    if chance(0.2) and row.items:
        row.poison = frozenset(rng.sample(range(row.items), min(row.items, rng.choice((1, 2)))))


def change_row(sim: "Sim") -> None:
    """A user holds, releases or cancels a row that waits."""
    waiting = [row for row in sim.database.open.values() if row.state in (HELD, QUEUED) and row.taken_by is None]
    if not waiting:
        return
    row = sim.rng.choice(waiting)
    if row.state == HELD:
        state = sim.rng.choice((QUEUED, QUEUED, CANCELLED))
        row.bits = 2 if state == CANCELLED else 0
        sim.database.move(row, state, sim.now)
        sim.settle_later(row)
        sim.ring()
    else:
        row.bits = 2
        sim.database.move(row, sim.rng.choice((HELD, CANCELLED)), sim.now)
        sim.settle_later(row)


def command_job(sim: "Sim") -> None:
    """An operator kills or cancels a job that is worked, or sends its agents a signal."""
    ours = [row for row in sim.database.hand.values() if row.holder == sim.daemon.owner]
    if not ours or not sim.daemon.is_alive:
        return
    core = sim.daemon.core
    ahead = {job.pk for slot in core.state.slots.all for job, *_ in slot.prefetched or () if job is not slot.job}
    row = sim.rng.choice([row for row in ours if row.pk in ahead] or ours)
    verb = sim.rng.choice(("kill", "cancel", "signal"))
    if verb == "signal":
        core.signal(row.pk, 15)
    elif verb == "kill" and core.kill(row.pk, "killed", sim.now):
        row.wanted = row.wanted or FAILED
    elif verb == "cancel" and core.cancel(row.pk, "not wanted", sim.now):
        row.wanted = row.wanted or CANCELLED
    end_invariants.what_is_wanted_is_on_its_way(core.state, row)


def lock_row(sim: "Sim") -> None:
    """Somebody holds a lock on a row for a while."""
    rows = list(sim.database.hand.values())
    if sim.has("locks") and sim.chance(0.7):
        rows = [row for row in sim.database.open.values() if row.above]
    if rows:
        row = sim.rng.choice(rows)
        sim.database.locked[row.pk] = sim.now + 10 * sim.rng.random()


# ---- tables


def change_queue(sim: "Sim") -> None:
    """An operator pauses a queue or changes its limit."""
    queue = sim.rng.choice(sim.queues)
    queue["paused"] = sim.chance(0.2)
    queue["concurrency"] = sim.rng.choice((None, 1, 2, 5))
    queue["reserved"] = sim.rng.choice((0, 0, 1, 2))
    if sim.has("rates"):
        queue["rate"] = sim.rng.choice(swarm.RATES)
        sim.memory.limits_set += 1
    sim.quotas = configs.quotas(sim.seed, sim.steps)
    sim.change()


def change_host(sim: "Sim") -> None:
    """An operator changes a host."""
    host = sim.rng.choice(sim.hosts)
    host["enabled"] = sim.chance(0.7)
    host["max"] = sim.rng.choice((-1, 1, 2, 3))
    host["urgent"] = sim.rng.choice((0, 1, 2))
    if sim.chance(0.3):
        host |= sim.rng.choice(FILTERS)
    sim.change()


def change_type(sim: "Sim") -> None:
    """An operator enables or disables an agent type."""
    sim.rng.choice(sim.types)["enabled"] = sim.chance(0.7)
    sim.change()


def replace_program(sim: "Sim") -> None:
    """The program of a type is another one now."""
    if sim.daemon.is_alive:
        sim.memory.stillborn.clear()  # a new program may be tried at once
        name = sim.rng.choice(list(sim.config.agents))
        if not sim.config.agents[name].canary:
            sim.daemon.tell(Replaced(name))
            return
        if sim.chance(0.5 if sim.features else 0.3):
            _decide_on_program(sim, name)
            return
        sim.files[name] = max(0, sim.files[name] + sim.rng.choice((-1, 1, 1)))
        sim.daemon.find_program(name)


def _decide_on_program(sim: "Sim", name: str) -> None:
    """An operator promotes a new program, rolls it back or has it tried again."""
    wanted = sim.rng.choice((ProgramEvent.PROMOTE, ProgramEvent.ROLLBACK, ProgramEvent.CANARY))
    sim.note((wanted.name, sim.daemon.core.set_program(name, wanted, sim.now)))


def reload(sim: "Sim") -> None:
    """The operator changes the configuration."""
    sim.reload(configs.other(sim.rng, sim.config))


def leave_host(sim: "Sim") -> None:
    """The operator takes a type off a host where a placed row of it is worked or tried again, or puts it back."""
    pools = sim.daemon.core.state.pools if sim.daemon.is_alive else {}
    waiting = [(name, at) for name, pool in pools.items() for *_, at in pool.second_tries]
    worked = [(name, s.host.name) for name, pool in pools.items() for s in pool.slots if s.job and s.is_bound]
    name, left = sim.rng.choice(waiting or worked or [(name, None) for name in sim.config.agents])
    if name in sim.config.agents:
        hosts = tuple(host for host in sim.config.hosts_of(name) if host != left) if left else ()
        kind = attrs.evolve(sim.config.agents[name], hosts=hosts)
        sim.reload(attrs.evolve(sim.config, agents={**sim.config.agents, name: kind}))


# ---- the end of daemons


def kill_daemon(sim: "Sim") -> None:
    """Kill -9 of the daemon; another one starts a while later."""
    if sim.daemon.is_alive:
        sim.daemon.die()
        sim.restart_later()


def stop_daemon(sim: "Sim") -> None:
    """SIGTERM."""
    if sim.daemon.is_alive:
        sim.daemon.tell(Stop())


def drain_daemon(sim: "Sim") -> None:
    """SIGINT: rather while a slice is under way, and rows that came just now are being claimed."""
    in_hand = sim.database.hand.values()
    is_time = not sim.daemon.core.state.draining and any(row.msq and row.key is None for row in in_hand)
    if is_time or sim.chance(0.1):
        for _ in range(5):
            insert(sim, make_row(sim))
        sim.at(2 * sim.delay * sim.rng.random(), _drain, sim)


def _drain(sim: "Sim") -> None:
    if sim.daemon.is_alive:
        sim.memory.drained_at = min(sim.memory.drained_at, sim.now)
        sim.daemon.tell(Drain())


def step_down(sim: "Sim") -> None:
    """The daemon is to give the group up, and lives on."""
    if sim.daemon.is_alive and sim.daemon.watch.is_serving:
        sim.note(("step_down", sim.daemon.core.step_down(sim.now)))


def cut_queue(sim: "Sim") -> None:
    """The queue connection breaks."""
    if sim.daemon.is_alive:
        sim.daemon.lose_connection()


def cut_watch(sim: "Sim") -> None:
    """The watch connection is away for longer than a lease, perhaps."""
    sim.cut_watch(60 * sim.rng.random())


def cut_link(sim: "Sim") -> None:
    """The way to a host is lost for a while."""
    daemon = sim.daemon
    reached = [name for name, is_up in daemon.links.items() if is_up]
    if daemon.is_alive and reached:
        daemon.cut_link(sim.rng.choice(reached))


def lose_detached(sim: "Sim") -> None:
    """A host with detached jobs is started again, or a process that is attached to one is killed."""
    live = sim.spools.live
    if live and sim.chance(0.3):
        sim.spools.lose(sim.rng.choice(live).host)
        return
    daemon = sim.daemon
    attached = [each for each in daemon.processes.values() if isinstance(each, Attached) and each.is_born]
    if daemon.is_alive and attached:
        sim.rng.choice(attached).let_go()


def usurp(sim: "Sim") -> None:
    """Another daemon takes the group if it may, and has it for a while."""
    sim.usurp()


ACTS: "Final[dict[Callable[[Any], None], float]]" = {
    insert_some: 100.0, insert_placed: 3.0, change_row: 5.0, command_job: 5.0, insert_crowd: 1.0, insert_long: 1.0,
    lock_row: 3.0, change_queue: 3.0, change_host: 3.0, change_type: 2.0, replace_program: 1.0, reload: 1.5,
    leave_host: 1.0, kill_daemon: 0.7, stop_daemon: 0.5, drain_daemon: 2.0, step_down: 1.0, cut_queue: 2.0,
    cut_watch: 1.0, usurp: 1.0, cut_link: 3.0,
}  # fmt: skip
