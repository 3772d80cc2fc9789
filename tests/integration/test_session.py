"""Whatever a site sets for its roles and databases: our sessions have what they depend on, and jobs end well."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from scheduler.drivers.loop import Loop
from scheduler.drivers.queue import settings
from scheduler.drivers.statements import OURS, STANDARD, THEIRS
from tests.connection_tools import opened, rows_of, run
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import agent, lines, python, rec

# Each the opposite of what is usual, or of what our statements need.
FLIPPED = {
    "array_nulls": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "client_min_messages": "debug1",
    "DateStyle": "SQL, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "exit_on_error": "on",
    "extra_float_digits": "-15",
    "force_parallel_mode": "on",
    "from_collapse_limit": "1",
    "geqo_threshold": "2",
    "idle_in_transaction_session_timeout": "1s",
    "idle_session_timeout": "1s",
    "IntervalStyle": "iso_8601",
    "jit_above_cost": "0",
    "join_collapse_limit": "1",
    "plan_cache_mode": "force_custom_plan",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "pg_temp",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "TimeZone": "Pacific/Kiritimati",
    "transform_null_equals": "on",
    "work_mem": "64kB",
    "xmlbinary": "hex",
    "xmloption": "document",
}  # fmt: skip
UNBOUND = {"statement_timeout": "1s", "lock_timeout": "1ms"}  # for the daemon alone
ROLES = (
    "drover_scheduler",
    "drover_operator",
    "drover_frontend",
    "drover_frontend_sql",
    "drover_msq",
    "drover_agentdb",
)
VARIABLES = json.dumps({"a": r"x\y 'z'"})
ASKING = """
import sys
print('OK', flush=True)
for line in sys.stdin:
    print('DB: select 0.1::float8 + 0.2 as x', flush=True)
    answer = sys.stdin.readline() + sys.stdin.readline()
    print('OK' if 'x="0.30000000000000004"' in answer else 'FAIL ' + answer, flush=True)
"""


def flip(database: str, role: str, wanted: dict[str, str]) -> None:
    """Set these for a role in this database, which goes before all that is set for the role or the database alone."""
    with psycopg.connect(database, autocommit=True) as connection:
        for name, value in wanted.items():
            place = sql.Identifier(role), sql.Identifier(connection.info.dbname), sql.Identifier(name)
            text = sql.SQL("alter role {} in database {} set {} = {}").format(*place, sql.Literal(value))
            connection.execute(text)


@pytest.fixture
def flipped(database_with_roles: str) -> str:
    """Return a database where all is set otherwise."""
    for role in ROLES:
        flip(database_with_roles, role, FLIPPED)
    flip(database_with_roles, "drover_scheduler", UNBOUND)
    return database_with_roles


@pytest.mark.slow
def test_jobs_of_every_kind_succeed_under_any_role_and_database_settings(
    flipped: str, launch: Launch, ask: Ask, record: Path
) -> None:
    text = (
        agent("rec", rec(record))
        + agent("sh", ["sh", "-c", "{args}"], kind="exec")
        + agent("db", python(ASKING), db="sql")
    )
    daemon = launch("[hosts.alpha]\n" + text)
    floats = "select 0.1::float8 + i as k from generate_series(1, 3) i"
    jobs = [
        daemon.insert(jq_type="rec", jq_args=r"a\b 'c'"),
        daemon.insert(jq_type="rec", jq_args=floats, jq_msq=True, jq_key="k"),
        daemon.insert(jq_type="db", jq_args="x"),
        daemon.insert(jq_type="sh", jq_args="echo out; echo err >&2"),
    ]
    failing = daemon.insert(jq_type="sh", jq_args="exit 3", jq_retries=1)
    daemon.wait_all(jobs)
    assert daemon.wait(failing, "failed")["jq_exitcode"] == 3
    assert sorted(lines(record)) == [r"a\b 'c'", *(f'k="{0.1 + n}"' for n in (1, 2, 3))]
    for words in (f"log {jobs[0]}", f"why {jobs[1]}", "status", "ls", "check"):
        assert ask(words).status == 0, ask(words)
    assert json.loads(ask("status --json").out)["group"]["active"]


def test_lines_are_escaped_alike_under_any_role_and_database_settings(flipped: str, launch: Launch) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("rec", ["true"], kind="exec"))
    (row,) = daemon.login("drover_frontend").execute("select drover.line(%s) as line", [VARIABLES]).fetchall()
    assert row["line"] == r"""a="x\\y \'z\'" """.rstrip()


def test_a_session_has_the_settings_our_statements_depend_on(flipped: str) -> None:
    loop = Loop()
    link = opened(loop, f"{flipped} user=drover_scheduler", settings=settings(1.0))
    told = dict(rows_of(run(loop, link, "select name, setting from pg_settings")))
    link.close()
    loop.close()
    known = {name: value for name, value in OURS.items() if name.encode() in told}
    assert {name: (told[name.encode()] or b"").decode().partition(",")[0] for name in known} == known
    assert (OURS.keys() & told.keys() | STANDARD.keys()) >= THEIRS.keys()
