"""What is known of a job when its program has ended, under the real daemon: status, signal and all that it wrote."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, Row, agent, start
from tests.integration.puppets import LOCAL, Meeting, settings
from tests.patience import LONG_PATIENCE_S

SHELL = ["sh", "-c", "{args}"]
MIB = 1 << 20


def shell(name: str = "sh", **keys: Any) -> str:
    """Return the table of an agent type that runs its parameter."""
    return agent(name, SHELL, kind="exec", **keys)


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    text = settings(kill_grace=20) + LOCAL + shell(slots=4) + shell("large", output_limit=16 * MIB)
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    return shared


def run(daemon: Daemon, args: str, state: str = "done", **columns: Any) -> Row:
    return daemon.wait(daemon.insert(**{"jq_type": "sh", "jq_args": args} | columns), state)


def output(daemon: Daemon, row: Row, stream: str = "out") -> str:
    query = """
        select coalesce(string_agg(out_data, '' order by out_pk), '') from drover.output
         where out_jq_fk = %s and out_attempt = %s and out_stream = %s
    """
    return str(daemon.value(query, row["jq_pk"], row["jq_attempt"], stream))


# ---- the end


@pytest.mark.parametrize(("status", "state", "bits"), [(0, "done", 1), (1, "failed", 2), (255, "failed", 2)])
def test_exit_status_decides_and_is_stored_j30_j31(daemon: Daemon, status: int, state: str, bits: int) -> None:
    job = daemon.insert(jq_type="sh", jq_args=f"exit {status}")
    row = daemon.wait(job, state)
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_end_bits"]) == (status, None, bits)


def test_exit_status_and_end_are_null_before_the_end_j30(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="sh", jq_args=meeting.wait)
    row = daemon.wait(job, "running")
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_end_bits"], row["jq_endtime"]) == (None, None, 0, None)
    meeting.let_go()
    assert daemon.wait(job)["jq_end_bits"] == 1


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (9, "SIGKILL"), (40, "SIG40")])
def test_the_signal_that_killed_a_command_is_stored_by_name_j32(daemon: Daemon, number: int, name: str) -> None:
    row = run(daemon, f"kill -{number} $$", "failed")
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_endtext"]) == (None, name, f"killed by {name}")


@pytest.mark.parametrize("ends", ["exit 0", "exit 3"])
def test_a_signal_of_an_attempt_that_was_given_back_is_not_kept_j32(
    launch: Launch, meeting: Meeting, ask: Ask, ends: str
) -> None:
    text = settings(kill_grace=20) + LOCAL + shell()
    first = launch(text)
    job = first.insert(jq_type="sh", jq_args=f"{meeting.tell('up')}; {meeting.wait}; {ends}")
    assert meeting.hear() == "up"
    first.stop()
    second = launch(text)
    assert meeting.hear() == "up"
    meeting.let_go()
    row = second.wait(job, {"done", "failed"})
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_attempt"]) == (int(ends[-1]), None, 2)
    assert [past["att_signal"] for past in second.attempts(job)] == ["SIGHUP", None]
    assert ask(f"exit {job}").out == f"{ends[-1]}\n"


@pytest.mark.slow
def test_the_status_of_an_earlier_attempt_is_not_that_of_a_job_whose_scheduler_died(
    launch: Launch, meeting: Meeting, ask: Ask
) -> None:
    text = LOCAL + shell()
    first = launch(text)
    args = f"test $DROVER_ATTEMPT = 1 && exit 3; {meeting.tell('up')}; {meeting.wait}"
    job = first.insert(jq_type="sh", jq_args=args, jq_retries=1, jq_max_interruptions=0)
    assert meeting.hear() == "up"
    first.wait(job, "running")
    first.kill()
    second = launch(text)
    row = second.wait(job, "failed")
    assert (row["jq_exitcode"], row["jq_endtext"]) == (None, "interrupted more than 0 times")
    assert ask(f"exit {job}").out == "1\n"


def test_a_time_limit_and_a_cancellation_show_the_signal_that_ended_the_command_r67(
    launch: Launch, meeting: Meeting, ask: Ask
) -> None:
    daemon = launch(settings(kill_grace=20) + LOCAL + shell(slots=2))
    late = daemon.insert(jq_type="sh", jq_args="exec sleep 1000", jq_timeout="0.2 s")
    job = daemon.insert(jq_type="sh", jq_args=f"trap 'exit 0' HUP; {meeting.tell('up')}; while :; do sleep 0.01; done")
    assert meeting.hear() == "up"
    daemon.execute("select drover.command(%s)", f"cancel {job} enough")
    row, caught = daemon.wait(late, "failed"), daemon.wait(job, "cancelled")
    assert (row["jq_exitcode"], row["jq_signal"], ask(f"exit {late}").out) == (None, "SIGHUP", "129 SIGHUP\n")
    assert (caught["jq_exitcode"], caught["jq_signal"], ask(f"exit {job}").out) == (0, None, "1\n")
    query = "select result, return_code, sig from drover.jobd where id = any (%s) order by id"
    assert [tuple(row.values()) for row in daemon.execute(query, [late, job])] == [
        ("fail", None, "SIGHUP"),
        ("fail", 1, None),
    ]


def test_results_can_be_read_after_a_reconnect_j38(daemon: Daemon) -> None:
    job = daemon.insert(jq_type="sh", jq_args="echo done; echo so >&2; exit 3")
    daemon.login("drover_frontend_sql").close()
    daemon._roles.clear()
    daemon.wait(job, "failed")
    (row,) = daemon.execute("select * from drover.my_jobs where jq_pk = %s", job, role="drover_frontend_sql")
    query = "select out_stream, out_data from drover.my_output where out_jq_fk = %s order by out_stream"
    told = daemon.execute(query, job, role="drover_frontend_sql")
    assert (row["jq_exitcode"], [tuple(each.values()) for each in told]) == (3, [("err", "so\n"), ("out", "done\n")])


def test_a_failed_job_keeps_its_output_log_and_files_r62_r44(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("content")
    args = f"cat {file}; echo why >&2; exit 1"
    row = run(daemon, args, "failed", jq_delete=[str(file)])
    assert (output(daemon, row), output(daemon, row, "err")) == ("content", "why\n")
    assert (row["jq_args"], row["jq_exitcode"], file.read_text()) == (args, 1, "content")


def test_each_attempt_has_its_own_output_and_its_own_history_r7(daemon: Daemon, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    job = daemon.insert(jq_type="sh", jq_args=f"echo attempt $DROVER_ATTEMPT; test -e {fixed} || exit 4")
    first = daemon.wait(job, "failed")
    fixed.touch()
    daemon.wait(daemon.value("select drover.command(%s)", f"retry {job}"))
    second = daemon.wait(job)
    assert (second["jq_attempt"], second["jq_exitcode"], second["jq_end_bits"]) == (2, 0, 1)
    assert [output(daemon, row) for row in (first, second)] == ["attempt 1\n", "attempt 2\n"]
    assert [past["att_exitcode"] for past in daemon.attempts(job)] == [4, 0]


def test_output_of_a_killed_command_is_kept_with_its_reaction_to_the_signal(daemon: Daemon, meeting: Meeting) -> None:
    script = f"trap 'echo cleaned up; exit' HUP; echo begun; {meeting.tell('up')}; while :; do sleep 0.01; done"
    job = daemon.insert(jq_type="sh", jq_args=script)
    assert meeting.hear() == "up"
    daemon.execute("select drover.command(%s)", f"cancel {job} enough")
    assert output(daemon, daemon.wait(job, "cancelled")) == "begun\ncleaned up\n"


@pytest.mark.slow
def test_true_durations_of_every_attempt_are_stored(daemon: Daemon) -> None:
    row = run(daemon, "sleep 0.3; exit 1", "failed", jq_retries=2)
    took = [(past["att_end"] - past["att_start"]).total_seconds() for past in daemon.attempts(row["jq_pk"])]
    assert len(took) == 3
    assert min(took) >= 0.3


# ---- what it wrote


def test_five_mb_are_stored_as_one_mib_and_a_mark_with_the_count_j110(daemon: Daemon) -> None:
    row = run(daemon, f"head -c {5 * MIB} /dev/zero | tr '\\0' x | tee /dev/stderr")
    half = "x" * (MIB // 2)
    kept = f"{half}\n[... {4 * MIB} bytes left out ...]\n{half}"
    assert [output(daemon, row, stream) == kept for stream in ("out", "err")] == [True, True]
    assert row["jq_end_bits"] == 1


@pytest.mark.slow
def test_sixteen_mb_are_stored_whole_if_the_limit_allows_it_j34(daemon: Daemon) -> None:
    row = run(daemon, "seq -f %015.0f 1048576", jq_type="large")
    whole = "".join(f"{number:015}\n" for number in range(1, 1_048_577))
    assert (len(whole), output(daemon, row) == whole) == (16 * MIB, True)


@pytest.mark.slow
def test_a_thousand_jobs_that_print_64_kb_and_exit_at_once_are_complete_j111(daemon: Daemon) -> None:
    script = "head -c 65536 /dev/zero | tr '\\0' x"
    jobs = daemon.insert_all([{"jq_type": "sh", "jq_args": script}] * 1000)
    daemon.wait_all(jobs, timeout=2 * LONG_PATIENCE_S)
    query = """
        select count(*) from unnest(%s::bigint[]) as pk,
               lateral (select string_agg(out_data, '' order by out_pk) as text
                          from drover.output where out_jq_fk = pk) o
         where text = repeat('x', 65536)
    """
    assert daemon.value(query, jobs) == 1000


def test_a_character_split_over_two_writes_is_stored_whole_j33(daemon: Daemon, meeting: Meeting) -> None:
    script = (
        rf"printf 'd\303'; {meeting.tell('half')}; {meeting.wait}; printf '\251j\303\240 \360\237\230'; printf '\200'"
    )
    job = daemon.insert(jq_type="sh", jq_args=script)
    assert meeting.hear() == "half"
    daemon.until(lambda: output(daemon, daemon.row(job)) == "d")
    meeting.let_go()
    assert output(daemon, daemon.wait(job)) == "déjà 😀"


def test_bytes_that_are_not_text_are_shown_by_their_number_j33(daemon: Daemon) -> None:
    row = run(daemon, r"printf '\000a\377\303'; printf '\303(' >&2")
    assert (output(daemon, row), output(daemon, row, "err")) == (r"\x00a\xff\xc3", r"\xc3(")


def test_both_streams_keep_the_order_in_which_they_were_read(daemon: Daemon, meeting: Meeting) -> None:
    step = f"{meeting.tell('x')}; {meeting.wait}"
    job = daemon.insert(jq_type="sh", jq_args=f"echo 1; {step}; echo 2 >&2; {step}; echo 3")
    for count in (1, 2):
        assert meeting.hear() == "x"
        daemon.until(lambda count=count: len(pieces(daemon, job)) == count)
        meeting.let_go()
    daemon.wait(job)
    assert pieces(daemon, job) == [("out", "1\n"), ("err", "2\n"), ("out", "3\n")]


def pieces(daemon: Daemon, job: int) -> list[tuple[str, str]]:
    """Return what was stored of a job, in order."""
    rows = daemon.execute("select out_stream, out_data from drover.output where out_jq_fk = %s order by out_pk", job)
    return [(row["out_stream"], row["out_data"]) for row in rows]


@pytest.mark.slow
def test_the_memory_of_the_daemon_is_bounded_for_any_output(daemon: Daemon) -> None:
    run(daemon, "seq 100000")
    before = peak(daemon)
    row = run(daemon, "head -c 300000000 /dev/zero | tr '\\0' x")
    assert len(output(daemon, row)) < 1.1 * MIB
    assert peak(daemon) - before < 16 * MIB


def peak(daemon: Daemon) -> int:
    """Return the most memory that the daemon has had, in bytes."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


