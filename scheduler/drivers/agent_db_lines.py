"""`DB:` lines: runs what an agent asks of the database and answers in lines it can read.

The connections log in under a role of their own. A JSON value becomes a parameter: null, truth values, numbers and
texts as they are, lists and objects as their JSON text; keys that the statement does not name are ignored. Every line
is a transaction of its own: one left open is rolled back, and after free SQL the session is made anew.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from scheduler.drivers.loop import Loop, Steps, Task
from scheduler.drivers.postgres import Connection, ConnectionPool
from scheduler.drivers.statement_runner import answer_to
from scheduler.drivers.statements import THEIRS, Failure, Query, Rows, one_line, setting
from scheduler.errors import AgentError
from scheduler.model.config import AgentType, Config
from scheduler.model.events_and_effects import ConnectionsChanged, Event, RunStatement, StatementAnswered
from scheduler.model.protocol import Row, check_columns, line_maker, parse_statement
from scheduler.model.sql_text import bind

ANSWER_BYTES: Final = 8 << 20
OVER_S: Final = 1.0  # the server's statement_timeout comes first; ours is for statements that switch it off
LOST: Final = "the database connection was lost; whether the statement was done is not known"


class _Lines:
    """The rows of one answer as lines for an agent of this type, up to a limit."""

    def __init__(self, kind: AgentType, limit: int) -> None:
        self.parts: list[bytes] = []
        self.problem: str | None = None
        self._kind, self._limit, self._size = kind, limit, 0
        self._make: Callable[[Row], bytes] | None = None

    def add(self, rows: Rows) -> bool:
        """Add rows; false when no more are needed."""
        escape = self._kind.escape
        if self._make is None:
            self.problem = check_columns(rows.names)
            self._make = line_maker(rows.names, escape, self._kind.nulls)
        lines = [] if self.problem else [self._make(row) for row in rows.rows]
        if escape == "shell" and any(b"\n" in line[:-1] for line in lines):
            self.problem = 'a value holds a newline, which cannot be sent with escape = "shell"'
        self._size += sum(map(len, lines))
        if self._size > self._limit:
            self.problem = f"the answer has more than {self._limit} bytes"
        if self.problem:
            self.parts.clear()
            return False
        self.parts += lines
        return True


class AgentDb:
    """Connections for the statements of agents, opened when first needed; first come, first served."""

    def __init__(
        self, loop: Loop, conninfo: str, config: Config, report: Callable[[Event], None],
        connections_changed: Callable[[ConnectionsChanged], None], *, is_with_queue: bool = False,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:  # fmt: skip
        limits = config.scheduler
        self._loop, self._report = loop, report
        self._limit, self._answer_bytes = limits.statement_limit, answer_bytes
        # On the server of the queue a statement that was answered may be forgotten if the server crashes, but not once
        # its job is saved as done: that commit is synchronous and comes later, so it brings all before it to disk.
        settings = (
            setting(THEIRS),
            f"set synchronous_commit = {'off' if is_with_queue else 'on'}",
            f"set statement_timeout = {round(self._limit * 1000)}",
        )
        self._pool = ConnectionPool(
            loop, "agentdb", "statements", conninfo, limits.agentdb_connections, settings, connections_changed,
            reconnect_max=limits.reconnect_max, on_down=self._down,
        )  # fmt: skip
        self._reason = "it is slow"  # why no connection is up
        self._set_agents(config.agents)

    def open(self) -> None:
        """Open the first connection if some agent type may ask: a failing log-in is known before any work is begun."""
        if not self._pool.connections and any(agent.db != "off" for agent in self._agents.values()):
            self._pool.add()

    def reload(self, config: Config) -> None:
        """Let agents ask what another configuration allows."""
        self._pool.resize(config.scheduler.agentdb_connections)
        self._set_agents(config.agents)
        self.open()

    def ask(self, asked: RunStatement) -> None:
        """Run the statement of a DB: line; reports StatementAnswered, at once if it may not be run."""
        try:
            query, values = self._plan(asked)
        except AgentError as error:
            self._answer(asked, _error(str(error)))
        else:
            Task(self._loop, self._run(asked, self._agents[asked.type], query, values)).start()

    def close(self) -> None:
        """Close every connection; what runs is answered as lost, what waits not at all."""
        self._pool.close()

    def _set_agents(self, agents: Mapping[str, AgentType]) -> None:
        self._agents = agents
        self._queries = {
            (kind, name): Query(f"{kind}.{name}", *bind(sql))
            for kind, agent in agents.items()
            for name, sql in agent.statements.items()
        }

    def _plan(self, asked: RunStatement) -> tuple[Query | None, Mapping[str, object]]:
        """Return the statement, None for free SQL, and its values. Errors: AgentError, this type may not ask that."""
        agent = self._agents.get(asked.type)
        if agent is None or agent.db == "off":
            raise AgentError(f"DB: is off for this agent type ({asked.type}); see db in drover.toml(5)")
        if b"\0" in asked.text:
            raise AgentError("the statement holds NUL")
        if agent.db == "sql":
            return None, {}
        found = parse_statement(asked.text)
        if found is None:
            raise AgentError("this agent type may run registered statements only: DB: name {json}")
        query = self._queries.get((asked.type, found[0]))
        if query is None:
            raise AgentError(f"no statement {found[0]!r} is registered for agent type {asked.type}")
        try:
            given = json.loads(found[1])
        except (ValueError, RecursionError) as error:
            raise AgentError(f"the JSON is not right: {error}") from error
        missing = [name for name in query.names if name not in given]
        if missing:
            raise AgentError(f"key {missing[0]!r} is missing")
        return query, {name: _value(name, given[name]) for name in query.names}

    def _run(
        self, asked: RunStatement, kind: AgentType, query: Query | None, values: Mapping[str, object]
    ) -> Steps[None]:
        """Wait for a connection, run a statement, and answer it in lines."""
        try:
            connection = yield from self._pool.acquire(self._loop.now + self._limit)
        except TimeoutError:
            is_any_up = any(connection.is_up for connection in self._pool.connections)
            reason = "all are busy" if is_any_up else self._reason
            self._answer(asked, _error(f"no database connection within {self._limit:g} s: {reason}"))
            return
        lines = _Lines(kind, self._answer_bytes)
        limit = self._limit + OVER_S
        answer = yield from answer_to(connection, query or asked.text, values, limit_s=limit, sink=lines.add)
        if query is None or connection.in_transaction:
            connection.reset()
        if lines.problem:
            self._answer(asked, _error(lines.problem))
        elif isinstance(answer, Failure):
            self._answer(asked, _error(LOST if answer.lost else answer.sentence))
        else:
            self._answer(asked, b"".join((*lines.parts, b"OK\n")))
        self._pool.release(connection)

    def _down(self, connection: Connection, reason: str) -> None:
        self._reason = reason

    def _answer(self, asked: RunStatement, lines: bytes) -> None:
        self._report(StatementAnswered(asked.slot, asked.serial, lines))


def _value(name: str, value: Any) -> object:
    """Return a value as it goes to the database; a text that Postgres cannot hold is refused, not changed."""
    if isinstance(value, list | dict):
        try:
            return json.dumps(value)
        except RecursionError:
            raise AgentError(f"the value of {name!r} is nested too deep") from None
    if isinstance(value, str):
        if "\0" in value:
            raise AgentError(f"the value of {name!r} holds NUL, which no text in Postgres can")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise AgentError(f"the value of {name!r} is not Unicode") from error
    return value


def _error(text: str) -> bytes:
    return f"ERROR {one_line(text)}\nOK\n".encode("utf-8", "backslashreplace")
