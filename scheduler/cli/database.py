"""The database that a command works on: found, started if it is ours, its schema known, its errors in our words.

The embedded database is brought up to date by whoever opens it; any other is only looked at, `drover init` is for
that. Knows nothing of jobs.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from scheduler import migrate
from scheduler.cli import secrets
from scheduler.cli.tables import Table
from scheduler.embedded import default_directory, join
from scheduler.errors import BugError, ConfigError, WorldError
from scheduler.model.config import Config

OWN: Final[dict[str, LiteralString]] = {  # the same rows, but only of jobs of one's own
    "jobqueue": "my_jobs", "output": "my_output", "why": "my_why", "log": "my_log",
}  # fmt: skip
RULES: Final = {  # what a row breaks, where the name of the constraint would not tell those who know no tables
    "jobqueue_jq_priority_check": "a priority is up to 16 letters and digits",
    "jobqueue_jq_retries_check": "jq_retries is a number from 0 on",
    "jobqueue_jq_max_interruptions_check": "jq_max_interruptions is a number from 0 on",
    "jobqueue_jq_tolerate_check": "jq_tolerate is a number from 0 on",
    "jobqueue_jq_timeout_check": "jq_timeout is longer than 0",
    "jobqueue_key_needs_sql": "a key is a column of SQL: give --sql, or jq_msq, too",
    "jobqueue_repeat_needs_sql": "jq_repeat is for SQL: give jq_msq too",
    "jobqueue_name_is_type_dot_nonce": "a name is the type of the job, a dot, and something without a dot or a blank",
    "jobqueue_jq_name_key": "there is a job of this name already; see drover why",
    "jobqueue_one_live_row_per_key": "a job with this jq_unique_key has not ended yet",
    "jobqueue_jq_job_fk_fkey": "there is no such job group",
    "jobdepends_not_on_itself": "no job waits for itself",
}
MAY_SEE: Final = "select name, has_table_privilege('drover.' || name, 'select') from unnest(%s::text[]) as name"


@contextmanager
def connect(config: Config) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to the database of the configuration, up to date.

    Errors: WorldError if it cannot be reached or its schema is another; ConfigError if it refuses what was asked.
    """
    with opened(config) as conninfo, translated():
        named = make_conninfo(conninfo, fallback_application_name="drover", client_encoding="utf8")
        with psycopg.connect(named, autocommit=True) as connection:
            yield connection


@contextmanager
def opened(config: Config) -> Iterator[str]:
    """The conninfo of a database that is there and up to date, for as long as the block lasts."""
    with located(config) as conninfo:
        make_ready(config, conninfo)
        yield conninfo


@contextmanager
def located(config: Config) -> Iterator[str]:
    """The conninfo, whatever is in the database; an embedded server runs for as long as the block lasts."""
    if not is_embedded(config):
        yield secrets.with_password(config, os.environ).database.url
        return
    directory = config.database.url.removeprefix(secrets.EMBEDDED).removeprefix(":")
    with join(Path(directory) if directory else default_directory(os.environ), durable=True) as conninfo:
        yield conninfo


def is_embedded(config: Config) -> bool:
    """Whether the database is one that we start ourselves."""
    return secrets.is_embedded(config.database.url)


def make_ready(config: Config, conninfo: str) -> None:
    """Bring the embedded schema up to date; raise WorldError if another is not."""
    if not is_embedded(config):
        migrate.check(conninfo)
    elif migrate.apply(conninfo):
        migrate.apply_roles(conninfo)


@contextmanager
def translated() -> Iterator[None]:
    """Errors of psycopg by whose fault they are."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"{_primary(error)}: connect as a role that may, see drover-jobqueue(7)") from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise ConfigError(f"{_primary(error)}: a replica is read only, name its primary in [database] url") from error
    except psycopg.errors.SerializationFailure as error:
        advice = "ask again, or raise max_standby_streaming_delay of the replica"
        raise WorldError(f"the database gave up: {_primary(error)}; {advice}") from error
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise ConfigError(f"the database refuses it: {_primary(error)}") from error
    except psycopg.OperationalError as error:
        raise WorldError(f"database not reachable: {error}; {_advice(error)}") from error
    except psycopg.Error as error:
        raise BugError(f"{type(error).__name__}: {error}: report this") from error


def table(connection: psycopg.Connection, title: str, query: LiteralString, parameters: Sequence[Any] = ()) -> Table:
    """What a query gives; the names of its columns are the headings."""
    cursor = connection.execute(query, parameters)
    return Table(title, tuple(column.name for column in cursor.description or ()), cursor.fetchall())


def visible(connection: psycopg.Connection, query: LiteralString) -> LiteralString:
    """The query as its asker may ask it: of jobs of one's own, where the role may not see those of others."""
    hidden = {name for name, may_see in connection.execute(MAY_SEE, (list(OWN),)) if not may_see}
    for name in hidden:
        query = query.replace(f"drover.{name} ", f"drover.{OWN[name]} ")
    return query


def listen(connection: psycopg.Connection, *channels: str) -> bool:
    """Be woken by what is announced; False on a replica, which wakes nobody: there a look now and then must do."""
    is_primary = connection.execute("select not pg_is_in_recovery()").fetchone() == (True,)
    for channel in channels if is_primary else ():
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
    return is_primary


def _advice(error: psycopg.Error) -> str:
    """Say what next: a role of ours that is missing is not a wrong url."""
    is_role = 'role "drover_' in str(error) and "does not exist" in str(error)
    return "run drover init --roles" if is_role else "check [database] url"


def _primary(error: psycopg.Error) -> str:
    """What the database says; of a constraint of ours, the rule."""
    return RULES.get(error.diag.constraint_name or "") or error.diag.message_primary or str(error)
