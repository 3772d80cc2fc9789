"""Where an embedded database is, whether it was made, and whose it is.

Looks at directories only: nothing is written, and no server is started. An account that is not the owner of a database
cannot run its server: root would take the files over, and the daemon of the owner could not start any more.
"""

import os
import pwd
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from scheduler.drivers.home_directory import state_directory
from scheduler.errors import NoDatabaseYetError, WorldError

ACCOUNTS: Final = ("postgres", "nobody")  # that run the server where root may not open a user namespace
ROOT: Final = 0


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory used when no database is configured."""
    return state_directory(environment) / "pg"


def is_made(directory: Path) -> bool:
    """Return whether there is a database in a directory. Errors: WorldError, another user's whom we cannot replace."""
    if os.geteuid() != ROOT:
        require_owner(directory)
    return (directory / "data").exists()


def require_made(directory: Path) -> None:
    """Raise NoDatabaseYetError if there is no database in a directory, or WorldError if it is another user's."""
    if not is_made(directory):
        raise NoDatabaseYetError(
            f"no database is in {directory} yet: drover run or drover init makes one; "
            "if the daemon is another user's, name its database in [database] url"
        )


def require_owner(directory: Path) -> None:
    """Raise WorldError if another user's is the directory, or the one above in which it would be made by root."""
    place, is_missing = _nearest(directory.absolute())
    if is_missing and os.geteuid() != ROOT:
        return  # whoever may write there may make one
    owner = place.stat().st_uid
    if owner in _own_accounts():
        return
    name = _name(owner)
    words = shlex.join(["sudo", "-u", name, "drover", *sys.argv[1:]])
    raise WorldError(f"the database in {directory} belongs to {name}; run it as {name}: {words}")


def _nearest(directory: Path) -> tuple[Path, bool]:
    """Return the directory, or the nearest one above that can be looked at, and whether the first is missing."""
    is_missing = False
    for place in (directory, *directory.parents):
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            is_missing = True
        except OSError:
            is_missing = False
        else:
            return place, is_missing
    return Path("/"), is_missing


def _own_accounts() -> set[int]:
    """Return the users whose files are ours: we, and for root the accounts that have run the server for it."""
    if os.geteuid() != ROOT:
        return {os.geteuid()}
    found = {ROOT}
    for name in ACCOUNTS:
        with suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return found


def _name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"#{user}"  # as sudo(8) takes a number
