"""Kinds of values on a command line: each reads a word, or says what was wanted instead.

Imports nothing slow, as scheduler.cli.options which uses it. Errors: ArgumentTypeError.
"""

import re
from argparse import ArgumentTypeError
from math import inf, isnan
from typing import Final

LARGEST: Final = 2**63 - 1
LARGEST_INTEGER: Final = 2**31 - 1
NAME: Final = re.compile(r"[^.\s]+\.[^.\s]+")  # of a job: type.nonce


def count(text: str) -> int:
    """A number from 0."""
    return _between(text, 0)


def integer(text: str) -> int:
    """A number from 0 that a column of type integer can hold."""
    return _between(text, 0, LARGEST_INTEGER)


def positive(text: str) -> int:
    """A number from 1."""
    return _between(text, 1)


def job(text: str) -> int | str:
    """The number of a job, or its name."""
    if NAME.fullmatch(text):
        return text
    try:
        return positive(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"must be the number of a job, or its name, TYPE.NONCE (got {text!r})") from None


def seconds(text: str) -> float:
    """Seconds, with a fraction or without end."""
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if isnan(value) or value < 0:
        raise ArgumentTypeError(f"must be seconds (got {text!r})")
    return value


def _between(text: str, least: int, most: int = LARGEST) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        limit = "on" if most == LARGEST else f"to {most}"
        raise ArgumentTypeError(f"must be a number from {least} {limit} (got {text!r})")
    return int(text)
