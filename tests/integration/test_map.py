"""`drover map`, as a person runs it: without a configuration, in a home of its own."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.cli_tools import DROVER, Done
from tests.patience import LONG_PATIENCE_S
from tests.terminal_tools import on_terminal

MAP = [sys.executable, "-P", "-m", "scheduler.cli.main", "map"]
SHOW = ["/usr/bin/printf", "[%s]\\n"]
# Says that it has begun, waits until there is a file `gate`, and says that it has ended.
GATED = ["sh", "-c", 'echo "$1" >>began; while [ ! -e gate ]; do sleep 0.02; done; echo "$1" >>ended', "sh", "{}"]
TEN = [str(number) for number in range(1, 11)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home directory that all runs of this module share, with its database, which the first run makes."""
    folder = tmp_path_factory.mktemp("home")
    first = subprocess.run([*MAP, "true", ":::", "x"], capture_output=True, env=environment(folder), check=True)
    assert b"makes its database" in first.stderr
    return folder


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Callable[..., Done]:
    """Run the command in a directory of the test's own, to its end."""

    def run(*words: str, data: bytes = b"", **more: str) -> Done:
        done = subprocess.run(
            [*MAP, *words], input=data, capture_output=True, cwd=tmp_path, env=environment(home) | more, check=False
        )
        return Done(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())

    return run


