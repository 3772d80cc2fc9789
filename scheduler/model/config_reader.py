"""Read TOML texts into a Config, or into the list of all their mistakes, each with its file and line.

Decides how texts are merged and how a mistake is reported. Opens no file; what is valid is said in
config.py and config_rules.py.
"""

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import attrs
from attrs import NOTHING

from scheduler.model.config import AUTO, AgentType, Argv, Config, ConfigMistakes, Mistake, Path, Window
from scheduler.model.config_rules import contradictions

Tree = dict[str, Any]
Place = tuple[int, int]  # number of the file, line
Token = tuple[str, int]  # text, line

SYNTAX_PLACE = re.compile(r" \(at (?:line (\d+), (column \d+)|end of document)\)$")
PASSWORD = re.compile(
    r"(?P<before>password[\"']?\s*=\s*|://[^/@\s:\"']*:(?=[^/@\s\"']+@))(?:'[^']+'|\"[^\"]+\"|[^\s@\"']+)",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"(secret|token|credential|api[_-]?key)s?[\"']?\s*=\s*[\"'][^\"']", re.IGNORECASE)
SECRET_WORD = re.compile(
    r"(?P<before>--?[\w-]*(?:secret|token|credential|api[_-]?key)\w*(?:=|\", \"))[^\s\"]+", re.IGNORECASE
)
SECRET_KEY = re.compile(r"password|secret|token|credential", re.IGNORECASE)
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SHOWN_CHARACTERS = 60
NO_NUL = "must not hold a NUL"
SCALARS: dict[Any, tuple[Any, str]] = {  # what TOML must have for a type, and the mistake otherwise
    str: (str, "must be a text in quotes"),
    bool: (bool, "must be true or false"),
    int: (int, "must be a whole number"),
    float: (int | float, "must be a number"),
}
TOKEN = re.compile(
    r'''
    [ \t\r]+ | \#[^\n]*
  | (?P<token>
      """(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}
    | \'\'\'(?:[^']|'{1,2}(?!'))*'{3,5}
    | "(?:[^"\\]|\\.)*"
    | '[^']*'
    | [^\s\[\]{},=."'#]+
    | [\n\[\]{},=.]
    )''',
    re.VERBOSE | re.DOTALL,
)


def parse(
    texts: Sequence[tuple[str, str]], *checks: Callable[[Config], Iterable[Mistake]], processors: int = 1
) -> Config:
    """Return the configuration of (file name, TOML text) pairs, the main file first; `checks` find further mistakes.

    Later texts add tables and keys; a key given twice has its later value, arrays whole. An exec type that does not say
    how many slots it has gets one for each of the `processors`.
    Errors: ConfigMistakes, with every mistake.
    """
    tree, places = _read(texts)
    mistakes: list[Mistake] = []
    config: Config = _table(Config, tree, (), mistakes)
    config = attrs.evolve(config, agents={name: _with_slots(tree, name, each, processors)
                                          for name, each in config.agents.items()})  # fmt: skip
    reported = {path for path, _ in mistakes}
    found = (each for check in (contradictions, *checks) for each in check(config))
    mistakes += [(path, message) for path, message in found if path not in reported]
    if mistakes:
        placed = sorted((_place(places, path), _line(tree, path, message)) for path, message in mistakes)
        names = [name for name, _ in texts] or ["(no file)"]
        raise ConfigMistakes(f"{names[number]}:{line}: {text}" for (number, line), text in placed)
    return config


def _with_slots(tree: Tree, name: str, agent: AgentType, processors: int) -> AgentType:
    is_given = agent.kind != "exec" or "slots" in tree["agents"][name]
    return agent if is_given else attrs.evolve(agent, slots=processors)


