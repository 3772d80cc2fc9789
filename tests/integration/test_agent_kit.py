"""`drover agent new`, `agent run` and `agent-check PROGRAM`, as typed by an agent author with an empty HOME."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm
from tests.cli_tools import DROVER, Done
from tests.integration.daemon import agent
from tests.needs import need

HERE = "[hosts.here]\n"
Type = Callable[..., Done]


@pytest.fixture
def author(tmp_path: Path) -> Type:
    """Run a command in an empty directory that is HOME too, with nothing configured but what is in it."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DROVER_", "XDG_"))}
    root = str(Path(__file__).parents[2])

    def run(*words: str) -> Done:
        done = warm.run([*DROVER, *words], env=kept | {"HOME": str(tmp_path), "PYTHONPATH": root}, cwd=tmp_path)
        return Done(done.returncode, done.stdout, done.stderr)

    return run


def script(folder: Path, text: str) -> str:
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return "./agent"


def configured(folder: Path, text: str) -> None:
    config = folder / ".config/drover/drover.toml"
    config.parent.mkdir(parents=True)
    config.write_text(HERE + text)


@pytest.mark.slow
def test_an_author_gets_from_nothing_to_a_checked_agent(author: Type, tmp_path: Path) -> None:
    made = author("agent", "new", "words")
    assert (made.status, made.err) == (0, "")
    assert made.out.startswith("made words/drover-agent-words and words/drover_agent.py\n")
    (run,) = (line.split("#")[0].split() for line in made.out.splitlines() if line.startswith("drover agent run"))
    assert author(*run[1:]).out == f'RESULT {{"lines":{len(Path("/etc/hosts").read_bytes().splitlines())}}}\n'
    (check,) = (line.split("#")[0].split() for line in made.out.splitlines() if line.startswith("drover agent-check"))
    checked = author(*check[1:], "--item", "/etc/hosts", "--timeout", "60")
    assert (checked.status, checked.err) == (0, "")
    assert "\n8 ok, 0 to look at (WARN), 0 to mend (FAIL)\n" in re.sub(r"\n\d+ ok", "\n8 ok", checked.out)
    assert f'[agents.words]\ncommand = ["{tmp_path}/words/drover-agent-words"]\n' in checked.out
    assert checked.out.endswith("drover submit words --wait -- /etc/hosts\n")


def test_a_program_with_a_fault_ends_the_check_with_1(author: Type, tmp_path: Path) -> None:
    done = author("agent-check", script(tmp_path, "echo no; exit 3"))
    assert (done.status, done.err) == (1, "")
    first, last = done.out.splitlines()
    assert first.startswith("FAIL start: it ended before its first OK, exit status 3; it said 'no': ")
    assert last == "0 ok, 0 to look at (WARN), 1 to mend (FAIL)"


def test_arguments_of_the_program_stand_behind_two_dashes(author: Type, tmp_path: Path) -> None:
    done = author("agent-check", script(tmp_path, 'echo "got $*"; exit 3'), "--", "--fast", "a b")
    assert "it said 'got --fast a b': " in done.out


def test_the_hint_names_what_was_said_in_place_of_ok(author: Type, tmp_path: Path) -> None:
    done = author("agent-check", script(tmp_path, "echo ok; cat"), "--timeout", "4")
    assert "FAIL start: no OK within 4 s; it said 'ok': the keyword is OK, spelt so, at the start of a line" in done.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("agent-check ./nosuch", "/nosuch; look at its name and at the directory you are in"),
        ("agent run ./nosuch x", "/nosuch; look at its name and at the directory you are in"),
        ("agent-check rude", "drover agent-check: the configuration has no agent type rude (it has polite)"),
        (
            "agent-check here",
            "the configuration has no agent type here; for the program in this directory write ./here",
        ),
        ("agent run rude x", "drover agent run: the configuration has no agent type rude (it has polite)"),
        ("agent-check ./here", "here is not executable; chmod +x "),
        ("agent-check polite --item x --allow-root", "--item is for a program with its path"),
        ("agent run polite", "drover agent run: the parameter is empty, and agents may read past an empty line"),
        ("agent new 1st", "'1st' is no name for an agent type; write letters, digits, - and _, a letter first"),
        ("agent new here", "drover agent new: here exists already; remove it, or choose another name"),
        ("agent new words --lang cobol", "argument --lang: invalid choice: 'cobol' (choose from 'python', 'bash',"),
        ("agent new", "the following arguments are required: NAME"),
    ],
)
def test_a_mistake_of_the_author_gets_a_sentence_that_helps_t16(
    author: Type, tmp_path: Path, words: str, told: str
) -> None:
    configured(tmp_path, agent("polite", ["sh", "-c", "echo OK; cat"]))
    (tmp_path / "here").touch()
    done = author(*words.split())
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("line", "status", "out", "ended"),
    [
        ("a", 0, "LOG a\n", "done in "),
        ("b", 1, "FAIL no b\n", "failed in "),
        ("c", 1, "BLOCKED tape away\n", "blocked in "),
        ("d", 1, "", "failed: it died, exit status 3: no licence"),
    ],
)
def test_one_item_of_a_type_is_run_without_a_daemon(
    author: Type, tmp_path: Path, line: str, status: int, out: str, ended: str
) -> None:
    cases = 'a) echo LOG a;; b) echo FAIL no b;; c) echo BLOCKED tape away;; d) echo "no licence" >&2; exit 3'
    work = f"echo OK; while read -r line; do case $line in {cases};; esac; echo OK; done"
    configured(tmp_path, agent("worker", ["sh", "-c", work]))
    done = author("agent", "run", "worker", line)
    assert (done.status, done.out) == (status, out)
    assert done.err.splitlines()[0].startswith(f"drover: {ended}")


