"""The configuration as ssh(1) reads it: what `ssh -G HOST` prints, run as a child with a deadline.

Its words are the truth about Include, Match, tokens, canonical names and the order of files. The child gets none of our
descriptors and no terminal. It may run programs (Match exec), so all of its process group is killed when it is late.
"""

import os
import signal
import subprocess
from contextlib import suppress
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Final

from scheduler.errors import WorldError
from scheduler.model.protocol import printable
from scheduler.ssh.config_words import OLD_NAMES, Options

BANNER: Final = "OpenSSH_"  # which OpenSSH's ssh says first, with -v
READING: Final = "Reading configuration data "
LOOP: Final = "jumphost loop via "
NO_COMMAND: Final = "Cannot execute command-line and remote command"
SAID_CHARACTERS: Final = 600
NEEDED: Final = ("hostname", "port", "user")


class NotOpenSshError(Exception):
    """The program called ssh is another."""


class OpenSshConfig:
    """Asks ssh(1). `file` takes the place of the files that it reads by itself. All answers share one deadline."""

    def __init__(self, program: str, file: str, within_s: float) -> None:
        self._program, self._file, self._within_s = program, file, within_s
        self._deadline = monotonic() + within_s
        self._files: list[str] = []
        self.usual = self._ask(["-F", "none", "--", "none", "true"], "none")

    def options(self, name: str, user: str, port: str, jumps: str, target: str) -> Options:
        """Return what holds for a host, as ssh(1) is run for it: with -W for a jump host. Errors: WorldError."""
        pairs = (("-F", self._file), ("-l", user), ("-p", port), ("-J", jumps), ("-W", target))
        words = [word for pair in pairs if pair[1] for word in pair]
        return self._ask([*words, "--", name, *([] if target else ["true"])], name)

    def places(self, word: str) -> list[str]:
        """Return where the files that it has read have a word."""
        return [place for file in self._files for place in places_in(file, word)]

    def _ask(self, words: list[str], name: str) -> Options:
        code, out, said = self._run([self._program, "-v", "-G", *words])
        if not any(line.startswith(BANNER) for line in said):
            raise NotOpenSshError(self._program)
        if code != 0:
            text = " / ".join(line for line in said if not line.startswith(("debug", BANNER)))[:SAID_CHARACTERS]
            raise WorldError(self._why(name, text or f"it has exited with {code}"))
        options = _options(out)
        if missing := [word for word in NEEDED if word not in options]:
            raise WorldError(f"{self._program} -G does not say {' and '.join(missing)} of {name}: is it OpenSSH's own?")
        return options

    def _why(self, name: str, text: str) -> str:
        if LOOP in text:
            where = at(self.places("proxyjump"))
            return f"{where}ProxyJump of {name} has no end: it leads to {text.rpartition(LOOP)[2]} again"
        if NO_COMMAND in text:
            where = at(self.places("remotecommand"))
            return f"{where}RemoteCommand of {name} cannot be followed: give the host an entry without it"
        return f"ssh(1) refuses its configuration for {name}: {text}"

    def _run(self, argv: list[str]) -> tuple[int, bytes, list[str]]:
        """Return exit status, output, and what was said in lines."""
        with TemporaryFile() as out, TemporaryFile() as errors:  # no pipes: a child of Match exec may hold them on
            code = self._await_end(argv, out, errors)
            lines = self._lines(_read(errors))
            if code is not None:
                return code, _read(out), lines
        if not lines:
            raise WorldError(f"{self._program} says nothing for {self._within_s:g} s (`{' '.join(argv)}`); look at it")
        raise WorldError(
            f"ssh(1) took more than {self._within_s:g} s to read its configuration (`{' '.join(argv)}`); look at its "
            f"Match exec, and at CanonicalizeHostname if names cannot be resolved{self._exec_places()}"
        )

    def _await_end(self, argv: list[str], out: IO[bytes], errors: IO[bytes]) -> int | None:
        """Run a program and return its exit status; None: it was late, and was killed with its group."""
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True)
        except OSError as error:
            raise WorldError(f"{self._program} cannot be started: {error.strerror}") from error
        try:
            return child.wait(max(self._deadline - monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None

    def _lines(self, said: bytes) -> list[str]:
        """Return what was said in lines, and keep the names of the files that were read."""
        lines = [line.strip() for line in printable(said).splitlines() if line.strip()]
        for line in lines:
            file = line.partition(READING)[2]
            if file and file not in self._files:
                self._files.append(file)
        return lines

    def _exec_places(self) -> str:
        places = [place for file in self._files for place in places_in(file, "match")]
        return f" ({', '.join(places)})" if places else ""


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _options(out: bytes) -> Options:
    """Return what `ssh -G` has printed: on each line a word and a value."""
    found: dict[str, list[str]] = {}
    for line in os.fsdecode(out).split("\n"):
        word, _, text = line.partition(" ")
        if word:
            found.setdefault(OLD_NAMES.get(word.lower(), word.lower()), []).append(text)
    return {word: tuple(texts) for word, texts in found.items()}


def places_in(file: str, word: str) -> list[str]:
    """Return the lines of a file that begin with a word, each as FILE:LINE."""
    try:
        with open(file, errors="replace") as lines:
            firsts = [line.replace("=", " ").split(None, 1)[:1] for line in lines]
    except OSError:
        return []
    return [f"{file}:{number}" for number, first in enumerate(firsts, 1) if [word] == [one.lower() for one in first]]


def at(places: list[str]) -> str:
    """Return the beginning of a sentence about what is at these places."""
    return f"{', '.join(places)}: " if places else ""
