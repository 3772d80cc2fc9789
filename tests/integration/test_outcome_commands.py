"""Commands that wait for jobs and show what came of them, with the real daemon."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from psycopg.conninfo import make_conninfo

from tests import warm
from tests.cli_tools import DROVER, Done, Drover, environment
from tests.integration.daemon import Daemon, start
from tests.integration.puppets import LOCAL, Meeting, puppet
from tests.integration.test_outcome import pieces, shell
from tests.patience import PATIENCE_S

Program = warm.Process | subprocess.Popen[bytes]
Begin = Callable[..., Program]


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    with start(LOCAL + shell(slots=4) + puppet(), module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Return the daemon; the commands of the test are for its database."""
    monkeypatch.setenv("DROVER_DATABASE_URL", operator(shared))
    return shared


@pytest.fixture
def begin(shared: Daemon, config: Path) -> Iterator[Begin]:
    """Start commands that are still at work when the test goes on; return their processes."""
    begun: list[Program] = []

    def start_one(*words: str) -> Program:
        variables = environment(operator(shared), config)
        process = warm.begin([*DROVER, *words], stdout=subprocess.PIPE, env=variables)
        begun.append(process)
        return process

    yield start_one
    for process in begun:
        process.kill()
        rest(process)
        process.stdout.close()


def operator(daemon: Daemon) -> str:
    """Return how people who look and queue log in."""
    return make_conninfo(daemon.database, user="drover_operator")


def shell_job(daemon: Daemon, args: str, **columns: object) -> int:
    return daemon.insert(jq_type="sh", jq_args=args, **columns)


def line(process: Program) -> str:
    assert process.stdout
    return process.stdout.readline().decode()


def rest(process: Program) -> tuple[int, str]:
    """Return how a command ended, and what it printed until then."""
    assert process.stdout
    out = process.stdout.read().decode()
    return process.wait(PATIENCE_S), out


# ---- exit


@pytest.mark.parametrize(
    ("end", "printed", "value"),
    [("exit 0", "0", 0), ("exit 7", "7", 7), ("exit 255", "255", 255), ("kill -9 $$", "137 SIGKILL", 137),
     ("kill $$", "143 SIGTERM", 143), ("kill -40 $$", "168 SIG40", 168)],
)  # fmt: skip
def test_exit_prints_the_status_and_q_exits_with_it_r63_r64_r67(
    daemon: Daemon, drover: Drover, end: str, printed: str, value: int
) -> None:
    job = shell_job(daemon, end)
    daemon.wait(job, {"done", "failed"})
    assert drover("exit", str(job)) == Done(0, printed + "\n", "")
    assert drover("exit", "-q", str(job)) == Done(value, "", "")


@pytest.mark.parametrize(("act", "value"), [(":", 0), ("echo FAIL no", 1), ("exit 0", 1), ("exit 5", 5)])
def test_drover_exit_of_an_unsuccessful_job_is_never_0(daemon: Daemon, drover: Drover, act: str, value: int) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=act)
    daemon.wait(job, {"done", "failed"})
    assert drover("exit", str(job)) == Done(0, f"{value}\n", "")


@pytest.mark.parametrize("words", [["exit"], ["exit", "-q"]])
def test_drover_exit_of_a_live_job_says_so_r66(
    daemon: Daemon, drover: Drover, meeting: Meeting, words: list[str]
) -> None:
    job = shell_job(daemon, meeting.wait)
    daemon.wait(job, "running")
    assert drover(*words, str(job)) == Done(1, "", f"drover: job {job} has not ended: it is running\n")
    meeting.let_go()
    daemon.wait(job)


def test_exit_w_waits_and_is_woken_by_a_notification_r65(
    daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch, meeting: Meeting
) -> None:
    monkeypatch.setattr("scheduler.cli.wait.POLL_S", 10 * PATIENCE_S)  # nothing but the wake-up is in time
    job = shell_job(daemon, f"{meeting.wait}; exit 7")

    def end() -> None:
        daemon.until(lambda: looks(daemon, "there is no such job"))  # it has looked once, in vain
        meeting.let_go()

    ending = Thread(target=end)
    ending.start()
    assert drover("exit", "-w", "-q", str(job)).status == 7
    ending.join()


def test_exit_w_of_a_job_that_is_tried_again_is_that_of_the_last_attempt_r65(daemon: Daemon, drover: Drover) -> None:
    job = shell_job(daemon, "exit $DROVER_ATTEMPT", jq_retries=2)
    assert drover("exit", "-w", str(job)) == Done(0, "3\n", "")


