"""A daemon that lives keeps its lease, however slow its statements are: a standby never takes over."""

from pathlib import Path

import pytest

from tests.connection_tools import end_backends, limited
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.test_groups import standby

QUICK = "[scheduler]\nlease = 3\nlease_renewal = 0.3\nrescan = 0.5\n[hosts.local]\n"
LEASE = "select group_lease_until from drover.scheduler_group"
TAKEN = "select group_taken_at from drover.scheduler_group"
CONNECTED = "select exists (select from pg_stat_activity where datname = current_database() and application_name = %s)"
SLEEPS = """
select exists (select from pg_stat_activity
                where datname = current_database() and application_name = %s and wait_event = 'PgSleep')
"""
SLOW = """
create table public.gate (); insert into public.gate default values; grant select on public.gate to public;
create function public.wait() returns trigger language plpgsql as $$
begin
  while exists (select from public.gate) loop perform pg_sleep(0.01); end loop;
  return new;
end $$;
"""
RENEWALS = 12  # more than a lease has: one that nothing else extends is over by then


@pytest.fixture
def daemon(launch: Launch, tmp_path: Path) -> Daemon:
    text = QUICK + agent("rec", rec(tmp_path / "record"), slots=1)
    first: Daemon = launch(text)
    standby(launch, text)
    return first


def assert_renewed(daemon: Daemon) -> None:
    """The lease is renewed often enough to last, and the group has the owner that it had."""
    taken, seen = daemon.value(TAKEN), {daemon.value(LEASE)}

    def is_renewed() -> bool:
        seen.add(daemon.value(LEASE))
        return len(seen) > RENEWALS

    daemon.until(is_renewed, what="the lease is not renewed")
    assert daemon.value(TAKEN) == taken


@pytest.mark.slow
@pytest.mark.parametrize(("table", "connection"), [("in_hand", "drover queue"), ("scheduler_status", "drover watch")])
def test_lease_is_renewed_while_a_statement_does_not_end(daemon: Daemon, table: str, connection: str) -> None:
    daemon.execute(SLOW + f"create trigger wait before insert on drover.{table} execute function public.wait()")
    pk = daemon.insert(jq_type="rec")
    daemon.until(lambda: daemon.value(SLEEPS, connection), what="no statement is under way")
    assert_renewed(daemon)
    assert daemon.value(SLEEPS, connection)
    daemon.execute("delete from public.gate")
    daemon.wait(pk)


@pytest.mark.slow
def test_watch_connection_renews_the_lease_while_the_lease_connection_is_down(daemon: Daemon) -> None:
    with limited(daemon.database, "drover_scheduler", 0):
        end_backends(daemon.database, "drover lease")
        daemon.until(lambda: "the watch connection renews the lease" in daemon.stderr())
        assert_renewed(daemon)
    daemon.until(lambda: daemon.value(CONNECTED, "drover lease"), what="the lease connection is not made again")
    assert_renewed(daemon)


@pytest.mark.slow
def test_lease_connection_leaves_its_place_to_the_watch_connection(launch: Launch, tmp_path: Path) -> None:
    daemon: Daemon = launch(QUICK + agent("rec", rec(tmp_path / "record"), slots=1))
    with limited(daemon.database, "drover_scheduler", 2):
        with limited(daemon.database, "drover_scheduler", 1):
            end_backends(daemon.database, "drover watch")
            daemon.until(lambda: "WARNING watch connection: connection to server" in daemon.stderr())
        daemon.until(lambda: daemon.value(CONNECTED, "drover watch"), what="the watch connection is not made again")
        assert daemon.value(CONNECTED, "drover queue")
        assert_renewed(daemon)
        daemon.wait(daemon.insert(jq_type="rec"))
    daemon.until(lambda: daemon.value(CONNECTED, "drover lease"), what="the lease connection is not made again")
