"""Which addresses a delivery may connect to, and a connection to one that was looked at.

A name is looked up once, and every address that it has must be permitted; the connection goes to one of these, so that
a name cannot mean another address a moment later. The address at the other end is looked at once more. No proxy of the
environment is used: what a proxy connects to could not be looked at.

Which addresses are public is a list of our own, since the properties of Python's ipaddress differ between releases:
all blocks of IANA's registries of special-purpose addresses (IPv4 and IPv6, as of November 2026) that are not globally
reachable, the blocks for multicast, and the address at which a cloud serves each of its machines. Two blocks are
refused with the parts of them that the registries call globally reachable, 192.0.0.0/24 and 2001::/23: these parts are
anycast addresses of the nearest server and identifiers of hosts; no webhook is there.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NOT_PUBLIC_V4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network, and this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by the customers of a provider
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # in no registry: the wire server of Azure, for each of its machines
        "169.254.0.0/16",  # link-local; 169.254.169.254 serves the secrets of a machine in many clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocols of the IETF
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
GLOBAL_UNICAST = IPv6Network("2000::/3")  # all IPv6 addresses that are given to anybody; of these not:
NOT_PUBLIC_V6 = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # protocols of the IETF: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, deprecated: an IPv4 address behind whatever relay is next
        "3fff::/20",  # documentation
    )
)
MAPPED = IPv6Network("::ffff:0:0/96")  # an IPv4 address, which the socket connects to
NAT64 = IPv6Network("64:ff9b::/96")  # an IPv4 address behind a translator


class RefusedError(Exception):
    """An address that no delivery goes to."""


def connect(host: str, port: int, permitted: list[Network], deadline: float) -> socket.socket:
    """Return a socket connected to a permitted address of the host. Raises RefusedError, OSError, ValueError."""
    trouble: OSError = OSError(f"{host[:200]}: no address")
    for address in addresses(host, port, permitted):
        try:
            connected = socket.create_connection((str(address), port), timeout=left(deadline))
        except OSError as error:
            trouble = error
            continue
        try:
            check(_plain(connected.getpeername()[0]), permitted)
        except RefusedError:
            connected.close()
            raise
        return connected
    raise trouble


def addresses(host: str, port: int, permitted: list[Network]) -> list[Address]:
    """Return the addresses of a host, all permitted. Raises RefusedError, OSError, ValueError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    all_of_them = list(dict.fromkeys(_plain(each[4][0]) for each in found))
    for address in all_of_them:
        check(address, permitted)
    return all_of_them


def check(address: Address, permitted: list[Network]) -> None:
    """Raise RefusedError unless the address is public, or in a network that is permitted."""
    reached = meant(address)
    if any(reached.version == network.version and reached in network for network in permitted):
        return
    if not is_public(reached):
        raise RefusedError(f"{reached} is no public address, and not in a network of --allow")


def is_public(address: Address) -> bool:
    """Return whether anybody on the Internet may have the address."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    return address in GLOBAL_UNICAST and not any(address in network for network in NOT_PUBLIC_V6)


def meant(address: Address) -> Address:
    """Return where packets to an address go: itself, or the IPv4 address that it contains."""
    if isinstance(address, IPv6Address) and (address in MAPPED or address in NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def left(deadline: float) -> float:
    """Return the seconds up to a deadline of the monotonic clock. Raises TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("out of time")
    return seconds


def _plain(text: str | int) -> Address:
    """Return an address without the zone behind a percent sign, which an address of one link has."""
    return ipaddress.ip_address(str(text).partition("%")[0])
