"""The command line of the original scheduler is answered with ours."""

from pathlib import Path

import pytest

from scheduler.cli.parser import OLD_OPTIONS, old_options_answer, parse

HERE = __file__


def answered(line: str) -> list[str]:
    """Return what is answered about each option, by its first word."""
    return [text.split()[0] for text in old_options_answer(line.split()).splitlines()[1:]]


@pytest.mark.parametrize("letter", OLD_OPTIONS)
def test_every_option_of_the_original_scheduler_is_answered_f144(
    letter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([f"-{letter}"])
    assert ended.value.code == 2
    assert f"\n  -{letter} " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("-d -L /tmp/log", ["-d", "-L"]),
        ("-dvvL/tmp/log", ["-d", "-L", "-v"]),
        (f"-d {HERE}", ["-d", HERE]),
        (f"-I -H {HERE}", ["-I", "-H", HERE]),
        (HERE, [HERE]),
        ("/not/here/Scheduler.conf", ["/not/here/Scheduler.conf"]),
        ("-L", ["-L"]),
        ("-c x -k", ["-k"]),
        (f"-c {HERE} -k", ["-k"]),
    ],
)
def test_options_in_any_form_and_the_file_are_answered_f144(line: str, options: list[str]) -> None:
    assert answered(line) == options


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-h",
        "--help",
        "--version",
        "-d host=x ls",
        f"-d {HERE} ls",
        f"-c {HERE} ls",
        f"ls {HERE}",
        "-d host=x",
        "-c x ls",
        "ls -d",
        "-x",
        "-dx",
        "nosuch",
        "run -t",
        "version",
    ],
)
def test_our_own_command_line_is_left_alone(line: str) -> None:
    assert old_options_answer(line.split()) == ""


def test_the_command_for_a_file_can_be_copied(tmp_path: Path) -> None:
    file = tmp_path / "my conf"
    file.touch()
    assert f"drover import-scheduler-conf '{file}' -o drover.toml" in old_options_answer([str(file)])
