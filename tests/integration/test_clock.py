"""The clock of the database is set back or forward while a daemon serves: commands are obeyed, jobs do not wait."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.faults.server import server
from tests.integration.daemon import Daemon, agent, rec, start
from tests.integration.test_commands import told
from tests.needs import FAKETIME, need

pytestmark = pytest.mark.slow

HOST = "[hosts.alpha]\n"
# Long, so that nothing comes about by a renewal that was due anyway.
PATIENT = "[scheduler]\nlease = 300\nlease_renewal = 100\n"


class Site:
    """A server whose clock can be set, and what its daemons record."""

    def __init__(self, conninfo: str, clock: Path, record: Path) -> None:
        self.conninfo, self._clock, self._record = conninfo, clock, record

    def set_clock(self, offset: str) -> None:
        """Let the server's clock differ by so much from now on; it may never see half of it."""
        new = self._clock.with_suffix(".new")
        new.write_text(offset)
        new.chmod(0o644)
        new.replace(self._clock)

    def serving(self, *, wait: bool = True) -> Daemon:
        """Start a daemon, and wait until it serves."""
        return start(PATIENT + HOST + agent("a", rec(self._record)), self.conninfo, wait=wait)


@pytest.fixture
def site(record: Path) -> Iterator[Site]:
    need("libfaketime")
    need("postgres account")
    with TemporaryDirectory(prefix="drover-clock-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        clock = folder / "clock"
        fake = ("env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={clock}", "FAKETIME_NO_CACHE=1",
                "DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")  # fmt: skip
        Site("", clock, record).set_clock("+0")
        with server(folder / "pg", fake) as own:
            yield Site(own.conninfo, clock, record)


def test_commands_for_every_scheduler_are_carried_out_after_the_clock_was_set_back(site: Site) -> None:
    with site.serving() as daemon:
        site.set_clock("-1h")
        for words in ("verbose 1", "reload", "shutdown"):
            told(daemon, words)
        assert daemon.wait_exit() == 0


def test_step_down_is_carried_out_after_the_clock_was_set_back(site: Site) -> None:
    with site.serving() as first, site.serving(wait=False) as second:
        first.until(lambda: "standing by" in second.stderr())
        site.set_clock("-1h")
        told(first, "step-down")
        assert "serving group" in second.stderr()


def test_an_old_shutdown_does_not_stop_a_new_daemon_after_the_clock_was_set_back(site: Site) -> None:
    with psycopg.connect(site.conninfo, autocommit=True, user="drover_operator") as operator:
        ((order,),) = operator.execute("select drover.command('shutdown')")
    site.set_clock("-1h")
    with site.serving() as daemon:
        assert daemon.wait(order, "failed")["jq_endtext"] == "no scheduler was running that knows it"
        daemon.wait(daemon.insert(jq_type="a", jq_args="x"))


def test_a_job_is_claimed_at_once_after_the_clock_was_set_forward(site: Site) -> None:
    with site.serving() as daemon:
        daemon.wait(daemon.insert(jq_type="a", jq_args="before"))
        site.set_clock("+1h")
        daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
        assert "run out by the clock of the database" in daemon.stderr()


def test_a_schedule_starts_once_at_its_time_wherever_the_clock_jumps_c20(site: Site) -> None:
    starts = "select count(*) from drover.jobqueue where jq_type = 'a' and jq_state = 'done'"
    add = """
        insert into drover.schedule (schedule_name, schedule_every, schedule_job, schedule_next)
        values ('s', '1 hour', '{"jq_type": "a", "jq_args": "scheduled"}', now() + '1 hour')"""
    with site.serving() as daemon:
        daemon.execute(add, role="drover_operator")
        site.set_clock("+61m")
        daemon.wait(daemon.insert(jq_type="a", jq_args="forward"))
        daemon.until(lambda: daemon.value(starts) == 2)
        site.set_clock("+0")
        daemon.wait(daemon.insert(jq_type="a", jq_args="back"))
        site.set_clock("+62m")
        daemon.wait(daemon.insert(jq_type="a", jq_args="forward again"))
        assert daemon.value("select count(*) from drover.schedule_start") == 1


def test_a_blocked_job_waits_out_a_clock_that_was_set_back_or_is_unblocked_t79(site: Site, tmp_path: Path) -> None:
    there = tmp_path / "there"
    kind = agent("b", ["sh", "-c", f"test -e {there} || exit 75"], kind="exec")
    with start("[scheduler]\nrescan = 0.5\n" + HOST + kind, site.conninfo) as daemon:
        pks = daemon.insert_all([{"jq_type": "b"}] * 2)
        daemon.wait_all(pks, "blocked")
        site.set_clock("-1h")
        there.touch()
        told(daemon, f"unblock {pks[0]}")
        daemon.wait(pks[0])
        site.set_clock("+0")
        daemon.wait(pks[1])
