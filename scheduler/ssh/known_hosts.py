"""Read known_hosts: the keys that one host may have.

Only host keys that are in these files are trusted: no question is asked and no key is added. Keys that a certificate
authority signed are not (@cert-authority), as paramiko does not ask a host for its certificate. A line that cannot be
read trusts nothing, and is said with its file and number.
"""

import base64
import hashlib
import hmac
import re
from binascii import Error as Base64Error
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import paramiko

from scheduler.errors import WorldError

RSA_ALGORITHMS: Final = ("rsa-sha2-512", "rsa-sha2-256")  # what an ssh-rsa key signs with
MARKERS: Final = ("", "@revoked", "@cert-authority")
MAX_MALFORMED: Final = 3  # lines that a sentence names


class HostKeys:
    """The keys that one host may have.

    `names` are the host as known_hosts has it. ssh(1) looks for [host]:port first, and for the host alone if nothing is
    known under that. `unfollowed` are words of ssh_config(5) by which ssh(1) might trust a key that we do not.
    """

    def __init__(self, names: tuple[str, ...], files: Iterable[Path], unfollowed: Iterable[str] = ()) -> None:
        self._names, self._files, self._unfollowed = names, list(files), list(unfollowed)
        self._keys: dict[str, list[tuple[str, bytes]]] = {name: [] for name in names}  # type and key
        self._revoked: set[bytes] = set()
        self._authorities: list[str] = []  # the lines that trust an authority for this host
        self.malformed: list[str] = []  # lines of no use, each with its file, its number and the reason
        for file in self._files:
            self._read(file)

    def known_first(self, types: Iterable[str]) -> tuple[str, ...]:
        """Return the algorithms in the given order, but those of known keys first: a host may have other keys too."""
        known = {name for kind, _ in self._known() for name in (RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,))}
        return tuple(sorted(types, key=lambda kind: kind not in known))

    def check(self, key: paramiko.PKey) -> None:
        """Return if the key is trusted. Errors: WorldError."""
        kind, blob = key.get_name(), key.asbytes()
        if blob in self._revoked:
            raise WorldError(f"its host key ({_fingerprint(kind, blob)}) is marked as revoked; refused")
        if (kind, blob) in self._known():
            return
        where = " or ".join(map(str, self._files)) or "a file of UserKnownHostsFile"
        if known := [_fingerprint(*pair) for pair in self._keys[self._names[0]]]:
            raise WorldError(
                f"its host key HAS CHANGED: it is {_fingerprint(kind, blob)}, known is {', '.join(known)}; refused:"
                f" the connection may be intercepted; if the host was set up anew, replace its line in {where}"
            )
        raise WorldError(
            f"its host key is unknown ({_fingerprint(kind, blob)}); refused: compare it with"
            f" `ssh-keygen -l -f /etc/ssh/ssh_host_*_key.pub` on the host, then add it as {self._names[0]} to {where}"
            + "".join(f"; {hint}" for hint in self._hints())
        )

    def _known(self) -> list[tuple[str, bytes]]:
        """Return the keys of the first name that has any."""
        return next((keys for keys in self._keys.values() if keys), [])

    def _hints(self) -> Iterable[str]:
        """Yield why ssh(1) may trust a host that we do not."""
        if self._authorities:
            yield f"{', '.join(self._authorities)}: @cert-authority cannot be followed here, the key itself is needed"
        if self._unfollowed:
            yield f"{', '.join(self._unfollowed)}: cannot be followed here, only keys in these files are trusted"
        yield from self.malformed[:MAX_MALFORMED]

    def _read(self, file: Path) -> None:
        try:
            lines = file.read_text(errors="replace").split("\n")
        except FileNotFoundError:
            return
        except OSError as error:
            self.malformed.append(f"cannot read {file}: {error.strerror}")  # as ssh(1), it goes on without
            return
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    self._take(f"{file}:{number}", line.split())
                except ValueError as error:
                    self.malformed.append(f"{file}:{number} is no line of known_hosts: {error}")

    def _take(self, place: str, words: list[str]) -> None:
        """Use one line. Errors: ValueError."""
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker not in MARKERS:
            raise ValueError(f"{marker} is neither @revoked nor @cert-authority")
        if len(words) < 3:
            raise ValueError("it needs names, the type of a key, and the key")
        patterns, kind, blob = words[0].split(","), words[1], _decoded(words[1], words[2])
        if marker == "@revoked":
            self._revoked.add(blob)
        for name in self._names:
            if _is_among(name, patterns) and marker == "@cert-authority":
                self._authorities.append(place)
            elif _is_among(name, patterns) and not marker:
                self._keys[name].append((kind, blob))


def _decoded(kind: str, text: str) -> bytes:
    """Return a key, which begins with its type. Errors: ValueError."""
    try:
        blob = base64.b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise ValueError("its key is no base64") from error
    inner = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
    if inner != kind.encode():
        raise ValueError(f"its key is not of type {kind}")
    return blob


def _is_among(name: str, patterns: list[str]) -> bool:
    """Return whether a name matches the patterns of a line: hashed, with * and ?, or excluded by !; see sshd(8)."""
    if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches one pattern. Errors: ValueError, if that is a hash that cannot be."""
    if not pattern.startswith("|"):
        wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(wild, name, re.IGNORECASE) is not None
    try:
        _, version, salt, digest = pattern.split("|")
        known = [base64.b64decode(part, validate=True) for part in (salt, digest)]
    except ValueError as error:
        raise ValueError("its hashed name is not |1|salt|hash") from error
    if version != "1" or not all(known):
        raise ValueError("its hashed name is not |1|salt|hash")
    return hmac.compare_digest(hmac.digest(known[0], name.lower().encode(), "sha1"), known[1])


def _fingerprint(kind: str, blob: bytes) -> str:
    """Return a key as `ssh-keygen -l` prints it."""
    return f"{kind} SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"
