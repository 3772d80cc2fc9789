"""TOML texts into a Config, or into the list of all their mistakes, each with its file and line.

Decides how texts are laid over one another and how a mistake is told. Opens no file; config.py says what is
valid.
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
    """What is wrong with the value at a path of the tree."""

    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class Document:
    """All texts as one tree, the files' names, and where each path stands: (file number, line)."""

    files: tuple[str, ...]
    tree: Tree
    places: dict[Path, Place]


def parse(texts: Sequence[tuple[str, str]], *checks: Callable[[Config], Iterable[Contradiction]]) -> Config:
    """The configuration of (file name, TOML text) pairs, the main file first; `checks` give further mistakes.

    Later texts add tables and keys; a key given twice has its later value, arrays whole.
    Errors: ConfigMistakes, with every mistake.
    """
    document = _read(texts)
    config, mistakes = _structure(document.tree)
    told = {mistake.path for mistake in mistakes}
    found = (each for check in (contradictions, *checks) for each in check(config))
    mistakes += [Mistake(*each) for each in found if each[0] not in told]
    if mistakes:
        raise ConfigMistakes(_told(document, mistakes))
    return config


def holds_secret(text: str) -> bool:
    """Whether a text has a password in a connection string or URL, or a key that is called one; no comment counts."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(PASSWORD.search(line) or SECRET_VALUE.search(line) for line in lines)


# Reading: texts to one tree.


def _read(texts: Sequence[tuple[str, str]]) -> Document:
    tree: Tree = {}
    places: dict[Path, Place] = {}
    mistakes: list[str] = []
    for number, (name, text) in enumerate(texts):
        try:
            tree = _laid_over(tree, tomllib.loads(text))
            places.update({path: (number, line) for path, line in key_lines(text).items()})
        except (ValueError, RecursionError) as error:
            mistakes.append(_syntax_mistake(name, text, error))
    if mistakes:
        raise ConfigMistakes(mistakes)
    return Document(tuple(name for name, _ in texts), tree, places)


def _laid_over(low: Tree, high: Tree) -> Tree:
    if not low:
        return high
    return {**low, **{key: _one_over(low.get(key), value) for key, value in high.items()}}


def _one_over(low: Any, high: Any) -> Any:
    return _laid_over(low, high) if isinstance(low, dict) and isinstance(high, dict) else high


def _syntax_mistake(name: str, text: str, error: Exception) -> str:
    """The line itself is not shown: it may hold a password."""
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
    """A Config in any case: with mistakes, that of the tree without them, so that the rest is checked too."""
    converter = _converter()
    try:
        return converter.structure(tree, Config), []
    except BaseValidationError as error:
        mistakes = list(_mistakes(error, ()))
    for mistake in mistakes:
        tree = _mended(tree, mistake.path)
    return converter.structure(tree, Config), mistakes


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for kind, hook in {str: _text, bool: _truth, int: _whole, float: _number}.items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_literal, _choice)
    converter.register_structure_hook_factory(attrs.has, partial(_table_hook, converter))
    return converter


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _table_hook(converter: Converter, kind: type[Any]) -> Any:
    """Structures a table, each field checked by its validator at once: __init__ stops at the first."""
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
    """What a raw value must pass before cattrs, which would take any iterable for an array."""
    if kind == Argv:
        return _words
    return {tuple: _array, dict: _table}.get(get_origin(kind), lambda value: value)


def _text(value: Any, _kind: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    if "\0" in value:
        raise ValueError("must not hold a NUL")
    return value


def _truth(value: Any, _kind: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _whole(value: Any, _kind: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _number(value: Any, _kind: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("must be a number")
    return float(value)


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
    """A command: an array as it is, a text split by the shell's rules for quotes (J44)."""
    if not isinstance(value, str):
        return _array(value)
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {str(error).lower()}") from None


def _mistakes(error: BaseException, path: Path) -> Iterator[Mistake]:
    """The leaves of what cattrs raised, each with the path that its notes tell."""
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


def _mended(tree: Tree, path: Path) -> Tree:
    """The tree with something harmless, or nothing, in place of a mistake; what no name can be goes with all below."""
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
    """An array with a mistake in it goes as a whole."""
    key, *rest = path
    below = tree.get(str(key))
    if rest and isinstance(below, dict):
        return {**tree, str(key): _without(below, tuple(rest))}
    return {name: value for name, value in tree.items() if name != key}


# Telling: mistakes to lines of text.


def _told(document: Document, mistakes: list[Mistake]) -> list[str]:
    placed = sorted((_place(document, mistake.path), _line(document.tree, mistake)) for mistake in mistakes)
    return [f"{_file(document, number)}:{line}: {told}" for (number, line), told in placed]


def _place(document: Document, path: Path) -> Place:
    """Where the path stands, else the table it belongs to, else the first line of all."""
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
    """A text in double quotes on one line, control characters escaped, as an operator can read it."""
    return '"' + repr("'" + text)[2:-1].replace('"', '\\"') + '"'


def _shown(tree: Tree, path: Path) -> str:
    """The value at the path, short and without a password; what is in a table has its place told instead."""
    value: Any = tree
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return "nothing"
    if SECRET_KEY.search(str(path[-1])) or path[2:3] == ("env",):
        return "***"
    return _clipped(PASSWORD.sub(r"\g<before>***", _spelt(value)))


def _spelt(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "[" + ", ".join("[...]" if isinstance(item, list) else _spelt(item) for item in value) + "]"
        case str():
            return _escaped(value)
        case _:
            return str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
