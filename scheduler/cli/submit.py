"""`drover submit`, `setup` and `resubmit`: new jobs, as rows of drover.jobqueue.

What a variable of `setup` means is decided in the database, by drover.job_setup; a job of that name that exists already
is left as it is, so that a script may repeat a set-up whose end it did not see.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from scheduler.cli.output import as_json, failed, warn
from scheduler.cli.session import Session, connect
from scheduler.cli.shell_assignments import Value, assignments
from scheduler.cli.wait import print_ends
from scheduler.errors import ConfigError, DroverError
from scheduler.model.config import Config

ROWS_AT_ONCE: Final = 10_000
SAME_NAME: Final = ("type", "runonpfile", "key", "host", "queue", "urgent", "priority", "retries", "name", "delete")
COLUMNS: Final = {"sql": "jq_msq"} | {option: f"jq_{option}" for option in SAME_NAME}
INSERT: Final = """
insert into drover.jobqueue ({columns}, jq_args)
select {values}, args from unnest(%s::text[]) with ordinality as u(args, n) order by n
returning jq_pk
"""
COMMAND, CLEANUP = "command", "cleanup"
FORCE: Final = "queue it nevertheless with --force"


def submit_jobs(options: Namespace, config: Config) -> int:
    """Print the number of each new job; with --wait also how it ended, and 1 if one failed."""
    text = " ".join(options.args)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the arguments are not UTF-8; nothing was queued") from None
    texts = read_lines(sys.stdin.buffer) if text == "-" else [text]
    with connect(config) as session:
        if reason := refusal(session, options.type, options.queue, options.host, force=options.force):
            return failed(reason)
        jobs = _insert(session.connection, options, texts)
        lines = (as_json({"job": job}) if options.json else str(job) for job in jobs)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        return 0 if options.wait is None else print_ends(session, jobs, options.wait, json=options.json)


def read_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the arguments of a job in each line; ConfigError at the first that no database could hold."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"stdin:{number}: is not UTF-8; nothing was queued") from None
        if "\0" in text:
            raise ConfigError(f"stdin:{number}: holds a NUL; nothing was queued")
        yield text


def _insert(connection: psycopg.Connection, options: Namespace, texts: Iterable[str]) -> list[int]:
    """Queue a job for each text, all or none; return their numbers in the order of the texts.

    Names only the columns that were asked for: the grants of the role need not be wider than that.
    """
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


def set_up_job(options: Namespace, config: Config) -> int:
    """Print the number of the job, and say so if it existed before."""
    settings = assignments(sys.stdin.buffer.read())
    if options.priority is not None:
        settings["jq_priority"] = options.priority
    with connect(config) as session:
        queue, host = (str(settings[key]) if key in settings else None for key in ("jq_queue", "jq_host"))
        reason = refusal(session, options.name.partition(".")[0], queue, host, force=options.force)
        if reason and not session.numbers_by_name([options.name]):
            return failed(reason)
        try:
            ((job, existed),) = session.rows("set_up_job", name=options.name, settings=Jsonb(settings))
        except psycopg.errors.UndefinedParameter as error:
            raise ConfigError(f"{error.diag.message_primary}; nothing was set up") from error
        except psycopg.DataError as error:
            column = _column_of_mistake(session, settings)
            raise ConfigError(f"{column}{error.diag.message_primary}; nothing was set up") from error
    if existed:
        warn(f"{options.name} exists already; it was left as it is")
    print(job)
    return 0


def _column_of_mistake(session: Session, settings: Mapping[str, Value]) -> str:
    """Return the first column that cannot hold its value, which the database does not say."""
    for name in (name for name in settings if name.startswith("jq_")):
        try:
            session.rows("read_columns", settings=Jsonb({name: settings[name]}))
        except psycopg.DataError:
            return f"{name}: "
    return ""


def resubmit_jobs(options: Namespace, config: Config) -> int:
    """Print the number of each new job, all or none; 1 if there is no such job."""
    with connect(config) as session:
        try:
            given = dict.fromkeys(session.job_numbers(options.jobs))  # a job that is given twice is queued once
            jobs = session.rows("resubmit_jobs", jobs=list(given))
        except psycopg.errors.NoDataFound as error:
            raise DroverError(f"{error.diag.message_primary}; drover ls --all lists all jobs") from error
        except psycopg.errors.CheckViolation as error:
            raise DroverError(f"{error.diag.message_primary}; nothing was queued") from error
    for old, new in jobs:
        print(as_json({"job": new, "resubmit_of": old}) if options.json else new)
    return 0


def refusal(session: Session, kind: str, queue: str | None, host: str | None, *, force: bool) -> str:
    """Return why such a job is not queued, and what next; empty if it is.

    A type, queue or host that does not exist is most often misspelt. Clean-ups are queued by Drover alone.
    """
    if kind == CLEANUP:
        return "jobs of type cleanup are created by Drover alone, when a job with --delete is done; see submit --delete"
    if force or kind == COMMAND:
        return ""
    ((agents, served, has_queue, has_host),) = session.rows("known_names", queue=queue, host=host)
    if not agents:
        return (
            f"no scheduler serves type {kind}: none has used this database yet; start one with drover run, or {FORCE}"
        )
    if kind not in served:
        return f"no scheduler serves type {kind} (served: {', '.join(served) or 'none'}); correct it, or {FORCE}"
    if not has_queue:
        return f"there is no queue {queue}; correct it, or {FORCE}"
    return "" if has_host else f"there is no host {host}; correct it, or {FORCE}"
