"""Read TOML texts into a Config, or into the list of all their mistakes, each with its file and line.

Decides how texts are merged and how a mistake is reported. Opens no file; config.py says what is valid.
"""

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ForbiddenExtraKeysError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from scheduler.model.config import Argv, Config, ConfigMistakes, Contradiction, Path, contradictions
from scheduler.model.toml_lines import key_lines

Tree = dict[str, Any]
Place = tuple[int, int]

SYNTAX_PLACE = re.compile(r" \(at (?:line (\d+), (column \d+)|end of document)\)$")
PASSWORD = re.compile(
    r"(?P<before>password[\"']?\s*=\s*|://[^/@\s:\"']*:(?=[^/@\s\"']+@))(?:'[^']+'|\"[^\"]+\"|[^\s@\"']+)",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"(secret|token|credential|api[_-]?key)s?[\"']?\s*=\s*[\"'][^\"']", re.IGNORECASE)
SECRET_KEY = re.compile(r"password|secret|token|credential", re.IGNORECASE)
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Mistake:
    """A message about the value at a path of the tree."""

    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class Document:
    """All texts as one tree, the files' names, and where each path stands: (file number, line)."""

    files: tuple[str, ...]
    tree: Tree
    places: dict[Path, Place]


def parse(texts: Sequence[tuple[str, str]], *checks: Callable[[Config], Iterable[Contradiction]]) -> Config:
    """Return the configuration of (file name, TOML text) pairs, the main file first; `checks` find further mistakes.

    Later texts add tables and keys; a key given twice has its later value, arrays whole.
    Errors: ConfigMistakes, with every mistake.
    """
    document = _read(texts)
    config, mistakes = _structure(document.tree)
    reported = {mistake.path for mistake in mistakes}
    found = (each for check in (contradictions, *checks) for each in check(config))
    mistakes += [Mistake(*each) for each in found if each[0] not in reported]
    if mistakes:
        raise ConfigMistakes(_report(document, mistakes))
    return config


def holds_secret(text: str) -> bool:
    """Return whether a text, but for comments, has a password in a connection string, or a key that is called one."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(PASSWORD.search(line) or SECRET_VALUE.search(line) for line in lines)


# Reading: texts to one tree.


def _read(texts: Sequence[tuple[str, str]]) -> Document:
    tree: Tree = {}
    places: dict[Path, Place] = {}
    mistakes: list[str] = []
    for number, (name, text) in enumerate(texts):
        try:
            tree = _merged(tree, tomllib.loads(text))
            places.update({path: (number, line) for path, line in key_lines(text).items()})
        except (ValueError, RecursionError) as error:
            mistakes.append(_syntax_mistake(name, text, error))
    if mistakes:
        raise ConfigMistakes(mistakes)
    return Document(tuple(name for name, _ in texts), tree, places)


def _merged(low: Tree, high: Tree) -> Tree:
    if not low:
        return high
    return {**low, **{key: _merged_value(low.get(key), value) for key, value in high.items()}}


def _merged_value(low: Any, high: Any) -> Any:
    return _merged(low, high) if isinstance(low, dict) and isinstance(high, dict) else high


def _syntax_mistake(name: str, text: str, error: Exception) -> str:
    """Return a mistake without the line itself: it may hold a password."""
    if isinstance(error, RecursionError):
        return f"{name}:1: syntax: nested too deep"
    message = str(error)
    place = SYNTAX_PLACE.search(message)
    if not place:
        return f"{name}:1: syntax: {message}"
    line = place[1] or max(1, len(text.splitlines()))
    return f"{name}:{line}: syntax: {message[: place.start()]} at {place[2] or 'the end of the file'}"


# Structuring: the tree to classes, with every mistake.


def _structure(tree: Tree) -> tuple[Config, list[Mistake]]:
    """Return a Config in any case: with mistakes, that of the tree without them, so that the rest is checked too."""
    converter = _converter()
    try:
        return converter.structure(tree, Config), []
    except BaseValidationError as error:
        mistakes = list(_mistakes(error, ()))
    for mistake in mistakes:
        tree = _repaired(tree, mistake.path)
    return converter.structure(tree, Config), mistakes


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(bool, _scalar(bool, bool, "must be true or false"))
    converter.register_structure_hook(int, _scalar(int, int, "must be a whole number"))
    converter.register_structure_hook(float, _scalar(float, int | float, "must be a number"))
    converter.register_structure_hook_func(_is_literal, _choice)
    converter.register_structure_hook_factory(attrs.has, partial(_table_hook, converter))
    return converter


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _table_hook(converter: Converter, kind: type[Any]) -> Any:
    """Return what structures a table, each field checked by its validator at once: __init__ stops at the first."""
    fields: Any = {f.name: override(struct_hook=_field_hook(converter, f)) for f in attrs.fields(kind)}
    inner = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **fields)
    return lambda value, asked: inner(_table(value), asked)


def _field_hook(converter: Converter, attribute: "attrs.Attribute[Any]") -> Any:
    kind: Any = attribute.type
    before = _before(kind)

    def structure(value: Any, _kind: Any) -> Any:
        found = converter.structure(before(value), kind)
        if attribute.validator:
            attribute.validator(None, attribute, found)
        return found

    return structure


def _before(kind: Any) -> Any:
    """Return the check of a raw value before cattrs, which would take any iterable for an array."""
    if kind == Argv:
        return _words
    return {tuple: _array, dict: _table}.get(get_origin(kind), lambda value: value)


def _text(value: Any, _kind: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    if "\0" in value:
        raise ValueError("must not hold a NUL")
    return value


def _scalar(kind: Any, accepted: Any, message: str) -> Callable[[Any, Any], Any]:
    """Return what structures a value; true and false are no numbers."""

    def structure(value: Any, _kind: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(message)
        return kind(value)

    return structure


def _choice(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if not isinstance(value, str) or value not in choices:
        raise ValueError("must be one of " + ", ".join(f'"{choice}"' for choice in choices))
    return value


def _table(value: Any) -> Tree:
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    return value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("must be an array of texts")
    return value


def _words(value: Any) -> list[Any]:
    """Return a command: an array as it is, a text split by the shell's rules for quotes (J44)."""
    if not isinstance(value, str):
        return _array(value)
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {str(error).lower()}") from None


