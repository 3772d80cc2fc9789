"""What an operator orders of a daemon as a whole while it runs: signals, and commands about schedulers."""

import logging
from collections.abc import Callable
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from typing import Protocol

from scheduler.daemon import log
from scheduler.daemon.commands import Act, Tell
from scheduler.daemon.log import LOG, echo, say
from scheduler.daemon.watch import Watch
from scheduler.drivers.loop import Loop
from scheduler.drivers.service_manager import Notifier
from scheduler.errors import ConfigError
from scheduler.model import events as e
from scheduler.model.config import Config
from scheduler.policy.core import Core
from scheduler.policy.reload import changes, within_reach


class Commanded(Protocol):
    """What the orders are about."""

    config: Config
    loop: Loop
    core: Core
    watch: Watch
    notifier: Notifier

    def stop(self) -> None:
        """End at once; what is in hand is given back."""

    def drain(self) -> None:
        """End when what is in hand is done."""

    def step_down(self) -> bool:
        """Let another daemon have the group; False when this one ends anyway."""

    def take(self, config: Config) -> None:
        """Go on with another configuration."""

    def note(self) -> None:
        """Our standing may be another."""


class DaemonCommands:
    """Carries out the orders about one daemon."""

    def __init__(self, daemon: Commanded, read: Callable[[], Config]) -> None:
        self._daemon = daemon
        self._read = read  # the files anew. Errors: ConfigError

    def signalled(self, number: int) -> None:
        """Obey a signal."""
        core = self._daemon.core
        if number == SIGINT:
            self._daemon.drain()
        elif number in (SIGTERM, SIGQUIT):
            self._daemon.stop()
        elif number in (SIGHUP, SIGUSR1):
            _print(core.report.summary())
        elif number == SIGUSR2:
            _print(core.report.queries())

    def acts(self) -> dict[str, Act]:
        """Say what is done for which command."""
        return {
            "shutdown": lambda order, _: self._daemon.stop() if order.values["now"] else self._daemon.drain(),
            "reload": lambda _, tell: self.reload(tell),
            "reopen-log": lambda _, tell: self._reopen_log(tell),
            "verbose": lambda order, tell: tell(self._be_verbose(int(order.values["level"] or 0)), True),
            "reset": lambda _, tell: tell(self._reset(), True),
            "poll": lambda _, tell: tell(self._poll(), True),
            "step-down": lambda _, tell: tell("it ends anyway", self._daemon.step_down()),
        }

    def reload(self, tell: Tell) -> None:
        """Read the configuration anew and go on with it; tells what has changed, or all mistakes: then nothing has.

        Whose hosts and queues they are only the database knows; if that cannot be asked nothing is told.
        """
        try:
            wanted = self._read()
        except ConfigError as error:
            tell(str(error), False)
            return
        config = within_reach(self._daemon.config, wanted)

        def announced(clashes: list[str]) -> None:
            if clashes:
                tell("\n".join(clashes), False)
                return
            text = changes(self._daemon.config, wanted)
            self._daemon.notifier.reloading()
            self._daemon.take(config)
            self._daemon.note()
            say("info", f"reload: {text}")
            tell(text, True)

        self._daemon.watch.announce(config, announced)

    def _reopen_log(self, tell: Tell) -> None:
        try:
            tell(log.reopen(), True)
        except ConfigError as error:
            tell(str(error), False)

    def _be_verbose(self, steps: int) -> str:
        level = log.further(self._daemon.config.scheduler.log_level, steps)
        log.set_level(level)
        self._daemon.core.log_routine(LOG.isEnabledFor(logging.DEBUG))
        return f"log level {level}"

    def _reset(self) -> str:
        thawed = self._daemon.core.thaw(None, self._daemon.loop.now)
        self._daemon.watch.maintenance.bring_forward("rescan")
        return f"{thawed} failed slots are tried again"

    def _poll(self) -> str:
        self._daemon.core.handle(e.Woken(), self._daemon.loop.now)
        self._daemon.watch.maintenance.bring_forward("rescan")
        return "looked at the queue"


def _print(lines: list[str]) -> None:
    for line in lines:
        echo(line)
