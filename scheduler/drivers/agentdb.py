"""`DB:` lines: runs what an agent asks of the database and answers in lines it can read (SPEC 2).

Touches the agent-database connections, which log in under a role of their own. Decides what an agent type may ask and
how a JSON value becomes a parameter: null, truth values, numbers and texts as they are, lists and objects as their
JSON text. Keys that the statement does not name are ignored. Knows nothing of slots beyond the number to answer to.

Every line is a transaction of its own: one left open is rolled back, and after free SQL the session is made anew.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from scheduler.drivers.connection_pool import ConnectionHealth
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import THEIRS, Answer, Failure, Query, Rows, Stat, one_line, setting
from scheduler.errors import AgentError
from scheduler.model.config import AgentType, Config
from scheduler.model.events import ConnectionsChanged, Event, RunStatement, StatementAnswered
from scheduler.model.expand import Row, check_columns, line_maker
from scheduler.model.protocol import parse_statement
from scheduler.model.statements import bind

ANSWER_BYTES: Final = 8 << 20
OVER_S: Final = 1.0  # the server's statement_timeout comes first; ours is for those who switch it off
LOST: Final = "the database connection was lost; whether the statement was done is not known"


@dataclass(slots=True)
class _Lines:
    """The rows of one answer as lines for an agent of this type, up to a limit."""

    kind: AgentType
    limit: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    problem: str | None = None
    make: Callable[[Row], bytes] | None = None

    def take(self, rows: Rows) -> bool:
        """Add rows; false when there is no more use for any."""
        if self.make is None:
            self.problem = check_columns(rows.names)
            self.make = line_maker(rows.names, self.kind.escape, self.kind.nulls)
        lines = [] if self.problem else [self.make(row) for row in rows.rows]
        if self.kind.escape == "shell" and any(b"\n" in line[:-1] for line in lines):
            self.problem = 'a value holds a newline, which cannot be sent with escape = "shell"'
        self.size += sum(map(len, lines))
        if self.size > self.limit:
            self.problem = f"the answer has more than {self.limit} bytes"
        if self.problem:
            self.parts = []
            return False
        self.parts += lines
        return True


@dataclass(slots=True)
class _Waiting:
    """A statement that may be run, and until when it waits for a connection; `query` None means free SQL."""

    asked: RunStatement
    kind: AgentType
    query: Query | None
    values: Mapping[str, object]
    until: float


class AgentDb:
    """Up to `count` connections, opened when first needed; first come, first served."""

    def __init__(
        self,
        loop: Loop,
        conninfo: str,
        count: int,
        agents: Mapping[str, AgentType],
        statement_limit: float,
        tell: Callable[[Event], None],
        unconnected: Callable[[ConnectionsChanged], None],
        *,
        answer_bytes: int = ANSWER_BYTES,
        with_queue: bool = False,
        reconnect_max: float = 30.0,
    ) -> None:
        self._loop, self._conninfo, self._count, self._tell = loop, conninfo, count, tell
        self._limit, self._answer_bytes = statement_limit, answer_bytes
        self._reconnect_max = reconnect_max
        self._durability = "off" if with_queue else "on"
        self._reach = ConnectionHealth("statements", conninfo, unconnected)
        self._links = self._reach.links
        self._busy: set[str] = set()  # names of links
        self._waiting: deque[_Waiting] = deque()
        self._late: Timer | None = None
        self._reason = "it is slow"
        self.replace(agents)

    @property
    def stats(self) -> dict[str, Stat]:
        """How often each statement ran, and how long, over all connections; by `type.name`."""
        whole: dict[str, Stat] = {}
        for name, stat in (each for link in self._links for each in link.stats.items()):
            whole.setdefault(name, Stat()).merge(stat)
        return whole

    def open(self) -> None:
        """Open the first connection if some agent type may ask: a failing log-in is known before any work is begun."""
        if not self._links and any(agent.db != "off" for agent in self._agents.values()):
            self._add_link()

    def take(self, config: Config) -> None:
        """Let agents ask what another configuration allows."""
        self._count = config.scheduler.agentdb_connections
        self.replace(config.agents)
        self.open()

    def replace(self, agents: Mapping[str, AgentType]) -> None:
        """Take other agent types."""
        self._agents = agents
        self._queries = {
            (kind, name): Query(f"{kind}.{name}", *bind(sql))
            for kind, agent in agents.items()
            for name, sql in agent.statements.items()
        }

    def ask(self, asked: RunStatement) -> None:
        """Run the statement of a DB: line; told Answered, at once if it may not be run."""
        try:
            query, values = self._plan(asked)
        except AgentError as error:
            self._answer(asked, _error(str(error)))
            return
        kind = self._agents[asked.type]
        self._waiting.append(_Waiting(asked, kind, query, values, self._loop.now + self._limit))
        self._dispatch()

    def shut(self) -> None:
        """Close every connection; what runs is answered as lost, what waits not at all."""
        self._waiting.clear()
        if self._late:
            self._late.cancel()
        for link in self._links:
            link.close()

    # ---- what may be asked

    def _plan(self, asked: RunStatement) -> tuple[Query | None, Mapping[str, object]]:
        """Give the statement and its values; AgentError if this type may not ask that."""
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
        return query, _values(query, found[1])

    # ---- connections

    def _dispatch(self) -> None:
        """Hand what waits to connections that have nothing to do; open one more if there are too few."""
        while self._waiting and (link := self._idle_link()):
            self._run(link, self._waiting.popleft())
        coming = sum(not link.is_up for link in self._links)
        if coming < len(self._waiting) and len(self._links) < self._count:
            self._add_link()
        self._watch()

    def _idle_link(self) -> Connection | None:
        return next((link for link in self._links if link.is_up and link.name not in self._busy), None)

    def _add_link(self) -> None:
        # On the server of the queue a statement that was answered may be forgotten if the server crashes, but not once
        # its job is saved as done: that commit is synchronous and comes later, so it brings all before it to disk.
        link = Connection(
            self._loop,
            f"agentdb {len(self._links) + 1}",
            self._conninfo,
            settings=(
                setting(THEIRS),
                f"set synchronous_commit = {self._durability}",
                f"set statement_timeout = {round(self._limit * 1000)}",
            ),
            reconnect_max=self._reconnect_max,
            on_up=self._up,
            on_down=lambda reason: self._down(link, reason),
        )
        self._links.append(link)
        link.open()

    def _up(self) -> None:
        self._reach.succeeded()
        self._dispatch()

    def _down(self, link: Connection, reason: str) -> None:
        self._reason = reason
        if link.refusal is not None:
            self._reach.failed(link)

    def _watch(self) -> None:
        """Look again when the one that waits longest has waited too long."""
        if self._late:
            self._late.cancel()
        self._late = self._loop.at(self._waiting[0].until, self._expire) if self._waiting else None

    def _expire(self) -> None:
        while self._waiting and self._waiting[0].until <= self._loop.now:
            waiting = self._waiting.popleft()
            reason = self._reason if not any(link.is_up for link in self._links) else "all are busy"
            self._answer(waiting.asked, _error(f"no database connection within {self._limit:g} s: {reason}"))
        self._watch()

    # ---- statements

    def _run(self, link: Connection, waiting: _Waiting) -> None:
        self._busy.add(link.name)
        lines = _Lines(waiting.kind, self._answer_bytes)
        done = partial(self._done, link, waiting, lines)
        limit = self._limit + OVER_S
        if waiting.query is None:
            link.run(waiting.asked.text, done, deadline=limit, sink=lines.take)
        else:
            link.ask(waiting.query, waiting.values, done, deadline=limit, sink=lines.take)

    def _done(self, link: Connection, waiting: _Waiting, lines: _Lines, answer: Answer) -> None:
        self._busy.discard(link.name)
        if waiting.query is None or link.in_transaction:
            link.reset()
        if lines.problem:
            self._answer(waiting.asked, _error(lines.problem))
        elif isinstance(answer, Failure):
            self._answer(waiting.asked, _error(LOST if answer.lost else answer.sentence))
        else:
            self._answer(waiting.asked, b"".join((*lines.parts, b"OK\n")))
        self._dispatch()

    def _answer(self, asked: RunStatement, lines: bytes) -> None:
        self._tell(StatementAnswered(asked.slot, asked.serial, lines))


def _values(query: Query, text: bytes) -> dict[str, object]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"the JSON is not right: {error}") from error
    missing = [name for name in query.names if name not in given]
    if missing:
        raise AgentError(f"key {missing[0]!r} is missing")
    return {name: _value(name, given[name]) for name in query.names}


def _value(name: str, value: Any) -> object:
    """Give what goes to the database as text; a text that Postgres cannot hold is refused, not changed."""
    if isinstance(value, list | dict):
        return json.dumps(value)
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
