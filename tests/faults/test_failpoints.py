"""Failpoints: what can be asked for, and that nothing of them is in a daemon that was asked for none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from scheduler.drivers.failpoints import Point, Points, arm, parse
from scheduler.drivers.sql import load
from scheduler.errors import ConfigError
from scheduler.package_data import schema_dir
from tests.faults.site import Site
from tests.faults.walk import POINTS, SHOWN_ELSEWHERE

pytestmark = pytest.mark.fault("failpoints: what they are")
ROOT = Path(__file__).parents[2]
# `drover run` up to where the guardian would begin: tells every function of the daemon that is another by then.
REPLACED = """
import inspect, sys
from scheduler.daemon import wiring as daemon
from scheduler.drivers import loop
from scheduler.daemon.wiring import watch
from scheduler.cli import main, run
from scheduler.drivers import agentdb, children, expansions, postgres, postgres_connect, queue, signals, spawning
modules = (daemon, loop, watch, agentdb, children, expansions, postgres, postgres_connect, queue, signals, spawning)
def functions():
    classes = [c for m in modules for _, c in inspect.getmembers(m, inspect.isclass) if c.__module__ == m.__name__]
    found = [(o.__name__, n, f) for o in (*modules, *classes) for n, f in vars(o).items() if inspect.isfunction(f)]
    return {(owner, name): (f, f.__code__) for owner, name, f in found}
before = functions()
def begin(environment):
    after = functions()
    print(len(before), *sorted(".".join(key) for key in before if before[key] != after.get(key)), flush=True)
    raise KeyboardInterrupt
run.guardian.begin = begin
main.main(["run", "--allow-root", "-c", sys.argv[1]])
"""


def replaced(site: Site, points: str | None) -> list[str]:
    """Give how many functions there are, and the names of those that were replaced before the daemon begins."""
    config = site.folder / "drover.toml"
    config.write_text(site.types("d1"))
    environment = {name: text for name, text in os.environ.items() if name != "DROVER_FAILPOINTS"}
    environment["DROVER_DATABASE_URL"] = make_conninfo(site.database, user="drover_scheduler")
    more = {} if points is None else {"DROVER_FAILPOINTS": points}
    done = subprocess.run(
        [sys.executable, "-c", REPLACED, str(config)],
        cwd=ROOT,
        env=environment | more,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("points", [None, ""])
def test_a_daemon_that_is_not_armed_runs_the_very_functions_of_the_drivers(site: Site, points: str | None) -> None:
    count, *others = replaced(site, points)
    assert int(count) > 200
    assert others == []


def test_an_armed_daemon_runs_others_in_five_places(site: Site) -> None:
    assert replaced(site, "turn:before=kill")[1:] == [
        "Children._drain", "Children._start", "Children._write", "Link._finish", "Link._write",
    ]  # fmt: skip


def test_no_driver_knows_of_failpoints() -> None:
    sources = [path for path in (ROOT / "scheduler").rglob("*.py") if "failpoint" in path.read_text()]
    assert [path.name for path in sorted(sources)] == ["run.py", "failpoints.py"]


def test_points_are_read_with_their_number() -> None:
    assert parse("turn:before=kill@3, write:after=stop,line.note:after=error") == [
        Point("turn", "before", "kill", 3), Point("write", "after", "stop"), Point("line.note", "after", "error"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["turn", "turn:during=kill", "turn:before=burn", "turn:before=kill@0", "trun:before=kill", "turn:before=kill,"],
)
def test_a_mistake_is_the_operators(text: str) -> None:
    with pytest.raises(ConfigError, match="DROVER_FAILPOINTS: "):
        arm({"DROVER_FAILPOINTS": text})


def test_every_mistake_is_told() -> None:
    with pytest.raises(ConfigError) as told:
        parse("x,turn:before=kill,y:before=stop")
    assert len(str(told.value).splitlines()) == 2


def test_a_point_is_passed_until_its_number_and_fails_once() -> None:
    points = Points(parse("turn:before=error@2"))
    assert [points.reach("turn", "before") for _ in range(4)] == [False, True, False, False]
    assert not points.reach("turn", "after")


def test_a_daemon_does_not_start_with_a_mistake(site: Site) -> None:
    daemon = site.start("turn:sometimes=kill")
    assert daemon.wait_exit() == 2
    assert (
        "DROVER_FAILPOINTS: want name:before|after=error|kill|stop[@n] (got 'turn:sometimes=kill')" in daemon.stderr()
    )


def test_the_walk_knows_every_statement() -> None:
    assert set(load((schema_dir() / "queries.sql").read_text())) < {*POINTS, *SHOWN_ELSEWHERE}
