"""Statements and their answers, as values: named queries, parameters, rows, failures, and settings of sessions.

Settings that our sessions depend on are set, whatever a role, a database, the server or the environment says. OURS is
for the queue and watch connections, STANDARD for the command line and migrations. SQL of jobs and of agents is the
site's, and runs as the site has set its roles; THEIRS is what our handling of its rows needs. What only a superuser may
set cannot be set here: with session_replication_role = replica no trigger runs, and nothing works.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple

from psycopg import pq

from scheduler.errors import BugError
from scheduler.model.sql_text import bind

if TYPE_CHECKING:
    from scheduler.model.queue_requests import Cells  # commands need none of it

FILES_REPLACED: Final = (
    "the files of the PostgreSQL server were replaced or removed while it runs, as by an upgrade: "
    "restart the server; the embedded one is started again by itself within a minute"
)
_UNLOADABLE: Final = re.compile("could not load library|could not access file|incompatible library")
_LIBRARY: Final = re.compile(r"\$libdir|\.so\b")  # in a message in another language
# In the CONTEXT of an error: the function that raised it, and its schema, which one with a search_path may lack.
_FUNCTION: Final = re.compile(r"function ((?:([^\s\".(]+|\"[^\"\n]+\")\.)?[^\n(]+\([^\n)]*\))")
NOTIFY_FULL: Final = "too many notifications in the NOTIFY queue"

STANDARD: Final[dict[LiteralString, LiteralString]] = {
    "array_nulls": "on",  # '{NULL}' holds a null, and not a text, which no number can be read from
    "backslash_quote": "safe_encoding",
    "bytea_output": "hex",
    "DateStyle": "ISO",  # how times are written; the order of day and month stays as it is
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",  # others change rows that we wait for, which is no failure
    "exit_on_error": "off",
    "extra_float_digits": "1",  # a number that is written and read again is the same
    "IntervalStyle": "postgres",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "xmloption": "content",
}  # fmt: skip
# The daemon has a time limit of its own for every statement, and plans that need these methods.
UNBOUND: Final[dict[LiteralString, LiteralString]] = {
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "enable_indexscan": "on",
    "enable_nestloop": "on",
}
OURS: Final = STANDARD | UNBOUND
THEIRS: Final[dict[LiteralString, LiteralString]] = {"exit_on_error": "off", "extra_float_digits": "1"}
SETTING: Final = "select pg_catalog.set_config("

_HEADER: Final = re.compile(r"^-- (name|fragment): (\S+)\n", re.MULTILINE)
_COMMENTS: Final = re.compile(r"^-- .*\n", re.MULTILINE)
_USE: Final = re.compile(r"\{\{(\w+)\}\}")
_BARE: Final = ({int}, {float}, {int, float})  # element types that an array literal holds unquoted
_EXACT: Final = ({str}, {type(None)})  # element types whose equal values are written the same, once for all


class Query(NamedTuple):
    """A statement with `$n`, and which value each `$n` is."""

    name: str
    sql: str
    names: tuple[str, ...] = ()


def load(text: str) -> dict[str, Query]:
    """Return the queries of a file by name; a block starts with `-- name: x`, parameters are `:name`."""
    return {name: Query(name, *bind(body)) for name, body in texts(text).items()}


def texts(text: str) -> dict[str, str]:
    """Return the texts of the queries of a file by name, parameters as `:name`: most of load() is to bind them."""
    return {name: body.strip() for _, name, body in _blocks(expand(text))}


def expand(text: str) -> str:
    """Return the queries of a file with the text of each fragment where they have `{{its name}}`.

    Shape: a fragment is a block that starts with `-- fragment: x`, above the blocks that use it.
    """
    blocks: dict[str, str] = {}
    queries: list[str] = []
    for kind, name, body in _blocks(text):
        if name in blocks:
            raise BugError(f"queries.sql has two blocks named {name}")
        for use in _USE.findall(body):
            if use not in blocks:
                raise BugError(f"{name} in queries.sql uses {{{{{use}}}}}, which is not defined above it")
        blocks[name] = _USE.sub(lambda use: _COMMENTS.sub("", blocks[use[1]]).strip(), body)
        if kind == "name":
            queries.append(f"-- name: {name}\n{blocks[name]}")
    return "".join(queries)


def encode(value: object) -> bytes | None:
    r"""Return a value as a text parameter; None is NULL, a dict JSON, a list an array, bytes go as they are.

    NUL, which no text in Postgres holds and where libpq would cut, becomes `\x00`; half a surrogate pair `\udcHH`.
    """
    match value:
        case bytes():
            return value.replace(b"\0", b"\\x00")
        case str():
            return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
        case None:
            return None
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case float():
            return repr(value).encode()
        case list() | tuple():
            return _array(value)
        case dict():
            return to_json(value)
    raise BugError(f"no parameter can be made of {type(value).__name__}")


def to_json(value: Any) -> bytes:
    """Return JSON that jsonb accepts: no NUL and no half of a surrogate pair in any text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return to_json(_cleaned(value))
    # A backslash before this one may make it harmless; cleaning finds nothing then, and costs time only.
    if b"\\u0000" in data and (clean := _cleaned(value)) != value:
        return to_json(clean)
    return data


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    parts = _HEADER.split(text)[1:]
    return zip(parts[::3], parts[1::3], parts[2::3], strict=True)


