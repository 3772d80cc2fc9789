"""Read ssh_config(5) where no ssh(1) is installed: Host, and simple values. Whatever else a file has is refused.

A wrong guess would lead to another machine, so a word, a quote or a token that is not known here is refused with file
and line, though ssh(1) would take it. Values that several lines give are the first one, or all for some words.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.errors import WorldError
from scheduler.ssh.config_words import ALGORITHMS, FOLLOWED, HARMLESS, REFUSED, Options
from scheduler.ssh.openssh_config import places_in

INSTALL: Final = "install OpenSSH's ssh(1), which reads all of it, or write it more simply"
LINE: Final = re.compile(r"""[ \t]*(?P<word>[A-Za-z0-9]+)(?:[ \t]*=[ \t]*|[ \t]+)(?P<value>[^\s"'=].*|"[^"]*")""")
BLANKS: Final = " \t\r"
PLAIN: Final = re.compile(r"""[^\s"'\\#%$]+(?:[ \t]+[^\s"'\\#%$]+)*""")
PATTERNS: Final = re.compile(r"""[^\s"'\\#]+(?:[ \t]+[^\s"'\\#]+)*""")
QUOTED: Final = re.compile(r"""[^"'\\#%$]*""")
WITH_TOKENS: Final = frozenset({"hostname", "identityfile", "certificatefile", "identityagent"})
ADDED_UP: Final = frozenset({"identityfile", "certificatefile"})
SEVERAL: Final = frozenset({"globalknownhostsfile", "userknownhostsfile"})  # values of one line
FLAGS: Final = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
FAMILIES: Final = ("any", "inet", "inet6")
SYSTEM_FILE: Final = "/etc/ssh/ssh_config"
KNOWN_WORDS: Final = FOLLOWED | HARMLESS | {word.lower() for word in REFUSED}
CANONICAL: Final = ("canonicalizehostname",)  # harmless only where ssh(1) has followed it
PROXIES: Final = frozenset({"proxyjump", "proxycommand"})  # the first that is given counts, also if it is none
USUAL_KEYS: Final = tuple(f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk"))


class Line(NamedTuple):
    """A line of a file that has a value, and the patterns of the Host before it."""

    patterns: tuple[str, ...]
    word: str
    value: str


class OwnConfig:
    """Reads the files itself: the one that is named, or the user's and the system's."""

    def __init__(self, files: tuple[str, ...], home: str, user: str) -> None:
        self._files, self._user = files, user
        self.usual: Options = {
            "port": ("22",),
            "identityfile": USUAL_KEYS,
            "userknownhostsfile": (f"{home}/.ssh/known_hosts {home}/.ssh/known_hosts2",),
            "globalknownhostsfile": ("/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",),
            "identitiesonly": ("no",),
            "addressfamily": ("any",),
            "sessiontype": ("default",),
        }
        self._lines = [line for file in files for line in _lines(Path(file))]

    def options(self, name: str, user: str, port: str, jumps: str, target: str) -> Options:
        """Return what holds for a host. Errors: WorldError."""
        given = {"user": user, "port": port, "proxyjump": jumps}
        found = {word: [text] for word, text in given.items() if text}
        for line in self._lines:
            others = found.keys() & ({line.word} if line.word not in PROXIES else PROXIES)
            if not _is_for(name, line.patterns) or (others and line.word not in ADDED_UP):
                continue
            if line.value not in found.get(line.word, ()):
                found.setdefault(line.word, []).append(line.value)
        own = {word: tuple(texts) for word, texts in found.items()}
        address = re.sub("%(.)", lambda token: {"h": name}.get(token[1], "%"), own.get("hostname", (name,))[0])
        return {**self.usual, "user": (self._user,), **own, "hostname": (address.lower(),)}

    def places(self, word: str) -> list[str]:
        """Return where the files have a word."""
        return [place for file in self._files for place in places_in(file, word)]


def _lines(file: Path) -> Iterator[Line]:
    """Yield the lines of a file that have a value. Errors: WorldError, for the first that is not followed."""
    try:
        text = os.fsdecode(file.read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorldError(f"cannot read {file}: {error.strerror}") from error
    patterns: tuple[str, ...] = ("*",)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(BLANKS)[:1] in ("", "#"):
            continue
        try:
            word, value = _pair(line.rstrip(BLANKS))
            if word == "host" and PATTERNS.fullmatch(value):
                patterns = tuple(value.split())
            elif word == "match" and value.lower() == "all":
                patterns = ("*",)
            else:
                yield Line(patterns, word, _checked(word, value))
        except ValueError as error:
            raise WorldError(f"{file}:{number}: {error}; {INSTALL}") from error


def _pair(line: str) -> tuple[str, str]:
    """Return the word of a line, in small letters, and its value. Errors: ValueError."""
    if not (match := LINE.fullmatch(line)):
        raise ValueError("it cannot be read here")
    return match["word"].lower(), match["value"]


def _checked(word: str, value: str) -> str:
    """Return the value of a word as `ssh -G` prints it. Errors: ValueError."""
    if word == "host" or word not in KNOWN_WORDS or word in CANONICAL:
        raise ValueError(f"{word} {value} cannot be followed here")
    if word in HARMLESS:
        return value
    is_quoted = value.startswith('"')
    text = value.strip('"')
    bare = re.sub("%[%h]" if word == "hostname" else "%[%dhiklLnpru]", "", text) if word in WITH_TOKENS else text
    if word == "identityagent":
        bare = bare.replace("$", "")
    if not (QUOTED if is_quoted else PLAIN).fullmatch(bare or "x") or not text:
        raise ValueError(f"the value of {word} has quotes, tokens or signs that cannot be followed here")
    if (word not in SEVERAL and " " in text and not is_quoted) or "\t" in text:
        raise ValueError(f"{word} takes one value")
    return _simple(word, text)


def _simple(word: str, text: str) -> str:
    """Return a value as `ssh -G` has it. Errors: ValueError."""
    if word == "port" and not (text.isascii() and text.isdigit() and 0 < int(text) < 65_536):
        raise ValueError(f"{text} is no port")
    if word == "identitiesonly":
        if text.lower() not in FLAGS:
            raise ValueError(f"{text} is neither yes nor no")
        return FLAGS[text.lower()]
    if word == "addressfamily":
        if text.lower() not in FAMILIES:
            raise ValueError(f"{text} is none of {', '.join(FAMILIES)}")
        return text.lower()
    if word == "proxyjump" and "/" in text:
        raise ValueError(f"{text} must be a name, or names with commas between them")
    if word in ALGORITHMS and (text[0] in "+-^" or "*" in text or "?" in text):
        raise ValueError(f"{word} must be a plain list here")
    return text


def _is_for(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a line after `Host PATTERNS` is for a host: capitals count, and ! excludes."""
    if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None
