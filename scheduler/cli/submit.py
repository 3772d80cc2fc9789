"""`drover submit`: rows into drover.jobqueue, and the wait for their end.

Names only the columns that were asked for: the grants of whoever queues need not be wider than that.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import psycopg
from psycopg import sql

from scheduler.cli.complain import failed
from scheduler.cli.database import connect
from scheduler.cli.wait import wait
from scheduler.errors import ConfigError
from scheduler.model.config import Config

COMMAND = "command"
ROWS_AT_ONCE = 10_000
COLUMNS = {
    "type": "jq_type",
    "sql": "jq_msq",
    "runonpfile": "jq_runonpfile",
    "key": "jq_key",
    "host": "jq_host",
    "queue": "jq_queue",
    "urgent": "jq_urgent",
    "priority": "jq_priority",
    "retries": "jq_retries",
    "name": "jq_name",
    "delete": "jq_delete",
}

INSERT = """
insert into drover.jobqueue ({columns}, jq_args)
select {values}, args from unnest(%s::text[]) with ordinality as u(args, n) order by n
returning jq_pk
"""
SERVED = """
select coalesce(array_agg(distinct agent_type order by agent_type), '{}')
  from drover.agent where agent_present and agent_enabled
"""


def run(options: Namespace, config: Config) -> int:
    """Print the number of each new job; with --wait also how it ended, and 1 if one failed."""
    texts = read_lines(sys.stdin.buffer) if options.args == ["-"] else [_encodable(" ".join(options.args))]
    with connect(config) as connection:
        if refusal := _refusal(connection, options):
            return failed(refusal)
        jobs = list(_insert(connection, options, texts))
        print("".join(f"{job}\n" for job in jobs), end="", flush=True)
        return 0 if options.wait is None else wait(connection, jobs, options.wait, json=options.json)


def read_lines(file: BinaryIO) -> Iterator[str]:
    """The arguments of a job in each line; ConfigError at the first that no database could hold."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"stdin:{number}: is not UTF-8; nothing was queued") from None
        if "\0" in text:
            raise ConfigError(f"stdin:{number}: holds a NUL; nothing was queued")
        yield text


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the arguments are not UTF-8; nothing was queued") from None
    return text


def _refusal(connection: psycopg.Connection, options: Namespace) -> str:
    """Why this type is not queued; most often it is misspelt."""
    if options.force or options.type == COMMAND:
        return ""
    row = connection.execute(SERVED).fetchone()
    served: list[str] = row[0] if row else []
    if options.type in served:
        return ""
    return f"nobody serves type {options.type} (served: {', '.join(served) or 'none'}); --force queues it all the same"


def _insert(connection: psycopg.Connection, options: Namespace, texts: Iterable[str]) -> list[int]:
    """Queue a job for each text, all or none, and give their numbers in the order of the texts."""
    given = {column: value for name, column in COLUMNS.items() if (value := getattr(options, name)) is not None}
    query = sql.SQL(INSERT).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, given)),
        values=sql.SQL(", ").join([sql.Placeholder()] * len(given)),
    )
    remaining = iter(texts)
    jobs: list[int] = []
    with connection.transaction():
        while batch := list(islice(remaining, ROWS_AT_ONCE)):
            parameters: tuple[Any, ...] = (*given.values(), batch)
            jobs += sorted(pk for (pk,) in connection.execute(query, parameters))
    return jobs
