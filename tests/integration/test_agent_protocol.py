"""What agents get and say, line by line, under the real daemon, and what becomes of those that break the rules."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.package_data import agents_dir
from tests.integration.conftest import Launch
from tests.integration.daemon import PYTHON, Daemon, agent, start
from tests.integration.puppets import LOCAL, Meeting, each, moves, puppet, rows, said, settings, slots
from tests.integration.ssh_tools import table
from tests.needs import need
from tests.ssh.sshd import serving

READER = f"""
import json, sys
sys.path.insert(0, {str(agents_dir() / "lib")!r})
import drover_agent
for item in drover_agent.items():
    drover_agent.log(json.dumps(item.columns))
"""
# An agent that reads past empty lines, and logs in hexadecimal what it reads.
SKIPS = [
    *PYTHON,
    "-c",
    r"""
import sys
print("OK", flush=True)
for line in sys.stdin.buffer:
    if line.strip():
        print("LOG " + line.hex() + "\nOK", flush=True)
""",
]
UGLY = [
    "plain",
    "two words",
    'say "x"',
    "back\\slash",
    "it's",
    "$HOME `id`",
    "a\nb\tc\rd",
    "\x01\x7f",
    "déjà 🐍",
    "",
    "\\n",
]


@pytest.fixture(scope="module", params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the table of the only host: this machine, and one that is reached over SSH."""
    if request.param == "local":
        yield "[hosts.alpha]\n"
        return
    need("sshd")
    with serving(tmp_path_factory.mktemp("alpha") / "server") as server:
        yield table("alpha", server)


@pytest.fixture(scope="module")
def shared(module_database: str, host: str) -> Iterator[Daemon]:
    text = (
        settings(respawn_count=0, status_interval=1)  # the status counts lines
        + host
        + puppet()
        + puppet("wide", slots=4)
        + agent("parrot", each(r'printf "LOG <%s>\n" "$line"'))
        + agent("reader", [sys.executable, "-c", READER])
        + rows("worker", 'eval "$act"', slots=4)
        + agent("gone", each("exit 7"))
        + agent("skips", SKIPS)
        + agent("old", SKIPS, escape="shell", nulls="empty")
        + "".join(puppet(f"p{number}") for number in range(5))
        + puppet("shy", item_timeout=0.5)
    )
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    return shared


@pytest.fixture(scope="module")
def kinds(shared: Daemon) -> Iterator[str]:
    """Return the agent types of the shared daemon that nobody has used, and that may fail."""
    return iter([f"p{number}" for number in range(5)])


@pytest.fixture
def kind(kinds: Iterator[str]) -> str:
    return next(kinds)


def logged(daemon: Daemon, job: int, kind: str) -> list[str]:
    """Return the messages of one kind that a job has in the log."""
    return [row["log_message"] for row in daemon.log_rows(job) if row["log_type"] == kind]


def query(daemon: Daemon, kind: str, sql: str, **columns: Any) -> int:
    return daemon.insert(jq_type=kind, jq_args=sql, jq_msq=True, **columns)


# ---- in


def test_input_and_output_of_an_agent_are_pipes_f79(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="puppet", jq_args="echo LOG $(readlink /proc/$$/fd/0 /proc/$$/fd/1)")
    daemon.wait(job)
    assert [name.split(":")[0] for name in logged(daemon, job, "LOG")[0].split()] == ["pipe", "pipe"]


@pytest.mark.parametrize("args", ["/etc/hosts", "  blanks  kept ", 'a="b" $x \\n `id`', "déjà", "-n", "x" * 100_000])
def test_the_parameter_is_one_line_as_it_stands_f84(daemon: Daemon, args: str) -> None:
    job = daemon.insert(jq_type="parrot", jq_args=args)
    daemon.wait(job)
    assert logged(daemon, job, "LOG") == [f"<{args}>"]


def test_a_row_is_one_line_of_pairs_in_select_order_f85(daemon: Daemon) -> None:
    job = query(daemon, "parrot", "select 1 as z, 'x y' as b, true as a")
    daemon.wait(job)
    assert logged(daemon, job, "LOG") == ['<z="1" b="x y" a="t">']


