"""How many entries people are shown of a list that may be long, and how the list says that there are more.

This is the one place that decides it: for the log, for commands and for the dashboard. What asks the database for a
list passes MOST_SHOWN, and has the number of all in `total`.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

MOST_SHOWN: Final = 10  # the worst ones
UNBOUNDED: Final = 2**31 - 1  # for --all

Entry = TypeVar("Entry")


def shown(entries: Sequence[Entry], most: int = MOST_SHOWN) -> tuple[Sequence[Entry], int]:
    """Return the first entries, and how many are left."""
    return entries[:most], max(len(entries) - most, 0)


def and_more(left: int, what: str = "", how: str = "") -> str:
    """Return the line below a list of which so many entries are left; '' if none is."""
    if left <= 0:
        return ""
    return f"and {left:,} more" + (f" {what}" if what else "") + (f"; {how}" if how else "")
