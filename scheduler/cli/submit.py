"""`drover submit`, `setup` and `resubmit`: new jobs, as rows of drover.jobqueue.

Names only the columns that were asked for: the grants of the role need not be wider than that. What a variable of
`setup` means is decided in the database, by drover.job_setup; a job of that name that exists already is left as it is,
so that a script may repeat a set-up whose end it did not see.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from scheduler.cli.db import connect, job_numbers, numbers_by_name
from scheduler.cli.output import as_json, failed, warn
from scheduler.cli.shell_assignments import Value, assignments
from scheduler.cli.wait import wait
from scheduler.errors import ConfigError, DroverError
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


def submit_jobs(options: Namespace, config: Config) -> int:
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


SETUP = "select jq_pk, existed from drover.job_setup(%s, %s)"
READ_COLUMN = "select jsonb_populate_record(null::drover.jobqueue, %s)"


def set_up_job(options: Namespace, config: Config) -> int:
    """Print the number of the job, and say so if it was there before."""
    settings = assignments(sys.stdin.buffer.read())
    if options.priority is not None:
        settings["jq_priority"] = options.priority
    with connect(config) as connection:
        queue, host = (str(settings[key]) if key in settings else None for key in ("jq_queue", "jq_host"))
        reason = refusal(connection, options.name.partition(".")[0], queue, host, force=options.force)
        if reason and not numbers_by_name(connection, [options.name]):
            return failed(reason)
        ((job, existed),) = _set_up(connection, options.name, settings)
    if existed:
        warn(f"{options.name} exists already; it was left as it is")
    print(job)
    return 0


def _set_up(connection: psycopg.Connection, name: str, settings: Mapping[str, Value]) -> list[tuple[int, bool]]:
    """One row: its number, and whether it was there. Errors: ConfigError, with the column whose value is of no use."""
    try:
        return connection.execute(SETUP, (name, Jsonb(settings))).fetchall()
    except psycopg.errors.UndefinedParameter as error:
        raise ConfigError(f"{error.diag.message_primary}; nothing was set up") from error
    except psycopg.DataError as error:
        column = _unreadable(connection, settings)
        raise ConfigError(f"{column}{error.diag.message_primary}; nothing was set up") from error


def _unreadable(connection: psycopg.Connection, settings: Mapping[str, Value]) -> str:
    """Name the first column that cannot have its value, which the database does not tell."""
    for name in filter(lambda name: name.startswith("jq_"), settings):
        try:
            connection.execute(READ_COLUMN, (Jsonb({name: settings[name]}),))
        except psycopg.DataError:
            return f"{name}: "
    return ""


AGAIN = "select job, drover.job_resubmit(job) from unnest(%s::bigint[]) with ordinality as u(job, n) order by n"


def resubmit_jobs(options: Namespace, config: Config) -> int:
    """Print the number of each new job, all or none; 1 if there is no such job."""
    with connect(config) as connection:
        try:
            # a job that is named twice is meant once
            wanted = list(dict.fromkeys(job_numbers(connection, options.jobs)))
            jobs = connection.execute(AGAIN, (wanted,)).fetchall()
        except psycopg.errors.NoDataFound as error:
            raise DroverError(f"{error.diag.message_primary}; drover ls --all lists those there are") from error
        except psycopg.errors.CheckViolation as error:
            raise DroverError(f"{error.diag.message_primary}; nothing was queued") from error
    for old, new in jobs:
        print(as_json({"job": new, "resubmit_of": old}) if options.json else new)
    return 0


COMMAND, CLEANUP = "command", "cleanup"
KNOWN = """
select (select count(*) from drover.agent),
       (select coalesce(array_agg(distinct agent_type order by agent_type), '{}')
          from drover.agent where agent_present and agent_enabled),
       %(queue)s::text is null or exists (select from drover.queue where queue_name = %(queue)s and queue_present),
       %(host)s::text is null or exists (select from drover.host where host_name = %(host)s and host_present)
"""
ANYWAY = "--force queues it all the same"


def refusal(
    connection: psycopg.Connection, kind: str, queue: str | None = None, host: str | None = None, *, force: bool
) -> str:
    """Why such a job is not queued, and what next; empty if it is. Clean-ups are queued by Drover alone."""
    if kind == CLEANUP:
        return "a clean-up comes from the files that a job was to delete, after it is done: it is not queued"
    if force or kind == COMMAND:
        return ""
    ((agents, served, has_queue, has_host),) = connection.execute(KNOWN, {"queue": queue, "host": host}).fetchall()
    if not agents:
        return f"nobody serves type {kind}: no scheduler has been here yet, start one with drover run; {ANYWAY}"
    if kind not in served:
        return f"nobody serves type {kind} (served: {', '.join(served) or 'none'}); {ANYWAY}"
    if not has_queue:
        return f"no queue {queue}; {ANYWAY}"
    return "" if has_host else f"no host {host}; {ANYWAY}"
