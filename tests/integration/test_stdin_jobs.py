"""`drover run -I` and -H: jobs from standard input, hosts ignored."""

from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon, agent, lines, rec, records

HOST = "[hosts.alpha]\n"
WATCH = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
 where application_name = 'drover watch' and datname = current_database()
"""
REFUSE = """
create function public.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'not now' using errcode = '{}'; end $$;
create trigger refuse before insert on drover.jobqueue for each row when (new.jq_args = 'refused')
  execute function public.refuse()
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def text(record: Path) -> str:
    return HOST + agent("rec", rec(record))


def run_with_stdin(launch: Launch, text: str, stdin: bytes) -> tuple[int, list[str], Daemon]:
    """Exit status and output of `drover run -I` on this input."""
    daemon = launch(text, options=["-I"], stdin=stdin, wait=False)
    assert daemon.process.stdout is not None
    told = daemon.process.stdout.read().decode()
    return daemon.wait_exit(), told.splitlines(), daemon


def output(daemon: Daemon) -> list[str]:
    """Return the lines that it prints, up to its end."""
    assert daemon.process.stdout is not None
    return daemon.process.stdout.read().decode().splitlines()


def execute(database: str, statement: str) -> None:
    """Run a statement before there is a daemon."""
    with psycopg.connect(database) as connection:
        connection.execute(statement.encode())


def test_line_from_stdin_becomes_a_job_and_the_daemon_ends_with_its_input_f123(
    launch: Launch, text: str, record: Path
) -> None:
    status, told, daemon = run_with_stdin(launch, text, b"rec | hello\n")
    assert (status, told) == (0, ["1 rec done all data processed"])
    assert lines(record) == ["hello"]
    assert daemon.row(1)["jq_submitter"] == "drover_scheduler"


@pytest.mark.slow
def test_file_on_stdin_is_read_to_its_end(launch: Launch, text: str, record: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(b"rec | one\n" + b"# more than is read at once\n" * 10_000 + b"rec | two")
    program = ["sh", "-c", f'exec "$@" < {tmp_path / "jobs"}', "sh", *RUN]
    daemon = launch(text, options=["-I"], stdin=b"", wait=False, program=program)
    assert sorted(output(daemon)) == ["1 rec done all data processed", "2 rec done all data processed"]
    assert daemon.wait_exit() == 0
    assert lines(record) == ["one", "two"]


def test_every_line_is_a_job_except_blank_lines_and_comments_f123(launch: Launch, record: Path) -> None:
    text = HOST + agent("rec", rec(record), empty="send")
    status, told, _ = run_with_stdin(launch, text, b"rec|one\n\n# rec | no\n  rec  |  two | with a bar  \nrec |")
    assert status == 0
    assert sorted(line.split(" ", 1)[1] for line in told) == ["rec done all data processed"] * 3
    assert sorted(lines(record)) == ["", "one", "two | with a bar"]


def test_a_failed_job_makes_the_exit_status_1_f123(launch: Launch, text: str) -> None:
    status, told, _ = run_with_stdin(launch, text, b"rec | say:FAIL no good\nrec | fine\n")
    assert status == 1
    assert sorted(told) == ["1 rec failed no good", "2 rec done all data processed"]


def test_bad_line_is_reported_with_its_number_and_the_others_run_f123(launch: Launch, text: str, record: Path) -> None:
    status, told, daemon = run_with_stdin(launch, text, b"rec | fine\nno bar\n| no type\n")
    assert (status, len(told)) == (1, 1)
    assert "stdin:2: not of the form `type | args`" in daemon.stderr()
    assert "stdin:3: not of the form `type | args`" in daemon.stderr()
    assert lines(record) == ["fine"]


def test_an_urgent_line_begins_with_a_mark_f123(launch: Launch, text: str, record: Path) -> None:
    _, _, daemon = run_with_stdin(launch, text, b"!rec | hurry\n")
    assert daemon.row(1)["jq_urgent"] is True


@pytest.mark.slow
def test_a_thousand_lines_all_run_and_their_ends_are_printed_f123(launch: Launch, text: str, record: Path) -> None:
    status, told, _ = run_with_stdin(launch, text, b"".join(b"rec | %d\n" % n for n in range(1000)))
    assert (status, len(told)) == (0, 1000)
    assert sorted(map(int, lines(record))) == list(range(1000))


def test_empty_input_ends_at_once_f123(launch: Launch, text: str) -> None:
    status, told, _ = run_with_stdin(launch, text, b"")
    assert (status, told) == (0, [])


def test_jobs_of_other_clients_run_and_are_not_printed_f123(
    launch: Launch, text: str, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    daemon = launch(text, options=["-I"], stdin=f"rec | gate:{gate}\n".encode())
    daemon.until(lambda: lines(record))
    other = daemon.insert(jq_type="rec", jq_args="of another")
    gate.touch()
    assert daemon.process.stdout is not None
    assert daemon.process.stdout.read() == b"1 rec done all data processed\n"
    assert daemon.wait_exit() == 0
    assert daemon.row(other)["jq_state"] in ("done", "queued")


# ---- ends that nobody tells of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("cancel", 1, "1 rec cancelled cancelled by drover_operator"),
        ("ice", 0, "1 rec skipped on ice"),
        ("remove", 1, "1 rec removed its row was removed"),
    ],
)
def test_end_of_a_job_that_had_to_wait_is_printed_f123(
    launch: Launch, text: str, end: str, status: int, told: str
) -> None:
    daemon = launch("[queues.default]\npaused = true\n" + text, options=["-I"], stdin=b"rec | x\n")
    daemon.wait(1, "queued")
    if end == "remove":
        daemon.execute("delete from drover.jobqueue where jq_pk = 1")
    else:
        daemon.insert(role="drover_operator", jq_type="command", jq_args=f"{end} 1")
    assert output(daemon) == [told]
    assert daemon.wait_exit() == status


