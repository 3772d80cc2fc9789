"""Variables as a shell writes them, `NAME=value` and `NAME=(a b)`, read as data: nothing is expanded, nothing is run.

Understood is what `printf '%s=%q\n'`, and people write: bare words, '...', "...", $'...' and
backslashes, over several lines if need be. What a shell would act on must be quoted. Pure: text in, values out.
"""

import re
from collections.abc import Callable
from typing import Final

from scheduler.errors import ConfigError

Value = str | list[str]

SKIPPED: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
BLANKS: Final = re.compile(r"(?:[ \t]|\\\n)*")
LINE_END: Final = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
START: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
PIECE: Final = re.compile(
    r"""'(?P<single>[^']*)'
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | \$'(?P<escaped>(?:[^'\\]|\\.)*)'
      | \\(?P<one>.)
      | (?P<bare>(?:[^\s'"\\$`;&|<>()]|\$(?!['"(]))+)""",
    re.VERBOSE | re.DOTALL,
)
IN_DOUBLE: Final = re.compile(r'\\([\\"$`\n])')
IN_ESCAPED: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
NAMED: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
JOINED: Final = "\n"  # after a backslash: the line goes on


def assignments(data: bytes) -> dict[str, Value]:
    """Return every variable, a text or a list of texts. Errors: ConfigError with `stdin:N: reason`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _mistake(data[: error.start].count(b"\n"), "is not UTF-8") from None
    if "\0" in text:
        raise _mistake(text[: text.index("\0")].count("\n"), "holds a NUL")
    return _Reader(text).read()


class _Reader:
    """Reads a text from a place on."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while self._has_more():
            line = self._at
            start = START.match(self._text, self._at)
            if start is None:
                raise self._error("NAME=value or NAME=(a b) is wanted")
            self._at = start.end()
            value = self._list() if self._text.startswith("(", self._at) else self._word()
            if not self._passes(LINE_END):
                raise self._error(self._problem())
            if start[1] in found:
                raise self._error(f"{start[1]} is given twice", line)
            found[start[1]] = value
        return found

    def _list(self) -> list[str]:
        opened, self._at = self._at, self._at + 1
        words: list[str] = []
        while self._has_more():
            before = self._at
            if self._text.startswith(")", before):
                self._at += 1
                return words
            words.append(self._word())
            if self._at == before:
                raise self._error(self._problem())
        raise self._error("the list is not closed", opened)

    def _word(self) -> str:
        pieces = []
        while piece := PIECE.match(self._text, self._at):
            assert piece.lastgroup is not None
            pieces.append(_MEANINGS[piece.lastgroup](piece[piece.lastgroup]))
            self._at = piece.end()
        return "".join(pieces)

    def _has_more(self) -> bool:
        self._passes(SKIPPED)
        return self._at < len(self._text)

    def _passes(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found is not None

    def _problem(self) -> str:
        """Return why neither a word nor the end of the line stands here."""
        self._passes(BLANKS)
        rest = self._text[self._at : self._at + 2]
        if rest[0] in "'\"" or rest == "$'":
            return "the quote is not closed"
        if rest[0] == "\\":
            return "nothing follows the backslash"
        if PIECE.match(rest):
            return "a value with blanks must be quoted"
        return f"{rest.strip()!r} must be quoted, for nothing is executed"

    def _error(self, reason: str, at: int | None = None) -> ConfigError:
        return _mistake(self._text.count("\n", 0, self._at if at is None else at), reason)


def _mistake(lines_before: int, reason: str) -> ConfigError:
    return ConfigError(f"stdin:{lines_before + 1}: {reason}; nothing was set up")


def _in_double(text: str) -> str:
    return IN_DOUBLE.sub(lambda found: found[1].replace(JOINED, ""), text)


def _in_escaped(text: str) -> str:
    """Return what bash writes as $'...'; bytes by number are UTF-8."""
    pieces = IN_ESCAPED.split(text)
    plain, escapes = pieces[::2], pieces[1::2]
    data = plain[0].encode() + b"".join(_escape(e) + p.encode() for e, p in zip(escapes, plain[1:], strict=True))
    return data.decode(errors="replace")


def _escape(word: str) -> bytes:
    if word[0] in "uU" and len(word) > 1:
        return chr(min(int(word[1:], 16), 0x10FFFF)).encode(errors="replace")
    if word[0] == "x" and len(word) > 1:
        return bytes([int(word[1:], 16)])
    if word[0] in "01234567":
        return bytes([int(word, 8) & 0xFF])
    return NAMED.get(word, word if word in "\\'\"?" else "\\" + word).encode()


_MEANINGS: Final[dict[str, Callable[[str], str]]] = {
    "single": str,
    "double": _in_double,
    "escaped": _in_escaped,
    "one": lambda character: character.replace(JOINED, ""),
    "bare": str,
}
