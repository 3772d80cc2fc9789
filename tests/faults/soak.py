"""A soak: jobs of every kind, several daemons, and faults that one seed draws, none of which may cost a job.

The seed is printed before anything begins; the same seed draws the same faults in the same order, though not at the
same instants.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Final

import psycopg

from tests.faults.server import Server
from tests.faults.site import Site
from tests.integration.daemon import Daemon

DAEMONS: Final = 3
SERVING: Final = 0.7  # of the daemons that fail, those that serve at that moment
IN_FLIGHT: Final = 300  # jobs in the queue while faults go on
BACKENDS: Final = (
    "select pid from pg_stat_activity where datname = current_database() and application_name like 'drover %%'"
)
OPEN: Final = "select count(*) from drover.jobqueue where jq_endtime is null"


class Soak:
    """One soak on a server of its own."""

    def __init__(self, site: Site, server: Server, seed: int) -> None:
        self.site, self.server, self.chance = site, server, random.Random(seed)
        self.faults: dict[str, int] = {}
        self.agents_killed = 0
        self._alive: list[Daemon] = []
        self._asleep: list[tuple[float, Daemon]] = []

    def run(self, jobs: int, faults: int) -> None:
        """Do so many jobs, at least, and so many faults on the way."""
        weights: list[tuple[Callable[[], Any], int]] = [
            (self.kill_daemon, 6), (self.stop_daemon, 4), (self.cut, 5), (self.kill_agent, 4), (self.crash, 1),
            (self.kill_backend, 1),
        ]  # fmt: skip
        kinds = [each for each, _ in weights]  # each of them at least once
        drawn = kinds + self.chance.choices(kinds, [weight for _, weight in weights], k=faults - len(kinds))
        self.chance.shuffle(drawn)
        submitted, began = 0, time.monotonic()
        for number, fault in enumerate(drawn):
            self._man()
            submitted += self._feed(jobs * (number + 1) // faults - submitted)
            print(f"{time.monotonic() - began:6.1f} s  {submitted:6} jobs  {number + 1:4} {fault.__name__}", flush=True)
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            fault()
            self._wake()
        self._man()
        for _, daemon in self._asleep:
            daemon.signal(SIGCONT)

    # ---- between faults

    def _man(self) -> None:
        """See that there are enough daemons."""
        self._alive = [daemon for daemon in self._alive if daemon.process.poll() is None]
        while len(self._alive) < DAEMONS:
            self._alive.append(self.site.start(metered=False))

    def _feed(self, count: int) -> int:
        """Queue jobs as fast as they are done."""
        fed = 0
        while fed < count:
            plain = min(count - fed, IN_FLIGHT // 3)
            self._insist(lambda: self.site.submit(plain=plain))  # noqa: B023
            fed += plain
            self.site.until(self._has_room, "nothing gets done", 60.0)
        return fed

    def _has_room(self) -> bool:
        self._wake()
        return bool(self._insist(lambda: self.site.value(OPEN)) < IN_FLIGHT)

    def _wake(self) -> None:
        now = time.monotonic()
        for until, daemon in self._asleep:
            if until <= now:
                daemon.signal(SIGCONT)
        self._asleep = [each for each in self._asleep if each[0] > now]

    def _insist(self, ask: Callable[[], Any]) -> Any:
        while True:
            try:
                return ask()
            except psycopg.Error:  # the server was crashed
                self.site.reconnect()

    # ---- faults

    def kill_daemon(self) -> None:
        self._chosen().signal(SIGKILL)

    def stop_daemon(self) -> None:
        daemon = self._chosen()
        daemon.signal(SIGSTOP)
        self._asleep.append((time.monotonic() + self.chance.uniform(0.2, 4.0), daemon))

    def _chosen(self) -> Daemon:
        """The one that serves, more often than not."""
        owner = self._insist(lambda: self.site.owner)
        serving = [daemon for daemon in self._alive if self.site.name(daemon) == owner]
        return self.chance.choice(serving if serving and self.chance.random() < SERVING else self._alive)

    def cut(self) -> None:
        if found := self._insist(lambda: self.site.rows(BACKENDS)):
            pid = self.chance.choice(found)[0]
            self._insist(lambda: self.site.value("select pg_terminate_backend(%s)", pid))

    def kill_agent(self) -> None:
        pids = [pid for daemon in self._alive for pid in daemon.agent_pids()]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(pids), SIGKILL)
                self.agents_killed += 1

    def crash(self) -> None:
        self.server.stop("immediate")
        self.server.start()
        self.site.reconnect()

    def kill_backend(self) -> None:
        if found := self._insist(lambda: self.site.rows(BACKENDS)):
            with suppress(ProcessLookupError):
                self.server.kill(self.chance.choice(found)[0])
            self._insist(lambda: self.site.rows("select"))
