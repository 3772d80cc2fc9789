"""Any TOML is a configuration or mistakes with their lines, however it is written and over however many files."""

import re
import tomllib
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.cli import config_files
from scheduler.errors import ConfigError
from scheduler.model.config import AgentType, Config, ConfigMistakes, Database, Host, Limits, Queue, Scheduler
from scheduler.model.config_reader import key_lines, parse

Tree = dict[str, Any]

TOLD = re.compile(r"(one|two)\.toml:([1-9]\d*): .+", re.DOTALL)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "a", "'", '"', "'''", '"""', '\\"', "#", "[x]", "a = 1\nb = 2", "\\", "\r\n", "\0", "-", "*", "\u202e"]
)
TIMES = (st.datetimes() | st.times()).map(lambda instant: instant.replace(fold=0))  # TOML has no folds
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.dates(), TIMES)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def _table(kind: type[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Tree]:
    """Return tables with some keys of a kind, right values among wrong ones, and now and then a key that is none."""
    right = {f.name: st.just(f.default) for f in attrs.fields(kind) if isinstance(f.default, int | float | str)}
    names = {f.name: VALUES | right.get(f.name, VALUES) for f in attrs.fields(kind)} | more
    return st.fixed_dictionaries({}, optional=names) | st.dictionaries(TEXTS, VALUES, max_size=3)


def _named(tables: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.dictionaries(st.sampled_from(["a", "b", "command", "ä", "x.y"]) | TEXTS, tables | VALUES, max_size=3)


AGENT = _table(
    AgentType,
    command=st.just(["a"]) | VALUES,
    limits=_table(Limits),
    env=st.dictionaries(st.sampled_from(["A", "DROVER_JOB", "PGPASSWORD"]) | TEXTS, TEXTS | VALUES, max_size=2),
    statements=st.dictionaries(st.just("save") | TEXTS, st.just("select :a") | VALUES, max_size=2),
)
TREES = st.fixed_dictionaries(
    {},
    optional={
        "database": _table(Database) | VALUES,
        "scheduler": _table(Scheduler) | VALUES,
        "hosts": _named(_table(Host)) | VALUES,
        "agents": _named(AGENT) | VALUES,
        "queues": _named(_table(Queue)) | VALUES,
        "nonsense": VALUES,
    },
)


FEW = settings(max_examples=40)  # each takes 20 ms


# ---- a tree as TOML, in any of its spellings


class Writer:
    """Writes a tree, and notes on which line each key was put. `choose(n)` gives a number below n."""

    def __init__(self, choose: Any) -> None:
        self.choose, self.text = choose, ""
        self.lines: dict[tuple[str | int, ...], int] = {}

    def tree(self, tree: Tree) -> str:
        self._table((), tree)
        return self.text

    def _table(self, path: tuple[str, ...], table: Tree) -> None:
        below = {key: value for key, value in table.items() if isinstance(value, dict) and self.choose(3)}
        for key, value in table.items():
            if key not in below:
                self._pair((*path, key), [key], value)
                self.text += self._end()
        for key, value in below.items():
            self._header((*path, key))
            self._table((*path, key), value)

    def _header(self, path: tuple[str, ...]) -> None:
        self.lines[path] = self.line
        self.text += "[" + self._blank() + ".".join(map(self._key, path)) + self._blank() + "]" + self._end()

    def _pair(self, path: tuple[str | int, ...], words: list[str], value: Any) -> None:
        self.lines[path] = self.line
        if isinstance(value, dict) and len(value) == 1 and self.choose(2):  # dotted
            ((key, inner),) = value.items()
            self._pair((*path, key), [*words, key], inner)
            return
        self.text += (self._blank() + "." + self._blank()).join(map(self._key, words)) + self._blank() + "="
        self.text += self._blank()
        self._value(path, value)

    def _value(self, path: tuple[str | int, ...], value: Any) -> None:
        if isinstance(value, list):
            self._array(path, value)
        elif isinstance(value, dict):
            self.text += "{"
            for number, (key, inner) in enumerate(value.items()):
                self.text += ", " if number else " "
                self._pair((*path, key), [key], inner)
            self.text += "}"
        elif isinstance(value, str):
            self.text += self._string(value)
        else:
            self.text += self._bare(value)

    def _array(self, path: tuple[str | int, ...], values: list[Any]) -> None:
        self.text += "["
        for number, value in enumerate(values):
            self.text += self._gap()
            self.lines[*path, number] = self.line
            self._value((*path, number), value)
            self.text += self._gap() + ","
        self.text += self._gap() + "]"

    def _bare(self, value: Any) -> str:
        match value:
            case bool():
                return str(value).lower()
            case int() if value >= 0:
                return [str(value), hex(value), bin(value), f"{value:_}"][self.choose(4)]
            case datetime() | date() | time():
                return value.isoformat(*([" ", "T"][self.choose(2)],) if isinstance(value, datetime) else ())
            case _:
                return str(value)

    def _string(self, value: str) -> str:
        escaped = "".join(c if c.isalnum() or c in " .-'#[]=" else f"\\U{ord(c):08x}" for c in value)
        spelt = [f'"{escaped}"', f'"""{escaped}"""', f'"""\n{escaped}\\\n  \t"""']
        if value.isprintable() and "'" not in value:
            spelt += [f"'{value}'", f"'''\n{value}'''"]
        return spelt[self.choose(len(spelt))]

    def _key(self, key: str) -> str:
        spelt = [self._string(key) for _ in range(3)]
        spelt = [text for text in spelt if not text.startswith(('"""', "'''"))]
        if re.fullmatch(r"[A-Za-z0-9_-]+", key):
            spelt.append(key)
        return spelt[self.choose(len(spelt))] if spelt else self._escaped(key)

    def _escaped(self, key: str) -> str:
        return '"' + "".join(f"\\U{ord(c):08x}" for c in key) + '"'

    def _blank(self) -> str:
        return ["", " ", "\t"][self.choose(3)]

    def _gap(self) -> str:
        return ["", " ", "\n", " # ] } = [\n", "\r\n"][self.choose(5)]

    def _end(self) -> str:
        return ["\n", " # [x] \"'\n", "\r\n", "\n\n"][self.choose(4)]

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1


@st.composite
def written(draw: st.DrawFn) -> tuple[Tree, Writer]:
    tree = draw(TREES)
    random = draw(st.randoms(use_true_random=False))
    writer = Writer(random.randrange)
    writer.tree(tree)
    return tree, writer


@pytest.mark.slow
@FEW
@given(written())
def test_every_key_is_found_on_its_line_however_it_is_spelt(made: tuple[Tree, Writer]) -> None:
    tree, writer = made
    assert _sorted(tomllib.loads(writer.text)) == _sorted(tree), "the writer is wrong"
    found = key_lines(writer.text)
    assert {path: found.get(path) for path in writer.lines} == writer.lines


def _sorted(value: Any) -> str:
    """Return a text that tells values apart, but not orders of keys; nan is not equal to itself."""
    if isinstance(value, dict):
        return repr(sorted((key, _sorted(inner)) for key, inner in value.items()))
    return repr([_sorted(inner) for inner in value] if isinstance(value, list) else value)


def outcome(texts: list[tuple[str, str]]) -> Config | tuple[str, ...]:
    try:
        return parse(texts)
    except ConfigMistakes as error:
        return error.mistakes


@pytest.mark.slow
@FEW
@given(written(), written() | st.none())
def test_any_tree_is_a_configuration_or_printable_mistakes_on_existing_lines(
    one: tuple[Tree, Writer], two: tuple[Tree, Writer] | None
) -> None:
    texts = {"one": one[1].text} | ({"two": two[1].text} if two else {})
    told = outcome([(f"{name}.toml", text) for name, text in texts.items()])
    for mistake in () if isinstance(told, Config) else told:
        found = TOLD.fullmatch(mistake)
        assert found is not None, mistake
        assert mistake.isprintable()
        assert int(found[2]) <= texts[found[1]].count("\n") + 1
    assert told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    return tmp_path


@settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes all its files
@given(main=st.binary(max_size=60) | written().map(lambda made: made[1].text.encode()), part=st.binary(max_size=60))
def test_any_bytes_in_the_files_are_a_configuration_or_its_mistakes(folder: Path, main: bytes, part: bytes) -> None:
    (folder / "drover.toml").write_bytes(main)
    (folder / "conf.d" / "x.toml").write_bytes(part)
    try:
        config = config_files.load(str(folder / "drover.toml"), {})
    except ConfigError as error:
        assert str(error)  # noqa: PT017
    else:
        assert config.agents
