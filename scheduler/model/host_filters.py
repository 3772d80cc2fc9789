"""Names, and the filters that say which jobs a host takes.

Imports nothing slow: the registry of commands checks words by it, and `drover --help` reads the registry.
"""

import re
import warnings
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}")
NAME_RULE: Final = "a name has letters, digits and _ . / - (not first), 64 at most"
# The characters that a priority begins with, in order.
LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FILTERS: Final = ("types", "queues", "priorities")  # keys of a host
NO_PATTERN: Final = "is not a regular expression"
NO_LETTERS: Final = "matches no single letter or digit: it is about the first of a priority"


def is_pattern(text: str) -> bool:
    """Return whether Python takes it, and means what it looks like: not `[[:alpha:]]`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, FutureWarning, OverflowError, RecursionError):
        return False
    return True


def letters_matching(pattern: str) -> frozenset[str]:
    """Return the characters that a priority may begin with to match the filter `priorities`."""
    return frozenset(letter for letter in LETTERS if re.search(pattern, letter))


def filter_mistake(key: str, value: str | tuple[str, ...]) -> str:
    """Return what is wrong with one filter of a host; empty if nothing is."""
    if key == "queues":
        return "" if all(map(NAME.fullmatch, value)) else NAME_RULE
    if not is_pattern(str(value)):
        return NO_PATTERN
    return "" if key == "types" or letters_matching(str(value)) else NO_LETTERS
