"""Tables on a terminal: colours of states, short times, blocks of lines where it is narrow."""

import re
import sys
from datetime import UTC, datetime

import pytest

from scheduler.cli.output import Table, print_fields, print_table

ROWS = [(1, "failed", datetime.now(UTC), "a reason that takes some room"), (22, "done", None, "x\x1b[2J")]
TABLE = Table("Jobs", ("job", "state", "end", "text"), ROWS)
COLOUR = re.compile("\x1b\\[[0-9;]*m")


def be_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    """Have standard output be a terminal that shows colours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", str(columns)), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_states_have_colours_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(TABLE)
    assert "\x1b" not in capsys.readouterr().out
    be_terminal(monkeypatch)
    print_table(TABLE)
    assert "\x1b[31mfailed" in capsys.readouterr().out


def test_hostile_text_is_escaped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch)
    print_table(TABLE)
    print_fields([("args", "[bold]x\x1b[2J")])
    told = capsys.readouterr().out
    assert r"[bold]x\x1b[2J" in told
    assert "\x1b[2J" not in told


def test_time_of_today_has_no_date_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch)
    long_ago = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    print_table(Table("", ("end",), [(datetime.now(UTC),), (long_ago,)]))
    _, now, then = COLOUR.sub("", capsys.readouterr().out).splitlines()
    assert (len(now.strip()), "2020-01-0" in then) == (8, True)


def test_narrow_terminal_gets_a_block_of_lines_for_each_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, columns=30)
    print_table(TABLE)
    lines = COLOUR.sub("", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 30
    assert [line.split()[0] for line in lines if line.startswith(("job", "text"))] == ["job", "text"] * 2


def test_numbers_stand_to_the_right(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    be_terminal(monkeypatch)
    print_table(Table("", ("job", "type"), [(7, "noop"), (1234567, "x")]))
    _, first, second = COLOUR.sub("", capsys.readouterr().out).splitlines()
    assert (first.rstrip(), second.rstrip()) == ("      7  noop", "1234567  x")


def test_only_columns_of_states_have_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch)
    print_table(Table("", ("state", "text"), [("failed (2)", "failed")]))
    (_, row) = capsys.readouterr().out.splitlines()
    assert row.count("\x1b[31m") == 1


@pytest.mark.parametrize(
    ("columns", "shown"), [(29, "alpha beta gamma"), (28, "alpha gamma"), (18, "alpha gamma"), (17, "alpha")]
)
def test_spare_columns_are_left_out_one_after_the_other_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, shown: str
) -> None:
    be_terminal(monkeypatch, columns)
    table = Table("", ("alpha", "beta", "gamma"), [("a" * 8, "b" * 9, "c" * 8)], spare=("beta", "gamma"))
    print_table(table)
    assert COLOUR.sub("", capsys.readouterr().out).splitlines()[0].split() == shown.split()
