"""How many columns of a terminal texts take, and what columns of tables are called; pure."""

import unicodedata
from functools import lru_cache
from typing import Final

COMBINING: Final = frozenset(("Mn", "Me"))  # categories; some of them have no combining class
WIDE: Final = frozenset("FW")  # of East Asian widths
HEADINGS: Final = {"for_time": "wait for a time", "for_jobs": "wait for other jobs"}  # of columns


def width_of(text: str) -> int:
    """Return how many columns of a terminal a printable text takes: two a wide character, none one that combines."""
    return len(text) if text.isascii() else sum(map(columns_of, text))


def padded(text: str, width: int, *, to_right: bool = False) -> str:
    """Return the text with blanks, so that it takes so many columns of a terminal at least."""
    blanks = " " * (width - width_of(text))
    return blanks + text if to_right else text + blanks


@lru_cache(maxsize=4096)
def columns_of(c: str) -> int:
    """Return how many columns a character takes: none one that combines."""
    if unicodedata.combining(c) or unicodedata.category(c) in COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(c) in WIDE else 1


def heading(name: str) -> str:
    """Return the name of a column as people read it; states of slots stay as they are spelt everywhere."""
    return name if name.startswith("ST_") else HEADINGS.get(name, name.replace("_", " "))
