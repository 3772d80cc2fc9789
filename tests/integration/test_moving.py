"""The recipes of drover(8), MOVING THE QUEUE, as they are printed there."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database.embedded import find_binaries, temporary
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec, start
from tests.integration.test_groups import ELSEWHERE, QUICK
from tests.needs import need
from tests.walk_pages import literal_blocks, newcomer

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "man/drover.8").read_text().partition(".Sh MOVING THE QUEUE")[2].partition(".Sh REMOVAL")[0]
PACK, UNPACK, COPY, HAND_OVER = literal_blocks(MANUAL)
EMBEDDED = """
[hosts.local]
[agents.done]
command = ["true"]
kind = "exec"
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def other_home() -> Iterator[Path]:
    """Return an empty HOME on the new machine."""
    with TemporaryDirectory(prefix="home-") as folder:
        yield Path(folder)


def run(script: str, place: Path, environment: Mapping[str, str]) -> str:
    """Run commands in a shell that ends at the first one that fails; return what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), str(find_binaries()), environment["PATH"]])
    done = subprocess.run(
        ["sh", "-e"], input=script, capture_output=True, text=True, cwd=place, env={**environment, "PATH": path},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_embedded_database_moves_to_another_machine(tmp_path: Path, home: Path, other_home: Path) -> None:
    need("postgres")
    (config := tmp_path / "drover.toml").write_text(EMBEDDED)
    old, new = (newcomer(each) | {"DROVER_CONFIG": str(config)} for each in (home, other_home))
    run("echo 'done | x' | drover run -I 2>log; drover submit --force later y", tmp_path, old)
    run(f"drover run 2>log & drover submit --wait=60 done z\n{PACK}wait", tmp_path, old)
    shown = [line.split() for line in run(UNPACK, tmp_path, new).splitlines()]
    states = {words[0]: {"done", "queued"} & set(words) for words in shown if words[0].isdecimal()}
    assert states == {"1": {"done"}, "2": {"queued"}, "3": {"done"}, "4": {"done"}}  # 4 is the shutdown
    assert "done" in run(
        "drover run 2>log & drover submit --wait=60 done new; drover drain --wait; wait", tmp_path, new
    )


def test_packing_waits_for_the_last_command_that_keeps_the_server_up(tmp_path: Path, home: Path) -> None:
    need("postgres")
    (config := tmp_path / "drover.toml").write_text(EMBEDDED)
    old = newcomer(home) | {"DROVER_CONFIG": str(config)}
    run("echo 'done | x' | drover run -I 2>log", tmp_path, old)
    watches = "drover status --watch >watched & until [ -s watched ]; do sleep 0.1; done; W=$!\n"
    ends = "(until [ -e drained ]; do sleep 0.1; done; sleep 2; kill $W) &\n"
    packs = PACK.replace("drover drain --wait\n", "drover drain --wait; touch drained\n")
    packed = run(f"{watches}{ends}{packs}tar -tzf drover.tar.gz", tmp_path, old).splitlines()
    assert ("pg/data/PG_VERSION" in packed, "pg/data/postmaster.pid" in packed) == (True, False)


def test_queue_moves_to_another_server(launch: Launch, tmp_path: Path, record: Path) -> None:
    need("postgres")
    text = QUICK + "[hosts.alpha]\n" + agent("a", rec(record))
    first = launch(text)
    ended = first.wait(first.insert(jq_type="a", jq_args="first"))["jq_pk"]
    queued = first.insert(jq_type="a", jq_args="second", jq_state="held")
    with temporary() as server:
        admin = make_conninfo(server, dbname="postgres", user="postgres")
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("drop database drover")
        new = make_conninfo(admin, dbname="drover")
        operator = make_conninfo(first.database, user="drover_operator")
        (config := tmp_path / "drover.toml").write_text(text)
        urls = {"DROVER_CONFIG": str(config), "DROVER_DATABASE_URL": operator}
        run(COPY, tmp_path, newcomer(tmp_path) | urls | {"OLD": first.database, "NEW": new, "ADMIN": admin})
        assert first.wait_exit() == 0
        with start(text, new) as second:
            second.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", queued)
            rows = second.wait_all([ended, queued])
            assert [row["jq_attempt"] for row in rows] == [1, 1]
    assert lines(record) == ["first", "second"]


def test_another_daemon_takes_over_on_the_same_server(launch: Launch, record: Path, gate: Path) -> None:
    text = QUICK + "[hosts.alpha]\n" + agent("a", rec(record))
    first = launch(text)
    job = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(job, "running")
    second = launch(text, wait=False, program=ELSEWHERE)
    second.until(lambda: "standing by" in second.stderr())
    here = first.value("select scheduler_host from drover.scheduler where scheduler_pid = %s", first.pid)
    first.execute(HAND_OVER.replace("'old'", f"'{here}'"), role="drover_operator")
    second.until(lambda: first.vitals() and "draining" in first.stderr())
    gate.touch()
    assert first.wait_exit() == 0
    after = second.wait(second.insert(jq_type="a", jq_args="after"))
    assert (second.row(job)["jq_attempt"], after["jq_attempt"]) == (1, 1)
