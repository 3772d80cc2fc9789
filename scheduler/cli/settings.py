"""`drover config`: print each setting with its value and where that comes from.

That is the command line, the environment, a file and its line, or the default. Shows no password, and no variable of an
agent's environment.
"""

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import attrs

from scheduler.cli.config_files import SYSTEM, USER, locate, read, shipped
from scheduler.cli.output import Table, failed, print_records, print_table
from scheduler.model.config import Config
from scheduler.model.config import Path as Key
from scheduler.model.config_text import dotted, key_lines, masked, parse

DEFAULT: Final = "default"
OVERRIDDEN: Final = ("url", "people_url", "password_file")  # keys of [database], by DROVER_DATABASE_URL


class Setting(NamedTuple):
    """A setting as people are shown it."""

    setting: str
    value: str
    origin: str


def show_settings(options: Namespace, config: Config) -> int:
    """Print all settings, or those below the names that were given; 1 if there is none of a name."""
    texts = read(locate(options.config, os.environ))
    as_written = attrs.evolve(parse(texts), database=config.database)  # what was loaded has preludes in its commands
    origins = _file_origins(texts) | _database_origins(options)
    settings = [_main_file(options), *_settings(as_written, (), origins)]
    names = options.settings
    if unknown := [name for name in names if not any(_is_below(each, name) for each in settings)]:
        return failed(f"no setting {', '.join(unknown)}; drover config lists all")
    chosen = [each for each in settings if not names or any(_is_below(each, name) for name in names)]
    rows = [each for each in chosen if not options.given or each.origin != DEFAULT]
    if options.json:
        print_records(each._asdict() for each in rows)
    else:
        print_table(Table("", tuple(heading.upper() for heading in Setting._fields), rows))
    return 0


def _is_below(each: Setting, name: str) -> bool:
    return each.setting == name or each.setting.startswith(f"{name}.")


def _main_file(options: Namespace) -> Setting:
    """Return which file is read, and who says so."""
    path = locate(options.config, os.environ)
    if options.config:
        origin = "-c"
    elif os.environ.get("DROVER_CONFIG"):
        origin = "DROVER_CONFIG"
    else:
        places = {SYSTEM: "the machine's", shipped(): "comes with the program"}
        origin = places.get(path, f"~/{USER}")
    return Setting("file", str(path), origin)


def _file_origins(texts: Iterable[tuple[str, str]]) -> dict[Key, str]:
    """Return the file and line of each key that is given; a later file wins."""
    origins: dict[Key, str] = {}
    for name, text in texts:
        origins |= {key: f"{name}:{line}" for key, line in key_lines(text).items()}
    return origins


def _database_origins(options: Namespace) -> dict[Key, str]:
    """Return who else says which database is meant: -d, or the environment."""
    if options.database is not None:
        return {("database", key): "-d" for key in OVERRIDDEN}
    is_given = os.environ.get("DROVER_DATABASE_URL")
    return {("database", key): "DROVER_DATABASE_URL" for key in OVERRIDDEN} if is_given else {}


def _settings(value: Any, key: Key, origins: Mapping[Key, str]) -> Iterator[Setting]:
    """Yield the settings of a table in the order of its keys, or the one that a value is."""
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from _settings(getattr(value, field.name), (*key, field.name), origins)
    elif isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _settings(entry, (*key, name), origins)
    else:
        yield Setting(dotted(key), masked(key, value), origins.get(key, DEFAULT))
