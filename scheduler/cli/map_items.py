"""The commands of `drover map`, made of items behind `:::`, in a file or on standard input, as they come."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import count
from typing import Final

from scheduler.cli.map_words import Command, Splitter, Template, combinations, split_sources
from scheduler.cli.output import warn
from scheduler.errors import ConfigError

READ_BYTES: Final = 65_536


def words_and_sources(options: Namespace) -> tuple[Template, list[list[str]]]:
    """Return the template of the command, and the words behind each `:::`."""
    words, sources = split_sources(options.args)
    return Template(words, options.replace), sources


class Items:
    """The commands of a run, from the words behind `:::`, from a file or from standard input."""

    def __init__(self, options: Namespace) -> None:
        self._template, sources = words_and_sources(options)
        self._splitter = Splitter(
            at_nul=options.null, colsep=options.colsep, size=options.max_args, skip_empty=options.no_run_if_empty
        )
        self._numbers = count(1)
        if sources and options.arg_file:
            raise ConfigError("items come from ::: or from --arg-file, not from both")
        self.fd = None if sources else _open(options.arg_file)
        self._given = combinations(sources, self._splitter) if sources else iter(())
        self.is_over = False

    def some(self, most: int = 5_000) -> list[Command]:
        """Return the commands of the items that come next; of a file or a pipe what one read returns."""
        commands = []
        for values in self._read() if self.fd is not None else self._given:
            commands.append(self._template.command(next(self._numbers), values))
            if self.fd is None and len(commands) == most:
                return commands
        self.is_over = self.is_over or self.fd is None
        return commands

    def all_commands(self) -> Iterator[Command]:
        while not self.is_over:
            yield from self.some()

    def _read(self) -> Iterator[list[str]]:
        assert self.fd is not None
        try:
            data = os.read(self.fd, READ_BYTES)
        except OSError as error:
            raise ConfigError(f"the items cannot be read: {error.strerror}") from error
        self.is_over = not data
        return self._splitter.feed(data)


def _open(path: str | None) -> int:
    """Return the descriptor to read items from."""
    if path is None or path == "-":
        if sys.stdin.isatty():
            warn("reads items from the terminal, one a line; Ctrl-D ends them")
        return sys.stdin.fileno()
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"--arg-file {path}: {error.strerror}") from None
