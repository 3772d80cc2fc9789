"""Drover's line protocol for agents, as drover-agent(7) tells it: say OK, read a line, work, say OK.

One file, standard library only, Python 3.8 or later: install it or copy it. It touches stdin and stdout, and
nothing else may read the one or write the other while it is used. It knows nothing of what the items mean.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

LINE_LIMIT_BYTES = 1 << 20  # the scheduler kills an agent whose line is longer
_TEXT_LIMIT_BYTES = LINE_LIMIT_BYTES - 64

_PAIR = re.compile(rb'([^"]+?)="([^"\\]*(?:\\.[^"\\]*)*)"( |\Z)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_PLAIN = frozenset((b'"', b"\\", b"'", b"$", b"`"))
_LINE_ENDS = re.compile(r"[\r\n]+")
_CONDITION = re.compile(r"[^\s:]+")
_PLACES = 3  # lines of the traceback in the WARNING about an unexpected exception
_TOLD_CHARACTERS = 300  # of its text, which may hold data
_GONE = select.POLLHUP | getattr(select, "POLLRDHUP", 0)  # RDHUP: stdin is a socket under some sshd


class StatementError(Exception):
    """The scheduler answered a `DB:` line with ERROR; the message is its text."""


@dataclass(frozen=True)
class Item:
    """One work item: the line as it came, and its columns (none when the line is one bare parameter).

    A column that was NULL is left out, so `item.get("host")` gives None for it.
    """

    __slots__ = ("columns", "line")
    line: str
    columns: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def get(self, column: str, default: str | None = None) -> str | None:
        return self.columns.get(column, default)

    def fail(self, text: str, *, final: bool = False) -> None:
        fail(text, final=final)

    def blocked(self, condition: str, text: str = "") -> None:
        blocked(condition, text)


def items() -> Iterator[Item]:
    """Print OK and yield the next item, for ever; the loop ends when stdin closes.

    End the body, or `continue`, when the item is done; an exception ends the agent and so fails the item.
    """
    for line in _raw_lines():
        yield Item(_text(line), _columns(line) or {})


def work(do: Callable[[Item], object]) -> None:
    """Call `do` with each item, for ever; an exception that it raises fails that item, and the agent lives on.

    Meant for all that items may hold, such as JSON of any depth. What is expected should be caught before: what gets
    here is a mistake of the agent, and a WARNING says where. Out of memory, the process is better started anew.
    """
    for item in items():
        try:
            do(item)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - one item must not end the work of all others
            told = f"{type(error).__name__}: {error}"[:_TOLD_CHARACTERS]
            warning(f"not expected: {told} ({_places(error.__traceback__)})")
            fail(told)


def lines() -> Iterator[str]:
    """Return the items as bare lines, for agents that take one parameter or look at nothing."""
    return map(_text, _raw_lines())


def parse(line: str | bytes) -> dict[str, str]:
    """Return the columns of a line `column="value" column="value"`, in order, unescaped.

    Bytes that are not UTF-8 come out as lone surrogates (surrogateescape), as Python's file names have them.
    Raises ValueError if the line is anything else.
    """
    raw = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
    columns = _columns(raw)
    if columns is None:
        raise ValueError(f'not a line of column="value" pairs: {_text(raw)[:200]!r}')
    return columns


def log(text: str) -> None:
    _say_text("LOG", text)


def warning(text: str) -> None:
    _say_text("WARNING", text)


def error(text: str) -> None:
    """Log an error and mark the job with it; the item in hand goes on."""
    _say_text("ERROR", text)


def fatal(text: str) -> None:
    """Log why the agent is about to give up; exit non-zero next."""
    _say_text("FATAL", text)


def echo(text: str) -> None:
    _say_text("ECHO", text)


def event(text: str) -> None:
    """Post an event of the job: it is logged, and delivered to those who subscribed to the job."""
    _say_text("EVENT", text)


def success() -> None:
    _say("Success")


def heartbeat() -> None:
    """Print that a long item is alive; leave at once if stdin has closed meanwhile."""
    if is_stdin_closed():
        sys.exit(0)
    _say("Heartbeat")


def items_processed(count: int) -> None:
    """Count the item in hand as `count`, in place of 1."""
    _say(f"ItemsProcessed {count:d}")


def fail(text: str, *, final: bool = False) -> None:
    """Print that the item in hand has failed; the agent goes on with the next. If `final`, it is not tried again."""
    _say_text("FAIL!" if final else "FAIL", text)


def blocked(condition: str, text: str = "") -> None:
    """Print that the item in hand cannot be done until `condition` (one word) is lifted."""
    if not _CONDITION.fullmatch(condition):
        raise ValueError(f"a condition is one word without a colon, not {condition!r}")
    _say_text(f"BLOCKED {condition}", text)


def result(value: object) -> None:
    """Store `value`, anything that JSON can say, with the job."""
    _say(f"RESULT {_json(value)}")


def db(name: str, /, **values: object) -> list[dict[str, str]]:
    """Run the statement registered as `name`; its rows as text, NULLs left out.

    Raises StatementError if the scheduler says ERROR, SystemExit if stdin closes while we wait.
    """
    _say(f"DB: {name} {_json(values)}")
    return _answer()


def db_sql(sql: str) -> list[dict[str, str]]:
    """Run bare SQL, where the agent type allows it (db = "sql"); answers and errors as `db`.

    A line end is refused (ValueError): a blank in its place could change what a string or comment means.
    """
    if _LINE_ENDS.search(sql):
        raise ValueError("the SQL of a DB line must be one line")
    _say(f"DB: {sql.rstrip().rstrip(';')};")
    return _answer()


def is_stdin_closed() -> bool:
    """Return whether the scheduler is gone. Meant for the middle of an item, when no line can be under way."""
    poll = select.poll()
    poll.register(0, _GONE)
    return bool(poll.poll(0))


def _raw_lines() -> Iterator[bytes]:
    """Yield lines without their line end. One cut short by the end of input was never sent whole: not an item."""
    read = sys.stdin.buffer.readline
    while True:
        _write(b"OK")
        line = read()
        if not line.endswith(b"\n"):
            return
        yield line[:-1]


def _answer() -> list[dict[str, str]]:
    """Return the rows up to OK; an ERROR among them is raised, but only after the OK that ends the answer was read."""
    rows: list[dict[str, str]] = []
    trouble = None
    while (line := _answer_line()) != b"OK":
        columns = None if line.startswith(b"ERROR") else _columns(line)
        if columns is None:
            trouble = re.sub("^ERROR ?", "", _text(line))
        else:
            rows.append(columns)
    if trouble is not None:
        raise StatementError(trouble)
    return rows


def _answer_line() -> bytes:
    line: bytes = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(0)
    return line[:-1]


def _columns(line: bytes) -> dict[str, str] | None:
    """Return the columns, or None if the line is not a record; a row of NULLs only is an empty line."""
    columns: dict[str, str] = {}
    end = 0
    while end < len(line):
        pair = _PAIR.match(line, end)
        if pair is None:
            return None
        name, value, blank = pair.groups()
        if b"\\" in value:
            try:
                value = _ESCAPE.sub(_unescape, value)
            except KeyError:
                return None
        columns[_text(name)] = _text(value)
        end = pair.end()
        if blank and end == len(line):
            return None
    return columns


def _unescape(match: re.Match[bytes]) -> bytes:
    code, char = match.groups()
    if code:
        return bytes.fromhex(code.decode())
    return char if char in _PLAIN else _NAMED[char]


def _places(trace: TracebackType | None) -> str:
    """Return where an exception was raised, the innermost place first."""
    found: list[str] = []
    while trace is not None:
        found.append(f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(found[: -_PLACES - 1 : -1])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, as JSON can hold: no byte stands for it
        return text.encode("utf-8", "backslashreplace")


def _say_text(keyword: str, text: str) -> None:
    """Print a keyword and text on one line, cut with a mark where the scheduler would refuse it."""
    raw = _encode(_LINE_ENDS.sub(" ", text))
    if len(raw) > _TEXT_LIMIT_BYTES - len(keyword):
        raw = raw[: _TEXT_LIMIT_BYTES - len(keyword) - 40] + b" ... (cut, %d bytes)" % len(raw)
    _write(keyword.encode() + b" " + raw if raw else keyword.encode())


def _say(line: str) -> None:
    """Print exactly this line. Raises ValueError where the scheduler would kill us for its length."""
    raw = _encode(line)
    if len(raw) >= LINE_LIMIT_BYTES:
        raise ValueError(f"a line of {len(raw)} bytes; the limit is {LINE_LIMIT_BYTES}")
    _write(raw)


def _write(line: bytes) -> None:
    """Write all of it, at once, after what print() may have left in its buffer."""
    try:
        sys.stdout.flush()
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(1, rest) :]
    except BrokenPipeError:
        _leave()


def _leave() -> NoReturn:
    """Exit, as the scheduler does not read any more: to flush what print() left would only complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(1)
