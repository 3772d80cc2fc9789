"""Whether a file that is executed, or whose lines are, can be changed by others than those who may anyway.

The whole way to it counts: each directory, each symbolic link and what that leads to. Who may write to one of them, or
owns it, can put another file there.
"""

import os
import stat
from collections.abc import Collection, Iterator
from typing import Final

from scheduler.drivers.os_calls import absolute

WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS: Final = 40  # as many as Linux follows


def who_may_write(path: str, users: Collection[int]) -> Iterator[str]:
    """Yield what lets others change the file of this name, each with what to do; nothing if that is missing.

    Trusted are these users, our own, and the owner of the root directory, which is not 0 in some user namespaces.
    """
    trusted = {0, os.geteuid(), os.stat("/").st_uid, *users}
    # not abspath, for which link/.. is where the link is, and not where it leads
    for place in _way(absolute(path)):
        found = os.lstat(place)
        mode = stat.S_IMODE(found.st_mode)
        is_sticky = stat.S_ISDIR(found.st_mode) and mode & stat.S_ISVTX  # there the owner of an entry counts
        if found.st_uid not in trusted:
            yield f"{place} belongs to user {found.st_uid}; give it to root, or name another file"
        elif mode & WRITABLE and not is_sticky and not stat.S_ISLNK(found.st_mode):
            yield f"others may write to {place} (mode {mode:04o}); chmod go-w {place}"


def _way(path: str) -> Iterator[str]:
    """Yield the directories and links on the way to a file, and the file, as far as there are any, each once."""
    steps, place, links, seen = path.split("/")[::-1], "/", 0, {""}
    while steps and links <= MOST_LINKS:
        step = steps.pop()
        if step == "..":
            place = os.path.dirname(place)
        elif step not in ("", "."):
            place = os.path.join(place, step)
        if not os.path.lexists(place):
            return
        if place not in seen:
            seen.add(place)
            yield place
        if os.path.islink(place):
            links += 1
            target = os.readlink(place)
            steps += target.split("/")[::-1]
            place = "/" if target.startswith("/") else os.path.dirname(place)
