"""`drover metrics` beside a real daemon: what it says of jobs, agents and the daemon, over restarts of that."""

import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import DROVER, environment
from tests.integration.daemon import Daemon, agent, python, start
from tests.metrics.conftest import Metrics
from tests.patience import LONG_PATIENCE_S

OK = 'print("OK", flush=True)\nwhile True:\n  line = input()\n  print("OK", flush=True)\n'
TEXT = (
    "[hosts.alpha]\nmax = 4\n"
    + agent("echo", python(OK), slots=2)
    + agent("sh", ["/bin/sh", "-c", "{args}"], kind="exec")
)


class Scrapes:
    """The exporter, and what it says."""

    def __init__(self, address: str) -> None:
        self.address = address

    def read(self) -> dict[str, float]:
        """Return the value of each series."""
        with urllib.request.urlopen(self.address, timeout=LONG_PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        return {
            series: float(value) for series, _, value in (line.rpartition(" ") for line in lines) if series[0] != "#"
        }


@contextmanager
def exporting(database: str, folder: Path, *prefix: str) -> Iterator[Scrapes]:
    variables = environment(make_conninfo(database, user="drover_readonly"), folder / "none")
    argv = [*prefix, *DROVER, "metrics", "--port", "0"]
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stdout.readline())
        assert address
        yield Scrapes(address[0])
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


HALF_HEAD = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n"


def test_half_heads_keep_no_scrape_away(database_with_roles: str, tmp_path: Path) -> None:
    with exporting(database_with_roles, tmp_path, "prlimit", "--nofile=256:256") as scrapes, ExitStack() as stack:
        port = int(scrapes.address.rpartition(":")[2].partition("/")[0])
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONG_PATIENCE_S)).sendall(
                HALF_HEAD
            )
        assert scrapes.read()["drover_up"] == 1


@pytest.fixture
def scrapes(database_with_roles: str, tmp_path: Path) -> Iterator[Scrapes]:
    with exporting(database_with_roles, tmp_path) as scrapes:
        yield scrapes


def until(daemon: Daemon, scrapes: Scrapes, **series: float) -> dict[str, float]:
    """Wait until the counters of ended jobs say so; return all series."""
    wanted = {f"drover_jobs_ended_total{{{labels.replace('__', ',')}}}": value for labels, value in series.items()}
    found: dict[str, float] = {}

    def has_come() -> bool:
        found.clear()
        found.update(scrapes.read())
        return all(found.get(name) == value for name, value in wanted.items())

    daemon.until(has_come, what=f"no such counters: {wanted}")
    return found


def find(found: dict[str, float], name: str, labels: str) -> list[float]:
    """Return the values of a metric whose labels have this text."""
    return [value for series, value in found.items() if series.startswith(f"{name}{{") and labels in series]


def ended(type: str, state: str, code: str) -> str:
    return f'code="{code}",state="{state}",type="{type}"'


@pytest.mark.slow
def test_ends_bytes_and_processes_are_counted(database_with_roles: str, scrapes: Scrapes) -> None:
    with start(TEXT, database_with_roles) as daemon:
        for _ in range(3):
            daemon.wait(daemon.insert(jq_type="echo", jq_args="four"))
        daemon.wait(daemon.insert(jq_type="sh", jq_args="exit 3"), "failed")
        died = 'drover_agent_deaths_total{host="alpha",how="exited",type="sh"}'
        daemon.until(lambda: died in scrapes.read(), what="a death is not counted")  # it may come after the end
        found = until(daemon, scrapes, **{ended("echo", "done", "normal"): 3, ended("sh", "failed", "exit_status"): 1})
        assert found["drover_up"] == 1
        assert found['drover_agent_sent_bytes_total{type="echo"}'] == 3 * len("four\n")
        assert not [name for name in found if name.startswith("drover_rescan_found_total")]  # nothing was lost
        assert found['drover_agent_received_bytes_total{type="echo"}'] >= 4 * len("OK\n")
        assert found[died] == 1
        assert found['drover_agent_spawns_total{host="alpha",type="echo"}'] >= 1
        for name in ("wait", "run"):
            assert found[f'drover_job_{name}_seconds_count{{type="echo"}}'] == 3
            assert found[f'drover_job_{name}_seconds_bucket{{le="+Inf",type="echo"}}'] == 3


