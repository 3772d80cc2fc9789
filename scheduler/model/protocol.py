"""The grammar of agents' lines: one line of bytes in, a keyword and its text out.

What a keyword does to a slot or a job is decided in policy/agent_replies.py.
"""

import re
from typing import Final

OK, ERROR, WARNING, FATAL, LOG = b"OK", b"ERROR", b"WARNING", b"FATAL", b"LOG"
SUCCESS, ITEMS, HEARTBEAT, ECHO = b"Success", b"ItemsProcessed", b"Heartbeat", b"ECHO"
DB, FAIL, BLOCKED, RESULT = b"DB", b"FAIL", b"BLOCKED", b"RESULT"
DEBUG = b"DEBUG"  # anything else

# A keyword ends at the end of the line, a blank or a colon; `DB` alone insists on its colon and space (F99).
_LINE: Final = re.compile(
    rb"(?:(OK|ERROR|WARNING|FATAL|LOG|Success|ItemsProcessed|Heartbeat|ECHO|FAIL|BLOCKED|RESULT)"
    rb"(?:[ \t:]+(.*))?|(DB): (.*))",
    re.DOTALL,
)
_STATEMENT: Final = re.compile(rb"([A-Za-z_]\w*)[ \t]*(\{.*\})[ \t;]*", re.DOTALL)


def parse(line: bytes) -> tuple[bytes, bytes]:
    """Return (keyword, text) of one line without its newline; an unknown line is (DEBUG, the whole line)."""
    found = _LINE.fullmatch(line[:-1] if line.endswith(b"\r") else line)
    if found is None:
        return DEBUG, line
    keyword, text, db, statement = found.groups(b"")
    return (DB, statement.strip()) if db else (keyword, text.strip())


def parse_statement(text: bytes) -> tuple[str, bytes] | None:
    """Return (name, json) of `name {json}`; None when the text is plain SQL."""
    found = _STATEMENT.fullmatch(text)
    return (found[1].decode(), found[2]) if found else None


def printable(data: bytes) -> str:
    r"""Return text that any database and any log takes: invalid UTF-8 and NUL become `\xHH`."""
    return data.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
