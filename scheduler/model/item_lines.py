r"""How a row becomes one line for a line agent, or the arguments of an exec agent.

A line is `column="value" column="value"`, in select order, NULLs left out. In values a backslash stands before each of
`" \ ' $` and the backquote; newline, CR and tab are `\n \r \t`, other control bytes `\xHH`. A type with
`escape = "shell"` gets the control bytes as they are, one with `nulls = "empty"` a NULL as `column=""`. One template
serves a whole query; a row is searched once and escaped only when the search hits (2.1M rows/s).
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from scheduler.errors import AgentError, ConfigError

Row = tuple[bytes | None, ...]

LINE_LIMIT: Final = 1 << 20  # bytes, without the newline
TWICE: Final = "comes twice: keys must be unique"


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

    Raises AgentError for a NUL, which no argument can hold.
    """
    values = {name: value or b"" for name, value in zip(names, item.row, strict=True)}
    values = {b"column:" + name: value for name, value in values.items()} | values
    values |= {b"id": b"%d" % jq_pk, b"args": item.line[:-1]}

    def fill(found: re.Match[bytes]) -> bytes:
        return found[0][:1] if found[2] is None else values[(found[1] or b"") + found[2]]

    argv = [_PLACEHOLDER.sub(fill, word.encode()) for word in template]
    if any(b"\0" in word for word in argv):
        raise AgentError("an argument would hold NUL, which no program can be given")
    return argv


# ---- the query of a multi-SQL-query


def quote_literal(value: str) -> str:
    """Return an SQL literal of unknown type, safe whatever standard_conforming_strings says."""
    if "\0" in value:
        raise ConfigError("a key holds NUL")
    return " E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def cursor_query(
    sql: str, key: str | None, watermark: str | None, beyond: Sequence[tuple[str, str]], again: Sequence[str] = ()
) -> str:
    """Return the select whose rows are the work left: the job's SQL, less what its checkpoint has.

    **shape**: with a key, rows above the watermark and outside the `beyond` ranges (first, last), in key order, and
    those with a key of `again`. It fails where two keys are equal to the database, however they are written.
    The newline before the bracket ends a comment in the job's SQL.
    """
    inner = sql.strip().removesuffix(";")
    query = f"select * from ({inner}\n) q"
    if key is None:
        return query
    column = 'q."' + key.replace('"', '""') + '"'
    wheres = [] if watermark is None else [f"{column} >{quote_literal(watermark)}"]
    wheres += [f"{column} not between{quote_literal(first)} and{quote_literal(last)}" for first, last in beyond]
    # A NULL key must be seen to fail the job, so no condition may hide it.
    where = f" where {column} is null or (" + " and ".join(wheres) + ")" if wheres else ""
    if wheres and again:
        where += f" or {column} in (" + ",".join(map(quote_literal, again)) + ")"
    told = f"concat('key ''', left({column}::text, 100), ''' {TWICE}')"
    unique = f"case when {column} = lag({column}) over (order by {column}) then {told}::integer end"
    return f"{query}{where} order by {column}, {unique}"  # what is told is no number: the cast fails, and quotes it


def doubled_key(message: str) -> str | None:
    """Return what the query of `cursor_query` reports of a key that comes twice, out of a message of the database."""
    found = re.search(f"key '.*' {TWICE}", message, re.DOTALL)
    return found and found[0]
