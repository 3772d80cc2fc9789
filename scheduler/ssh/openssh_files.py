"""Which host keys are trusted: those in known_hosts files, and no others; nobody is asked and nothing is added.

An unknown key is refused, so is one that is not the known one, so is a revoked one, each with a sentence that says
what to look at. Keys vouched for by a certificate authority (@cert-authority) are not: paramiko knows no such keys.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import paramiko

from scheduler.errors import WorldError

RSA: Final = ("rsa-sha2-512", "rsa-sha2-256")  # what an ssh-rsa key signs with


class HostKeys(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """The keys that one host may have; asked by paramiko for each connection, as it knows no keys itself."""

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        self._name, self._files = name, list(files)
        self._keys: list[tuple[str, str]] = []  # type and base64, of this host
        self._revoked: set[str] = set()
        for file in self._files:
            self._read(file)

    def first(self, types: Iterable[str]) -> tuple[str, ...]:
        """Give the algorithms in our order, but those of known keys first: the host may have keys of other types."""
        known = {algorithm for kind, _ in self._keys for algorithm in (RSA if kind == "ssh-rsa" else (kind,))}
        return tuple(sorted(types, key=lambda kind: kind not in known))

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        """Return if the key is trusted. Errors: WorldError."""
        kind, text = key.get_name(), key.get_base64()
        if text in self._revoked:
            raise WorldError(f"its host key ({_print(kind, text)}) is marked as revoked; refused")
        if (kind, text) in self._keys:
            return
        where = " or ".join(map(str, self._files))
        if known := [_print(*pair) for pair in self._keys]:
            raise WorldError(
                f"its host key HAS CHANGED: it is {_print(kind, text)}, known is {', '.join(known)}; refused: somebody"
                f" may stand between; if the host was set up anew, replace its line in {where}"
            )
        raise WorldError(
            f"its host key is unknown ({_print(kind, text)}); refused: compare it with"
            f" `ssh-keygen -l -f /etc/ssh/ssh_host_*_key.pub` on the host, then add it as {self._name} to {where}"
        )

    def _read(self, file: Path) -> None:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorldError(f"cannot read {file}: {error.strerror}") from error
        for line in lines:
            self._take(line.split())

    def _take(self, words: list[str]) -> None:
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            return
        names, kind, text = words[:3]
        if marker:
            self._revoked.add(text)
        elif _is_among(self._name, names.split(",")):
            self._keys.append((kind, text))


def _is_among(name: str, patterns: list[str]) -> bool:
    """Whether a name is one of those of a line: hashed, with * and ?, or excluded by a ! pattern; see sshd(8)."""
    if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("|1|"):
        return _is_hash_of(name, pattern)
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, name, re.IGNORECASE) is not None


def _is_hash_of(name: str, pattern: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _print(kind: str, text: str) -> str:
    """Give a key as ssh-keygen -l does."""
    digest = hashlib.sha256(base64.b64decode(text)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
