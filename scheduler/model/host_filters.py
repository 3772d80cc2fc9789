"""Names, and the filters that say which jobs a host takes.

Imports nothing slow: the registry of commands checks words by it, and `drover --help` reads the registry.
"""

import re
import warnings
from typing import Final

from scheduler.model.priority_ranges import TooComplexError, ranges_matching

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}")
NAME_RULE: Final = "a name has letters, digits and _ . / - (not first), 64 at most"
QUEUE_RULE: Final = (
    "the name of a queue has letters and digits of any script, _ . / - (not first) and single blanks inside, "
    "64 characters at most"
)
FILTERS: Final = ("types", "queues", "priorities")  # keys of a host
NO_PATTERN: Final = "is not a regular expression"
NO_PRIORITY: Final = "matches no priority, which has letters and digits"
TOO_COMPLEX: Final = "is decided by no few first characters of a priority; begin it with ^ and leave out .*"


_QUEUE: Final = re.compile(r"(?![./ -])(?:[A-Za-z0-9_./-]|[^\x00-\x7f]| (?! |$)){1,64}")


def is_queue_name(text: str) -> bool:
    """Return whether a queue may have this name: what separates words of commands, or cannot be seen, is left out."""
    return _QUEUE.fullmatch(text) is not None and text.isprintable()


def is_pattern(text: str) -> bool:
    """Return whether Python takes it, and means what it looks like: not `[[:alpha:]]`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, FutureWarning, OverflowError, RecursionError):
        return False
    return True


def ranges_text(pattern: str) -> str | None:
    """Return the priorities that a pattern matches as drover.takes_priority reads them; None for no pattern."""
    return ",".join("-".join(each) for each in ranges_matching(pattern)) if pattern else None


def filter_mistake(key: str, value: str | tuple[str, ...]) -> str:
    """Return what is wrong with one filter of a host; empty if nothing is."""
    if key == "queues":
        return "" if all(map(is_queue_name, value)) else QUEUE_RULE
    if not is_pattern(str(value)):
        return NO_PATTERN
    return "" if key == "types" else _priorities_mistake(str(value))


def _priorities_mistake(pattern: str) -> str:
    try:
        return "" if ranges_matching(pattern) else NO_PRIORITY
    except TooComplexError:
        return TOO_COMPLEX
