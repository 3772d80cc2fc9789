"""The types of the values of options and arguments, and the words of verbs.

The commands that have them are listed in command_table.py. This module imports nothing slow: a usage message comes at
once.
"""

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from math import inf, isnan
from operator import methodcaller
from typing import Any, Final

from scheduler.model.verbs import LARGEST_PK

FILTERS: Final = ("types", "queues", "submitters", "groups", "hosts", "ran_on", "codes")  # options that choose jobs
TIMES: Final = ("since", "until")  # more of them, which name instants
PATIENCE_S: Final = 60.0  # until a command that no scheduler has taken is withdrawn
BULK_FILTERS: Final = ("states",)  # more of them, of commands to the scheduler
JOB_NAME: Final = re.compile(r"[^.\s]+\.[^.\s]+")  # type.nonce
Declaration = Callable[[Any], object]  # gets the parser


# Types of values: each reads a word. Errors: ArgumentTypeError, with what was wanted instead.


def number(least: int, most: int = LARGEST_PK) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            limit = "on" if most == LARGEST_PK else f"to {most}"
            raise ArgumentTypeError(f"must be a number from {least} {limit} (got {text!r})")
        return int(text)

    return read


COUNT: Final = number(0)
POSITIVE: Final = number(1)


def job_number_or_name(text: str) -> int | str:
    """Return the number of a job, or its name."""
    if JOB_NAME.fullmatch(text):
        return text
    try:
        return POSITIVE(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"must be the number of a job, or its name, TYPE.NONCE (got {text!r})") from None


def seconds(text: str) -> float:
    """Return seconds, with a fraction or without end."""
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if isnan(value) or value < 0:
        raise ArgumentTypeError(f"must be seconds (got {text!r})")
    return value


# Declarations.


def argument(form: str, help: str, **settings: Any) -> Declaration:
    """Return the declaration of `--flag`, `--option VALUE`, `-o,--option VALUE` or `name VALUE`.

    VALUE is what help shows; which values there are to choose from stands behind the help.
    """
    names, _, metavar = form.partition(" ")
    if metavar:
        settings["metavar"] = metavar
        help = f"{help}: {', '.join(settings['choices'])}" if "choices" in settings else help
    elif names.startswith("-"):
        settings = {"action": "store_true"} | settings
    return methodcaller("add_argument", *names.split(","), help=help, **settings)


def job(attribute: str, nargs: str | None = None) -> Declaration:
    return argument(f"{attribute} JOB", "number or name of a job", nargs=nargs, type=job_number_or_name)


# Words of verbs of the registry.

# For words in the usage of a verb: the attribute of the parsed options, and the argument that sets it.
CONDITIONS: Final = "a job, or a condition that jobs are blocked on"
SIGNALS: Final = "jobs, then the name or number of a signal; or JOB=SIGNAL for each"
ARGUMENTS: Final[dict[str, tuple[str, Declaration]]] = {
    "JOB": ("jobs", job("jobs", "+")),  # as many command rows
    "JOB|NAME": ("jobs", job("jobs", "+")),
    "JOB SIGNAL [MORE...]": ("signals", argument("signals WORD", SIGNALS, nargs="+")),
    "JOB|CONDITION": ("conditions", argument("conditions JOB|CONDITION", CONDITIONS, nargs="+")),
    "[TEXT...]": ("reason", argument("--reason TEXT", "the text in its row; default: cancelled", default="")),
    "[QUEUE...]": ("queues", argument("queues QUEUE", "these queues; default: all", nargs="*")),
    "DAYS": ("days", argument("days DAYS", "remove jobs that ended more than so many days ago", type=COUNT)),
    "LETTERS": ("letters", argument("letters LETTERS", "letters and digits, a before z; n is the usual one")),
    "[failed]": ("failed", argument("--failed", "remove failed jobs too", action="store_const", const="failed")),
}


def verb_arguments(usage: str) -> Iterator[tuple[str, Declaration]]:
    """Yield for each word of a verb's usage the attribute of the parsed options, and the argument that sets it."""
    for word in [usage] if usage in ARGUMENTS else usage.split():
        metavar = word.strip("[].")
        name, is_optional, takes_several = metavar.lower(), word.startswith("["), "..." in word
        nargs = ("*" if takes_several else "?") if is_optional else ("+" if takes_several else None)
        yield ARGUMENTS.get(word) or (name, argument(f"{name} {metavar}", "", nargs=nargs))


def filters_are_given(options: Namespace) -> bool:
    """Return whether options choose jobs."""
    return any(getattr(options, name, None) for name in (*FILTERS, *TIMES, *BULK_FILTERS))
