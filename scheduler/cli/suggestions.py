"""An argparse that says what was perhaps meant: of a mistyped command, option or choice."""

import re
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Final, NoReturn

CHOICE: Final = re.compile(
    r"argument (?P<name>[^:]*): invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)"
)
UNKNOWN: Final = re.compile(r"unrecognized arguments: (?P<words>.*)")


class Parser(ArgumentParser):
    """Errors of it end with a suggestion where a word is near to one that there is."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what was perhaps meant, and exit with 2."""
        super().error(self._helpful(message))

    def _helpful(self, message: str) -> str:
        if found := CHOICE.fullmatch(message):
            choices = [each.strip(" '") for each in found["choices"].split(",")]
            near = suggestion(found["word"], choices)
            if found["name"] == "COMMAND":
                return f"no command {found['word']!r}{near or ';'} drover --help lists all"
            return f"{message}{near}"
        if found := UNKNOWN.fullmatch(message):
            word = found["words"].split()[0].partition("=")[0]
            return f"{message}{suggestion(word, self._option_string_actions) if word.startswith('--') else ''}"
        return message


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X or Y?` if known words are near to this one, else nothing."""
    from difflib import get_close_matches  # rarely needed

    near = get_close_matches(word, list(known), n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""
