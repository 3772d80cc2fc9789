"""Why a host cannot be reached, as the operator reads it: each trouble with its sentence and what to do next.

The table has every trouble that was met, the functions below tell which it is. No reason is ever empty: what a library
raises may have no text at all (EOFError, TimeoutError), so its type stands for it. The troubles with host keys are with
the reader of known_hosts (known_hosts.py).
"""

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import reason
from scheduler.ssh.remote_scripts import shown
from scheduler.ssh.routes import Hop

PROHIBITED: Final = 1  # codes of ChannelException, RFC 4254 5.1
LISTED: Final = 8  # algorithms of each side in a message
FIELD_CHARACTERS: Final = 1000  # of what is put into a sentence

# By name: what is wrong, and what to do next. drover(8) lists them: a test compares.
TROUBLES: Final[dict[str, tuple[str, str]]] = {
    # ---- the way there
    "name": (
        "its name cannot be resolved ({why})",
        "correct the address; `getent ahosts {address}` must print one",
    ),
    "refused": (
        "nothing listens there ({why})",
        "start sshd on the host, or correct its port",
    ),
    "no route": (
        "there is no way to it ({why})",
        "check its address, and the routes and firewalls to it",
    ),
    "no answer": (
        "no answer within {seconds:g} s",
        "check that the host is up, and that no firewall drops packets to {address} port {port}",
    ),
    "not ssh": (
        "what listens there is no SSH server: it said {text}",
        "correct the port",
    ),
    "silent": (
        "it takes the connection and says nothing for {seconds:g} s",
        "it is no SSH server, so correct the port; or it hangs",
    ),
    "closed": (
        "it closed the connection before the log-in{said}",
        "the log of its sshd says why: too many log-ins at once (MaxStartups), a penalty, or a rule for our address",
    ),
    "algorithms": (
        "no common {kind}: it offers {theirs}; we know {ours}",
        "allow one of ours in its sshd_config ({option})",
    ),
    "late": (
        "it is not connected after {seconds:g} s, while {what}",
        "its sshd hangs or is slow, then its log may say more; or a file on this side blocks whoever reads it",
    ),
    "other": (
        "the connection cannot be made ({why})",
        "the log of its sshd may say more",
    ),
    "not forwarded": (
        "the host before it does not let us through ({why})",
        "allow it in the sshd_config of that host: AllowTcpForwarding, PermitOpen, DisableForwarding",
    ),
    "not reached from there": (
        "the host before it does not reach it ({why})",
        "try `nc -z {address} {port}` on that host",
    ),
    # ---- the log-in
    "no key": (
        "there is no key to log in with",
        "name a key file by `identity`, or load one into the SSH agent that SSH_AUTH_SOCK of the daemon names",
    ),
    "key missing": (
        "the key file {path} does not exist",
        "correct `identity`, or make it with ssh-keygen",
    ),
    "key locked": (
        "the key file {path} is protected by a passphrase, and the daemon cannot ask for it",
        "load it into an SSH agent, or use another key",
    ),
    "key unreadable": (
        "the key file {path} cannot be read ({why})",
        "give it to the account of the daemon, with mode 600",
    ),
    "key open": (
        "the key file {path} may be read by others (mode {mode}), so it is not used, as by ssh(1)",
        "chmod 600 {path}",
    ),
    "no private key": (
        "the key file {path} is no private key that we can use ({why})",
        "use one of type ed25519, ecdsa or rsa",
    ),
    "no signature": (
        "it takes no signature of the RSA key {path}",
        "use a key of type ed25519, or allow rsa-sha2-512 in its sshd_config (PubkeyAcceptedAlgorithms)",
    ),
    "permission denied": (
        "none of our keys is accepted ({keys})",
        "add one of them to ~/.ssh/authorized_keys of {user} there; the log of its sshd says more, as of an account"
        " that is locked or whose shell does not exist",
    ),
    "too many keys": (
        "it closed the connection while we offered keys ({keys})",
        "name the right one by `identity`, or by IdentityFile with IdentitiesOnly: sshd ends a connection after"
        " MaxAuthTries; its log says more",
    ),
    "takes no keys": (
        "it takes no keys, but {methods}, and nobody is here to answer",
        "set PubkeyAuthentication yes and AuthenticationMethods publickey in its sshd_config, by Match User {user}",
    ),
    "wants more": (
        "it accepts {keys}, but wants {methods} as well, and nobody is here to answer",
        "exempt the account in its sshd_config: Match User {user}, AuthenticationMethods publickey",
    ),
    # ---- the control session
    "no session": (
        "it opens no session ({why})",
        "its sshd_config must allow them: MaxSessions is not 0",
    ),
    "no commands": (
        "it refuses to run a command ({why})",
        "let {who} run commands: it may be an account for file transfers only",
    ),
    "no shell": (
        "it printed {text} and ended",
        "{who} needs a POSIX shell; or a login script of {who} exits, prints without end, or runs another command than"
        " ours, as ForceCommand does",
    ),
    "unsuitable": (
        "our script cannot run there: {text}",
        "correct that for {who}; its login scripts may have changed what programs find",
    ),
    "ended": (
        "its shell ended without a word",
        "a login script of {who} may end it, or its shell is none, such as /bin/false",
    ),
    "cut off": (
        "it closed the connection after the log-in",
        "the log of its sshd says why, as of a ChrootDirectory that others may write to",
    ),
    "waits": (
        "no answer within {seconds:g} s though it has logged us in",
        "a login script of {who} may wait for something, or a ForceCommand, such as sftp-server",
    ),
    "printed and waits": (
        "it printed {text} and not the reply of our script within {seconds:g} s",
        "a login script of {who} exits, prints without end, or runs another command than ours, or waits",
    ),
    "prints without end": (
        "it printed {text} and more, over {kib} KiB without the reply of our script",
        "a login script of {who} exits, prints without end, or runs another command than ours; or ForceCommand does",
    ),
}

