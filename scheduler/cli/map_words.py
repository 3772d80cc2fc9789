"""Words of `drover map`: the template of a command, its replacement strings, and where its items come from.

An item becomes a word, or a part of one, and is never read by a shell: a template that would put it into the program of
a shell is refused. Bytes that are not UTF-8 become lone surrogates, as in file names. Nothing is read or run here.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from scheduler.errors import ConfigError

SOURCE: Final = ":::"
# Behind the number of a value, or alone: what of it is meant.
PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "": lambda value: value,
    ".": lambda value: os.path.splitext(value)[0],
    "/": os.path.basename,
    "//": lambda value: os.path.dirname(value) or ".",
    "/.": lambda value: os.path.splitext(os.path.basename(value))[0],
}
BOTH: Final = "{}"
BRACES: Final = r"\{(?P<which>[1-9][0-9]*)?(?P<part>//|/\.|/|\.|)\}|\{(?P<number>#)\}"
SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "csh", "tcsh", "busybox"))
# Behind the name of a shell, words that end with a NUL: options, one with a c, and the program.
SHELL_OPTIONS: Final = re.compile("(?:[-+][^\0]*\0|(?<=o\0)[^\0]*\0)*?-[a-z]*c[a-z]*\0(?P<program>[^\0]*)\0")
LONGEST_LINE: Final = 1_000_000  # bytes of a command, as the line of an agent


class Command(NamedTuple):
    """The command for one item: the number of the item, from 1, and the words to execute."""

    number: int
    words: list[str]


class Template:
    """The words of a command, in which replacement strings stand for the values of an item."""

    def __init__(self, words: Sequence[str], replace: str = BOTH) -> None:
        if not words:
            raise ConfigError("name a command: drover map -- gzip ::: *.txt")
        own = "" if replace == BOTH else rf"{re.escape(replace)}|(?!\{{\}})"  # then {} is not replaced
        self._pattern = re.compile(f"{own}{BRACES}")
        if not any(self._pattern.search(word) for word in words):
            words = [*words, replace]
        self._words = words
        self._check_shells()
        self.program = "" if self._pattern.search(words[0]) else words[0]
        found = [match for word in words for match in self._pattern.finditer(word)]
        self._most = max((int(match["which"]) for match in found if match["which"]), default=0)

    def command(self, number: int, values: Sequence[str]) -> Command:
        """Return what is run for the item of this number. Errors: ConfigError, it has too few values or is too long."""
        if len(values) < self._most:
            raise ConfigError(f"item {number} has {counted(len(values), 'value')}, and {{{self._most}}} is asked for")
        words = [each for word in self._words for each in self._filled(word, number, values)]
        if sum(len(word) + 3 for word in words) > LONGEST_LINE:
            raise ConfigError(f"the command of item {number} is longer than {LONGEST_LINE:,} bytes")
        if any("\0" in word for word in words):
            raise ConfigError(f"item {number} holds a NUL, which no command can have in a word; -0 separates by NULs")
        return Command(number, words)

    def _filled(self, word: str, number: int, values: Sequence[str]) -> list[str]:
        """Return what a word becomes; one that is a replacement string alone becomes a word for each value."""
        whole = self._pattern.fullmatch(word)
        if whole and not whole["number"]:
            return self._meant(whole, values)
        return [self._pattern.sub(lambda found: self._text(found, number, values), word)]

    def _text(self, found: re.Match[str], number: int, values: Sequence[str]) -> str:
        return str(number) if found["number"] else " ".join(self._meant(found, values))

    def _meant(self, found: re.Match[str], values: Sequence[str]) -> list[str]:
        which = found["which"]
        chosen = [values[int(which) - 1]] if which else values
        return [PARTS[found["part"] or ""](value) for value in chosen]

    def _check_shells(self) -> None:
        """Refuse an item in the program of a shell, where a name like `a;rm -r b` would be run."""
        for place, word in enumerate(self._words):
            shell, options = os.path.basename(word), SHELL_OPTIONS.match("\0".join([*self._words[place + 1 :], ""]))
            if shell in SHELLS and options and self._pattern.search(options["program"]):
                raise ConfigError(
                    f"a shell would run what is in an item: write {word} -c '... \"$1\" ...' {word} {{}}, "
                    "which gives it as a parameter"
                )


def counted(number: int, what: str) -> str:
    """Return `1 value`, `2 values`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def split_sources(words: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the words before the first `:::`, and those behind each."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SOURCE:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts[0], parts[1:]


class Splitter:
    """Cuts what is read into the values of commands.

    An item ends at each line end or NUL, and has a value for each column; a command has the values of `size` items.
    """

    def __init__(self, *, at_nul: bool, colsep: str | None, size: int, skip_empty: bool) -> None:
        try:
            self._columns = None if colsep is None else re.compile(colsep)
        except re.error as error:
            raise ConfigError(f"--colsep {colsep}: is no regular expression: {error}") from None
        self._end = b"\0" if at_nul else b"\n"
        self._size, self._skip_empty = size, skip_empty
        self._rest = b""
        self._items: list[tuple[str, ...]] = []  # of the next command

    def feed(self, data: bytes) -> Iterator[list[str]]:
        """Yield the values of each command that is complete; no data is the end of the input."""
        *items, self._rest = (self._rest + data).split(self._end)
        if not data and self._rest:
            items, self._rest = [self._rest], b""
        for item in items:
            if item or not self._skip_empty:
                yield from self.add(self._values(os.fsdecode(item)))
        if not data:
            yield from self.finish()

    def add(self, values: tuple[str, ...]) -> Iterator[list[str]]:
        """Yield the values of a command if this item completes it."""
        self._items.append(values)
        if len(self._items) == self._size:
            yield from self.finish()

    def finish(self) -> Iterator[list[str]]:
        """Yield the values of a last command that has fewer items."""
        if self._items:
            yield [value for values in self._items for value in values]
        self._items = []

    def _values(self, text: str) -> tuple[str, ...]:
        return tuple(self._columns.split(text)) if self._columns else (text,)


def combinations(sources: Sequence[Sequence[str]], splitter: Splitter) -> Iterator[list[str]]:
    """Yield the values of each command for words behind `:::`; of several sources each combination."""
    for values in product(*sources):
        yield from splitter.add(values)
    yield from splitter.finish()