def _array(values: Sequence[object]) -> bytes:
    """Return an array literal; lists of numbers, of plain texts or of one value are long, and need no Python loop."""
    if not values:
        return b"{}"
    kinds = set(map(type, values))
    if kinds in _EXACT and values.count(values[0]) == len(values):
        return b"{" + b",".join([_array_of(values[:1], kinds)] * len(values)) + b"}"
    return b"{" + _array_of(values, kinds) + b"}"


def _array_of(values: Sequence[object], kinds: set[type]) -> bytes:
    """Return what stands between the braces of an array with elements of these types."""
    if kinds in _BARE:
        return repr(list(values))[1:-1].encode()
    if kinds == {str}:
        joined = '","'.join(values)  # type: ignore[arg-type]
        if joined.count('"') == 2 * len(values) - 2 and "\\" not in joined and "\0" not in joined:
            return b'"' + joined.encode("utf-8", "backslashreplace") + b'"'
    return b",".join(map(_element, values))


def _element(value: object) -> bytes:
    if isinstance(value, list | tuple):
        return _array(value)
    data = encode(value)
    if data is None:
        return b"NULL"
    return b'"' + data.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return (encode(value) or b"").decode()
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case dict():
            return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    return value


def setting(wanted: Mapping[LiteralString, LiteralString]) -> LiteralString:
    """Return one statement that sets those of `wanted` that are set otherwise, and known to this server."""
    rows: LiteralString = ", ".join(f"('{name}', '{value}')" for name, value in wanted.items())
    return (
        f"{SETTING}s.name, w.value, false)"
        f" from (values {rows}) w(name, value) join pg_catalog.pg_settings s on s.name = w.name"
        " where s.setting <> w.value"
    )


class Table:
    """The rows of a result, each read when it is asked for, so that what is urgent can be read first."""

    __slots__ = ("_columns", "_count", "_get")

    def __init__(self, result: pq.abc.PGresult) -> None:
        self._get, self._count, self._columns = result.get_value, result.ntuples, range(result.nfields)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> "Cells":
        return self._read(range(self._count)[at])

    def __iter__(self) -> "Iterator[Cells]":
        """Read rows one by one: column iterators side by side run in C, and cost a third of a call for each row."""
        if not self._columns:
            return repeat((), self._count)
        return zip(*[map(self._get, range(self._count), repeat(at)) for at in self._columns], strict=True)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Table) else other)

    def below(self, row: int, columns: int) -> "Iterator[Cells]":
        """Read the first cells of each row from one on."""
        return zip(*[map(self._get, range(row, self._count), repeat(at)) for at in range(columns)], strict=True)

    def column(self, at: int, step: int = 1) -> list[bytes | None]:
        """Read one cell of each row, or of each so many rows from the first on."""
        return list(map(self._get, range(0, self._count, step), repeat(at)))

    def _read(self, row: int) -> "Cells":
        return tuple(map(self._get, repeat(row), self._columns))


