"""Removes one file below a permitted root, and nothing else, whatever its name or the directories on the way are.

A name is taken apart before anything is looked at, and its directories are opened one in the other without following
a symbolic link, so that who may write below a root can lead us nowhere. Names are bytes. Linux only (O_PATH).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class RefusedError(Exception):
    """A file that is not to be removed; the message is why."""


class Root:
    """A directory below which files may be removed. The site answers for symbolic links in its own path."""

    def __init__(self, path: bytes) -> None:
        """Raises RefusedError for a path that is relative or goes up."""
        self.path = path
        self.steps = _steps(path)

    def open(self) -> int:
        """Raises RefusedError: where the root itself is not there, nothing can be said to be gone."""
        try:
            return os.open(self.path, _WAY)
        except OSError as error:
            raise RefusedError(f"its root {_text(self.path)}: {error.strerror}") from None

    def holds(self, steps: Sequence[bytes]) -> bool:
        return len(steps) > len(self.steps) and list(steps[: len(self.steps)]) == self.steps


def remove(path: bytes, roots: Iterable[Root]) -> bool:
    """Remove a file, or a symbolic link itself; whether it was there.

    Raises RefusedError, and OSError for what the system does not allow.
    """
    steps = _steps(path)
    holding = [root for root in roots if root.holds(steps)]
    if not holding:
        raise RefusedError("not below a permitted root")
    root = max(holding, key=lambda root: len(root.steps))
    fd = root.open()
    try:
        for step in steps[len(root.steps) : -1]:
            fd = _enter(fd, step)
        os.unlink(steps[-1], dir_fd=fd)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        raise RefusedError("is a directory") from None
    finally:
        os.close(fd)
    return True


def _steps(path: bytes) -> list[bytes]:
    """Return the names that lead from / to a file."""
    if not path.startswith(b"/"):
        raise RefusedError("is relative, and the agent type of its job has no cwd")
    if b"\0" in path:
        raise RefusedError("has a NUL in it")
    steps = [step for step in path.split(b"/") if step not in (b"", b".")]
    if b".." in steps:
        raise RefusedError("has .. in it")
    return steps


def _enter(fd: int, step: bytes) -> int:
    """Open a directory in a directory; the one before is closed then."""
    try:
        deeper = os.open(step, _WAY | os.O_NOFOLLOW, dir_fd=fd)
    except NotADirectoryError:
        raise RefusedError(f"{_text(step)} is a symbolic link, or no directory") from None
    os.close(fd)
    return deeper


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
