r"""The protocol of agents: an item becomes one line, or the arguments of an exec agent; a line of a reply is parsed.

A line is `column="value" column="value"`, in select order, NULLs left out. In values a backslash stands before each of
`" \ ' $` and the backquote; newline, CR and tab are `\n \r \t`, other control bytes `\xHH`. A type with
`escape = "shell"` gets the control bytes as they are, one with `nulls = "empty"` a NULL as `column=""`. One template
serves a whole query; a row is searched once and escaped only when the search hits (2.1M rows/s).

A reply is a keyword and its text. What a keyword does to a slot or a job is decided in policy/agent_replies.py.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from scheduler.errors import AgentError

Row = tuple[bytes | None, ...]

LINE_LIMIT: Final = 1 << 20  # bytes, without the newline

OK, ERROR, WARNING, FATAL, LOG, EVENT = b"OK", b"ERROR", b"WARNING", b"FATAL", b"LOG", b"EVENT"
SUCCESS, ITEMS, HEARTBEAT, ECHO = b"Success", b"ItemsProcessed", b"Heartbeat", b"ECHO"
DB, FAIL, BLOCKED, RESULT = b"DB", b"FAIL", b"BLOCKED", b"RESULT"
FAIL_FOR_GOOD = b"FAIL!"  # the job is not tried again
KEYWORDS: Final = (
    OK, ERROR, WARNING, FATAL, LOG, EVENT, SUCCESS, ITEMS, HEARTBEAT, ECHO, DB, FAIL, FAIL_FOR_GOOD, BLOCKED, RESULT,
)  # fmt: skip
DEBUG = b"DEBUG"  # anything else
_SHOWN: Final = 200  # bytes of an item in a message
OF_ITEM: Final = frozenset((ITEMS, FAIL, FAIL_FOR_GOOD, BLOCKED, RESULT))  # what they say is of the item in hand

# A keyword ends at the end of the line, a blank or a colon; `DB` alone insists on its colon and space.
_LINE: Final = re.compile(
    rb"(?:(OK|ERROR|WARNING|FATAL|LOG|EVENT|Success|ItemsProcessed|Heartbeat|ECHO|FAIL!?|BLOCKED|RESULT)"
    rb"(?:[ \t:]+(.*))?|(DB): (.*))",
    re.DOTALL,
)
_STATEMENT: Final = re.compile(rb"([A-Za-z_]\w*)[ \t]*(\{.*\})[ \t;]*", re.DOTALL)


class Item(NamedTuple):
    """A work item: one unit given to an agent."""

    line: bytes  # with its newline
    number: int  # place within the job's slice, from 0
    key: bytes | None = None  # value of the jq_key column
    row: Row = ()  # kept for exec agents only


_SPECIAL: Final = {  # what is escaped, by the `escape` of the type
    "all": re.compile(rb"""["\\'$`\x00-\x1f\x7f]"""),
    "shell": re.compile(rb"""["\\'$`]"""),
}
_ESCAPES: Final = (
    {bytes([c]): b"\\x%02x" % c for c in (*range(32), 127)}
    | {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}
    | {bytes([c]): b"\\%c" % c for c in b"\"\\'$`"}
)
_COLUMN: Final = re.compile(rb"[A-Za-z_]\w*")


def as_bytes(text: str) -> bytes:
    """Return the text as the database has it, which is no text where the database knows no encoding."""
    return text.encode("utf-8", "surrogateescape")


def check_columns(names: Sequence[bytes]) -> str | None:
    """Return the reason why these columns cannot be sent to an agent, or None."""
    bad = [name.decode("utf-8", "backslashreplace") for name in names if not _COLUMN.fullmatch(name)]
    if bad:
        return f"column name {bad[0]!r} is not a plain name: give it an alias"
    twice = next((name.decode() for name in names if names.count(name) > 1), None)
    return f"column name {twice!r} is given twice: give one an alias" if twice else None


def line_maker(names: Sequence[bytes], how: str = "all", nulls: str = "omit") -> Callable[[Row], bytes]:
    """Return the function that formats one row of these columns as a line with its newline.

    `how` and `nulls` are the `escape` and `nulls` of the agent type. The line may be one that `check_line` refuses.
    """
    cells = [name + b'="%s"' for name in names]
    whole = b" ".join(cells) + b"\n"
    search, escaped = _SPECIAL[how].search, partial(_SPECIAL[how].sub, lambda found: _ESCAPES[found[0]])

    def line(row: Row) -> bytes:
        if None in row:
            if nulls == "omit":
                present = [c % escaped(v) for c, v in zip(cells, row, strict=True) if v is not None]
                return b" ".join(present) + b"\n"
            row = tuple(value or b"" for value in row)
        if search(b"".join(row)):  # type: ignore[arg-type]
            return whole % tuple(map(escaped, row))
        return whole % row

    return line


