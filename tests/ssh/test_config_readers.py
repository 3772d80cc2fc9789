"""Two readers of generated ssh_config files beside each other: ssh(1), and ours for machines that lack it.

Ours says what ssh(1) says, or refuses a line by file and number; it never says anything else.
"""

import os
import pwd
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.config_words import Options
from scheduler.ssh.own_config import OwnConfig
from scheduler.ssh.routes import Hop, route
from tests.needs import need

SEED = 33
FILES = 400
NAMES = ("alpha", "ALPHA", "beta", "a.example", "10.0.0.7", "::1")
PATTERNS = ("alpha", "ALPHA", "alp*", "al?ha", "*", "!alpha", "!beta", "*.example", "10.0.0.?", "b[e]ta", "be+a", "a|b")
COMPARED = ("hostname", "port", "user", "identityfile", "certificatefile", "identityagent", "identitiesonly",
            "hostkeyalias", "proxyjump", "bindaddress", "addressfamily", "userknownhostsfile")  # fmt: skip

SIMPLE = (
    "HostName 10.0.0.{n}", "HostName %h.example", "HostName Big.Example", "HostName %%h", "Port 20{n}", "port=30{n}",
    "PORT\t=\t40{n}", "User joe{n}", 'User "jane{n}"', 'IdentityFile "~/.ssh/a key"', "IdentityFile ~/.ssh/k{n}",
    "IdentityFile /keys/%h_%r", "IdentityFile ~root/k", "IdentityFile none", "CertificateFile /certs/%n-%p",
    "IdentitiesOnly yes", "IdentitiesOnly NO", "identitiesonly true", "IdentityAgent none", "IdentityAgent /agents/{n}",
    "IdentityAgent SSH_AUTH_SOCK", "UserKnownHostsFile /kh/{n} ~/kh", "UserKnownHostsFile none",
    "GlobalKnownHostsFile /etc/kh", "HostKeyAlias alias{n}", "ProxyJump none", "ProxyJump beta", "ProxyJump joe@j:2{n}",
    "ProxyJump a.example,j{n}", "ProxyJump j1,j2,[::2]:22", "StrictHostKeyChecking no", "Compression yes",
    "ServerAliveInterval 5", "ForwardAgent yes", "AddressFamily inet", "AddressFamily INET6", "BindAddress 127.0.0.1",
    "RequiredRSASize 2048", "SendEnv LANG LC_*", "LogLevel QUIET", "# comment f\xfcr alle", "", "   # Host beta",
    "Ciphers aes256-ctr,aes128-ctr", "  User  spaced{n}  ", "\tUser\tindented{n}", "User {n}\r",
)  # fmt: skip
HARD = (
    "Include {folder}/more", "Match Host alpha", "Match host alpha,beta", "Match host=alpha", "Match HOST !alpha",
    "Match originalhost alpha", "Match user joe1", "Match final all", "Match canonical all", "Match exec true",
    'Match exec "exit 1"', "Match localuser root", "Match !host beta user *", "Match all", "MATCH ALL", 'Host "alpha"',
    "Host alpha # comment", "Host alpha,beta", "User joe # comment", "User 'jane'", 'User jo"e"', "User jo\\e",
    "IdentityFile ~/${{HOME}}/k", "IdentityFile %C", "UserKnownHostsFile ~/kh_%k", "Ciphers +aes128-cbc",
    "MACs ^hmac-sha2-512", "ProxyCommand nc %h %p", "ProxyCommand none", "RemoteCommand ls", "SetEnv A=b",
    "CanonicalizeHostname yes", "KnownHostsCommand /bin/true", "Port {n}{n}{n}{n}{n}{n}", "Port x", "NoSuchWord 1",
    "IgnoreUnknown NoSuch*", "User", "HostName a b", "IdentitiesOnly maybe", "Host", "=x", "User=a=b", "User = =b",
    "\xa0User nbsp", "User\xa0nbsp", "User a\xa0", "User\fff", "ProxyJump ssh://u@j:23", "HostName %q", "User %u",
    "IdentityAgent $HOME", "PubkeyAuthentication no", "SessionType none",
)  # fmt: skip


