"""Rows with anything in them, by every role that may insert: refused, or worked, or failed with a reason; nothing else.

What a seed makes is the same every time; a seed that found something stays in SEEDS.
"""

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.integration.daemon import TERMINAL, Daemon, agent, start
from tests.integration.puppets import LOCAL, each, settings

SEEDS = range(4)
ROWS = 150
TYPES = ["good", "cat", "sum", "none", "command", "GOOD", "good "]
TEXTS = [
    "", " ", "x", "good", "n", "local", "nowhere", "default", "shutdown", "infinity", "0", "x" * 3000,
    "; --", "'", '"', "\\", "$1", "%s", "{}", "{n}", "a\nb", "\r", "\t", "\x1b[2J", "\x7f", "é", "\u202e", "\U0010ffff",
    "select 1 as n", "select 1 as n, 'local' as host", "select n, 'local' as host from generate_series(1, 5) n",
    "select 1/0 as n", 'select 1 as "a=b"', "select null as n", "select 'a' as n union all select 'a'", "/*",
    "select pg_sleep(0.01)", "select * from drover.jobqueue", "copy x to stdout", "select 1; select 2", "select $$",
    "select repeat('x', 2000000) as n",
]  # fmt: skip
INSTANTS = ["infinity", "-infinity", "now", "4714-01-01 BC", "294276-12-31", "epoch", "tomorrow", "nonsense"]
LENGTHS = ["0", "-1 day", "1 microsecond", "178000000 years", "infinity", "1 month", "nonsense", "2 s"]
NUMBERS = [0, 1, -1, 2, 100, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63]
FRONT_END: dict[str, list[Any]] = {
    "jq_type": [*TYPES, *TEXTS],
    "jq_args": TEXTS,
    "jq_host": [None, "local", *TEXTS],
    "jq_queue": [None, "default", *TEXTS],
    "jq_name": [None, "good.1", "good.x y", *TEXTS],
    "jq_unique_key": [None, *TEXTS],
    "jq_priority": ["a", "Z", "zz", "!", "", *TEXTS],
    "jq_mode": ["background", "manual", "other"],
    "jq_state": ["queued", "held", "done", "running", "cancelled", "nonsense"],
    "jq_urgent": [True, False, None],
    "jq_job_fk": [None, 1, -1, 2**63 - 1],
    "jq_tolerate": NUMBERS,
    "jq_retries": [*NUMBERS[:5], None],
    "jq_max_interruptions": [*NUMBERS, None],
    "jq_not_before": INSTANTS,
    "jq_not_after": INSTANTS,
    "jq_timeout": LENGTHS,
    "jq_delete": [[], ["/nowhere"], [None], ["a\nb", ""], "{{a,b},{c,d}}", "{"],
}
WITH_SQL: dict[str, list[Any]] = {
    "jq_msq": [True, False, None],
    "jq_runonpfile": [None, "n", "host", *TEXTS],
    "jq_key": [None, "n", *TEXTS],
    "jq_repeat": [True, False, None],
}
COLUMNS = {
    "drover_frontend": FRONT_END,
    "drover_frontend_sql": FRONT_END | WITH_SQL,
    "drover_operator": FRONT_END | WITH_SQL,
}
OF_TEXT = ["jq_args", "jq_host", "jq_queue", "jq_key", "jq_runonpfile", "jq_unique_key", "jq_type"]


def config() -> str:
    timers = settings(retry_base=0.05, retry_max=0.1, blocked_delay=0.1, start_limit=5, lease=30, lease_renewal=5)
    guarded = agent("sum", ["wc", "-c"], kind="exec", submitters=["drover_operator"], slots=2)
    return timers + LOCAL + agent("good", each(":"), slots=2) + agent("cat", ["echo", "{args}"], kind="exec") + guarded


