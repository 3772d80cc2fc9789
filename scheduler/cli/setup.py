"""`drover setup NAME`: a job by its name and its variables on standard input, held until it is released.

What a variable means is decided in the database, by drover.job_setup; a job of that name that is there already is
left as it is, so that a script may set up again what it did not see the end of.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping

import psycopg
from psycopg.types.json import Jsonb

from scheduler.cli.assignments import Value, assignments
from scheduler.cli.complain import failed, warn
from scheduler.cli.database import connect
from scheduler.cli.orders import names
from scheduler.cli.served import refusal
from scheduler.errors import ConfigError
from scheduler.model.config import Config

SETUP = "select jq_pk, existed from drover.job_setup(%s, %s)"
READ = "select jsonb_populate_record(null::drover.jobqueue, %s)"


def run(options: Namespace, config: Config) -> int:
    """Print the number of the job, and say so if it was there before."""
    settings = assignments(sys.stdin.buffer.read())
    if options.priority is not None:
        settings["jq_priority"] = options.priority
    with connect(config) as connection:
        queue, host = (str(settings[key]) if key in settings else None for key in ("jq_queue", "jq_host"))
        reason = refusal(connection, options.name.partition(".")[0], queue, host, force=options.force)
        if reason and not names(connection, [options.name]):
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
            connection.execute(READ, (Jsonb({name: settings[name]}),))
        except psycopg.DataError:
            return f"{name}: "
    return ""
