"""The daemon as the simulator has it: one life of a Core between fake drivers, with every fault a driver can show.

It does what daemon/wiring.py does: carries out commands, ferries one request at a time, and after a lost connection
compares rows with memory before anything else is asked. Its lease and periodic tasks are watch.py's. It decides nothing
about jobs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import Config
from scheduler.model.states import DIE, ST_RUNNING, ST_SPAWNED, ProgramState
from scheduler.policy.core import Core
from scheduler.policy.slots import Slot
from tests.sim import end_invariants, invariants, mishaps, start_invariants, voices
from tests.sim.agents import Process, read_item
from tests.sim.broken import Broken
from tests.sim.configs import has_canaries
from tests.sim.keepers import Attached
from tests.sim.queries import Cursor
from tests.sim.rows import Row
from tests.sim.shown import Shown
from tests.sim.watch import Watch, filtered

if TYPE_CHECKING:
    from tests.sim.world import Sim

HOLD_S = 5.0  # for what is under way to end before another program takes over
HOLD_LOOK_S = 0.05


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way."""

    request: r.Request
    fate: str
    owner: str
    is_done: bool = False
    limits: dict[str, int | None] = field(default_factory=dict)  # of queues, as it was asked


class Missing(NamedTuple):
    """Connections of a kind that cannot be made: why, until when, and how many there are meanwhile."""

    reason: str
    until: float
    up: int


