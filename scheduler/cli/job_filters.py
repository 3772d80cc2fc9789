"""Which jobs ls, retry, cancel and flush are about: by --type, --queue, --by, --group and --since."""

from argparse import Namespace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from scheduler.cli.session import Session
from scheduler.errors import ConfigError
from scheduler.model.schedule_times import TimesError, read_interval, read_time

OPTIONS: Final = ("types", "queues", "submitters", "groups", "since")
WORDS: Final = {"types": "of type", "queues": "in queue", "submitters": "by", "groups": "of group"}


def chosen(session: Session, options: Namespace) -> dict[str, Any]:
    """Return the parameters of the fragment `chosen` of schema/cli.sql. Errors: ConfigError."""
    values: dict[str, Any] = {name: getattr(options, name) or None for name in OPTIONS[:-1]}
    return values | {"since": since(session, options.since)}


def since(session: Session, text: str | None) -> datetime | None:
    """Return the instant that --since names: so long ago, or a local time. Errors: ConfigError."""
    return instant(session, "--since", text, sign=-1)


def instant(session: Session, option: str, text: str | None, sign: int) -> datetime | None:
    """Return the instant that an option names: a local time, or so long before (-1) or after (1) now.

    Errors: ConfigError.
    """
    if text is None:
        return None
    try:
        length = read_interval(text)
    except TimesError as no_interval:
        try:
            return read_time(text, datetime.now().astimezone().tzinfo or UTC)
        except TimesError as no_time:
            raise ConfigError(f"{option}: {no_interval}; or {no_time}") from None
    now: datetime = session.value("now")
    return now + sign * min(length, timedelta(days=365_00))


def interval(option: str, text: str | None) -> timedelta | None:
    """Return the length of time that an option names. Errors: ConfigError."""
    try:
        return None if text is None else read_interval(text)
    except TimesError as mistake:
        raise ConfigError(f"{option}: {mistake}") from None


def in_words(options: Namespace) -> str:
    """Return what is chosen, as in `of type a or b, by web, since 1h`; empty if nothing is."""
    words = [
        f"{word} {' or '.join(map(str, getattr(options, name)))}"
        for name, word in WORDS.items()
        if getattr(options, name)
    ]
    return ", ".join([*words, *([f"since {options.since}"] if options.since else [])])
