"""`DB:` lines under the real daemon: what an agent may ask, what it hears, and that nobody waits for it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.agent_tools import LIBRARY
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, start
from tests.integration.puppets import LOCAL, Meeting, puppet, said, settings

# `ask SQL` logs each line of the answer, OK included.
ASK = r"""
ask() { printf 'DB: %s\n' "$1"; while IFS= read -r row; do printf 'LOG <%s>\n' "$row"; [ "$row" = OK ] && break; done; }
echo OK; while IFS= read -r line; do eval "$line"; echo OK; done
"""
STATEMENTS = """
[agents.named.statements]
save = "insert into result (name, size) values (:name, :size)"
sizes = "select name, size from result where name like :like order by name"
swap = "update result set size = size + 1 where name = :name"
"""
FROM_SHELL = f"""
. {LIBRARY}/drover_agent.sh
drover_ready
while drover_next; do
    drover_db save name "$DROVER_LINE" size 5 && drover_db sizes like '%' || drover_fail "not saved: $DROVER_ERROR"
    drover_row_value size; drover_log "$DROVER_VALUE"
    drover_done
done
"""
DRIP = """
import os, sys
os.write(1, b"OK\\n")
for size in sys.stdin:
    line = b"DB: insert into result (name, size) values ('" + b"x" * int(size) + b"', 1);\\n"
    for start in range(0, len(line), 64):
        os.write(1, line[start:start + 64])
    assert sys.stdin.readline() == "OK\\n"
    os.write(1, b"OK\\n")
