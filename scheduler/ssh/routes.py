"""The route to a host: each machine on the way, where it is, who we are there, and whom we trust to be it.

It is what ssh(1) would do. A jump host is a host of its own: ssh(1) runs another `ssh -W` for it, which reads what the
configuration has for its name, and so on to the first. What cannot be followed is refused before anything connects.
"""

import os
import pwd
import re
import shutil
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scheduler.drivers.home_directory import expanded
from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.config_words import (
    ALGORITHMS,
    Configuration,
    Options,
    is_on,
    other_methods,
    refusals,
    trusting,
    value,
)
from scheduler.ssh.openssh_config import NotOpenSshError, OpenSshConfig, at
from scheduler.ssh.own_config import SYSTEM_FILE, OwnConfig

SSH_PORT: Final = 22
MAX_HOPS: Final = 9
USERS_FILE: Final = "~/.ssh/config"  # and then the system's, as ssh(1) does; another file stands for both
WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH  # who writes an ssh_config chooses the hosts that are reached
FAMILIES: Final = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
AGENT_VARIABLE: Final = "SSH_AUTH_SOCK"
TOKEN: Final = re.compile(r"%(.?)|\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Hop:
    """One machine of a route; the last one is the host itself. What is empty is not said, and left to paramiko."""

    address: str
    port: int
    user: str
    known_as: tuple[str, ...]  # the names that its keys may have in known_hosts, the first one first
    known_hosts: tuple[Path, ...]
    trusting: tuple[str, ...]  # words by which ssh(1) may trust it without that
    identities: tuple[str, ...]  # files
    certificates: tuple[str, ...]  # files
    agent: str  # the socket of an SSH agent
    only_named: bool  # of the keys of the agent those in `identities`
    other_methods: Mapping[str, str]  # of logging in, that ssh(1) would try: method -> word
    algorithms: Mapping[str, tuple[str, ...]]  # by word, in the order of ssh(1)
    rsa_bits: int  # an RSA key has at least
    family: int
    bind_address: str

    def __str__(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    def connected(self, limit_s: float) -> socket.socket:
        """Return a socket that is connected to it. Errors: OSError."""
        found = socket.getaddrinfo(self.address, self.port, self.family, socket.SOCK_STREAM)
        for *_, place in found[:-1]:
            with suppress(OSError):
                return self._connected(str(place[0]), limit_s)
        return self._connected(str(found[-1][-1][0]), limit_s)

    def _connected(self, address: str, limit_s: float) -> socket.socket:
        source = (self.bind_address, 0) if self.bind_address else None
        return socket.create_connection((address, self.port), limit_s, source)


@dataclass(frozen=True, slots=True)
class Target:
    """What one ssh(1) of a route is run for."""

    name: str
    user: str = ""
    port: str = ""
    jumps: str = ""  # -J
    beyond: str = ""  # -W: what is reached through it


def route(settings: SshSettings) -> list[Hop]:
    """Return the hops to a host, by OpenSSH's configuration. Errors: WorldError; within `connect_s`."""
    user, name, port = _split(settings.address or settings.host)
    config, home = _configuration(settings)
    hops: list[Hop] = []
    target, seen = Target(name, settings.user or user, port), list[Target]()
    while True:
        seen.append(target)
        options = _options(config, target)
        hops.insert(0, _hop(options, target, settings, home, _has_usual_keys(config, options)))
        if not (jumps := value(options, "proxyjump")):
            return hops
        others, _, last = jumps.rpartition(",")
        user, name, port = _split(last.strip())
        beyond = f"[{hops[0].address}]:{hops[0].port}"
        target = Target(name, user, port, others.strip(), beyond)
        if len(hops) >= MAX_HOPS or any(_is_same(target, each) for each in seen):
            names = " -> ".join(each.name for each in (*seen, target))
            raise WorldError(f"{at(config.places('proxyjump'))}ProxyJump of {seen[0].name} has no end: {names}")


def _is_same(one: Target, other: Target) -> bool:
    """Return whether both are reached by the same way."""
    return replace(one, beyond="") == replace(other, beyond="")


def _configuration(settings: SshSettings) -> tuple[Configuration, str]:
    """Return the reader of the configuration, and the home that ssh(1) takes. Errors: WorldError."""
    try:
        us = pwd.getpwuid(os.getuid())
        home, user = us.pw_dir, us.pw_name
    except KeyError:  # ssh(1) refuses to run
        home, user = os.environ.get("HOME", "/"), settings.user or str(os.getuid())
        us = None
    is_usual = settings.ssh_config == USERS_FILE
    path = _expanded(USERS_FILE, {}, home) if is_usual else str(Path(expanded(settings.ssh_config)))
    _check_owner(path)
    file = "" if is_usual else path if os.path.exists(path) else os.devnull
    program = shutil.which("ssh")
    if program and us is not None:
        try:
            return OpenSshConfig(program, file, settings.connect_s), home
        except NotOpenSshError:
            pass
    return OwnConfig((file,) if file else (path, SYSTEM_FILE), home, user), home


def _check_owner(path: str) -> None:
    """Refuse a file that others may write to, as ssh(1) does. Errors: WorldError."""
    try:
        status = os.stat(path)
    except OSError:
        return  # which who reads it says
    if not stat.S_ISREG(status.st_mode):  # /dev/null holds nothing that others write
        return
    if status.st_uid not in (0, os.geteuid()):
        raise WorldError(f"{path}: it is another user's; refused, as ssh(1) does: chown it to the user of the daemon")
    if status.st_mode & WRITABLE:
        raise WorldError(f"{path}: others may write to it; refused, as ssh(1) does: chmod go-w {path}")


def _options(config: Configuration, target: Target) -> Options:
    """Return the options of a target, all of which are followed. Errors: WorldError."""
    if target.name.startswith("-") or not target.name:
        raise WorldError(f"{target.name!r} is no name of a host")
    options = config.options(target.name, target.user, target.port, target.jumps, target.beyond)
    refused = [
        f"{at(config.places(word.lower()))}{word} of {target.name} cannot be followed: {advice}"
        for word, advice in refusals(options, config.usual, is_jump=bool(target.beyond))
    ]
    if refused:
        raise WorldError("; ".join(refused))
    return options


def _has_usual_keys(config: Configuration, options: Options) -> bool:
    return options.get("identityfile") == config.usual.get("identityfile")


def _split(word: str) -> tuple[str, str, str]:
    """Return user, name and port of [ssh://][user@]host[:port]."""
    user, _, rest = word.removeprefix("ssh://").rpartition("@")
    name, _, port = rest.rpartition(":")
    if not name or not port.isdigit() or (":" in name and not name.endswith("]")):  # a bare name, or an IPv6 address
        name, port = rest, ""
    return user, name.strip("[]"), port


def _hop(options: Options, target: Target, settings: SshSettings, home: str, has_usual_keys: bool) -> Hop:
    address, port, user = options["hostname"][0], int(options["port"][0]), options["user"][0]
    alias = value(options, "hostkeyalias")
    tokens = _tokens(target, address, port, user, alias, home)
    plain = (address,) if port == SSH_PORT else (f"[{address}]:{port}", address)
    identity = settings.identity if not target.beyond or has_usual_keys else ""
    identities, certificates = (
        tuple(_file(word, text, tokens, home) for text in options.get(word.lower(), ()) if text.lower() != "none")
        for word in ("IdentityFile", "CertificateFile")
    )
    if has_usual_keys:
        identities = tuple(path for path in identities if os.path.exists(path) or os.path.exists(f"{path}.pub"))
    is_file = identity not in ("", "agent")
    named = str(Path(expanded(identity))).removesuffix("-cert.pub")  # a certificate stands beside its key
    return Hop(
        address,
        port,
        user,
        (alias,) if alias else plain,
        _known_hosts(options, settings.known_hosts, home),
        () if settings.known_hosts else tuple(trusting(options)),
        (named,) if is_file else () if identity else identities,
        certificates,
        _agent(options, tokens, home) or (os.environ.get(AGENT_VARIABLE, "") if identity == "agent" else ""),
        is_file or (is_on(options, "identitiesonly") and identity != "agent"),
        other_methods(options),
        {word: tuple(options[word][0].split(",")) for word in ALGORITHMS if word in options},
        int(value(options, "requiredrsasize") or 0),
        FAMILIES.get(value(options, "addressfamily"), socket.AF_UNSPEC),
        value(options, "bindaddress"),
    )


def _tokens(target: Target, address: str, port: int, user: str, alias: str, home: str) -> dict[str, str]:
    """Return what the tokens of ssh_config(5) stand for; not those of which versions of ssh(1) differ."""
    here = socket.gethostname()
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {
        "%": "%", "d": home, "h": address, "i": str(os.getuid()), "k": alias or target.name, "L": here.split(".")[0],
        "l": here, "n": target.name, "p": str(port), "r": user, "u": name,
    }  # fmt: skip


def _file(word: str, text: str, tokens: Mapping[str, str], home: str) -> str:
    """Return a file that a word names. Errors: WorldError."""
    try:
        return _expanded(text, tokens, home)
    except WorldError as error:
        raise WorldError(f"{word} {error}") from error


def _expanded(text: str, tokens: Mapping[str, str], home: str) -> str:
    """Return the name of a file with ~, tokens and variables replaced. Errors: WorldError."""

    def replaced(match: re.Match[str]) -> str:
        token, variable = match.groups()
        if token is not None and token in tokens:
            return tokens[token]
        if variable is not None and variable in os.environ:
            return os.environ[variable]
        what = f"${{{variable}}} is no variable that the SSH process has" if variable else f"%{token} is not followed"
        raise WorldError(f"{text}: {what}; write the name out")

    path = text
    if text.startswith("~"):
        head, _, rest = text.partition("/")
        try:
            path = f"{pwd.getpwnam(head[1:]).pw_dir if head[1:] else home}/{rest}"
        except KeyError as error:
            raise WorldError(f"{text}: there is no user {head[1:]}") from error
    return TOKEN.sub(replaced, path) if tokens else path


def _known_hosts(options: Options, named: str, home: str) -> tuple[Path, ...]:
    """Return the files with the keys of hosts. Errors: WorldError, when ssh(1) prints names with spaces."""
    if named:
        return tuple(Path(expanded(word)) for word in named.split())
    files = []
    for option in ("userknownhostsfile", "globalknownhostsfile"):
        for word in value(options, option).split():
            if word[0] not in "/~":
                text = value(options, option)
                raise WorldError(
                    f"{option} {text}: names must begin with / or ~ and have no blanks to be followed here"
                )
            files.append(Path(_expanded(word, {}, home)))
    return tuple(files)


def _agent(options: Options, tokens: Mapping[str, str], home: str) -> str:
    """Return the socket of the SSH agent; "" for none. Errors: WorldError."""
    text = options.get("identityagent", (AGENT_VARIABLE,))[0]
    if text == AGENT_VARIABLE:
        return os.environ.get(AGENT_VARIABLE, "")
    if text.startswith("$") and not text.startswith("${"):
        if text[1:] not in os.environ:
            raise WorldError(
                f"IdentityAgent {text}: the SSH process of a host has no such variable, only {AGENT_VARIABLE}; "
                "name the socket itself"
            )
        return os.environ[text[1:]]
    return "" if text.lower() == "none" else _file("IdentityAgent", text, tokens, home)
