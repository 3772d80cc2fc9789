"""Named queries and what their parameters look like on the wire, in Postgres' text format.

Decides how a Python value is written for Postgres. Knows no connection and no table.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from scheduler.errors import BugError
from scheduler.model.statements import bind

_HEADER: Final = re.compile(r"^-- name: (\S+)$", re.MULTILINE)
_BARE: Final = ({int}, {float}, {int, float})  # element types that an array literal holds unquoted
_EXACT: Final = {int, str, type(None)}  # values of one of these types that are equal are written the same


class Query(NamedTuple):
    """A statement with `$n`, and which value each `$n` is."""

    name: str
    sql: str
    names: tuple[str, ...] = ()


def load(text: str) -> dict[str, Query]:
    """Give the queries of a file by name; a block starts with `-- name: x`, parameters are `:name`."""
    queries: dict[str, Query] = {}
    for name, body in _blocks(text):
        if name in queries:
            raise BugError(f"queries.sql has two queries named {name}")
        queries[name] = Query(name, *bind(body.strip()))
    return queries


def encode(value: object) -> bytes | None:
    r"""Give a value as a text parameter; None is NULL, a dict JSON, a list an array, bytes go as they are.

    NUL, which no text in Postgres holds and where libpq would cut, becomes `\x00`; half a surrogate pair `\udcHH`.
    """
    match value:
        case None:
            return None
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case float():
            return repr(value).encode()
        case str():
            return _text(value)
        case bytes():
            return value.replace(b"\0", b"\\x00")
        case list() | tuple():
            return _array(value)
        case dict():
            return to_json(value)
    raise BugError(f"no parameter can be made of {type(value).__name__}")


def to_json(value: Any) -> bytes:
    """Give JSON that jsonb takes: no NUL and no half of a surrogate pair in any text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return to_json(_cleaned(value))
    # A backslash before this one may make it harmless; cleaning finds nothing then, and costs time only.
    if b"\\u0000" in data and (clean := _cleaned(value)) != value:
        return to_json(clean)
    return data


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    parts = _HEADER.split(text)[1:]
    return zip(parts[::2], parts[1::2], strict=True)


def _text(value: str) -> bytes:
    return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace")


def _array(values: Sequence[object]) -> bytes:
    """Lists of numbers, of plain texts and of one value come by the ten thousand: no Python loop for them."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= _EXACT and values.count(values[0]) == len(values):
        return b"{" + b",".join([_array_of(values[:1], kinds)] * len(values)) + b"}"
    return b"{" + _array_of(values, kinds) + b"}"


def _array_of(values: Sequence[object], kinds: set[type]) -> bytes:
    """Give what stands between the braces of an array with elements of these types."""
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
            return _text(value).decode()
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case dict():
            return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    return value
