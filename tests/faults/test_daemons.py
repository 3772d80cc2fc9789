"""Faults of processes: daemons and agents are killed and stopped, and there are too many of them, or too few files."""

import os
import random
import resource
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from tests.faults.settings import FULL
from tests.faults.site import BIG, RETRIED, Site
from tests.integration.daemon import Daemon, agent
from tests.patience import LONG_PATIENCE_S

pytestmark = pytest.mark.slow

STORM = 500
MANY = 1000
LARGE = 300  # jobs
FLOOD = 1_000_000_000 if FULL else 100_000_000  # bytes
OFTEN = "[scheduler]\nrespawn_count = 1000\n"
# A command that writes down that it began, and ends at its second attempt only.
SLEEPER = """
echo "exec ${1%% *} $2 $$ $DROVER_JOB $DROVER_ATTEMPT" >>$3
[ $DROVER_ATTEMPT -gt 1 ] || exec sleep 1000
"""
TO_FAIL = {"jq_max_interruptions": 3}  # by contract, so the auditor does not look for a fault
FAILED_TYPES = """
select jq_type from drover.jobqueue where jq_state = 'failed' and jq_args !~ 'stuck:' order by jq_type
"""
ECHO = ["sh", "-c", "echo OK; while read -r line; do echo OK; done"]


