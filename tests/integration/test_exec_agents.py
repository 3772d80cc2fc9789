"""Commands as agents under the real daemon: one process an item, its arguments, its end, what it printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, Row, agent, start
from tests.integration.puppets import LOCAL, Meeting, puppet, settings, slots


def command(name: str, *words: str, **keys: Any) -> str:
    """Return the table of an agent type that is a command."""
    return agent(name, list(words), kind="exec", **keys)


SHELL = ("sh", "-c", "{args}")
MACROS = r"echo 'U=%{U} A=%{A} 1=%{1} 2=%{2} all=%{*} pc=%{%} other=%{Z} P=%{P}'"


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    text = (
        settings(blocked_delay=0.1)
        + LOCAL
        + command("sh", *SHELL, slots=4)
        + command("columns", "printf", "%s|", "{a}", "<{b}{c}>", "{{x}}", "{column:id}", "{id}")
        + command("args", "printf", "%s", "{args}")
        + command("cat", "cat", slots=2)
        + command("unknown", "echo", "{nowhere}")
        + command("absent", "/nonexistent/program", "{i}")
        + command("little", *SHELL, output_limit=2000)
        + command("silent", *SHELL, output_limit=0)
        + command("rows", "sh", "-c", 'echo "item $1"; exit $2', "-", "{i}", "{status}", slots=4)
        + agent("shell", ["drover-agent-shell"])
        + agent("macros", ["drover-agent-shell", MACROS])
        + agent("beating", ["drover-agent-shell", "--heartbeat", "0.5"], heartbeat=4)
    )
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    return shared


def run(daemon: Daemon, kind: str, args: str, state: str = "done", **columns: Any) -> Row:
    return daemon.wait(daemon.insert(jq_type=kind, jq_args=args, **columns), state)


def output(daemon: Daemon, row: Row, stream: str = "out") -> str:
    chunks = daemon.execute(
        "select out_data from drover.my_output where out_jq_fk = %s and out_stream = %s order by out_pk",
        row["jq_pk"], stream, role="drover_frontend_sql",
    )  # fmt: skip
    return "".join(chunk["out_data"] for chunk in chunks)


def failures(daemon: Daemon, row: Row) -> list[Row]:
    return daemon.execute("select * from drover.item_failure where item_jq_fk = %s order by item_pk", row["jq_pk"])


# ---- arguments


def test_columns_are_arguments_of_the_command_and_null_is_empty(daemon: Daemon) -> None:
    sql = "select 'x  y' as a, null as b, '$HOME ''\"' as c, 5 as id"
    row = run(daemon, "columns", sql, jq_msq=True)
    assert output(daemon, row) == f"x  y|<$HOME '\"> |{{x}}|5|{row['jq_pk']}|".replace("> |", ">|")


@pytest.mark.parametrize("args", ["two words", "", "-n", "a\nb", "déjà", "{id} {{", "%s"])
def test_the_line_is_one_argument_and_standard_input(daemon: Daemon, args: str) -> None:
    assert output(daemon, run(daemon, "args", args)) == args
    assert output(daemon, run(daemon, "cat", args)) == args + "\n"


def test_a_row_goes_to_stdin_as_its_line(daemon: Daemon) -> None:
    row = run(daemon, "cat", "select 1 as a, 'x y' as b", jq_msq=True)
    assert output(daemon, row) == 'a="1" b="x y"\n'


def test_an_unknown_placeholder_fails_the_job_before_any_start(daemon: Daemon) -> None:
    single = run(daemon, "unknown", "x", "failed")
    query = run(daemon, "unknown", "select 1 as a", "failed", jq_msq=True)
    reason = "the command names {nowhere}, and the job has no such column"
    assert (single["jq_endtext"], query["jq_endtext"]) == (reason, reason)
    assert slots(daemon, "ST_FREE", "unknown")[0]["status_spawns"] == 0


def test_a_program_that_is_missing_fails_each_item_with_its_name_and_errno_j45(daemon: Daemon) -> None:
    row = run(daemon, "absent", "select i from generate_series(1, 2) i", "failed", jq_msq=True)
    assert (row["jq_itemsfailed"], row["jq_endtext"]) == (2, "2 items failed, 0 tolerated")
    assert "/nonexistent/program" in failures(daemon, row)[0]["item_reason"]
    assert "(errno 2)" in failures(daemon, row)[0]["item_reason"]


def test_the_environment_names_the_job_and_holds_no_secret_j43(daemon: Daemon) -> None:
    row = run(daemon, "sh", "env")
    given = dict(line.split("=", 1) for line in output(daemon, row).splitlines())
    own = {name: value for name, value in given.items() if name.startswith("DROVER_")}
    job, attempt = str(row["jq_pk"]), str(row["jq_attempt"])
    assert own == {"DROVER_JOB": job, "DROVER_ATTEMPT": attempt, "DROVER_HOST": "local", "DROVER_AGENT": "sh"}
    assert given["THREAD_UNIQUE"].isdigit()


# ---- ends


@pytest.mark.parametrize(("end", "code", "name"), [("exit 3", 3, None), ("kill -9 $$", None, "SIGKILL")])
def test_the_way_a_command_ended_is_stored(daemon: Daemon, end: str, code: int | None, name: str | None) -> None:
    row = run(daemon, "sh", end, "failed")
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_end_bits"]) == (code, name, 2)
    assert row["jq_endtext"] == (f"exit status {code}" if code else f"killed by {name}")


def test_no_end_of_a_command_counts_against_its_slot(launch: Launch) -> None:
    daemon = launch(settings(respawn_count=0) + LOCAL + command("sh", *SHELL))
    jobs = [daemon.insert(jq_type="sh", jq_args=end) for end in ("exit 1", "kill -9 $$", "exit 2", "kill $$")]
    daemon.wait_all(jobs, "failed")
    assert "ST_FAIL" not in daemon.stderr()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        ("absent", 127, "No such file or directory (errno 2)"),
        ("blind", 126, "Permission denied (errno 13)"),
        ("uninterpreted", 127, "its interpreter /no/such/sh is not there"),
        ("homeless", 127, "(/no/such/directory): No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_started_has_the_status_of_a_shell_c25_j45(
    launch: Launch, ask: Ask, tmp_path: Path, kind: str, code: int, reason: str
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/sh\n")
    script.chmod(0o755)
    text = command("absent", "/nonexistent/program") + command("blind", "/etc/passwd")
    text += command("uninterpreted", str(script)) + command("homeless", "true", cwd="/no/such/directory")
    daemon = launch(LOCAL + text + command("sh", *SHELL))
    row = run(daemon, kind, "x", "failed")
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_end_bits"]) == (code, None, 2)
    assert row["jq_endtext"].startswith(f"agent '{kind}': cannot start ")
    assert reason in row["jq_endtext"]
    (attempt,) = daemon.attempts(row["jq_pk"])
    assert (attempt["att_exitcode"], attempt["att_pid"], attempt["att_host"]) == (code, None, "local")
    assert ask(f"exit {row['jq_pk']}").out == f"{code}\n"
    assert ask(f"exit -q {row['jq_pk']}").status == code


def test_a_command_that_exits_with_127_was_started_c25(daemon: Daemon) -> None:
    row = run(daemon, "sh", "no-such-program", "failed")
    (attempt,) = daemon.attempts(row["jq_pk"])
    assert (row["jq_exitcode"], row["jq_endtext"], attempt["att_pid"] is None) == (
        127,
        "exit status 127: /usr/bin/sh: 1: no-such-program: not found",
        False,
    )


def test_a_success_stores_its_exit_status_and_attempt(daemon: Daemon) -> None:
    row = run(daemon, "sh", "true")
    (attempt,) = daemon.attempts(row["jq_pk"])
    assert (row["jq_exitcode"], row["jq_end_bits"]) == (0, 1)
    assert (attempt["att_outcome"], attempt["att_exitcode"], attempt["att_agent"]) == ("done", 0, "sh")


def test_exit_75_is_blocked_and_queued_again(daemon: Daemon, tmp_path: Path) -> None:
    there = tmp_path / "there"
    row = run(daemon, "sh", f"test -e {there} || {{ touch {there}; exit 75; }}")
    assert (row["jq_attempt"], row["jq_failures"], row["jq_exitcode"]) == (2, 0, 0)
    first, _ = daemon.attempts(row["jq_pk"])
    assert (first["att_outcome"], first["att_exitcode"]) == ("blocked", 75)
    assert first["att_reason"] == "blocked: exit status 75"


def test_a_command_of_a_query_that_exits_badly_twice_is_a_failed_item(daemon: Daemon) -> None:
    sql = "select i, case when i = 3 then 9 else 0 end as status from generate_series(1, 5) i"
    row = run(daemon, "rows", sql, "failed", jq_msq=True)
    (failure,) = failures(daemon, row)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"]) == (4, 1)
    assert (failure["item_line"], failure["item_reason"]) == ('i="3" status="9"', "exit status 9")
    assert sorted(output(daemon, row).splitlines()) == ["item 1", "item 2", "item 3", "item 3", "item 4", "item 5"]


def test_a_time_limit_kills_the_command_with_all_its_children(daemon: Daemon, meeting: Meeting) -> None:
    args = f"sleep 1000 & {meeting.tell('$! $$')}; wait"
    row = run(daemon, "sh", args, "failed", jq_timeout="3 s")
    assert row["jq_endtext"] == "timeout: ran longer than 3 s"
    child, parent = (Path("/proc", pid) for pid in meeting.hear().split())
    daemon.until(lambda: not (child.exists() or parent.exists()))


# ---- output


def test_both_streams_are_captured_in_order(daemon: Daemon) -> None:
    row = run(daemon, "sh", "for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    assert output(daemon, row) == "out 1\nout 2\nout 3\n"
    assert output(daemon, row, "err") == "err 1\nerr 2\nerr 3\n"


def test_output_can_be_read_while_the_command_runs(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="sh", jq_args=f"echo begun; {meeting.wait}; echo ended")
    daemon.until(lambda: output(daemon, daemon.row(job)) == "begun\n")
    assert daemon.wait(job, "running")["jq_endtime"] is None
    meeting.let_go()
    assert output(daemon, daemon.wait(job)) == "begun\nended\n"


def test_large_output_keeps_head_and_tail_with_a_marked_gap(daemon: Daemon) -> None:
    row = run(daemon, "little", "seq 1 100000")
    head, tail = output(daemon, row).split("\n[... 586895 bytes left out ...]\n")
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert (head, tail) == (whole[:1000], whole[-1000:])


def test_an_output_limit_of_zero_keeps_no_output(daemon: Daemon) -> None:
    row = run(daemon, "silent", "echo secret")
    assert "secret" not in output(daemon, row)


def test_output_that_is_not_text_is_stored_escaped(daemon: Daemon) -> None:
    row = run(daemon, "sh", r"printf 'a\000b\377c'")
    assert output(daemon, row) == r"a\x00b\xffc"


def test_output_of_a_grandchild_is_waited_for_only_briefly(daemon: Daemon) -> None:
    row = run(daemon, "sh", "echo mine; sleep 1000 &")
    assert (output(daemon, row), row["jq_end_bits"]) == ("mine\n", 1)


# ---- the shell agent


def logged(daemon: Daemon, row: Row) -> list[tuple[str, str]]:
    return [(line["log_type"], line["log_message"]) for line in daemon.log_rows(row["jq_pk"])]


def test_the_shell_agent_runs_a_command_line_f170(daemon: Daemon) -> None:
    row = run(daemon, "shell", "echo one; echo two | tr t T")
    assert row["jq_end_bits"] == 1
    assert logged(daemon, row) == [("LOG", "one"), ("LOG", "Two")]


@pytest.mark.parametrize(
    ("line", "reason"), [("exit 4", "exit status 4"), ("kill -9 $$", "killed by signal 9 (SIGKILL)")]
)
def test_the_shell_agent_reports_a_failure_and_goes_on_f170(daemon: Daemon, line: str, reason: str) -> None:
    row = run(daemon, "shell", line, "failed")
    assert (row["jq_endtext"], row["jq_end_bits"]) == (reason, 6)
    assert ("ERROR", reason) in logged(daemon, row)
    assert slots(daemon, "ST_READY", "shell")[0]["status_spawns"] == 1


def test_the_shell_agent_fills_in_its_macros_f170(daemon: Daemon) -> None:
    row = run(daemon, "macros", "first 'second one'")
    (slot,) = slots(daemon, "ST_READY", "macros")
    head, tail = f"U={slot['status_slot']} A=macros 1=first 2=second one", f"P={slot['status_pid']}"
    assert logged(daemon, row) == [("LOG", f"{head} all=first 'second one' pc=% other=%{{Z}} {tail}")]


@pytest.mark.slow
def test_the_shell_agent_sends_heartbeats_while_its_command_is_silent_f170(daemon: Daemon) -> None:
    assert run(daemon, "beating", "sleep 5")["jq_end_bits"] == 1


# ---- slots


def test_equal_slots_are_as_many_processes_at_once_f151(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + command("sh", *SHELL, slots=3) + puppet())
    jobs = [daemon.insert(jq_type="sh", jq_args=f"{meeting.tell('up')}; {meeting.wait}") for _ in range(5)]
    assert meeting.hear_all(3) == ["up"] * 3
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert len(slots(daemon, "ST_RUNNING", "sh", count=3)) == 3
    meeting.let_go(5)
    daemon.wait_all(jobs)
    assert meeting.hear_all(2) == ["up"] * 2


def test_prelude_is_read_at_every_start_r14_r16(launch: Launch, tmp_path: Path) -> None:
    tasks = tmp_path / "{tasks}.sh"
    tasks.write_text('task_billing() { echo "first $1 $RATE"; }; RATE=7\n')
    called, started = (["task_billing", "{args}"], ["sh", "-c", 'echo "$RATE $1"; kill -TERM $$', "-", "{args}"])
    prelude = {"prelude": str(tasks)}
    daemon = launch(LOCAL + command("billing", *called, **prelude) + command("started", *started, **prelude))
    first = run(daemon, "billing", "simpsons $(touch x)")
    tasks.write_text('task_billing() { echo "second $1"; }; export RATE=8\n')
    second = run(daemon, "billing", "simpsons")
    assert (output(daemon, first), output(daemon, second)) == ("first simpsons $(touch x) 7\n", "second simpsons\n")
    killed = daemon.wait(daemon.insert(jq_type="started", jq_args="x"), "failed")
    assert (output(daemon, killed), killed["jq_signal"]) == ("8 x\n", "SIGTERM")


def test_job_fails_while_its_prelude_cannot_be_read_r16(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(LOCAL + command("billing", "echo", "{args}", prelude=str(tmp_path / "tasks.sh")))
    row = daemon.wait(daemon.insert(jq_type="billing"), "failed")
    assert row["jq_exitcode"] == 1


def test_prelude_that_others_may_write_to_is_not_executed(launch: Launch, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.sh"
    tasks.write_text(f"touch {tmp_path}/executed\n")
    daemon = launch(LOCAL + command("billing", "true", prelude=str(tasks)))
    tasks.chmod(0o666)
    row = daemon.wait(daemon.insert(jq_type="billing"), "failed")
    assert f"others may write to {tasks} (mode 0666); chmod go-w {tasks}" in row["jq_endtext"]
    assert not (tmp_path / "executed").exists()
    tasks.chmod(0o644)
    daemon.wait(daemon.insert(jq_type="billing"), "done")
    assert (tmp_path / "executed").exists()


def test_prelude_on_another_host_is_not_executed_if_others_may_write_to_it(launch: Launch, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.sh"
    tasks.write_text(f"touch {tmp_path}/executed\n")
    tasks.chmod(0o620)
    engine = '[hosts.container]\ntransport = "command"\ncommand = ["env"]\nmax = 1\n'
    daemon = launch(engine + command("billing", "true", prelude=str(tasks)))
    row = daemon.wait(daemon.insert(jq_type="billing"), "failed")
    assert (row["jq_exitcode"], (tmp_path / "executed").exists()) == (126, False)
    tasks.chmod(0o600)
    daemon.wait(daemon.insert(jq_type="billing"), "done")


def test_a_file_of_definitions_is_read_at_every_start_r14_r21(launch: Launch, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.sh"
    tasks.write_text('task_billing() { echo "first $1"; }\n')
    script = f'. {tasks}; task_billing "$1"'
    daemon = launch(LOCAL + command("billing", "sh", "-c", script, "-", "{args}"))
    first = run(daemon, "billing", "simpsons $(touch x)")
    tasks.write_text('task_billing() { echo "second $1"; }\n')
    second = run(daemon, "billing", "simpsons")
    assert (output(daemon, first), output(daemon, second)) == ("first simpsons $(touch x)\n", "second simpsons\n")
