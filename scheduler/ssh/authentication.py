"""The log-in to one server: by keys only, in a fixed order. Nobody is there to answer, so nothing is ever asked.

As ssh(1) does, we ask first without a key, which says what the server takes, and then offer one key after the other. A
server may want more than one method (AuthenticationMethods): another key is offered then, anything else is refused with
what it wants. paramiko's own log-in would ask for a second factor on standard output and read standard input.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import paramiko

from scheduler.errors import WorldError, reason
from scheduler.ssh.connection_troubles import listed, told
from scheduler.ssh.openssh_files import Hop
from scheduler.ssh.paramiko_io import BROKEN

KEYS: Final = "publickey"
LATE: Final = "Authentication timeout."  # of paramiko
SHUT: Final = "transport shut down"  # of paramiko: the server has closed the connection
USUAL_KEYS: Final = ("id_rsa", "id_ecdsa", "id_ed25519")
KINDS: Final = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


@dataclass(frozen=True, slots=True)
class OfferedKey:
    """A key to log in with: its name for messages, and how it is had. Errors of that: OSError, SSHException."""

    name: str
    load: Callable[[], paramiko.PKey]


class KeyLogIn:
    """Logs in with keys; paramiko calls `authenticate` of what it is given as `auth_strategy`."""

    def __init__(self, user: str, keys: Iterable[OfferedKey]) -> None:
        self._user, self._keys = user, keys
        self._refused: list[str] = []
        self._accepted: list[str] = []
        self._unusable: list[str] = []  # a sentence for each

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Errors: WorldError, with what the server wants; SSHException, OSError."""
        methods = self._offer(transport, lambda: transport.auth_none(self._user))
        if methods and KEYS not in methods:
            raise WorldError(told("takes no keys", methods=_named(methods), user=self._user))
        keys = iter(self._keys)
        while methods and (key := next(keys, None)) is not None:
            methods = self._try(transport, key, methods)
        if methods:
            raise WorldError(self._why_not(methods))

    def _try(self, transport: paramiko.Transport, key: OfferedKey, methods: list[str]) -> list[str]:
        """Offer a key; return what the server wants next, nothing if we are in."""
        try:
            loaded = key.load()
        except (OSError, ValueError, paramiko.SSHException) as error:
            self._unusable.append(_why_unusable(key.name, error))
            return methods
        if _cannot_sign(transport, loaded):
            self._unusable.append(told("no signature", path=key.name))
            return methods
        wanted = self._offer(transport, lambda: transport.auth_publickey(self._user, loaded), key.name)
        if wanted is None:
            self._refused.append(key.name)
            return methods
        self._accepted.append(key.name)
        if wanted and KEYS not in wanted:
            raise WorldError(self._why_not(wanted))
        return wanted

    def _offer(self, transport: paramiko.Transport, call: Callable[[], Any], key: str = "") -> list[str] | None:
        """Return which methods the server wants next, nothing if we are in; None: it has refused this one."""
        try:
            return list(call())
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types) if not key else None
        except BROKEN as error:
            if transport.is_active() and isinstance(error, paramiko.AuthenticationException) and str(error) != LATE:
                return None if key else [KEYS]
            if transport.auth_handler is not None and transport.auth_handler.is_authenticated():
                raise WorldError(told("cut off")) from error
            is_shut = SHUT in str(error) or isinstance(error, (EOFError, ConnectionError))
            if is_shut and key:
                raise WorldError(told("too many keys", keys=listed([*self._refused, key]))) from error
            if is_shut:
                raise EOFError from error
            raise

    def _why_not(self, wanted: list[str]) -> str:
        """Return why we are not in, after all keys or the first that is not enough."""
        if self._accepted:
            methods = "another key" if wanted == [KEYS] else _named(wanted)
            return told("wants more", keys=listed(self._accepted), methods=methods, user=self._user)
        also = "".join(f"; {each}" for each in self._unusable)
        if self._refused:
            return told("permission denied", keys=listed(self._refused), user=self._user) + also
        return also.removeprefix("; ") or told("no key")


def keys_of(hop: Hop) -> Iterator[OfferedKey]:
    """Yield the keys for a hop, in the order in which they are offered: named files, the agent's, the usual files."""
    for path in hop.identities:
        yield OfferedKey(path, partial(load_key, path))
    if hop.asks_agent:
        for number, key in enumerate(paramiko.Agent().get_keys(), 1):
            yield OfferedKey(f"{getattr(key, 'comment', '') or number} of the SSH agent", partial(_loaded, key))
    for name in USUAL_KEYS if hop.looks_for_keys else ():
        path = os.path.expanduser(f"~/.ssh/{name}")
        if os.path.isfile(path):
            yield OfferedKey(path, partial(load_key, path))


def _loaded(key: paramiko.PKey) -> paramiko.PKey:
    return key


def load_key(path: str) -> paramiko.PKey:
    """Return the private key in a file, with the certificate beside it. Errors: OSError, SSHException, ValueError."""
    private = path.removesuffix("-cert.pub")
    for kind in KINDS:
        try:
            key = kind.from_private_key_file(private)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError) as error:
            problem = error
            continue
        if os.path.isfile(f"{private}-cert.pub"):
            key.load_certificate(f"{private}-cert.pub")
        return key
    raise problem


def _cannot_sign(transport: paramiko.Transport, key: paramiko.PKey) -> bool:
    """Return whether the server takes no signature of an RSA key; paramiko would give the connection up."""
    taken = transport.server_extensions.get("server-sig-algs", b"").decode("ascii", "replace").split(",")
    return key.get_name() == "ssh-rsa" and taken != [""] and not {"rsa-sha2-512", "rsa-sha2-256"} & set(taken)


def _why_unusable(path: str, error: Exception) -> str:
    match error:
        case paramiko.PasswordRequiredException():
            return told("key locked", path=path)
        case FileNotFoundError():
            return told("key missing", path=path)
        case OSError():
            return told("key unreadable", path=path, why=reason(error))
    return told("no private key", path=path, why=reason(error))


def _named(methods: Iterable[str]) -> str:
    return " or ".join(methods)
