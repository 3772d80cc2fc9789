"""One attempt to connect to Postgres that never waits, its host names looked up in a child process.

libpq connects without blocking except for the look-up of a host name; so `getent` does that, behind a pipe, and libpq
is given addresses. A host that comes from a service file is not seen here: give such a service its hostaddr.
"""

import ipaddress
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from itertools import zip_longest
from select import EPOLLIN, EPOLLOUT
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.drivers.loop import Loop, Timer

CONNECT_LIMIT_S: Final = 15.0
READ_BYTES: Final = 65_536
RESOLVERS: Final = frozenset(("PATH", "LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES"))  # resolv.conf(5), hostname(7)
HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

# What the operator's connection string may override. A silent network is noticed within half a minute.
DEFAULTS: Final[dict[str, Any]] = {
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Attempt:
    """A connection on its way up: ends with one call of `on_open` or `on_failure`, unless given up."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        conninfo: str,
        on_open: Callable[[pq.abc.PGconn], None],
        on_failure: Callable[[str], None],
        shift: int = 0,
    ) -> None:
        self._shift = shift  # how many of several servers to pass over at first
        self._loop, self._on_open, self._on_failure = loop, on_open, on_failure
        self._conninfo, self._given = conninfo, {**DEFAULTS, "fallback_application_name": f"drover {name}"}
        self._pg: pq.abc.PGconn | None = None
        self._fd = -1
        self._lookup: Lookup | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin; may end at once."""
        self._timer = self._loop.at(self._loop.now + CONNECT_LIMIT_S, self._late)
        try:
            self._parameters = {**self._given, **conninfo_to_dict(self._conninfo)}
        except psycopg.Error as error:
            return self._fail(f"connection string: {_words(error)}")
        self._addresses: dict[str, list[str]] = {}
        return self._look_up()

    def give_up(self) -> None:
        """Forget it all; nothing is called."""
        if self._timer:
            self._timer.cancel()
        if self._lookup:
            self._lookup.give_up()
        self._forget_fd()
        if self._pg:
            self._pg.finish()
            self._pg = None

    # ---- names

    def _look_up(self) -> None:
        """Look up the next name that has no address yet; connect when there is none."""
        self._lookup = None
        name = next((n for n in _names(self._parameters) if n not in self._addresses), None)
        if name is None:
            return self._connect()
        self._lookup = Lookup(self._loop, name, self._found)
        return self._lookup.start()

    def _found(self, name: str, addresses: Sequence[str]) -> None:
        self._addresses[name] = list(addresses)
        return self._look_up()

    # ---- connection

    def _connect(self) -> None:
        if not any(self._addresses.get(host, [""]) for host in _hosts(self._parameters)):
            return self._fail(", ".join(f"host {name!r} has no address" for name in self._addresses))
        parameters = rotated(with_addresses(self._parameters, self._addresses), self._shift)
        self._pg = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
        if self._pg.status == pq.ConnStatus.BAD:
            return self._fail(self._pg.get_error_message())
        return self._wait(EPOLLOUT)

    def _wait(self, mask: int) -> None:
        assert self._pg is not None
        self._fd = self._pg.socket
        self._loop.register(self._fd, mask, self._ready)

    def _ready(self, _mask: int) -> None:
        # libpq may close the descriptor and open another one under the same number: forget it before every step.
        self._forget_fd()
        assert self._pg is not None
        match self._pg.connect_poll():
            case pq.PollingStatus.OK:
                self._succeed()
            case pq.PollingStatus.READING:
                self._wait(EPOLLIN)
            case pq.PollingStatus.WRITING:
                self._wait(EPOLLOUT)
            case _:
                self._fail(self._pg.get_error_message())

    def _succeed(self) -> None:
        assert self._pg is not None
        pg, self._pg = self._pg, None
        self.give_up()
        self._on_open(pg)

    def _late(self) -> None:
        self._fail(f"no connection within {CONNECT_LIMIT_S:.0f} s")

    def _fail(self, reason: str) -> None:
        self.give_up()
        self._on_failure(reason)

    def _forget_fd(self) -> None:
        if self._fd >= 0:
            self._loop.unregister(self._fd)
            self._fd = -1


class Cancel:
    """A cancel request under way; ends with one call of `done`, unless given up."""

    def __init__(self, loop: Loop, pg: pq.abc.PGconn, done: Callable[[], None]) -> None:
        self._loop, self._done = loop, done
        self._request = pg.cancel_conn()
        self._fd = -1

    def start(self) -> None:
        """Begin; may end at once."""
        try:
            self._request.start()
        except psycopg.Error:
            return self._end()  # the caller drops the connection if nothing comes of it
        return self._wait(EPOLLOUT)

    def give_up(self) -> None:
        """Forget it; nothing is called."""
        self._forget_fd()
        self._request.finish()

    def _wait(self, mask: int) -> None:
        self._fd = self._request.socket
        self._loop.register(self._fd, mask, self._ready)

    def _ready(self, _mask: int) -> None:
        self._forget_fd()  # at its end libpq has closed it already
        match self._request.poll():
            case pq.PollingStatus.READING:
                self._wait(EPOLLIN)
            case pq.PollingStatus.WRITING:
                self._wait(EPOLLOUT)
            case _:
                self._end()

    def _end(self) -> None:
        self._request.finish()
        self._done()

    def _forget_fd(self) -> None:
        if self._fd >= 0:
            self._loop.unregister(self._fd)
            self._fd = -1


class Lookup:
    """The addresses of a host name, asked of the system's resolver by a child process."""

    def __init__(
        self, loop: Loop, name: str, on_found: Callable[[str, Sequence[str]], None], program: str = "getent"
    ) -> None:
        self._loop, self._name, self._on_found, self._program = loop, name, on_found, program
        self._child: subprocess.Popen[bytes] | None = None
        self._output = b""

    def start(self) -> None:
        """Start the child; where there is no such program, libpq looks the name up itself, and may wait."""
        none = subprocess.DEVNULL
        environment = {name: text for name, text in os.environ.items() if name in RESOLVERS}  # no password of ours
        command = [self._program, "ahosts", self._name]
        try:
            self._child = subprocess.Popen(
                command, stdin=none, stdout=subprocess.PIPE, stderr=none, bufsize=0, env=environment
            )
        except OSError:
            return self._on_found(self._name, [""])
        return self._loop.register(self._fd(), EPOLLIN, self._ready)

    def give_up(self) -> None:
        """Kill the child, if it runs, and reap it."""
        if self._child is None:
            return
        child, self._child = self._child, None
        assert child.stdout is not None
        self._loop.unregister(child.stdout.fileno())
        child.stdout.close()
        child.kill()
        child.wait()

    def _fd(self) -> int:
        assert self._child is not None
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def _ready(self, _mask: int) -> None:
        data = os.read(self._fd(), READ_BYTES)
        self._output += data
        if not data:
            self.give_up()
            self._on_found(self._name, _addresses(self._output))


def with_addresses(parameters: dict[str, Any], addresses: dict[str, list[str]]) -> dict[str, Any]:
    """Give connection parameters with `hostaddr` for every looked-up host; a name with two stands twice, or never."""
    if not addresses:
        return parameters
    hosts = _hosts(parameters)
    ports = str(parameters.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    tries = [
        (host, address, port)
        for host, port in zip_longest(hosts, ports, fillvalue="")
        for address in addresses.get(host, [""])
    ]
    names, found, doors = (",".join(column) for column in zip(*tries, strict=True))
    ready = {**parameters, "host": names, "port": doors} if doors.strip(",") else {**parameters, "host": names}
    return {**ready, "hostaddr": found} if found.strip(",") else ready


def rotated(parameters: dict[str, Any], shift: int) -> dict[str, Any]:
    """Give them with the servers in another order: one that accepts and then says nothing must not bar the others.

    libpq goes from one to the next by itself, but for that case: its own time limit does not hold while we wait.
    """
    lists = {key: str(parameters[key]).split(",") for key in ("host", "hostaddr", "port") if parameters.get(key)}
    several = {key: words for key, words in lists.items() if len(words) > 1}
    return {**parameters, **{key: ",".join(_turned(words, shift)) for key, words in several.items()}}


def writable(conninfo: str) -> str:
    """Give it looking for a server that can be written to, unless it says otherwise itself.

    So a daemon follows its primary to another server, and waits while there is none.
    """
    return make_conninfo("", **{"target_session_attrs": "read-write", **conninfo_to_dict(conninfo)})


def readable(conninfo: str) -> str:
    """Give it for a role that only reads: to libpq a server whose sessions begin read-only is never `read-write`."""
    try:
        wanted = conninfo_to_dict(conninfo).get("target_session_attrs")
    except psycopg.Error:  # told when it is connected to
        return conninfo
    return make_conninfo(conninfo, target_session_attrs="primary") if wanted == "read-write" else conninfo


def login_of(conninfo: str) -> str:
    """Return the user that a connection string names; empty if it names none."""
    try:
        return str(conninfo_to_dict(conninfo).get("user") or "")
    except psycopg.Error:  # told when it is connected to
        return ""


def _turned(words: Sequence[str], shift: int) -> list[str]:
    first = shift % len(words)
    return [*words[first:], *words[:first]]


def _names(parameters: dict[str, Any]) -> list[str]:
    """List the hosts that libpq would have to look up."""
    if parameters.get("hostaddr") or os.environ.get("PGHOSTADDR"):
        return []
    return [host for host in _hosts(parameters) if HOST_NAME.fullmatch(host) and not _is_address(host)]


def _hosts(parameters: dict[str, Any]) -> list[str]:
    return str(parameters.get("host") or os.environ.get("PGHOST", "")).split(",")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(output: bytes) -> list[str]:
    """Give the first word of each line once; `getent ahosts` repeats an address for each socket type."""
    lines = output.decode("ascii", "replace").splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())
