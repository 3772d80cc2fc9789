"""The database that a command works on: connect, check the schema, find jobs, hide what the role may not see.

Errors of psycopg become ours here. The embedded database is started and brought up to date by the command that opens
it; any other is only checked, `drover init` changes it.
"""

import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString

import attrs
import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.types.json import set_json_loads

from scheduler.cli.config import EMBEDDED, is_embedded_url, with_password
from scheduler.cli.output import Table
from scheduler.daemon.log import LOG
from scheduler.database import migrate
from scheduler.database.embedded import default_directory, join
from scheduler.drivers.sql import STANDARD, setting
from scheduler.errors import AbsentError, BugError, ConfigError, DroverError, WorldError
from scheduler.model.config import Config

# How much a role may see of a table: all, all rows but not what jobs work on, its own, or nothing.
ALL, MASKED, OWN, NOTHING = "all", "masked", "own", "nothing"
SIGHT: Final = """
select name, case when has_table_privilege('drover.' || name, 'select') then 'all'
                  when has_any_column_privilege('drover.' || masked, 'select') then 'masked'
                  when has_table_privilege('drover.' || own, 'select') then 'own'
                  else 'nothing' end
  from (values ('jobqueue', 'jobs_masked', 'my_jobs'), ('scheduler_status', 'scheduler_status', null),
               ('output', null, 'my_output'), ('why', 'why_masked', 'my_why'), ('log', null, 'my_log'))
         as t(name, masked, own)
"""
# What whoever sees less is given in place of a table; a column that is hidden is empty.
IN_STEAD: Final[dict[tuple[str, str], LiteralString]] = {
    ("jobqueue", MASKED): """
        select *, null::text as jq_args, null::text as jq_endtext, null::jsonb as jq_result from drover.jobs_masked""",
    ("jobqueue", OWN): "select * from drover.my_jobs",
    ("scheduler_status", MASKED): """
        select status_scheduler, status_slot, status_host, status_agent, status_state_name, status_since, status_pid,
               status_jq_fk, status_spawns, status_items, status_reason, status_updated, null::text as status_parameter
          from drover.scheduler_status""",
    ("scheduler_status", NOTHING): """
        select (s).* from (select null::drover.scheduler_status as s) nobody where false""",
    ("output", OWN): "select * from drover.my_output",
    ("why", MASKED): "select * from drover.why_masked",
    ("why", OWN): "select * from drover.my_why",
    ("log", OWN): "select * from drover.my_log",
}
UNSEEN: Final = {
    ("jobqueue", OWN): "sees its own jobs alone: no others are listed or counted",
    ("scheduler_status", MASKED): "does not see how long the statements and turns of schedulers take",
    ("scheduler_status", NOTHING): "does not see slots and agents, nor how schedulers fare",
}
RULES: Final = {  # what a row breaks, where the name of the constraint would not tell those who know no tables
    "jobqueue_jq_priority_check": "a priority is up to 16 letters and digits",
    "jobqueue_jq_retries_check": "jq_retries is a number from 0 on",
    "jobqueue_jq_max_interruptions_check": "jq_max_interruptions is a number from 0 on",
    "jobqueue_jq_tolerate_check": "jq_tolerate is a number from 0 on",
    "jobqueue_jq_timeout_check": "jq_timeout is longer than 0, and 100 years at most",
    "jobqueue_start_window_is_of_dates": "a time is of a year from 1 to 9999; what has no limit is left out",
    "job_queued_is_a_date": "a time is of a year from 1 to 9999",
    "jobqueue_key_needs_sql": "a key is a column of SQL: give --sql, or jq_msq, too",
    "jobqueue_repeat_needs_sql": "jq_repeat is for SQL: give jq_msq too",
    "jobqueue_name_is_type_dot_nonce": "a name is the type of the job, a dot, and something without a dot or a blank",
    "jobqueue_jq_name_key": "there is a job of this name already; see drover why",
    "jobqueue_one_live_row_per_key": "a job with this jq_unique_key has not ended yet",
    "jobqueue_jq_job_fk_fkey": "there is no such job group",
    "jobdepends_not_on_itself": "no job waits for itself",
}
# What to do next where a login has not the right, or is refused.
BE_ANOTHER: Final = "connect as a role that may, see drover-jobqueue(7)"
SET_PEOPLE_URL: Final = (
    "[database] url is the login of the daemon: set people_url beside it, or DROVER_DATABASE_URL, "
    "to a login that may, see drover.toml(5)"
)
REFUSED_LOGIN: Final = re.compile("password_file|authentication failed|password supplied|pg_hba.conf|permitted to log")
TEXTS: Final = ("text", "varchar", "name", "bpchar", '"char"', 0)  # 0: types that psycopg does not know, as an enum
NAMED: Final = "select jq_name, jq_pk from drover.jobqueue where jq_name = any (%s)"
READ_ONLY: Final = (
    "name the primary in [database] url if this is a replica, else look at default_transaction_read_only"
    " of the database and the role"
)


