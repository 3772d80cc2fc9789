"""Variables as a shell writes them, `NAME=value` and `NAME=(a b)`, read as data: nothing is expanded, nothing is run.

Understood is what `printf '%s=%q\n'`, and people write: bare words, '...', "...", $'...' and
backslashes, over several lines if need be. What a shell would act on must be quoted. Pure: text in, values out.
"""

import re
from typing import Final

from scheduler.errors import ConfigError

Value = str | list[str]

# A piece of a word: '...', "...", $'...', a character behind a backslash, or characters that need no quotes.
PIECE: Final = re.compile(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|\$'(?:[^'\\]|\\.)*'|\\.|(?:[^\s'"\\$`;&|<>()]|\$(?!['"(]))+""", re.DOTALL
)
SKIPPED: Final = r"(?:[ \t\r\n]+|#[^\n]*)"  # between assignments, and between the words of a list
WORD: Final = rf"(?:{PIECE.pattern})"
# As much of an assignment as there is; `*+` never looks back. What stops it is told by _problem.
ASSIGNMENT: Final = re.compile(
    rf"{SKIPPED}*+(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)="
    rf"(?:(?P<open>\()(?P<words>(?:{SKIPPED}|{WORD}++)*+)(?P<close>\))?|(?P<word>{WORD}*+)))?",
    re.DOTALL,
)
LIST_ITEM: Final = re.compile(rf"{SKIPPED}|(?P<word>{WORD}++)", re.DOTALL)
LINE_END: Final = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
BLANKS: Final = re.compile(r"(?:[ \t]|\\\n)*")
IN_DOUBLE: Final = re.compile(r'\\([\\"$`\n])')
IN_ESCAPED: Final = re.compile(
    rb"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL
)  # fmt: skip
NAMED: Final = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f",
    b"v": b"\v", b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


def assignments(data: bytes) -> dict[str, Value]:
    """Return every variable, a text or a list of texts. Errors: ConfigError with `stdin:N: reason`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _mistake(data[: error.start].decode(), "is not UTF-8") from None
    if "\0" in text:
        raise _mistake(text[: text.index("\0")], "holds a NUL")
    found: dict[str, Value] = {}
    end = 0
    while part := ASSIGNMENT.match(text, end):
        name, stop = part["name"], part.end()
        if not name and stop == len(text):
            break
        if not name:
            raise _mistake(text[:stop], "expected NAME=value or NAME=(a b)")
        if part["open"] and not part["close"] and stop == len(text):
            raise _mistake(text[: part.start("open")], "the list is not closed")
        line_end = LINE_END.match(text, stop)
        if not line_end:
            raise _problem(text, stop)
        if name in found:
            raise _mistake(text[: part.start("name")], f"{name} is given twice")
        items = LIST_ITEM.finditer(part["words"] or "")
        words = [PIECE.sub(_meaning, item["word"]) for item in items if item["word"]]
        found[name] = words if part["open"] else PIECE.sub(_meaning, part["word"])
        end = line_end.end()
    return found


def _mistake(before: str, reason: str) -> ConfigError:
    return ConfigError(f"stdin:{before.count(chr(10)) + 1}: {reason}; nothing was set up")


def _problem(text: str, stop: int) -> ConfigError:
    """Return why neither a word nor the end of the line stands here."""
    blanks = BLANKS.match(text, stop)
    at = blanks.end() if blanks else stop
    rest = text[at : at + 2]
    if rest in ("", "\\"):
        return _mistake(text[:at], "nothing follows the backslash")
    if rest[0] in "'\"" or rest == "$'":
        return _mistake(text[:at], "the quote is not closed")
    if PIECE.match(rest):
        return _mistake(text[:at], "a value with blanks must be quoted")
    return _mistake(text[:at], f"{rest.strip()!r} must be quoted, since nothing is executed here")


def _meaning(piece: re.Match[str]) -> str:
    """Return what bash reads in a piece; bytes by number, in $'...', are UTF-8."""
    text = piece[0]
    if text.startswith("$'"):
        return IN_ESCAPED.sub(_escape, text[2:-1].encode()).decode(errors="replace")
    match text[0]:
        case "'":
            return text[1:-1]
        case '"':
            return IN_DOUBLE.sub(lambda found: found[1].strip("\n"), text[1:-1])
        case "\\":  # before the end of a line, which goes on then
            return text[1:].strip("\n")
    return text


def _escape(found: re.Match[bytes]) -> bytes:
    kind, digits = found[1][:1], found[1][1:]
    if kind in b"uU" and digits:
        return chr(min(int(digits, 16), 0x10FFFF)).encode(errors="replace")
    if kind == b"x" and digits:
        return bytes([int(digits, 16)])
    if kind in b"01234567":
        return bytes([int(found[1], 8) & 0xFF])
    return NAMED.get(kind, b"\\" + kind)
