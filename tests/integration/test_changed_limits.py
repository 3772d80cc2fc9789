"""A limit that is changed or removed frees the jobs that it had put off, whichever way it is changed."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, python
from tests.integration.puppets import LOCAL, puppet
from tests.integration.test_commands import told
from tests.integration.test_reload import reload

NEVER_MIND = 100_000  # seconds until what a limit put off would come by itself
JOBS = 30
PUT_OFF = "select count(*) from drover.jobqueue where jq_wait_until > now()"
DONE = "select count(*) from drover.jobqueue where jq_state = 'done' and jq_type = 'puppet'"


def site(**keys: object) -> str:
    """Return a configuration with a queue that has these keys."""
    queue = "".join(f"{key} = {value!r}\n" for key, value in keys.items())
    return LOCAL + puppet(slots=4) + f"[queues.q]\n{queue}"


def limited(each: int = 1, **keys: object) -> str:
    return site(rate_each=each, rate_by="submitter", rate_interval=NEVER_MIND, **keys)


def put_off(daemon: Daemon) -> list[int]:
    """Queue jobs of which the limit lets one begin, and wait until it has put off all others."""
    pks = daemon.insert_all([{"jq_type": "puppet", "jq_args": "true", "jq_queue": "q"}] * JOBS)
    daemon.until(lambda: daemon.value(PUT_OFF) == JOBS - 1)
    daemon.until(lambda: daemon.value(DONE) == 1)
    return pks


def by_command(daemon: Daemon) -> None:
    assert told(daemon, "set-rate q") == "queue q: no rate limit"


def by_the_file(daemon: Daemon) -> None:
    reload(daemon, site())


def by_sql(daemon: Daemon) -> None:
    daemon.execute("update drover.queue set queue_rate = null where queue_name = 'q'")


@pytest.mark.parametrize("remove", [by_command, by_the_file, by_sql])
def test_rate_limit_that_is_removed_frees_what_it_had_put_off(launch: Launch, remove: Callable[[Daemon], None]) -> None:
    daemon = launch(limited())
    pks = put_off(daemon)
    remove(daemon)
    daemon.wait_all(pks)
    assert daemon.value("select coalesce(sum(jobs), 0) from drover.job_states where waits_for = 'time'") == 0


def test_rate_limit_that_is_raised_lets_so_many_more_begin(launch: Launch) -> None:
    daemon = launch(limited())
    pks = put_off(daemon)
    told(daemon, f"set-rate q rate_each=10 rate_by=submitter rate_interval={NEVER_MIND}")
    daemon.until(lambda: daemon.value(DONE) == 10)
    daemon.until(lambda: daemon.value(PUT_OFF) == JOBS - 10)
    renewed = PUT_OFF + " and starts_with(jq_endtext, 'rate limit of queue q: 10 starts')"
    assert daemon.value(renewed) == JOBS - 10
    by_command(daemon)
    daemon.wait_all(pks)


def test_rate_limit_that_is_removed_while_no_daemon_runs_frees_what_it_had_put_off(launch: Launch) -> None:
    daemon = launch(limited())
    pks = put_off(daemon)
    daemon.stop()
    assert len(launch(site()).wait_all(pks)) == JOBS


def test_row_that_another_session_has_locked_is_freed_when_it_lets_go(launch: Launch) -> None:
    daemon = launch(limited())
    pks = put_off(daemon)
    last = daemon.value("select jq_pk from drover.jobqueue where jq_wait_until > now() order by jq_wait_until limit 1")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", [last])
        by_command(daemon)
        daemon.wait_all([pk for pk in pks if pk != last])
        assert daemon.value(PUT_OFF) == 1
    daemon.wait(last)


def test_queue_forgets_that_its_limit_changed_when_nothing_is_put_off_any_more(launch: Launch) -> None:
    daemon = launch(limited())
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args="true", jq_queue="q")])
    by_command(daemon)
    is_forgotten = "select queue_rate_changed is null from drover.queue where queue_name = 'q'"
    assert daemon.until(lambda: daemon.value(is_forgotten))


@pytest.mark.parametrize("limit", [{"rate": 1, "rate_interval": NEVER_MIND}, {"concurrency": 1}])
def test_queue_without_its_limit_goes_on_at_once(launch: Launch, limit: dict[str, object], tmp_path: Path) -> None:
    daemon = launch(site(**limit))
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.1; done"
    pks = daemon.insert_all([{"jq_type": "puppet", "jq_args": wait, "jq_queue": "q"}] * 3)
    daemon.until(lambda: daemon.why(pks[2]).startswith(("rate limit of queue q", "queue q ")))
    reload(daemon, site())
    daemon.wait_all(pks, "running")
    (tmp_path / "gate").touch()
    assert [row["jq_attempt"] for row in daemon.wait_all(pks)] == [1] * 3


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


@pytest.mark.parametrize("rules", ["wait = 3600", "wait = 0.1\nat_once = 1", ""], ids=["all", "sooner", "removed"])
def test_condition_is_checked_at_once_when_its_policy_changes(launch: Launch, ready: Path, rules: str) -> None:
    script = f"""
import os, sys
print("OK")
for line in sys.stdin:
    if not os.path.exists({str(ready)!r}): print("BLOCKED tape")
    print("OK")
"""
    kind = LOCAL + agent("b", python(script))
    daemon = launch(kind + "[conditions.tape]\nwait = 3600\nat_once = 1\n")
    pks = daemon.insert_all([{"jq_type": "b", "jq_args": "x"}] * 5)
    daemon.wait_all(pks, "blocked")
    ready.touch()
    reload(daemon, kind + (f"[conditions.tape]\n{rules}\n" if rules else ""))
    assert {row["jq_state"] for row in daemon.wait_all(pks)} == {"done"}


def test_why_all_names_the_rate_limit_that_put_jobs_off(launch: Launch, ask: Ask) -> None:
    daemon = launch(limited())
    put_off(daemon)
    done = ask("why --all")
    assert "waits for the rate limit of queue q" in done.out
    assert "after a failure" not in done.out