def odd(random: Random, columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a row: a type that is mostly served, and a few columns with anything in them."""
    row: dict[str, Any] = {"jq_type": random.choice(TYPES[:3]), "jq_args": random.choice(TEXTS)}
    for name in random.sample(sorted(columns), random.randrange(5)):
        row[name] = random.choice(columns[name])
    return row


def insert(connection: psycopg.Connection[Any], row: dict[str, Any]) -> bool:
    """Insert a row, and return whether it was accepted."""
    names, marks = map(sql.Identifier, row), sql.SQL(", ").join(sql.Placeholder() * len(row))
    query = sql.SQL("insert into drover.jobqueue ({}) values ({})").format(sql.SQL(", ").join(names), marks)
    with suppress(psycopg.Error, UnicodeError):
        connection.execute(query, list(row.values()))
        return True
    return False


@pytest.fixture
def ascii_database(postgres: str, database_with_roles: str) -> Iterator[str]:
    """Yield a database in which any byte but NUL may stand in a text. The roles are there already."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "create database test_rows template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'"
        )
        conninfo = make_conninfo(postgres, dbname="test_rows")
        migrate.update(conninfo)
        yield conninfo
        connection.execute("drop database test_rows with (force)")


def settled(daemon: Daemon) -> bool:
    """Return whether all that can be worked now has ended; what repeats or tries again may go on for ever."""
    in_hand = "jq_state in ('claimed', 'running') and not jq_repeat and jq_failures < 3"
    return not daemon.execute(f"select from drover.jobqueue where {in_hand} limit 1")


@pytest.mark.parametrize("role", COLUMNS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_accepted_row_ends_or_waits_with_a_reason_f28(database_with_roles: str, role: str, seed: int) -> None:
    random = Random(f"{role} {seed}")
    with start(config(), database_with_roles) as daemon:
        connection = daemon.login(role)
        accepted = sum(insert(connection, odd(random, COLUMNS[role])) for _ in range(ROWS))
        assert 0 < accepted < ROWS
        assert_unharmed(daemon)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_with_any_bytes_do_not_harm_the_daemon_f28(ascii_database: str, seed: int) -> None:
    random = Random(seed)
    with start(config(), ascii_database) as daemon:
        connection = daemon.login("drover_operator")
        connection.execute("set client_encoding to 'SQL_ASCII'")
        accepted = 0
        for _ in range(ROWS):
            row = odd(random, COLUMNS["drover_operator"])
            name = random.choice(
                ["jq_args", "jq_host", "jq_queue", "jq_key", "jq_runonpfile", "jq_unique_key", "jq_type"]
            )
            row[name] = random.randbytes(random.randrange(1, 20)).replace(b"\0", b"")
            accepted += insert(connection, {name: _text(value) for name, value in row.items()})
        assert 0 < accepted < ROWS
        assert_unharmed(daemon)


def _text(value: Any) -> Any:
    return Text(value) if isinstance(value, bytes) else value


class Text(bytes):
    """Bytes that are sent as they are, for a column of text."""


class TextDumper(psycopg.adapt.Dumper):
    def dump(self, obj: Text) -> bytes:
        return bytes(obj)


psycopg.adapters.register_dumper(Text, TextDumper)


def assert_unharmed(daemon: Daemon) -> None:
    """The daemon lives and works; every row that ended says why; none is stuck."""
    daemon.until(lambda: settled(daemon), what="something never ends")
    query = "insert into drover.jobqueue (jq_type, jq_args, jq_urgent) values (%s, 'x', true) returning jq_pk"
    for kind in ("good", "cat"):
        job = daemon.value(query, kind)
        daemon.until(
            lambda job=job: daemon.value("select jq_state = 'done' from drover.jobqueue where jq_pk = %s", job),
            what=f"no {kind} job is done any more",
        )
    silent = "jq_state = any(%s::drover.job_state[]) and coalesce(jq_endtext, '') = ''"
    assert daemon.value(f"select count(*) from drover.jobqueue where {silent}", sorted(TERMINAL)) == 0
    assert daemon.value("select count(*) from drover.why where coalesce(reason, '') = ''") == 0
    assert daemon.process.poll() is None