def config_of(tables: Tree) -> Config:
    """Return the configuration of tables that were valid for this version or another; what is not is left out."""
    config: Config = _table(Config, _without_none(tables), (), [])
    return config


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def holds_secret(text: str) -> bool:
    """Return whether a text, but for comments, has a password in a connection string, or a key that is called one."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(PASSWORD.search(line) or SECRET_VALUE.search(line) for line in lines)


# ---- texts to one tree, and the place of each path


def _read(texts: Sequence[tuple[str, str]]) -> tuple[Tree, dict[Path, Place]]:
    tree: Tree = {}
    places: dict[Path, Place] = {}
    mistakes: list[str] = []
    for number, (name, text) in enumerate(texts):
        try:
            tree = _merged(tree, tomllib.loads(text))
            places.update({path: (number, line) for path, line in key_lines(text).items()})
        except (ValueError, RecursionError) as error:
            mistakes.append(f"{name}:{_syntax_mistake(text, error)}")
    if mistakes:
        raise ConfigMistakes(mistakes)
    return tree, places


def _merged(low: Any, high: Any) -> Any:
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    return low | {key: _merged(low.get(key), value) for key, value in high.items()}


def _syntax_mistake(text: str, error: Exception) -> str:
    """Return the line and the mistake, but not what the line says: it may hold a password."""
    if isinstance(error, RecursionError):
        return "1: syntax: nested too deep"
    message = str(error)
    place = SYNTAX_PLACE.search(message)
    if not place:
        return f"1: syntax: {message}"
    line = place[1] or max(1, len(text.splitlines()))
    return f"{line}: syntax: {message[: place.start()]} at {place[2] or 'the end of the file'}"


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table, key and array element of a TOML text that tomllib has accepted.

    tomllib keeps no line numbers. An array of tables, which no key of ours is, counts as a table.
    """
    lines: dict[Path, int] = {}
    tokens: list[Token] = []
    line = 1
    for found in TOKEN.finditer(text):
        if found["token"]:
            tokens.append((found["token"], line))
        line += found[0].count("\n")
    tokens = [("", 0), *reversed(tokens)]  # the next one is the last
    table: Path = ()
    while start := tokens[-1][0]:
        if start not in ("\n", "[", "]"):
            _read_value(tokens, lines, _read_path(tokens, lines, table, "="))
        elif tokens.pop()[0] == "[" and tokens[-1][0] != "[":
            table = _read_path(tokens, lines, (), "]")
    return lines


def _read_path(tokens: list[Token], lines: dict[Path, int], path: Path, end: str) -> Path:
    """Read a dotted key below `path`; a table named on its way gets this line, unless it had one."""
    first = tokens[-1][1]
    while (token := tokens.pop())[0] != end:
        text, line = token
        if text != ".":
            path = (*path, tomllib.loads(f"key = {text}")["key"] if text[0] in "\"'" else text)
            lines.setdefault(path, line)
    lines[path] = first
    return path


def _read_value(tokens: list[Token], lines: dict[Path, int], path: Path) -> None:
    opener, number = tokens.pop()[0], 0
    if opener not in ("[", "{"):
        while tokens[-1][0] not in ("", "\n", ",", "]", "}"):
            tokens.pop()
        return
    while tokens[-1][0] not in ("]", "}"):
        if tokens[-1][0] in ("\n", ","):
            tokens.pop()
        elif opener == "{":
            _read_value(tokens, lines, _read_path(tokens, lines, path, "="))
        else:
            lines[*path, number] = tokens[-1][1]
            _read_value(tokens, lines, (*path, number))
            number += 1
    tokens.pop()


# ---- the tree to classes


def _table(kind: Any, table: Tree, path: Path, mistakes: list[Mistake]) -> Any:
    """Return a table without what is wrong in it, so that the rest is checked too; its mistakes are added."""
    fields = {field.name: field for field in attrs.fields(kind)}
    for key in table.keys() - fields.keys():
        near = difflib.get_close_matches(key, fields, n=1)
        mistakes.append(((*path, key), "unknown key" + (f"; did you mean {near[0]}?" if near else "")))
    values: Tree = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _value(field.type, table[name], (*path, name), mistakes, field)
        elif field.default is NOTHING:
            mistakes.append(((*path, name), "is missing"))
        if field.default is NOTHING and values.get(name, NOTHING) is NOTHING:
            values[name] = ("-",)  # only a command is required
    return kind(**{name: value for name, value in values.items() if value is not NOTHING})


