"""Servers for mutants: each has the schema twice, without and with the grants, to copy databases of tests from.

A mutant is put into copies of the two. Each server carries one mutant at a time, because roles are of a server.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.mutation.sql.mutants import Mutant
from tests.role_tools import grant_roles

PLAIN: Final = ("template_plain", "template_roles")
MUTATED: Final = ("mutant_plain", "mutant_roles")


@dataclass(frozen=True, slots=True)
class Server:
    """A server with the schema."""

    conninfo: str

    def take(self, templates: tuple[str, str] = PLAIN) -> None:
        """Let the fixtures of this process copy databases from this server."""
        from tests import conftest  # not before pytest has: it imports hypothesis

        os.environ[conftest.SERVER] = self.conninfo
        os.environ[conftest.TEMPLATES] = " ".join(templates)

    def put(self, mutant: Mutant) -> None:
        """Make copies of the schema that have the fault. Errors: psycopg.Error if the server refuses it."""
        for old, new in zip(PLAIN, MUTATED, strict=True):
            self.run(f"drop database if exists {new} with (force)", f"create database {new} template {old}")
            if mutant.kind != "grant" or new == MUTATED[1]:
                with psycopg.connect(self._of(new)) as connection:
                    connection.execute(mutant.sql.encode())
        self.take(MUTATED)

    def parse(self, statements: Iterable[str]) -> None:
        """Let the server read statements. Errors: psycopg.Error if one has no meaning."""
        for each in statements:
            self.run(f"prepare mutant as {each}", database=PLAIN[0])

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Run statements in a database."""
        with psycopg.connect(self._of(database), autocommit=True) as connection:
            for each in statements:
                connection.execute(each.encode())

    def _of(self, database: str) -> str:
        return make_conninfo(self.conninfo, dbname=database)

    def fill(self) -> None:
        """Build the schema."""
        plain, roles = PLAIN
        self.run(f"create database {plain}")
        migrate.apply(self._of(plain))
        self.run(f"create database {roles} template {plain}")
        grant_roles(self._of(roles))


@contextmanager
def running() -> Iterator[Server]:
    """Run a server with the schema; it and its files are gone at the end."""
    from tests.conftest import in_memory  # as above

    with in_memory() as conninfo:
        server = Server(conninfo)
        server.fill()
        yield server
