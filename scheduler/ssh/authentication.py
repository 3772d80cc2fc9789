"""The log-in to one server: by keys only, in a fixed order. Nobody is there to answer, so nothing is ever asked.

As ssh(1) does, we ask first without a key, which says what the server takes, and then offer one key after the other. A
server may want more than one method (AuthenticationMethods): another key is offered then, anything else is refused with
what it wants. paramiko's own log-in would ask for a second factor on standard output and read standard input.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import paramiko

from scheduler.errors import WorldError
from scheduler.ssh.connection_troubles import listed, told
from scheduler.ssh.keyring import Key, agent_of, keyring
from scheduler.ssh.paramiko_io import BROKEN
from scheduler.ssh.routes import Hop

KEYS: Final = "publickey"
LATE: Final = "Authentication timeout."  # of paramiko
SHUT: Final = "transport shut down"  # of paramiko: the server has closed the connection


def authenticate(transport: paramiko.Transport, hop: Hop, limit_s: float) -> None:
    """Log in with the keys for a hop. Errors: WorldError, with what the server wants; SSHException, OSError."""
    log_in = KeyLogIn(transport, hop.user, hop.other_methods)
    if not (methods := log_in.ask()):
        return
    agent, problems = agent_of(hop, limit_s)
    try:
        ring = keyring(hop, agent.held() if agent else {}, problems)
        log_in.try_keys(ring.keys, ring.problems, methods)
    finally:
        if agent:
            agent.close()


class KeyLogIn:
    """A log-in with keys: what was offered and what the server has said to it."""

    def __init__(self, transport: paramiko.Transport, user: str, other_methods: Mapping[str, str]) -> None:
        """`other_methods` are those that ssh(1) would try too, each with its word of ssh_config(5)."""
        self._transport, self._user, self._other_methods = transport, user, other_methods
        self._refused: list[str] = []
        self._accepted: list[str] = []
        self._unusable: list[str] = []  # a sentence for each

    def ask(self) -> list[str]:
        """Ask without a key how the server lets the user log in; return nothing if it has done so. Errors: as above."""
        methods = self._offer(lambda: self._transport.auth_none(self._user)) or []
        if methods and KEYS not in methods:
            raise WorldError(told("takes no keys", methods=_named(methods), user=self._user))
        return methods

    def try_keys(self, keys: Iterable[Key], problems: list[str], methods: list[str]) -> None:
        """Offer one key after the other until the server wants nothing more; `problems` are of keys that it lacks."""
        self._unusable += problems
        wanted = methods
        for key in keys:
            if not (wanted := self._try(key, wanted)):
                return
        others = [word for method, word in self._other_methods.items() if method in methods]
        self._unusable += [f"{word} cannot be followed here, only keys can be used" for word in others]
        raise WorldError(self._why_not(wanted))

    def _try(self, key: Key, methods: list[str]) -> list[str]:
        """Offer a key; return what the server wants next, nothing if we are in."""
        if _cannot_sign(self._transport, key.key):
            self._unusable.append(told("no signature", path=key.name))
            return methods
        wanted = self._offer(lambda: self._transport.auth_publickey(self._user, key.key), key.name)
        if wanted is None:
            self._refused.append(key.name)
            self._note_refusal(key)
            return methods
        self._accepted.append(key.name)
        if wanted and KEYS not in wanted:
            raise WorldError(self._why_not(wanted))
        return wanted

    def _note_refusal(self, key: Key) -> None:
        """Keep what else than the server may be the reason why a key was refused."""
        if problem := getattr(key.key, "problem", ""):
            self._unusable.append(f"the SSH agent has not signed with {key.name} ({problem}): look at the agent")
        elif key.key.public_blob is not None:
            self._unusable.append(f"{key.name} is a certificate: `ssh-keygen -L -f` prints its dates and principals")

    def _offer(self, call: Callable[[], Any], key: str = "") -> list[str] | None:
        """Return which methods the server wants next, nothing if we are in; None: it has refused this one."""
        try:
            return list(call())
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types) if not key else None
        except BROKEN as error:
            if (
                self._transport.is_active()
                and isinstance(error, paramiko.AuthenticationException)
                and str(error) != LATE
            ):
                return None if key else [KEYS]
            if self._transport.auth_handler is not None and self._transport.auth_handler.is_authenticated():
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


def _cannot_sign(transport: paramiko.Transport, key: paramiko.PKey) -> bool:
    """Return whether the server takes no signature of an RSA key; paramiko would give the connection up."""
    taken = transport.server_extensions.get("server-sig-algs", b"").decode("ascii", "replace").split(",")
    return key.get_name() == "ssh-rsa" and taken != [""] and not {"rsa-sha2-512", "rsa-sha2-256"} & set(taken)


def _named(methods: Iterable[str]) -> str:
    return " or ".join(methods)
