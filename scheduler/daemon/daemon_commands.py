"""What an operator asks of a daemon as a whole while it runs: by signals, and by commands about schedulers."""

import logging
from collections.abc import Callable
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from typing import Protocol

from scheduler.daemon import log
from scheduler.daemon.command_context import Action, CommandRow, Context, Done, Outcome
from scheduler.daemon.log import LOG, echo, log_line
from scheduler.daemon.watch import Watch
from scheduler.drivers.loop import Loop
from scheduler.drivers.service_manager import Notifier
from scheduler.drivers.steps import Steps
from scheduler.errors import ConfigError
from scheduler.model import events as e
from scheduler.model.commands import Command
from scheduler.model.config import Config
from scheduler.policy.core import Core
from scheduler.policy.reload import changes, within_reach


class Commanded(Protocol):
    """The daemon, as far as commands are about it."""

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
        """Let another daemon have the group; return False when this one ends anyway."""

    def reload(self, config: Config) -> None:
        """Go on with another configuration."""

    def show_state(self) -> None:
        """Show what the daemon is to its group, which may have changed."""


class DaemonCommands:
    """Carries out what is asked of one daemon."""

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

    def actions(self) -> dict[str, Action]:
        """Return the actions about a daemon, by the names that the registry has for them."""
        actions = (self.shutdown, self.reload, self.reopen_log, self.verbose, self.reset, self.poll, self.step_down)
        return {action.__name__: action for action in actions}

    def shutdown(self, context: Context, row: CommandRow, command: Command) -> Outcome:
        """End now, or when what is in hand is done."""
        if command.values["now"]:
            self._daemon.stop()
        else:
            self._daemon.drain()
        return Done("shutting down")

    def reload(self, context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
        """Read the configuration anew and go on with it; answer with what has changed, or all mistakes.

        Only the database knows which group has a host or a queue; with a mistake nothing changes.
        """
        daemon = self._daemon
        try:
            wanted = self._read()
        except ConfigError as error:
            return Done(str(error), ok=False)
        config = within_reach(daemon.config, wanted)
        if clashes := (yield from daemon.watch.register(config)):
            return Done("\n".join(clashes), ok=False)
        text = changes(daemon.config, wanted)
        daemon.notifier.reloading()
        daemon.reload(config)
        daemon.show_state()
        log_line("info", f"reload: {text}")
        return Done(text)

    def reopen_log(self, context: Context, row: CommandRow, command: Command) -> Outcome:
        """Write to the file of the log that has its name now."""
        try:
            return Done(log.reopen())
        except ConfigError as error:
            return Done(str(error), ok=False)

    def verbose(self, context: Context, row: CommandRow, command: Command) -> Outcome:
        """Log so many levels more than the configuration says."""
        level = log.further(self._daemon.config.scheduler.log_level, int(str(command.values["level"] or 0)))
        log.set_level(level)
        self._daemon.core.log_routine(LOG.isEnabledFor(logging.DEBUG))
        return Done(f"log level {level}")

    def reset(self, context: Context, row: CommandRow, command: Command) -> Outcome:
        """Try failed slots again."""
        thawed = self._daemon.core.thaw(None, self._daemon.loop.now)
        self._daemon.watch.maintenance.bring_forward("rescan")
        return Done(f"{thawed} failed slots are tried again")

    def poll(self, context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
        """Claim jobs now; refuse a queue that does not exist."""
        if queues := command.values["queue"]:
            rows = yield from context.ask("unknown_queues", names=queues)
            if unknown := (rows[0][0] or b"").decode():
                return Done(f"invalid target: {unknown}", ok=False)
        self._daemon.core.handle(e.Woken(), self._daemon.loop.now)
        self._daemon.watch.maintenance.bring_forward("rescan")
        return Done("looked at the queue")

    def step_down(self, context: Context, row: CommandRow, command: Command) -> Outcome:
        """Let another scheduler of the group take over."""
        return Done("it ends anyway", ok=self._daemon.step_down())


def _print(lines: list[str]) -> None:
    for line in lines:
        echo(line)
