"""`drover release`, `hold`, `ice`, `retry`, `cancel`, `kill`, `signal`, `pause`, `continue`, `poll`, `flush`: commands.

A command row for each job, or one for all queues that are named; see scheduler.cli.orders for what becomes of them.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Final

import psycopg

from scheduler.cli.database import connect
from scheduler.cli.orders import carry_out, numbers
from scheduler.model.config import Config

Words = Callable[[psycopg.Connection, Namespace], list[str]]


def run(options: Namespace, config: Config) -> int:
    """Insert the commands, wait for their ends and print the answers; 1 if one is refused."""
    with connect(config) as connection:
        commands = WORDS.get(options.command, _of_jobs)(connection, options)
        return carry_out(connection, commands, options.wait, json=options.json)


def _of_jobs(connection: psycopg.Connection, options: Namespace, verb: str = "", rest: str = "") -> list[str]:
    return [f"{verb or options.command} {job} {rest}".rstrip() for job in numbers(connection, options.jobs)]


def _of_queues(_connection: psycopg.Connection, options: Namespace) -> list[str]:
    return [" ".join([options.command, *options.queues])]


def _flush(_connection: psycopg.Connection, options: Namespace) -> list[str]:
    return [f"flush {options.days}{' failed' if options.failed else ''}"]


# Where it is not the name of the command and the number of a job.
WORDS: Final[dict[str, Words]] = {
    "cancel": lambda connection, options: _of_jobs(connection, options, rest=options.reason),
    "kill": lambda connection, options: _of_jobs(connection, options, "killjob"),
    "signal": lambda connection, options: _of_jobs(connection, options, rest=options.signal),
    "pause": _of_queues,
    "continue": _of_queues,
    "poll": _of_queues,
    "flush": _flush,
}
