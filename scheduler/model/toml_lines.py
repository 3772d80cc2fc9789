"""Find the line of each key of a TOML text.

tomllib keeps no line numbers; this finds them, for keys bare, quoted and dotted, in tables, inline tables and arrays
over several lines. It checks nothing: tomllib has accepted the text before. An array of tables, which no key of ours
is, counts as a table.
"""

import re
import tomllib
from collections.abc import Iterator

Path = tuple[str | int, ...]
Token = tuple[str, int]

TOKEN = re.compile(
    r'''
    [ \t\r]+ | \#[^\n]*
  | (?P<token>
      """(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}
    | \'\'\'(?:[^']|'{1,2}(?!'))*'{3,5}
    | "(?:[^"\\]|\\.)*"
    | '[^']*'
    | [^\s\[\]{},=."'#]+
    | [\n\[\]{},=.]
    )''',
    re.VERBOSE | re.DOTALL,
)


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table, key and array element of a valid TOML text, by its path."""
    return _Reader(text).read()


def _tokens(text: str) -> Iterator[Token]:
    line = 1
    for found in TOKEN.finditer(text):
        if found["token"]:
            yield found["token"], line
        line += found[0].count("\n")


def _key(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return str(tomllib.loads(f"key = {token}")["key"])


class _Reader:
    """Reads one text forwards, a token at a time."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._lines: dict[Path, int] = {}
        self._next()

    def read(self) -> dict[Path, int]:
        table: Path = ()
        while self._text:
            if self._text == "\n":
                self._next()
            elif self._text == "[":
                self._skip("[")
                table = self._path(())
                self._skip("]")
            else:
                self._pair(table)
        return self._lines

    def _next(self) -> None:
        self._text, self._line = next(self._tokens, ("", 0))

    def _skip(self, *texts: str) -> None:
        while self._text in texts:
            self._next()

    def _pair(self, table: Path) -> None:
        path = self._path(table)
        self._skip("=")
        self._value(path)

    def _path(self, path: Path) -> Path:
        """Read a dotted key below `path`; a table named on its way gets this line, unless it had one."""
        line = self._line
        while self._text not in ("=", "]"):
            if self._text != ".":
                path = (*path, _key(self._text))
                self._lines.setdefault(path, self._line)
            self._next()
        self._lines[path] = line
        return path

    def _value(self, path: Path) -> None:
        if self._text == "[":
            for number, _ in enumerate(self._elements("]")):
                self._lines[*path, number] = self._line
                self._value((*path, number))
        elif self._text == "{":
            for _ in self._elements("}"):
                self._pair(path)
        else:
            while self._text not in ("", "\n", ",", "]", "}"):
                self._next()

    def _elements(self, end: str) -> Iterator[None]:
        """Yield at the start of each element of an array or an inline table."""
        self._next()
        while True:
            self._skip("\n", ",")
            if self._text in (end, ""):
                return self._next()
            yield