"""


def asking(name: str, **keys: Any) -> str:
    return agent(name, ["sh", "-c", ASK], **keys)


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    with psycopg.connect(module_database, autocommit=True) as connection:
        connection.execute("create table result (name text primary key, size integer)")
        connection.execute("grant select, insert, update on result to drover_agentdb")
    text = (
        settings(statement_limit=1)
        + LOCAL
        + asking("free", db="sql")
        + asking("off")
        + asking("named", db="statements")
        + STATEMENTS
        + agent("drip", [sys.executable, "-S", "-E", "-c", DRIP], db="sql")
        + asking("own", database="results")
        + agent("shell", ["sh", "-c", FROM_SHELL], db="statements")
        + STATEMENTS.replace("agents.named", "agents.shell")
        + puppet()
    )
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    shared.execute("truncate result")
    return shared


def answer(daemon: Daemon, kind: str, asked: str, bits: int = 1) -> list[str]:
    """Return what an agent of a type receives when it asks this, OK left out; the job ends done."""
    job = daemon.insert(jq_type=kind, jq_args=f"ask '{asked}'")
    assert daemon.wait(job)["jq_end_bits"] == bits
    *lines, last = [row["log_message"] for row in daemon.log_rows(job)]
    assert last == "<OK>"
    return lines


# ---- free SQL


@pytest.mark.parametrize("statement", ["SELECT 1 AS a", "SELECT 1 AS a;", "  select 1 as a ;  "])
def test_sql_is_run_and_answered_f96(daemon: Daemon, statement: str) -> None:
    assert answer(daemon, "free", statement) == ['<a="1">']


def test_each_row_is_a_line_f97(daemon: Daemon) -> None:
    query = "select n, chr(64 + n) as c, null as gone from generate_series(1, 3) n"
    assert answer(daemon, "free", query) == ['<n="1" c="A">', '<n="2" c="B">', '<n="3" c="C">']


def test_values_of_an_answer_are_escaped_as_in_any_line_f97(daemon: Daemon) -> None:
    assert answer(daemon, "free", "select chr(10) || chr(34) || chr(36) as v") == [r'<v="\n\"\$">']


def test_a_statement_without_rows_answers_only_ok_f98(daemon: Daemon) -> None:
    assert answer(daemon, "free", "insert into result values (chr(65), 5)") == []
    assert answer(daemon, "free", "update result set size = 6") == []
    assert daemon.execute("select * from result") == [{"name": "A", "size": 6}]


def test_an_sql_error_is_an_answer_and_ends_no_agent_f98(daemon: Daemon) -> None:
    (line,) = answer(daemon, "free", "select nonsense")
    assert line.startswith('<ERROR column "nonsense" does not exist')
    assert answer(daemon, "free", "select 2 as a") == ['<a="2">']


def test_agent_sql_runs_under_a_role_of_its_own_f104(daemon: Daemon) -> None:
    assert answer(daemon, "free", "select current_user as me") == ['<me="drover_agentdb">']
    (line,) = answer(daemon, "free", "select * from drover.jobqueue")
    assert line.startswith("<ERROR permission denied")


def test_a_transaction_left_open_changes_nothing_and_holds_nothing(daemon: Daemon) -> None:
    answer(daemon, "free", "begin; insert into result values (chr(66), 1)")
    assert daemon.execute("select * from result") == []
    answer(daemon, "free", "set search_path = nowhere")
    assert answer(daemon, "free", "select count(*) as n from result") == ['<n="0">']


@pytest.mark.slow
def test_a_slow_statement_delays_no_other_and_has_a_time_limit_f100(daemon: Daemon) -> None:
    slow = daemon.insert(jq_type="free", jq_args="ask 'select pg_sleep(30)'")
    daemon.wait(slow, "running")
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(20)])
    assert daemon.row(slow)["jq_state"] == "running"
    daemon.wait(slow)
    assert "canceling statement due to statement timeout" in daemon.log_text(slow)


@pytest.mark.parametrize("size", [60_000, 100_000])
def test_a_long_statement_in_small_writes_runs_once_and_whole_f101(daemon: Daemon, size: int) -> None:
    daemon.wait(daemon.insert(jq_type="drip", jq_args=str(size)))
    assert daemon.execute("select length(name) as n from result") == [{"n": size}]


def test_an_answer_of_a_mebibyte_arrives_whole(daemon: Daemon) -> None:
    count = 'while IFS= read -r row && [ "$row" != OK ]; do n=$((n + ${#row})); done; echo LOG $n'
    query = "select repeat(chr(120), 1000) as v from generate_series(1, 1000)"
    job = daemon.insert(jq_type="free", jq_args=f"n=0; echo 'DB: {query}'; {count}")
    daemon.wait(job)
    assert daemon.log_text(job) == f"LOG {1000 * (1000 + len('v=' + 2 * chr(34)))}"


def test_an_answer_that_is_too_long_is_an_error_f103(daemon: Daemon) -> None:
    (line,) = answer(daemon, "free", "select repeat(chr(120), 1000000) as v from generate_series(1, 10)")
    assert line == "<ERROR the answer has more than 8388608 bytes>"


@pytest.mark.slow
def test_an_agent_that_never_reads_its_answer_is_killed_without_delaying_others_f103(
    launch: Launch, meeting: Meeting
) -> None:
    daemon = launch(settings(write_limit=8) + LOCAL + asking("free", db="sql") + puppet())
    query = "select repeat(chr(120), 1000000) as v from generate_series(1, 8)"
    job = daemon.insert(jq_type="free", jq_args=f"echo 'DB: {query}'; {meeting.tell('asked')}; {meeting.wait}")
    assert meeting.hear() == "asked"
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(20)])
    assert daemon.row(job)["jq_state"] in ("claimed", "running")
    assert daemon.wait(job, "failed")["jq_endtext"] == "does not read its line"


def test_the_answer_for_a_dead_agent_reaches_no_other(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="free", jq_args="echo 'DB: select pg_sleep(0.3), 1 as late'; exit 1")
    daemon.wait(job, "failed")
    assert answer(daemon, "free", "select 2 as a") == ['<a="2">']


# ---- off, and registered statements


def test_agent_sql_is_off_unless_allowed_f104(daemon: Daemon) -> None:
    (line,) = answer(daemon, "off", "select 1")
    assert line.startswith("<ERROR DB: is off for this agent type (off)")


def test_db_without_the_blank_is_debug_output_f99(daemon: Daemon) -> None:
    daemon.wait(daemon.insert(jq_type="free", jq_args="echo 'DB:select 99'"))
    assert "]: DB:select 99\n" in said(daemon, "]: DB:select 99\n")


def test_a_registered_statement_binds_its_values_by_name(daemon: Daemon) -> None:
    assert answer(daemon, "named", """save {"size": 3, "extra": [1], "name": "a b"}""") == []
    assert answer(daemon, "named", """save {"name": null, "size": 3}""")[0].startswith("<ERROR null value")
    assert answer(daemon, "named", """sizes {"like": "a%"}""") == ['<name="a b" size="3">']


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("""save {"name": "a"}""", "key 'size' is missing"),
        ("""save {"name": "a", "size": "big"}""", "invalid input syntax for type integer"),
        ("""save {"name": "a", """, "this agent type may run registered statements only"),
        ("""save {"name": }""", "the JSON is not right"),
        ("""drop {"name": "a"}""", "no statement 'drop' is registered for agent type named"),
        ("select 1", "this agent type may run registered statements only"),
    ],
)
def test_an_unregistered_or_malformed_statement_is_an_error_f98(daemon: Daemon, asked: str, error: str) -> None:
    (line,) = answer(daemon, "named", asked)
    assert line.startswith(f"<ERROR {error}")
    assert daemon.execute("select * from result") == []


def test_agents_that_connect_themselves_get_the_service_name_f104_c39(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="own", jq_args="echo LOG $PGSERVICE$DROVER_DATABASE_URL")
    daemon.wait(job)
    assert daemon.log_text(job) == "LOG results"


# ---- many at once


def test_answers_come_in_the_order_of_the_questions(daemon: Daemon) -> None:
    asked = r"printf 'DB: select pg_sleep(0.2), 1 as a\nDB: select 2 as b\nDB: nonsense\nDB: select 3 as c\n'"
    hear = "for i in 1 2 3 4 5 6 7 8; do IFS= read -r row; printf 'LOG <%.19s>\\n' \"$row\"; done"
    job = daemon.insert(jq_type="free", jq_args=f"{asked}; {hear}")
    daemon.wait(job)
    heard = [row["log_message"] for row in daemon.log_rows(job)]
    assert heard[:5] == ['<pg_sleep="" a="1">', "<OK>", '<b="2">', "<OK>", "<ERROR syntax error >"]
    assert heard[5:] == ["<OK>", '<c="3">', "<OK>"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["select repeat(chr(120), 1000000) as v from generate_series(1, 8)", "select pg_sleep(0.5)"]
)
def test_an_agent_that_sends_requests_without_reading_is_killed_in_bounded_memory_f103(
    launch: Launch, query: str
) -> None:
    daemon = launch(LOCAL + asking("free", db="sql"))
    job = daemon.insert(jq_type="free", jq_args=f"while :; do echo 'DB: {query}'; done")
    row = daemon.wait(job, "failed")
    assert row["jq_endtext"] == "protocol violation: over 1048576 bytes of DB: lines that wait for answers"
    assert largest_kib(daemon.pid) < 250_000


def largest_kib(pid: int) -> int:
    """Return the most memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def test_an_agent_that_has_not_read_its_last_answer_is_sent_no_more_lines(launch: Launch) -> None:
    query = "select repeat(chr(120), 1000000) as v"
    ready = f"echo OK; read -r line; echo 'DB: {query}'; echo OK; exec sleep 1000"
    daemon = launch(settings(write_limit=0.5) + LOCAL + agent("deaf", ["sh", "-c", ready], db="sql"))
    first, second = (daemon.insert(jq_type="deaf", jq_args="x") for _ in range(2))
    assert daemon.wait(first)["jq_end_bits"] == 1
    assert daemon.wait(second, "failed")["jq_endtext"] == "does not read its line"


def test_an_agent_in_shell_saves_a_row_and_reads_it_again(daemon: Daemon) -> None:
    first = daemon.wait(daemon.insert(jq_type="shell", jq_args='a "quoted" name'))
    assert daemon.execute("select name, size from result") == [{"name": 'a "quoted" name', "size": 5}]
    daemon.until(lambda: "LOG 5" in daemon.log_text(first["jq_pk"]))
    again = daemon.wait(daemon.insert(jq_type="shell", jq_args='a "quoted" name'), "failed")
    assert again["jq_endtext"].startswith("not saved: duplicate key value")
