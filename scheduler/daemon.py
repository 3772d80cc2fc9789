"""The wiring: events of the drivers go to the core, its commands and requests go to the drivers; one thread, one loop.

Nothing is decided here but the order of a turn: commands are carried out until there are none, the queue connection
gets its next request, the watch connection its next statement, then the loop waits for whatever comes first.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from scheduler.data import agents_dir, schema_dir
from scheduler.drivers.agentdb import AgentDb
from scheduler.drivers.children import Children
from scheduler.drivers.expansions import Expansions
from scheduler.drivers.postgres import Link
from scheduler.drivers.postgres_answers import Answer, Failure, Stat
from scheduler.drivers.queue import Courier
from scheduler.drivers.queue import settings as queue_settings
from scheduler.drivers.signals import Signals
from scheduler.drivers.sql import load
from scheduler.drivers.system import identity
from scheduler.loop import Loop
from scheduler.model import events as e
from scheduler.model.config import Config
from scheduler.policy import status
from scheduler.policy.core import Core
from scheduler.typed import Typed
from scheduler.watch import Watch
from scheduler.watch import settings as watch_settings

LOG: Final = logging.getLogger("drover")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LAST_WORDS_S: Final = 5.0  # for the last statements of an orderly end

# The queue connection's statements touch few rows of tables that may be huge, and their plans are kept: one made while
# a table was empty, or full of dead rows, must hold when it is full of others. So rows are found by index, one by one.
PLANS: Final = (
    "set jit = off",
    *(f"set enable_{way} = off" for way in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")),
)


class Daemon:
    """One supervisor process."""

    def __init__(self, config: Config, conninfo: str, *, typed: bool = False) -> None:
        self.config = config
        self.loop = Loop()
        self.core = Core(config, self.loop.now)
        self._identity = identity()
        self._queries = load((schema_dir() / "queries.sql").read_text())
        self._over = False
        self._is_queue_ready = False
        timers = config.scheduler
        self.watch = Watch(
            config, self.core, self._queries, self._identity, _say, self._become, lambda: self.loop.now, self._stats
        )
        self.children = Children(
            self.loop, config, agent_folders(), self.core.hear, self.core.hear_err, self.core.captured, self._tell
        )
        queue_plans = (*queue_settings(timers.lock_limit), *PLANS)
        self.queue_link = self._link("queue", conninfo, self._queue_up, self._queue_down, queue_plans)
        self.watch_link = self._link("watch", conninfo, self._watch_up, self._watch_down, watch_settings(timers))
        self.watch.attach(self.watch_link, self.loop.now)
        self.courier = self._courier()
        database = config.database
        self.expansions = Expansions(
            self.loop,
            database.msq_url or make_conninfo(conninfo, user="drover_msq"),
            timers.expansions,
            timers,
            self._tell,
        )
        self.agentdb = AgentDb(
            self.loop, database.agentdb_url or make_conninfo(conninfo, user="drover_agentdb"),
            timers.agentdb_connections, config.agents, timers.statement_limit, self._tell,
            with_queue=not database.agentdb_url,
        )  # fmt: skip
        types = [name for name, agent in config.agents.items() if agent.enabled]
        self.typed = Typed(self.loop, self.watch_link, self._queries["submit"], types) if typed else None
        self.core.world.tells_ends = typed
        self.core.world.fleet.tells_routine = LOG.isEnabledFor(logging.DEBUG)
        self._acts: dict[type, Callable[[Any], None]] = {
            e.Spawn: self.children.spawn,
            e.Send: self.children.send,
            e.Kill: self.children.kill,
            e.ForceKill: self.children.force_kill,
            e.Expand: lambda c: self.expansions.expand(c.job, c.query),
            e.Fetch: lambda c: self.expansions.fetch(c.job, c.count),
            e.CloseQuery: lambda c: self.expansions.close(c.job),
            e.Ask: self.agentdb.ask,
            e.Say: lambda c: _say(c.level, c.text),
            e.Echo: lambda c: _echo(c.text),
            e.Told: self._told,
            e.LookDue: lambda c: self.watch.look_due(self.loop.now),
            e.Exit: lambda c: self._leave(),
        }

    # ---- a life

    def run(self) -> int:
        """Serve until told to end; give the exit status. Raises ConfigError when another group has our hosts."""
        signals = Signals(self.loop, self._signalled)
        _say("info", self._introduction())
        try:
            self.queue_link.open()
            self.watch_link.open()
            self._check_programs()
            while not self._over:
                self.turn()
        finally:
            signals.close()
            self.close()
        return 1 if self.typed is not None and self.typed.failed else 0

    def _introduction(self) -> str:
        config = self.config
        hosts, agents = " ".join(config.hosts), " ".join(n for n, agent in config.agents.items() if agent.enabled)
        who = f"drover {metadata.version('drover-scheduler')} pid={self._identity.pid}"
        return f"{who} group={config.scheduler.group}: hosts {hosts}; agents {agents}"

    def turn(self) -> None:
        """Carry out what is to be done, then wait for what comes next."""
        loop, core = self.loop, self.core
        self._request()  # first: the database works while we do
        if core.has_work:
            self._carry_out()
            self._request()
        self.watch.step(loop.now)
        if self.typed is not None and self.typed.is_over:
            self.typed = self.typed.end()
            self._drain()
        if core.has_work:
            return
        deadline = core.next_deadline()
        loop.turn(min(deadline, self.watch.next_deadline(loop.now)))
        if loop.now >= deadline:
            core.tick(loop.now)
        elif core.is_over():
            self._carry_out()

    def close(self) -> None:
        """Leave nothing behind: no child, no connection."""
        self.children.close()
        for link in (self.queue_link, self.watch_link):
            link.close()
        self.expansions.shut()
        self.agentdb.shut()

    def _carry_out(self) -> None:
        core = self.core
        while core.has_work:
            for command in core.take():
                try:
                    self._acts[type(command)](command)
                except Exception:  # the one place: a bug in one command must not take the others with it
                    LOG.exception("bug: %s failed; please report this", command)
                    self._quarantine(command)

    def _check_programs(self) -> None:
        """Notice agents whose program was replaced, again and again."""
        self.children.check_programs()
        self.loop.at(self.loop.now + self.config.scheduler.status_interval, self._check_programs)

    def _quarantine(self, command: e.Command) -> None:
        """What the command was about cannot be trusted any more."""
        if isinstance(command, e.Spawn):
            self._tell(e.NotCreated(command.slot, "a bug of the scheduler; see its log"))
        elif isinstance(command, e.Expand | e.Fetch):
            self._tell(e.NotExpanded(command.job, "a bug of the scheduler; see its log"))

    def _request(self) -> None:
        is_answered = self.core.world.ledger.in_flight is None  # a failure may be told after a pause
        if is_answered and self._is_queue_ready and self.queue_link.is_idle:
            request = self.core.next_request(self.loop.now)
            if request is not None:
                self.courier.send(request)

    def _tell(self, event: e.Event) -> None:
        self.core.handle(event, self.loop.now)

    # ---- connections

    def _link(
        self, name: str, conninfo: str, up: Callable[[], None], down: Callable[[str], None], settings: Sequence[str]
    ) -> Link:
        return Link(
            self.loop, name, make_conninfo(conninfo, application_name=f"drover {name}"), settings=settings, on_up=up,
            on_down=down, on_notify=lambda channel: self.watch.notified(channel, self.loop.now),
            reconnect_max=self.config.scheduler.reconnect_max,
        )  # fmt: skip

    def _courier(self) -> Courier:
        schedinfo = f"{self._identity.host}.{self._identity.pid}"
        return Courier(
            self.loop,
            self.queue_link,
            self._queries,
            self.watch.owner,
            self.config.scheduler.group,
            schedinfo,
            self._tell,
        )

    def _become(self, owner: str) -> None:
        """We were disowned: what is done from now on is done under another name."""
        self.courier = self._courier()

    def _queue_up(self) -> None:
        """After a loss the old backend must be gone and our rows compared with memory before anything is asked."""
        old = self.queue_link.old_backend_pid
        _say("info", "queue connection: up" if old is None else "queue connection: up again")
        if old is None:
            self._is_queue_ready = True
            return
        self.queue_link.ask(self._queries["end_backend"], {"pid": old}, lambda _: self._compare_rows())

    def _compare_rows(self) -> None:
        values: dict[str, object] = {
            "group": self.config.scheduler.group, "owner": self.watch.owner, "live": self.core.live_rows(), "age": 0.0,
        }  # fmt: skip

        def compared(answer: Answer) -> None:
            if not isinstance(answer, Failure):
                self._is_queue_ready = True
                self._tell(e.Woken())
            elif not answer.lost:
                _say("error", f"rescue: {answer.message}")
                self.loop.at(self.loop.now + 1.0, self._compare_rows)

        self.queue_link.ask(self._queries["rescue"], values, compared)

    def _queue_down(self, reason: str) -> None:
        self._is_queue_ready = False
        _say("warning", f"queue connection: {reason}")

    def _watch_up(self) -> None:
        self.watch.up(self.loop.now)

    def _watch_down(self, reason: str) -> None:
        self.watch.down()
        _say("warning", f"watch connection: {reason}")

    def _stats(self) -> dict[str, Stat]:
        """Give what was asked of the database, by statement."""
        return self.queue_link.stats | self.watch_link.stats

    # ---- signals and endings

    def _signalled(self, number: int) -> None:
        if number == SIGINT:
            self._drain()
        elif number in (SIGTERM, SIGQUIT):
            self._stop()
        elif number in (SIGHUP, SIGUSR1):
            self._print(status.summary(self.core.world))
        elif number == SIGUSR2:
            self._print(status.queries(self.core.world))

    def _stop(self) -> None:
        """End, in time even if the database takes nothing: the next daemon finds the rows and their owner dead."""
        _say("info", "stopping: agents are killed, their rows given back")
        limit = self.config.scheduler.kill_grace + LAST_WORDS_S
        self.loop.at(self.loop.now + limit, self._end_unsaved)
        self._tell(e.Stop())

    def _end_unsaved(self) -> None:
        _say("error", "the database has not taken all in time: the next scheduler of the group puts the rest right")
        self._end()

    def _drain(self) -> None:
        is_first = not self.core.world.draining
        rest = "nothing new is begun" if is_first else "SQL jobs are given back too"
        _say("info", f"draining: what is in hand is finished, {rest}")
        self._tell(e.Drain())

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            _echo(line)

    def _leave(self) -> None:
        """All is saved and every child is dead: give up the group and end."""
        self.loop.at(self.loop.now + LAST_WORDS_S, self._end)
        self.watch.leave(self._end)

    def _end(self) -> None:
        if not self._over:
            _say("info", "ended")
        self._over = True

    def _told(self, told: e.Told) -> None:
        if self.typed is not None:
            self.typed.told(told)


def set_up_log(level: str, verbose: int) -> None:
    """Log to stderr, one line an event; each -v goes one level further than the configuration."""
    threshold = max(logging.DEBUG, LEVELS[level] - 10 * verbose)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=threshold)


def _say(level: str, text: str) -> None:
    LOG.log(LEVELS[level], "%s", _escaped(text))


def _echo(text: str) -> None:
    with suppress(OSError):  # a full disk or a reader that is gone must not end the daemon
        print(_escaped(text), file=sys.stderr, flush=True)  # noqa: T201


def _escaped(text: str) -> str:
    """Text of agents must not steer the operator's terminal, nor forge a second record."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def agent_folders() -> list[str]:
    """Where bundled agents and the Python that has their libraries are found, whatever PATH says."""
    folders = [str(folder) for folder in sorted(agents_dir().iterdir()) if folder.is_dir()]
    return [*folders, str(Path(sys.executable).parent)]
