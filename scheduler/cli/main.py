"""The command `drover`: find the command's function, load the configuration, turn errors into exit statuses.

Each command is a function of a module in this package, named in the table of options.py: it gets (options, config) and
returns the exit status. Its module is imported only when it is needed.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

from scheduler.cli.options import COMMANDS, parse
from scheduler.errors import ConfigError, DroverError, WorldError

if TYPE_CHECKING:
    from scheduler.model.config import Config

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130
ALONE = {
    "database": "drover {}: only wants to know the database: with -d URL, or DROVER_DATABASE_URL, no file is read",
    "group": "drover {}: only wants to know database and group: with -d URL and GROUP no file is read",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 ok, 1 failed, 2 configuration or usage, 3 no database."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(options)
        sys.stdout.flush()  # here, where a closed pipe is still noticed
    except DroverError as error:
        return _report(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(options: Namespace) -> int:
    _escape_unprintable()
    if options.database is not None:
        from scheduler.cli.config import without_password  # not for --help, as below

        os.environ["DROVER_DATABASE_URL"] = without_password(options.database)
    module, _, function = COMMANDS[options.command].function.partition(".")
    status: int = getattr(import_module(f"scheduler.cli.{module}"), function)(options, _configuration(options))
    return status


def _configuration(options: Namespace) -> "Config":
    """Return what the command needs of it; no file is read if it needs the database only, and that is named."""
    from scheduler.model.config import Config  # not for --help: it takes as long as all the rest

    needs = COMMANDS[options.command].needs
    if needs == "nothing":
        return Config()
    from scheduler.cli.config import SYSTEM, database_alone, load
    from scheduler.drivers.spawn import user_mistakes

    checks = (user_mistakes,) if options.command == "run" else ()  # what only a daemon needs
    is_enough = needs == "database" or getattr(options, "group", None) or getattr(options, "jobs", None)
    alone = database_alone(os.environ) if is_enough else None
    try:
        return alone or load(options.config, os.environ, SYSTEM, *checks)
    except ConfigError as error:
        hint = ALONE.get(needs)
        raise ConfigError(f"{error}\n{hint.format(options.command)}" if hint else str(error)) from error


def _escape_unprintable() -> None:
    """Let a terminal that lacks a character show its number, which is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report(error: DroverError) -> int:
    """Print mistakes of the operator one a line, other errors as one line; return the exit status."""
    from scheduler.cli.output import printable  # not for --help, as above

    if isinstance(error, ConfigError):
        print(*map(printable, str(error).splitlines()), sep="\n", file=sys.stderr)
        return USAGE
    print("drover:", printable(" ".join(str(error).split())), file=sys.stderr)
    return UNREACHABLE if isinstance(error, WorldError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
