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
from scheduler.cli.served import refusal
from scheduler.cli.tables import as_json
from scheduler.cli.wait import wait
from scheduler.errors import ConfigError
from scheduler.model.config import Config

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


def run(options: Namespace, config: Config) -> int:
    """Print the number of each new job; with --wait also how it ended, and 1 if one failed."""
    texts = read_lines(sys.stdin.buffer) if options.args == ["-"] else [_encodable(" ".join(options.args))]
    with connect(config) as connection:
        if reason := refusal(connection, options.type, options.queue, options.host, force=options.force):
            return failed(reason)
        jobs = _insert(connection, options, texts)
        lines = (as_json({"job": job}) if options.json else str(job) for job in jobs)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
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
