"""Forward-only migrations: numbered SQL files, applied once each, in order, under a lock.

Touches the schema `drover` of one database, before the daemon runs; blocking. The table drover.migration says
which files were applied and what was in them. Refuses to go back, to skip, and to know what the SQL means.

The previous version goes on with this schema, so it must not be told of what it need not know: the migrations after
RUNS_WITH are noted in drover.later_migration, which that version does not read. A program accepts migrations there that
it has no file of; one in drover.migration that it has no file of means that its statements fail (decision 0051).
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import sleep

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.database.connect import connected, set_safe_path, translated
from scheduler.database.schema_locks import LEASES, PATIENCE_S, holder, lock_all, lock_migrations, set_patience
from scheduler.drivers.statements import STANDARD, lacks_files, setting
from scheduler.errors import BugError, ConfigError, SchemaOutdatedError, WorldError
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import VERBS
from scheduler.package_data import compat_names, schema_dir

FILE_NAME = re.compile(r"(\d{4})_[a-z0-9]+(_[a-z0-9]+)+\.sql")

# The last migration that a program must know to work with this schema: that of the wheel in tests/versions.
RUNS_WITH = 6

# Check-sums of files that were rewritten because a newer PostgreSQL refuses their first text, each with that of the
# first text: both build the same. The database notes the latter, as it does for every other version.
FIRST_TEXTS = {
    "670f6d482b707c34dae2a9917d1eae1a639df635e76e83123532108be07cb43c":  # 0025_match_attributes.sql
    "31f67eacbcfa73da5b1a0c6dc7706cd51c247df933b41777be399acd66c32629",
}  # fmt: skip

CREATE_TABLE = """
create schema if not exists drover;
create table if not exists drover.migration (
    number int primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
);
create table if not exists drover.later_migration (
    number int primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
)
"""
CREATE_PAUSES = (0.01, 0.1, 0.5, 1.0)  # seconds between tries
# A schema of that name without our table of migrations belongs to another program, if it is not empty. All is read from
# the catalogs, in one snapshot: what `to_regclass` knows may be older, and another session may create the tables now.
FOREIGN = """
with found as materialized (
  select c.oid, relname::text, relkind from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
   where nspname = 'drover')
select array(select relname from found where relkind in ('r', 'p', 'v', 'm', 'f', 'S') order by 1 limit 4)
 where not exists (select from found join pg_catalog.pg_attribute on attrelid = found.oid
                    where relname = 'migration' and attname = 'checksum')
"""
SELECT_NEEDED = "select number, name, checksum, true from drover.migration order by number"
SEES_LATER = "select has_table_privilege(to_regclass('drover.later_migration'), 'select')"  # null: it is not there
IS_HIDDEN = "select row_security_active(to_regclass('drover.migration'))"  # the site has switched that on
# In one statement, since `init` may move rows from one table to the other meanwhile.
SELECT_APPLIED = """
select number, name, checksum, true from drover.migration
 union all select number, name, checksum, false from drover.later_migration order by number
"""
INSERT_NEEDED = "insert into drover.migration (number, name, checksum) values (%s, %s, %s)"
INSERT_LATER = "insert into drover.later_migration (number, name, checksum) values (%s, %s, %s)"
# What a version before could lack, this one's schema cannot.
NEED_EARLIER = """
with known as (delete from drover.later_migration where number <= %s returning *)
insert into drover.migration select * from known
"""
SELECT_STATES = "select enumlabel from pg_catalog.pg_enum where enumtypid = to_regtype('drover.job_state')"
# Not every login may read it: drover.command() does.
SEES_VERBS = "select coalesce(has_table_privilege(to_regclass('drover.verb'), 'select'), false)"
SELECT_VERBS = """
select verb_name, verb_number, verb_for_owners, verb_job_every, array_to_string(verb_in_bulk, ',') from drover.verb
"""
# One that is not ours stays: it is that of a newer drover, which shares the database.
WRITE_VERB = """
insert into drover.verb (verb_name, verb_number, verb_for_owners, verb_job_every, verb_in_bulk)
values (%s, %s, %s, %s, string_to_array(%s, ','))
on conflict (verb_name) do update set verb_number = excluded.verb_number, verb_for_owners = excluded.verb_for_owners,
  verb_job_every = excluded.verb_job_every, verb_in_bulk = excluded.verb_in_bulk
"""
SELECT_GRANTED = """
select coalesce(bool_or(grantee = to_regrole('drover_scheduler')), false)
  from pg_catalog.pg_namespace, pg_catalog.aclexplode(nspacl) where nspname = 'drover'