def written(folder: Path, chance: random.Random) -> Path:
    """Write a configuration, with a hard line in about every second one."""
    lines: list[str] = []
    for _ in range(chance.randrange(1, 5)):
        if chance.random() < 0.8:
            separator = chance.choice((" ", " ", "=", " = "))
            keyword = chance.choice(("Host", "host", "HOST"))
            lines.append(keyword + separator + " ".join(chance.sample(PATTERNS, chance.randrange(1, 4))))
        lines += chance.choices(SIMPLE, k=chance.randrange(1, 6))
    if chance.random() < 0.5:
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(HARD))
    text = "\n".join(line.format(n=chance.randrange(1, 10), folder=folder) for line in lines) + "\n"
    (config := folder / "config").write_bytes(text.encode("latin-1"))
    return config


def told(argv: list[str]) -> Options | None:
    """Return what `ssh -G` prints; None if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        return None
    found: dict[str, list[str]] = {}
    for line in os.fsdecode(done.stdout).splitlines():
        word, _, text = line.partition(" ")
        found.setdefault(word, []).append(text)
    return {word: tuple(texts) for word, texts in found.items()}


def hops(config: Path, name: str) -> list[Hop] | str:
    """Return a route, but for its algorithms, of which only ssh(1) knows those that are usual; or why there is none."""
    try:
        found = route(SshSettings("host", f"[{name}]" if ":" in name else name, ssh_config=str(config)))
    except WorldError as error:
        return str(error)
    return [replace(hop, algorithms={}, rsa_bits=0) for hop in found]


def generated(tmp_path: Path, count: int) -> list[tuple[Path, str]]:
    need("sshd")  # which comes with ssh
    chance, made = random.Random(SEED), []
    (tmp_path / "more").write_text("Port 4711\n")
    for number in range(count):
        (folder := tmp_path / str(number)).mkdir()
        config = written(folder, chance)
        made.append((config, chance.choice(NAMES)))
    return made


def same(config: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how both readers agree on a host; an AssertionError if they do not."""
    by_ssh = hops(config, name)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", os.devnull)
        by_us = hops(config, name)
    if by_us == by_ssh and not isinstance(by_us, str):
        return "same"
    assert isinstance(by_us, str), (config.read_bytes(), name, by_ssh, by_us)
    assert re.search(rf"{re.escape(str(config))}:\d+: ", by_us), (config.read_bytes(), name, by_ssh, by_us)
    return "refused by both" if isinstance(by_ssh, str) else "refused by us"


def test_both_readers_lead_to_the_same_hosts_or_ours_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agents/usual")
    answers = [same(config, name, monkeypatch) for config, name in generated(tmp_path, FILES)]
    counted = {answer: answers.count(answer) for answer in set(answers)}
    assert min(counted.get("same", 0), len(answers) - counted.get("same", 0)) > FILES / 4, counted


def test_our_reader_has_the_values_that_ssh_prints(tmp_path: Path) -> None:
    compared = 0
    for config, name in generated(tmp_path, FILES):
        ours, theirs = read_by_us(config, name), told(["ssh", "-G", "-F", str(config), "--", name])
        if theirs is not None and not isinstance(ours, str):
            compared += 1
            assert values(ours) == values(theirs), config.read_bytes()
    assert compared > FILES / 4


def read_by_us(config: Path, name: str) -> Options | str:
    us = pwd.getpwuid(os.getuid())
    try:
        return OwnConfig((str(config),), us.pw_dir, us.pw_name).options(name, "", "", "", "")
    except WorldError as error:
        return str(error)


def values(options: Options) -> dict[str, list[str]]:
    """Return the values that are compared: without the usual keys, of which later ssh(1) have others."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    found = {word: [text for text in options.get(word, ()) if "id_" not in text] for word in COMPARED}
    found["userknownhostsfile"] = [
        " ".join(path.replace("~/", f"{home}/", 1) for path in text.split()) for text in found["userknownhostsfile"]
    ]  # ssh(1) prints these with ~ replaced
    return found | {"proxyjump": [text for text in found["proxyjump"] if text != "none"]}
