"""Pauses after wrong passwords, for each role and address: a stranger makes nobody wait who is elsewhere."""

import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from scheduler.errors import ConfigError

FIRST_S: Final = 1.0  # then twice as long each time
LONGEST_S: Final = 30.0
FORGET_S: Final = 900.0  # after the last try
MOST: Final = 10_000  # pairs of a role and an address


class _Failures(NamedTuple):
    number: int
    until: float


class Pauses:
    """The wrong passwords of the last minutes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[tuple[str, str], _Failures] = {}  # the oldest first
        self._lock = threading.Lock()

    def begin(self, role: str, address: str) -> None:
        """Note a try, as a wrong one until `forget`: so none is made beside it. Errors: ConfigError in a pause."""
        with self._lock:
            now = self._now()
            last = self._failures.pop((role, address), _Failures(0, now))
            if last.until > now:
                self._failures[role, address] = last
                raise ConfigError("role or password was wrong, or a try is not over: "
                                  f"try again in {int(last.until - now) + 1} s")  # fmt: skip
            number = 1 + (last.number if last.until + FORGET_S > now else 0)
            if len(self._failures) >= MOST:
                del self._failures[next(iter(self._failures))]
            self._failures[role, address] = _Failures(number, now + min(LONGEST_S, FIRST_S * 2 ** min(number - 1, 30)))

    def forget(self, role: str, address: str) -> None:
        """Forget the wrong passwords before a right one."""
        with self._lock:
            self._failures.pop((role, address), None)


def neighbourhood(host: str) -> str:
    """Return what counts as one address: a host has all of loopback, and with IPv6 mostly a network of /64."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "loopback"
    return str(ip_network((address, 64), strict=False)) if isinstance(address, IPv6Address) else str(address)
