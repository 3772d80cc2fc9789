"""The rate limits of a queue as the configuration and command set-rate have them; policy/rates.py goes by them."""

import re
from collections.abc import Iterable
from typing import Any, Final

MOST_STARTS: Final = 10_000  # in an interval: each is remembered
RATE_BY: Final = re.compile(r"submitter|host|type|data\..+")
RATE_BY_RULE: Final = "must be submitter, host, type or data.NAME"
LONGEST_INTERVAL_S: Final = 31_536_000.0
KEYS: Final = ("rate", "rate_each", "rate_by", "rate_interval")
EACH_NEEDS_BY: Final = "and rate_each belong together: give both"

Limits = dict[str, Any]


def rate_limits(rate: int, each: int, by: str, interval: float) -> Limits | None:
    """Return the limits as policy/rates.py reads them; None if there is none."""
    return {"rate": rate, "each": each, "by": by, "interval": interval} if rate or each else None


def read_limits(words: Iterable[str]) -> Limits | None:
    """Read `rate=N`, `rate_each=N`, `rate_by=ATTRIBUTE` and `rate_interval=SECONDS`. Errors: ValueError."""
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise ValueError(f"{'=, '.join(KEYS)}= are the limits of a rate (got {word!r})")
        if key in given:
            raise ValueError(f"{key} is given twice")
        given[key] = value
    by = given.get("rate_by", "")
    if by and not RATE_BY.fullmatch(by):
        raise ValueError(f"rate_by {RATE_BY_RULE} (got {by!r})")
    each = _starts("rate_each", given.get("rate_each", "0"))
    if bool(each) != bool(by):
        raise ValueError(f"rate_by {EACH_NEEDS_BY}")
    return rate_limits(_starts("rate", given.get("rate", "0")), each, by, _interval(given.get("rate_interval", "60")))


def limits_in_words(limits: Limits | None) -> str:
    """Return the limits as a person says them."""
    if not limits:
        return "no rate limit"
    whole = [f"{limits['rate']} starts"] if limits["rate"] else []
    each = [f"{limits['each']} for each {limits['by']}"] if limits["each"] else []
    return f"{', '.join(whole + each)} in {limits['interval']:g} s"


def _starts(key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) > MOST_STARTS:
        raise ValueError(f"{key} must be from 0 (no limit) to {MOST_STARTS} (got {text!r})")
    return int(text)


def _interval(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not 0 < float(text) <= LONGEST_INTERVAL_S:
        raise ValueError(f"rate_interval must be more than 0 and at most {LONGEST_INTERVAL_S:g} seconds (got {text!r})")
    return float(text)
