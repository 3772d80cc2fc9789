"""The real queue of a database for a daemon in lockstep, by the real statements, each of which is waited for.

What is asked is counted by the names of statements.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from scheduler.daemon.connections import PLANS, watch_settings
from scheduler.drivers.loop import Loop
from scheduler.drivers.query_cursors import DECLARE
from scheduler.drivers.queue import QueueConnection, settings
from scheduler.drivers.statements import Answer, Query, Rows, encode, load, read_failure, read_rows
from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import Scheduler
from scheduler.package_data import schema_dir
from tests.queue_tools import quiet

OWNER: Final = "00000000-0000-0000-0000-000000000001"
GROUP: Final = "default"
TELL: Final = "select pg_stat_force_next_flush()"
_GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Straight:
    """A connection that waits for each answer: what stands in for a Connection, with the same way to ask."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.asked: Counter[str] = Counter()
        self._pg = connection.pgconn
        self._prepared: dict[Query, bytes] = {}

    def ask(
        self, query: Query, values: Mapping[str, object], done: Callable[[Answer], None], *, limit_s: float
    ) -> None:
        """Run a named query, prepared once."""
        self.asked[query.name] += 1
        params: list[Any] = [encode(values[name]) for name in query.names]
        done(self._read(self._pg.exec_prepared(self._name(query), params)))

    def run(self, text: str) -> Rows:
        """Run a text."""
        return self._read(self._pg.exec_params(text.encode(), None))

    def explain(self, query: Query, values: Mapping[str, object]) -> dict[str, Any]:
        """Run a named query, take back what it did, and return the plan as it was carried out."""
        cells = [encode(values[name]) for name in query.names]
        given = [sql.Literal(None if cell is None else cell.decode()) for cell in cells]
        arguments = sql.SQL("({})").format(sql.SQL(", ").join(given)) if given else sql.SQL("")
        execute = sql.SQL("explain (analyze, buffers, format json) execute {} {}").format(
            sql.Identifier(self._name(query).decode()), arguments
        )
        self.run("begin")
        (cell,) = self.run(execute.as_string()).rows[0]
        self.run("rollback")
        plan: dict[str, Any] = json.loads(cell or b"")[0]["Plan"]
        return plan

    def _name(self, query: Query) -> bytes:
        if query not in self._prepared:
            name = self._prepared[query] = f"{query.name}/{len(self._prepared)}".encode()
            self._pg.prepare(name, query.sql.encode())
        return self._prepared[query]

    def _read(self, result: pq.abc.PGresult) -> Rows:
        assert result.status in _GOOD, read_failure(result).sentence
        return read_rows(result)


class Explaining:
    """The same for a look at plans; nobody gets an answer."""

    def __init__(self, connection: Straight) -> None:
        self.plans: list[dict[str, Any]] = []
        self._link = connection

    def ask(self, query: Query, values: Mapping[str, object], *_: object, **__: object) -> None:
        """Explain a named query."""
        self.plans.append(self._link.explain(query, values))


class Real:
    """The queue of a database, asked by the courier of the daemon; queries run on a connection of their own."""

    def __init__(self, queue: psycopg.Connection[Any], expansion: psycopg.Connection[Any], loop: Loop) -> None:
        self._link, self._expansion = Straight(queue), Straight(expansion)
        for setting in (*settings(1.0), *PLANS):
            self._link.run(setting)
        self._loop = loop
        self._told: list[e.Event] = []
        self._courier = self._courier_on(self._link)
        self._total = self._given = 0

    def _courier_on(self, connection: "Straight | Explaining") -> QueueConnection:
        return QueueConnection(self._loop, connection, queries(), OWNER, GROUP, "alpha.1", self._told.append, quiet())

    @property
    def asked(self) -> Counter[str]:
        """Return how often each statement was run; those of expansions are named by their first word."""
        return self._link.asked + self._expansion.asked

    def send(self, request: r.Request) -> e.Event:
        """Carry out a request of the core."""
        self._courier.send(request)
        event, *rows = self._told
        self._told.clear()
        return replace(event, claims=rows[0].claims) if rows else event

    def expand(self, job: int, query: str) -> e.Event:
        """Run the query of a job."""
        for text in ("begin read only", DECLARE + query, "commit"):
            self._run(text)
        self._total, self._given = self._run("move all in drover_rows").tag, 0
        self._run("move absolute 0 in drover_rows")
        return e.Opened(job, self._run("fetch 0 from drover_rows").names, self._total)

    def fetch(self, job: int, count: int) -> e.Event:
        """Return more rows of it."""
        rows = self._run(f"fetch forward {count} from drover_rows").rows
        self._given += len(rows)
        return e.Fetched(job, rows, len(rows) == count and self._given < self._total)

    def close(self, job: int) -> None:
        """Forget them."""
        self._run("discard all")

    def _run(self, text: str) -> Rows:
        self._expansion.asked[text.split()[0]] += 1
        return self._expansion.run(text)

    # ---- what only measures ask

    def explain(self, request: r.Request) -> dict[str, Any]:
        """Return the plan of a request as it was carried out; nothing of it remains."""
        connection = Explaining(self._link)
        self._courier_on(connection).send(request)
        return connection.plans[0]

    def tell_statistics(self) -> None:
        """Let the server count now what this connection did."""
        self._link.run(TELL)


@cache
def queries() -> dict[str, Query]:
    """Return the daemon's statements by name."""
    return load((schema_dir() / "queries.sql").read_text())


class WatchStatements:
    """The watch connection of a daemon, as far as measures ask it something."""

    def __init__(self, watch: psycopg.Connection[Any]) -> None:
        self._link = Straight(watch)
        for setting in watch_settings(Scheduler()):
            self._link.run(setting)

    def explain_due(self) -> dict[str, Any]:
        """Return the plan of a look for rows whose time has come; nothing of it remains."""
        return self._link.explain(queries()["due"], {"group": GROUP})