def check_line(line: bytes) -> str | None:
    """Return the reason why this line of a row cannot be sent to a line agent, or None."""
    if len(line) > LINE_LIMIT + 1:
        return f"the line has {len(line)} bytes: at most {LINE_LIMIT} can be sent"
    if line == b"\n":
        return (
            "every column of the row is NULL, and agents may read past an empty line without an answer: "
            'leave such rows out of the query, or set nulls = "empty" or empty = "send" for the agent type'
        )
    if b"\n" in line[:-1]:
        return (
            'a value holds a newline, which cannot be sent with escape = "shell": '
            'replace it in the query, or set escape = "all" for the agent type'
        )
    return None


def check_argument(args: bytes, empty: str = "fail") -> str | None:
    """Return the reason why this parameter cannot be sent to a line agent, or None; `empty` is that of its type."""
    if not args and empty == "fail":
        return (
            "the parameter is empty, and agents may read past an empty line without an answer: "
            'give jq_args a word, or set empty = "send" for the agent type'
        )
    if b"\n" in args or b"\0" in args:
        return "the parameter holds a newline or NUL: a line agent takes one line"
    if len(args) > LINE_LIMIT:
        return f"the parameter has over {LINE_LIMIT} bytes: a line holds no more"
    return None


# ---- exec agents: placeholders inside one word of argv; raw bytes, no shell

_PLACEHOLDER: Final = re.compile(rb"\{\{|\}\}|\{(column:)?([A-Za-z_]\w*)\}")


def check_template(template: Sequence[str], names: Sequence[bytes] | None) -> str | None:
    """Return the reason why this command cannot be filled in; `names` is None for a one-parameter job."""
    known = {*(names or ())}
    for word in template:
        for found in _PLACEHOLDER.finditer(word.encode()):
            plain = found[2] in (b"id", b"args") and not found[1]
            if found[2] and not plain and found[2] not in known:
                return f"the command names {found[0].decode()}, and the job has no such column"
    return None


def fill_template(template: Sequence[str], jq_pk: int, item: Item, names: Sequence[bytes]) -> list[bytes]:
    """Return argv: `{id}` is the job, `{args}` the line, `{column}` one value; NULL is empty.

    Raises AgentError for a NUL, which no argument can hold, and for a column that the job does not have: a reload may
    have brought another command since the job was checked.
    """
    if (plain := _without_placeholders(tuple(template))) is not None:
        return list(plain)
    values = {name: value or b"" for name, value in zip(names, item.row, strict=True)}
    values = {b"column:" + name: value for name, value in values.items()} | values
    values |= {b"id": b"%d" % jq_pk, b"args": item.line[:-1]}

    def fill(found: re.Match[bytes]) -> bytes:
        return found[0][:1] if found[2] is None else values[(found[1] or b"") + found[2]]

    try:
        argv = [_PLACEHOLDER.sub(fill, word.encode()) for word in template]
    except KeyError as name:
        lacking = name.args[0].decode()
        raise AgentError(f"the command names {{{lacking}}}, and the job has no such column") from None
    if any(b"\0" in word for word in argv):
        raise AgentError("an argument would hold NUL, which no program can be given")
    return argv


@lru_cache
def _without_placeholders(template: tuple[str, ...]) -> tuple[bytes, ...] | None:
    """Return the words of a command as they are; None if they must be filled in. None of them holds NUL."""
    words = tuple(word.encode() for word in template)
    return None if any(_PLACEHOLDER.search(word) for word in words) else words


# ---- replies


def parse(line: bytes) -> tuple[bytes, bytes]:
    """Return (keyword, text) of one line without its newline; an unknown line is (DEBUG, the whole line)."""
    if line == OK:  # most are
        return OK, b""
    found = _LINE.fullmatch(line[:-1] if line.endswith(b"\r") else line)
    if found is None:
        return DEBUG, line
    keyword, text, db, statement = found.groups(b"")
    return (DB, statement.strip()) if db else (keyword, text.strip())


def parse_statement(text: bytes) -> tuple[str, bytes] | None:
    """Return (name, json) of `name {json}`; None when the text is plain SQL."""
    found = _STATEMENT.fullmatch(text)
    return (found[1].decode(), found[2]) if found else None


def shown_item(item: Item) -> str:
    """Return the line of an item as a message has it; a long one is cut."""
    line = item.line.rstrip(b"\n")
    return printable(line[:_SHOWN]) + ("..." if len(line) > _SHOWN else "")


def printable(data: bytes) -> str:
    r"""Return text that any database and any log takes: invalid UTF-8 and NUL become `\xHH`."""
    return data.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
