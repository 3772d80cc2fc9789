"""Text from the database made safe to print: what others wrote must not steer a terminal nor forge a line.

Pure: text in, text out. Source: RELIABILITY threat 3.
"""

import re

NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# C0, DEL and C1; marks that reorder text; line separators; and halves of characters, which cannot be encoded: such a
# half from \udc80 on is a byte that is not UTF-8 (cli/database.py).
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
UNSAFE_IN_LINES = re.compile(UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str) -> str:
    r"""One line that shows every control character as `\n`, `\xHH` or `\uHHHH`."""
    return UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same, but newlines and tabs stay what they are."""
    return UNSAFE_IN_LINES.sub(_escaped, text)


def clipped(text: str, width: int) -> str:
    """One line of at most so many characters; a cut is marked."""
    line = printable(text[: width + 1])
    return line if len(line) <= width else line[: width - 1] + "…"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return NAMED.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