def _value(kind: Any, value: Any, path: Path, mistakes: list[Mistake], field: Any = None) -> Any:
    """Return a value as its type, or NOTHING if it is wrong or its field does not allow it; its mistakes are added."""
    try:
        found = _typed(kind, value, path, mistakes)
        if field is not None and field.validator and found is not NOTHING:
            field.validator(None, field, found)
    except (ValueError, OverflowError) as error:
        mistakes.append((path, str(error)))
        return _table(kind, {}, path, []) if attrs.has(kind) else NOTHING
    return found


def _typed(kind: Any, value: Any, path: Path, mistakes: list[Mistake]) -> Any:
    """Return a value as its type, or NOTHING if one in it is wrong. Errors: ValueError if it is wrong itself."""
    origin, inner = get_origin(kind), get_args(kind)
    if attrs.has(kind) or origin is dict:
        if not isinstance(value, dict):
            raise ValueError("must be a table")
        return _entries(inner[1], value, path, mistakes) if inner else _table(kind, value, path, mistakes)
    if kind == Argv or origin is tuple:
        words = _words(value) if kind == Argv and isinstance(value, str) else value
        if not isinstance(words, list):
            raise ValueError("must be an array of texts")
        items = tuple(_value(str, word, (*path, number), mistakes) for number, word in enumerate(words))
        return NOTHING if NOTHING in items else items
    if kind == Window:
        if value == AUTO or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise ValueError(f'must be "{AUTO}", or a whole number')
    if origin is Literal:
        if value not in inner:
            raise ValueError("must be one of " + ", ".join(f'"{choice}"' for choice in inner))
        return value
    kind = inner[0] if origin is UnionType else kind  # or None, which TOML does not have
    accepted, message = SCALARS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(message)
    if isinstance(value, str) and "\0" in value:
        raise ValueError(NO_NUL)
    return kind(value)


def _entries(kind: Any, table: Tree, path: Path, mistakes: list[Mistake]) -> Tree:
    """Return a table whose names are free, without its wrong entries."""
    entries: Tree = {}
    for name, value in table.items():
        known = len(mistakes)
        entry = _value(kind, value, (*path, name), mistakes)
        if "\0" not in name and entry is not NOTHING:
            entries[name] = entry
        elif len(mistakes) == known:
            mistakes.append(((*path, name), NO_NUL))
    return entries


def _words(command: str) -> list[str]:
    """Return the words of a command, split by the shell's rules for quotes."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {str(error).lower()}") from None


# ---- mistakes to lines of text


def _place(places: dict[Path, Place], path: Path) -> Place:
    """Return the place of the path, else of the table it belongs to, else the first line of all."""
    for length in range(len(path), 0, -1):
        if place := places.get(path[:length]):
            return place
    return 0, 1


def _line(tree: Tree, path: Path, message: str) -> str:
    return f"{dotted(path)}: {message} (got {_shown(tree, path)})"


def dotted(path: Path) -> str:
    """Return a path as it is written in a file: hosts.alpha.command[0]."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key if BARE_KEY.fullmatch(key) else _quoted(key)}"
    return text.removeprefix(".")


def _quoted(text: str) -> str:
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
    text = masked(path, value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def masked(path: Path, value: Any) -> str:
    """Return a value as TOML has it, without a password or what may be one."""
    if value not in ("", {}) and (SECRET_KEY.search(str(path[-1])) or path[2:3] == ("env",)):
        return "***"
    return PASSWORD.sub(r"\g<before>***", SECRET_WORD.sub(r"\g<before>***", _formatted(value)))


def _formatted(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table" if value else "{}"
        case list() | tuple():
            return "[" + ", ".join("[...]" if isinstance(item, list) else _formatted(item) for item in value) + "]"
        case str():
            return _quoted(value)
        case float():
            return f"{value:g}"
        case None:
            return "none"
    return str(value)
