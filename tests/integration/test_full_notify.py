"""The NOTIFY queue of the server is full: every commit with a notification fails, and nothing is lost or done twice."""

from pathlib import Path

import psycopg
import pytest
from psycopg.errors import ProgramLimitExceeded

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.patience import PATIENCE_S

# What Postgres says at a commit when 8 GB are full, which a test cannot wait for.
FILL = """
alter function drover.notify rename to notify_with_room;
create function drover.notify(channel text, payload text) returns void language plpgsql as $$
begin
  if current_setting('drover.notify', true) is distinct from 'off' then
    raise exception using errcode = '54000', message = 'too many notifications in the NOTIFY queue';
  end if;
end $$;
grant execute on function drover.notify to public;
"""
EMPTY = "drop function drover.notify; alter function drover.notify_with_room rename to notify"
REFUSED = "WARNING the database refuses NOTIFY: too many notifications in the NOTIFY queue (54000)"


@pytest.fixture
def daemon(launch: Launch, record: Path) -> Daemon:
    text = agent("a", rec(record), slots=4) + agent("sh", ["sh", "-c", "{args}"], kind="exec")
    return launch("[scheduler]\nlease = 30\nlease_renewal = 10\n[hosts.alpha]\n" + text)


def test_jobs_that_end_while_the_notify_queue_is_full_are_saved_and_run_once(
    daemon: Daemon, gate: Path, record: Path
) -> None:
    first = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(20)])
    failing = daemon.insert(jq_type="sh", jq_args=f"until [ -e {gate} ]; do sleep 0.01; done; exit 3")
    daemon.until(lambda: len(lines(record)) == 4)
    daemon.execute(FILL)
    gate.touch()
    rows = daemon.wait_all(first)
    assert daemon.wait(failing, "failed")["jq_attempt"] == 1
    assert ({row["jq_attempt"] for row in rows}, len(lines(record))) == ({1}, 20)
    assert daemon.stderr().count(REFUSED) == 1


@pytest.mark.slow
def test_jobs_inserted_while_the_notify_queue_is_full_are_found(daemon: Daemon) -> None:
    daemon.execute(FILL)
    with pytest.raises(ProgramLimitExceeded):
        daemon.insert(jq_type="a", jq_args="x")
    daemon.execute("set drover.notify = off", role="drover_frontend")
    jobs = [daemon.insert(role="drover_frontend", jq_type="a", jq_args=str(n)) for n in range(3)]
    daemon.execute("set drover.notify = off", role="drover_operator")
    order = daemon.insert(role="drover_operator", jq_type="command", jq_args="status")
    daemon.wait_all([*jobs, order])


@pytest.mark.slow
def test_notifications_resume_when_the_notify_queue_has_room(daemon: Daemon, ask: Ask) -> None:
    daemon.execute(FILL)
    daemon.execute("set drover.notify = off", role="drover_frontend")
    daemon.wait(daemon.insert(role="drover_frontend", jq_type="a", jq_args="x"))
    daemon.until(lambda: "refuses NOTIFY" in daemon.stderr())
    daemon.until(lambda: "too many notifications" in ask("status").out)
    daemon.execute(EMPTY)
    daemon.until(lambda: "INFO the database takes NOTIFY again" in daemon.stderr())
    with psycopg.connect(daemon.database, autocommit=True) as follower:
        follower.execute("listen drover_event")
        pk = daemon.insert(jq_type="a", jq_args="y")
        daemon.wait(pk)
        told = [event.payload for event in follower.notifies(timeout=PATIENCE_S, stop_after=1)]
    assert f'"jq_pk":{pk}' in told[0]
    daemon.until(lambda: "too many notifications" not in ask("status").out)