def environment(home: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DROVER_", "XDG_", "STATE_"))}
    return kept | {"HOME": str(home)}


@contextmanager
def going_on(home: Path, place: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the command in the background; it is killed if it has not ended then."""
    log = (place / "stderr").open("wb")
    with log, subprocess.Popen([*MAP, *words], cwd=place, env=environment(home), stderr=log, stdout=log) as process:
        try:
            yield process
        finally:
            process.kill()


def until(is_so: Callable[[], object]) -> None:
    deadline = monotonic() + LONG_PATIENCE_S
    while not is_so():
        assert monotonic() < deadline
        sleep(0.02)


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def interrupt(process: "subprocess.Popen[bytes]", home: Path) -> None:
    """Interrupt a run, and wait until its scheduler begins nothing more; runs before it have logs there too."""

    def draining() -> int:
        logs = (home / ".local/share/drover/map/runs").glob("[0-9]*/log")
        return sum("draining" in log.read_text() for log in logs)

    before = draining()
    process.send_signal(signal.SIGINT)
    until(lambda: draining() > before)


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


# ---- what is run


def test_each_item_is_a_command_printed_in_order(run: Callable[..., Done]) -> None:
    done = run("-k", "-j", "4", *SHOW, "{#} {}", ":::", "a b", "c;d", "$(id)", "'\"")
    assert (done.status, done.out) == (0, "[1 a b]\n[2 c;d]\n[3 $(id)]\n[4 '\"]\n")


def test_items_between_nuls_may_hold_any_byte(run: Callable[..., Done]) -> None:
    done = run("-k", "-0", "--", *SHOW, data=b"a\nb\0\xff\xfe\0-n\0")
    assert done.out == "[a\nb]\n[\udcff\udcfe]\n[-n]\n"


def test_a_table_has_columns(run: Callable[..., Done]) -> None:
    done = run("-k", "--colsep", "\\t", "--", *SHOW, "{2}={1/.}", data=b"d/a.c\t1\nb\t2\n")
    assert done.out == "[1=a]\n[2=b]\n"


@pytest.mark.slow
def test_more_items_than_one_job_has_are_all_run(run: Callable[..., Done]) -> None:
    items = "".join(f"{number}{'x' * 100}\n" for number in range(1500)).encode()  # several reads
    done = run("-k", "-n", "10", "--", "echo", data=items)
    assert (done.status, done.out.split()) == (0, items.decode().split())


def test_commands_have_directory_and_environment_of_the_caller(run: Callable[..., Done], tmp_path: Path) -> None:
    done = run("env", ":::", "A=1", PGPASSWORD="x", MINE="two words", PATH=os.environ["PATH"], PYTHONUNBUFFERED="")
    told = done.out.splitlines()
    assert {"A=1", "PGPASSWORD=x", "MINE=two words", f"PATH={os.environ['PATH']}"} <= set(told)
    assert not [line for line in told if line.startswith(("DROVER", "MAP_", "THREAD_UNIQUE", "PYTHONUNBUFFERED=1"))]
    assert run("pwd", ":::", "-P").out == f"{tmp_path.resolve()}\n"


def test_commands_are_scheduled_as_the_caller_is(run: Callable[..., Done]) -> None:
    done = run(sys.executable, "-c", "import os, sys; print(os.sched_getscheduler(0), sys.argv[1])", ":::", "a")
    assert done.out == f"{os.sched_getscheduler(0)} a\n"


def test_large_output_is_exact(run: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3_000_000))
    assert run("cat", ":::", "large").out.encode(errors="surrogateescape") == (tmp_path / "large").read_bytes()


@pytest.mark.slow
def test_what_commands_left_behind_does_not_hold_it_up(run: Callable[..., Done]) -> None:
    done = run("sh", "-c", 'sleep 1000 & echo "$1"', "sh", ":::", "a", "b")
    assert (done.status, sorted(done.out)) == (0, ["\n", "\n", "a", "b"])


def test_a_dry_run_prints_the_commands_and_makes_nothing(home: Path, tmp_path: Path) -> None:
    words = [*MAP, "--dry-run", "convert", "{}", "{.}.png", ":::", "a b.tif", "c.tif"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.stdout == "convert 'a b.tif' 'a b.png'\nconvert c.tif c.png\n"
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_how_far_it_is_and_the_time_left(home: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = 'test "$1" -lt 4 || while [ ! -e "$2" ]; do sleep 0.02; done'
    words = [*DROVER, "map", "-j", "2", "--", "sh", "-c", script, "sh", "{}", str(gate), ":::", *TEN]
    with on_terminal(words, environment(home)) as (terminal, process):
        terminal.until("3 of 10 commands, ")
        terminal.until(" left")
        gate.touch()
        terminal.read_all()
        assert process.wait() == 0


# ---- what fails


def test_the_exit_status_is_the_number_of_failures_which_are_printed_last(run: Callable[..., Done]) -> None:
    done = run("-k", "sh", "-c", 'echo "about $1" >&2; exit "$1"', "sh", ":::", "0", "7", "0", "3")
    assert (done.status, done.err.splitlines()[4:]) == (2, [
        "drover: exit status 7: about 7: sh -c 'echo \"about $1\" >&2; exit \"$1\"' sh 7",
        "drover: exit status 3: about 3: sh -c 'echo \"about $1\" >&2; exit \"$1\"' sh 3",
        "drover: 2 of 4 commands failed",
    ])  # fmt: skip


@pytest.mark.slow
def test_more_than_a_hundred_failures_are_101(run: Callable[..., Done]) -> None:
    done = run("false", ":::", *map(str, range(105)))
    assert (done.status, done.err.splitlines()[-1]) == (101, "drover: 105 of 105 commands failed")
    assert len(done.err.splitlines()) == 101


def test_a_command_that_ends_by_a_signal_or_cannot_start_has_failed(run: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "killed").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o755)
    done = run("-k", "{}", ":::", "./killed", "./missing\udcff")
    assert (done.status, done.err.splitlines()[:2]) == (2, [
        "drover: signal SIGKILL: ./killed",
        "drover: cannot start ./missing\\xff: No such file or directory: './missing\\xff'",
    ])  # fmt: skip


@pytest.mark.slow
def test_a_command_that_kills_its_runner_has_failed(run: Callable[..., Done]) -> None:
    done = run("sh", "-c", '[ "$1" = b ] && kill -9 0; echo "$1"', "sh", ":::", "a", "b", "c")
    assert (done.status, sorted(done.out.split())) == (1, ["a", "c"])
    assert "terminated" in done.err


def test_a_program_that_does_not_exist_is_told_before_anything_runs(run: Callable[..., Done]) -> None:
    done = run("nosuch", ":::", "a")
    assert (done.status, done.err) == (
        255, "drover map: there is no program nosuch on PATH, or it may not be executed; nothing was run\n"
    )  # fmt: skip


@pytest.mark.parametrize("words", ["--nosuch true", "--halt often true", "-j 0 true", "--resume 77", "--resume x", ""])
def test_a_wrong_command_line_is_no_number_of_failures(run: Callable[..., Done], words: str) -> None:
    assert run(*words.split()).status == 255


@pytest.mark.slow
def test_a_failed_command_is_tried_again(run: Callable[..., Done]) -> None:
    assert run("--retries", "1", "sh", "-c", 'test -e "$1" || { touch "$1"; exit 1; }', "sh", ":::", "a").status == 0


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_killed_with_what_it_started(run: Callable[..., Done]) -> None:
    done = run("--timeout", "0.5", "sh", "-c", 'echo $$; sleep 1000; echo "$1"', "sh", ":::", "a")
    assert (done.status, "took longer than 0.5 s" in done.err) == (1, True)
    assert children(int(done.out)) == []


@pytest.mark.slow
def test_it_halts_after_failures(run: Callable[..., Done], home: Path) -> None:
    done = run("-j", "1", "--halt", "soon,fail=2", "sh", "-c", 'sleep 0.3; exit "$1"', "sh", ":::", *"011000000000")
    assert (done.status, "goes on" in done.err) == (2, True), done.err
    assert run("--resume").status == 2
    assert list((home / ".local/share/drover/map/runs").glob("[0-9]*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["soon", "now"])
def test_nothing_is_begun_after_the_failure_that_halts(run: Callable[..., Done], tmp_path: Path, when: str) -> None:
    script = ["sh", "-c", 'echo "$1" >>began; exit 1', "sh", "{}"]
    done = run("-j", "1", "--halt", f"{when},fail=1", *script, ":::", *map(str, range(200)))
    assert (done.status, lines(tmp_path / "began")) == (1, ["0"]), done.err
    assert run("--resume").status == 101
    assert Counter(lines(tmp_path / "began")) == Counter(map(str, range(200)))


@pytest.mark.slow
def test_what_runs_when_the_run_is_halted_is_finished_and_nothing_follows_it(home: Path, tmp_path: Path) -> None:
    first = 'if [ "$1" = 1 ]; then until grep -q 2 began; do sleep 0.02; done; exit 1; fi; '
    script = ["sh", "-c", f"{first}{GATED[2]}", "sh", "{}"]
    with going_on(home, tmp_path, "-j", "2", "--halt", "soon,fail=1", *script, ":::", *TEN) as process:
        until(lambda: "1 failure: nothing more is begun" in (tmp_path / "stderr").read_text())
        (tmp_path / "gate").touch()
        assert process.wait() == 1
    assert lines(tmp_path / "began") == lines(tmp_path / "ended") == ["2"]


# ---- interrupted, and continued


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_an_early_interrupt_leaves_no_directory(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    runs = home / ".local/share/drover/map/runs"
    before = set(runs.glob("[0-9]*"))
    with going_on(home, tmp_path, "--", "true") as process:  # standard input is this process's: it may be at its end
        until(lambda: set(runs.glob("[0-9]*")) - before or process.poll() is not None)
        process.send_signal(number)
        process.wait()
    assert set(runs.glob("[0-9]*")) == before


@pytest.mark.slow
def test_a_run_that_was_killed_before_it_queued_anything_is_removed_by_the_next(
    home: Path, tmp_path: Path, run: Callable[..., Done]
) -> None:
    runs = home / ".local/share/drover/map/runs"
    before = set(runs.glob("[0-9]*"))
    reading, writing = os.pipe()  # nothing comes
    command = subprocess.Popen([*MAP, "--", "true"], stdin=reading, cwd=tmp_path, env=environment(home))
    until(lambda: set(runs.glob("[0-9]*/log")) - {run / "log" for run in before})
    command.kill()
    command.wait()
    assert set(runs.glob("[0-9]*")) > before
    os.close(writing)
    os.close(reading)
    assert run("true", ":::", "a").status == 0
    assert set(runs.glob("[0-9]*")) == before


@pytest.mark.slow
def test_an_interrupt_that_the_caller_ignores_stays_ignored(home: Path, tmp_path: Path) -> None:
    words = ["sh", "-c", "trap '' INT TERM; exec \"$@\"", "sh", *MAP, "-j", "2", *GATED, ":::", *TEN]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(home)) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "gate").touch()
        assert process.wait() == 0
    assert Counter(lines(tmp_path / "ended")) == Counter(TEN)


@pytest.mark.parametrize(
    "words", [["map", "true", ":::", "1"], ["status"], ["config"]], ids=["map", "status", "config"]
)
def test_relative_home_is_refused(tmp_path: Path, words: list[str]) -> None:
    argv = [*MAP[:-1], *words]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment(Path("there")), capture_output=True, text=True, check=False
    )
    assert (done.returncode, "HOME is 'there', which is no absolute path: " in done.stderr) == (
        255 if words[0] == "map" else 2, True,
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_finishes_what_runs_and_the_rest_is_continued(
    home: Path, tmp_path: Path, run: Callable[..., Done]
) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        interrupt(process, home)
        (tmp_path / "gate").touch()
        assert process.wait() == 130
    assert sorted(lines(tmp_path / "ended")) == ["1", "2"]
    assert "2 of 10 commands have ended; drover map --resume" in (tmp_path / "stderr").read_text()
    assert run("--resume").status == 0
    assert Counter(lines(tmp_path / "ended")) == Counter(TEN) == Counter(lines(tmp_path / "began"))


@pytest.mark.slow
def test_a_second_ctrl_c_kills_what_runs_which_is_begun_anew(
    home: Path, tmp_path: Path, run: Callable[..., Done]
) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        interrupt(process, home)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert lines(tmp_path / "ended") == []
    (tmp_path / "gate").touch()
    assert run("--resume").status == 0
    assert Counter(lines(tmp_path / "ended")) == Counter(TEN)
    assert Counter(lines(tmp_path / "began")) == Counter([*TEN, "1", "2"])


@pytest.mark.slow
def test_after_kill_9_what_runs_is_finished_and_the_rest_is_continued(
    home: Path, tmp_path: Path, run: Callable[..., Done]
) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        process.kill()
        process.wait()
    (tmp_path / "gate").touch()
    done = run("--resume", "-k")
    assert (done.status, done.err) == (0, "")
    assert Counter(lines(tmp_path / "ended")) == Counter(TEN) == Counter(lines(tmp_path / "began"))


@pytest.mark.slow
def test_after_kill_9_of_the_scheduler_the_rest_is_continued(
    home: Path, tmp_path: Path, run: Callable[..., Done]
) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        (guardian,) = [pid for pid in children(process.pid) if b"guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        (daemon,) = children(guardian)
        os.kill(daemon, signal.SIGKILL)
        assert process.wait() == 255
    assert "goes on" in (tmp_path / "stderr").read_text()
    (tmp_path / "gate").touch()
    assert run("--resume").status == 0
    assert Counter(lines(tmp_path / "ended")) == Counter(TEN)


@pytest.mark.slow
def test_what_could_not_begin_is_continued_when_it_can(home: Path, tmp_path: Path, run: Callable[..., Done]) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with going_on(home, place, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(place / "began")) == 2)
        interrupt(process, home)
        (place / "gate").touch()
        assert process.wait() == 130
    place.rename(tmp_path / "elsewhere")
    done = run("--resume")
    assert (done.status, "create it, or correct cwd" in done.err, "goes on" in done.err) == (255, True, True)
    (tmp_path / "elsewhere").rename(place)
    assert run("--resume").status == 0
    assert Counter(lines(place / "ended")) == Counter(TEN) == Counter(lines(place / "began"))


@pytest.mark.slow
def test_output_is_printed_once_over_an_interruption(home: Path, tmp_path: Path, run: Callable[..., Done]) -> None:
    script = ["sh", "-c", 'echo "out $1"; echo "$1" >>began; while [ ! -e gate ]; do sleep 0.02; done', "sh", "{}"]
    with going_on(home, tmp_path, "-k", "-j", "2", *script, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        process.kill()
        process.wait()
    (tmp_path / "gate").touch()
    assert run("--resume").out == "".join(f"out {number}\n" for number in TEN)


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_continued(home: Path, tmp_path: Path, run: Callable[..., Done]) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        number = (home / ".local/share/drover/map/runs/last").read_text()
        assert run("--resume", number).err == f"drover map: run {number} goes on in another process\n"
        (tmp_path / "gate").touch()
        assert process.wait() == 0


@pytest.mark.slow
def test_two_runs_at_once_do_not_mix(home: Path, tmp_path: Path, run: Callable[..., Done]) -> None:
    with going_on(home, tmp_path, "-j", "2", *GATED, ":::", *TEN) as process:
        until(lambda: len(lines(tmp_path / "began")) == 2)
        assert run("-k", "echo", ":::", "a", "b").out == "a\nb\n"
        (tmp_path / "gate").touch()
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("words", "redirection", "told"),
    [
        (["--", "echo", ":::", "1"], ">&-", "standard output and standard error must be open"),
        (["--", "echo", ":::", "1"], ">/dev/full", "what a command printed cannot be written: No space left on device"),
        (["-a", ".", "--", "echo"], "", "the items cannot be read: Is a directory"),
    ],
    ids=["closed", "full", "directory"],
)
def test_streams_that_cannot_be_used_are_told_and_are_no_failures_of_commands(
    home: Path, tmp_path: Path, words: list[str], redirection: str, told: str
) -> None:
    script = f'exec "$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *MAP, *words], capture_output=True, text=True, cwd=tmp_path, env=environment(home)
    )
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (255, True, False)
