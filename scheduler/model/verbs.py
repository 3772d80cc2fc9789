"""The registry of commands: `killjob 1234`, `host-max alpha 4 1`. One entry a verb, and everything else reads it.

An entry says what the verb is about, the words that follow it, a line of help, who may give it, how `drover` says it
and what carries it out. From VERBS follow:

* what is understood, and how it is refused: `parse`, here;
* about which jobs it may be given at once, by a filter: `in_bulk`, by the word `all` in place of a job;
* which daemon reads the command: `about`, for query `read_commands`;
* who may give it: table drover.verb, which `drover init` writes and the SQL function drover.command reads;
* `drover VERB`, `drover queue ACTION` and so on, with help and completion: scheduler/cli/command_table.py and admin.py;
* what is done: `carried_out_by` is a function of scheduler/daemon/command_actions.py, or else the query of that name
  in schema/queries.sql;
* tests that fail while drover(1) or drover-jobqueue(7) have no text about it.

So a new verb is an entry here, its SQL (or, where one statement is not enough, an action) and its text in the manual.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from scheduler.model.host_filters import FILTERS, NAME, NAME_RULE, QUEUE_RULE, filter_mistake, is_queue_name
from scheduler.model.queue_filters import filter_mistake as mistake_of_queue_filter
from scheduler.model.rate_limits import read_limits
from scheduler.model.states import (
    BLOCKED,
    CANCELLED,
    FAILED,
    HELD,
    IN_HAND,
    QUEUED,
    SKIPPED,
    states_before,
)

EVERY, JOB, HOST, TYPE = "every scheduler", "a job", "a host", "an agent type"
GROUP, ANY = "a group", "the active scheduler"
LONGEST_TEXT: Final = 1000  # characters of a command, and of the text of a job that users set
PRIORITY: Final = re.compile("[A-Za-z0-9]{1,16}")
PRIORITY_RULE: Final = "a priority has letters and digits, 16 at most"
WORD: Final = re.compile(r'"[^"]*"(?![^ \t\n\r])|[^ \t\n\r]+')  # quotes keep the blanks in a name of a queue
LARGEST_PK: Final = 2**63 - 1
LARGEST_NUMBER: Final = 2**31 - 1
MOST_DAYS: Final = 36_500
ALL: Final = "all"  # in place of a job: all those that the filter of the command finds
WAITS: Final = frozenset((HELD, QUEUED, BLOCKED))
SEE_RESULT: Final = "see jq_result"  # the text of an answer that a line cannot hold

Value = int | str | tuple[int | str, ...] | None  # of several words a tuple, but of a text


class CommandError(ValueError):
    """The words are no command, or one that cannot be carried out; the text says why."""


class Command(NamedTuple):
    """A command that was read: its verb and a value for each word of the verb's usage; left out is None."""

    verb: str
    values: Mapping[str, Value]


class Verb(NamedTuple):
    """An entry of the registry.

    `about` decides which daemon acts. Of the words that follow, `[x]` may be left out, `...` takes the rest, `x|y` is
    either; the value has the name of x, in small letters. A verb without a `cli` is given by `drover command`.

    A query that carries out a verb gets those values, `command` (the jq_pk of its row) and `job` (that it names). It
    returns no row if it cannot be done now, else one: whether it was done, and a text. It may be run twice, if the
    answer to the first run was lost.
    """

    name: str
    about: str
    usage: str
    help: str
    carried_out_by: str  # an action of the daemon, or a query
    cli: str = ""  # after `drover`: "hold"; or "queue add", an action of a command that lists too
    is_for_owners: bool = False  # they may give it about jobs of their own; all others are the operators' alone
    in_bulk: frozenset[str] = frozenset()  # the states in which it takes a job, if a filter may choose the jobs

    @property
    def job_every(self) -> int:
        """Return how far apart words that name jobs are: 1, every word does; 0, only the first."""
        return 1 if self.usage == "JOB..." else 2 if self.usage.startswith("JOB SIGNAL [") else 0


