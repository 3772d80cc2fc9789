"""A host over SSH, against paramiko alone that speaks to the same sshd in the plainest way: a thread an agent."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

import paramiko

from scheduler.drivers.ssh_protocol import LinkUp
from tests.bench.ours import on_host
from tests.bench.place import Place
from tests.bench.rates import Rate
from tests.bench.usage import metered, this_process
from tests.integration.ssh_tools import table
from tests.needs import PRESENT
from tests.ssh.host import Host
from tests.ssh.sshd import Server, serving

OK: Final = b"OK\n"
LINE: Final = b'n="12345"\n'
HOST: Final = "far"


def why_not() -> str:
    """Return why there is nothing to measure, or nothing."""
    return "" if PRESENT["sshd"]() else "sshd, as root"


@contextmanager
def server() -> Iterator[Server]:
    """Yield an sshd of our own."""
    with TemporaryDirectory(prefix="drover-bench-") as folder, serving(Path(folder) / HOST) as one:
        yield one


@contextmanager
def connected(there: Server) -> Iterator[paramiko.Transport]:
    """Yield a connection that is open and trusts whom it meets."""
    with closing(paramiko.Transport((there.address, there.port))) as transport:
        transport.connect(username="root", pkey=paramiko.Ed25519Key.from_private_key_file(str(there.user_key.path)))
        yield transport


def bare_starts(there: Server, agent: Sequence[str], count: int) -> list[float]:
    """Return the milliseconds from a request to the first OK of so many agents, one after the other."""
    with connected(there) as transport:
        spans = []
        for _ in range(count):
            begun = time.monotonic()
            with closing(_started(transport, agent)):
                spans.append((time.monotonic() - begun) * 1000)
        return spans


def our_starts(there: Server, agent: Sequence[str], count: int) -> list[float]:
    """Return the same through an SSH process."""
    with closing(Host(there.settings())) as host:
        host.await_report(LinkUp)
        spans = []
        for id in range(count):
            begun = time.monotonic()
            host.start(*agent, id=id)
            host.until(lambda id=id: host.said[id] == OK)  # type: ignore[misc]
            spans.append((time.monotonic() - begun) * 1000)
            host.close_stdin(id)
            host.end(id)
        return spans


def bare_rate(conninfo: str, there: Server, agent: Sequence[str], agents: int, lines: int) -> Rate:
    """Return the rate of lines of so many agents, each of which gets its next line when it has said OK."""
    with metered(conninfo) as meter, connected(there) as transport:
        channels = [_started(transport, agent) for _ in range(agents)]
        threads = [Thread(target=_feed, args=(channel, lines // agents)) for channel in channels]
        meter.begin(this_process())
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        worked, seconds = lines // agents * agents, time.monotonic() - begun
        return _without_agents(Rate(worked / seconds, meter.cost(worked)))


def our_rate(place: Place, there: Server, agents: int, lines: int, window: int = 1) -> Rate:
    """Return the same of the daemon, for the rows of a query, with so many lines to an agent at once."""
    return _without_agents(on_host(place, table(HOST, there), agents, lines, window))


def _without_agents(rate: Rate) -> Rate:
    """Leave out sshd and the agents, which are our children in one case and not in the other."""
    return replace(rate, cost=replace(rate.cost, agents_us=None))


def _started(transport: paramiko.Transport, agent: Sequence[str]) -> paramiko.Channel:
    channel = transport.open_session()
    channel.exec_command("exec " + " ".join(agent))
    assert channel.recv(100) == OK
    return channel


def _feed(channel: paramiko.Channel, lines: int) -> None:
    for _ in range(lines):
        channel.sendall(LINE)
        assert channel.recv(100) == OK
