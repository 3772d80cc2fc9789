"""The embedded database that a url names: where it is, what its server runs from, and how it is kept running.

What the server needs is imported only where it is used: that is slow, and other databases do not need it.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.cli.config_files import EMBEDDED, is_embedded_url
from scheduler.model.config import Config

if TYPE_CHECKING:
    from scheduler.database.server_record import ServerState


def embedded_directory(url: str) -> Path | None:
    """Return where the embedded database is that a url names: `embedded`, or `embedded:DIRECTORY`; else None."""
    if not is_embedded_url(url):
        return None
    from scheduler.database.embedded_place import default_directory

    directory = url.removeprefix(EMBEDDED).removeprefix(":")
    return Path(directory).absolute() if directory else default_directory(os.environ)


def embedded_state_reader(url: str) -> "Callable[[], ServerState | None] | None":
    """Return what reads from what the embedded server of a url runs; None if the database is another."""
    directory = embedded_directory(url)
    if directory is None:
        return None
    from scheduler.database.embedded import read_state

    return partial(read_state, directory)


def database_locks(config: Config) -> list[int]:
    """Return a descriptor that keeps the embedded server running across an exec; none if it is another's."""
    directory = embedded_directory(config.database.url)
    if directory is None:
        return []
    from scheduler.database.embedded import keep

    return [keep(directory)]
