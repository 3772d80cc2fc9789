"""Log in to one host with keys: which ones there are, in which order they are tried, and what is said if none is taken.

The order is that of ssh(1): certificates that are named; keys of the SSH agent that are named, then its others; then
files. A file may be the public half alone, and the agent have the other. Nobody is there to be asked for anything.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from scheduler.errors import WorldError
from scheduler.ssh.known_hosts import HostKeys
from scheduler.ssh.paramiko_io import ParamikoSocket, Transport
from scheduler.ssh.routes import Hop

KINDS: Final = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
CERTIFIED: Final = "-cert-v01@openssh.com"  # the end of the type of a certificate
KEY_FIELDS: Final = {"ssh-ed25519": 1, "ssh-rsa": 2}  # of a public key, after its type; others have 2
USER_CERTIFICATE: Final = 1
PRIVATE: Final = b"PRIVATE KEY-----"
KEYS: Final = "publickey"


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
    """A key that an agent holds. One that it does not sign with is refused by the server, and the next one is tried."""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        try:
            return bytes(super().sign_ssh_data(data, algorithm))
        except (OSError, paramiko.SSHException):  # raised here, it would end paramiko's thread and the connection
            return b""


class Agent(AgentSSH):  # type: ignore[misc]
    """The keys of an SSH agent at a socket."""

    def __init__(self, path: str, limit_s: float) -> None:
        """Ask it. Errors: OSError, SSHException, ValueError."""
        super().__init__()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(limit_s)
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


def log_in(sock: ParamikoSocket, hop: Hop, host_keys: HostKeys, limit_s: float) -> Transport:
    """Return a transport that is logged in. Errors: WorldError, OSError, EOFError, SSHException."""
    accepted = {name.removesuffix(CERTIFIED) for name in hop.algorithms.get("pubkeyacceptedalgorithms", ())}
    unused = [name for name in Transport._preferred_pubkeys if accepted and name not in accepted]
    transport = Transport(sock, disabled_algorithms={"pubkeys": unused})
    transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = limit_s
    _choose_algorithms(transport, hop, host_keys)
    transport.start_client(timeout=limit_s)
    if not transport.initial_kex_done:
        raise TimeoutError
    _check_host_key(transport, hop, host_keys)
    _authenticate(transport, hop, limit_s)
    return transport


def _choose_algorithms(transport: Transport, hop: Hop, host_keys: HostKeys) -> None:
    """Offer what both paramiko and the configuration have. Errors: WorldError."""
    options = transport.get_security_options()
    options.kex = _common(options.kex, hop, "kexalgorithms", "KexAlgorithms")
    options.digests = _common(options.digests, hop, "macs", "MACs")
    options.key_types = host_keys.known_first(_common(options.key_types, hop, "hostkeyalgorithms", "HostKeyAlgorithms"))
    ciphers = _common(options.ciphers, hop, "ciphers", "Ciphers")
    options.ciphers = sorted(ciphers, key=lambda name: "gcm" not in name)  # others' MAC is in Python
    _common(Transport._preferred_pubkeys, hop, "pubkeyacceptedalgorithms", "PubkeyAcceptedAlgorithms")


def _common(ours: Sequence[str], hop: Hop, word: str, option: str) -> tuple[str, ...]:
    """Return the algorithms that we have, of those that are configured, in their order. Errors: WorldError."""
    wanted = hop.algorithms.get(word, ())
    if not wanted:
        return tuple(ours)
    common = [name for name in wanted if name in ours]
    if word == "pubkeyacceptedalgorithms":
        common = [name for name in wanted if name.removesuffix(CERTIFIED) in ours]
    if not common:
        raise WorldError(
            f"{option} ({','.join(wanted)}) has nothing that can be used here; add one of {','.join(ours)}"
        )
    return tuple(common)


def _check_host_key(transport: Transport, hop: Hop, host_keys: HostKeys) -> None:
    key = transport.get_remote_server_key()
    host_keys.check(key)
    if key.get_name() == "ssh-rsa" and key.get_bits() < hop.rsa_bits:
        raise WorldError(f"its host key has {key.get_bits()} bits, and RequiredRSASize is {hop.rsa_bits}")


# ---- trying the keys


def _authenticate(transport: Transport, hop: Hop, limit_s: float) -> None:
    """Log in with the first key that is accepted. Errors: WorldError, OSError, EOFError, SSHException."""
    methods = _methods(transport, hop.user)
    if transport.is_authenticated():
        return
    if methods and KEYS not in methods:
        others = ", ".join(methods)
        raise WorldError(f"it accepts no keys for {hop.user}, only {others}; only keys can be used here")
    agent, problems = _agent_of(hop, limit_s)
    try:
        ring = keyring(hop, agent.held() if agent else {}, problems)
        _try_keys(transport, hop, ring, methods)
    finally:
        if agent:
            agent.close()


def _methods(transport: Transport, user: str) -> list[str]:
    """Return how it lets a user log in; by this question somebody may be logged in. Errors: as `log_in`."""
    try:
        return list(transport.auth_none(user))
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except paramiko.AuthenticationException as error:
        raise (TimeoutError if transport.is_active() else EOFError) from error


def _try_keys(transport: Transport, hop: Hop, ring: Keyring, methods: list[str]) -> None:
    """Offer one key after another; return when one is accepted. Errors: WorldError, TimeoutError."""
    tried = []
    for each in ring.keys:
        tried.append(each.name)
        try:
            more = transport.auth_publickey(hop.user, each.key)
        except (ValueError, EOFError, OSError, paramiko.SSHException) as error:
            if not transport.is_active():
                raise WorldError(_why_cut_off(tried)) from error
            if "timeout" in str(error).lower():
                raise TimeoutError from error
            if not isinstance(error, paramiko.AuthenticationException):  # which is a refusal
                ring.problems.append(f"{each.name}: {error}")
            continue
        if not more:
            return
        if KEYS not in more:
            raise WorldError(
                f"it wants {' or '.join(more)} after the key ({each.name}), and nobody is there to answer; let its "
                f"AuthenticationMethods accept a key alone for {hop.user}"
            )
    names = ", ".join(tried) or "there is none"
    others = [word for method, word in hop.other_methods.items() if method in methods]
    hints = [*ring.problems, *(f"{word} cannot be followed here, only keys can be used" for word in others)]
    raise WorldError("; ".join([f"none of our keys is accepted ({names})", *hints]))


def _why_cut_off(tried: list[str]) -> str:
    return (
        f"it closed the connection after {', '.join(tried)}: it may permit no more tries (MaxAuthTries); name the key "
        "for it, in `identity` or by IdentityFile with IdentitiesOnly"
    )


# ---- finding the keys


def _agent_of(hop: Hop, limit_s: float) -> tuple[Agent | None, list[str]]:
    """Return the SSH agent for a host, and why there is none though one is named."""
    try:
        return (Agent(hop.agent, limit_s) if hop.agent else None), []
    except (OSError, ValueError, paramiko.SSHException) as error:
        return None, [f"the SSH agent at {hop.agent}: {getattr(error, 'strerror', '') or error}"]


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
        ring.problems.append(f"cannot read {path}: {error.strerror}")
        return b"", None
    is_private = data is not None and PRIVATE in data
    public = _public(f"{path}.pub" if is_private or data is None else path)
    if public in held or _is_certificate(public):
        return public, held.get(public)
    if is_private:
        key, problem = _private(path)
        ring.problems += [problem] if problem else []
        return (key.asbytes(), held.get(key.asbytes(), key)) if key else (public, None)
    if public:
        ring.problems.append(f"{path} has a public key only, and no SSH agent that is asked has the other half")
    else:
        ring.problems.append(f"the key file {path} does not exist" if data is None else f"{path} holds no key")
    return public, None


def _public(path: str) -> bytes:
    """Return the public key of a file; nothing if there is none."""
    with suppress(OSError, ValueError, paramiko.SSHException):
        return bytes(PublicBlob.from_file(path).key_blob)
    return b""


def _private(path: str) -> tuple[paramiko.PKey | None, str]:
    """Return the key of a file, or what is wrong with it."""
    reason = ""
    for kind in KINDS:
        try:
            return kind.from_private_key_file(path), ""
        except paramiko.PasswordRequiredException:
            why = "is protected by a passphrase, and the daemon cannot ask for it; load it into an SSH agent"
            return None, f"{path} {why}"
        except (OSError, ValueError, TypeError, IndexError, paramiko.SSHException) as error:
            reason = str(error)
    return None, f"{path} cannot be used ({reason}); `ssh-keygen -p -f {path}` writes it anew"


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