_ENTRIES: Final = (
    Verb("shutdown", EVERY, "[now]", "end when what is in hand is done, or now", "shutdown"),
    Verb("reload", EVERY, "", "read the configuration anew and go on with it", "reload"),
    Verb("reopen-log", EVERY, "", "write to the file of the log that has its name now", "reopen_log"),
    Verb("verbose", EVERY, "LEVEL", "log so many levels more than the configuration says", "verbose"),
    Verb("reset", EVERY, "", "try failed slots again", "reset"),
    Verb(
        "release", JOB, "JOB|NAME", "let a held job go, and all that wait for it", "release", "release", True,
        frozenset((HELD,)),
    ),
    Verb("hold", JOB, "JOB", "keep a job from being started", "hold", "hold", True, states_before(HELD)),
    Verb("ice", JOB, "JOB", "skip a job as if it had been done", "ice", "ice", True, states_before(SKIPPED)),
    Verb("retry", JOB, "JOB", "try a failed job again; of an SQL job with a key, its failed items only", "retry",
         "retry", True, frozenset((FAILED,))),
    Verb(
        "priority", JOB, "JOB LETTERS", "let a job that waits come sooner or later", "priority", "priority", True, WAITS
    ),
    Verb("move", JOB, "JOB QUEUE", "put a job that waits into another queue", "move", "move", False, WAITS),
    Verb(
        "cancel", JOB, "JOB [TEXT...]", "end a job that has not ended", "cancel", "cancel", True,
        states_before(CANCELLED),
    ),
    Verb("killjob", JOB, "JOB", "kill the agents of a job, which fails", "kill", "kill", True, IN_HAND),
    Verb("signal", JOB, "JOB SIGNAL [MORE...]", "send a signal to the agents of a job", "signal", "signal", True),
    Verb(
        "unblock", JOB, "JOB|CONDITION", "look again at a job that is blocked, or at all that are for a reason",
        "unblock", "unblock",
    ),
    Verb("run", ANY, "JOB...", "run jobs by hand; it ends when all have ended", "run", "", True),
    Verb("pause", ANY, "[QUEUE...]", "start no more jobs of a queue", "pause", "pause"),
    Verb("continue", ANY, "[QUEUE...]", "start jobs of a paused queue again", "pause", "continue"),
    Verb("poll", EVERY, "[QUEUE...]", "read the queue now, which schedulers also do by themselves", "poll", "poll"),
    Verb(
        "reexec", EVERY, "", "replace the daemon by the installed version, without stopping agents", "reexec", "reexec"
    ),
    Verb("add-queue", ANY, "QUEUE CONCURRENCY", "make a queue", "add_queue", "queue add"),
    Verb("remove-queue", ANY, "QUEUE", "remove a queue that is empty", "remove_queue", "queue remove"),
    Verb("set-concurrency", ANY, "QUEUE CONCURRENCY", "let so many jobs of a queue run", "set_queue", "queue set"),
    Verb("set-queue-priority", ANY, "QUEUE PRIORITY", "put a queue before others", "set_queue", "queue priority"),
    Verb("set-max-length", ANY, "QUEUE LENGTH", "let so many jobs wait in a queue", "set_queue", "queue length"),
    Verb(
        "set-filter", ANY, "QUEUE [EXPRESSION...]", "choose the jobs that go to a queue", "set_filter", "queue filter"
    ),
    Verb("set-rate", ANY, "QUEUE [LIMIT...]", "let so many jobs of a queue start in a time", "set_rate", "queue rate"),
    Verb("host-enable", HOST, "NAME", "start agents on a host again", "set_host", "host enable"),
    Verb(
        "host-disable", HOST, "NAME", "start nothing new on a host; what is in hand there is finished", "set_host",
        "host disable",
    ),
    Verb("host-max", HOST, "NAME MAX [URGENT]", "let so many agents run on a host", "set_host", "host max"),
    Verb("host-filter", HOST, "NAME FILTER...", "take certain jobs only on a host", "set_host", "host filter"),
    Verb("agent-enable", TYPE, "NAME", "serve an agent type", "set_type", "agent enable"),
    Verb(
        "agent-disable", TYPE, "NAME", "start nothing new of an agent type; what is in hand is finished", "set_type",
        "agent disable",
    ),
    Verb(
        "agent-canary", TYPE, "NAME", "try the new program of an agent type in one slot, from the first item on",
        "set_program", "agent canary",
    ),
    Verb("agent-promote", TYPE, "NAME", "let all agents of a type run its new program", "set_program", "agent promote"),
    Verb(
        "agent-rollback", TYPE, "NAME", "let no agent of a type run its new program", "set_program", "agent rollback"
    ),
    Verb("schedule-run", ANY, "SCHEDULE", "start a schedule now", "run_schedule", "schedule run"),
    Verb("schedule-enable", ANY, "SCHEDULE", "start a schedule at its times again", "set_schedule", "schedule enable"),
    Verb("schedule-disable", ANY, "SCHEDULE", "start a schedule no more", "set_schedule", "schedule disable"),
    Verb("flush", ANY, "DAYS [failed]", "remove jobs that ended long ago", "flush", "flush"),
    Verb("step-down", GROUP, "[GROUP]", "let another scheduler of the group take over", "step_down"),
    Verb("status", GROUP, "[GROUP]", "answer with what is in hand", "status"),
)  # fmt: skip
VERBS: Final[dict[str, Verb]] = {entry.name: entry for entry in _ENTRIES}


def about(*what: str) -> list[str]:
    """Return the verbs that are about this."""
    return [name for name, verb in VERBS.items() if verb.about in what]


