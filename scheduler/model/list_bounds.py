"""How many entries people are shown of a list that may be long, and how the list says that there are more.

Whoever inserts jobs decides how many types and queues there are, so no list is shown whole unless that is asked for.
This is the one place that decides how long they are: for the log, for commands and for the dashboard.
"""

from typing import Final

WORST: Final = 10  # of what is wrong: warnings of a kind, types and queues that nobody serves, conditions
LISTED: Final = 100  # of other lists, such as queues
UNBOUNDED: Final = 2**31 - 1  # what --all asks for


def and_more(left: int, what: str = "", how: str = "") -> str:
    """Return the line below a list of which so many entries are left out: of what, and how they are shown."""
    return "; ".join(filter(None, (" ".join(filter(None, (f"and {left:,} more", what))), how)))
