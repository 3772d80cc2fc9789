"""The keys for one host: which there are, and in which order they are offered, which is that of ssh(1).

Certificates that are named come first; then keys of the SSH agent that are named, and its others; then files. A file
may be the public half alone, and the agent have the other.
"""

import base64
import os
import socket
import stat
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from scheduler.errors import reason
from scheduler.ssh.connection_troubles import told
from scheduler.ssh.routes import Hop

KINDS: Final = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
CERTIFIED: Final = "-cert-v01@openssh.com"  # the end of the type of a certificate
KEY_FIELDS: Final = {"ssh-ed25519": 1, "ssh-rsa": 2}  # of a public key, after its type; others have 2
USER_CERTIFICATE: Final = 1
PRIVATE: Final = b"PRIVATE KEY-----"
BEGIN: Final = b"-----BEGIN OPENSSH PRIVATE KEY-----"
FORM: Final = b"openssh-key-v1\0"
AGENT_SHARE: Final = 2  # an SSH agent has half the time of a server, so that it is clear which of them was late
OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(slots=True)
class Key:
    """A key that may be offered."""

    name: str  # for people
    key: paramiko.PKey


@dataclass(slots=True)
class Keyring:
    """The keys for one host, and why others of those that are named cannot be used."""

    keys: list[Key] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class HeldKey(AgentKey):  # type: ignore[misc]
    """A key that an SSH agent holds. If the agent does not sign, the server refuses the key and the next is tried."""

    problem = ""  # why it has not signed

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        try:
            return bytes(super().sign_ssh_data(data, algorithm))
        except (OSError, ValueError, paramiko.SSHException) as error:  # raised, it would end paramiko's thread
            self.problem = reason(error)
            return b""


class Agent(AgentSSH):  # type: ignore[misc]
    """The keys of an SSH agent at a socket."""

    def __init__(self, path: str, limit_s: float) -> None:
        """Ask it. Errors: OSError, SSHException, ValueError."""
        super().__init__()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(limit_s / AGENT_SHARE)
            sock.connect(path)
            self._connect(sock)
        except BaseException:
            sock.close()
            raise

    def held(self) -> dict[bytes, HeldKey]:
        """Return its keys by their public half."""
        keys = [HeldKey(self, key.blob, key.comment) for key in self.get_keys()]
        return {key.asbytes(): key for key in keys}

    def close(self) -> None:
        self._close()


def agent_of(hop: Hop, limit_s: float) -> tuple[Agent | None, list[str]]:
    """Return the SSH agent for a host, and why there is none though one is named."""
    try:
        return (Agent(hop.agent, limit_s) if hop.agent else None), []
    except (OSError, ValueError, paramiko.SSHException) as error:
        return None, [f"the SSH agent at {hop.agent}: {reason(error)}"]


def keyring(hop: Hop, held: dict[bytes, HeldKey], problems: list[str]) -> Keyring:
    """Return the keys for a host, in the order in which ssh(1) tries them."""
    ring = Keyring(problems=problems)
    files = {path: _halves(path, held, ring) for path in hop.identities}
    named = {public for public, _ in files.values()}
    signers = {public: key for public, key in files.values() if key} | (held if not hop.only_named else {})
    paths = list(hop.certificates) or [f"{path}-cert.pub" for path in hop.identities]
    paths += [path for path, (public, _) in files.items() if _is_certificate(public)]
    certificates = {
        path: key for path in paths if (key := _certificate(path, bool(hop.certificates), signers, ring)) is not None
    }
    if hop.certificates:
        ring.keys += [Key(path, key) for path, key in certificates.items()]
    ring.keys += [Key(_of_agent(key), key) for public, key in held.items() if public in named]
    ring.keys += [
        Key(_of_agent(key), key) for public, key in held.items() if not hop.only_named and public not in named
    ]
    for path, (public, key) in files.items():
        if key and public not in held:
            ring.keys.append(Key(path, key))
        if not hop.certificates:
            ring.keys += [Key(name, certificates[name]) for name in (f"{path}-cert.pub", path) if name in certificates]
    ring.keys = [each for each in ring.keys if _is_accepted(each.key, hop)]
    return ring


def _of_agent(key: HeldKey) -> str:
    return f"{key.comment or key.get_name()} of the SSH agent"


