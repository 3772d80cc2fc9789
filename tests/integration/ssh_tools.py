"""Hosts over SSH for tests of the daemon: configuration, jobs whose lines differ, and what runs on a server."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.daemon import LOOK_S, Daemon, await_lines, lines, records
from tests.needs import need
from tests.patience import LONG_PATIENCE_S, PATIENCE_S
from tests.ssh.net import Net, cabled
from tests.ssh.sshd import Server, below, name_of, run, serving

ALPHA = "[hosts.alpha]\n"
SOON = {"lease_s": 2, "beat_s": 0.5, "answer_s": 4.0, "connect_s": 2.0}  # silence is noticed
OFTEN = {"ping_s": 1.0}  # the SSH process is asked whether it runs
DEAF = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("OK")
while True:
    if sys.stdin.readline():
        print("OK")
    else:
        signal.pause()
"""


def table(name: str, server: Server, user: str = "root", **keys: int) -> str:
    """Return the table of a host that is reached over SSH."""
    settings = server.settings()
    lines = [
        f"[hosts.{name}]", 'transport = "ssh"', f'address = "{settings.address}"', f'user = "{user}"',
        f'identity = "{settings.identity}"', f'known_hosts = "{settings.known_hosts}"',
        *(f"{key} = {value}" for key, value in keys.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def reached(daemon: Daemon, host: str = "beta", times: int = 1) -> None:
    daemon.until(lambda: daemon.stderr().count(f"host {host}: reached") >= times, what="it is not reached")


def numbered(count: int, act: str) -> list[dict[str, object]]:
    """Return rows of jobs whose lines differ."""
    return [{"jq_type": "rec", "jq_args": f"{act};{number}"} for number in range(count)]


def insert_at_gate(daemon: Daemon, record: Path, gate: Path, count: int) -> list[int]:
    """Queue jobs that wait for the gate; return their numbers once agents have them all."""
    pks = daemon.insert_all(numbered(count, f"gate:{gate}"))
    await_lines(daemon, record, count)
    return pks


def command(daemon: Daemon, text: str) -> None:
    daemon.insert(jq_type="command", jq_args=text, role="drover_operator")


def interruptions(daemon: Daemon, pks: list[int]) -> list[int]:
    return [daemon.row(pk)["jq_interruptions"] for pk in pks]


def assert_each_done_once(daemon: Daemon, pks: list[int], record: Path) -> None:
    """Every job is done, by one attempt; no more lines were given out for it than there were attempts."""
    daemon.wait_all(pks, timeout=LONG_PATIENCE_S)
    given = Counter(lines(record))
    for pk in pks:
        outcomes = [each["att_outcome"] for each in daemon.attempts(pk)]
        assert outcomes.count("done") == 1, (pk, outcomes)
        assert 1 <= given[daemon.row(pk)["jq_args"]] <= len(outcomes), (pk, outcomes, given)


def hosts(record: Path) -> Counter[str]:
    """Return how many lines each host was given."""
    return Counter(note["host"] for note in records(record) if note["event"] == "line")


def said(daemon: Daemon, pk: int, stream: str) -> str:
    query = (
        "select string_agg(out_data, '' order by out_pk) from drover.output where out_jq_fk = %s and out_stream = %s"
    )
    return str(daemon.value(query, pk, stream))


def at_work(server: Server) -> list[int]:
    """Return the pids of what runs on a server that is not sshd's."""
    return [pid for pid in below(server.process.pid) if name_of(pid) != "sshd"]


def until_nothing_is_at_work(server: Server) -> None:
    """Wait until what ran on a server has ended; it is told to when its connection ends, and dies a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while left := at_work(server):
        assert time.monotonic() < deadline, f"processes {left} live on"
        time.sleep(LOOK_S)


def ssh_processes(daemon: Daemon) -> list[int]:
    """Return the pids of the SSH processes."""
    return [pid for pid in daemon.agent_pids() if b"scheduler.ssh" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    """Return the words of a process, none if it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextmanager
def wired(folder: Path, **options: object) -> Iterator[tuple[Net, Server]]:
    """Yield a host at the end of a cable."""
    need("netns")
    need("sshd")
    with cabled() as net, serving(folder, address=net.address, inside=net.inside, port=2222, **options) as server:
        yield net, server


def forget_connections(net: Net) -> None:
    """Make the host forget all its connections; nobody is told, if its cable is cut."""
    run(*net.inside, "ss", "-K", "state", "established")
