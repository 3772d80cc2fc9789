"""drover top over a pty, by the real daemon: what it shows, and that its keys act."""

from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.cli_tools import DROVER, Drover, environment
from tests.integration.conftest import Launch
from tests.integration.puppets import LOCAL, Meeting, puppet
from tests.terminal_tools import on_terminal

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_top_pauses_tells_why_and_kills_by_keys(
    launch: Launch, database_with_roles: str, config: Path, meeting: Meeting
) -> None:
    daemon = launch(LOCAL + puppet() + "[queues.default]\n")
    job = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    meeting.hear()
    daemon.wait(job, "running")
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with on_terminal([*DROVER, "top"], variables, 30, 120) as (top, process):
        top.until(f"{job} puppet         running")
        top.until("> default")
        top.type("p")
        top.until("could start  paused")
        mark = len(top.raw)
        top.type("p")
        top.until("running: default", mark)
        mark = len(top.raw)
        top.type("\x1b[Bw")  # together, as keys come that are held down
        top.until(f"> {job:>9} puppet", mark)
        top.until(f"job {job}: running on host local", mark)
        top.type("K")
        top.until(f"kill job {job}? y, or any other key", mark)
        top.type("y")
        daemon.wait(job, "failed")
        top.type("q")
        top.read_all()
        assert process.wait() == 0
        assert (ENTER in top.raw, top.raw.rstrip().endswith(LEAVE)) == (True, True)


def test_top_shows_what_is_wrong_with_the_database(database: str, config: Path, active: psycopg.Connection) -> None:
    with on_terminal([*DROVER, "top"], environment(database, config), 20, 200) as (top, process):
        top.until("fsync")  # which the server of the tests has off
        top.type("q")
        top.read_all()
        assert process.wait() == 0


def test_top_fits_a_terminal_of_40_columns(database: str, config: Path, active: psycopg.Connection) -> None:
    with on_terminal([*DROVER, "top"], environment(database, config), 20, 40) as (top, process):
        top.until("arrows choose")
        top.type("q")
        screen = top.read_all().splitlines()
        assert (process.wait(), max(map(len, screen)) <= 40) == (0, True)


def test_top_without_a_terminal_names_what_needs_none(drover: Drover, active: psycopg.Connection) -> None:
    done = drover("top")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("drover top needs a terminal; drover status --watch needs none")
