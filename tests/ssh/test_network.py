"""Claims about hosts at the end of a cable: it is pulled, and plugged in again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import Ended, LinkDown, LinkUp, Lost
from tests.needs import need
from tests.ssh.conftest import Join
from tests.ssh.net import Net, cabled
from tests.ssh.sshd import Server, run, serving
from tests.ssh.test_remote_agents import STUBBORN, all_gone, tree

SOON = {"lease_s": 2, "beat_s": 0.5, "answer_s": 4.0, "connect_s": 2.0}


@pytest.fixture
def net() -> Iterator[Net]:
    need("netns")
    with cabled() as one:
        yield one


@pytest.fixture
def server(net: Net, tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path / "far", address=net.address, inside=net.inside, port=2222) as one:
        yield one


@pytest.mark.slow
def test_agents_behind_a_silent_network_are_dead_when_reported_lost(net: Net, server: Server, join: Join) -> None:
    host = join(server.settings(**SOON))
    watched = tree(host.up(script=STUBBORN))
    net.cut()
    report = host.end()
    assert isinstance(report, Lost)
    assert all_gone(watched, within_s=0.0)
    net.mend()
    host.await_report(LinkUp, 2)
    host.up(1)


@pytest.mark.slow
def test_a_silent_network_is_noticed_during_a_large_transfer(net: Net, server: Server, join: Join) -> None:
    host = join(server.settings(**SOON))
    host.sh("echo up; exec cat >/dev/null")
    host.until(lambda: host.said[0])
    host.feed(0, bytes(100_000_000))
    host.until(lambda: host.fed[0] > 1_000_000)
    net.cut()
    assert isinstance(host.end(), Lost)
    host.await_report(LinkDown)


@pytest.mark.slow
def test_a_host_that_lost_the_connection_state_is_reconnected(net: Net, server: Server, join: Join) -> None:
    host = join(server.settings(**SOON))
    host.up()
    net.cut()
    server.kill()
    net.mend()
    server.begin()
    assert isinstance(host.end(), Lost)
    host.await_report(LinkUp, 2)


@pytest.mark.slow
def test_host_that_drops_packets_delays_no_request_f10(net: Net, server: Server, join: Join) -> None:
    """Requests to start and to signal are answered while a connection is being made."""
    net.cut()
    host = join(server.settings(**SOON | {"connect_s": 10.0}))
    host.sh("echo up")
    host.process.signal(0, "KILL")
    assert host.end().why == "it was killed before it had started"  # type: ignore[union-attr]
    assert host.all(LinkDown) == []
    down = host.await_report(LinkDown)
    assert "no answer within 10 s" in down.why or "No route" in down.why
    net.mend()
    host.await_report(LinkUp)
    host.sh("exit 3", id=1)
    assert host.end(1) == Ended(1, code=3)


@pytest.mark.slow
def test_heartbeats_pass_through_a_saturated_slow_network(net: Net, server: Server, join: Join) -> None:
    """What is sent takes longer than the lease, and would be before the beat in buffers as large as they get."""
    host = join(server.settings(lease_s=5, beat_s=1.0, answer_s=7.0))
    host.await_report(LinkUp)
    run("tc", "qdisc", "add", "dev", net.ours, "root", "tbf", "rate", "4mbit", "burst", "16kb", "latency", "200ms")
    host.sh("exec wc -c")
    host.feed(0, bytes(3_500_000))
    host.until(lambda: host.fed[0] == 3_500_000)
    host.close_stdin()
    assert host.end() == Ended(0, code=0)
    assert host.said[0].strip() == b"3500000"
    assert host.all(Lost) == []