# By a word of paramiko's message: what it is called, the list in a KEXINIT, our list, and its line in sshd_config(5).
ALGORITHMS: Final = {
    "kex": ("key exchange", "kex_algo_list", "kex", "KexAlgorithms"),
    "host key": ("type of host key", "server_key_algo_list", "key_types", "HostKeyAlgorithms, HostKey"),
    "ciphers": ("cipher", "client_encrypt_algo_list", "ciphers", "Ciphers"),
    "macs": ("MAC", "client_mac_algo_list", "digests", "MACs"),
    "compression": ("compression", "client_compress_algo_list", "compression", "Compression"),
}
NO_ALGORITHM: Final = ("ext-info-", "kex-strict-")  # in the list of key exchanges
BAD_VERSION: Final = "Error reading SSH protocol banner"  # of paramiko
# What paramiko says when a server has not answered.
LATE: Final = ("No existing session", "Timeout opening channel.", "Authentication timeout.")
REFUSALS: Final = ("MaxStartups", "Not allowed at this time")  # lines of an sshd that closes the connection
NO_WAY: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES})


def told(trouble: str, **words: object) -> str:
    """Return the sentence of a trouble and what to do next; what a server says may be long, and any text."""
    sentence, next_step = TROUBLES[trouble]
    plain = {name: _plain(word) if isinstance(word, str) else word for name, word in words.items()}
    return f"{sentence.format_map(plain)}: {next_step.format_map(plain)}"


def _plain(text: str) -> str:
    """Return the beginning of a text, without control characters."""
    first = text if len(text) <= FIELD_CHARACTERS else f"{text[:FIELD_CHARACTERS]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in first)


def text_of(error: Exception) -> str:
    """Return what an error of paramiko or the operating system says."""
    return str(getattr(error, "text", "")) or reason(error)


def who(settings: SshSettings) -> str:
    """Return the account by which a host is reached, for messages."""
    return f"{settings.user}@{settings.host}" if settings.user else f"the account on {settings.host}"


def listed(words: Iterable[str]) -> str:
    """Return the first words of a list, and how many more there are."""
    first, more = list(words)[:LISTED], len(list(words)) - LISTED
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Heard:
    """What a server has said before the log-in."""

    lines: list[str] = field(default_factory=list)  # before its version
    version: str = ""
    algorithms: dict[str, list[str]] = field(default_factory=dict)  # as paramiko names the lists of a KEXINIT


def why_not_connected(error: Exception, hop: Hop, connect_s: float, transport: Any) -> str:
    """Return why there is no connection to a hop; `transport` is a HeardTransport, or None if it came to none."""
    heard = Heard() if transport is None else transport.heard
    words = {"address": hop.address, "port": hop.port, "user": hop.user, "seconds": connect_s, "why": text_of(error)}
    words["said"] = f", and said {_shown(heard)}" if heard.lines else ""
    match error:
        case paramiko.ChannelException(code=code):
            return told("not forwarded" if code == PROHIBITED else "not reached from there", **words)
        case paramiko.ssh_exception.IncompatiblePeer() if heard.algorithms:
            return _no_common_algorithm(str(error), heard, transport.get_security_options())
        case paramiko.SSHException() if BAD_VERSION in str(error) or not heard.version:
            return _why_no_ssh(error, heard, words)
        case paramiko.SSHException():
            return told("no answer" if str(error) in LATE else "other", **words)
        case TimeoutError() if transport is not None and not heard.version:
            return told("silent", **words)
    return told(_trouble_of(error), **words)


def _trouble_of(error: Exception) -> str:
    """Return the name of the trouble that a call of the operating system has met."""
    match error:
        case socket.gaierror():
            return "name"
        case TimeoutError():
            return "no answer"
        case OSError(errno=errno.ECONNREFUSED):
            return "refused"
        case OSError() if error.errno in NO_WAY:
            return "no route"
        case EOFError() | ConnectionError():
            return "closed"
    return "other"


def _why_no_ssh(error: Exception, heard: Heard, words: dict[str, Any]) -> str:
    """Return why no version came; paramiko has the cause as context."""
    if str(error) in LATE and not heard.lines:
        return told("silent", **words)
    is_closed = isinstance(error.__context__, (EOFError, ConnectionError))
    is_sshd = not heard.lines or any(word in line for word in REFUSALS for line in heard.lines)
    if is_closed and is_sshd:
        return told("closed", **words)
    return told("not ssh", text=_shown(heard)) if heard.lines else told("silent", **words)


def _shown(heard: Heard) -> str:
    return shown("\n".join(heard.lines).encode())


def _no_common_algorithm(message: str, heard: Heard, options: Any) -> str:
    found = next((each for word, each in ALGORITHMS.items() if f"acceptable {word}" in message), None)
    if found is None:
        return told("other", why=message)
    kind, theirs, ours, option = found
    offered = [each for each in heard.algorithms[theirs] if not each.startswith(NO_ALGORITHM)]
    return told("algorithms", kind=kind, option=option, theirs=listed(offered), ours=listed(getattr(options, ours)))