@pytest.mark.slow
def test_output_under_a_dead_daemon_and_under_the_next_are_stored_apart(launch: Launch, meeting: Meeting) -> None:
    text = LOCAL + shell()
    first = launch(text)
    job = first.insert(jq_type="sh", jq_args=f"echo attempt $DROVER_ATTEMPT; {meeting.wait}")
    first.until(lambda: pieces(first, job))
    first.kill()
    second = launch(text)
    second.until(lambda: len(pieces(second, job)) == 2)
    meeting.let_go()
    row = second.wait(job)
    assert [output(second, row | {"jq_attempt": attempt}) for attempt in (1, 2)] == ["attempt 1\n", "attempt 2\n"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_output_is_stored_once_if_the_answer_of_the_database_is_lost(launch: Launch, when: str) -> None:
    daemon = launch(LOCAL + shell(), points=f"write_output:{when}=error")
    row = run(daemon, "seq 3; exit 2", "failed")
    assert output(daemon, row) == "1\n2\n3\n"
    assert f"failpoint write_output:{when}: error" in daemon.stderr()


@pytest.mark.slow
def test_duration_of_an_attempt_excludes_waiting_time(launch: Launch) -> None:
    daemon = launch(LOCAL + shell("lone"))
    batch = [*["true"] * 100, "sleep 8", *["true", "exit 1"] * 5]  # quick ones: others are claimed in advance
    jobs = daemon.insert_all([{"jq_type": "lone", "jq_args": args} for args in batch])
    rows = daemon.wait_all(jobs, {"done", "failed"})
    slow, *waited = [
        attempt["att_end"] - attempt["att_start"] for job in jobs[100:] for attempt in daemon.attempts(job)
    ]
    assert slow.total_seconds() >= 8
    assert max(waited) < slow / 2
    assert max(row["jq_elapsedtime"] for row in rows[101:]) > slow
