"""The program files of agent types: which were replaced, and copies of those whose new programs are tried first.

A program is named by the digest of its file. When one of a type with canary agents is seen, it is copied to
`DIRECTORY/TYPE/DIGEST`, so that it can be started when the file has another one. As long as the file is as it was seen
it is started itself, where it belongs: a copy has none of the files beside it. Daemons may share the directory. Copies
from which nothing was started for a month go, but for the newest ones. Decides nothing about trials.
"""

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scheduler.drivers.home_directory import state_directory
from scheduler.drivers.process_spec import Fingerprint, Surroundings, fingerprint
from scheduler.model.config import Config
from scheduler.model.events_and_effects import ProgramFound, Replaced, Spawn

DIGITS: Final = 12  # of the name of a program
MOST_COPIES: Final = 8  # of a type
MONTH_S: Final = 30 * 86_400.0

log = logging.getLogger(__name__)


def copies_folder(environment: Mapping[str, str]) -> str:
    """Return where copies of programs are kept: in the state directory of the service, else below the home."""
    return str(state_directory(environment) / "programs")


class ProgramFiles:
    """What the program file of each type was when it was last looked at."""

    def __init__(self, config: Config, around: Surroundings, copies: str) -> None:
        self._config, self._around = config, around
        self._copies = Path(copies) if copies else None
        self._seen: dict[str, Fingerprint | None] = {}
        self._names: dict[str, str] = {}  # of the programs that were seen, of types with canary agents

    def reload(self, config: Config) -> None:
        """Look at types anew whose configuration is another now."""
        old, self._config = self._config, config
        same = [name for name in self._seen if config.agents.get(name) == old.agents[name]]
        self._seen = {name: self._seen[name] for name in same}
        self._names = {name: self._names[name] for name in same if name in self._names}

    def snapshot(self) -> dict[str, Any]:
        """Return what was seen, for a program that takes over: JSON."""
        return {"seen": self._seen, "names": self._names}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue with what a program before us has seen."""
        for name, found in snapshot.get("seen", {}).items():
            if name in self._config.agents:
                self._seen[name] = None if found is None else (found[0], found[1], found[2], found[3])
        self._names = {name: text for name, text in snapshot.get("names", {}).items() if name in self._seen}

    def watch(self, name: str) -> None:
        """Notice from now on that the file of a type is replaced."""
        if name not in self._seen:
            self._seen[name] = fingerprint(self._config.agents[name], self._around)

    def seen(self, name: str) -> Fingerprint | None:
        """Return what the file of a type was when it was last looked at."""
        return self._seen.get(name)

    def changes(self) -> Iterator[Replaced | ProgramFound]:
        """Look at every file, and tell which were replaced; of types with canary agents also what they had at first."""
        for name, agent in self._config.agents.items():
            has_trials = agent.canary > 0 and self._copies is not None
            if name not in self._seen and not has_trials:
                continue  # nothing was started from it yet
            old, new = self._seen.get(name), fingerprint(agent, self._around)
            if new is None or (new == old and (name in self._names or not has_trials)):
                continue  # None may be half of a replacement: look again later
            self._seen[name] = new
            if has_trials:
                yield self._copy_program(name, new)
            else:
                yield Replaced(name)

    def copy_for(self, spawn: Spawn) -> str:
        """Return the copy of the program that is to be started; empty if the file itself has it.

        Errors: FileNotFoundError, it is gone.
        """
        is_in_file = spawn.program == self._names.get(spawn.type)
        if is_in_file and self._seen.get(spawn.type) == fingerprint(self._config.agents[spawn.type], self._around):
            return ""
        assert self._copies is not None
        copy = self._copies / spawn.type / spawn.program
        if not copy.exists():
            what = "its copy is gone; the file has another program: drover agent promote"
            raise FileNotFoundError(errno.ENOENT, what, str(copy))
        with suppress(OSError):
            os.utime(copy)
        return str(copy)

    def _copy_program(self, name: str, seen: Fingerprint) -> ProgramFound:
        """Copy the program that the file of a type has now, unless there is a copy of it."""
        assert self._copies is not None
        folder, program = self._copies / name, ""
        try:
            data = Path(seen[0]).read_bytes()
            program = hashlib.sha256(data).hexdigest()[:DIGITS]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (folder / program).exists():
                _write(folder / program, data)
            _remove_old(folder)
        except OSError as error:
            log.warning("agent type %s: its program cannot be copied: %s", name, error)
            program = program or hashlib.sha256(repr(seen).encode()).hexdigest()[:DIGITS]
        self._names[name] = program
        return ProgramFound(name, program, tuple(sorted(_copies_in(folder))))


def _write(path: Path, data: bytes) -> None:
    """Write a program that may be executed; under its name it is whole at any time."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(new, "wb", opener=lambda name, flags: os.open(name, flags, 0o700)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def _copies_in(folder: Path) -> list[str]:
    with suppress(OSError):
        return [entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return []


def _remove_old(folder: Path) -> None:
    """Remove the copies that nothing was started from for a month, but for the newest ones."""
    used_at = {name: (folder / name).stat().st_mtime for name in _copies_in(folder)}
    for name in sorted(used_at, key=used_at.__getitem__)[:-MOST_COPIES]:
        if used_at[name] < time.time() - MONTH_S:
            (folder / name).unlink(missing_ok=True)