@pytest.mark.parametrize("value", UGLY)
def test_any_value_is_read_unchanged_from_its_line_f86(daemon: Daemon, value: str) -> None:
    spelt = " || ".join(["''", *(f"chr({ord(letter)})" for letter in value)])
    job = query(daemon, "reader", f"select {spelt} as v")
    daemon.wait(job)
    assert json.loads(logged(daemon, job, "LOG")[0]) == {"v": value}


def test_a_null_is_left_out_f87(daemon: Daemon) -> None:
    job = query(daemon, "parrot", "select 1 as a, null::text as b, '' as c")
    daemon.wait(job)
    assert logged(daemon, job, "LOG") == ['<a="1" c="">']


def test_a_row_of_nulls_fails_its_item_and_the_others_are_processed(daemon: Daemon) -> None:
    sql = "select case when n > 1 then n end as a, null as b from generate_series(1, 3) n"
    job = query(daemon, "skips", sql, jq_tolerate=1)
    row = daemon.wait(job)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_itemstotal"]) == (2, 1, 3)
    (failure,) = daemon.execute("select * from drover.item_failure where item_jq_fk = %s", job)
    assert failure["item_reason"].startswith("every column of the row is NULL")
    daemon.until(lambda: "ERROR item failed: every column of the row is NULL" in daemon.log_text(job))


def test_with_empty_send_a_line_agent_gets_a_row_of_nulls_and_an_empty_parameter(launch: Launch) -> None:
    daemon = launch(LOCAL + agent("parrot", each(r'printf "LOG <%s>\n" "$line"'), empty="send"))
    jobs = [query(daemon, "parrot", "select null as a"), daemon.insert(jq_type="parrot", jq_args="")]
    daemon.wait_all(jobs)
    assert [logged(daemon, job, "LOG") for job in jobs] == [["<>"], ["<>"]]


def test_an_exec_agent_gets_a_row_of_nulls_and_an_empty_parameter(launch: Launch) -> None:
    daemon = launch(LOCAL + agent("run", ["sh", "-c", 'read -r line; test -z "$line"'], kind="exec"))
    rows = daemon.wait_all([query(daemon, "run", "select null as a"), daemon.insert(jq_type="run", jq_args="")])
    assert [row["jq_end_bits"] for row in rows] == [1, 1]


@pytest.mark.parametrize("value", ["a\tb\rc", "\x01\x7f", "select 1\t-- 'x' \"y\" \\ $ `", "déjà 🐍", ""])
def test_with_escape_shell_an_agent_gets_all_bytes_but_five_unchanged(daemon: Daemon, value: str) -> None:
    spelt = " || ".join(["''", *(f"chr({ord(letter)})" for letter in value)])
    job = query(daemon, "old", f"select {spelt} as v, null as n")
    daemon.wait(job)
    raw = re.sub(r"""(["\\'$`])""", r"\\\1", value)
    assert [bytes.fromhex(text).decode() for text in logged(daemon, job, "LOG")] == [f'v="{raw}" n=""\n']


def test_with_escape_shell_an_item_with_a_newline_fails_and_says_what_next(daemon: Daemon) -> None:
    job = query(daemon, "old", "select E'a\\nb' as v union all select 'c' order by v", jq_tolerate=1)
    daemon.wait(job)
    (failure,) = daemon.execute("select * from drover.item_failure where item_jq_fk = %s", job)
    assert failure["item_reason"].endswith('replace it in the query, or set escape = "all" for the agent type')
    assert failure["item_line"] == 'v="a\nb"'
    assert [bytes.fromhex(text) for text in logged(daemon, job, "LOG")] == [b'v="c"\n']


def test_a_line_of_a_mebibyte_is_sent_whole_and_a_longer_one_fails_the_job(daemon: Daemon) -> None:
    daemon.execute("update drover.size_limit set limit_bytes = 1 << 21 where limit_column = 'jq_args'")
    whole = daemon.insert(jq_type="reader", jq_args="x" * (1 << 20))
    long = daemon.insert(jq_type="reader", jq_args="x" * ((1 << 20) + 1))
    assert daemon.wait(whole)["jq_end_bits"] == 1
    assert daemon.wait(long, "failed")["jq_endtext"].startswith("the parameter has over 1048576 bytes")


