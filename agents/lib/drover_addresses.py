"""Which addresses a delivery may connect to, and a connection to one that was looked at.

A name is looked up once, and every address that it has must be permitted; the connection goes to one of these, so that
a name cannot mean another address a moment later. The address at the other end is looked at once more.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # an IPv4 address behind a translator


class RefusedError(Exception):
    """An address that no delivery goes to."""


def connect(host: str, port: int, permitted: list[Network], deadline: float) -> socket.socket:
    """Return a socket connected to a permitted address of the host. Raises RefusedError, OSError."""
    trouble: OSError = OSError(f"{host}: no address")
    for address in addresses(host, port, permitted):
        try:
            connected = socket.create_connection((str(address), port), timeout=left(deadline))
        except OSError as error:
            trouble = error
            continue
        try:
            check(ipaddress.ip_address(connected.getpeername()[0]), permitted)
        except RefusedError:
            connected.close()
            raise
        return connected
    raise trouble


def addresses(host: str, port: int, permitted: list[Network]) -> list[Address]:
    """Return the addresses of a host, all permitted. Raises RefusedError, OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # an address of one link has a zone behind a percent sign
    all_of_them = list(dict.fromkeys(ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found))
    for address in all_of_them:
        check(address, permitted)
    return all_of_them


def check(address: Address, permitted: list[Network]) -> None:
    """Raise RefusedError unless the address is public, or in a network that is permitted."""
    for each in meant(address):
        if any(each.version == network.version and each in network for network in permitted):
            return
    for each in meant(address):
        if not each.is_global or each.is_multicast or each.is_reserved or each.is_unspecified:
            raise RefusedError(f"{each} is no public address, and not in a network of --allow")


def meant(address: Address) -> list[Address]:
    """Return where packets to an address go: itself, or the IPv4 addresses that it contains."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address, *([address.sixtofour] if address.sixtofour else []), *(address.teredo or [])]


def left(deadline: float) -> float:
    """Return the seconds up to a deadline of the monotonic clock. Raises TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("out of time")
    return seconds
