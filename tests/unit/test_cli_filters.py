"""Filters of ls, retry, cancel and flush; how far a long wait is."""

from collections.abc import Iterator

import pytest

from scheduler.cli.jobs import in_words
from scheduler.cli.output import span
from scheduler.cli.parser import parse
from scheduler.cli.wait import Progress, line


@pytest.mark.parametrize(
    "text",
    ["retry", "cancel", "retry 1 --type a", "cancel 1 --since 1h", "flush", "ls --sort size", "ls --group x"],
)
def test_jobs_are_named_or_chosen_and_never_both(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(text.split())
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_filters_are_said_in_words() -> None:
    options = parse(
        ["cancel", "--type", "a", "--type", "b", "--queue", "heavy", "--by", "web", "--group", "3", "--since", "1h"]
    )
    assert in_words(options) == "of type a or b, in queue heavy, by web, of group 3, since 1h"


def test_filters_of_ends_are_said_in_words() -> None:
    words = "retry --ran-on a --ran-on b --code 7 --code timeout --since 2h --until 1h --host c"
    options = parse(words.split())
    assert in_words(options) == "for host c, that ran on a or b, with code 7 or timeout, since 2h, until 1h"


@pytest.mark.parametrize(
    "command", ["retry", "cancel", "hold", "release", "ice", "priority a", "move q", "flush 1", "ls"]
)
def test_all_commands_for_many_jobs_have_the_same_filters(command: str) -> None:
    options = parse([*command.split(), "--until", "1h", "--code", "7", "--ran-on", "a", "--host", "b"])
    assert (options.until, options.codes, options.ran_on, options.hosts) == ("1h", ["7"], ["a"], ["b"])


def test_t_is_the_same_as_type_r61() -> None:
    assert parse(["ls", "-t", "a", "--type", "b"]).types == ["a", "b"]


@pytest.mark.parametrize(
    ("done", "passed_s", "text"),
    [
        (0, 3, "0 of 1,000 jobs, 3 s"),
        (250, 5, "250 of 1,000 jobs, 50/s, 15 s left"),
        (2, 600, "2 of 1,000 jobs, 0.2 a minute, 3 d 11 h left"),
        (1000, 70, "1,000 of 1,000 jobs, 1 min 10 s"),
        (5, 0, "5 of 1,000 jobs, 0 s"),
    ],
)
def test_progress_has_rate_and_time_left(done: int, passed_s: float, text: str) -> None:
    assert line(done, 1000, "jobs", passed_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (18_120, "5 h 2 min"), (187_200, "2 d 4 h")],
)
def test_length_of_time_has_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def seconds(*values: float) -> Iterator[float]:
    yield from values


def test_progress_is_silent_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = seconds(0, 10)
    progress = Progress(10, "jobs", clock.__next__)
    progress.show(5)
    progress.clear()
    assert capsys.readouterr().err == ""


def test_progress_is_drawn_and_erased_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = seconds(0, 0.1, 5)
    progress = Progress(10, "jobs", clock.__next__)
    progress.show(1)
    progress.show(5)
    progress.clear()
    assert capsys.readouterr().err == "\r\x1b[K5 of 10 jobs, 1/s, 5 s left\r\x1b[K"


@pytest.mark.parametrize(
    ("total", "what", "shown"),
    [
        (1, "jobs", "5 s: job 7 runs"),
        (1, "items", "0 of 1 items, 5 s: job 7 runs"),
        (2, "jobs", "0 of 2 jobs, 5 s: job 7 runs"),
    ],
)
def test_how_far_a_single_job_is_stands_in_place_of_the_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], total: int, what: str, shown: str
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = seconds(0, 5)
    Progress(total, what, clock.__next__, lambda: "job 7 runs").show(0)
    assert capsys.readouterr().err == f"\r\x1b[K{shown}"
