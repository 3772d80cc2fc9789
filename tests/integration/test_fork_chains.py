"""Children that each fork the next one and exit, deaf to SIGHUP: none outlives the job, nor the daemon."""

import fcntl
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, python
from tests.patience import LONG_PATIENCE_S

# The lock is held as long as one of them lives: they inherit the open file.
CHAIN = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("OK")
lock = open(input(), "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    time.sleep(600)
{begins}
os.close(0), os.close(1), os.close(2)
lock.write("here"), lock.flush()
while True:
    time.sleep(0.001)
    if os.fork():
        os._exit(0)
"""


def running(daemon: Daemon, lock: Path) -> int:
    """Let an agent begin a job, and its chain; return the job."""
    pk = daemon.insert(jq_type="chain", jq_args=str(lock))
    daemon.until(lambda: lock.exists() and lock.read_text())
    daemon.wait(pk, "running")
    return pk


def is_held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_chain_of_a_killed_job_ends_with_it(launch: Launch, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    daemon = launch("[hosts.local]\n" + agent("chain", python(CHAIN.format(begins=""))))
    pk = running(daemon, lock)
    daemon.insert(role="drover_operator", jq_type="command", jq_args=f"killjob {pk}")
    daemon.wait(pk, "failed")
    assert daemon.until(lambda: not is_held(lock), what="the chain goes on")


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
@pytest.mark.parametrize("begins", ["", "os.setsid()"])
def test_no_chain_outlives_the_daemon(launch: Launch, tmp_path: Path, number: int, begins: str) -> None:
    lock = tmp_path / "lock"
    daemon = launch("[hosts.local]\n" + agent("chain", python(CHAIN.format(begins=begins))))
    running(daemon, lock)
    daemon.signal(number)
    daemon.process.wait(LONG_PATIENCE_S)
    assert not is_held(lock)
