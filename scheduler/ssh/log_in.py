"""Log in to one host: the algorithms that are offered, the host key that is checked, and then our keys."""

from collections.abc import Sequence

from scheduler.errors import WorldError
from scheduler.ssh.authentication import authenticate
from scheduler.ssh.keyring import CERTIFIED
from scheduler.ssh.known_hosts import HostKeys
from scheduler.ssh.routes import Hop
from scheduler.ssh.transport import Transport


def unused_keys(hop: Hop) -> dict[str, list[str]]:
    """Return what paramiko is not to sign with, as its `disabled_algorithms`: the configuration leaves it out."""
    accepted = {name.removesuffix(CERTIFIED) for name in hop.algorithms.get("pubkeyacceptedalgorithms", ())}
    return {"pubkeys": [name for name in Transport._preferred_pubkeys if accepted and name not in accepted]}


def log_in(transport: Transport, hop: Hop, host_keys: HostKeys, limit_s: float) -> None:
    """Exchange keys, check that of the host, and log in. Errors: WorldError, OSError, EOFError, SSHException."""
    transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = limit_s
    _choose_algorithms(transport, hop, host_keys)
    transport.start_client(timeout=limit_s)
    if not transport.initial_kex_done:
        raise TimeoutError
    _check_host_key(transport, hop, host_keys)
    authenticate(transport, hop, limit_s)


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
