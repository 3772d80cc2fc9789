"""`drover map`: run a command for each item, on all processors, without a configuration.

Each command is an item of a job, in a database below the user's home, and a scheduler of the run's own works on it.
This process reads the items, queues them, and prints what the commands print and how far they are. It needs nothing of
a site: neither its configuration nor its queue.

However this process ends, its scheduler begins nothing any more and finishes what runs; `--resume` goes on from there.
"""

import os
import re
import shutil
import sys
from argparse import Namespace
from contextlib import ExitStack
from shlex import join
from typing import Final

from scheduler.cli.map_items import Items, words_and_sources
from scheduler.cli.map_runs import Daemon, Facts, Interrupts, Run, begun, home, taken_up
from scheduler.cli.output import printable, warn
from scheduler.drivers.system_files import require_temporary_folder
from scheduler.errors import ConfigError, DroverError, WorldError
from scheduler.model.config import Config

CANNOT: Final = 255  # as GNU parallel: it is none of the numbers of failures
HALT: Final = re.compile(r"never|(?P<when>soon|now),fail=(?P<failures>[1-9][0-9]*)")


def run_map(options: Namespace, _config: Config) -> int:
    """Run a command for each item; return how many failed, 101 for more than 100, or 255 if it could not be done."""
    try:
        if sys.stdout is None or sys.stderr is None:
            raise ConfigError("standard output and standard error must be open: what commands print goes there")
        if options.resume is not None:
            return _resume(options)
        return _dry_run(options) if options.dry_run else _begin(options)
    except DroverError as error:
        print(*(f"drover map: {printable(line)}" for line in str(error).splitlines()), sep="\n", file=sys.stderr)
        return CANNOT


def _begin(options: Namespace) -> int:
    template, _ = words_and_sources(options)
    program = template.program
    if program and shutil.which(program) is None:
        raise ConfigError(f"there is no program {program} on PATH, or it may not be executed; nothing was run")
    _halt(options)  # refuse a wrong one now
    items = Items(options)
    require_temporary_folder("drover map")
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the directory you are in was removed; go to another") from None
    facts = Facts(cwd, _slots(options), options.timeout, options.retries, options.keep_order)
    interrupts = Interrupts()  # before there is a directory, which would stay
    with begun(facts) as run:
        return _follow(options, run, items, interrupts)


def _resume(options: Namespace) -> int:
    if options.args:
        raise ConfigError("--resume goes on with the commands of an interrupted run: name no command")
    _halt(options)
    interrupts = Interrupts()
    with taken_up(options.resume) as run:
        if options.slots is not None:
            run.facts.slots = _slots(options)
        run.facts.keep_order = run.facts.keep_order or options.keep_order
        if not run.facts.is_read:
            warn(f"the items of run {run.number} were not read to their end: only those that were queued are run")
            run.facts.is_read = True
        return _follow(options, run, None, interrupts)


def _follow(options: Namespace, run: Run, items: Items | None, interrupts: Interrupts) -> int:
    """Start the scheduler of a run, and follow it to its end."""
    if not (home() / "pg").exists():
        warn(f"makes its database in {home() / 'pg'}, once")
    with ExitStack() as stack:
        halt = _halt(options)
        daemon = Daemon(run, os.environ, halt[1] if halt else 0)
        stack.callback(daemon.wait)
        stack.callback(daemon.drain)
        from scheduler.cli.map_following import follow  # the database: slow to import, while the daemon starts

        try:
            return follow(run, daemon, items, halt, interrupts)
        except DroverError as error:
            hint = f"; drover map --resume {run.number} goes on" if run.facts.group else ""
            raise WorldError(f"{error}{hint}") from error


def _dry_run(options: Namespace) -> int:
    """Print each command as a shell would read it."""
    for command in Items(options).all_commands():
        print(printable(join(command.words)))
    return 0


def _slots(options: Namespace) -> int:
    """Return how many commands run at once: one for each processor that we may use."""
    return options.slots if options.slots is not None else len(os.sched_getaffinity(0))


def _halt(options: Namespace) -> tuple[str, int] | None:
    """Return when to stop, `soon` or `now`, and after how many failures; None for never."""
    found = HALT.fullmatch(options.halt)
    if not found:
        raise ConfigError(f"--halt {options.halt}: must be never, soon,fail=N or now,fail=N")
    return (found["when"], int(found["failures"])) if found["when"] else None
