"""`drover import-scheduler-conf`: read the files of the original scheduler and write what they mean here.

What each line means is in scheduler_conf; this opens the files, and never replaces one without --force.
"""

import os
import sys
from argparse import Namespace
from typing import Final

from scheduler.cli.output import printable, warn
from scheduler.cli.scheduler_conf import Imported, convert
from scheduler.errors import ConfigError

LARGEST: Final = 16_777_216  # bytes of one file
MODE: Final = 0o644  # a configuration that others may write to is refused
EXISTS: Final = "{}: exists already; --force replaces it"
NEW, REPLACED = os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def import_scheduler_conf(options: Namespace, _config: object) -> int:
    """Write the configuration, and the placements as SQL; return 1 if a line could not be carried over.

    Errors: ConfigError if a file cannot be read or written, or if no agent is left.
    """
    _refuse_to_replace(options)
    found = convert([(path, _content(path)) for path in options.files])
    for problem in found.problems:
        print(printable(problem), file=sys.stderr)
    if not found.toml:
        raise ConfigError(f"{', '.join(options.files)}: no agent line can be carried over; nothing is written")
    _write(options, found)
    return 1 if found.problems else 0


def _refuse_to_replace(options: Namespace) -> None:
    """Raise ConfigError for a file that exists, before any is written."""
    for path in (options.output, options.placements):
        if path and not options.force and os.path.lexists(path):
            raise ConfigError(EXISTS.format(path))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > LARGEST or b"\0" in content:
        raise ConfigError(f"{path}: cannot be read: is not a text of at most {LARGEST} bytes")
    return content


def _write(options: Namespace, found: Imported) -> None:
    """Write the SQL into its file, or as comments behind the configuration, and that into its file or on stdout."""
    toml, flags = found.toml, REPLACED if options.force else NEW
    if found.sql and options.placements:
        _save(options.placements, found.sql, flags)
        warn(f"{options.placements}: run it once, with psql -f, as a drover_operator")
    elif options.placements:
        warn(f"{options.placements}: not written: there is no range that can be carried over")
    elif found.sql:
        toml += "\n" + "".join(f"# {line}\n" for line in found.sql.splitlines())
    if options.output:
        _save(options.output, toml, flags)
    else:
        sys.stdout.buffer.write(toml.encode())  # TOML is UTF-8, whatever the terminal is


def _save(path: str, text: str, flags: int) -> None:
    try:
        descriptor = os.open(path, flags, MODE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(EXISTS.format(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
