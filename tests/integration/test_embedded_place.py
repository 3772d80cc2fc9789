"""Whose an embedded database is: who may not use it is told as whom to run the command, and only some commands make it.

Users of this machine stand for the daemon's user and for a person.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_tools import DROVER
from tests.needs import need
from tests.package_tools import Machine, machine

OWNER, PERSON = "daemon", "games"  # accounts of every Debian
STATE = Path("/srv/state")
PLACE = STATE / "pg"
HOMES = Path("/srv/homes")


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Machine]:
    """Yield a copy of this machine, where all users can run our Python; STATE is the owner's."""
    for each in ("overlay", "runuser", "postgres", "setpriv"):
        need(each)
    with machine(tmp_path) as made:
        above = [str(each) for each in (*Path(DROVER[0]).resolve().parents, *Path(__file__).parents)]
        run(made, "chmod", "go+rx", *above)
        run(made, "install", "-d", "-o", OWNER, str(STATE))
        for user in (OWNER, PERSON):
            run(made, "install", "-d", "-o", user, str(HOMES / user))
        yield made


def run(copy: Machine, *words: str) -> "subprocess.CompletedProcess[str]":
    done = copy.run(*words)
    assert done.returncode == 0, done.stderr
    return done


def drover(copy: Machine, user: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user, with the database in PLACE."""
    variables = {
        "HOME": str(HOMES / user), "DROVER_DATABASE_URL": f"embedded:{PLACE}", "DROVER_ALLOW_ROOT": "1",
        "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    given = [f"{name}={value}" for name, value in variables.items()]
    return copy.run("runuser", "-u", user, "--", "env", *given, *DROVER, *words)


def is_there(copy: Machine, path: Path = PLACE) -> bool:
    return copy.run("test", "-e", str(path)).returncode == 0


@pytest.mark.parametrize("words", [("status",), ("ls",), ("submit", "--force", "noop", "x"), ("web", "--port", "0")])
def test_a_command_makes_no_database(copy: Machine, words: tuple[str, ...]) -> None:
    done = drover(copy, OWNER, *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"drover: no database is in {PLACE} yet: drover run or drover init makes")
    assert not is_there(copy)


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_check_makes_no_database_and_says_which_command_does(copy: Machine, command: str) -> None:
    done = drover(copy, OWNER, command)
    assert f"WARN no database is in {PLACE} yet: drover run or drover init makes one" in done.stdout
    assert not is_there(copy)


@pytest.mark.slow
def test_init_says_that_it_made_a_database_and_another_user_is_told_as_whom_to_run_a_command(copy: Machine) -> None:
    said = f"created an empty database in {PLACE}"
    made = drover(copy, OWNER, "init")
    assert (said in made.stderr, "applied roles" in made.stdout) == (True, True)  # as which the daemon logs in
    assert said not in drover(copy, OWNER, "init").stderr
    for user in (PERSON, "root"):
        for words in ("status", "init", "submit --force noop 'a b'"):
            done = drover(copy, user, *(["submit", "--force", "noop", "a b"] if "b" in words else [words]))
            assert (done.returncode, done.stdout) == (3, "")
            told = f"the database in {PLACE} belongs to {OWNER}; run it as {OWNER}: "
            assert done.stderr == f"drover: {told}sudo -u {OWNER} drover {words}\n"
        assert f"sudo -u {OWNER} drover\n" in drover(copy, user).stdout
    assert set(run(copy, "find", str(STATE), "-printf", "%u\n").stdout.split()) == {OWNER}
    assert "no scheduler is active" in drover(copy, OWNER, "status").stdout


def test_root_makes_no_database_where_another_user_would_have_to_use_it(copy: Machine) -> None:
    done = drover(copy, "root", "init")
    assert (done.returncode, f"sudo -u {OWNER} drover init" in done.stderr) == (3, True)
    assert not is_there(copy)


@pytest.mark.parametrize("user", [PERSON, "root"])
def test_a_place_that_others_may_not_enter_is_its_owners(copy: Machine, user: str) -> None:
    run(copy, "install", "-d", "-o", OWNER, str(PLACE))
    run(copy, "chmod", "700", str(STATE))
    done = drover(copy, user, "init")
    assert (done.returncode, f"run it as {OWNER}: sudo -u {OWNER} drover init" in done.stderr) == (3, True)
