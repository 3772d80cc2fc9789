"""What people get wrong: a sentence that says what it is and what to do, and nothing that breaks a terminal."""

from pathlib import Path

import psycopg
import pytest

from tests.cli_tools import CONFIG, DROVER, Drover, environment, insert
from tests.conftest import _database
from tests.old_server import old_server
from tests.terminal_tools import shown_on_terminal


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://[::1/x", "[database] url"),
        ("host=/nonexistent dbname=x", "database not reachable: "),
        ("host=127.0.0.1 port=1 dbname=x", "database not reachable: "),
        ("hots=alpha dbname=x", "hots"),
    ],
)
def test_wrong_address_of_the_database_is_a_sentence(
    drover: Drover, monkeypatch: pytest.MonkeyPatch, url: str, told: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", url)
    done = drover("ls")
    assert (done.status in (2, 3), done.out, told in done.err) == (True, "", True)
    assert "Traceback" not in done.err


@pytest.mark.parametrize("words", ["ls", "status", "show 1", "submit noop x"])
def test_schema_that_is_newer_says_that_drover_is_to_be_upgraded(
    drover: Drover, active: psycopg.Connection, words: str
) -> None:
    active.execute("insert into drover.migration (number, name, checksum) values (9999, '9999_be_newer.sql', '')")
    done = drover(*words.split())
    assert (done.status, done.out, len(done.err.splitlines())) == (3, "", 1)
    assert "the database is newer than this drover: it has 9999_be_newer.sql: upgrade drover" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("words", ["init", "ls", "status", "submit noop x", "check"])
def test_server_that_is_too_old_is_named_with_the_version_that_is_needed(
    drover: Drover, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    with old_server() as url:
        monkeypatch.setenv("DROVER_DATABASE_URL", url)
        done = drover(*words.split())
    told = [line for line in (done.out + done.err).splitlines() if "PostgreSQL" in line]
    assert (done.status, len(told)) == (3, 1)
    assert told[0].endswith("PostgreSQL 14 or newer is needed, and this is 12.22: upgrade it")


def test_health_of_a_newer_schema_is_critical(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("insert into drover.migration (number, name, checksum) values (9999, '9999_be_newer.sql', '')")
    done = drover("health")
    assert (done.status, done.err) == (2, "")
    assert done.out.startswith("critical: database: schema unknown: the database is newer than this drover")


@pytest.mark.parametrize("words", ["status", "status -v", "ls", "why --all", "stats", "health", "queue", "show 1", ""])
def test_nothing_is_wider_than_a_terminal_of_40_columns(
    database: str, config: Path, active: psycopg.Connection, words: str
) -> None:
    insert(active, args="a long parameter " * 20)
    insert(active, "nosuch")
    status, text = shown_on_terminal([*DROVER, *words.split()], environment(database, config), 24, 40)
    drawn = [line for line in text.splitlines() if not line.startswith(("group ", "note: ", "warning: ", "critical: "))]
    assert status in (0, 1, 2)
    assert [line for line in drawn if len(line.rstrip()) > 40 and ": " not in line and ";" not in line] == []


MARKUP = "noop.[bold]x[/bold]<b>"


@pytest.mark.parametrize("words", ["ls", "show 1", "why noop.[bold]x[/bold]<b>", "log", "status"])
def test_markup_in_names_is_shown_as_it_is(database: str, config: Path, active: psycopg.Connection, words: str) -> None:
    active.execute("insert into drover.jobqueue (jq_type, jq_name) values ('noop', %s)", (MARKUP,))
    active.execute("insert into drover.log (log_jq_fk, log_type, log_message) values (1, 'LOG', %s)", (MARKUP,))
    status, text = shown_on_terminal([*DROVER, *words.split()], environment(database, config), 24, 200)
    assert status == 0
    assert (MARKUP in text) == (words in ("ls", "show 1", "log"))


# ---- configuration and databases


def test_configuration_is_read_where_an_option_says_and_a_missing_one_is_named_j100(
    drover: Drover, active: psycopg.Connection, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DROVER_DATABASE_URL")
    done = drover("-c", "/nonexistent/drover.toml", "ls")
    assert (done.status, done.out, "/nonexistent/drover.toml" in done.err) == (2, "", True)
    other = config.with_name("other.toml")
    other.write_text(f'[database]\nurl = "{active.info.dsn}"\n{CONFIG}')
    assert drover("-c", str(other), "ls").status == 0


def test_other_database_is_another_queue_r17(
    drover: Drover, active: psycopg.Connection, postgres: str, migrated: str
) -> None:
    insert(active)
    with _database(postgres, migrated) as (_, other):
        assert drover("-d", other, "ls", "--json").out == ""
        assert drover("-d", other, "submit", "--force", "noop", "there").out == "1\n"
    assert len(drover("-d", active.info.dsn, "ls", "--json").out.splitlines()) == 1


def test_views_and_ls_show_the_same_r18(drover: Drover, many: psycopg.Connection) -> None:
    view = many.execute("select jq_pk, jq_state::text, jq_type from drover.jobs order by 1").fetchall()
    lines = [line.split() for line in drover("ls", "--all").out.splitlines()]
    places = [lines[0].index(name) for name in ("JOB", "STATE", "TYPE")]
    assert [(int(line[places[0]]), line[places[1]], line[places[2]]) for line in lines[1:]] == view
