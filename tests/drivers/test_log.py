"""Claims about the log: what a line looks like, where it goes, and what happens when it cannot go there."""

import faulthandler
import fcntl
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from scheduler.daemon import log
from scheduler.errors import ConfigError
from scheduler.model.config import Scheduler
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
MOVE = "ST_PREP -> ST_SPAWNED slot=0 agent=sha256 host=local pid=14113 job=7"
BEGIN = """
import logging, os, sys
from scheduler.daemon import log
from scheduler.model.config import Scheduler
log.set_up(Scheduler({settings}), {verbose}, os.environ)
"""
NASTY = "\x1b[2J forged\n2026-11-20 18:01:33,027 ERROR second line\r\x85\u2028"

SetUp = Callable[..., None]
Said = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "drover.log"


@pytest.fixture
def set_up(file: Path) -> Iterator[SetUp]:
    """Log into a file in this process; the log is as it was before at the end."""
    handlers, level = list(logging.getLogger().handlers), log.LOG.level

    def set_up(verbose: int = 0, **keys: object) -> None:
        log.set_up(attrs.evolve(Scheduler(), log_file=str(file), **keys), verbose, {})

    yield set_up
    log.close()
    faulthandler.enable(2)
    logging.getLogger().handlers[:] = handlers
    log.LOG.setLevel(level)


@pytest.fixture
def said() -> Said:
    """Run a small program that logs, and return what it wrote to its standard error."""

    def said(
        script: str, settings: str = "", verbose: int = 0, **options: object
    ) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-c", BEGIN.format(settings=settings, verbose=verbose) + script]
        return subprocess.run(argv, cwd=ROOT, text=True, check=False, **{"stderr": subprocess.PIPE} | options)  # type: ignore[call-overload,no-any-return]

    return said


# ---- levels


