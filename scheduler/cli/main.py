"""The command `drover`: find the command's function, load the configuration, turn errors into exit statuses.

Each command is a function of a module in this package, named in the table of command_table.py: it gets (options,
config) and returns the exit status. Its module is imported only when it is needed.
"""

import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from scheduler.cli.command_table import COMMANDS
from scheduler.cli.parser import old_configuration_hint, parse
from scheduler.errors import ConfigError, DroverError, WorldError

if TYPE_CHECKING:
    from scheduler.cli.config_files import Check
    from scheduler.model.config import Config

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130
STARTERS = frozenset(("agent-check", "check", "demo", "doctor", "map", "run"))  # commands that start processes
ALONE = {
    "database": "drover {}: needs only the database: with -d URL, or DROVER_DATABASE_URL, it reads no file",
    "group": "drover {}: needs only database and group: with -d URL and GROUP it reads no file",
}


def command() -> NoReturn:
    """Run the command of this process and end it.

    A command takes as long as its imports: what they make is neither looked through for garbage
    nor taken apart at the end.
    """
    gc.disable()
    status = main()  # which has flushed the output
    if sys.argv[1:2] == ["run"]:  # a daemon may have threads and finalizers
        sys.exit(status)
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 ok, 1 failed, 2 configuration or usage, 3 no database."""
    words = sys.argv[1:] if argv is None else argv
    options = parse(words)
    from scheduler.cli.output import printable, warn  # not before parsing: --help should be fast

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its number
    try:
        status = _run(options) if options.command else _greet(options)
        if sys.stdout is not None:  # closed by who called
            sys.stdout.flush()  # here, where a closed pipe is still noticed
    except ConfigError as error:
        print(*map(printable, str(error).splitlines()), sep="\n", file=sys.stderr)
        return USAGE
    except DroverError as error:
        warn(" ".join(str(error).split()))
        return UNREACHABLE if isinstance(error, WorldError) else FAILED
    except FileNotFoundError as error:
        from scheduler.drivers.os_calls import is_removed

        if error.filename is not None or not is_removed():
            raise
        warn("the directory you are in was removed; go to another")
        return USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _greet(options: Namespace) -> int:
    from scheduler.cli.status import greet  # what it needs is not for --help

    _use_database(options)
    return greet(options)


def _run(options: Namespace) -> int:
    """Run the command, or go on as the daemon whose program was executed before us."""
    words = os.environ.pop("DROVER_HANDOVER", "")
    if not words:  # else the program before us has blocked signals until our loop runs
        _receive_signals()
    if options.command != "run" or not (words or "LISTEN_PID" in os.environ):
        return _call(options)
    from scheduler.daemon.exec_handover import Takeover  # no other command needs them
    from scheduler.daemon.fd_store_recovery import Inheritance
    from scheduler.drivers.os_calls import hide

    hide()  # first: agents live that could look
    if words:
        takeover = Takeover(words, os.environ)
        return takeover.guard(lambda: _call(options, takeover=takeover))
    inheritance = Inheritance(os.environ)  # what the one before us has left to the service manager
    return _call(options, inheritance=inheritance, takeover=inheritance.takeover)


def _receive_signals() -> None:
    """Block no signal, and learn how children end: who starts us may have blocked all, or ignore SIGCHLD."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _call(options: Namespace, **inherited: object) -> int:
    """Call the function of the command; that of `run` gets what a daemon goes on with, too."""
    _use_database(options)
    if options.command in STARTERS and not getattr(options, "jobs", None):
        from scheduler.drivers.system_files import require_system_files  # as above

        require_system_files(f"drover {options.command}")
    module, _, name = COMMANDS[options.command].function.partition(".")
    function, config = getattr(import_module(f"scheduler.cli.{module}"), name), _configuration(options)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    status: int = function(options, config, **inherited)
    return status


def _use_database(options: Namespace) -> None:
    """Put the database of -d in place of that of the environment. Errors: ConfigError, it has a password."""
    if options.database is not None:
        from scheduler.cli.config_files import without_password  # not for --help, as below

        os.environ["DROVER_DATABASE_URL"] = without_password(options.database)


def _configuration(options: Namespace) -> "Config":
    """Return the configuration that the command needs; no file is read if -d or the environment names all of that."""
    from scheduler.model.config import Config, Database  # not for --help: this import takes as long as all others

    needs = COMMANDS[options.command].needs
    if needs == "nothing" or (needs == "types" and "/" in _first_word(options)):
        return Config()
    from scheduler.cli.config_files import load

    is_enough = needs == "database" or getattr(options, "group", None) or getattr(options, "jobs", None)
    if is_enough and (url := os.environ.get("DROVER_DATABASE_URL")):
        return Config(database=Database(url=url))
    try:
        return load(options.config, os.environ, checks=_checks(options.command))
    except ConfigError as error:
        hints = (ALONE.get(needs, "").format(options.command), old_configuration_hint(options.config))
        raise ConfigError("\n".join(filter(None, (str(error), *hints)))) from error


def _checks(command: str) -> "Sequence[Check]":
    """Return the further checks of the configuration: only a daemon can change to the users of agents."""
    if command != "run":
        return ()
    from scheduler.drivers.process_spec import user_mistakes

    return (user_mistakes,)


def _first_word(options: Namespace) -> str:
    """Return what names an agent type or, with a slash, a program that needs no configuration."""
    return str(next(iter([*([options.type] if "type" in options else []), *options.args]), ""))


if __name__ == "__main__":
    command()