@contextmanager
def connect(config: Config) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to the database of the configuration, up to date, by the login of people.

    Errors: WorldError if it cannot be reached or its schema is another; ConfigError if it refuses what was asked.
    """
    with _login_of_people(config) as (people, next_step), opened(people) as conninfo, translated(next_step):
        named = make_conninfo(conninfo, fallback_application_name="drover")
        with session(named) as connection:
            connection.execute(setting(STANDARD))
            yield connection


@contextmanager
def session(conninfo: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit that gives every text as str.

    A database in SQL_ASCII holds any bytes: the server refuses to give those that are not UTF-8 to a client of that
    encoding, and psycopg gives no text without one. Such bytes become surrogates here, which `printable` escapes.
    """
    with psycopg.connect(conninfo, autocommit=True, client_encoding="utf8") as connection:
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            connection.execute("set client_encoding = 'SQL_ASCII'")
            for kind in TEXTS:
                connection.adapters.register_loader(kind, _AnyBytes)
            set_json_loads(lambda data: json.loads(_decoded(data)), connection)
        yield connection


class _AnyBytes(Loader):
    """Text of whatever encoding."""

    def load(self, data: Buffer) -> str:
        return _decoded(data)


def _decoded(data: Buffer | str) -> str:
    return data if isinstance(data, str) else bytes(data).decode("utf-8", "surrogateescape")


@contextmanager
def _login_of_people(config: Config) -> Iterator[tuple[Config, str]]:
    """The configuration with people_url as its url, and what to do where that login has not the right.

    Where only the daemon's login is configured and it is not for people, an error says what to set.
    """
    found = config.database
    if found.people_url:
        yield attrs.evolve(config, database=attrs.evolve(found, url=found.people_url, password_file="")), BE_ANOTHER
        return
    if is_embedded(config) or os.environ.get("DROVER_DATABASE_URL"):
        yield config, BE_ANOTHER
        return
    try:
        yield with_password(config, os.environ), SET_PEOPLE_URL
    except (ConfigError, AbsentError) as error:
        if not REFUSED_LOGIN.search(str(error)) or SET_PEOPLE_URL in str(error):
            raise
        kind = ConfigError if isinstance(error, ConfigError) else AbsentError
        raise kind(f"{error}; {SET_PEOPLE_URL}") from error


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
        yield with_password(config, os.environ).database.url
        return
    directory = config.database.url.removeprefix(EMBEDDED).removeprefix(":")
    with join(Path(directory) if directory else default_directory(os.environ), durable=True) as conninfo:
        yield conninfo


def is_embedded(config: Config) -> bool:
    """Whether the database is one that we start ourselves."""
    return is_embedded_url(config.database.url)


def conninfo_of_daemon(config: Config, conninfo: str) -> str:
    """The embedded database belongs to its starter; the daemon uses no more of it than it needs."""
    return make_conninfo(conninfo, user="drover_scheduler") if is_embedded(config) else conninfo


def make_ready(config: Config, conninfo: str) -> None:
    """Bring the embedded schema up to date; raise WorldError if another is not."""
    if not is_embedded(config):
        migrate.check(conninfo)
    elif migrate.apply(conninfo):
        migrate.apply_roles(conninfo)


