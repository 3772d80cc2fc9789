"""Statements that the database refuses through no fault of a job: said at once, shown, and nothing is lost by it."""

import re
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec

# What `save` and `end_and_claim` do to a job fails with this, as for want of space; commands and claims go through.
REFUSE = """
create function refuse() returns trigger language plpgsql as $$
begin
  raise exception using errcode = tg_argv[0], message = 'could not extend file "base/5/1": No space left on device';
end $$;
create trigger refuse before update on drover.jobqueue for each row
  when (new.jq_state in ('done', 'failed') and new.jq_type <> 'command') execute function refuse('{}');
"""
STOP = "drop trigger refuse on drover.jobqueue"
SAID = "No space left on device, raised by function public.refuse()"
WARNING = rf"WARNING the database refuses (end_and_claim|save): could not extend file .*: {re.escape(SAID)} \(\w{{5}}\)"


def refused(daemon: Daemon) -> list[str]:
    """Return the statements that it has warned of."""
    return re.findall(WARNING, daemon.stderr())


@pytest.mark.slow
@pytest.mark.parametrize("sqlstate", ["53100", "58030", "42804", "22P02"])
@pytest.mark.parametrize(
    ("script", "statement", "state"), [("true", "end_and_claim", "done"), ("exit 3", "save", "failed")]
)
def test_a_refused_save_of_an_end_is_logged_once_and_repeated(
    launch: Launch, record: Path, sqlstate: str, script: str, statement: str, state: str
) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("a", ["sh", "-c", f"echo x >>{record}; {script}"], kind="exec"))
    daemon.execute(REFUSE.format(sqlstate))
    pks = [daemon.insert(jq_type="a") for _ in range(3)]
    daemon.until(lambda: refused(daemon))
    daemon.until(lambda: daemon.stderr().count("not saved (again)") > 1)  # it is tried again and again
    ended = {daemon.row(pk)["jq_state"] for pk in pks} & {"done", "failed"}
    assert (refused(daemon), ended) == ([statement], set())
    daemon.execute(STOP)
    rows = daemon.wait_all(pks, state)
    assert [(row["jq_attempt"], row["jq_rescued"]) for row in rows] == [(1, 0)] * 3
    assert len(record.read_text().split()) == 3
    daemon.until(lambda: f"INFO the database takes {statement} again" in daemon.stderr())


@pytest.mark.slow
def test_status_shows_refused_statements_while_they_last(launch: Launch, ask: Ask, record: Path) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("a", rec(record)))
    daemon.execute(REFUSE.format("53100"))
    pk = daemon.insert(jq_type="a", jq_args="x")
    daemon.until(lambda: f"{SAID} (53100)" in ask("status").out)
    daemon.execute(STOP)
    assert daemon.wait(pk)["jq_attempt"] == 1
    daemon.until(lambda: "No space left" not in ask("status").out)


@pytest.mark.slow
def test_a_refused_statement_of_the_watch_connection_is_logged_once(launch: Launch, record: Path) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("a", rec(record)))
    daemon.execute(
        REFUSE.split("create trigger")[0]
        + "create trigger refuse before update on drover.scheduler_group execute function refuse('53100')"
    )
    daemon.until(lambda: "WARNING the database refuses renew_lease: could not extend" in daemon.stderr())
    daemon.until(lambda: "past the lease" in daemon.stderr())
    assert daemon.stderr().count("refuses renew_lease") == 1
    daemon.execute("drop trigger refuse on drover.scheduler_group")
    daemon.until(lambda: "INFO the database takes renew_lease again" in daemon.stderr())
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
