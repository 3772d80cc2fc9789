r"""The shell agent's macros: a template and an item become a script and its arguments.

Data never becomes a part of the script. A macro is put in as a reference to a positional parameter, so
whatever the data holds, the shell sees a value: `cp %{1} /tmp` runs as `cp "${1}" /tmp` with the data as
argument 1. The one exception is the template `%{*}` alone, which says that the item is the script. Quotes are
followed, so that a macro may stand bare, in "double" or in 'single' quotes.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_LINE = "%{*}"
_PIECE = re.compile(r"(?P<macro>%\{(?P<name>[^{}]*)\})|(?P<escape>\\.)|(?P<quote>[\"'])|.", re.DOTALL)
_WORD = re.compile(r"[1-9][0-9]*")

# By the open quote a reference stands in: what to write around ${n}, so that it is always one value.
_AROUND = {"": '"%s"', '"': "%s", "'": "'\"%s\"'"}


class Command(NamedTuple):
    """A script for `sh -c` and the values of its ${1}, ${2}..."""

    script: str
    values: tuple[str, ...]


class Macros(NamedTuple):
    """What an item and its surroundings give macros to stand for; `columns` is empty for a bare line."""

    line: str
    columns: Mapping[str, str]
    surroundings: Mapping[str, str]

    def value(self, name: str) -> str | None:
        """The value of `%{name}`, None if there is no such macro. Raises ValueError as `words` does."""
        if name == "*":
            return self.line
        if _WORD.fullmatch(name):
            return dict(enumerate(self.words(), start=1)).get(int(name), "")
        return self.surroundings.get(name, self.columns.get(name))

    def words(self) -> list[str]:
        """`column=value` of each column, or the words of a bare line. Raises ValueError at an open quote."""
        if self.columns:
            return [f"{column}={value}" for column, value in self.columns.items()]
        return shlex.split(self.line)


def expand(template: str, macros: Macros) -> Command:
    """The command of one item; an unknown macro stays as it is. Raises ValueError as `words` does."""
    if template.strip() == WHOLE_LINE:
        return Command(macros.line, ())
    written: list[str] = []
    values: list[str] = []
    quote = ""
    for piece in _PIECE.finditer(template):
        name = piece["name"] or ""
        value = macros.value(name)
        if value is None:
            written.append("%" if name == "%" else piece[0])
            quote = _quote_after(quote, piece)
        else:
            values.append(value)
            written.append(_AROUND[quote] % f"${{{len(values)}}}")
    return Command("".join(written), tuple(values))


def _quote_after(quote: str, piece: re.Match[str]) -> str:
    """The quote that is open after a piece, as a shell has it: in single quotes a backslash means itself."""
    if piece["escape"]:
        return "" if piece["escape"] == "\\'" and quote == "'" else quote
    mark = piece["quote"] or ""
    if not mark or quote not in ("", mark):
        return quote
    return "" if quote else mark
