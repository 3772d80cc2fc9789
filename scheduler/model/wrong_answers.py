"""Explains lines of agents that resemble a line of the protocol and are none, for the daemon and `agent-check`.

Pure functions of bytes. The line is quoted, for what is wrong with it cannot be seen: a byte order mark, a colour.
"""

import re
from typing import Final

from scheduler.model.protocol import DB, KEYWORDS, OK, parse

SHOWN: Final = 60  # characters of a line
SILENT: Final = "is stdout flushed?"
BY_CAPITALS: Final = {keyword.upper(): keyword for keyword in KEYWORDS} | {b"OKAY": OK}

_UTF16: Final = "that is UTF-16: print UTF-8"
_BEGINNINGS: Final = (
    (b"\xff\xfe", _UTF16),
    (b"\xfe\xff", _UTF16),
    (b"\xef\xbb\xbf", "that begins with a byte order mark: print UTF-8 without one"),
    (b"\x1b", "that begins with a colour or another sequence for terminals: switch it off, as NO_COLOR=1 often does"),
    (b"\r", "that begins with a carriage return: print OK at the start of a line"),
    (b" ", "that begins with a blank: print OK at the start of a line"),
    (b"\t", "that begins with a tab: print OK at the start of a line"),
)
_SEQUENCE: Final = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"  # for terminals
_UNSEEN: Final = re.compile(rb"\xef\xbb\xbf|\xff\xfe|\xfe\xff|\0|" + _SEQUENCE)
_WIDE: Final = re.compile(rb"O\0K", re.IGNORECASE)
_FIRST_WORD: Final = re.compile(rb"\s*(([A-Za-z]+)[.!]*)(?=[\s:]|$)")
# A keyword with more text right behind it, or the past of FAIL; longer words such as ERRORS are others.
_GLUED: Final = re.compile(
    rb"FAIL!|(?:OK|ERROR|WARNING|FATAL|LOG|EVENT|ECHO|FAIL|BLOCKED|RESULT|DB)(?![A-Z])"
    rb"|(?:Success|ItemsProcessed|Heartbeat)(?![A-Za-z])|FAIL(?=(?:ED|URE)\b)"
)
_BEHIND_TEXT: Final = re.compile(rb".*\S.*\bOK\s*", re.DOTALL)


def why_no_ok(line: bytes, is_whole: bool = True) -> str:
    """Return what an agent said in place of OK, and why that is none; `line` without its newline, if it had one."""
    if not line:
        return SILENT
    said, seen = f"it said {quoted(line)}", _UNSEEN.sub(b"", line)
    if not is_whole and parse(line)[0] == OK:
        return f"{said} without a newline; print OK and a newline"
    if lookalike(line) == OK.decode():
        return f"{said}: {_flaw(line)}"
    if _BEHIND_TEXT.fullmatch(seen):
        return f"{said}: OK is not at the start of the line; print no prompt or other text before it"
    return f"{said}: the first OK is a line of its own"


def lookalike(line: bytes) -> str:
    """Return the keyword that a line of debug output was probably meant to begin with, or nothing."""
    seen = _UNSEEN.sub(b"", line)
    if (glued := _GLUED.match(seen)) is not None:
        return glued[0].decode()
    found = _FIRST_WORD.match(seen)
    if found is None:
        return ""
    whole, word = found[1].upper(), found[2].upper()
    return BY_CAPITALS.get(whole, BY_CAPITALS.get(word, b"")).decode()


def why_no_keyword(line: bytes) -> str:
    """Return what an agent said in place of a keyword, and why that is none; nothing if it is plain debug output."""
    meant = lookalike(line)
    if meant == OK.decode():
        return why_no_ok(line)
    if not meant:
        return ""
    end = "a colon and a blank follow" if meant == DB.decode() else "a blank, a colon or the end of the line follows"
    return f"it said {quoted(line)}: this is debug output; the keyword is {meant}, at the start of a line, and {end}"


def quoted(line: bytes) -> str:
    """Return a line in quotes, cut, with what cannot be seen as a number."""
    text = line[: 4 * SHOWN].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:SHOWN])
    return f"'{shown}{'…' if len(text) > SHOWN else ''}'"


def _flaw(line: bytes) -> str:
    """Return what keeps a line from being OK that would be meant as one."""
    if flaw := next((flaw for beginning, flaw in _BEGINNINGS if line.startswith(beginning)), ""):
        return flaw
    if b"\0" in line:
        return _UTF16 if _WIDE.search(line) else "that holds a NUL byte: print OK and a newline, and nothing else"
    if b"\x1b" in line:
        return "that ends in a colour or another sequence for terminals: switch it off, as NO_COLOR=1 often does"
    return "the keyword is OK, spelt so, at the start of a line; this is debug output"