class Rows(NamedTuple):
    """The result of a statement: raw cells, column names, and how many rows it affected by its command tag."""

    rows: Table
    names: tuple[bytes, ...] = ()
    tag: int = 0


class Failure(NamedTuple):
    """Why a statement returned nothing. `lost`: the connection was lost; it is not known whether it was carried out."""

    sqlstate: str | None
    message: str
    lost: bool = False
    position: int | None = None  # character of the statement, from 1
    source: str | None = None  # file of the server that says so
    raised_by: str = ""  # a function of the site

    @property
    def is_of_notify(self) -> bool:
        """Return whether the NOTIFY queue is full: 54000 is also what is too large, and words may be translated."""
        return self.sqlstate == "54000" and (self.source == "async.c" or self.message == NOTIFY_FULL)

    @property
    def sentence(self) -> str:
        """Return the server's message with its SQLSTATE and who of the site says so, or ours without."""
        said = f"{self.message}, raised by {self.raised_by}" if self.raised_by else self.message
        return f"{said} ({self.sqlstate})" if self.sqlstate else said


Answer = Rows | Failure
Done = Callable[[Answer], None]
Sink = Callable[[Rows], bool]


@dataclass(slots=True)
class Stat:
    """How often a named statement ran, and how long it took; seconds."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)

    def __add__(self, other: "Stat") -> "Stat":
        """Return the figures of a statement that runs on two connections."""
        return Stat(self.count + other.count, self.total_s + other.total_s, max(self.max_s, other.max_s))


def read_rows(result: pq.abc.PGresult) -> Rows:
    names = tuple(filter(None, map(result.fname, range(result.nfields))))
    return Rows(Table(result), names, result.command_tuples or 0)


def read_failure(result: pq.abc.PGresult) -> Failure:
    field = pq.DiagnosticField
    wanted = (field.SQLSTATE, field.MESSAGE_PRIMARY, field.STATEMENT_POSITION, field.SOURCE_FILE, field.CONTEXT)
    state, message, position, source, context = (
        (result.error_field(key) or b"").decode("utf-8", "replace") for key in wanted
    )
    text = explained(one_line(message or result.get_error_message()), state)
    place = int(position) if position else None
    return Failure(state or None, text, position=place, source=source or None, raised_by=raised_by(context, state))


def raised_by(context: str, state: str) -> str:
    """Return which function of the site raised an error, as of a trigger, by its CONTEXT; an empty text if none did.

    No function of ours raises class P0. With another SQLSTATE one without a schema may be ours.
    """
    found = _FUNCTION.search(context)
    is_of_site = found and (state.startswith("P0") or found[2] not in (None, "drover"))
    return f"function {found[1]}" if found and is_of_site else ""


def explained(text: str, state: str | None = None) -> str:
    """Return what a server says, and what that means if it cannot load its own libraries."""
    return f"{text}; {FILES_REPLACED}" if lacks_files(text, state) else text


def lacks_files(text: str, state: str | None = None) -> bool:
    """Return whether a server says that it cannot load its own libraries; `state` is the SQLSTATE, if it gave one.

    58P01 is also said of a file that a statement names; after a log-in that fails there is none.
    """
    return _UNLOADABLE.search(text) is not None or (state == "58P01" and _LIBRARY.search(text) is not None)


def one_line(text: str) -> str:
    return " ".join(text.split())