def parse(text: str) -> Command:
    """Read a command. Errors: CommandError."""
    if len(text) > LONGEST_TEXT:
        raise CommandError(f"a command has at most {LONGEST_TEXT} characters")
    words = WORD.findall(text)  # the first two as drover.word has them, but for names of queues
    if not words:
        raise CommandError("an empty command")
    name, *rest = words
    if name not in VERBS:
        raise CommandError(f"unknown command {name!r}: there are {', '.join(VERBS)}")
    parameters = VERBS[name].usage.split()
    usage = " ".join([name, *parameters])
    if len(rest) < sum(not each.startswith("[") for each in parameters):
        raise CommandError(f"too few words: {usage}")
    if len(rest) > len(parameters) and not (parameters and "..." in parameters[-1]):
        raise CommandError(f"too many words: {usage}")
    is_bulk = is_about_all(name, rest)
    values = dict(_read(each, rest[place:], usage) for place, each in enumerate(parameters) if place or not is_bulk)
    if is_bulk:
        values["job"] = ALL
    if values.get("expression") is not None:
        values["expression"] = _expression(text, usage)
    return Command(name, values)


def is_about_all(verb: str, words: Sequence[str]) -> bool:
    """Return whether the words that follow a verb say that a filter chooses the jobs."""
    return words[:1] == [ALL] and bool(VERBS[verb].in_bulk)


def _read(parameter: str, words: Sequence[str], usage: str) -> tuple[str, Value]:
    """Return the name and the value of one parameter of a usage, whose word is the first of these."""
    kind = parameter.strip("[].").lower()
    key = kind.partition("|")[0]
    if not words:
        return key, None
    if kind == "text":
        return key, " ".join(words)
    if kind == "limit":
        _check_limits(words, usage)
    if "..." in parameter:
        return key, tuple(_read_word(kind, word, usage) for word in words)
    return key, _read_word(kind, words[0], usage)


def _check_limits(words: Sequence[str], usage: str) -> None:
    try:
        read_limits(words)
    except ValueError as mistake:
        raise CommandError(f"{mistake}: {usage}") from None


def _read_word(kind: str, word: str, usage: str) -> int | str:
    """Return the value of a word of this kind. Errors: CommandError."""
    number, _, other = kind.partition("|")
    if number in _NUMBERS and not (other and not re.fullmatch("-?[0-9]+", word)):
        least, most, what = _NUMBERS[number]
        if not re.fullmatch(r"-?[0-9]{1,19}", word) or not least <= int(word) <= most:
            raise CommandError(f"{what} (got {word!r}): {usage}")
        return int(word)
    if kind in ("now", "failed") and word != kind:
        raise CommandError(f"only `{kind}` may follow (got {word!r}): {usage}")
    if kind == "letters" and not PRIORITY.fullmatch(word):
        raise CommandError(f"{PRIORITY_RULE} (got {word!r}): {usage}")
    if kind in ("queue", "filter"):
        word = _unquoted(word)
    if kind == "queue" and not is_queue_name(word):
        raise CommandError(f"{QUEUE_RULE} (got {word!r}): {usage}")
    if kind == "schedule" and not NAME.fullmatch(word):
        raise CommandError(f"{NAME_RULE} (got {word!r}): {usage}")
    if kind == "filter":
        try:
            filter_of(word)
        except ValueError as mistake:
            raise CommandError(f"{mistake}: {usage}") from None
    return word


def _expression(text: str, usage: str) -> str:
    """Return the filter that follows verb and queue, as it is written. Errors: CommandError."""
    _, queue = islice(WORD.finditer(text), 2)
    expression = text[queue.end() :].strip(" \t\n\r")
    if mistake := mistake_of_queue_filter(expression):
        raise CommandError(f"the filter, {mistake}: {usage}")
    return expression


def quoted(word: str) -> str:
    """Return the name of a queue, or a filter of a host, as a word of a command."""
    return f'"{word}"' if WORD.fullmatch(word) is None else word


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word


_NUMBERS: Final = {  # least, most, and what to say of others
    "days": (0, MOST_DAYS, f"a number of days, at most {MOST_DAYS}, is required"),
    "job": (1, LARGEST_PK, "a job number is required"),
    "level": (0, LARGEST_NUMBER, "a level is a number from 0"),
    "max": (-1, LARGEST_NUMBER, "a maximum is a number, -1 for none"),
    "urgent": (0, LARGEST_NUMBER, "the number for urgent jobs is at least 0"),
    "concurrency": (1, LARGEST_NUMBER, "a concurrency is a number from 1"),
    "length": (0, LARGEST_NUMBER, "a length is a number, 0 for any"),
    "priority": (-LARGEST_NUMBER, LARGEST_NUMBER, "a priority is a number"),
}


def filter_of(word: str) -> tuple[str, str | tuple[str, ...]]:
    """Read `types=PATTERN`, `priorities=PATTERN` or `queues=NAME,NAME`: key and value. Errors: ValueError."""
    key, equals, text = word.partition("=")
    if not equals or key not in FILTERS:
        raise ValueError(f"types=, queues= or priorities= is required (got {word!r})")
    value = tuple(filter(None, text.split(","))) if key == "queues" else text
    if mistake := filter_mistake(key, value):
        raise ValueError(f"{key}: {mistake} (got {text!r})")
    return key, value
