"""The command line as it is written: which words are options, which are the job's, and what is refused."""

import re
import shlex
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from math import inf

import pytest

from scheduler.cli.command_table import COMMANDS, EXAMPLES
from scheduler.cli.parser import following, parse


def parsed(line: str) -> Namespace:
    return parse(line.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_the_function_that_its_entry_names(name: str) -> None:
    module, _, function = COMMANDS[name].function.partition(".")
    assert callable(getattr(import_module(f"scheduler.cli.{module}"), function))


@pytest.mark.parametrize(
    ("line", "wait", "args"),
    [
        ("submit sha256 /etc/hosts", None, ["/etc/hosts"]),
        ("submit sha256 --wait /etc/hosts", inf, ["/etc/hosts"]),
        ("submit --wait sha256 /etc/hosts", inf, ["/etc/hosts"]),
        ("submit --wait=2.5 sha256 a --urgent b", 2.5, ["a", "b"]),
        ("submit sha256 --wait", inf, []),
        ("submit sha256 a -- --wait -- b", None, ["a", "--wait", "--", "b"]),
        ("submit sha256 -", None, ["-"]),
    ],
)
def test_options_of_submit_may_stand_anywhere_before_two_dashes(line: str, wait: float | None, args: list[str]) -> None:
    options = parsed(line)
    assert (options.type, options.wait, options.args) == ("sha256", wait, args)


@pytest.mark.parametrize(("line", "config"), [("-c a ls", "a"), ("ls -c b", "b"), ("-c a ls -c b", "b"), ("ls", None)])
def test_configuration_file_is_given_before_or_after_the_command_f125(line: str, config: str | None) -> None:
    assert parsed(line).config == config


@pytest.mark.parametrize(
    "line",
    [
        "nosuch",
        "ls -s nosuch",
        "ls --al",
        "why",
        "why 0",
        "why -1",
        "why 9223372036854775808",
        "why 1 -- 2",
        "submit",
        "submit --wait=soon noop",
        "submit --wait=-1 noop",
        "submit --wait=nan noop",
        "run -t -T",
        "run --json",
        "run --wait",
        "run --wait=5",
        "run -I --once",
        "-c",
    ],
)
def test_misuse_ends_with_2_and_a_message(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("line", ["cancel 5 --wait 6", "submit --wait 6 a", "pause --wait 6 q", "run 5 --wait 1.5"])
def test_number_after_a_space_is_not_taken_for_anything_but_the_seconds(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(line)
    assert ": seconds are written --wait=" in capsys.readouterr().err


def test_refused_job_argument_says_that_a_number_or_name_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("why billing")
    assert "must be the number of a job, or its name, TYPE.NONCE (got 'billing')" in capsys.readouterr().err


def test_run_has_the_options_of_the_daemon() -> None:
    options = parsed("run -I -H -R -T --allow-root -vv")
    assert (options.read_stdin, options.ignore_hosts, options.rescue, options.test, options.test_first) == (
        True,
        True,
        True,
        False,
        True,
    )
    assert (options.allow_root, options.verbose) == (True, 2)


def test_demo_needs_no_configuration() -> None:
    options = parsed("demo /usr/share --keep --agents 3 --limit 10")
    assert (options.directory, options.keep, options.agents, options.limit) == ("/usr/share", True, 3, 10)
    assert COMMANDS["demo"].needs == "nothing"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(f"{command} --help")
    assert ended.value.code == 0
    assert COMMANDS[command].help in capsys.readouterr().out


def test_help_loads_nothing_slow() -> None:
    code = """
import sys
from scheduler.cli.main import main
try:
    main(["--help"])
finally:
    print([name for name in ("psycopg", "rich", "attrs", "json", "subprocess") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_ends_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(f"{command} --help")
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2].splitlines()
    assert [line for line in examples if f"drover {command}" in line]


@pytest.mark.parametrize(("command", "line"), [(name, line) for name, lines in EXAMPLES.items() for line in lines])
def test_every_example_can_be_parsed(command: str, line: str) -> None:
    words = shlex.split(re.split(r" \| (?!drover)|\)", line)[0].rpartition("| ")[2].rpartition("<(")[2])
    assert parse(words[words.index("drover") + 1 :]).command == command


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("stauts", "no command 'stauts'; did you mean stats or status? drover --help lists all"),
        ("xyzzy", "no command 'xyzzy'; drover --help lists all"),
        ("ls --typ a", "unrecognized arguments: --typ a; did you mean --type?"),
        ("ls --sort quued", "; did you mean queued or queue?"),
        ("queue lst", "; did you mean list?"),
    ],
)
def test_mistyped_word_gets_a_suggestion(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    message = capsys.readouterr().err.strip()
    assert (ended.value.code, message.endswith(told)) == (2, True), message


# Commands that print nothing which a program would read: text of people, streams of others, or a command's own format.
WITHOUT_JSON = {
    "init", "check", "agent-check", "demo", "setup", "out", "exit", "psql", "top", "web", "import-scheduler-conf",
    "completion", "version", "agent new", "agent run", "metrics", "map",
}  # fmt: skip


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_every_command_that_tells_something_has_json(command: str) -> None:
    assert "--json" in following(command)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "subscribe",
            "events of this kind only: all, status, error, subscription, share, user, alternate, dead, alert",
        ),
        ("schedule", "missed starts to make up for: one, all, none"),
        ("schedule", "queue a start behind the one before, or skip it: queue, skip"),
        ("ls", "-S STATE, --state STATE list jobs in this state only, may be repeated: held, queued, claimed,"),
        ("retry", "try a failed job again; of an SQL job with a key, its failed items only"),
        ("top", "p pause the queue, or continue it"),
    ],
)
def test_help_names_the_values_of_options_and_the_keys(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([words, "--help"])
    assert named in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("line", "also", "only"), [
    ("ls -s done --also failed", ["done", "failed"], []), ("ls --state done -S failed", [], ["done", "failed"]),
])  # fmt: skip
def test_states_of_ls_have_long_options_too(line: str, also: list[str], only: list[str]) -> None:
    options = parse(line.split())
    assert (options.also, options.only) == (also, only)