@contextmanager
def translated(next_step: str = BE_ANOTHER) -> Iterator[None]:
    """Errors of psycopg by whose fault they are; `next_step` is for a login that has not the right."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"{_primary(error)}: {next_step}") from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise ConfigError(f"{_primary(error)}: {READ_ONLY}") from error
    except psycopg.errors.SerializationFailure as error:
        advice = "ask again, or raise max_standby_streaming_delay of the replica"
        raise WorldError(f"the database gave up: {_primary(error)}; {advice}") from error
    except psycopg.errors.QueryCanceled as error:
        raise WorldError(migrate.cancelled(error)) from error
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise ConfigError(f"the database refuses it: {_primary(error)}") from error
    except psycopg.OperationalError as error:
        raise WorldError(f"database not reachable: {error}; {migrate.advice(error)}") from error
    except psycopg.Error as error:
        raise BugError(f"{type(error).__name__}: {error}: report this") from error


def table(connection: psycopg.Connection, title: str, query: LiteralString, parameters: Sequence[Any] = ()) -> Table:
    """What a query gives whoever asks; the names of its columns are the headings."""
    cursor = connection.execute(visible(connection, query), parameters)
    return Table(title, tuple(column.name for column in cursor.description or ()), cursor.fetchall())


def visible(connection: psycopg.Connection, query: LiteralString) -> LiteralString:
    """The query as its asker may ask it: about jobs of one's own, or without what they work on, if that is all."""
    stand_ins = []
    for name, seen in sight(connection).items():
        if text := IN_STEAD.get((name, seen)):
            query, count = re.subn(rf"\bdrover\.{name}\b", name, query)
            stand_ins += [f"{name} as not materialized ({text})"] * bool(count)
    return f"with {', '.join(stand_ins)} {query}" if stand_ins else query


def sight(connection: psycopg.Connection) -> dict[str, str]:
    """How much the role may see of each table that shows what goes on: all, masked, own, nothing."""
    return dict(connection.execute(SIGHT).fetchall())


def unseen(connection: psycopg.Connection, seen: Mapping[str, str], *tables: str) -> list[str]:
    """What whoever asks is not shown of these tables, in sentences."""
    return [f"role {connection.info.user} {UNSEEN[t, seen[t]]}" for t in tables if (t, seen[t]) in UNSEEN]


def listen(connection: psycopg.Connection, *channels: str) -> bool:
    """Be woken by what is announced; False on a replica, which wakes nobody: there a look now and then must do.

    From now on the server lets the session be idle for as long as it likes.
    """
    cursor = connection.execute("select not pg_is_in_recovery() from set_config('idle_session_timeout', '0', false)")
    is_primary = cursor.fetchone() == (True,)
    for channel in channels if is_primary else ():
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
    return is_primary


def job_numbers(connection: psycopg.Connection, jobs: Sequence[int | str]) -> list[int]:
    """Return the number of each job, given by number or by name. Errors: DroverError if a name has no job."""
    wanted = [job for job in jobs if isinstance(job, str)]
    found = numbers_by_name(connection, wanted) if wanted else {}
    if missing := [name for name in wanted if name not in found]:
        raise DroverError(f"no job {', '.join(missing)}; drover ls --all lists those there are")
    return [job if isinstance(job, int) else found[job] for job in jobs]


def numbers_by_name(connection: psycopg.Connection, words: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the jobs that have these names; a name without a job is left out."""
    return dict(connection.execute(visible(connection, NAMED), (list(words),)).fetchall())


def why_read_only(connection: psycopg.Connection) -> str:
    """Why nothing can be written, and what next; empty if it can. Errors: psycopg.Error."""
    query = "select current_setting('transaction_read_only')::boolean, pg_is_in_recovery()"
    match connection.execute(query).fetchone():
        case (True, True):
            return "it is a replica: name its primary in [database] url"
        case (True, False):
            return "default_transaction_read_only is on: reset it for the database or the role"
    return ""


def _primary(error: psycopg.Error) -> str:
    """What the database says; of a constraint of ours, the rule."""
    return RULES.get(error.diag.constraint_name or "") or error.diag.message_primary or str(error)


FIRST_WAIT_S: Final = 0.2


@contextmanager
def awaited(config: Config) -> Iterator[str]:
    """The conninfo of a database that is there and up to date, as soon as it is, for as long as the block lasts.

    Errors: WorldError if its schema is another, or the embedded one cannot be started.
    """
    with located(config) as conninfo:
        for wait_s in waits(config.scheduler.reconnect_max):
            try:
                make_ready(config, conninfo)
                break
            except AbsentError as error:
                LOG.warning("%s; trying again in %.1f s", " ".join(str(error).split()), wait_s)
            time.sleep(wait_s)
        yield conninfo


def waits(longest: float) -> Iterator[float]:
    """Give seconds to wait, for ever: twice as long each time, less a random part, so that no crowd comes as one."""
    for tries in count():
        whole = FIRST_WAIT_S * 2 ** min(tries, 64)
        yield min(whole, longest) * (0.5 + random.random() / 2)
