"""Text from the database made safe to print: what others wrote must not steer a terminal nor forge a line.

Pure: text in, text out. Source: RELIABILITY threat 3.
"""

import unicodedata
from typing import Final

NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# By category: control characters, format characters (what reorders or hides text), private use, halves of characters,
# unassigned ones, of which nobody knows what they will be; and what separates lines. Blanks of any width are shown.
UNSAFE: Final = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
# Such a half from \udc80 on is a byte that is not UTF-8 (cli/database.py).


def printable(text: str) -> str:
    r"""One line that shows every control and format character as `\n`, `\xHH`, `\uHHHH` or `\UHHHHHHHH`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The same, but newlines and tabs stay what they are."""
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def clipped(text: str, width: int) -> str:
    """One line of at most so many characters; a cut is marked."""
    line = printable(text[: width + 1])
    return line if len(line) <= width else line[: width - 1] + "…"


def _shown(c: str) -> str:
    if c.isprintable() or unicodedata.category(c) not in UNSAFE:
        return c
    if c in NAMED:
        return NAMED[c]
    code = ord(c) - 0xDC00 if "\udc80" <= c <= "\udcff" else ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