@pytest.mark.parametrize(("level", "count"), [("trace", 5), ("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_a_level_passes_its_own_and_worse_lines_j105(set_up: SetUp, file: Path, level: str, count: int) -> None:
    set_up(log_level=level)
    for each in log.LEVELS:
        log.log_line(each, f"line of {each}")
    told = file.read_text().splitlines()
    assert [line.split()[2].lower() for line in told] == list(log.LEVELS)[-count:]


@pytest.mark.parametrize(
    ("level", "verbose", "reached"), [("info", 1, "debug"), ("warning", 3, "trace"), ("info", 9, "trace")]
)
def test_each_v_raises_the_level_by_one_f144(set_up: SetUp, level: str, verbose: int, reached: str) -> None:
    set_up(verbose, log_level=level)
    assert log.LOG.getEffectiveLevel() == log.LEVELS[reached]


def test_the_level_can_be_set_while_it_runs(set_up: SetUp, file: Path) -> None:
    set_up(log_level="info")
    log.log_line("debug", "one")
    log.set_level("debug")
    log.log_line("debug", "two")
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["two"]


def test_an_unknown_level_is_refused_and_changes_nothing_j106(set_up: SetUp) -> None:
    set_up(log_level="error")
    with pytest.raises(ConfigError, match="no such level of the log: loud; there are trace, debug"):
        log.set_level("loud")
    assert log.LOG.level == logging.ERROR


# ---- shapes


def test_a_line_is_a_time_a_level_and_a_sentence(set_up: SetUp, file: Path) -> None:
    set_up()
    log.log_line("info", MOVE)
    day, time, level, text = file.read_text().rstrip("\n").split(" ", 3)
    assert (len(day), len(time), level, text) == (10, 12, "INFO", MOVE)


def test_a_line_of_an_agent_has_neither_time_nor_level_whatever_is_logged(set_up: SetUp, file: Path) -> None:
    set_up(log_level="error")
    log.echo("DEBUG[3]: hello")
    assert file.read_text() == "DEBUG[3]: hello\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_text_of_agents_is_one_line_without_control_characters(set_up: SetUp, file: Path, form: str) -> None:
    set_up(log_format=form)
    log.log_line("info", NASTY)
    log.echo(NASTY)
    told = file.read_text().split("\n")
    assert (len(told), told[2]) == (3, "")
    assert all(line.isprintable() for line in told)


def test_a_line_of_json_has_time_level_message_and_fields(set_up: SetUp, file: Path) -> None:
    set_up(log_format="json")
    log.log_line("warning", MOVE)
    told = json.loads(file.read_text())
    assert told.pop("time").count(":") == 3  # with its zone
    assert told == {
        "level": "WARNING", "message": MOVE, "slot": "0", "agent": "sha256", "host": "local", "pid": "14113", "job": "7"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("job=7: it said job=8 agent=x", {"job": "7"}),
        ("failed: it said job=8 job=7 agent=sha256", {"job": "7", "agent": "sha256"}),
        ("slow statement claim: 1200 ms", {}),
        ("job=8 was wanted", {}),
        ("user=root slot=1", {"slot": "1"}),
    ],
)
def test_fields_are_read_from_the_ends_that_we_wrote(text: str, fields: dict[str, str]) -> None:
    assert log.fields(text) == fields


@pytest.mark.parametrize(("form", "count"), [("text", 5), ("json", 1)])
def test_a_traceback_is_part_of_its_line(set_up: SetUp, file: Path, form: str, count: int) -> None:
    set_up(log_format=form)
    try:
        raise ValueError("why\x1b")
    except ValueError:
        log.LOG.exception("bug: x")
    told = file.read_text().splitlines()
    assert len(told) == count
    assert "\x1b" not in file.read_text()
    assert told[-1].rstrip('"}').replace("\\\\", "\\").endswith(r"ValueError: why\x1b")


# ---- files


def test_a_log_file_is_appended_to_and_private(set_up: SetUp, file: Path) -> None:
    file.write_text("before\n")
    set_up()
    log.echo("after")
    assert file.read_text() == "before\nafter\n"
    file.unlink()
    log.reopen()
    assert stat.S_IMODE(file.stat().st_mode) & 0o027 == 0


def test_a_renamed_log_file_is_reopened_under_its_name_f147_j107(set_up: SetUp, file: Path) -> None:
    set_up()
    log.echo("one")
    old = file.rename(file.with_suffix(".1"))
    log.echo("two")
    log.reopen()
    log.echo("three")
    assert (old.read_text(), file.read_text()) == ("one\ntwo\n", "three\n")


def test_a_log_file_that_cannot_be_reopened_is_reported_and_the_old_one_used_f147(set_up: SetUp, file: Path) -> None:
    set_up()
    old = file.rename(file.with_suffix(".1"))
    file.mkdir()
    with pytest.raises(ConfigError, match=r"drover\.log cannot be written: Is a directory"):
        log.reopen()
    log.echo("still here")
    assert old.read_text() == "still here\n"


def test_the_crash_descriptor_stays_the_same_when_the_log_is_reopened(set_up: SetUp, file: Path) -> None:
    set_up()
    before = log.crash_fd()
    file.rename(file.with_suffix(".1"))
    log.reopen()
    os.write(log.crash_fd(), b"crash\n")
    assert (log.crash_fd(), file.read_text()) == (before, "crash\n")


def test_children_do_not_inherit_the_log_file(set_up: SetUp, file: Path) -> None:
    set_up()
    log.reopen()
    assert not os.get_inheritable(log.crash_fd())


@pytest.mark.parametrize("path", ["/nonexistent/drover.log", "/"])
def test_a_log_file_that_cannot_be_written_is_an_error_at_start_up_j106(path: str) -> None:
    with pytest.raises(ConfigError, match=f"scheduler.log_file: {path} cannot be written"):
        log.set_up(Scheduler(log_file=path), 0, {})


# ---- several destinations


@pytest.fixture
def syslog(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield the socket of a server of syslog(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "devlog"))
        receiver.setblocking(False)
        yield receiver


def test_a_line_goes_to_a_file_a_second_one_standard_error_and_syslog_c52(
    said: Said, file: Path, syslog: socket.socket
) -> None:
    places = [str(file), "stderr", f"syslog:{syslog.getsockname()}"]
    told = said("log.log_line('warning', 'one\\n'); log.echo('two')", f"log_file='{file}.1', log_also={places}")
    texts = [Path(f"{file}.1").read_text(), file.read_text(), told.stderr]
    assert [[line.split(" ", 2)[-1] for line in text.splitlines()] for text in texts] == [["WARNING one\\n", "two"]] * 3
    datagrams = [syslog.recv(9000).decode() for _ in range(2)]
    assert [re.sub(r"\[\d+\]", "[PID]", each) for each in datagrams] == [
        "<28>drover[PID]: one\\n",
        "<30>drover[PID]: two",
    ]


def test_a_crash_is_in_the_first_destination_c52(said: Said, file: Path) -> None:
    told = said("raise SystemExit(log.crash_fd() == log._sinks()[0].fd)", f"log_file='{file}', log_also=['stderr']")
    assert told.returncode == 1


def test_all_files_are_reopened_c52(set_up: SetUp, file: Path) -> None:
    other = file.with_suffix(".2")
    set_up(log_also=(str(other),))
    for each in (file, other):
        each.rename(each.with_suffix(".old"))
    assert log.reopen() == f"the log is {file}; the log is {other}"
    log.echo("new")
    assert (file.read_text(), other.read_text()) == ("new\n", "new\n")


def test_lines_that_syslog_refuses_are_counted_and_lost_there_alone_c52(
    set_up: SetUp, file: Path, tmp_path: Path
) -> None:
    place = tmp_path / "devlog"
    set_up(log_also=(f"syslog:{place}",))
    log.log_line("info", "one")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(place))
        log.log_line("info", "x" * 10_000)
        lost, long = receiver.recv(9000).decode(), receiver.recv(9000).decode()
    assert lost.partition(": ")[2] == "lines of the log that could not be written: 1: No such file or directory"
    assert long.partition(": ")[2] == "x" * 8000
    assert [len(line) for line in file.read_text().splitlines()] == [len("2026-11-20 18:01:33,027 INFO one"), 10_029]


def test_a_further_destination_that_cannot_be_written_is_an_error_at_start_up_c52() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.log_also: /nonexistent/log cannot be written"):
        log.set_up(Scheduler(log_also=("/nonexistent/log",)), 0, {})


@pytest.mark.parametrize("place", ["", "drover.log", "syslog:", "journal"])
def test_what_is_no_destination_of_the_log_is_refused_c52(place: str) -> None:
    with pytest.raises(ValueError, match="must be a list of"):
        Scheduler(log_also=(place,))


# ---- what cannot be written


def test_a_full_disk_loses_log_lines_only_and_they_are_counted(set_up: SetUp, file: Path) -> None:
    file.symlink_to("/dev/full")
    set_up()
    log.echo("one")
    log.echo("two")
    file.unlink()
    log.reopen()
    log.echo("three")
    log.echo("four")
    loss, *rest = file.read_text().splitlines()
    assert loss.endswith("WARNING lines of the log that could not be written: 2: No space left on device")
    assert rest == ["three", "four"]


def test_a_closed_log_reader_loses_log_lines_only(said: Said) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = said("log.echo('x'); log.log_line('error', 'y'); print('on')", stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_a_closed_standard_error_loses_log_lines_and_writes_nowhere_else(said: Said, tmp_path: Path) -> None:
    other = tmp_path / "other"
    script = f"taken = open({str(other)!r}, 'wb')\nlog.echo('x')\nlog.log_line('error', 'y')\nprint('on')"
    done = said(script, stdout=subprocess.PIPE, stderr=None, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout, other.read_bytes()) == (0, "on\n", b"")


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_log_reader_that_does_not_read_does_not_block(said: Said, kind: str) -> None:
    ours, theirs = ends(kind)
    script = "for n in range(3000): log.echo(f'{n:04d} ' + 'x' * 1000)\nprint('on')"
    done = said(script, stdout=subprocess.PIPE, stderr=theirs, timeout=PATIENCE_S)
    told = drained(ours, theirs)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert told.startswith(b"0000 xxx")
    assert len(told) < 3_000_000


def test_lost_log_lines_are_counted_and_delivered_ones_are_whole(said: Said) -> None:
    ours, theirs = ends("pipe")
    script = """
for n in range(300): log.echo(f'{n:04d} ' + 'x' * 10_000)
got = os.read(int(sys.argv[1]) if len(sys.argv) > 1 else OURS, 1 << 20)
log.echo('after')
sys.stdout.buffer.write(got)
""".replace("OURS", str(ours))
    done = said(script, stdout=subprocess.PIPE, stderr=theirs, pass_fds=(ours,))
    lines = (done.stdout.encode() + drained(ours, theirs)).decode().splitlines()
    *whole, loss, last = lines
    assert [line for line in whole if len(line) != 10_005] == []
    assert int(loss.split(": ")[1]) == 300 - len(whole)
    assert (loss.endswith("no process reads them"), last) == (True, "after")


def test_a_terminal_that_others_use_too_keeps_its_mode(said: Said) -> None:
    ours, theirs = ends("terminal")
    said("log.echo('x')", stderr=theirs)
    assert not fcntl.fcntl(theirs, fcntl.F_GETFL) & os.O_NONBLOCK
    drained(ours, theirs)


def ends(kind: str) -> tuple[int, int]:
    """Return two ends of something, ours to read."""
    if kind == "pipe":
        return os.pipe()
    if kind == "terminal":
        return os.openpty()
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def drained(ours: int, theirs: int) -> bytes:
    """Return all that waits to be read; both ends are closed."""
    os.set_blocking(ours, False)
    told = b""
    try:
        while data := os.read(ours, 65_536):
            told += data
    except BlockingIOError:
        pass
    os.close(ours)
    os.close(theirs)
    return told


# ---- the journal


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield a socket that stands in for the journal's."""
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(log.JOURNAL)
        receiver.setblocking(False)
        yield receiver


def entry(datagram: bytes) -> dict[str, str]:
    """Return what an entry of the journal says (systemd, JOURNAL_NATIVE_PROTOCOL)."""
    told: dict[str, str] = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, equals, value = line.decode().partition("=")
        if not equals:
            size = int.from_bytes(datagram[:8], "little")
            value, datagram = datagram[8 : 8 + size].decode(), datagram[8 + size + 1 :]
        told[name] = value
    return told


@pytest.mark.parametrize(("level", "priority"), [("error", "3"), ("warning", "4"), ("info", "6"), ("debug", "7")])
def test_the_journal_gets_priority_and_fields(journal: socket.socket, level: str, priority: str) -> None:
    with closing(log.Journal(os.open(os.devnull, os.O_WRONLY))) as sink:
        sink.emit(logging.LogRecord("drover", log.LEVELS[level], "", 0, MOVE, None, None))
    assert entry(journal.recv(65_536)) == {
        "PRIORITY": priority, "SYSLOG_IDENTIFIER": "drover", "MESSAGE": MOVE, "DROVER_SLOT": "0",
        "DROVER_AGENT": "sha256", "DROVER_HOST": "local", "DROVER_PID": "14113", "DROVER_JOB": "7",
    }  # fmt: skip


def test_lines_refused_by_the_journal_go_to_standard_error_with_their_priority(
    journal: socket.socket, tmp_path: Path
) -> None:
    journal.close()
    errors = tmp_path / "errors"
    with closing(log.Journal(os.open(errors, os.O_WRONLY | os.O_CREAT))) as sink:
        sink.emit(logging.LogRecord("drover", logging.WARNING, "", 0, "x\ny", None, None))
    assert errors.read_text() == "<4>x\\ny\n"


@pytest.mark.parametrize(
    ("stream", "form", "kind"), [("same", "text", log.Journal), ("same", "json", log.Sink), ("other", "text", log.Sink)]
)
def test_the_journal_is_used_only_if_standard_error_is_the_journal(
    file: Path, stream: str, form: str, kind: type[log.Sink]
) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT)
    status = os.fstat(fd)
    environment = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + (stream == 'other')}"}
    with closing(log.sink(fd, "", form, environment)) as sink:
        assert type(sink) is kind


def test_a_python_that_is_too_old_is_reported_with_what_is_missing_j123() -> None:
    script = "import sys; sys.version_info = (3, 10, 4); import scheduler.cli.main"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "drover: Python 3.11 or newer is needed, and this is 3.10\n")