@pytest.mark.parametrize("words", ["poll", "poll nowhere", "pause nowhere", "submit --wait command reset", "run {job}"])
def test_a_command_line_is_woken_by_the_answer_to_its_command_r65_j56(
    daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr("scheduler.cli.wait.POLL_S", 10 * PATIENCE_S)  # nothing but the wake-up is in time
    job = shell_job(daemon, "true", jq_mode="manual")
    done = drover(*words.format(job=job).split())
    assert done.status == ("nowhere" in words)


# ---- wait


def test_wait_prints_each_end_as_it_happens_j53(daemon: Daemon, begin: Begin, meeting: Meeting) -> None:
    slow, quick = shell_job(daemon, meeting.wait), shell_job(daemon, "true")
    waiting = begin("wait", str(slow), str(quick))
    first = line(waiting)
    meeting.let_go()
    assert (first, rest(waiting)) == (
        f"{quick} sh done all data processed\n",
        (0, f"{slow} sh done all data processed\n"),
    )


def test_wait_reports_failed_and_missing_jobs_and_the_rest_j57(daemon: Daemon, drover: Drover) -> None:
    named = shell_job(daemon, "true", jq_name="sh.wait")
    bad = shell_job(daemon, "exit 3")
    done = drover("wait", "4711", "sh.wait", "sh.nosuch", str(bad), str(named))
    assert done.status == 1
    assert sorted(done.out.splitlines()) == [f"{named} sh done all data processed", f"{bad} sh failed exit status 3"]
    assert sorted(done.err.splitlines()) == [
        f"drover: no job {job}; drover ls --all lists all jobs" for job in ("4711", "sh.nosuch")
    ]


@pytest.mark.parametrize(("args", "status"), [("true", 0), ("false", 1)])
def test_wait_fails_if_a_job_failed(daemon: Daemon, drover: Drover, args: str, status: int) -> None:
    assert drover("wait", str(shell_job(daemon, args))).status == status


def test_wait_ends_at_its_time_limit(daemon: Daemon, drover: Drover, meeting: Meeting) -> None:
    job = shell_job(daemon, meeting.wait)
    done = drover("wait", str(job), "--timeout", "0.1")
    meeting.let_go()
    assert (done.status, done.out) == (1, "")
    assert done.err == "drover: after 0.1 s, 1 of 1 jobs have not ended; see drover why\n"
    daemon.wait(job)


def test_status_counts_waiting_clients_j80(daemon: Daemon, drover: Drover, begin: Begin, meeting: Meeting) -> None:
    job = shell_job(daemon, f"echo x; {meeting.wait}")
    waiting = [begin(*words, str(job)) for words in (["wait"], ["exit", "-w"], ["out", "-t"])]

    def counted() -> int:
        return int(json.loads(drover("status", "--json").out)["waiting_clients"])

    daemon.until(lambda: counted() == 3)
    assert "3 clients wait for jobs or answers" in drover("status").out.splitlines()
    meeting.let_go()
    for process in waiting:
        rest(process)
    daemon.until(lambda: counted() == 0)


@pytest.mark.parametrize("command", ["wait", "exit -w"])
def test_waiting_for_a_job_that_is_removed_meanwhile_ends(daemon: Daemon, begin: Begin, command: str) -> None:
    job = shell_job(daemon, "true", jq_state="held")
    waiting = begin(*command.split(), str(job))
    daemon.until(lambda: looks(daemon, "there is no such job"))
    daemon.execute("delete from drover.jobqueue where jq_pk = %s", job)
    daemon.execute("select pg_notify('drover_event', %s)", f'[{{"jq_pk":{job}}}]')
    assert rest(waiting) == (1, "")


def test_malformed_notifications_are_ignored_by_waiting_commands(
    daemon: Daemon, begin: Begin, meeting: Meeting
) -> None:
    job = shell_job(daemon, f"{meeting.tell('up')}; {meeting.wait}")
    waiting = begin("wait", str(job))
    assert meeting.hear() == "up"
    for payload in ("", "null", "{", "[1]", "[{}]", "9" * 7000):
        daemon.execute("select pg_notify('drover_event', %s)", payload)
    meeting.let_go()
    assert rest(waiting) == (0, f"{job} sh done all data processed\n")


RESULT = {
    "type": "sh", "state": "failed", "text": "exit status 3: so", "name": None, "value": None,
    "result": "fail", "code": 3, "signal": None, "stdout": "é\n", "stderr": "so\n",
}  # fmt: skip


@pytest.mark.parametrize("words", [["wait"], ["submit", "--wait"]])
def test_results_as_json_hold_state_status_and_output_j56(daemon: Daemon, drover: Drover, words: list[str]) -> None:
    args = "echo é; echo so >&2; exit 3"
    job = ["sh", args] if words[0] == "submit" else [str(shell_job(daemon, args))]
    done = drover(*words, "--json", *job)
    *_, told = done.out.splitlines()
    found = json.loads(told)
    assert (done.status, found.pop("job") > 0, found) == (1, True, RESULT)


def test_result_as_json_holds_what_a_line_agent_gave(daemon: Daemon, drover: Drover) -> None:
    job = daemon.insert(jq_type="puppet", jq_args="""echo 'RESULT {"a": 1}'""")
    found = json.loads(drover("wait", "--json", str(job)).out)
    assert (found["value"], found["result"], found["code"], found["stdout"]) == ({"a": 1}, "ok", None, "")


# ---- out


@pytest.mark.parametrize(("flags", "text"), [([], "a\n  b\té"), (["-e"], "oops\n\n")])
def test_out_prints_exactly_what_was_written_r68(daemon: Daemon, begin: Begin, flags: list[str], text: str) -> None:
    job = shell_job(daemon, r"printf 'a\n  b\té'; printf 'oops\n\n' >&2")
    daemon.wait(job)
    assert rest(begin("out", *flags, str(job))) == (0, text)


def test_out_of_a_named_job_and_of_any_attempt_r7_r68(daemon: Daemon, drover: Drover) -> None:
    job = shell_job(daemon, "echo $DROVER_ATTEMPT; exit 1", jq_retries=1, jq_name="sh.out")
    daemon.wait(job, "failed")
    assert [drover("out", "sh.out", *words).out for words in ([], ["--attempt", "1"])] == ["2\n", "1\n"]
    assert drover("out", str(job), "--attempt", "3") == Done(1, "", f"drover: job {job} has had only 2 attempts\n")


@pytest.mark.parametrize(("flags", "to"), [([], ""), (["-e"], ">&2")])
def test_out_t_shows_lines_before_the_end_and_ends_with_the_job_r69(
    daemon: Daemon, begin: Begin, meeting: Meeting, flags: list[str], to: str
) -> None:
    job = shell_job(daemon, f"for i in 1 2; do echo line $i {to}; {meeting.wait}; done; echo last {to}; exit 1")
    following = begin("out", "-t", *flags, str(job))
    assert line(following) == "line 1\n"
    meeting.let_go()
    assert line(following) == "line 2\n"
    assert daemon.row(job)["jq_endtime"] is None
    meeting.let_go()
    assert rest(following) == (0, "last\n")


def test_out_t_is_woken_and_does_not_poll_r69(daemon: Daemon, begin: Begin, meeting: Meeting) -> None:
    job = shell_job(daemon, f"echo line 1; {meeting.wait}; echo line 2; {meeting.wait}")
    daemon.wait(job, "running")
    daemon.until(lambda: pieces(daemon, job))
    following = begin("out", "-t", str(job))
    assert line(following) == "line 1\n"
    daemon.until(lambda: looks(daemon))
    before = looks(daemon)
    shell_output(daemon, 5)
    assert looks(daemon) == before  # other jobs wake it not
    meeting.let_go()
    assert line(following) == "line 2\n"
    meeting.let_go()
    assert rest(following) == (0, "")


def test_out_t_follows_the_next_attempt_unless_one_was_named_r69(
    daemon: Daemon, begin: Begin, meeting: Meeting
) -> None:
    job = shell_job(daemon, f"echo $DROVER_ATTEMPT; {meeting.wait}; exit 1", jq_retries=1)
    daemon.until(lambda: pieces(daemon, job))
    all_of_it, first = begin("out", "-t", str(job)), begin("out", "-t", "--attempt", "1", str(job))
    assert (line(all_of_it), line(first)) == ("1\n", "1\n")
    meeting.let_go()
    assert rest(first) == (0, "")
    assert line(all_of_it) == "2\n"
    meeting.let_go()
    assert rest(all_of_it) == (0, "")


def test_a_front_end_sees_results_of_its_own_jobs_only(
    daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo out; echo err >&2; exit 3"
    mine, other = shell_job(daemon, script, role="drover_frontend"), shell_job(daemon, script)
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_frontend"))
    told = f"{mine} sh failed exit status 3: err\n"
    assert drover("wait", str(mine)) == Done(1, told, "")
    assert json.loads(drover("wait", "--json", str(mine)).out)["stderr"] == "err\n"
    assert (drover("exit", "-w", str(mine)).out, drover("out", str(mine)).out) == ("3\n", "out\n")
    assert (drover("why", str(mine)).out, drover("log", str(mine)).status) == (
        "failed (exit_status): exit status 3: err\n",
        0,
    )
    nothing = Done(1, "", f"drover: no job {other}; drover ls --all lists all jobs\n")
    for command in ("wait", "exit", "out", "why", "log"):
        assert drover(command, str(other)) == nothing
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_readonly"))
    assert drover("why", str(mine)).out == "failed (exit_status)\n"  # not what was said


def looks(daemon: Daemon, text: str = "drover.output") -> list[object]:
    """Return when those who wait, and whose last statement holds this text, looked last."""
    query = """
        select query_start from pg_stat_activity
         where datname = current_database() and application_name = 'drover-wait'
           and state = 'idle' and strpos(query, %s) > 0 and pid <> pg_backend_pid()
    """
    return [row["query_start"] for row in daemon.execute(query, text)]


def shell_output(daemon: Daemon, count: int) -> None:
    """Some more jobs that print."""
    daemon.wait_all([shell_job(daemon, "echo x") for _ in range(count)])
