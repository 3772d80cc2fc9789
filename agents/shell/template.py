r"""The shell agent's macros: a template and an item become a script and its arguments.

Data never becomes a part of the script. A macro is put in as a reference to a positional parameter, so
whatever the data holds, the shell sees a value: `cp %{1} /tmp` runs as `cp "${1}" /tmp` with the data as
argument 1. The one exception is the template `%{*}` alone, which says that the item is the script. Where a macro
stands, bare, in "double" or in 'single' quotes, quoting.py says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from quoting import BARE, DOUBLE, MACRO, SINGLE, check, pieces

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_LINE = "%{*}"
_MACRO = re.compile(MACRO)
_WORD = re.compile(r"[1-9][0-9]*")
# Blanks; or a part of a word: plain, behind a backslash, in 'single' or in "double" quotes.
_PART = re.compile(
    r"""(?P<blanks>[ \t\r\n]+)|([^ \t\r\n'"\\]+)|\\(.)|'([^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)\"""", re.DOTALL
)
_IN_DOUBLE = re.compile(r"\\([\\\"])")

# By the open quote a reference stands in: what to write around ${n}, so that it is always one value.
_AROUND = {BARE: '"%s"', DOUBLE: "%s", SINGLE: "'\"%s\"'"}


class Command(NamedTuple):
    """A script for `sh -c` and the values of its ${1}, ${2}..."""

    script: str
    values: tuple[str, ...]


class Macros(NamedTuple):
    """The values of macros, from an item and its surroundings; `columns` is empty for a bare line."""

    line: str
    columns: Mapping[str, str]
    surroundings: Mapping[str, str]

    def value(self, name: str) -> str | None:
        """Return the value of `%{name}`, None if there is no such macro. Raises ValueError as `words` does."""
        if name == "*":
            return self.line
        if _WORD.fullmatch(name):
            return dict(enumerate(self.words(), start=1)).get(int(name), "")
        return self.surroundings.get(name, self.columns.get(name))

    def words(self) -> list[str]:
        """`column=value` of each column, or the words of a bare line. Raises ValueError at an open quote."""
        if self.columns:
            return [f"{column}={value}" for column, value in self.columns.items()]
        return split(self.line)


def refuse_unsafe(template: str) -> None:
    """Raise ValueError for a template in which a value could be anything but one word."""
    if template.strip() != WHOLE_LINE:
        check(template)


def expand(template: str, macros: Macros) -> Command:
    """Return the command of one item; an unknown macro stays as it is. Raises what `words` and `refuse_unsafe` do."""
    if template.strip() == WHOLE_LINE:
        return Command(macros.line, ())
    written: list[str] = []
    values: list[str] = []
    for piece, quotes in pieces(template):
        name = piece[2:-1] if _MACRO.fullmatch(piece) else ""
        value = macros.value(name)
        if value is None:
            written.append("%" if name == "%" else piece)
        else:
            values.append(value)
            written.append(_AROUND[quotes] % f"${{{len(values)}}}")
    return Command("".join(written), tuple(values))


def split(line: str) -> list[str]:
    """Return the words of a line, as shlex.split does: that takes minutes for a word of a megabyte.

    Raises ValueError at an open quote, or at a backslash with nothing behind it.
    """
    words: list[str] = []
    parts: list[str] | None = None  # of the word so far
    end = 0
    while end < len(line):
        found = _PART.match(line, end)
        if found is None:
            raise ValueError("No escaped character" if line[end] == "\\" else "No closing quotation")
        end = found.end()
        if found["blanks"] is None:
            double = found["double"]
            part = found[found.lastindex or 0] if double is None else _IN_DOUBLE.sub(r"\1", double)
            parts = [] if parts is None else parts
            parts.append(part)
        elif parts is not None:
            words.append("".join(parts))
            parts = None
    return words if parts is None else [*words, "".join(parts)]