class Daemon:
    """One supervisor, from start to exit or to its violent end."""

    def __init__(self, sim: "Sim", config: Config) -> None:
        self.sim, self.config, self.file = sim, config, config
        self.core = Core(config, sim.now)
        if sim.seed % 2 == 0:
            self.core.state.max_starts = 1 + sim.seed % 3  # so few that it matters
        self.owner = sim.new_owner()
        self.is_alive = True
        self.has_exited = False
        self.processes: dict[int, Process | Attached] = {}
        self.links: dict[str, bool] = {}  # hosts that have to be reached, and whether they are
        self.up_since: dict[str, float] = {}  # hosts that were reached, since when
        self.refused: set[int] = set()  # slots that were to start on one that is down, since one came up
        self._reach()
        self.cursors: dict[int, Cursor] = {}
        self.is_queue_up = True
        self.flight: Flight | None = None
        self.watch = Watch(self)
        if sim.features:
            self.core.report_ends(sim.chance(0.5))
            self.core.log_routine(sim.chance(0.5))
        self.written = end_invariants.Written()
        self.shown = Shown()
        self.missing: dict[str, Missing] = {}  # connections that cannot be made, by what needs them
        self._find_programs()
        self._acts: dict[type, Callable[[Any], None]] = {
            e.Spawn: self._spawn, e.Send: self._send, e.Kill: self._kill, e.ForceKill: self._force_kill,
            e.Expand: self._expand, e.Fetch: self._fetch, e.Keep: self._keep, e.CloseQuery: self._close,
            e.FindNextDue: lambda c: self.watch.look_due(), e.Exit: lambda c: self._exit(), e.LogMessage: self._say,
            e.ReleaseGroup: lambda c: self._give_up(), e.RenewLease: lambda c: self.watch.lease.renew(self.sim.now),
            e.LetGo: self._let_go, e.FindDetached: lambda c: self.watch.find_detached_in(c.seconds),
            e.Signal: self._signal, e.RunStatement: self._run_statement, e.Echo: lambda c: None,
            e.JobEnded: lambda c: None,
        }  # fmt: skip

    # ---- a turn

    def tell(self, event: e.Event) -> None:
        """Hand an event to the core."""
        self.sim.note(event)
        self.sim.reached(event)
        self.core.handle(event, self.sim.now)

    def later(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Call after a while, unless this daemon is dead by then."""
        self.sim.at(delay, self._if_alive, call, args)

    def _if_alive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.is_alive:
            call(*args)

    def next_deadline(self) -> float:
        """Return the instant of the next tick of ours."""
        return min(self.core.next_deadline(), self.watch.next_deadline())

    def tick(self) -> None:
        """Do what is due now."""
        now = self.sim.now
        if self.core.next_deadline() <= now:
            self.sim.note("tick")
            self.core.tick(now)
        if self.watch.is_up:
            self.watch.step(now)

    def pump(self) -> None:
        """Ask the queue for the next thing, carry out the commands, ask again: as the daemon does."""
        self._request()
        while self.core.has_work and self.is_alive:
            for effect in self.core.take_effects(self.sim.now):
                self.sim.reached(effect)
                self._acts[type(effect)](effect)
        self._request()
        if self.is_alive and not self.core.has_work and self.core.end_if_over() and self.core.has_work:
            self.pump()

    def _request(self) -> None:
        if self.is_alive and self.is_queue_up:
            request = self.core.next_request(self.sim.now)
            if request is not None:
                self._fly(request)

    def may_have_lost(self, row: Row) -> bool:
        """Return whether the news of this row is still on its way: a claim's answer, or a comparison to come."""
        if not self.is_queue_up:
            return True
        flight = self.flight
        return flight is not None and isinstance(flight.request, r.EndAndClaim) and flight.is_done

    def _say(self, say: e.LogMessage) -> None:
        if "impossible" in say.text:
            raise Broken("nothing_impossible_happens", say.text)
        self.sim.note(say.text)
        if "program" in say.text:
            start_invariants.worse_programs_are_not_followed(self.sim, say.text)

    def _exit(self) -> None:
        self.sim.note("Exit")
        self._assert_nothing_left()
        if self.sim.features:
            self.watch.leave()
        self.sim.database.leave(self.owner)
        self.has_exited = True
        self.is_alive = False

    def _give_up(self) -> None:
        self.sim.note("GiveUp")
        self._assert_nothing_left()
        self.watch.lease.step_down(self.sim.now)

    def _assert_nothing_left(self) -> None:
        if any(process.alive for process in self.processes.values()):
            raise Broken("exit_leaves_nothing", "a process lives at the exit")
        database = self.sim.database
        mine = [
            row.pk for row in database.hand.values() if row.holder == self.owner and not database.runs_detached(row)
        ]
        if mine and self.is_queue_up and self._is_owner():
            raise Broken("exit_leaves_nothing", f"rows {mine} are still ours at the exit")

    def _is_owner(self) -> bool:
        return self.sim.database.group_owner == self.owner

    def die(self) -> None:
        """Kill -9: the children die with it."""
        self.is_alive = False
        for process in self.processes.values():
            process.alive = process.heard = False
            if process.item is not None:
                self.sim.disrupt(process.item[0])

    # ---- another program in its place

    def reexec(self) -> None:
        """Another program is to take over: begin nothing new, until it can or it takes too long."""
        state = self.core.state
        if self.watch.is_serving and not (state.draining or state.stopping or state.is_held):
            self.sim.note("held")
            self.core.hold(self.sim.now)
            if self.sim.features and self.sim.chance(0.3):  # the next program is no parent of our children
                self.core.unfinished_query()
                self.core.idle_slots()
                self.core.give_back_unmovable(self.sim.now)
            self.later(HOLD_LOOK_S, self._take_over_if_quiet, self.sim.now + HOLD_S)

    def _take_over_if_quiet(self, until: float) -> None:
        core, now = self.core, self.sim.now
        is_over = core.state.draining or core.state.stopping or not self.watch.is_serving
        core.hold(now)
        core.save_output(now)
        if is_over or now >= until:
            self.sim.note("not taken over")
            core.release()
        elif core.obstacle() or core.has_work or not core.state.outbox.is_empty or not self.is_queue_up:
            self.later(HOLD_LOOK_S, self._take_over_if_quiet, until)
        else:
            self._take_over()

    def _take_over(self) -> None:
        """Replace the core by one that was made of its document, which knows nothing else."""
        now, before = self.sim.now, self.core
        given = json.loads(json.dumps(before.document(now)))
        self.core = Core.restored(given, self.file, now)
        self.core.state.max_starts = before.state.max_starts
        invariants.handovers_are_whole(given, json.loads(json.dumps(self.core.document(now))))
        self.sim.note("taken over")
        self.shown = Shown()
        for kind, missing in self.missing.items():
            self.tell(e.ConnectionsChanged(kind, "runner", missing.reason, missing.until - now, missing.up))  # type: ignore[arg-type]
        self.sim.takeovers += 1
        self.cursors.clear()
        self._reconnected()
        self.watch.take_over()

    def reload(self, config: Config) -> None:
        """Go on with another configuration; everything commanded so far was done by the old one."""
        same = {name: config.hosts[name].filters.items() & host.filters.items()
                for name, host in self.file.hosts.items() if name in config.hosts}  # fmt: skip
        kept = {name: {key: self.config.hosts[name].filters[key] for key, _ in keys} for name, keys in same.items()}
        self.config, self.file = filtered(config, kept), config
        self.tell(e.Reloaded(config))
        self._find_programs()
        self._reach()
        self.later(self.sim.watch_delay(), self.watch.look_around)

    # ---- children

    def _spawn(self, spawn: e.Spawn) -> None:
        if spawn.slot in self.processes:
            raise Broken("one_process_a_slot", f"slot {spawn.slot} has one already")
        slot = self.core.state.slots.all[spawn.slot]
        kind = self.config.agents[spawn.type]
        start_invariants.respawns_are_limited(self.sim, slot)
        start_invariants.new_programs_have_one_slot(self.sim, spawn)
        if (failed := mishaps.failed_start(self, spawn)) is not None:
            self._sometimes_later(self._tried_again, slot, lambda: self.tell(failed))
            return
        if self.sim.chance(self.sim.nature_of(spawn.type).stillborn):  # nothing begins: the item may go elsewhere
            told = e.NotCreated(spawn.slot, "no such program", code=127)
            self._sometimes_later(self._tried_again, slot, lambda: self.tell(told))
            return
        if slot.job is not None and (spawn.keeper is None or spawn.keeper.verb == "start"):
            self.sim.began(slot, slot.item.line)
        if self.links.get(spawn.host) is False:
            self._refuse(spawn)
            return
        process: Process | Attached = (
            Process(self, spawn, kind, self.sim.new_pid())
            if spawn.keeper is None
            else Attached(self, spawn, kind.command, self.sim.new_pid())
        )
        self.processes[spawn.slot] = process
        self._sometimes_later(self._created, process)

    def _sometimes_later(self, call: Callable[..., None], *args: object) -> None:
        if self.sim.chance(0.3):
            self.later(self.sim.rng.random() * (70 if self.sim.chance(0.02) else 1), call, *args)
        else:
            call(*args)

    def _created(self, process: Process | Attached) -> None:
        if self.processes.get(process.slot) is not process:
            return  # it was lost on its way
        process.is_born = True
        slot = self.core.state.slots.all[process.slot]
        if slot.wanted is DIE and slot.job is not None:
            self.sim.disrupt(slot.job.pk)  # an exec agent that is killed as it begins may be fast
        self.tell(e.Created(process.slot, process.pid))
        process.begin()

    def _send(self, send: e.Send) -> None:
        process = self.processes.get(send.slot)
        slot = self.core.state.slots.all[send.slot]
        if process is not None and process.heard and send.data != voices.ANSWER:
            self._give(process, slot, send.data)

    def _give(self, process: Process | Attached, slot: Any, data: bytes) -> None:
        if slot.job is not None:
            for line in [data] if slot.pool.is_exec else data.splitlines(keepends=True):
                self.sim.began(slot, line)
            start_invariants.old_programs_get_nothing(self.sim, process, slot)
            start_invariants.lines_ahead_are_of_fast_agents(self.sim, process, slot, data.count(b"\n"))
        if not mishaps.is_clogged(self, process, data):
            process.receive(data)

    def _run_statement(self, run: e.RunStatement) -> None:
        self.later(self.sim.query_delay(), self.tell, e.StatementAnswered(run.slot, run.serial, voices.ANSWER))

    def _kill(self, kill: e.Kill) -> None:
        if (process := self.processes.get(kill.slot)) is not None and process.is_born:
            process.hang_up()
            mishaps.refuse_kill(self, kill.slot)

    def _force_kill(self, force: e.ForceKill) -> None:
        if (process := self.processes.get(force.slot)) is not None and process.is_born:
            process.kill()

    def _signal(self, order: e.Signal) -> None:
        process = self.processes.get(order.slot)
        if process is not None and process.is_born and self.sim.chance(0.7):  # the others ignore it
            process.die(None, "SIGTERM")

    def _let_go(self, order: e.LetGo) -> None:
        if isinstance(process := self.processes.get(order.slot), Attached):
            self.later(0.01 * self.sim.rng.random(), process.let_go)

    def lied(self, process: Process) -> None:
        """An agent is about to say OK to what it has not done."""
        slot = self.core.state.slots.all[process.slot]
        for job in (slot.job, *(job for job, _, _ in slot.prefetched or ())):
            if job is not None:
                self.sim.database.rows[job.pk].was_lied_about = True

    def heard(self, process: Process, text: bytes, done: tuple[int, int] | None) -> None:
        """An agent has printed something; `done` is the item it says OK to."""
        slot = self.core.state.slots.all[process.slot]
        self.sim.note(("hear", process.slot, text))
        if done is not None and process.has_failed and slot.wanted is not DIE and not slot.is_second_try:
            self.sim.memory.failures[slot.pool.name, slot.program] += 1
        answer = self._tried_again(slot, lambda: self.core.agent_output(process.slot, text, self.sim.now))
        if done is not None and slot.wanted is DIE:
            self.sim.disrupt(done[0])  # it was done, and nobody believes it
        if answer is not None:
            self._give(process, slot, answer)

    def heard_error(self, process: Process, text: bytes) -> None:
        """An agent has printed something on stderr."""
        if self.processes.get(process.slot) is process:
            self.core.agent_stderr(process.slot, text, self.sim.now)

    def captured(self, process: Process, stream: str, data: bytes) -> None:
        """An exec agent has printed something."""
        if process.heard:
            self.core.exec_output(process.slot, stream, data, self.sim.now)

    def captured_line(self, process: Attached, line: bytes) -> None:
        """A process has said which keeper it is attached to."""
        if self.processes.get(process.slot) is process:
            self.core.exec_output(process.slot, "out", line, self.sim.now)

    def detached(self, process: Attached, end: e.Gone) -> None:
        """A process that was attached to a detached job is gone."""
        self.later(0.005 * self.sim.rng.random(), self._detached, process, end)

    def _detached(self, process: Attached, end: e.Gone) -> None:
        if self.processes.get(process.slot) is process:
            del self.processes[process.slot]
            self.tell(end)

    def ended(self, process: Process, code: int | None, signal: str | None) -> None:
        """A process is dead; it is gone when its output is read."""
        self.later(0.005 * self.sim.rng.random(), self._gone, process, code, signal)

    def _gone(self, process: Process, code: int | None, signal: str | None) -> None:
        if self.processes.get(process.slot) is not process:
            return  # it was told lost
        process.heard = False
        del self.processes[process.slot]
        self.sim.not_tried(self.core.state.slots.all[process.slot])
        slot, stillborn = self.core.state.slots.all[process.slot], self.sim.memory.stillborn
        if slot.wanted is DIE:
            stillborn.pop(slot.number, None)
            if slot.job is not None:
                self.sim.disrupt(slot.job.pk)
        elif slot.state == ST_SPAWNED:
            stillborn.setdefault(slot.number, []).append(slot.born)
        end = mishaps.end_of(self, slot, code, signal)
        is_interrupted = end.code is None and end.signal is None and slot.pool.is_exec and slot.state == ST_RUNNING
        if slot.job is not None and is_interrupted:
            self._lose_item(slot.number)
        self._tried_again(slot, lambda: self.tell(end))

    def _tried_again(self, slot: Slot, tell: Callable[[], Any]) -> Any:
        """Tell the core something of a slot: an item that is not lost to a new program has a try that is none."""
        before, job, item = (slot.serial, slot.item), slot.job, slot.item
        is_new = slot.pool.canary is not None and slot.record is slot.pool.canary.new and not slot.is_unsent
        answer = tell()
        is_held_back = slot.pool.canary is not None and slot.pool.canary.state is ProgramState.HELD_BACK
        if not (is_new and is_held_back) or item is None or before == (slot.serial, slot.item):
            return answer
        if job.query is not None and item in job.query.second_tries and (found := read_item(item.line)) is not None:
            self.sim.losses[job.pk, job.attempt, found[1]] += 1
        return answer

    # ---- program files

    def _find_programs(self) -> None:
        for name in self.config.agents:
            self.find_program(name)

    def find_program(self, name: str) -> None:
        """Look at the file of a type, whose new programs are tried."""
        number = self.sim.files[name]
        if self.config.agents[name].canary:
            self.tell(e.ProgramFound(name, str(number), tuple(map(str, range(number + 1)))))

    def write_trials(self) -> None:
        """Write down what is known of new programs."""
        for row in self.core.report.agent_rows(self.sim.now) if has_canaries(self.sim.seed) else ():
            for written in self.sim.types:
                if written["type"] == row["type"] and row["knows"]:
                    written["trial"] = row["trial"]

    # ---- hosts that have to be reached

    def _reach(self) -> None:
        """Go where the configuration says, and nowhere else."""
        far = {name for name, host in self.config.hosts.items() if host.is_remote}
        self.links = {name: is_up for name, is_up in self.links.items() if name in far}
        for name in sorted(far - self.links.keys()):
            self.links[name] = False
            self.later(self.sim.rng.random(), self._link_up, name)

    def _link_up(self, name: str) -> None:
        if self.links.get(name) is False:
            self.links[name] = True
            self.up_since[name] = self.sim.now
            self.refused.clear()
            self.tell(e.HostUp(name))

    def _refuse(self, spawn: e.Spawn) -> None:
        """A start that was on its way when its host was lost comes too late, once."""
        if spawn.slot in self.refused:
            raise Broken("lost_hosts_are_left_alone", f"slot {spawn.slot} starts again and again on {spawn.host}")
        self.refused.add(spawn.slot)
        if spawn.keeper is None:
            self._lose_item(spawn.slot)
        self.later(0.1 * self.sim.rng.random(), self.tell, e.NotCreated(spawn.slot, "cut", lost=True))

    def move_host(self, name: str) -> None:
        """The name of a host leads elsewhere; it is reached there a while later."""
        self.links[name] = False
        self.tell(e.HostMoved(name, "elsewhere"))
        self.later(5 * self.sim.rng.random(), self._link_up, name)

    def cut_link(self, name: str) -> None:
        """The way to a host is lost, with what runs there; it is back a while later."""
        for process in [process for process in self.processes.values() if process.host == name]:
            self._lose(process)
        self.links[name] = False
        seconds = 20 * self.sim.rng.random()
        self.tell(e.HostDown(name, "cut", seconds))
        self.later(seconds, self._link_up, name)

    def _lose(self, process: Process | Attached) -> None:
        if isinstance(process, Process):
            self._lose_item(process.slot)
        self.sim.not_tried(self.core.state.slots.all[process.slot])
        process.vanish()
        if isinstance(process, Attached) and not process.is_born:
            process.begin()  # it may come to the host all the same
        del self.processes[process.slot]
        if process.is_born:
            self.tell(e.Gone(process.slot, lost=True))
        else:
            self.tell(e.NotCreated(process.slot, "cut", lost=True))

    def _lose_item(self, number: int) -> None:
        slot = self.core.state.slots.all[number]
        if slot.is_unsent:
            return  # it is no try
        if slot.job is not None and slot.item is not None and (lost := read_item(slot.item.line)) is not None:
            self.sim.disrupt(slot.job.pk)
            self.sim.losses[slot.job.pk, slot.job.attempt, lost[1]] += 1

    # ---- connections that cannot be made

    def lack_connections(self, kind: e.ConnectionKind, up: int, seconds: float) -> None:
        """Some connections, or all of a kind, cannot be made for a while."""
        missing = self.missing[kind] = Missing("too many clients", self.sim.now + seconds, up)
        self.tell(e.ConnectionsChanged(kind, "runner", missing.reason, seconds, up))
        self.later(seconds, self._have_connections, kind, missing)

    def _have_connections(self, kind: e.ConnectionKind, missing: "Missing") -> None:
        if self.missing.get(kind) is missing:
            del self.missing[kind]
            self.tell(e.ConnectionsChanged(kind, "runner", None))

    # ---- queries

    def _expand(self, expand: e.Expand) -> None:
        row = self.sim.database.rows[expand.job]
        self.cursors[expand.job] = cursor = Cursor(self.sim, row, expand.query)
        self.later(cursor.delay(), self._opened, cursor)

    def _fetch(self, fetch: e.Fetch) -> None:
        cursor = self.cursors[fetch.job]
        self.later(cursor.delay(), self._fetched, cursor, fetch.count)

    def _keep(self, keep: e.Keep) -> None:
        cursor = self.cursors[keep.job]
        self.later(cursor.delay(), self._kept, cursor, keep.count)

    def _kept(self, cursor: Cursor, count: int) -> None:
        if self.cursors.get(cursor.job) is cursor:
            self.tell(cursor.kept(count))

    def _opened(self, cursor: Cursor) -> None:
        if self.cursors.get(cursor.job) is cursor:
            self.tell(cursor.opened())

    def _fetched(self, cursor: Cursor, count: int) -> None:
        if self.cursors.get(cursor.job) is cursor:
            self.tell(cursor.fetched(count))

    def _close(self, close: e.CloseQuery) -> None:
        if self.cursors.pop(close.job, None) is None:
            raise Broken("cursors_match_expanding", f"no cursor of job {close.job} to close")

    # ---- the queue connection

    def _fly(self, request: r.Request) -> None:
        sim = self.sim
        self.flight = flight = Flight(request, sim.fate_of(request), self.owner)
        sim.note(request)
        if isinstance(request, r.EndAndClaim):
            invariants.claims_leave_what_is_reserved(self.core.state, request)
            flight.limits = {queue.name: queue.concurrency for queue in self.core.state.queues.values()}
        effect = sim.database_delay()
        if flight.fate in ("done", "lost after"):
            self.later(effect, self._take_effect, flight)
        else:
            self.later(effect, self._fails, flight)

    def _take_effect(self, flight: Flight) -> None:
        if self.flight is not flight:
            return
        verdict = self.sim.refusal_of(flight.request)
        if verdict is not None:
            self._answer(flight, e.NotSaved(verdict, f"simulated {verdict}"))
            return
        answer = self._carry_out(flight)
        flight.is_done = True
        if flight.fate == "lost after":
            self.later(self.sim.database_delay(), self.lose_connection)
        else:
            self.later(self.sim.database_delay(), self._answer, flight, answer)

    def _carry_out(self, flight: Flight) -> e.Event:
        database, now, owner = self.sim.database, self.sim.now, flight.owner
        match flight.request:
            case r.EndAndClaim() as turn:
                self.written.end((end.pk, end.attempt) for end in turn.ends)
                return database.turn(owner, turn, now)
            case r.Save() as save:
                end_invariants.failures_were_tried_twice(self.sim, save)
                self.written.end((row.pk, row.attempt) for row in save.rows if row.outcome is not None)
                return e.Saved(*database.save(owner, save, now, lambda: 0.5 + self.sim.rng.random() / 2))
            case r.Mark() as mark:
                return e.Saved(database.mark(owner, mark, now))
            case r.ReadContents(rows):
                return e.ContentsRead(database.read(owner, rows))
            case r.FindLocked(about):
                return e.LockedFound(database.locked_of(about.pks, now))
            case r.Settle() as settle:
                return database.settle_some(settle, now)
            case r.RecordInHand(pks):
                database.take_stock(owner, pks, now)
                return e.Written()
            case r.WriteOutput(rows):
                self.written.write(rows)
                return e.Written()
            case r.WriteLog():
                return e.Written()
            case _:
                assert_never(flight.request)

    def _answer(self, flight: Flight, event: e.Event) -> None:
        if self.flight is flight:
            self.flight = None
            self.sim.memory.limits |= flight.limits
            if isinstance(event, e.EndedAndClaimed) and event.claims:  # as daemon/connections.py does
                self.tell(replace(event, claims=()))
                self._request()
                event = e.Claimed(event.claims)
            self.tell(event)

    def _fails(self, flight: Flight) -> None:
        if flight.fate == "lost before":
            self.lose_connection()
        else:
            self._answer(flight, e.NotSaved("lock", "simulated lock"))

    def lose_connection(self) -> None:
        """The queue connection is gone, with whatever was on it."""
        if not self.is_queue_up:
            return
        self.is_queue_up = False
        self.sim.note("queue connection lost")
        if self.flight is not None:
            self._answer(self.flight, e.NotSaved("again", "simulated loss"))
        self.later(5 * self.sim.rng.random(), self._reconnected)

    def _reconnected(self) -> None:
        """The old backend is gone; rows of ours that are not in memory are given back before anything is asked."""
        live = self.core.live_rows()
        self.sim.note(("compared", live))
        strayed = [each for each in self.core.in_hand() if self.sim.database.owned(self.owner, *each) is None]
        if strayed and self.sim.features:
            self.tell(e.RowsLost(tuple(strayed)))
            live = self.core.live_rows()
        before = {row.pk for row in self.sim.database.hand.values() if row.holder == self.owner}
        _, parents = self.sim.database.rescue(self.owner, live, 0.0, self.sim.now)
        invariants.begun_work_is_never_forgotten(self.sim, before - set(self.sim.database.hand))
        self.core.settle(parents)
        self.is_queue_up = True
        self.tell(e.Woken())