def _halves(path: str, held: dict[bytes, HeldKey], ring: Keyring) -> tuple[bytes, paramiko.PKey | None]:
    """Return the public half of the key in a file, and what can sign with it."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        ring.problems.append(told("key unreadable", path=path, why=reason(error)))
        return b"", None
    is_private = data is not None and PRIVATE in data
    public = _public(f"{path}.pub" if is_private or data is None else path) or _public_half(data or b"")
    if public in held or _is_certificate(public):
        return public, held.get(public)
    if is_private and (mode := _open_mode(path)):
        ring.problems.append(told("key open", path=path, mode=mode))
        return public, None
    if is_private:
        key, problem = _private(path)
        ring.problems += [problem] if problem else []
        return (key.asbytes(), held.get(key.asbytes(), key)) if key else (public, None)
    if public:
        ring.problems.append(f"{path} has a public key only, and no SSH agent that is asked has the other half")
    else:
        is_missing = data is None
        no_key = told("no private key", path=path, why="it holds no key")
        ring.problems.append(told("key missing", path=path) if is_missing else no_key)
    return public, None


def _public(path: str) -> bytes:
    """Return the public key of a file; nothing if there is none."""
    with suppress(OSError, ValueError, paramiko.SSHException):
        return bytes(PublicBlob.from_file(path).key_blob)
    return b""


def _public_half(data: bytes) -> bytes:
    """Return the public half that a private key of OpenSSH's own form has in clear; nothing for other forms."""
    body = data.partition(BEGIN)[2].partition(b"-----END")[0]
    with suppress(ValueError, paramiko.SSHException):
        blob = base64.b64decode(body)
        if blob.startswith(FORM):
            message = paramiko.Message(blob[len(FORM) :])
            for _ in range(3):  # cipher, derivation of its key, options of that
                message.get_string()
            return bytes(message.get_string()) if message.get_int() == 1 else b""
    return b""


def _open_mode(path: str) -> str:
    """Return the mode of a key file of ours that others may read or write, which ssh(1) does not use; else nothing."""
    with suppress(OSError):
        status = os.stat(path)
        if status.st_uid == os.getuid() and status.st_mode & OPEN_TO_OTHERS:
            return f"{status.st_mode & 0o7777:04o}"
    return ""


def _private(path: str) -> tuple[paramiko.PKey | None, str]:
    """Return the key of a file, or what is wrong with it."""
    why = ""
    for kind in KINDS:
        try:
            return kind.from_private_key_file(path), ""
        except paramiko.PasswordRequiredException:
            return None, told("key locked", path=path)
        except (OSError, ValueError, TypeError, IndexError, paramiko.SSHException) as error:
            why = reason(error)
    return None, told("no private key", path=path, why=why)


# ---- certificates


def _certificate(path: str, is_named: bool, signers: dict[bytes, paramiko.PKey], ring: Keyring) -> paramiko.PKey | None:
    """Return a key that is offered as the certificate of a file, if what signs for it is at hand."""
    try:
        blob = PublicBlob.from_file(path)
        plain, kind = certified_key(blob.key_blob)
    except FileNotFoundError:
        ring.problems += [f"the certificate {path} does not exist"] if is_named else []
        return None
    except (OSError, ValueError, paramiko.SSHException) as error:
        ring.problems.append(f"{path} is no certificate that can be used ({error})")
        return None
    if kind != USER_CERTIFICATE:
        ring.problems.append(f"{path} is a certificate of a host, not of a user")
        return None
    if plain not in signers:
        ring.problems.append(f"{path}: its key is in no file that is named, nor in the SSH agent")
        return None
    signer = signers[plain]
    key = HeldKey(signer.agent, signer.blob, signer.comment) if isinstance(signer, HeldKey) else copy(signer)
    key.public_blob = blob
    return key


def _is_certificate(public: bytes) -> bool:
    return CERTIFIED.encode() in public[:100]


def certified_key(blob: bytes) -> tuple[bytes, int]:
    """Return the public key in a certificate, as bytes, and whom it is for. Errors: ValueError."""
    message = paramiko.Message(blob)
    kind = message.get_text()
    plain = kind.removesuffix(CERTIFIED)
    if plain == kind:
        raise ValueError(f"it is a key of type {kind}")
    message.get_string()  # a random one
    key = paramiko.Message()
    key.add_string(plain)
    for _ in range(KEY_FIELDS.get(plain, 2)):
        key.add_string(message.get_string())
    message.get_int64()  # its serial number
    return key.asbytes(), message.get_int()


def _is_accepted(key: paramiko.PKey, hop: Hop) -> bool:
    """Return whether the configuration permits the type of a key, and an RSA key is long enough."""
    blob = key.public_blob
    kind = blob.key_type if blob else key.get_name()
    if "ssh-rsa" in kind and 0 < key.get_bits() < hop.rsa_bits:
        return False
    wanted = hop.algorithms.get("pubkeyacceptedalgorithms", ())
    kinds = {kind.replace("ssh-rsa", f"rsa-sha2-{bits}") for bits in ("256", "512")}
    return not wanted or not kinds.isdisjoint(wanted)
