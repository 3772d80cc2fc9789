"""Find out which objects and statements each test uses, and choose the tests of a mutant.

The server counts calls of functions. Views and inlined functions it resolves when it plans, so they are found in texts:
used is what a statement of the test names, or a function or view that is used. A fragment is used with its statements.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import psycopg

from scheduler.drivers.statements import load
from scheduler.package_data import schema_dir
from tests.mutation.sql import objects
from tests.mutation.sql.mutants import Mutant
from tests.mutation.sql.servers import PLAIN

WORD: Final = re.compile(r"[a-z_]\w+")
NAME: Final = re.compile(r"\{\{(\w+)\}\}|([a-z_][a-z0-9_]*)")
CALLED: Final = "select 'drover.' || funcname from pg_stat_user_functions where schemaname = 'drover'"
OTHERS: Final = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
GRANTED: Final = PLAIN[1]
SETTINGS: Final = ("log_statement = 'all'", "track_functions = 'all'")


@dataclass(frozen=True, slots=True)
class Uses:
    """What one test uses, and how long it takes in seconds."""

    seconds: float
    named: list[str]  # by statements of the test itself
    all: list[str]


class Texts:
    """The texts of all objects and statements, to follow the names in them."""

    def __init__(self) -> None:
        """Read schema.sql and queries.sql."""
        self.texts: dict[str, str] = defaultdict(str)
        self.counted: set[str] = set()  # functions that are used only if they are called
        for each in objects.of_schema():
            self.texts[each.table or each.name] += "" if each.table else each.text[each.start : each.end].lower()
            if each.kind == "function" and "LANGUAGE plpgsql" in each.text:
                self.counted.add(each.name)
        self.texts |= {each.name: each.text for each in objects.of_queries()}
        queries = load((schema_dir() / objects.QUERIES).read_text())
        self.statements = {name: query.sql for name, query in queries.items()}

    def named(self, text: str) -> set[str]:
        """Return what a text names."""
        found = {fragment or f"drover.{word}" for fragment, word in NAME.findall(text)}
        return found & self.texts.keys()

    def used(self, log: str, called: set[str]) -> tuple[set[str], set[str]]:
        """Return what the statements in a log name, and all that is used with it."""
        plain = log.replace("\n\t", "\n")
        named = {name for name, sql in self.statements.items() if sql in plain} | self.named(plain.lower())
        named -= self.counted - called
        found: set[str] = set()
        left = [*named, *called]
        while left:
            name = left.pop()
            if name not in found and (name not in self.counted or name in called):
                found.add(name)
                left += self.named(self.texts.get(name, ""))
        return named, found


class Recorder:
    """Record what a test does on the server of this process."""

    def __init__(self, conninfo: str) -> None:
        """Let the server log statements, and count functions before a database is dropped."""
        self.called: set[str] = set()
        self.texts = Texts()
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for each in SETTINGS:
                connection.execute(f"alter system set {each}".encode())
            connection.execute("select pg_reload_conf()")
            data = connection.execute("show data_directory").fetchone()
        assert data is not None
        self.log = Path(data[0]).parent / "log"
        conftest: Any = sys.modules["tests.conftest"]
        self.create, conftest._database = conftest._database, self._counted

    def begin(self) -> None:
        """Begin a test."""
        self.called.clear()
        self.start = self.log.stat().st_size

    def uses(self, seconds: float) -> Uses:
        """Return what the test has used since."""
        with self.log.open("rb") as log:
            log.seek(self.start)
            named, found = self.texts.used(log.read().decode(errors="replace"), self.called)
        return Uses(seconds, sorted(named), sorted(found))

    @contextmanager
    def _counted(self, server: str, template: str) -> Iterator[tuple[str, str]]:
        with self.create(server, template) as (name, conninfo):
            yield name, conninfo
            if template == GRANTED:
                self.called.add(objects.ROLES_FILE)
            if template != "template0":
                with psycopg.connect(conninfo, autocommit=True) as connection:
                    connection.execute(f"select pg_terminate_backend(pid, 5000) {OTHERS}".encode())
                    self.called |= {each for (each,) in connection.execute(CALLED)}


def read(file: Path) -> tuple[dict[str, str], dict[str, Uses]]:
    """Return the digests of the files of tests, and what each test uses, as noted."""
    saved = json.loads(file.read_text()) if file.exists() else {"digests": {}, "tests": {}}
    return saved["digests"], {test: Uses(**uses) for test, uses in saved["tests"].items()}


def write(file: Path, digests: Mapping[str, str], tests: Mapping[str, Uses]) -> None:
    """Note it."""
    part = file.with_suffix(".new")
    part.write_text(json.dumps({"digests": digests, "tests": {test: asdict(uses) for test, uses in tests.items()}}))
    part.replace(file)


class Order:
    """In which order the tests of a mutant are run: first those whose text shares rare words with the change."""

    def __init__(self, uses: Mapping[str, Uses], sources: Mapping[str, str]) -> None:
        """Take what tests use, and their text."""
        self.uses = uses
        self.words = {test: set(WORD.findall(sources.get(test, "").lower())) for test in uses}
        self.counts = Counter(word for words in self.words.values() for word in words)

    def of(self, mutant: Mutant, most_s: float) -> list[str]:
        """Return the tests that use the object of a mutant, as many as fit into `most_s`."""
        words = set(WORD.findall(mutant.name.lower()))
        left, found = most_s, list[str]()
        for test in sorted(self._by_turns(mutant), key=lambda test: -self._shared(words, test)):
            if self.uses[test].seconds <= left:
                left -= self.uses[test].seconds
                found.append(test)
        return found

    def _shared(self, words: set[str], test: str) -> float:
        return sum(1 / self.counts[word] for word in words & self.words[test])

    def _by_turns(self, mutant: Mutant) -> list[str]:
        """Return all of them, of each file one, then of each the next; first those that use little else."""
        files: dict[str, list[tuple[bool, int, str]]] = defaultdict(list)
        for test, uses in self.uses.items():
            if wanted := [name for name in mutant.uses if name in uses.all]:
                rank = len(uses.all) + 1000 * mutant.uses.index(wanted[0])
                files[test.partition("::")[0]].append((wanted[0] not in uses.named, rank, test))
        rows = zip_longest(*sorted(sorted(each) for each in files.values()))
        return [each[2] for row in rows for each in row if each is not None]
