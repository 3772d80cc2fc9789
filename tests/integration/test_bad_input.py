"""Rows, queries and agents that are wrong in every way we know: each ends as SPEC says, and delays nobody else."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.agent_tools import module
from tests.agent_tools import record as as_line
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec, records, start
from tests.patience import PATIENCE_S

LIBRARY = module("lib/drover_agent.py")
HOST = "[hosts.alpha]\n"
AT_ONCE_S = PATIENCE_S / 2
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    with start(HOST + agent("rec", rec(record)) + agent("beside", rec(record)), module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Iterator[Daemon]:
    """Yield the shared daemon with an empty record; after each test it must still serve everybody."""
    record.write_text("")
    yield shared
    shared.wait(shared.insert(jq_type="rec", jq_args="still here"), timeout=AT_ONCE_S)


# ---- rows


def test_why_shows_the_reason_of_a_job_of_an_unknown_type_f43(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="no such type", jq_args="x")
    daemon.wait(daemon.insert(jq_type="beside", jq_args="x"), timeout=AT_ONCE_S)
    assert daemon.row(pk)["jq_state"] == "queued"
    assert daemon.why(pk) == "no agent type 'no such type' is configured in group default"


def test_why_shows_the_reason_of_a_row_for_an_unknown_host(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_host="nowhere")
    daemon.wait(daemon.insert(jq_type="beside", jq_args="x"), timeout=AT_ONCE_S)
    assert daemon.why(pk) == "no host 'nowhere'"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "the SQL is empty"),
        ("selekt 1", "syntax error"),
        ("select", "1 items failed"),  # a row without columns is an empty line
        ("select 1 as n from", "syntax error"),
        ("select 1 as n) q; drop table drover.jobqueue; --", "syntax error"),
        ("select nosuch() as n", r"function nosuch\(\) does not exist"),
        ("select 1 / (n - 3) as n from generate_series(1, 5) n", "division by zero"),
        ("select n::int from (values ('1'), ('x')) v(n)", "invalid input syntax"),
        ("select 1 as n -- a comment that hides the rest", None),
        ("select 1 as n ; ", None),
        ("select 1, 2", "not a plain name"),
        ('select 1 as "a b"', "'a b' is not a plain name"),
        ('select 1 as "a=""b"', "not a plain name"),
        ("select 1 as a, 2 as a", "specified more than once|given twice"),
        ('select 1 as "ä"', "not a plain name"),
    ],
)
def test_a_query_is_processed_or_fails_with_its_reason(daemon: Daemon, query: str, reason: str | None) -> None:
    pk = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True)
    daemon.wait(daemon.insert(jq_type="beside", jq_args="x"), timeout=AT_ONCE_S)
    row = daemon.wait(pk, "failed" if reason else "done")
    assert re.search(reason or "all data processed", row["jq_endtext"])
    daemon.until(lambda: reason is None or row["jq_endtext"] in daemon.log_text(pk))


@pytest.mark.parametrize(
    ("query", "columns", "reason"),
    [
        ("select null::int as n", {"jq_key": "n"}, "the key column is NULL in a row"),
        ("select n / 2 as n from generate_series(2, 9) n", {"jq_key": "n"}, "comes twice: keys must be unique"),
        ("select 1 as n", {"jq_key": "m"}, "column q.m does not exist|jq_key names column"),
        ("select 1 as n", {"jq_runonpfile": "m"}, "jq_runonpfile names column 'm', and the query has none"),
    ],
)
def test_a_column_named_by_the_job_must_exist_and_have_a_fitting_type(
    daemon: Daemon, query: str, columns: dict[str, str], reason: str
) -> None:
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True, **columns), "failed")
    assert re.search(reason, row["jq_endtext"])


@pytest.mark.parametrize("value", ["line\nfeed", "quote\"s ' ` $x \\", "é" * 1000, "\x01\x7f"])
def test_unusual_values_are_processed_f86(daemon: Daemon, record: Path, value: str) -> None:
    daemon.execute("drop table if exists odd; create table odd (value text); grant select on odd to drover_msq")
    daemon.execute("insert into odd values (%s)", value)
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select value from odd", jq_msq=True))
    assert LIBRARY.parse(lines(record)[0]) == {"value": value}


def test_a_value_of_a_mebibyte_is_processed_and_a_larger_one_fails_its_item_only(daemon: Daemon, record: Path) -> None:
    query = f"select n, repeat('x', {MEBIBYTE} - 11 + n) as v from generate_series(1, 3) n"
    pk = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True, jq_tolerate=3)
    row = daemon.wait(pk)
    longest = max(len(line) for line in lines(record))
    failures = daemon.execute("select item_reason from drover.item_failure where item_jq_fk = %s", pk)
    assert longest <= MEBIBYTE
    assert (row["jq_itemsprocessed"] + row["jq_itemsfailed"], len(failures)) == (3, row["jq_itemsfailed"])
    assert {failure["item_reason"].split(":")[1] for failure in failures} == {f" at most {MEBIBYTE} can be sent"}
    assert len(lines(record)) == row["jq_itemsprocessed"] >= 1


def test_a_parameter_holds_a_mebibyte(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(jq_type="rec", jq_args="x" * MEBIBYTE))
    assert [len(line) for line in lines(record)] == [MEBIBYTE]


def test_an_oversized_parameter_fails_its_job_where_the_limit_was_raised(daemon: Daemon, record: Path) -> None:
    daemon.execute("update drover.size_limit set limit_bytes = 2000000 where limit_column = 'jq_args'")
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args="x" * (MEBIBYTE + 1)), "failed")
    daemon.execute("update drover.size_limit set limit_bytes = 1048576 where limit_column = 'jq_args'")
    assert (lines(record), "over 1048576 bytes" in row["jq_endtext"]) == ([], True)


# ---- bytes that are no text


@pytest.fixture
def ascii_database(postgres: str, database_with_roles: str) -> Iterator[str]:
    """Yield a database without an encoding: any byte but NUL may stand in a text. The roles are there already."""
    name = "test_sql_ascii"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            f"create database {name} template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'"
        )
        conninfo = make_conninfo(postgres, dbname=name)
        migrate.update(conninfo)
        yield conninfo
        connection.execute(f"drop database {name} with (force)")


@pytest.mark.slow
def test_bytes_that_are_not_utf_8_reach_the_agent_unchanged(ascii_database: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    odd = r"""
        insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('rec', E'caf\351 \377\376', false),
          ('rec', 'select E''\351\377"'' as value', true), ('rec', E'say:FAIL caf\351', false)"""
    with start(HOST + agent("rec", rec(record)), ascii_database) as daemon:
        daemon.execute(odd)
        daemon.until(lambda: daemon.value("select count(*) from drover.jobqueue where jq_endtime is not null") == 3)
        ends = daemon.execute("select jq_endtext from drover.jobqueue order by jq_pk")
        assert [bytes(end["jq_endtext"]) for end in ends] == [b"all data processed"] * 2 + [rb"caf\xe9"]
    given = {line.encode("utf-8", "surrogateescape") for line in lines(record)}
    assert given == {b"caf\xe9 \xff\xfe", as_line({"value": b'\xe9\xff"'}), b"say:FAIL caf\xe9"}


ODD = python(r"""
import sys
said = {"bytes": b"\xff\xfe", "nul": b"a\0b", "escape": b"\x1b[2J", "bidi": "\u202e".encode(), "return": b"a\rb"}
out = sys.stdout.buffer
out.write(b"OK\n")
out.flush()
for line in sys.stdin:
    text = said[line.strip()]
    out.write(b"LOG " + text + b"\nECHO " + text + b"\n" + text + b"\nFAIL bad: " + text + b"\nOK\n")
    out.flush()
