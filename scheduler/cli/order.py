"""`drover release`, `hold`, `ice`, `retry`, `cancel`, `kill`, `signal`, `pause`, and `drover command` for all others.

A command row for each job, or one for all queues that are named; see scheduler.cli.orders for what becomes of them.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Final

import psycopg

from scheduler.cli import kinds
from scheduler.cli.database import connect
from scheduler.cli.orders import carry_out, names, numbers
from scheduler.errors import ConfigError
from scheduler.model.config import Config

Words = Callable[[psycopg.Connection, Namespace], list[str]]


def run(options: Namespace, config: Config) -> int:
    """Insert the commands, wait for their ends and print the answers; 1 if one is refused."""
    with connect(config) as connection:
        commands = WORDS.get(options.command, _of_jobs)(connection, options)
        return carry_out(connection, commands, options.wait, json=options.json)


def _of_jobs(connection: psycopg.Connection, options: Namespace, verb: str = "", rest: str = "") -> list[str]:
    return [f"{verb or options.command} {job} {rest}".rstrip() for job in numbers(connection, options.jobs)]


def _signal(connection: psycopg.Connection, options: Namespace) -> list[str]:
    """One signal for all jobs, the last word; or each job with its own. Errors: ConfigError."""
    words = options.words
    pairs = [word.rpartition("=")[::2] for word in words] if "=" in words[-1] else [(w, words[-1]) for w in words[:-1]]
    if not pairs or not all(job for job, _ in pairs):
        raise ConfigError("drover signal: JOB... SIGNAL or JOB=SIGNAL... is wanted; nothing was commanded")
    jobs = numbers(connection, [_job(job) for job, _ in pairs])
    return [f"signal {job} {signal}" for job, (_, signal) in zip(jobs, pairs, strict=True)]


def _job(word: str) -> int | str:
    try:
        return kinds.job(word)
    except ArgumentTypeError as error:
        raise ConfigError(f"drover signal: a job {error}; nothing was commanded") from None


def _unblock(connection: psycopg.Connection, options: Namespace) -> list[str]:
    """What is the name of no job is a condition."""
    found = names(connection, options.words)
    return [f"unblock {found.get(word, word)}" for word in options.words]


def _of_queues(_connection: psycopg.Connection, options: Namespace) -> list[str]:
    return [" ".join([options.command, *options.queues])]


def _flush(_connection: psycopg.Connection, options: Namespace) -> list[str]:
    return [f"flush {options.days}{' failed' if options.failed else ''}"]


# Where it is not the name of the command and the number of a job.
WORDS: Final[dict[str, Words]] = {
    "cancel": lambda connection, options: _of_jobs(connection, options, rest=options.reason),
    "kill": lambda connection, options: _of_jobs(connection, options, "killjob"),
    "signal": _signal,
    "unblock": _unblock,
    "pause": _of_queues,
    "continue": _of_queues,
    "poll": _of_queues,
    "flush": _flush,
    "command": lambda _connection, options: [" ".join(options.args)],
}