@pytest.mark.slow
def test_standby_prints_ends_of_jobs_that_the_active_daemon_ran_f123(launch: Launch, text: str) -> None:
    launch(text)
    status, told, _ = run_with_stdin(launch, text, b"rec | say:FAIL no good\nrec | fine\n")
    assert status == 1
    assert sorted(told) == ["1 rec failed no good", "2 rec done all data processed"]


# ---- a connection that breaks


@pytest.mark.slow
@pytest.mark.parametrize("query", ["next_job_number", "insert_stdin_job", "read_stdin_ends"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_line_in_flight_when_the_connection_breaks_is_one_job_f123(
    launch: Launch, text: str, record: Path, gate: Path, query: str, when: str
) -> None:
    stdin = f"rec | one\nrec | gate:{gate}\nrec | three\n".encode()
    daemon = launch(text, options=["-I"], stdin=stdin, points=f"{query}:{when}=error@2")
    daemon.until(lambda: f"{query}:{when}: error" in daemon.stderr())
    gate.touch()
    assert [line.split(" ", 1)[1] for line in output(daemon)] == ["rec done all data processed"] * 3
    assert daemon.wait_exit() == 0
    assert sorted(lines(record)) == sorted(["one", f"gate:{gate}", "three"])
    assert "stdin:" not in daemon.stderr()


@pytest.mark.slow
def test_lines_run_once_each_while_the_connection_breaks_repeatedly_f123(
    launch: Launch, text: str, record: Path
) -> None:
    stdin = b"".join(b"rec | %d\n" % n for n in range(1000))
    daemon = launch(text, options=["-I"], stdin=stdin, wait=False)
    for count in (50, 250, 500, 750):
        daemon.until(lambda count=count: daemon.value("select count(*) >= %s from drover.jobqueue", count))
        daemon.execute(WATCH)
    assert len(set(output(daemon))) == 1000
    assert daemon.wait_exit() == 0
    assert sorted(map(int, lines(record))) == list(range(1000))


@pytest.mark.slow
def test_line_is_inserted_later_when_the_database_refuses_it_for_a_while_f123(
    launch: Launch, database_with_roles: str, text: str
) -> None:
    execute(database_with_roles, REFUSE.format("53100"))
    daemon = launch(text, options=["-I"], stdin=b"rec | refused\n")
    daemon.until(lambda: "insert_stdin_job: not now" in daemon.stderr())
    daemon.execute("drop trigger refuse on drover.jobqueue")
    assert output(daemon) == ["1 rec done all data processed"]
    assert daemon.wait_exit() == 0


def test_line_with_a_row_that_the_database_refuses_is_reported_as_bad_f123(
    launch: Launch, database_with_roles: str, text: str
) -> None:
    execute(database_with_roles, REFUSE.format("23514"))
    status, told, daemon = run_with_stdin(launch, text, b"rec | refused\nrec | fine\n")
    assert (status, told) == (1, ["2 rec done all data processed"])
    assert "stdin:1: not now" in daemon.stderr()


def test_lines_not_queued_at_the_end_are_reported_f123(launch: Launch, database_with_roles: str, text: str) -> None:
    execute(database_with_roles, REFUSE.format("53100"))
    daemon = launch(text, options=["-I"], stdin=b"rec | refused\nrec | two\n")
    daemon.until(lambda: "insert_stdin_job: not now" in daemon.stderr())
    assert daemon.stop() == 1
    assert "stdin:1: perhaps queued, as job 1\nstdin:2: not queued\n" in daemon.stderr()
    assert output(daemon) == []


# ---- hosts


def test_remote_hosts_are_local_with_option_h_f124(launch: Launch, record: Path) -> None:
    text = (
        '[hosts.far]\ntransport = "ssh"\naddress = "far.example.org"\nidentity = "/nowhere/key"\n'
        '[hosts.node]\ntransport = "command"\ncommand = ["/nowhere/srun", "--"]\n' + agent("rec", rec(record))
    )
    daemon = launch(text, options=["-H"])
    pks = [daemon.insert(jq_type="rec", jq_args="x", jq_host=host) for host in ("far", "node")]
    daemon.wait_all(pks)
    assert {note["host"] for note in records(record)} == {"far", "node"}
    assert {note["pid"] for note in records(record)} == set(daemon.agent_pids())
