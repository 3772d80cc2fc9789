"""Migrations on a real Postgres: once each, in order, never changed, and data outlive them."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from scheduler.database import migrate
from scheduler.database.schema_locks import LOCK_MIGRATIONS
from scheduler.errors import BugError, ConfigError, SchemaOutdatedError, WorldError
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import VERBS
from scheduler.package_data import schema_dir
from tests.dump_schema import dump
from tests.schema_tools import Connection, fetch_all

ONE = "create table drover.thing (thing_pk int primary key, label text);"
TWO = "alter table drover.thing add column size bigint not null default 7; create index on drover.thing (size);"
THREE = "create view drover.big_thing as select * from drover.thing where size > 100;"
OURS = "relnamespace = 'drover'::regnamespace"
# Functions that a server of November 2026 lets stand between a table and a column with a default.
USES_OF_ROWS = f"""
select p.oid::regprocedure::text, relname::text
  from pg_proc p join pg_depend d on d.objid = p.oid join pg_class on reltype = d.refobjid
 where d.classid = 'pg_proc'::regclass and d.refclassid = 'pg_type'::regclass
   and (prosqlbody is not null or proargdefaults is not null) and {OURS}
"""


def _write(directory: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (directory / f"{name.removeprefix('n')}.sql").write_text(text)
    return directory


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return _write(tmp_path, n0001_create_thing=ONE, n0002_add_size=TWO)


def _rows(conninfo: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(conninfo) as connection:
        return connection.execute(query.encode()).fetchall()


def _applied(conninfo: str) -> list[tuple[object, ...]]:
    return _rows(conninfo, "select number, name, checksum, applied_at from drover.migration order by number")


def test_empty_database_gets_every_migration_in_order_f145(empty_database: str, two: Path) -> None:
    assert migrate.apply(empty_database, two) == ["0001_create_thing.sql", "0002_add_size.sql"]


def test_second_run_changes_nothing_f145(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    before = _applied(empty_database), dump(empty_database)
    assert migrate.apply(empty_database, two) == []
    assert (_applied(empty_database), dump(empty_database)) == before


def test_shipped_migrations_may_be_run_twice_f145(empty_database: str) -> None:
    assert migrate.apply(empty_database)
    assert migrate.apply(empty_database) == []


def test_rewritten_migration_is_noted_as_every_other_version_notes_it(empty_database: str) -> None:
    migrate.apply(empty_database)
    noted = {value for (value,) in _rows(empty_database, "select checksum from drover.later_migration")}
    assert noted >= set(migrate.FIRST_TEXTS.values())


def test_every_table_takes_a_column_with_a_default(queue: Connection) -> None:
    tables = fetch_all(queue, "select oid::regclass::text from pg_class where relkind = 'r' and " + OURS)
    assert len(tables) > 20
    for (table,) in tables:
        queue.execute(f"alter table {table} add column added_later integer not null default 3".encode())


def test_no_standard_body_and_no_default_of_a_function_uses_the_row_of_a_table(queue: Connection) -> None:
    assert fetch_all(queue, USES_OF_ROWS) == []


def test_every_kind_of_stored_data_has_a_table_c3(empty_database: str) -> None:
    migrate.apply(empty_database)
    names = {
        name
        for (name,) in _rows(
            empty_database, "select table_name from information_schema.tables where table_schema = 'drover'"
        )
    }
    work = {"job", "jobqueue", "jobdepends", "queue", "placement", "host", "agent"}
    told = {"log", "output", "attempt", "item_failure", "command_ack"}
    assert names >= work | told | {"scheduler", "scheduler_group", "scheduler_status"}


def test_data_survive_an_upgrade_t34(empty_database: str, tmp_path: Path) -> None:
    migrate.apply(empty_database, _write(tmp_path, n0001_create_thing=ONE))
    with psycopg.connect(empty_database) as connection:
        connection.execute("insert into drover.thing values (1, 'old'), (2, null)")
    assert migrate.apply(empty_database, _write(tmp_path, n0002_add_size=TWO)) == ["0002_add_size.sql"]
    things = _rows(empty_database, "select thing_pk, label, size from drover.thing order by thing_pk")
    assert things == [(1, "old", 7), (2, None, 7)]


def test_migration_that_fails_leaves_nothing_of_those_before_it_f145(empty_database: str, two: Path) -> None:
    _write(two, n0003_add_view=THREE + "select 1/0;")
    said = r"0003_add_view\.sql: division by zero(.|\n)*: nothing was applied; report this, with PostgreSQL 1\d\.\d"
    with pytest.raises(BugError, match=said):
        migrate.apply(empty_database, two)
    assert _rows(empty_database, "select to_regnamespace('drover')") == [(None,)]


def test_upgrade_that_fails_leaves_the_schema_as_it_was(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    before = _applied(empty_database), dump(empty_database)
    with pytest.raises(BugError):
        migrate.apply(empty_database, _write(two, n0003_add_view=THREE, n0004_do_nonsense="nonsense"))
    assert (_applied(empty_database), dump(empty_database)) == before


def test_roles_that_fail_leave_no_migration(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(schema_dir(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "roles.sql").write_text("nonsense")
    monkeypatch.setattr(migrate, "schema_dir", lambda: tmp_path)
    with pytest.raises(BugError, match=r"roles\.sql: syntax error"):
        migrate.update(empty_database)
    assert _rows(empty_database, "select to_regnamespace('drover')") == [(None,)]


def test_repaired_migration_is_applied_with_those_before_it(empty_database: str, two: Path) -> None:
    _write(two, n0003_add_view="nonsense")
    with pytest.raises(BugError):
        migrate.apply(empty_database, two)
    names = ["0001_create_thing.sql", "0002_add_size.sql", "0003_add_view.sql"]
    assert migrate.apply(empty_database, _write(two, n0003_add_view=THREE)) == names


def test_migration_that_meets_a_deadlock_may_be_repeated(empty_database: str, two: Path) -> None:
    deadlock = "do $$ begin raise exception 'deadlock detected' using errcode = 'deadlock_detected'; end $$;"
    _write(two, n0003_add_view=THREE + deadlock)
    with pytest.raises(WorldError, match="another session and this one waited for each other's locks: try again"):
        migrate.apply(empty_database, two)
    assert migrate.apply(empty_database, _write(two, n0003_add_view=THREE))[-1] == "0003_add_view.sql"


def test_changed_migration_is_refused(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    _write(two, n0001_create_thing=ONE + "-- better")
    with pytest.raises(ConfigError, match=r"0001_create_thing\.sql has changed .*: restore the file"):
        migrate.apply(empty_database, two)


def test_newer_database_is_refused(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    (two / "0002_add_size.sql").unlink()
    with pytest.raises(ConfigError, match=r"it has 0002_add_size\.sql: upgrade drover"):
        migrate.apply(empty_database, two)


LATER = "insert into drover.later_migration (number, name, checksum) values (%s, %s, '')"


def test_migration_that_the_version_before_may_lack_is_noted_where_it_does_not_look(
    empty_database: str, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "RUNS_WITH", 1)
    assert migrate.apply(empty_database, two) == ["0001_create_thing.sql", "0002_add_size.sql"]
    assert [row[0] for row in _applied(empty_database)] == [1]
    assert migrate.apply(empty_database, two) == []
    _write(two, n0003_add_view=THREE)
    with pytest.raises(SchemaOutdatedError, match=r"date: 0003_add_view\.sql not applied"):
        migrate.check(empty_database, two)
    monkeypatch.setattr(migrate, "RUNS_WITH", 2)
    assert migrate.apply(empty_database, two) == ["0003_add_view.sql"]
    assert [row[0] for row in _applied(empty_database)] == [1, 2]


def test_check_accepts_a_newer_migration_that_this_version_may_lack(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(LATER, (9999, "9999_be_newer.sql"))
    migrate.check(database)  # raises when it does not know the schema
    assert migrate.apply(database) == []


def test_check_waits_for_the_rights_of_a_role_on_a_new_schema(database_with_roles: str) -> None:
    with psycopg.connect(database_with_roles) as connection:
        connection.execute("revoke select on drover.later_migration from drover_scheduler")
    with pytest.raises(SchemaOutdatedError, match="the roles have no rights on it: run drover init --roles"):
        migrate.check(f"{database_with_roles} user=drover_scheduler")


def test_check_waits_if_the_schema_becomes_new_while_it_looks(
    database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_with_roles) as connection:
        connection.execute("revoke select on drover.later_migration from drover_scheduler")
    monkeypatch.setattr(migrate, "SEES_LATER", "select null::boolean")  # the table was not there when it looked
    with pytest.raises(SchemaOutdatedError, match="not applied: run drover init"):
        migrate.check(f"{database_with_roles} user=drover_scheduler")


def test_check_accepts_commands_in_the_order_of_another_version(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("update drover.verb set verb_number = 40 - verb_number")
    migrate.check(database)  # raises when one is unknown
    assert migrate.apply(database) == ["commands"]


def test_gap_in_the_applied_migrations_is_refused(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    with psycopg.connect(empty_database) as connection:
        connection.execute("delete from drover.migration where number = 1")
    with pytest.raises(ConfigError, match=r"lacks 0001_create_thing\.sql but has 0002_add_size\.sql"):
        migrate.apply(empty_database, two)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("n0004_add_view", r"0004_add_view\.sql stands where number 0003 belongs"),
        ("n0002_add_view", r"0002_add_view\.sql stands where number 0003 belongs"),
        ("n3_add_view", r"found 3_add_view\.sql, expected NNNN_verb_noun\.sql"),
        ("n0003_view", r"found 0003_view\.sql, expected NNNN_verb_noun\.sql"),
    ],
)
def test_misnamed_migration_file_is_refused_before_any_change(
    empty_database: str, two: Path, name: str, complaint: str
) -> None:
    _write(two, **{name: THREE})
    with pytest.raises(ConfigError, match=complaint):
        migrate.apply(empty_database, two)
    assert _rows(empty_database, "select to_regnamespace('drover')") == [(None,)]


def test_directory_without_migrations_is_refused(empty_database: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found nothing"):
        migrate.apply(empty_database, tmp_path)


def test_second_init_waits_for_the_first_and_names_it(empty_database: str, two: Path) -> None:
    first, second = "0001_create_thing.sql", "0002_add_size.sql"
    (two / second).rename(two / "later")
    assert migrate.apply(empty_database, two) == [first]
    (two / "later").rename(two / second)
    with psycopg.connect(empty_database) as other:
        other.execute(LOCK_MIGRATIONS.encode())
        holder = f"pid {other.info.backend_pid}, user {other.info.user}, keeps drover.migration locked since"
        with pytest.raises(WorldError, match=holder):
            migrate.apply(empty_database, two, patience_s=0.1)
    assert migrate.apply(empty_database, two) == [second]


def test_two_inits_at_once_apply_each_migration_once(empty_database: str, two: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        applied = [threads.submit(migrate.apply, empty_database, two) for _ in range(4)]
    assert sorted(name for each in applied for name in each.result()) == ["0001_create_thing.sql", "0002_add_size.sql"]


@pytest.mark.parametrize("role", ["readonly", "frontend", "frontend_sql", "operator", "msq", "agentdb"])
def test_advisory_locks_of_other_roles_do_not_block_init(database_with_roles: str, role: str) -> None:
    with psycopg.connect(database_with_roles, user=f"drover_{role}") as reader:
        reader.execute("select pg_advisory_lock(n) from unnest(array[1, 7310597, 110442659079538]) n")
        with suppress(psycopg.errors.InsufficientPrivilege), reader.transaction():
            reader.execute("lock table drover.migration in access share mode")
        for mode in ("row share", "row exclusive", "share", "share row exclusive", "exclusive", "access exclusive"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction():
                reader.execute(f"lock table drover.migration in {mode} mode".encode())
        assert migrate.apply(database_with_roles, patience_s=1.0) == []
        with migrate.changing(database_with_roles, patience_s=1.0) as connection:
            migrate.apply_roles(connection)


def test_check_accepts_a_migrated_database_f143(database: str) -> None:
    migrate.check(database)  # raises when they do not
    with psycopg.connect(database) as connection:
        states = connection.execute("select unnest(enum_range(null::drover.job_state))::text").fetchall()
    assert [state for (state,) in states] == list(JOB_STATES)


def test_check_refuses_an_empty_database_f143(empty_database: str) -> None:
    with pytest.raises(WorldError, match="schema unknown: the database has no schema drover"):
        migrate.check(empty_database)


def test_check_refuses_an_old_database_f143(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    _write(two, n0003_add_view=THREE)
    with pytest.raises(WorldError, match=r"schema out of date: 0003_add_view\.sql not applied: run drover init"):
        migrate.check(empty_database, two)


def test_check_refuses_a_changed_migration_f143(empty_database: str, two: Path) -> None:
    migrate.apply(empty_database, two)
    _write(two, n0002_add_size=TWO + " ")
    with pytest.raises(WorldError, match=r"schema unknown: 0002_add_size\.sql has changed"):
        migrate.check(empty_database, two)


def test_unreachable_database_is_a_world_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="database not reachable: connection is bad"):
        migrate.check(f"host={tmp_path}")


def test_broken_conninfo_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"check \[database\] url"):
        migrate.check("this is no conninfo")


def test_role_without_the_create_right_is_a_config_error(empty_database: str, two: Path) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("drop role if exists test_poor")
        connection.execute("create role test_poor login")
    with pytest.raises(ConfigError, match="a role that owns the database"):
        migrate.apply(f"{empty_database} user=test_poor", two)


@pytest.mark.parametrize("act", [migrate.check, migrate.apply])
def test_a_server_that_is_too_old_is_refused_with_its_version_j123(
    empty_database: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]
) -> None:
    monkeypatch.setattr(migrate, "OLDEST", 99)
    with pytest.raises(WorldError, match=r"PostgreSQL 99 or newer is needed, and this is 1[0-9]+\.[0-9]+"):
        act(empty_database)


VERB = "select verb_number, verb_for_owners, verb_job_every from drover.verb where verb_name = %s"


def test_init_writes_the_registry_of_commands(empty_database: str) -> None:
    assert "0003_register_verbs.sql" in migrate.apply(empty_database)
    with psycopg.connect(empty_database) as connection:
        names = [name for (name,) in connection.execute("select verb_name from drover.verb order by verb_number")]
        assert names == list(VERBS)
        assert connection.execute(VERB, ("run",)).fetchone() == (list(VERBS).index("run"), True, 1)


@pytest.mark.slow
def test_right_of_a_verb_changed_by_hand_is_reported_by_check_and_restored_by_init(empty_database: str) -> None:
    migrate.apply(empty_database)
    with psycopg.connect(empty_database) as connection:
        connection.execute("update drover.verb set verb_for_owners = true where verb_name = 'shutdown'")
    with pytest.raises(WorldError, match=r"commands in drover\.verb: shutdown: run drover init"):
        migrate.check(empty_database)
    assert migrate.apply(empty_database) == ["commands"]
    migrate.check(empty_database)
    assert migrate.apply(empty_database) == []


def test_command_of_a_newer_version_stays_registered(empty_database: str) -> None:
    migrate.apply(empty_database)
    with psycopg.connect(empty_database) as connection:
        connection.execute("insert into drover.verb values ('thaw', 99, false, 0)")
    assert migrate.apply(empty_database) == []
    with psycopg.connect(empty_database) as connection:
        assert connection.execute(VERB, ("thaw",)).fetchone() == (99, False, 0)