def test_db_lines_are_answered_with_no_rows(author: Type, tmp_path: Path) -> None:
    work = "echo OK; while read -r line; do echo 'DB: save {}'; read -r answer; echo \"LOG $answer\"; echo OK; done"
    done = author("agent", "run", script(tmp_path, work), "x")
    assert (done.status, done.out) == (0, "DB: save {}\nLOG OK\n")
    assert "there is no database here: each DB line was answered with no rows" in done.err


def saving(*lines: str) -> str:
    """Return a script that says these DB lines about each item, and reads the answers."""
    asked = "; ".join(f"echo 'DB: {line}'; read -r answer" for line in lines)
    return f"echo OK; while read -r line; do {asked}; echo OK; done"


@pytest.mark.parametrize(
    ("lines", "table"),
    [
        (
            ['save {"id": 7, "size": 1}', "tidy {}"],
            """db = "statements"

[agents.agent.statements]  # write your own statements; the role drover_agentdb needs the rights
save = "insert into your_table (id, size) values (:id, :size)"
tidy = "select from your_table"
END""",
        ),
        (["select 1;"], 'db = "sql"\nEND'),
    ],
)
def test_the_proposed_configuration_has_what_db_lines_need(
    author: Type, tmp_path: Path, lines: list[str], table: str
) -> None:
    done = author("agent-check", script(tmp_path, saving(*lines)), "--timeout", "60")
    assert done.status == 0
    assert f'command = ["{tmp_path}/agent"]\n{table}\n' in done.out


def test_the_proposed_configuration_of_db_lines_is_accepted(author: Type, tmp_path: Path) -> None:
    done = author("agent-check", script(tmp_path, saving('save {"id": 7}')), "--timeout", "60")
    configured(tmp_path, done.out.partition("<<'END'\n")[2].partition("END\n")[0])
    listed = author("config", "--given").out
    assert "agents.agent.statements.save" in listed


@pytest.mark.parametrize(("said", "advice"), [("FAIL no", "give yours with --item"), ("BLOCKED tape", "give yours")])
def test_an_agent_that_fails_all_made_up_items_is_to_be_given_others(
    author: Type, tmp_path: Path, said: str, advice: str
) -> None:
    done = author("agent-check", script(tmp_path, f"echo OK; while read -r line; do echo {said}; echo OK; done"))
    assert f"WARN all items failed; {advice}" in done.out
    assert " ok, 1 to look at (WARN), 0 to mend (FAIL)\n" in done.out


def test_an_agent_that_fails_all_items_that_were_given_is_no_good_agent(author: Type, tmp_path: Path) -> None:
    fails = script(tmp_path, "echo OK; while read -r line; do echo FAIL no; echo OK; done")
    assert "WARN all items failed; nothing that it does well" in author("agent-check", fails, "--item", "x").out


@pytest.mark.slow
def test_the_command_of_an_exec_agent_is_run_with_its_item(author: Type, tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$1 $2 $(cat)"; exit $3', "x", "{id}", "{name}", "{status}"]
    configured(tmp_path, agent("say", command, kind="exec"))
    done = author("agent", "run", "say", 'name="two words" status="0"')
    assert (done.status, done.out) == (0, '0 two words name="two words" status="0"\n')
    done = author("agent", "run", "say", 'name="a" status="75"')
    assert (done.status, done.err) == (1, "drover: blocked, on condition exit: exit status 75\n")
    done = author("agent", "run", "say", "bare")
    assert (done.status, done.err) == (
        2, "drover agent run: the command names {name}, and the job has no such column\n"
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "work"),
    [("exec", "cat /dev/stdin"), ("line", "echo OK; read -r line </dev/stdin; echo FAIL $line; echo OK")],
)
def test_an_agent_of_another_user_opens_its_standard_input_by_name(
    author: Type, tmp_path: Path, kind: str, work: str
) -> None:
    need("root")
    need("setpriv")
    configured(tmp_path, agent("named", ["sh", "-c", work], kind=kind, user="nobody"))
    assert author("agent", "run", "named", "word").out.split()[-1] == "word"


@pytest.mark.slow
def test_a_bundled_agent_is_found_by_its_name(author: Type) -> None:
    assert author("agent", "run", "drover-agent-sha256", "/etc/hosts").out.startswith('RESULT {"sha256":"')
    assert author("agent", "run", "noop", "x").status == 0  # a type of the shipped configuration