# ---- out


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("ERROR it broke", "ERROR", "it broke"),
        ("WARNING look out", "WARNING", "look out"),
        ("FATAL the end", "FATAL", "the end"),
        ("LOG a b", "LOG", "a b"),
        ("LOG: colon", "LOG", "colon"),
        ("LOG", "LOG", ""),
        (r"LOG bytes \377", "LOG", r"bytes \xff"),
    ],
)
def test_a_log_line_is_stored_with_its_origin_f92_f93_f156(daemon: Daemon, said: str, kind: str, message: str) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"printf '{said}\\n'")
    daemon.wait(job)
    (row,) = daemon.execute(
        "select * from drover.my_log where log_jq_fk = %s and log_type = %s", job, kind, role="drover_frontend_sql"
    )
    assert (row["log_message"], row["log_agent"], row["log_host"]) == (message, "puppet", "alpha")
    assert row["log_date"] is not None


def test_an_error_line_only_sets_the_non_fatal_bit_f90(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="puppet", jq_args="echo ERROR bad; echo LOG going on")
    row = daemon.wait(job)
    assert (row["jq_end_bits"], row["jq_endtext"]) == (5, "all data processed")
    assert logged(daemon, job, "LOG") == ["going on"]


def test_success_lines_are_counted_and_change_nothing_f94(daemon: Daemon) -> None:
    def successes() -> int:
        return int(daemon.vitals()["successes"])

    before = successes()
    row = daemon.wait(daemon.insert(jq_type="puppet", jq_args="echo Success; echo Success; echo Success"))
    assert row["jq_end_bits"] == 1
    daemon.until(lambda: successes() == before + 3)


def test_an_echo_goes_to_the_stderr_of_the_daemon_without_its_keyword_f95(daemon: Daemon) -> None:
    daemon.wait(daemon.insert(jq_type="puppet", jq_args="echo ECHO hear this"))
    assert "\nhear this\n" in said(daemon, "hear this")


def test_agent_output_cannot_control_the_terminal_of_the_operator_f95(daemon: Daemon) -> None:
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=r"printf 'ECHO red \033[31m end\n'"))
    assert r"red \x1b[31m end" in said(daemon, "[31m end")


@pytest.mark.parametrize("line", ["hello", "OKAY", "LOGGED in", "DB:SELECT 1", "success", "Heartbeats"])
def test_an_unknown_line_is_debug_output_with_the_slot_number_f99_f105(daemon: Daemon, line: str) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"echo '{line}'")
    assert daemon.wait(job)["jq_end_bits"] == 1
    said(daemon, f"\nDEBUG[0]: {line}\n")


def test_stderr_is_logged_with_the_slot_number_f80(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"echo 'oh no' >&2; {meeting.wait}")
    said(daemon, "\nSTDERR[0]: oh no\n")
    meeting.let_go()
    daemon.wait(job)
    assert logged(daemon, job, "STDERR") == ["oh no"]


@pytest.mark.parametrize(
    ("script", "count"),
    [
        (":", 1),
        ("echo ItemsProcessed 7", 7),
        ("echo ItemsProcessed 3; echo ItemsProcessed 4", 7),
        ("echo ItemsProcessed 0", 0),
        ("echo ItemsProcessed: 2", 2),
        ("echo ItemsProcessed many", 1),
    ],
)
def test_items_are_counted_by_the_agent_or_one_each_f158(daemon: Daemon, script: str, count: int) -> None:
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args=script))["jq_itemsprocessed"] == count
    sql = f"select '{script}' as act from generate_series(1, 5)"
    assert daemon.wait(query(daemon, "worker", sql))["jq_itemsprocessed"] == 5 * count


def test_elapsed_is_wall_time_and_processed_the_sum_of_agents_f159(daemon: Daemon) -> None:
    row = daemon.wait(query(daemon, "worker", "select 'sleep 1.5' as act from generate_series(1, 4)"))
    assert row["jq_processedtime"].total_seconds() >= 6.0
    assert row["jq_elapsedtime"] < row["jq_processedtime"]


def test_unfinished_last_line_is_passed_on_f106(daemon: Daemon, kind: str) -> None:
    job = daemon.insert(jq_type=kind, jq_args="printf 'LOG: last words'; exit 1")
    daemon.wait(job, "failed")
    assert logged(daemon, job, "LOG") == ["last words"]


