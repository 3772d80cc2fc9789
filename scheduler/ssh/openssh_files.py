"""Read the files of OpenSSH: the route to a host (ssh_config) and the host keys that are trusted (known_hosts).

Host aliases are followed as ssh(1) does; what would run a program (ProxyCommand) is refused rather than ignored. Only
host keys in known_hosts are trusted: no question is asked and no key is added. Keys that a certificate authority signed
are not (@cert-authority), as paramiko does not support them.
"""

import base64
import getpass
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError

SSH_PORT: Final = 22
MAX_JUMPS: Final = 8  # a host that jumps over itself has no end
KNOWN_HOSTS: Final = "~/.ssh/known_hosts /etc/ssh/ssh_known_hosts"
WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH  # who writes an ssh_config chooses the hosts that are reached
RSA_ALGORITHMS: Final = ("rsa-sha2-512", "rsa-sha2-256")  # what an ssh-rsa key signs with


@dataclass(frozen=True, slots=True)
class Hop:
    """One host of a route; the last one is the host itself."""

    address: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[Path, ...]
    identities: tuple[str, ...]
    asks_agent: bool
    looks_for_keys: bool

    def __str__(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"


# ---- ssh_config


def route(settings: SshSettings) -> list[Hop]:
    """Return the hops to a host, by OpenSSH's configuration. Errors: WorldError."""
    _, name, port = _split(settings.address or settings.host)
    config = _ssh_config(Path(settings.ssh_config).expanduser())
    try:
        options = config.lookup(name)
        jumps = _jumps(config, name)
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise WorldError(f"{settings.ssh_config}: {error}") from error
    hops = []
    for jump in jumps:
        jump_user, jump_name, jump_port = _split(jump)
        hops.append(_hop(config.lookup(jump_name), settings, jump_user, jump_port, identity=""))
    return [*hops, _hop(options, settings, settings.user, port, settings.identity)]


def _ssh_config(path: Path) -> paramiko.SSHConfig:
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            is_others = status.st_mode & WRITABLE or status.st_uid not in (0, os.geteuid())
            if is_others and stat.S_ISREG(status.st_mode):  # /dev/null holds nothing that others write
                raise WorldError(
                    f"{path}: others may write to it, or own it; refused, as ssh(1) does: chmod go-w {path}"
                )
            return paramiko.SSHConfig.from_text(file.read())
    except FileNotFoundError:
        return paramiko.SSHConfig()
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise WorldError(f"cannot read {path}: {error}") from error


def _jumps(config: paramiko.SSHConfig, name: str, depth: int = 0) -> list[str]:
    """Return the jumps before a host; the jumps of the first jump come before it."""
    options = config.lookup(name)
    if options.get("proxycommand", "none") not in (None, "none"):
        raise ValueError(f"ProxyCommand of {name} is not supported; use ProxyJump")
    if depth > MAX_JUMPS:
        raise ValueError(f"ProxyJump of {name} has no end")
    jumps = options.get("proxyjump", "none")
    if jumps == "none":
        return []
    first, *others = (word.strip() for word in jumps.split(","))
    return [*_jumps(config, _split(first)[1], depth + 1), first, *others]


def _split(word: str) -> tuple[str, str, str]:
    """Return user, name and port of [ssh://][user@]host[:port]."""
    user, _, rest = word.removeprefix("ssh://").rpartition("@")
    name, _, port = rest.rpartition(":")
    if not name or not port.isdigit() or (":" in name and not name.endswith("]")):  # a bare name, or an IPv6 address
        name, port = rest, ""
    return user, name.strip("[]"), port


def _hop(options: dict[str, Any], settings: SshSettings, user: str, port: str, identity: str) -> Hop:
    address, number = options["hostname"], int(port or options.get("port", SSH_PORT))
    files = settings.known_hosts or options.get("userknownhostsfile") or KNOWN_HOSTS
    plain = address if number == SSH_PORT else f"[{address}]:{number}"
    return Hop(
        address,
        number,
        user or options.get("user") or getpass.getuser(),
        options.get("hostkeyalias") or plain,
        tuple(Path(word).expanduser() for word in files.split()),
        *_identities(options, identity or settings.identity if "identityfile" not in options else identity),
    )


def _identities(options: dict[str, Any], identity: str) -> tuple[tuple[str, ...], bool, bool]:
    """Return the key files, whether the SSH agent is asked, and whether the usual files are tried."""
    if identity == "agent":
        return (), True, False
    if identity:
        return (str(Path(identity).expanduser()),), False, False
    named = [*options.get("identityfile", ()), *options.get("certificatefile", ())]
    paths = [path for path in (str(Path(word).expanduser()) for word in named) if os.path.isfile(path)]
    return tuple(paths), options.get("identitiesonly") != "yes", not named


# ---- known_hosts


class HostKeys(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """The keys that one host may have. paramiko knows none itself, so it asks about each connection's key."""

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        self._name, self._files = name, list(files)
        self._keys: list[tuple[str, str]] = []  # type and base64, of this host
        self._revoked: set[str] = set()
        for file in self._files:
            self._read(file)

    def known_first(self, types: Iterable[str]) -> tuple[str, ...]:
        """Return the algorithms in the given order, but those of known keys first: a host may have other keys too."""
        known = {name for kind, _ in self._keys for name in (RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,))}
        return tuple(sorted(types, key=lambda kind: kind not in known))

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        """Return if the key is trusted. Errors: WorldError."""
        kind, text = key.get_name(), key.get_base64()
        if text in self._revoked:
            raise WorldError(f"its host key ({_fingerprint(kind, text)}) is marked as revoked; refused")
        if (kind, text) in self._keys:
            return
        where = " or ".join(map(str, self._files))
        if known := [_fingerprint(*pair) for pair in self._keys]:
            raise WorldError(
                f"its host key HAS CHANGED: it is {_fingerprint(kind, text)}, known is {', '.join(known)}; refused:"
                f" the connection may be intercepted; if the host was set up anew, replace its line in {where}"
            )
        raise WorldError(
            f"its host key is unknown ({_fingerprint(kind, text)}); refused: compare it with"
            f" `ssh-keygen -l -f /etc/ssh/ssh_host_*_key.pub` on the host, then add it as {self._name} to {where}"
        )

    def _read(self, file: Path) -> None:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorldError(f"cannot read {file}: {error.strerror}") from error
        for words in map(str.split, lines):
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
                continue
            names, kind, text = words[:3]
            if marker:
                self._revoked.add(text)
            elif _is_among(self._name, names.split(",")):
                self._keys.append((kind, text))


def _is_among(name: str, patterns: list[str]) -> bool:
    """Return whether a name matches the patterns of a line: hashed, with * and ?, or excluded by !; see sshd(8)."""
    if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    if not pattern.startswith("|1|"):
        wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(wild, name, re.IGNORECASE) is not None
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _fingerprint(kind: str, text: str) -> str:
    """Return a key as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(text)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