"""

CHANGES_LEASES = re.compile(rb"\b(table|on)\s+(only\s+)?drover\.(%b)\b" % "|".join(LEASES).encode(), re.IGNORECASE)
# The views of an older system hang on views that a migration may replace: it drops them, and `init` makes them again.
COMPAT_VIEWS = """
select array(select oid::regclass::text from pg_catalog.pg_class where relnamespace = n.oid and relkind = 'v')
  from pg_catalog.pg_namespace n where nspname = %s
"""

# Roles are of the whole server, which several databases may belong to.
CONCURRENT = "tuple concurrently updated"
RIGHTS = "run drover init by a role that owns the database, with --roles one that may create roles too"
NAME = "drover"  # of sessions whose login has none
OLDEST = 14  # major version of PostgreSQL
ENCODINGS = ("UTF8", "SQL_ASCII")  # of databases whose every text can be read out


@dataclass(frozen=True, slots=True)
class Migration:
    """A numbered file, or what the database remembers of one."""

    number: int
    name: str
    checksum: str


def apply(conninfo: str, directory: Path | None = None, patience_s: float = PATIENCE_S) -> list[str]:
    """Apply the migrations that are missing, all or none, and return their names.

    The registry of commands is written with them; where only that was out of date, `commands` is returned.
    ConfigError if files and database contradict each other, WorldError if the database cannot be reached.
    """
    with changing(conninfo, patience_s) as connection:
        return apply_missing(connection, directory, patience_s)


def update(conninfo: str) -> None:
    """Apply the migrations that are missing and then the roles and the views of older systems, all or nothing."""
    with changing(conninfo) as connection:
        if apply_missing(connection):
            apply_roles(connection)
            for name in lost_compat(connection):
                apply_compat(connection, name)


@contextmanager
def changing(conninfo: str, patience_s: float = PATIENCE_S) -> Iterator[psycopg.Connection]:
    """Yield a connection in a transaction, so that all that is changed with it takes effect at the end, or nothing."""
    with _connection(conninfo) as connection:
        encoding = connection.info.parameter_status("server_encoding")
        is_ours = connection.execute("select to_regclass('drover.migration') is not null").fetchone()
        if encoding not in ENCODINGS and is_ours == (False,):  # one that has our schema may stay
            raise ConfigError(wrong_encoding(encoding))
        _refuse_foreign(connection)
        with connection.transaction():
            set_patience(connection, patience_s)
            yield connection


def apply_missing(
    connection: psycopg.Connection, directory: Path | None = None, patience_s: float = PATIENCE_S
) -> list[str]:
    """Do what `apply` does, in the transaction of `changing`."""
    directory = directory or schema_dir() / "migrations"
    files = _files(directory)
    _create_tables(connection)
    lock_migrations(connection)
    missing = _missing(files, connection)
    if missing:
        texts = [(directory / migration.name).read_bytes() for migration in missing]
        _lock_and_clear(connection, texts, patience_s)
        for migration, text in zip(missing, texts, strict=True):
            with _blamed(connection, migration.name):
                connection.execute(text)
                _note(connection, migration)
    verbs = _unwritten_verbs(connection)
    connection.cursor().executemany(WRITE_VERB, verbs.values())
    return [migration.name for migration in missing] or ["commands"] * bool(verbs)


def _create_tables(connection: psycopg.Connection) -> None:
    """Create the schema and our tables in it, if they are not there.

    Another session may do so at the same time: what it has committed is refused to us at once, and seen by us a little
    later only.
    """
    for pause in (*CREATE_PAUSES, None):
        try:
            with connection.transaction():
                connection.execute(CREATE_TABLE)
            return
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema, psycopg.errors.DuplicateTable):
            if pause is None:
                raise
            sleep(pause)


def _lock_and_clear(connection: psycopg.Connection, texts: list[bytes], patience_s: float) -> None:
    """Lock all that migrations may change, and drop the views of older systems."""
    schemas = [f"{name}_compat" for name in compat_names()]
    leases = any(CHANGES_LEASES.search(text) for text in texts)
    lock_all(connection, schemas, leases=leases, patience_s=patience_s)
    for schema in schemas:
        for (views,) in connection.execute(COMPAT_VIEWS, (schema,)).fetchall():
            for view in views:
                connection.execute(f"drop view if exists {view} cascade".encode())


def _refuse_foreign(connection: psycopg.Connection) -> None:
    """Raise ConfigError if the schema drover is there and belongs to another program."""
    found = connection.execute(FOREIGN).fetchone()
    if found and found[0]:
        tables = ", ".join(found[0])
        problem = f"the schema drover of this database belongs to another program: it has {tables}"
        raise ConfigError(f"{problem}; nothing was changed: use another database, or rename that schema")


def check(conninfo: str, directory: Path | None = None) -> None:
    """Raise WorldError unless every migration is applied, nothing else is that matters, and both know the same states.

    It is a SchemaOutdatedError if `init` of this version has not been run yet.
    """
    with checked(conninfo, directory):
        pass


@contextmanager
def checked(conninfo: str, directory: Path | None = None) -> Iterator[psycopg.Connection]:
    """Yield a connection to a database whose schema is up to date; what its user does wrong is not translated.

    Errors: as those of `check`.
    """
    files = _files(directory or schema_dir() / "migrations")
    with ExitStack() as stack:
        with translated("connect as a role that has the right; see drover-jobqueue(7)"):
            connection = stack.enter_context(_opened(conninfo))
            _check(connection, files)
        yield connection


def _check(connection: psycopg.Connection, files: list[Migration]) -> None:
    _refuse_foreign(connection)
    try:
        missing = _missing(files, connection)
    except psycopg.errors.UndefinedTable as error:
        raise WorldError("schema unknown: the database has no schema drover: run drover init") from error
    except ConfigError as error:
        raise WorldError(f"schema unknown: {error}") from error
    verbs = [] if missing else _unknown_verbs(connection)
    if missing:
        names = ", ".join(migration.name for migration in missing)
        raise SchemaOutdatedError(f"schema out of date: {names} not applied: run drover init")
    if verbs:
        raise SchemaOutdatedError(f"schema out of date: commands in drover.verb: {', '.join(verbs)}: run drover init")
    states = {state for (state,) in connection.execute(SELECT_STATES)}  # last: the migrations may only now be applied
    if odd := states.symmetric_difference(JOB_STATES):
        problem = f"only one of database and drover knows the job state {', '.join(sorted(odd))}"
        raise WorldError(f"schema unknown: {problem}: install the drover that made the database")


def apply_roles(connection: psycopg.Connection) -> None:
    """Create the roles and their grants: schema/roles.sql, which may be run repeatedly."""
    _apply_file(connection, "roles.sql")


def apply_compat(connection: psycopg.Connection, name: str) -> None:
    """Create the views of an older system in schema NAME_compat, or replace them: schema/compat/NAME.sql."""
    _apply_file(connection, f"compat/{name}.sql")


def _apply_file(connection: psycopg.Connection, name: str) -> None:
    """Run a file of the schema in the transaction of `changing`, under the lock of migrations."""
    lock_migrations(connection)
    with _blamed(connection, name):
        connection.execute((schema_dir() / name).read_bytes())


def present_compat(connection: psycopg.Connection) -> list[str]:
    """Return the older systems that the database has a schema for."""
    return [name for name, views in _compat_views(connection) if views is not None]


def lost_compat(connection: psycopg.Connection) -> list[str]:
    """Return those whose views a migration has dropped."""
    return [name for name, views in _compat_views(connection) if views == []]


def _compat_views(connection: psycopg.Connection) -> list[tuple[str, list[str] | None]]:
    """Return each older system with its views; None where it has no schema."""
    found = [(name, connection.execute(COMPAT_VIEWS, (f"{name}_compat",)).fetchone()) for name in compat_names()]
    return [(name, row[0] if row else None) for name, row in found]


def has_roles(connection: psycopg.Connection) -> bool:
    """Return whether `apply_roles` was done in this database: then its grants are to follow the schema."""
    return connection.execute(SELECT_GRANTED).fetchone() == (True,)


def wrong_encoding(name: str | None) -> str:
    """Return what is wrong with the encoding of a database, and what next."""
    problem = (
        f"the encoding of the database is {name}, which holds bytes that are no characters: one job could stop all"
    )
    return f"{problem}; use one made by: create database NAME encoding 'UTF8' template template0"


# Files and what the database remembers of them


def _files(directory: Path) -> list[Migration]:
    """List the migrations of a directory in order; ConfigError at a wrong name, a gap or a double."""
    paths = sorted(directory.glob("*.sql"))
    wrong = [path.name for path in paths if not FILE_NAME.fullmatch(path.name)]
    if wrong or not paths:
        found = ", ".join(wrong) or "nothing"
        raise ConfigError(f"{directory}: found {found}, expected NNNN_verb_noun.sql: install drover again")
    files = [Migration(int(path.name[:4]), path.name, _checksum(path.read_bytes())) for path in paths]
    for expected, migration in enumerate(files, start=1):
        if migration.number != expected:
            problem = f"{migration.name} stands where number {expected:04} belongs"
            raise ConfigError(f"{directory}: {problem}: install drover again")
    return files


def _checksum(text: bytes) -> str:
    found = sha256(text).hexdigest()
    return FIRST_TEXTS.get(found, found)


def _missing(files: list[Migration], connection: psycopg.Connection) -> list[Migration]:
    """Return the files still to apply; ConfigError unless those applied are the first of them, unchanged.

    Later ones may be applied too, if this version can do without. SchemaOutdatedError if the roles have no rights yet.
    """
    sees_later = connection.execute(SEES_LATER).fetchone()
    if connection.execute(IS_HIDDEN).fetchone() == (True,):
        problem = "the site has switched row security on, which hides the rows of drover.migration"
        raise ConfigError(f"{problem}: alter table drover.migration disable row level security")
    if sees_later == (False,):
        raise SchemaOutdatedError("schema out of date: the roles have no rights on it: run drover init --roles")
    rows = connection.execute(SELECT_APPLIED if sees_later == (True,) else SELECT_NEEDED).fetchall()
    if newer := ", ".join(name for number, name, _, is_needed in rows if is_needed and number > len(files)):
        raise ConfigError(f"the database is newer than this drover: it has {newer}: upgrade drover")
    applied = [Migration(number, name, checksum) for number, name, checksum, _ in rows]
    for file, old in zip(files, applied, strict=False):
        if old.number != file.number:
            problem = f"the database lacks {file.name} but has {old.name}"
            raise ConfigError(f"{problem}: restore drover.migration from a backup")
        if old.checksum != file.checksum:
            problem = f"{file.name} has changed since it was applied (as {old.name})"
            raise ConfigError(f"{problem}: restore the file and put the change into a new migration")
    return files[len(applied) :]


def _note(connection: psycopg.Connection, migration: Migration) -> None:
    """Note that a migration is applied, and what a version has to know from now on."""
    insert = INSERT_NEEDED if migration.number <= RUNS_WITH else INSERT_LATER
    connection.execute(insert, (migration.number, migration.name, migration.checksum))
    connection.execute(NEED_EARLIER, (RUNS_WITH,))


def _unknown_verbs(connection: psycopg.Connection) -> list[str]:
    """Return the commands that drover.verb lacks, or gives to others; another version may put them in another order."""
    if not (unwritten := _unwritten_verbs(connection)):
        return []
    written = {(name, *rights) for name, _, *rights in connection.execute(SELECT_VERBS)}
    return [name for name, (_, _, *rights) in unwritten.items() if (name, *rights) not in written]


def _unwritten_verbs(connection: psycopg.Connection) -> dict[str, tuple[object, ...]]:
    """Return by name the rows of drover.verb that are not as the registry says; none where it cannot be read."""
    if connection.execute(SEES_VERBS).fetchone() == (False,):
        return {}
    ours = [
        (verb.name, place, verb.is_for_owners, verb.job_every, ",".join(sorted(verb.in_bulk)))
        for place, verb in enumerate(VERBS.values())
    ]
    written = set(connection.execute(SELECT_VERBS))
    return {row[0]: row for row in ours if row not in written}


@contextmanager
def _connection(conninfo: str) -> Iterator[psycopg.Connection]:
    """Connect to change the schema. Errors: WorldError if a lock is not had in time; ConfigError without the right."""
    with translated("give [database] url a role that owns the database"), _opened(conninfo) as connection:
        try:
            yield connection
        except psycopg.errors.LockNotAvailable as error:
            raise WorldError(holder(connection)) from error
        except psycopg.errors.DeadlockDetected as error:
            raise WorldError("another session and this one waited for each other's locks: try again") from error


@contextmanager
def _opened(conninfo: str) -> Iterator[psycopg.Connection]:
    with connected(make_conninfo(conninfo, fallback_application_name=NAME)) as connection:
        if connection.info.server_version < OLDEST * 10_000:
            version = connection.info.parameter_status("server_version")
            raise WorldError(f"PostgreSQL {OLDEST} or newer is needed, and this is {version}: upgrade it")
        set_safe_path(connection)
        connection.execute(setting(STANDARD))
        yield connection


@contextmanager
def _blamed(connection: psycopg.Connection, name: str) -> Iterator[None]:
    """Name the file that failed, and the server that refused it, which is our mistake."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"{name}: {error}: {RIGHTS}") from error
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        if lacks_files(str(error), error.sqlstate):
            raise
        if CONCURRENT in str(error):
            raise WorldError(f"{name}: {error}: another drover init of this server changes roles: try again") from error
        raise BugError(f"{name}: {error}: nothing was applied; report this, with {server(connection)}") from error


def server(connection: psycopg.Connection) -> str:
    """Return the product and the version of the server."""
    return f"PostgreSQL {connection.info.parameter_status('server_version')}"
