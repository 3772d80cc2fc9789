"""The database that a command works on: connect to it, check its schema, run the statements of schema/cli.sql.

Errors of psycopg become ours here. The embedded database is started and brought up to date by the command that opens
it; any other is only checked, `drover init` changes it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, Final, LiteralString

import attrs
import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.types.json import set_json_loads

from scheduler.cli.config_files import is_embedded_url, with_password
from scheduler.cli.embedded_database import embedded_directory
from scheduler.cli.output import Table, warn
from scheduler.database import migrate
from scheduler.database.connect import RAISE_LIMIT, cancelled, connected, set_safe_path, unreachable
from scheduler.drivers.statements import STANDARD, Query, lacks_files, raised_by, setting, texts
from scheduler.errors import BugError, ConfigError, DatabaseAbsentError, DroverError, WorldError
from scheduler.model.config import Config
from scheduler.model.json_text import json_or_text
from scheduler.model.sql_text import bind
from scheduler.package_data import schema_dir

STATEMENT_FILES: Final = ("cli.sql", "web.sql", "metrics.sql")  # of the commands, the dashboard, the exporter
# Of sessions that ask once: compiling takes seconds, reading 500,000 jobs 0.3 s.
ASKED_ONCE: Final[dict[LiteralString, LiteralString]] = {"jit": "off"}
# How much a role may see of a table: all of it, all rows but not what jobs work on, its own rows, or nothing.
ALL, MASKED, OWN, OURS, NOTHING = "all", "masked", "own", "ours", "nothing"
RESTRICTED_TABLES: Final = (
    "jobqueue", "scheduler_status", "output", "why", "log", "blocked_jobs", "event", "subscription", "delivery",
    "attempt", "item_failure", "jobdepends", "job_states",
    "job_zones", "backlog", "jobs_in_hand", "tally", "job_counts", "zone_parts", "beside_zones",
)  # fmt: skip
# Views of what a member of a tenant sees; what replaces them for other roles depends on their access to this table.
OUR_VIEWS: Final = {
    "our_jobs": "jobqueue", "our_why": "why", "our_detached": "why", "our_log": "log", "our_output": "output",
    "our_job_counts": "jobqueue", "our_beside_zones": "jobqueue", "my_job_groups": "jobqueue",
    "our_tally": "tally",
}  # fmt: skip
# Of these, a session may show what OUR_VIEWS show, in place of own rows.
LISTED_TABLES: Final = ("jobqueue", "job_counts", "zone_parts", "beside_zones")
RESTRICTIONS: Final = {
    ("jobqueue", OWN): "sees its own jobs alone: no others are listed or counted",
    ("scheduler_status", MASKED): "does not see how long the statements and turns of schedulers take",
    ("scheduler_status", NOTHING): "does not see slots and agents, nor how schedulers fare",
    ("log", NOTHING): "does not see log lines",
    ("item_failure", NOTHING): "does not see which items failed",
}
RULES: Final = {  # by constraint: what a row that breaks it must be
    "jobqueue_jq_priority_check": "a priority must be 1 to 16 letters and digits",
    "jobqueue_jq_retries_check": "jq_retries must be 0 or more, or -1: none",
    "jobqueue_jq_max_interruptions_check": "jq_max_interruptions must be 0 or more",
    "jobqueue_jq_tolerate_check": "jq_tolerate must be 0 or more",
    "jobqueue_jq_timeout_check": "jq_timeout must be longer than 0, and 100 years at most",
    "jobqueue_start_window_is_of_dates": "a time must be in the years 1 to 9999; leave out a limit that is not wanted",
    "job_queued_is_a_date": "a time must be in the years 1 to 9999",
    "jobqueue_key_needs_sql": "a key names a column of a query: give --sql, or jq_msq, too",
    "jobqueue_repeat_needs_sql": "jq_repeat is for queries: give jq_msq too",
    "jobqueue_name_is_type_dot_nonce": "a name must be TYPE.NONCE: the type, a dot, a word without dot or blank",
    "jobqueue_jq_name_key": "a job of this name exists already; see drover why NAME",
    "jobqueue_one_live_row_per_key": "a job with this jq_unique_key has not ended yet",
    "jobqueue_jq_job_fk_fkey": "this job group does not exist",
    "schedule_pkey": "a schedule of this name exists already; remove it first, or choose another name",
    "schedule_schedule_name_check": "the name of a schedule has letters, digits and _ . / - (not first), 64 at most",
    "schedule_schedule_jitter_check": "a jitter is from 0 to one day",
    "schedule_jitter_is_less_than_every": "a jitter must be less than the interval between two starts",
    "subscription_sub_targets_check": "a subscription has 10 targets at most",
    "subscription_sub_kind_check": "there is no such kind of events",
    "jobdepends_not_on_itself": "a job cannot depend on itself",
    "jobdepends_jdep_jq_depends_fk_fkey": "the job that would be depended on does not exist",
}
CONSTRAINT: Final = re.compile('violates [a-z ]*constraint "([a-z_]+)"')
# What to do next where a login has not the right, or is refused.
BE_ANOTHER: Final = "connect as a role that has the right; see drover-jobqueue(7)"
SET_PEOPLE_URL: Final = (
    "[database] url is the login of the daemon: set people_url beside it, or DROVER_DATABASE_URL, "
    "to a login that has the right; see drover.toml(5)"
)
REFUSED_LOGIN: Final = re.compile("password_file|authentication failed|password supplied|pg_hba.conf|permitted to log")
TEXTS: Final = ("text", "varchar", "name", "bpchar", '"char"', 0)  # 0: types that psycopg does not know, as an enum
READ_ONLY: Final = (
    "name the primary in [database] url if this is a replica, else look at default_transaction_read_only"
    " of the database and the role"
)


class Session:
    """A connection and what its role may see; it runs the statements of schema/cli.sql by their names.

    Where the role may read no more of a table than a view of it, statements get that view in place of the table.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def table(self, title: str, name: str, /, **parameters: Any) -> Table:
        """Return the rows of a statement under the names of its columns."""
        text, values = self._permitted(name, parameters)
        cursor = psycopg.RawCursor(self.connection).execute(text, values)
        return Table(title, tuple(column.name for column in cursor.description or ()), cursor.fetchall())

    def first(self, most: int, title: str, name: str, /, **parameters: Any) -> Table:
        """Return the first rows of a statement, `most` at most, and how many it has beside them."""
        text, values = self._permitted(name, parameters)
        bounded = b"select *, count(*) over () from (%b\n) listed limit $%d" % (text, len(values) + 1)
        cursor = psycopg.RawCursor(self.connection).execute(bounded, [*values, most])
        *columns, _ = (column.name for column in cursor.description or ())
        rows = cursor.fetchall()
        left = rows[0][-1] - len(rows) if rows else 0
        return Table(title, tuple(columns), [row[:-1] for row in rows], left=left)

    def rows(self, name: str, /, **parameters: Any) -> list[Any]:
        """Return the rows of a statement, as tuples."""
        return list(self.table("", name, **parameters).rows)

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run a statement that returns no rows."""
        text, values = self._permitted(name, parameters)
        psycopg.RawCursor(self.connection).execute(text, values)

    @contextmanager
    def expecting_many_jobs(self) -> Iterator[None]:
        """Have the server plan for many jobs: it expects few while it has not analysed a queue that grew."""
        with self.connection.transaction():
            self.run("expect_many_jobs")
            yield

    def records(self, name: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement, as mappings."""
        return self.table("", name, **parameters).records()

    def value(self, name: str, /, **parameters: Any) -> Any:
        """Return the one value of the one row of a statement."""
        ((value,),) = self.rows(name, **parameters)
        return value

    def stream(self, name: str, /, **parameters: Any) -> Iterator[Any]:
        """Yield the rows of a statement as they arrive."""
        text, values = self._permitted(name, parameters)
        return psycopg.RawCursor(self.connection).stream(text, values)

    def restrictions(self, *tables: str) -> list[str]:
        """Return what the role may not see of these tables, in sentences."""
        sentences = (RESTRICTIONS.get((table, self.access[table])) for table in tables)
        return [f"role {self.value('role')} {sentence}" for sentence in sentences if sentence]

    @cached_property
    def access(self) -> dict[str, str]:
        """Return how much the role may see of each of the RESTRICTED_TABLES."""
        return dict(self.connection.execute(statements()["access"].encode()).fetchall())

    def with_fellows(self) -> "Session":
        """Return this session, in which own jobs are also those of a tenant's other members and those shared with it.

        For statements that list jobs, see LISTED_TABLES.
        """
        other = Session(self.connection)
        other.access = self.access | {name: OURS for name in LISTED_TABLES if self.access[name] == OWN}
        return other

    def listen(self, *channels: str) -> bool:
        """Listen on the channels, and let the session idle; return False on a replica, where nothing is announced."""
        is_primary: bool = self.value("allow_idle")
        for channel in channels if is_primary else ():
            self.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        return is_primary

    def job_number(self, job: int | str) -> int:
        """Return the number of a job, given by number or by name. Errors: DroverError if the name has no job."""
        (number,) = self.job_numbers([job])
        return number

    def job_numbers(self, jobs: Sequence[int | str]) -> list[int]:
        """Return the number of each job, given by number or by name. Errors: DroverError if a name has no job."""
        names = [job for job in jobs if isinstance(job, str)]
        numbers = self.numbers_by_name(names)
        if missing := [name for name in names if name not in numbers]:
            raise DroverError(f"no job {', '.join(missing)}; drover ls --all lists all jobs")
        return [job if isinstance(job, int) else numbers[job] for job in jobs]

    def numbers_by_name(self, names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the jobs that have these names; a name without a job is left out."""
        return dict(self.rows("jobs_by_name", names=list(names))) if names else {}

    def _permitted(self, name: str, parameters: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """Return text and values of a statement, with views in place of tables of which the role may see no more."""
        query = statement(name)
        text, views = query.sql, []
        for table in (*RESTRICTED_TABLES, *OUR_VIEWS):
            with_view, count = re.subn(rf"(?<=from |join )drover\.{table}\b", table, text)
            if count and (view := statements().get(f"{table}.{self.access[OUR_VIEWS.get(table, table)]}")):
                text = with_view
                views.append(f"{table} as not materialized (\n{view}\n)")
        text = f"with {', '.join(views)} {text}" if views else text
        return text.encode(), [parameters[each] for each in query.names]


@cache
def statements(file: str = "cli.sql") -> dict[str, str]:
    """Return the texts of the statements of one of STATEMENT_FILES, by name."""
    return texts((schema_dir() / file).read_text())


@cache
def statement(name: str) -> Query:
    """Return a statement of the commands; its parameters are bound only now, since binding those of all takes 5 ms."""
    text = next(texts[name] for file in STATEMENT_FILES if name in (texts := statements(file)))
    return Query(name, *bind(text))


@contextmanager
def connect(config: Config) -> Iterator[Session]:
    """Connect to the database of the configuration, by the login of people; its schema must be up to date.

    Errors: WorldError if it cannot be reached or its schema is another; ConfigError if it refuses what was asked.
    """
    with _people_login(config) as (people, next_step), running_database(people) as conninfo:
        if is_embedded_url(people.database.url):
            update_or_check(people, conninfo)
        with translated_errors(next_step), migrate.checked(conninfo) as connection:
            session = _prepared(connection)
            session.connection.execute(setting(STANDARD | ASKED_ONCE))
            yield session


@contextmanager
def people_database(config: Config) -> Iterator[str]:
    """Yield the login of people as a conninfo; the schema must be up to date."""
    with _people_login(config) as (people, _), running_database(people) as conninfo:
        update_or_check(people, conninfo)
        yield conninfo


@contextmanager
def open_session(conninfo: str) -> Iterator[Session]:
    """Connect, in autocommit, so that every text is a str; for statements of ours."""
    with connected(conninfo) as connection:
        set_safe_path(connection)
        yield _prepared(connection)


def _prepared(connection: psycopg.Connection) -> Session:
    """Return a session in which every text is a str.

    A database in SQL_ASCII holds any bytes: the server refuses to send those that are not UTF-8 to a client of that
    encoding, and psycopg decodes no text without one. Such bytes become surrogates here, which `printable` escapes.
    """
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.execute("set client_encoding = 'SQL_ASCII'")
        for kind in TEXTS:
            connection.adapters.register_loader(kind, _AnyBytesLoader)
    set_json_loads(lambda data: json_or_text(_decoded(data)), connection)
    return Session(connection)


class _AnyBytesLoader(Loader):
    def load(self, data: Buffer) -> str:
        return _decoded(data)


def _decoded(data: Buffer | str) -> str:
    return data if isinstance(data, str) else bytes(data).decode("utf-8", "surrogateescape")


@contextmanager
def _people_login(config: Config) -> Iterator[tuple[Config, str]]:
    """Yield the configuration with people_url as its url, and what to do where that login lacks a right.

    Where only the daemon's login is configured and it is not for people, an error says what to set.
    """
    database = config.database
    if database.people_url:
        login = attrs.evolve(database, url=database.people_url, password_file="")
        yield attrs.evolve(config, database=login), BE_ANOTHER
    elif is_embedded_url(database.url) or os.environ.get("DROVER_DATABASE_URL"):
        yield config, BE_ANOTHER
    else:
        try:
            yield with_password(config, os.environ), SET_PEOPLE_URL
        except (ConfigError, DatabaseAbsentError) as error:
            if not REFUSED_LOGIN.search(str(error)) or SET_PEOPLE_URL in str(error):
                raise
            kind = ConfigError if isinstance(error, ConfigError) else DatabaseAbsentError
            raise kind(f"{error}; {SET_PEOPLE_URL}") from error


@contextmanager
def running_database(config: Config) -> Iterator[str]:
    """Yield the conninfo, whatever the schema; an embedded server runs for as long as the block lasts.

    Errors: NoDatabaseYetError, an embedded one that was not made yet.
    """
    if directory := embedded_directory(config.database.url):
        from scheduler.database.embedded_place import require_made

        require_made(directory)
    with running_or_new_database(config) as conninfo:
        yield conninfo


@contextmanager
def running_or_new_database(config: Config, say: Callable[[str], None] = warn) -> Iterator[str]:
    """Do the same, and make an embedded database where none is.

    `say` is called then, and if the server is started from other binaries than the first choice, as those do not run.
    """
    directory = embedded_directory(config.database.url)
    if directory is None:
        yield with_password(config, os.environ).database.url
        return
    from scheduler.database.embedded import join  # a slow import that other databases do not need
    from scheduler.database.embedded_place import is_made

    is_new = not is_made(directory)
    with join(directory, durable=True, say=say) as conninfo:
        if is_new:
            say(f"created an empty database in {directory}")
        yield conninfo


def conninfo_of_daemon(config: Config, conninfo: str) -> str:
    """Return the login of the daemon: the embedded database belongs to its starter, and it needs less."""
    return make_conninfo(conninfo, user="drover_scheduler") if is_embedded_url(config.database.url) else conninfo


def update_or_check(config: Config, conninfo: str) -> None:
    """Bring the embedded schema up to date; raise WorldError if that of another database is not."""
    if not is_embedded_url(config.database.url):
        migrate.check(conninfo)
    else:
        migrate.update(conninfo)


@contextmanager
def translated_errors(next_step: str = BE_ANOTHER, if_cancelled: str = RAISE_LIMIT) -> Iterator[None]:
    """Raise errors of psycopg as ours, by whose fault they are.

    `next_step` is for a login that lacks a right, `if_cancelled` for a statement that took too long.
    """
    try:
        yield
    except psycopg.Error as error:
        # What the database says; of a constraint of ours, the rule that was broken.
        message = error.diag.message_primary or str(error)
        broken = CONSTRAINT.search(message)  # of the job of a schedule
        said = RULES.get(error.diag.constraint_name or (broken[1] if broken else "")) or message
        state = error.sqlstate or ""
        site = raised_by(error.diag.context or "", state)
        # No function of ours raises class P0: a trigger does.
        if state.startswith("P0") or (site and not isinstance(error, psycopg.OperationalError)):
            by = f", raised by {site}" if site else ""
            raise ConfigError(f"the database refuses it: {message}{by} (SQLSTATE {state})") from error
        match error:
            case psycopg.errors.InsufficientPrivilege():
                raise ConfigError(f"{said}: {next_step}") from error
            case psycopg.errors.ReadOnlySqlTransaction():
                raise ConfigError(f"{said}: {READ_ONLY}") from error
            case psycopg.errors.SerializationFailure():
                advice = "try again, or raise max_standby_streaming_delay of the replica"
                raise WorldError(f"the database cancelled the query: {said}; {advice}") from error
            case psycopg.errors.QueryCanceled():
                raise WorldError(cancelled(error, if_cancelled)) from error
            case psycopg.errors.LockNotAvailable() if not error.diag.constraint_name:
                raise WorldError(f"the database is in use: {said}; try again") from error
            case psycopg.IntegrityError() | psycopg.DataError() | psycopg.errors.LockNotAvailable():
                hint = f"; {error.diag.message_hint.rstrip('.')}" if error.diag.message_hint else ""
                raise ConfigError(f"the database refuses it: {said}{hint}") from error
            case psycopg.OperationalError():
                raise WorldError(unreachable(error)) from error
        if lacks_files(str(error), error.sqlstate):
            raise WorldError(unreachable(error)) from error
        raise BugError(f"{type(error).__name__}: {error}: report this") from error