""")


@pytest.mark.parametrize(
    ("word", "text"),
    [("bytes", r"\xff\xfe"), ("nul", r"a\x00b"), ("escape", "\x1b[2J"), ("bidi", "\u202e"), ("return", "a\rb")],
)
def test_control_bytes_of_an_agent_are_kept_and_escaped_on_terminals(launch: Launch, word: str, text: str) -> None:
    daemon = launch(HOST + agent("odd", ODD))
    pk = daemon.insert(jq_type="odd", jq_args=word)
    assert daemon.wait(pk, "failed")["jq_endtext"] == f"bad: {text}"
    daemon.until(lambda: f"LOG {text}" in daemon.log_text(pk))
    assert all(line.isprintable() for line in daemon.stderr().split("\n"))


# ---- agents

MUTE = python("import time\nwhile True: time.sleep(60)")
DEAF = python("import time\nprint('OK')\nwhile True: time.sleep(60)")
DYING_AT_ONCE = python("import sys\nsys.exit('no licence file')")
DYING_MID_ITEM = python("import sys\nprint('OK')\nsys.stdin.readline()\nsys.exit(4)")
ENDLESS_LINE = python("import sys\nprint('OK')\nsys.stdin.readline()\nwhile True: sys.stdout.write('x' * 65536)")
BABBLING = python("import sys\nprint('OK')\nsys.stdin.readline()\nwhile True: print('la')")
TWO_OKS = python("import sys\nprint('OK')\nfor line in sys.stdin: sys.stdout.write('OK\\nOK\\n'); sys.stdout.flush()")
TIMERS = """
[scheduler]
respawn_count = 1
respawn_interval = 60
start_limit = 4
write_limit = 0.3
kill_grace = 0.3
"""


def beside(launch: Launch, tmp_path: Path, command: list[str], **keys: object) -> Daemon:
    """Start a daemon with this bad agent and a good one beside it."""
    return launch(TIMERS + HOST + agent("bad", command, **keys) + agent("good", rec(tmp_path / "record")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nowhere/agent"], r"cannot start '/nowhere/agent': No such file or directory \(errno 2\)"),
        (["no-such-program"], r"cannot start 'no-such-program'"),
        (["/etc/passwd"], r"cannot start '/etc/passwd': Permission denied \(errno 13\)"),
        (MUTE, r"no OK within 4 s"),
        (DYING_AT_ONCE, r"agent terminated prematurely, with exit status 1"),
        (["true"], r"agent terminated prematurely, with exit status 0"),
    ],
)
def test_an_agent_that_never_becomes_ready_leaves_its_job_queued_with_the_reason_f28(
    launch: Launch, tmp_path: Path, command: list[str], reason: str
) -> None:
    daemon = beside(launch, tmp_path, command)
    bad = daemon.insert(jq_type="bad", jq_args="x")
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    daemon.until(lambda: re.search(f"agent type bad failed, next try .*: .*{reason}", daemon.why(bad)))
    row = daemon.row(bad)
    assert (row["jq_state"], row["jq_starttime"]) == ("queued", None)
    assert re.search(f"agent failed: .*{reason}", row["jq_endtext"])
    daemon.until(lambda: re.search(reason, daemon.log_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keys", "reason"),
    [
        (DYING_MID_ITEM, {}, "agent terminated prematurely, with exit status 4"),
        (DEAF, {"item_timeout": 0.3}, "item took longer than 0.3 s"),
        (DEAF, {"heartbeat": 0.3}, "no heartbeat for 0.3 s"),
        (ENDLESS_LINE, {}, "protocol violation: line over 1048576 bytes"),
        (BABBLING, {"item_timeout": 0.5}, "item took longer than 0.5 s"),
    ],
)
def test_an_agent_that_dies_at_work_fails_its_job_with_the_reason_f91(
    launch: Launch, tmp_path: Path, command: list[str], keys: dict[str, object], reason: str
) -> None:
    daemon = beside(launch, tmp_path, command, **keys)
    bad = daemon.insert(jq_type="bad", jq_args="x")
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    row = daemon.wait(bad, "failed")
    assert (row["jq_endtext"], row["jq_end_bits"]) == (reason, 2)
    daemon.until(lambda: reason in daemon.log_text(bad))
    daemon.wait(daemon.insert(jq_type="good", jq_args="y"), timeout=AT_ONCE_S)


def test_an_agent_that_does_not_read_a_long_line_fails_its_job(launch: Launch, tmp_path: Path) -> None:
    daemon = beside(launch, tmp_path, DEAF)
    bad = daemon.insert(jq_type="bad", jq_args="x" * 500_000)
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    assert daemon.wait(bad, "failed")["jq_endtext"] == "does not read its line"
    daemon.until(lambda: "does not read its line; killed" in daemon.log_text(bad))


@pytest.mark.slow
def test_an_agent_that_says_ok_twice_finishes_one_line_and_is_killed_for_the_other(
    launch: Launch, tmp_path: Path
) -> None:
    daemon = beside(launch, tmp_path, TWO_OKS)
    pks = daemon.insert_all([{"jq_type": "bad", "jq_args": str(n)} for n in range(3)])
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    daemon.wait(pks[0])
    daemon.until(lambda: "protocol violation" in daemon.log_text())
    daemon.until(lambda: "failed, next try" in daemon.why(pks[2]))
    done = "select count(*) from drover.jobqueue where jq_type = 'bad' and jq_state = 'done'"
    assert daemon.until(lambda: daemon.value(done) == 2)  # one a process, and two processes are allowed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keys", "reason"),
    [
        (DYING_MID_ITEM, {}, "agent terminated prematurely, with exit status 4"),
        (DEAF, {"item_timeout": 0.2}, "item took longer than 0.2 s"),
    ],
)
def test_items_of_a_query_that_kill_every_agent_all_fail_and_are_recorded_f135(
    launch: Launch, tmp_path: Path, command: list[str], keys: dict[str, object], reason: str
) -> None:
    timers = TIMERS.replace("respawn_count = 1", "respawn_count = 50")
    daemon = launch(timers + HOST + agent("bad", command, **keys) + agent("good", rec(tmp_path / "record")))
    bad = daemon.insert(jq_type="bad", jq_args="select n from generate_series(1, 3) n", jq_msq=True)
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    row = daemon.wait(bad, "failed")
    assert (row["jq_itemsfailed"], row["jq_itemsprocessed"]) == (3, 0)
    failures = daemon.execute("select item_line, item_reason from drover.item_failure order by item_line")
    assert [tuple(failure.values()) for failure in failures] == [(f'n="{n}"', reason) for n in (1, 2, 3)]


def test_a_flood_on_stderr_delays_no_job(launch: Launch, tmp_path: Path) -> None:
    script = "import sys\nprint('OK')\nfor line in sys.stdin:\n  sys.stderr.write('noise\\n' * 5000); print('OK')"
    daemon = beside(launch, tmp_path, python(script))
    pk = daemon.insert(jq_type="bad", jq_args="x")
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"), timeout=AT_ONCE_S)
    daemon.wait(pk)
    assert records(tmp_path / "record")