@pytest.mark.slow
def test_counters_go_on_after_a_daemon_was_stopped_and_one_was_killed(
    database_with_roles: str, scrapes: Scrapes
) -> None:
    with ExitStack() as stack:
        for n, end in ((1, signal.SIGTERM), (2, SIGKILL), (3, signal.SIGTERM)):
            daemon = stack.enter_context(start(TEXT, database_with_roles))
            daemon.wait(daemon.insert(jq_type="echo"))
            if end == SIGKILL:  # what it counted last would be lost with it
                until(daemon, scrapes, **{ended("echo", "done", "normal"): n})
            daemon.stop(end)
        found = until(daemon, scrapes, **{ended("echo", "done", "normal"): 3})
    assert found['drover_job_run_seconds_count{type="echo"}'] == 3
    assert found['drover_group_active{group="default"}'] == 0


@pytest.mark.slow
def test_status_of_the_daemon_has_its_statements_slots_and_memory_t4(
    database_with_roles: str, scrapes: Scrapes
) -> None:
    with start(TEXT, database_with_roles) as daemon:
        daemon.wait(daemon.insert(jq_type="echo"))
        found: dict[str, float] = {}

        def is_shown() -> bool:
            found.update(scrapes.read())
            return find(found, "drover_slots", 'state="ST_READY",type="echo"') == [1]

        daemon.until(is_shown, what="no slot is ready")
        (calls,) = find(found, "drover_statement_calls_total", "end_and_claim")
        (seconds,) = find(found, "drover_statement_seconds_total", "end_and_claim")
        (longest,) = find(found, "drover_statement_longest_seconds", "end_and_claim")
        assert longest <= seconds + 0.001 <= calls * longest + 0.002
        assert find(found, "drover_scheduler_memory_bytes", "")[0] > 1e6
        assert find(found, "drover_scheduler_loop_lag_seconds", "")[0] >= 0


@pytest.mark.slow
def test_jobs_that_wait_are_counted_by_state_with_their_age(database_with_roles: str, scrapes: Scrapes) -> None:
    with start(TEXT, database_with_roles) as daemon:
        pause = daemon.insert(role="drover_operator", jq_type="command", jq_args="pause")
        daemon.wait(pause)
        daemon.insert(jq_type="echo")
        daemon.insert(jq_type="echo", jq_not_before="2999-01-01")
        daemon.insert(jq_type="nosuch")
        found = scrapes.read()
    of_echo = 'queue="default",state="{}",type="echo"'
    assert found[f"drover_jobs{{{of_echo.format('ready')}}}"] == 1
    assert found[f"drover_jobs{{{of_echo.format('waiting')}}}"] == 1
    assert found['drover_jobs{queue="default",state="ready",type="(unknown)"}'] == 1
    assert 0 <= found[f"drover_oldest_job_seconds{{{of_echo.format('ready')}}}"] < 600


@pytest.mark.slow
def test_job_in_hand_is_counted_as_such(database_with_roles: str, scrapes: Scrapes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with start(TEXT, database_with_roles) as daemon:
        pk = daemon.insert(jq_type="sh", jq_args=f"while ! test -e {gate}; do sleep 0.05; done")
        daemon.until(lambda: daemon.row(pk)["jq_state"] in ("claimed", "running"), what="it does not run")
        assert scrapes.read()['drover_jobs{queue="default",state="in_hand",type="sh"}'] == 1
        gate.touch()
        daemon.wait(pk)


def test_port_in_use_is_a_sentence(site: str, metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = metrics(site, "--port", str(port))
    assert told.status == 2
    assert told.err == f"drover metrics: cannot listen on 127.0.0.1 port {port}: Address already in use; see --port\n"


@pytest.mark.slow
def test_exporter_without_a_database_answers_drover_up_0(tmp_path: Path) -> None:
    with exporting("host=127.0.0.1 port=1 dbname=none", tmp_path) as scrapes:
        assert scrapes.read()["drover_up"] == 0