@pytest.mark.fault("kill -9 daemon under load")
@pytest.mark.parametrize("seed", range(20 if FULL else 3))
def test_daemons_killed_under_load_lose_no_job_j4(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    daemon = site.serving()
    for _ in range(4):
        site.until(lambda: "serving group" in daemon.stderr(), "it does not serve")  # noqa: B023
        heir = site.start()  # only now: it would take the group at once, before the one that stands by
        site.submit(plain=100)
        site.until(lambda: site.value(BEGUN) > 0, "nothing begins")
        site.until(lambda: "standing by" in heir.stderr(), "nobody stands by")  # noqa: B023
        time.sleep(chance.uniform(0, 0.3))  # the fault comes whenever it comes
        daemon.kill()
        daemon = heir
    assert site.settle() == [], f"seed {seed}"
    daemon.stop()


BEGUN = "select count(*) from drover.jobs where jq_state in ('claimed', 'running')"


@pytest.mark.fault("kill -9 daemon under load")
def test_a_standby_carries_out_no_command_about_jobs(site: Site) -> None:
    site.serving()
    heir = site.start()
    site.until(lambda: "standing by" in heir.stderr(), "nobody stands by")
    for _ in range(10):
        site.order()
    assert site.settle() == []


@pytest.mark.fault("kill -9 agents")
def test_agents_killed_at_random_lose_no_job(site: Site) -> None:
    site.lasting = RETRIED
    daemon = site.serving(config=OFTEN + site.types("d1", slots=4))
    kills = 100 if FULL else 25
    for number in range(kills):
        site.submit(plain=4)
        pids = site.until(daemon.agent_pids, "no agent")
        with suppress(ProcessLookupError):
            os.kill(random.Random(number).choice(pids), SIGKILL)
    assert site.settle() == []
    assert site.failures() <= kills
    daemon.stop()


@pytest.mark.fault("SIGSTOP agent")
def test_a_stopped_agent_is_killed_at_its_heartbeat_deadline(site: Site) -> None:
    site.lasting = RETRIED
    config = site.types("d1").replace("[agents.line]\n", "[agents.line]\nheartbeat = 2\n")
    daemon = site.serving(config=config)
    site.queue(1, acts="stop")
    pid = int(site.until(lambda: site.record.read_text().split(), "it does not begin")[3])
    site.until(lambda: pid not in daemon.agent_pids(), "a stopped agent lives on")
    assert site.settle() == []
    assert len(site.record.read_text().splitlines()) == 2
    assert site.failures() == 1
    daemon.stop()


@pytest.mark.timeout(1200)
@pytest.mark.fault("SIGSTOP daemon 1-60 s, lease scaled to 1 s")
@pytest.mark.parametrize("seconds", [0.3, 0.9, 1.1, 2.0, *([5.0, 15.0, 60.0] if FULL else [])])
def test_a_daemon_resumed_after_a_stop_loses_and_repeats_no_job(site: Site, seconds: float) -> None:
    first, second = site.serving(metered=False), site.start(metered=False)
    site.until(lambda: "standing by" in second.stderr(), "nobody stands by")
    for daemon in (first, second):
        site.submit(plain=100)
        site.until(lambda: site.value(BEGUN) > 0, "nothing begins")
        daemon.signal(SIGSTOP)
        time.sleep(seconds)
        daemon.signal(SIGCONT)
    assert site.settle() == []
    for daemon in (first, second):
        daemon.stop()


@pytest.mark.fault("SIGSTOP daemon in the middle of an answer")
def test_a_daemon_stopped_before_it_reads_a_large_claim_does_not_block_takeover(site: Site) -> None:
    first, second = site.serving(metered=False), site.start(metered=False)
    site.until(lambda: "standing by" in second.stderr(), "nobody stands by")
    site.rows(GATE)
    site.rows(SHUT)
    site.queue(LARGE, acts="x" * BIG)
    site.until(lambda: site.value(QUEUE_WAITS_FOR, "advisory"), "no claim has come to the gate")
    first.signal(SIGSTOP)
    site.rows(OPEN)
    site.until(lambda: site.value(QUEUE_WAITS_FOR, "ClientWrite"), "no answer was too large for a socket")
    site.until(lambda: site.owner == site.name(second), "nobody takes over", patience=10.0)
    first.signal(SIGCONT)
    assert site.settle() == []
    for daemon in (first, second):
        daemon.stop()


# A claim waits at a gate while that is shut; a look that finds no row does not, nor what the watch connection updates.
GATE = """
create function faults.gate() returns trigger language plpgsql as $$
begin
  if pg_trigger_depth() = 1 then
    perform pg_advisory_xact_lock_shared(1);
  end if;
  return old;
end $$;
create trigger gate before delete on drover.claimable for each row execute function faults.gate();
"""
SHUT, OPEN = "select pg_advisory_lock(1)", "select pg_advisory_unlock(1)"
QUEUE_WAITS_FOR = """
select exists (select from pg_stat_activity
                where application_name = 'drover queue' and datname = current_database() and wait_event = %s)
"""


@pytest.mark.fault(f"SIGCHLD storm: {STORM} exits at once")
def test_many_exits_at_once_are_all_reaped(site: Site, tmp_path: Path) -> None:
    site.lasting = RETRIED
    command = ["sh", "-c", SLEEPER, "sh", "{args}", "d1", str(site.record)]
    config = f"[hosts.local]\nmax = {STORM}\n" + agent("sleeper", command, kind="exec", slots=STORM)
    daemon = site.serving(config=config)
    before = _files(daemon)
    site.queue(STORM, "sleeper")
    site.until(lambda: len(site.record.read_text().splitlines()) == STORM, "not all have begun", patience=100.0)
    for pid in daemon.agent_pids():
        os.kill(pid, SIGKILL)
    assert site.settle(patience=100.0) == []
    assert len(site.record.read_text().splitlines()) == 2 * STORM
    assert site.failures() == STORM
    site.until(lambda: daemon.agent_pids() == [], "zombies are left")
    assert _files(daemon) <= before
    daemon.stop()


@pytest.mark.fault(f"{MANY} agents")
def test_a_thousand_agents_are_served_and_use_no_cpu_while_idle(site: Site) -> None:
    config = f"[hosts.local]\nmax = {MANY}\n[scheduler]\nmax_idle = 900\n" + agent("echo", ECHO, slots=MANY)
    daemon = site.serving(config=config)
    site.queue(MANY, "echo", jq_state="held")
    site.rows("update drover.jobqueue set jq_state = 'queued'")
    site.until(lambda: site.value(ENDED) == MANY, "not all are done", patience=100.0)
    began, cpu = time.monotonic(), _cpu_s(daemon)
    time.sleep(3.0)  # of idleness
    assert (_cpu_s(daemon) - cpu) / (time.monotonic() - began) < 0.05
    assert site.settle() == []
    daemon.stop(timeout=LONG_PATIENCE_S)


@pytest.mark.fault("a query of 1,000,000 rows")
def test_a_query_of_any_size_is_processed_in_bounded_memory(site: Site) -> None:
    rows = 1_000_000 if FULL else 100_000
    daemon = site.serving(config="[hosts.local]\n" + agent("echo", ECHO, slots=2))
    query = f"select n, repeat('x', 100) as text from generate_series(1, {rows}) n"
    pk = site.value(
        "insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('echo', %s, true) returning jq_pk", query
    )
    site.until(lambda: site.value(ENDED) == 1, "it is not done", patience=300.0)
    assert site.value("select jq_itemsprocessed from drover.jobqueue where jq_pk = %s", pk) == rows
    (peak_kb,) = [line.split()[1] for line in _status(daemon) if line.startswith("VmHWM")]
    assert int(peak_kb) < 100 * 1024
    assert site.settle() == []
    daemon.stop()


def _status(daemon: Daemon) -> list[str]:
    return Path(f"/proc/{daemon.pid}/status").read_text().splitlines()


ENDED = "select count(*) from drover.jobqueue where jq_state = 'done'"


@pytest.mark.fault("EMFILE: RLIMIT_NOFILE 64")
def test_a_daemon_out_of_descriptors_goes_on_with_fewer_agents(site: Site) -> None:
    daemon = site.serving(config=site.types("d1", slots=16), prefix=["prlimit", "--nofile=64:64", "--"])
    site.queue(200)
    site.queue(200, "exec")
    site.submit()
    assert site.settle() == []
    assert "raise LimitNOFILE" in daemon.stderr()
    daemon.stop()


@pytest.mark.fault("flood / never reads")
def test_agents_that_flood_and_agents_that_never_read_cost_no_memory(site: Site) -> None:
    flood = ["sh", "-c", f"echo OK; read line; yes {'x' * 1000} | head -c {FLOOD}; echo; echo OK; read line"]
    deaf = ["sh", "-c", "echo OK; exec sleep 1000"]
    config = site.types("d1") + agent("flood", flood) + agent("deaf", deaf, heartbeat=2)
    daemon = site.serving(config=config.replace("max = 8", "max = 12"), log=Path(os.devnull))
    site.submit(plain=20)
    assert site.settle() == []
    before, files = _resident(daemon), _files(daemon)
    site.queue(1, "flood", **TO_FAIL)
    site.queue(1, "deaf", "x" * 200_000, **TO_FAIL)
    site.submit(plain=50)
    assert site.settle(patience=100.0) == []
    assert [kind for (kind,) in site.rows(FAILED_TYPES)] == ["deaf", "flood"]
    assert _resident(daemon) - before < 10 << 20
    assert _files(daemon) <= files + 8
    daemon.stop()


def _files(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def _resident(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def _cpu_s(daemon: Daemon) -> float:
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