@pytest.mark.slow
def test_a_line_in_pieces_is_one_line_f106(launch: Launch, meeting: Meeting) -> None:
    script = f"printf O; {meeting.tell('half')}; {meeting.wait}; echo K; read -r line; printf 'LOG whole\\nO'; echo K"
    daemon = launch(settings(start_limit=60) + LOCAL + agent("halting", ["sh", "-c", f"{script}; read -r line"]))
    job = daemon.insert(jq_type="halting", jq_args="x")
    assert meeting.hear() == "half"
    slots(daemon, "ST_SPAWNED")
    meeting.let_go()
    assert daemon.wait(job)["jq_itemsprocessed"] == 1
    assert moves(daemon, 0)[-1] == ("ST_SPAWNED", "ST_READY")


def test_the_agent_types_are_in_their_table_f166(daemon: Daemon) -> None:
    (row,) = daemon.execute("select * from drover.agent where agent_type = 'parrot'")
    assert (row["agent_kind"], row["agent_enabled"], row["agent_revision"][:5]) == ("line", True, "sh -c")


# ---- FAIL, BLOCKED, RESULT


def test_fail_fails_the_item_and_the_agent_goes_on(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="puppet", jq_args="echo FAIL no such file; echo LOG $$")
    row = daemon.wait(job, "failed")
    next_job = daemon.insert(jq_type="puppet", jq_args="echo LOG $$")
    daemon.wait(next_job)
    assert (row["jq_endtext"], row["jq_end_bits"], row["jq_exitcode"]) == ("no such file", 2, None)
    assert logged(daemon, job, "LOG") == logged(daemon, next_job, "LOG")
    assert logged(daemon, job, "ERROR") == ["no such file"]


def test_only_ok_ends_an_item_that_has_failed(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"echo FAIL early; {meeting.tell('said')}; {meeting.wait}")
    assert meeting.hear() == "said"
    daemon.wait(job, "running")
    meeting.let_go()
    assert daemon.wait(job, "failed")["jq_endtext"] == "early"


def test_blocked_queues_the_job_again_after_a_while(daemon: Daemon, tmp_path: Path) -> None:
    there = tmp_path / "there"
    act = f"test -e {there} || {{ touch {there}; echo BLOCKED disk full; }}"
    row = daemon.wait(job := daemon.insert(jq_type="puppet", jq_args=act))
    assert (row["jq_attempt"], row["jq_failures"], row["jq_itemsprocessed"]) == (2, 0, 1)
    first, second = daemon.attempts(job)
    assert (first["att_outcome"], first["att_reason"]) == ("blocked", "blocked: disk full")
    assert second["att_outcome"] == "done"


def test_blocked_stops_dispatch_of_a_query(daemon: Daemon, tmp_path: Path) -> None:
    there, seen = tmp_path / "there", tmp_path / "seen"
    act = f"echo x >>{seen}; test -e {there} || {{ touch {there}; echo BLOCKED disk full; }}"
    job = query(daemon, "worker", f"select '{act}' as act from generate_series(1, 500)")
    assert daemon.wait(job)["jq_itemsprocessed"] == 500
    assert [attempt["att_outcome"] for attempt in daemon.attempts(job)] == ["blocked", "done"]


def test_a_result_is_stored_with_the_job(daemon: Daemon) -> None:
    row = daemon.wait(daemon.insert(jq_type="puppet", jq_args="""echo 'RESULT {"lines": [1, null, "é"]}'"""))
    assert row["jq_result"] == {"lines": [1, None, "é"]}


@pytest.mark.parametrize("text", ["{", "NaN", "1e999", "", "[" * 100_000, "[" * 990 + "]" * 990])
def test_a_result_that_no_column_can_hold_is_only_a_warning(daemon: Daemon, text: str) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"printf '%s\\n' 'RESULT {text}'")
    assert daemon.wait(job)["jq_result"] is None
    assert logged(daemon, job, "WARNING")[0].startswith("RESULT is not JSON")
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))


# ---- ends


def test_the_end_text_says_why_f161(daemon: Daemon, meeting: Meeting) -> None:
    running = daemon.insert(jq_type="puppet", jq_args=meeting.wait)
    assert daemon.wait(running, "running")["jq_endtext"] == "in progress"
    meeting.let_go()
    assert daemon.wait(running)["jq_endtext"] == "all data processed"
    assert daemon.wait(query(daemon, "worker", "select 1 as a where false"))["jq_endtext"] == "no data"
    died = daemon.wait(daemon.insert(jq_type="gone", jq_args="x"), "failed")
    assert died["jq_endtext"] == "agent terminated prematurely, with exit status 7"
    late = daemon.wait(daemon.insert(jq_type="wide", jq_args="sleep 1000", jq_timeout="0.3 s"), "failed")
    assert late["jq_endtext"] == "timeout: ran longer than 0.3 s"
    error = daemon.wait(query(daemon, "worker", "select * from nowhere"), "failed")
    assert 'relation "nowhere" does not exist' in error["jq_endtext"]