def _mistakes(error: BaseException, path: Path) -> Iterator[Mistake]:
    """Yield the leaves of an error of cattrs, each with the path in its notes."""
    match error:
        case BaseValidationError():
            for inner in error.exceptions:
                yield from _mistakes(inner, path + _step(inner))
        case ForbiddenExtraKeysError():
            for key in sorted(error.extra_fields):
                yield Mistake((*path, key), "unknown key" + _suggestion(key, error.cl))
        case KeyError():
            yield Mistake(path, "is missing")
        case _:
            yield Mistake(path, str(error))


def _step(error: BaseException) -> Path:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return (note.name,)
        if isinstance(note, IterableValidationNote):
            return (note.index,)
    return ()


def _suggestion(key: str, kind: type[Any]) -> str:
    near = difflib.get_close_matches(key, [f.name for f in attrs.fields(kind)], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _repaired(tree: Tree, path: Path) -> Tree:
    """Return the tree with something harmless, or nothing, for a mistake; a name with NUL goes with all below it."""
    for length, key in enumerate(path, 1):
        if "\0" in str(key):
            return _without(tree, path[:length])
    match path:
        case ("agents", str(), "command", *_):
            return _with(tree, path[:3], ["-"])
        case ("agents", str()):
            return _with(tree, path, {"command": ["-"]})
        case ("hosts" | "queues", str()):
            return _with(tree, path, {})
        case _:
            return _without(tree, path)


def _with(tree: Tree, path: Path, value: Any) -> Tree:
    key, *rest = path
    return {**tree, str(key): _with(tree[str(key)], tuple(rest), value) if rest else value}


def _without(tree: Tree, path: Path) -> Tree:
    """Return the tree without a path; an array with a mistake in it goes as a whole."""
    key, *rest = path
    below = tree.get(str(key))
    if rest and isinstance(below, dict):
        return {**tree, str(key): _without(below, tuple(rest))}
    return {name: value for name, value in tree.items() if name != key}


# Reporting: mistakes to lines of text.


def _report(document: Document, mistakes: list[Mistake]) -> list[str]:
    placed = sorted((_place(document, mistake.path), _line(document.tree, mistake)) for mistake in mistakes)
    return [f"{_file(document, number)}:{line}: {text}" for (number, line), text in placed]


def _place(document: Document, path: Path) -> Place:
    """Return the place of the path, else of the table it belongs to, else the first line of all."""
    for length in range(len(path), 0, -1):
        if place := document.places.get(path[:length]):
            return place
    return 0, 1


def _file(document: Document, number: int) -> str:
    return document.files[number] if document.files else "(no file)"


def _line(tree: Tree, mistake: Mistake) -> str:
    return f"{_dotted(mistake.path)}: {mistake.message} (got {_shown(tree, mistake.path)})"


def _dotted(path: Path) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def _quoted(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else _escaped(key)


def _escaped(text: str) -> str:
    """Return a text in double quotes on one line, control characters escaped, as an operator can read it."""
    return '"' + repr("'" + text)[2:-1].replace('"', '\\"') + '"'


def _shown(tree: Tree, path: Path) -> str:
    """Return the value at the path, short and without a password; of a table, only that it is one."""
    value: Any = tree
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return "nothing"
    if SECRET_KEY.search(str(path[-1])) or path[2:3] == ("env",):
        return "***"
    return _clipped(PASSWORD.sub(r"\g<before>***", _formatted(value)))


def _formatted(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "[" + ", ".join("[...]" if isinstance(item, list) else _formatted(item) for item in value) + "]"
        case str():
            return _escaped(value)
        case _:
            return str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
