"""Log in to one host with keys, and say what it wants if it takes none. Nobody is there to be asked for anything."""

from collections.abc import Sequence
from typing import Final

import paramiko

from scheduler.errors import WorldError
from scheduler.ssh.keyring import CERTIFIED, Keyring, agent_of, keyring
from scheduler.ssh.known_hosts import HostKeys
from scheduler.ssh.paramiko_io import ParamikoSocket
from scheduler.ssh.routes import Hop
from scheduler.ssh.transport import Transport

KEYS: Final = "publickey"  # the name of the method


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
    agent, problems = agent_of(hop, limit_s)
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