# ---- against the rules

TWO_AT_ONCE = r"""
insert into drover.jobqueue (jq_type, jq_args)
values (%s, 'printf "OK\nOK\n"; read -r line; exit 9'), (%s, ':') returning jq_pk
"""


def test_an_agent_is_killed_for_an_ok_without_a_line(daemon: Daemon, kind: str, meeting: Meeting) -> None:
    row = daemon.wait(daemon.insert(jq_type=kind, jq_args=f"echo OK; {meeting.wait}"))
    assert row["jq_end_bits"] == 1
    meeting.let_go()
    said(daemon, f"every slot of agent {kind} has failed: protocol violation: OK in ST_READY")
    daemon.until(lambda: "ERROR protocol violation: OK in ST_READY; killed" in daemon.log_text(row["jq_pk"]))


def test_a_crash_before_the_first_ok_is_in_the_log_of_the_job(launch: Launch) -> None:
    crash = agent("crash", ["sh", "-c", "echo no module named foo >&2; exit 3"])
    daemon = launch(settings(respawn_count=0) + LOCAL + crash)
    job = daemon.insert(jq_type="crash", jq_args="x")
    said(daemon, "every slot of agent crash has failed")
    daemon.until(lambda: "exit status 3" in daemon.log_text(job))
    assert "STDERR no module named foo\n" in daemon.log_text(job)


def test_two_oks_at_once_end_one_item_only(daemon: Daemon, kind: str) -> None:
    first, second = [row["jq_pk"] for row in daemon.execute(TWO_AT_ONCE, kind, kind)]
    assert daemon.wait(first)["jq_end_bits"] == 1
    said(daemon, f"every slot of agent {kind} has failed: protocol violation: OK")
    assert daemon.wait(second, "queued")["jq_failures"] == 0


def test_an_endless_line_fails_the_item_and_kills_the_agent_f102(daemon: Daemon, kind: str) -> None:
    job = daemon.insert(jq_type=kind, jq_args="head -c 1100000 /dev/zero | tr '\\0' x; sleep 1000")
    row = daemon.wait(job, "failed")
    assert row["jq_endtext"] == "protocol violation: line over 1048576 bytes"
    assert "ERROR protocol violation: line over 1048576 bytes; killed" in daemon.log_text(job)
    said(daemon, f"every slot of agent {kind} has failed: protocol violation: line over 1048576 bytes")


def test_a_line_just_within_the_limit_is_read_whole_f102(daemon: Daemon, kind: str) -> None:
    job = daemon.insert(jq_type=kind, jq_args="printf 'LOG '; head -c 1048572 /dev/zero | tr '\\0' x; echo")
    daemon.wait(job)
    (row,) = daemon.log_rows(job)
    assert row["log_message"] == "x" * 1_048_572


@pytest.mark.slow
def test_an_agent_that_does_not_read_its_line_is_killed_without_delaying_others(launch: Launch) -> None:
    deaf = ["sh", "-c", "echo OK; exec sleep 1000"]
    daemon = launch(settings(write_limit=0.5) + LOCAL + agent("deaf", deaf) + puppet())
    job = daemon.insert(jq_type="deaf", jq_args="x" * 500_000)
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(20)])
    assert daemon.wait(job, "failed")["jq_endtext"] == "does not read its line"
    assert "ERROR does not read its line; killed" in daemon.log_text(job)


@pytest.mark.slow
def test_an_agent_that_floods_its_output_delays_no_other_f75(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("babbler", item_timeout=8) + puppet())
    job = daemon.insert(jq_type="babbler", jq_args="yes")
    daemon.wait(job, "running")
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(5)])
    assert daemon.row(job)["jq_state"] == "running"
    assert daemon.wait(job, "failed")["jq_endtext"] == "item took longer than 8 s"


def test_an_agent_that_closes_its_output_is_not_taken_for_dead(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="shy", jq_args="exec >&-; sleep 1000")
    assert daemon.wait(job, "failed")["jq_endtext"] == "item took longer than 0.5 s"
