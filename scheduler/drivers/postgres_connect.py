"""Connecting to Postgres, and cancelling a statement, in steps that never block.

libpq connects without blocking except for the look-up of a host name; so `getent` does that, behind a pipe, and libpq
is given addresses. A host that comes from a service file is not seen here: give such a service its hostaddr.
"""

import ipaddress
import os
import re
import subprocess
from itertools import zip_longest
from select import EPOLLIN, EPOLLOUT
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.drivers.sql import one_line
from scheduler.drivers.steps import Steps, ready
from scheduler.errors import WorldError

CONNECT_LIMIT_S: Final = 15.0
READ_BYTES: Final = 65_536
RESOLVERS: Final = frozenset(("PATH", "LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES"))  # resolv.conf(5), hostname(7)
EVENTS: Final[dict[int, int]] = {pq.PollingStatus.READING: EPOLLIN, pq.PollingStatus.WRITING: EPOLLOUT}
HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

# What the operator's connection string may override. A silent network is noticed within half a minute.
DEFAULTS: Final[dict[str, Any]] = {
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class UnreachableError(WorldError):
    """An attempt to connect failed."""


def connect(name: str, conninfo: str, deadline: float, shift: int = 0) -> Steps[pq.abc.PGconn]:
    """Connect and return the connection. Errors: UnreachableError, which says why.

    `shift` is how many of several servers are passed over at first.
    """
    try:
        parameters = {**DEFAULTS, "fallback_application_name": f"drover {name}", **conninfo_to_dict(conninfo)}
        addresses: dict[str, list[str]] = {}
        for host in _names(parameters):
            if host not in addresses:
                addresses[host] = yield from look_up(host, deadline)
        if not any(addresses.get(host, [""]) for host in _hosts(parameters)):
            raise UnreachableError(", ".join(f"host {host!r} has no address" for host in addresses))
        return (yield from _connect(rotated(with_addresses(parameters, addresses), shift), deadline))
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {CONNECT_LIMIT_S:.0f} s") from error
    except psycopg.ProgrammingError as error:
        raise UnreachableError(f"connection string: {one_line(str(error))}") from error


def _connect(parameters: dict[str, Any], deadline: float) -> Steps[pq.abc.PGconn]:
    pg = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    try:
        if pg.status == pq.ConnStatus.BAD:
            raise UnreachableError(pg.get_error_message())
        state: int = pq.PollingStatus.WRITING
        while state in EVENTS:
            # libpq may close the descriptor and open another one under the same number: `ready` forgets it each time
            yield from ready(pg.socket, EVENTS[state], deadline)
            state = pg.connect_poll()
        if state != pq.PollingStatus.OK:
            raise UnreachableError(pg.get_error_message())
    except BaseException:
        pg.finish()
        raise
    return pg


def cancel(pg: pq.abc.PGconn) -> Steps[None]:
    """Ask the server to cancel the running statement; the caller drops the connection if nothing comes of it."""
    request = pg.cancel_conn()
    try:
        request.start()
        state: int = pq.PollingStatus.WRITING
        while state in EVENTS:
            yield from ready(request.socket, EVENTS[state])  # at its end libpq has closed it
            state = request.poll()
    except psycopg.Error:
        return
    finally:
        request.finish()


def look_up(name: str, deadline: float, program: str = "getent") -> Steps[list[str]]:
    """Return the addresses of a host name, which a child process asks of the system's resolver.

    Where there is no such program, libpq looks the name up itself, and may block. Errors: TimeoutError.
    """
    none = subprocess.DEVNULL
    environment = {name: text for name, text in os.environ.items() if name in RESOLVERS}  # no password of ours
    try:
        child = subprocess.Popen(
            [program, "ahosts", name], stdin=none, stdout=subprocess.PIPE, stderr=none, bufsize=0, env=environment
        )
    except OSError:
        return [""]
    assert child.stdout is not None
    output, data = b"", b"begin"
    try:
        while data:
            yield from ready(child.stdout.fileno(), EPOLLIN, deadline)
            output += (data := os.read(child.stdout.fileno(), READ_BYTES))
    finally:
        child.stdout.close()
        child.kill()
        child.wait()
    return _addresses(output)


def with_addresses(parameters: dict[str, Any], addresses: dict[str, list[str]]) -> dict[str, Any]:
    """Return connection parameters with `hostaddr` for each looked-up host; a name with two addresses stands twice."""
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
    columns = zip(("host", "hostaddr", "port"), zip(*tries, strict=True), strict=True)
    lists = {key: ",".join(column) for key, column in columns}
    return parameters | {key: text for key, text in lists.items() if key == "host" or text.strip(",")}


def rotated(parameters: dict[str, Any], shift: int) -> dict[str, Any]:
    """Return them with the servers in another order: one that accepts and then is silent must not bar the others.

    libpq goes from one to the next by itself, but for that case: its own time limit does not hold while we wait.
    """
    lists = {key: str(parameters[key]).split(",") for key in ("host", "hostaddr", "port") if parameters.get(key)}
    starts = {key: shift % len(values) for key, values in lists.items() if len(values) > 1}
    return parameters | {key: ",".join(lists[key][start:] + lists[key][:start]) for key, start in starts.items()}


def writable(conninfo: str) -> str:
    """Return a connection string for a server that can be written to, unless it says otherwise itself.

    So a daemon follows its primary to another server, and waits while there is none.
    """
    return make_conninfo("", **{"target_session_attrs": "read-write", **conninfo_to_dict(conninfo)})


def readable(conninfo: str) -> str:
    """Return it for a role that only reads: to libpq a server whose sessions begin read-only is never `read-write`."""
    try:
        wanted = conninfo_to_dict(conninfo).get("target_session_attrs")
    except psycopg.Error:  # `connect` reports it
        return conninfo
    return make_conninfo(conninfo, target_session_attrs="primary") if wanted == "read-write" else conninfo


def with_parameters(conninfo: str, **parameters: str) -> str:
    """Return a connection string with other parameters, as `user`."""
    return make_conninfo(conninfo, **parameters)


def is_same_server(conninfo: str, other: str) -> bool:
    """Return whether two connection strings name one server."""
    ours, theirs = conninfo_to_dict(conninfo), conninfo_to_dict(other)
    return all(ours.get(key) == theirs.get(key) for key in ("service", "host", "hostaddr", "port"))


def login_of(conninfo: str) -> str:
    """Return the user that a connection string names; empty if it names none."""
    try:
        return str(conninfo_to_dict(conninfo).get("user") or "")
    except psycopg.Error:  # `connect` reports it
        return ""


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
    """Return the first word of each line once; `getent ahosts` repeats an address for each socket type."""
    lines = output.decode("ascii", "replace").splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
