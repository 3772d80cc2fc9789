"""The words of a command row: `killjob 1234`, `host-max alpha 4 1`. One table says which there are and what they take.

A verb is about every scheduler, about a job, a host, an agent type or a group, or about nothing in particular, as are
those about queues; that decides which daemon acts (query `read_commands`). What it does is not known here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduler.model.config import FILTERS, NAME, NAME_RULE, filter_mistake

EVERY, JOB, HOST, TYPE = "every scheduler", "a job", "a host", "an agent type"
GROUP, ANY = "a group", "the active scheduler"
LONGEST_TEXT: Final = 1000  # characters of a command; of what the user says about a job too
LARGEST_PK: Final = 2**63 - 1
LARGEST_NUMBER: Final = 2**31 - 1
MOST_DAYS: Final = 36_500
SEE_RESULT: Final = "see jq_result"  # the text of an answer that a line cannot hold

Value = int | str | tuple[int | str, ...] | None  # of several words a tuple, but of a text
_Reader = Callable[[str, str], int | str]


class CommandError(ValueError):
    """The words are no command; the text says why."""


class Order(NamedTuple):
    """A command that makes sense: its verb and what it says for each word of the verb's usage; left out is None."""

    verb: str
    values: Mapping[str, Value]


class Verb(NamedTuple):
    """What a command is about, and the words that follow it.

    `[x]` may be left out, `...` takes the rest, `x|y` is either; the value has the name of x, in small letters.
    """

    about: str
    usage: str


VERBS: Final[Mapping[str, Verb]] = {
    "shutdown": Verb(EVERY, "[now]"),
    "reload": Verb(EVERY, ""),
    "reopen-log": Verb(EVERY, ""),
    "verbose": Verb(EVERY, "LEVEL"),
    "reset": Verb(EVERY, ""),
    "poll": Verb(EVERY, "[QUEUE...]"),
    "killjob": Verb(JOB, "JOB"),
    "cancel": Verb(JOB, "JOB [TEXT...]"),
    "signal": Verb(JOB, "JOB SIGNAL [MORE...]"),
    "release": Verb(JOB, "JOB|NAME"),
    "hold": Verb(JOB, "JOB"),
    "ice": Verb(JOB, "JOB"),
    "retry": Verb(JOB, "JOB"),
    "unblock": Verb(JOB, "JOB|CONDITION"),
    "run": Verb(ANY, "JOB..."),
    "pause": Verb(ANY, "[QUEUE...]"),
    "continue": Verb(ANY, "[QUEUE...]"),
    "add-queue": Verb(ANY, "QUEUE CONCURRENCY"),
    "remove-queue": Verb(ANY, "QUEUE"),
    "set-concurrency": Verb(ANY, "QUEUE CONCURRENCY"),
    "set-queue-priority": Verb(ANY, "QUEUE PRIORITY"),
    "host-enable": Verb(HOST, "NAME"),
    "host-disable": Verb(HOST, "NAME"),
    "host-max": Verb(HOST, "NAME MAX [URGENT]"),
    "host-filter": Verb(HOST, "NAME FILTER..."),
    "agent-enable": Verb(TYPE, "NAME"),
    "agent-disable": Verb(TYPE, "NAME"),
    "step-down": Verb(GROUP, "[GROUP]"),
    "flush": Verb(ANY, "DAYS [failed]"),
    "status": Verb(GROUP, "[GROUP]"),
}


def about(*what: str) -> list[str]:
    """Give the verbs that are about this."""
    return [name for name, verb in VERBS.items() if verb.about in what]


def parse(text: str) -> Order:
    """Understand a command. Errors: CommandError."""
    if len(text) > LONGEST_TEXT:
        raise CommandError(f"a command has at most {LONGEST_TEXT} characters")
    words = re.findall(r"[^ \t\n\r]+", text)  # as drover.word has them
    if not words:
        raise CommandError("an empty command")
    name, *rest = words
    if name not in VERBS:
        raise CommandError(f"unknown command {name!r}: there are {', '.join(VERBS)}")
    wanted = VERBS[name].usage.split()
    return Order(name, dict(_read(name, wanted, rest)))


