"""Where is counted: a server of our own where nothing happens that nobody asked for, and fresh databases in it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from scheduler.database import embedded, migrate
from scheduler.drivers.loop import Loop
from tests.counts.queues import GROUP, OWNER, Real

QUIET: Final = ("autovacuum = off", "checkpoint_timeout = '1h'", "full_page_writes = off", "max_wal_size = '4GB'")
ACTIVE: Final = "insert into drover.scheduler_group values (%s, %s, now() + interval '1 hour', now())"


class Place:
    """What measures need: databases and a folder. All is made when first asked for."""

    def __init__(self, stack: ExitStack, planted: str) -> None:
        self._stack, self._planted = stack, planted

    @cached_property
    def folder(self) -> Path:
        """A place for files."""
        return Path(self._stack.enter_context(TemporaryDirectory(prefix="drover-counts-")))

    @cached_property
    def _server(self) -> str:
        conninfo = self._stack.enter_context(embedded.temporary())
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for setting in QUIET:
                connection.execute(f"alter system set {setting}".encode())
            connection.execute("select pg_reload_conf()")
        migrate.update(conninfo)
        return conninfo

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the conninfo of a fresh database with all grants."""
        name = f"counts_{uuid4().hex}"
        template = self._server
        with psycopg.connect(template, dbname="postgres", autocommit=True) as server:
            server.execute(sql.SQL("create database {} template drover").format(sql.Identifier(name)))
            try:
                yield make_conninfo(template, dbname=name)
            finally:
                server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    @contextmanager
    def queue(self, kind: type[Real] = Real) -> Iterator[tuple[Real, psycopg.Connection[Any]]]:
        """Yield the queue of a fresh database whose group is ours, and its owner's connection."""
        with self.database() as conninfo, ExitStack() as stack:
            owner = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
            owner.execute(ACTIVE, (GROUP, OWNER))
            owner.execute(self._planted.encode())
            ours = stack.enter_context(psycopg.connect(conninfo, user="drover_scheduler", autocommit=True))
            theirs = stack.enter_context(psycopg.connect(conninfo, user="drover_msq", autocommit=True))
            loop = Loop()
            stack.callback(loop.close)
            yield kind(ours, theirs, loop), owner


@contextmanager
def place(planted: str = "") -> Iterator[Place]:
    """Yield a place, of which nothing remains; a statement may be `planted` in every queue to make it worse."""
    with ExitStack() as stack:
        yield Place(stack, planted)
