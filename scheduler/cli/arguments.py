"""Types of values on the command line, and how an argument is declared; what each command takes is in options.py.

Imports nothing slow, so that a usage message comes at once.
"""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf, isnan
from operator import methodcaller
from typing import Any, Final

from scheduler.model.verbs import LARGEST_PK

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
    """Return the declaration of `--flag`, `--option VALUE` or `name VALUE`; VALUE is what help shows."""
    name, _, metavar = form.partition(" ")
    if metavar:
        settings["metavar"] = metavar
    elif name.startswith("-"):
        settings = {"action": "store_true"} | settings
    return methodcaller("add_argument", name, help=help, **settings)


def job(attribute: str, nargs: str | None = None) -> Declaration:
    return argument(f"{attribute} JOB", "number or name of a job", nargs=nargs, type=job_number_or_name)