def _read(name: str, wanted: Sequence[str], words: Sequence[str]) -> list[tuple[str, Value]]:
    usage = " ".join([name, *wanted])
    if len(words) < sum(not each.startswith("[") for each in wanted):
        raise CommandError(f"too few words: {usage}")
    if len(words) > len(wanted) and not (wanted and "..." in wanted[-1]):
        raise CommandError(f"too many words: {usage}")
    values: list[tuple[str, Value]] = []
    for place, each in enumerate(wanted):
        kind = each.strip("[].").lower()
        key = kind.partition("|")[0]
        if place >= len(words):
            values.append((key, None))
        elif kind == "text":
            values.append((key, " ".join(words[place:])))
        elif "..." in each:
            values.append((key, tuple(_READERS[kind](word, usage) for word in words[place:])))
        else:
            values.append((key, _READERS[kind](words[place], usage)))
    return values


def _number(least: int, most: int, what: str) -> _Reader:
    def read(word: str, usage: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", word) or not least <= int(word) <= most:
            raise CommandError(f"{what} (got {word!r}): {usage}")
        return int(word)

    return read


def _either(number: _Reader) -> _Reader:
    def read(word: str, usage: str) -> int | str:
        return number(word, usage) if re.fullmatch("-?[0-9]+", word) else word

    return read


def _queue(word: str, usage: str) -> str:
    if not NAME.fullmatch(word):
        raise CommandError(f"{NAME_RULE} (got {word!r}): {usage}")
    return word


def _word(word: str, _usage: str) -> str:
    return word


def _filter(word: str, usage: str) -> str:
    """One of `types=`, `queues=` and `priorities=`, of which a host may say what the configuration may."""
    try:
        filter_of(word)
    except ValueError as mistake:
        raise CommandError(f"{mistake}: {usage}") from None
    return word


def filter_of(word: str) -> tuple[str, str | tuple[str, ...]]:
    """Read `types=PATTERN`, `priorities=PATTERN` or `queues=NAME,NAME`: key and value. Errors: ValueError."""
    key, equals, text = word.partition("=")
    if not equals or key not in FILTERS:
        raise ValueError(f"types=, queues= or priorities= is wanted (got {word!r})")
    value = tuple(filter(None, text.split(","))) if key == "queues" else text
    if mistake := filter_mistake(key, value):
        raise ValueError(f"{key}: {mistake} (got {text!r})")
    return key, value


def _only(wanted: str) -> _Reader:
    def read(word: str, usage: str) -> str:
        if word != wanted:
            raise CommandError(f"only `{wanted}` may follow (got {word!r}): {usage}")
        return word

    return read


_JOB: Final = _number(1, LARGEST_PK, "the number of a job is wanted")
_READERS: Final[Mapping[str, _Reader]] = {
    "now": _only("now"),
    "failed": _only("failed"),
    "days": _number(0, MOST_DAYS, f"a number of days, at most {MOST_DAYS}, is wanted"),
    "job": _JOB,
    "job|name": _either(_JOB),
    "job|condition": _either(_JOB),
    "level": _number(0, LARGEST_NUMBER, "a level is a number from 0"),
    "max": _number(-1, LARGEST_NUMBER, "a maximum is a number, -1 for none"),
    "urgent": _number(0, LARGEST_NUMBER, "the number for urgent jobs is at least 0"),
    "concurrency": _number(1, LARGEST_NUMBER, "a concurrency is a number from 1"),
    "priority": _number(-LARGEST_NUMBER, LARGEST_NUMBER, "a priority is a number"),
    "queue": _queue,
    "signal": _word,
    "more": _word,
    "name": _word,
    "filter": _filter,
    "group": _word,
}
