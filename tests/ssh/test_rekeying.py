"""Claims about agents behind a real sshd while keys are exchanged all the time: nothing is lost, and nobody."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from tests.needs import need
from tests.ssh.pumps import LOGGED, PATIENT, Pump, Pumps, exchanges, lines, pieces
from tests.ssh.sshd import Server, serving

pytestmark = pytest.mark.timeout(1200)

KIB: Final = 1 << 10
MIB: Final = 1 << 20


class Limit(NamedTuple):
    """When keys are exchanged: options of sshd, our own limit, and how many exchanges make a test."""

    options: dict[str, str]
    rekey_bytes: int
    exchanges: int
    beat_s: float = 4.0


NEVER: Final = 1 << 40
LIMITS: Final = {
    "sshd_after_1_MB": Limit({"RekeyLimit": "1M none"}, NEVER, 20),
    "we_after_4_MB": Limit({"RekeyLimit": "default none"}, 4 * MIB, 4),
    "whoever_is_first": Limit({"RekeyLimit": "1M none"}, 900_000, 20),
}
SLOW: Final = {"KexAlgorithms": "diffie-hellman-group16-sha512"}  # so that heartbeats are due amid an exchange
EACH_SECOND: Final = Limit({"RekeyLimit": "default 1s", **SLOW}, NEVER, 4, beat_s=0.02)


class Site:
    """A host that is reached, and its sshd."""

    def __init__(self, server: Server, limit: Limit, **changes: object) -> None:
        self._server, self._limit = server, limit
        changes |= {"rekey_bytes": limit.rekey_bytes, "beat_s": limit.beat_s}
        self.pumps, self.random = Pumps(server.settings(**PATIENT, **changes)), Random(1)
        self.close = self.pumps.close

    def repeat(self, work: Callable[["Site"], list[Pump]]) -> None:
        """Do work again and again until keys were exchanged often enough; assert that nothing was lost."""
        is_done = False
        while not is_done:
            is_done = sum(exchanges(self._server)) >= self._limit.exchanges
            for pump in work(self):
                self.pumps.finish([pump])
                assert pump.is_intact, (pump.end, pump.errors, pump.fed_bytes, pump.read_bytes)
        assert not self.pumps.others


@contextmanager
def sited(folder: Path, limit: Limit) -> Iterator[Site]:
    """Yield a host whose keys are exchanged that often."""
    need("sshd")
    with ExitStack() as stack:
        server = stack.enter_context(serving(folder, **LOGGED, **limit.options))
        yield stack.enter_context(closing(Site(server, limit)))


@pytest.fixture(params=LIMITS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with sited(tmp_path / "server", LIMITS[request.param]) as one:
        yield one


def test_small_lines_of_many_agents_survive_exchanges_of_keys(site: Site) -> None:
    site.repeat(talk)


def test_bulk_both_ways_survives_exchanges_of_keys(site: Site) -> None:
    site.repeat(carry)


def test_agents_that_start_and_end_all_the_time_survive_exchanges_of_keys(site: Site) -> None:
    site.repeat(come_and_go)


def test_full_pipes_survive_exchanges_of_keys(site: Site) -> None:
    site.repeat(clog)


def test_nothing_is_lost_when_sshd_exchanges_keys_each_second(tmp_path: Path) -> None:
    with sited(tmp_path / "server", EACH_SECOND) as site:
        site.repeat(do_all)


def test_exchanges_of_keys_with_a_host_and_its_jump_host_lose_nothing(tmp_path: Path) -> None:
    need("sshd")
    options = {**LOGGED, "RekeyLimit": "1M none"}
    with serving(tmp_path / "jump", **options) as jump, serving(tmp_path / "server", **options) as server:
        config = tmp_path / "config"
        config.write_text(
            "".join(
                f"Host {name}\n HostName 127.0.0.1\n Port {each.port}\n User root\n ProxyJump {before}\n"
                f" IdentityFile {each.user_key.path}\n UserKnownHostsFile {each.known_hosts}\n"
                for name, each, before in (("jump", jump, "none"), ("alpha", server, "jump"))
            )
        )
        limit = Limit(options, NEVER, 10)
        as_written = dict.fromkeys(("address", "user", "identity", "known_hosts"), "")
        with closing(Site(server, limit, **as_written, ssh_config=str(config))) as site:
            site.repeat(come_and_go)
            assert sum(exchanges(jump)) >= limit.exchanges


# ---------------------------------------------------------------- work, a round of it


def talk(site: Site) -> list[Pump]:
    return [site.pumps.start(lines(site.random, 10_000)) for _ in range(6)]


def carry(site: Site) -> list[Pump]:
    return [site.pumps.start(pieces(site.random, 6 * MIB, 64 * KIB)) for _ in range(3)]


def come_and_go(site: Site) -> list[Pump]:
    return start_and_end_beside(site, [site.pumps.start(pieces(site.random, 8 * MIB, 64 * KIB))])


def do_all(site: Site) -> list[Pump]:
    some_lines = [site.pumps.start(lines(site.random, 2000)) for _ in range(3)]
    return start_and_end_beside(site, [*some_lines, site.pumps.start(pieces(site.random, 2 * MIB, 64 * KIB))])


def start_and_end_beside(site: Site, busy: list[Pump]) -> list[Pump]:
    """Start agents, a few at once, until some others are over."""
    gone = []
    while not all(pump.is_over for pump in busy):
        some = [site.pumps.start(pieces(site.random, 2000, 500)) for _ in range(4)]
        site.pumps.finish(some)
        gone += some
    return [*busy, *gone]


def clog(site: Site) -> list[Pump]:
    """Fill the pipes of two agents, both ways, and empty them when a third is over."""
    full = [site.pumps.start(pieces(site.random, 2 * MIB, 64 * KIB)) for _ in range(2)]
    for pump in full:
        pump.pause()
    busy = site.pumps.start(pieces(site.random, 6 * MIB, 64 * KIB))
    site.pumps.finish([busy])
    for pump in full:
        pump.go_on()
    return [*full, busy]
