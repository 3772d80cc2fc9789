"""What an agent says about one item, gathered and judged: for `agent-check PROGRAM` and `agent run`.

It answers `DB:` lines itself, as no database is there. What follows from a mistake is the caller's to say.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from scheduler.cli.agent_process import AgentProcess
from scheduler.cli.output import clipped
from scheduler.model import protocol

KEPT: Final = 20  # of the lines about an item, the last
SHOWN: Final = 60  # characters of a line in a report
NO_ROWS: Final = b"OK\n"  # the answer to a DB line
DEATH_S: Final = 1.0  # for the exit of a process whose output has ended
KEYWORDS: Final = (
    protocol.OK, protocol.ERROR, protocol.WARNING, protocol.FATAL, protocol.LOG, protocol.EVENT, protocol.SUCCESS,
    protocol.ITEMS, protocol.HEARTBEAT, protocol.ECHO, protocol.DB, protocol.FAIL, protocol.BLOCKED, protocol.RESULT,
)  # fmt: skip
BY_CAPITALS: Final = {keyword.upper(): keyword for keyword in KEYWORDS} | {b"OKAY": protocol.OK}
_FIRST_WORD: Final = re.compile(rb"\s*([A-Za-z]+)[.!]*(?=[\s:]|$)")

Outcome = Literal["done", "failed", "blocked", "silent", "died"]


@dataclass
class Talk:
    """One item: what was said, how it ended, and what is wrong with what was said."""

    outcome: Outcome = "silent"
    reason: str = ""  # of FAIL or BLOCKED, or how the agent ended
    seconds: float = 0.0
    said: list[bytes] = field(default_factory=list)
    statements: list[bytes] = field(default_factory=list)  # DB lines
    mistakes: list[str] = field(default_factory=list)

    @property
    def last_words(self) -> str:
        """The last line that was said, as a report shows it."""
        return shown(self.said[-1]) if self.said else ""


def talk(
    agent: AgentProcess,
    line: bytes,
    limit_s: float,
    heard: Callable[[bytes], None] = lambda line: None,
    answer: bytes = NO_ROWS,
    most_s: float = inf,
) -> Talk:
    """Send an item, with its newline, and gather what is said up to the OK that ends it.

    The limit is for each line, `most_s` for all of them. `heard` gets each line as it comes, `answer` is what a DB line
    is answered with.
    """
    told, began = Talk(), time.monotonic()
    ends: dict[bytes, Outcome] = {protocol.FAIL: "failed", protocol.BLOCKED: "blocked"}
    outcome: Outcome = "done"
    agent.send(line)
    while (said := agent.line(limit_s)) is not None:
        keyword, text = protocol.parse(said)
        if keyword == protocol.OK:
            told.outcome, told.seconds = outcome, time.monotonic() - began
            return told
        heard(said)
        told.said = [*told.said[1 - KEPT :], said]
        if len(told.mistakes) < KEPT:
            told.mistakes += mistakes(said)
        if keyword == protocol.DB:
            told.statements.append(text)
            agent.send(answer)
        elif keyword in ends and outcome == "done":
            outcome, told.reason = ends[keyword], shown(text)
        if time.monotonic() - began > most_s:
            break
    if len(agent.rest) > protocol.LINE_LIMIT:
        told.mistakes.append(f"a line over {protocol.LINE_LIMIT} bytes: print less, or in several lines")
    elif agent.is_over:
        told.outcome, told.reason = "died", agent.end_in_words(DEATH_S)
    return told


def mistakes(line: bytes) -> Iterator[str]:
    """Yield what is wrong with a line of an agent, and how to mend it."""
    if len(line) > protocol.LINE_LIMIT:
        yield f"a line of {len(line)} bytes: at most {protocol.LINE_LIMIT} are read; the agent is killed for it"
    keyword, text = protocol.parse(line)
    if keyword == protocol.DEBUG and (meant := lookalike(line)):
        yield f"it said: {shown(line)}: the keyword is {meant}, spelt so, at the start of a line; this is debug output"
    elif keyword == protocol.RESULT and not _is_json(text):
        yield f"it said: {shown(line)}: what follows RESULT is not JSON, and is not stored"
    elif keyword == protocol.ITEMS and not re.fullmatch(rb"\d+", text):
        yield f"it said: {shown(line)}: what follows ItemsProcessed is no number"
    elif keyword == protocol.BLOCKED and not text:
        yield "it said BLOCKED without a condition: BLOCKED condition text"
    elif keyword == protocol.DB and (found := protocol.parse_statement(text)) and not _is_json(found[1]):
        yield f'it said: {shown(line)}: what follows the name is not JSON, as in DB: save {{"id":7}}'


def lookalike(line: bytes) -> str:
    """Return the keyword that a line of debug output was probably meant to begin with, or nothing."""
    found = _FIRST_WORD.match(line)
    return BY_CAPITALS.get(found[1].upper(), b"").decode() if found else ""


def shown(line: bytes) -> str:
    """Return a line as a report shows it: a part of it, and no byte that a terminal would obey."""
    return clipped(protocol.printable(line), SHOWN)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
