"""DB: lines: what an agent asks, and the lines it gets, on a real Postgres."""

from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from scheduler.drivers.agent_db_lines import AgentDb
from scheduler.drivers.loop import Loop
from scheduler.model.config import AgentType, Config, Scheduler
from scheduler.model.events_and_effects import ConnectionsChanged, Event, RunStatement, StatementAnswered
from tests.connection_tools import backends, end_backends, fetch, let_in, shut_out
from tests.loop_tools import turn_until

STATEMENTS = {
    "one": "select 1 as a",
    "echo": "select :text::text as text, :number::int as number",
    "json": "select :value::jsonb as value",
    "save": "update public.t set i = :i where i = 0",
    "open": "begin",
}
AGENTS = {
    "none": AgentType(command=("x",)),
    "named": AgentType(command=("x",), db="statements", statements=STATEMENTS),
    "free": AgentType(command=("x",), db="sql"),
}
MakeDesk = Callable[..., "Desk"]


class Desk:
    """The agents' database with its loop, and what it answered."""

    def __init__(self, conninfo: str, count: int = 2, limit: float = 20.0, answer_bytes: int = 8 << 20) -> None:
        self.loop = Loop()
        self.events: list[Event] = []
        self.unconnected: list[ConnectionsChanged] = []
        limits = Scheduler(agentdb_connections=count, statement_limit=limit, reconnect_max=0.2)
        self.db = AgentDb(
            self.loop, conninfo, Config(agents=AGENTS, scheduler=limits), self.events.append, self.unconnected.append,
            is_with_queue=True, answer_bytes=answer_bytes,
        )  # fmt: skip
        self.serial = 0

    def send(self, kind: str, text: str | bytes) -> None:
        """Ask and go on."""
        self.serial += 1
        self.db.ask(RunStatement(3, self.serial, kind, text if isinstance(text, bytes) else text.encode()))

    def wait(self, count: int = 1) -> list[StatementAnswered]:
        """Return so many answers."""
        turn_until(self.loop, lambda: len(self.events) >= count)
        answers, self.events[:] = [each for each in self.events if isinstance(each, StatementAnswered)], []
        return answers

    def ask(self, kind: str, text: str | bytes) -> str:
        """Ask and give the lines."""
        self.send(kind, text)
        (answer,) = self.wait()
        assert (answer.slot, answer.serial) == (3, self.serial)
        return answer.lines.decode()


@pytest.fixture
def make_desk(database: str) -> Iterator[MakeDesk]:
    desks: list[Desk] = []

    def make(conninfo: str = database, **options: float) -> Desk:
        desks.append(Desk(conninfo, **options))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for desk in desks:
        desk.db.close()
        desk.loop.close()


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()


# ---- free SQL


@pytest.mark.parametrize("text", ["select 1 as a", "select 1 as a;"])
def test_sql_is_answered_with_its_rows_and_ok_f96(desk: Desk, text: str) -> None:
    assert desk.ask("free", text) == 'a="1"\nOK\n'


def test_one_record_a_line_then_ok_f97(desk: Desk) -> None:
    lines = desk.ask("free", "select i, 'x' as b from generate_series(1, 3) i")
    assert lines == 'i="1" b="x"\ni="2" b="x"\ni="3" b="x"\nOK\n'


def test_values_are_escaped_and_nulls_left_out_f97(desk: Desk) -> None:
    lines = desk.ask("free", r"""select E'a"b\\c''d$e`f\ng' as a, null as b, 'ü' as c""")
    assert lines == 'a="a\\"b\\\\c\\\'d\\$e\\`f\\ng" c="ü"\nOK\n'


def test_statement_without_rows_is_just_ok_f98(desk: Desk, database: str) -> None:
    fetch(database, "create table public.t (i int)")
    assert desk.ask("free", "insert into public.t values (0), (0)") == "OK\n"
    assert fetch(database, "select count(*) from public.t") == [(2,)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selec 1", 'syntax error at or near "selec" (42601)'),
        ("select 1 / 0", "division by zero (22012)"),
        ("select 1; select 2", "cannot insert multiple commands into a prepared statement (42601)"),
        ("select 1", "column name '?column?' is not a plain name: give it an alias"),
        ("select 1 as a, 2 as a", "column name 'a' is given twice: give one an alias"),
        ("copy (select 1) to stdout", "COPY from or to the client is not possible here (0A000)"),
        (b"select 'a\0b' as a", "the statement holds NUL"),
        (b"select '\xff' as a", 'invalid byte sequence for encoding "UTF8": 0xff (22021)'),
        ("do $$ begin raise exception E'two\nlines'; end $$", "two lines (P0001)"),
    ],
)
def test_error_is_one_line_then_ok_and_the_next_works_f98(desk: Desk, text: str | bytes, words: str) -> None:
    assert desk.ask("free", text) == f"ERROR {words}\nOK\n"
    assert desk.ask("free", "select 1 as a") == 'a="1"\nOK\n'


def test_session_settings_of_free_sql_do_not_reach_the_next_statement_f98(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=1)
    fetch(database, "create table public.t (i int)")
    desk.ask("free", "begin")
    desk.ask("free", "insert into public.t values (1)")
    desk.ask("free", "set drover.secret = 'x'")
    assert desk.ask("free", "select current_setting('drover.secret', true) as s") in ('s=""\nOK\n', "\nOK\n")
    assert desk.ask("free", "select current_setting('synchronous_commit') as s") == 's="off"\nOK\n'
    assert fetch(database, "select count(*) from public.t") == [(1,)]
    assert backends(database, "drover age", "state = 'idle in transaction'") == 0


# ---- registered statements


def test_registered_statement_binds_json_by_name_f96(desk: Desk) -> None:
    lines = desk.ask("named", 'echo {"number": 7, "text": "it\'s \\"ü\\"", "extra": [1]}')
    assert lines == 'text="it\\\'s \\"ü\\"" number="7"\nOK\n'


@pytest.mark.parametrize(
    ("value", "stored"),
    [('{"a": [1, null]}', '{"a": [1, null]}'), ("[1, 2]", "[1, 2]"), ("true", "true"), ("1.5", "1.5")],
)
def test_json_values_become_text_f96(desk: Desk, value: str, stored: str) -> None:
    escaped = stored.replace('"', '\\"')
    assert desk.ask("named", f'json {{"value": {value}}}') == f'value="{escaped}"\nOK\n'


def test_json_null_is_bound_as_null_f96(desk: Desk) -> None:
    assert desk.ask("named", 'echo {"number": null, "text": ""}') == 'text=""\nOK\n'


def test_statement_is_prepared_once_and_counted_t4(desk: Desk, database: str) -> None:
    fetch(database, "create table public.t (i int); insert into public.t values (0)")
    assert [desk.ask("named", 'save {"i": 1}') for _ in range(2)] == ["OK\n", "OK\n"]
    assert [connection.stats["named.save"].count for connection in desk.db._pool.connections] == [2]
    assert fetch(database, "select i from public.t") == [(1,)]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("none", "select 1 as a", "DB: is off for this agent type (none); see db in drover.toml(5)"),
        ("gone", "select 1 as a", "DB: is off for this agent type (gone); see db in drover.toml(5)"),
        ("named", "select 1 as a", "this agent type may run registered statements only: DB: name {json}"),
        ("named", "two {}", "no statement 'two' is registered for agent type named"),
        ("named", "one {]}", "the JSON is not right: "),
        ("named", 'echo {"text": ""}', "key 'number' is missing"),
        (
            "named",
            'echo {"text": "\\u0000", "number": 1}',
            "the value of 'text' holds NUL, which no text in Postgres can",
        ),
        ("named", 'echo {"text": "\\ud800", "number": 1}', "the value of 'text' is not Unicode"),
    ],
)
def test_refused_requests_are_answered_at_once_f98(desk: Desk, kind: str, text: str, words: str) -> None:
    desk.send(kind, text)
    (answer,) = desk.events
    assert isinstance(answer, StatementAnswered)
    assert answer.lines.startswith(f"ERROR {words}".encode())
    assert answer.lines.endswith(b"\nOK\n")
    assert answer.lines.count(b"\n") == 2


def test_value_of_the_wrong_type_is_an_error_f98(desk: Desk) -> None:
    lines = desk.ask("named", 'echo {"text": "", "number": "x"}')
    assert lines == 'ERROR invalid input syntax for type integer: "x" (22P02)\nOK\n'


def test_transaction_left_open_by_a_statement_is_rolled_back_f98(desk: Desk, database: str) -> None:
    assert desk.ask("named", "open {}") == "OK\n"
    assert desk.ask("named", "one {}") == 'a="1"\nOK\n'
    assert backends(database, "drover age", "state like 'idle in transaction%'") == 0


def test_changed_configuration_applies_to_the_next_line_f96(desk: Desk) -> None:
    desk.ask("named", "one {}")
    changed = AgentType(command=("x",), db="statements", statements={"one": "select 2 as a"})
    desk.db.reload(Config(agents={"named": changed}))
    assert desk.ask("named", "one {}") == 'a="2"\nOK\n'
    assert desk.ask("free", "select 1 as a").startswith("ERROR DB: is off")


# ---- log-ins that fail


def test_refused_log_in_is_reported_before_anything_is_asked_and_when_it_is_over(
    make_desk: MakeDesk, database_with_roles: str
) -> None:
    shut_out(database_with_roles)
    desk = make_desk(make_conninfo(database_with_roles, user="drover_agentdb"))
    desk.db.open()
    turn_until(desk.loop, lambda: len(desk.unconnected) >= 2)
    told = desk.unconnected[-1]
    assert (told.need, told.login, told.up) == ("statements", "drover_agentdb", 0)
    assert "permission denied for database" in str(told.reason)
    let_in(database_with_roles)
    turn_until(desk.loop, lambda: desk.unconnected[-1].reason is None)
    assert desk.ask("named", "one {}") == 'a="1"\nOK\n'


def test_log_in_is_tried_at_the_start_only_where_an_agent_type_may_ask(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(make_conninfo(database, port=5999))  # where nobody listens, which is known at once
    desk.db.reload(Config(agents={"none": AGENTS["none"]}))
    desk.db.open()
    assert desk.unconnected == []
    desk.db.reload(Config(agents=AGENTS))
    assert [each.up for each in desk.unconnected] == [0]


# ---- many and slow


def test_slow_statement_stops_at_the_limit_f100(make_desk: MakeDesk) -> None:
    desk = make_desk(limit=0.2)
    desk.db.open()
    turn_until(desk.loop, lambda: desk.db._pool.connections[0].is_up)
    lines = desk.ask("free", "select pg_sleep(60) as s")
    assert lines == "ERROR canceling statement due to statement timeout (57014)\nOK\n"


def test_slow_statement_does_not_hold_up_another_f100(desk: Desk) -> None:
    desk.send("free", "select pg_sleep(60) as s")
    desk.send("free", "select 1 as a")
    assert [(answer.serial, answer.lines) for answer in desk.wait()] == [(2, b'a="1"\nOK\n')]


def test_statements_beyond_the_connections_wait_and_are_all_answered_f100(desk: Desk, database: str) -> None:
    for number in range(20):
        desk.send("free", f"select {number} as a")
    assert sorted(answer.serial for answer in desk.wait(20)) == list(range(1, 21))
    turn_until(desk.loop, lambda: all(each.is_up for each in desk.db._pool.connections))
    assert backends(database, "drover age") == 2


def test_one_connection_answers_in_order_f100(make_desk: MakeDesk) -> None:
    desk = make_desk(count=1)
    for number in range(10):
        desk.send("named", f'echo {{"text": "", "number": {number}}}')
    assert [answer.serial for answer in desk.wait(10)] == list(range(1, 11))


def test_no_connection_is_opened_before_it_is_needed_f100(desk: Desk, database: str) -> None:
    desk.ask("none", "select 1")
    assert backends(database, "drover age") == 0


def test_answer_beyond_the_limit_is_an_error_f103(make_desk: MakeDesk) -> None:
    desk = make_desk(answer_bytes=100_000)
    lines = desk.ask("free", "select repeat('x', 100) as x, generate_series(1, 100000000) as i")
    assert lines == "ERROR the answer has more than 100000 bytes\nOK\n"
    assert desk.ask("free", "select 1 as a") == 'a="1"\nOK\n'


def test_answer_below_the_limit_is_whole_f103(desk: Desk) -> None:
    lines = desk.ask("free", "select i from generate_series(1, 50000) i")
    assert lines.splitlines() == [f'i="{i}"' for i in range(1, 50001)] + ["OK"]


def test_lost_connection_is_an_error_and_the_next_works_f98(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=1)
    desk.ask("named", "one {}")
    desk.send("free", "select pg_sleep(60) as s")
    end_backends(database, "drover age")
    (answer,) = desk.wait()
    assert answer.lines == b"ERROR the database connection was lost; whether the statement was done is not known\nOK\n"
    assert desk.ask("named", "one {}") == 'a="1"\nOK\n'


def test_absent_database_is_an_error_after_the_limit_f98(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(make_conninfo(database, port=5999), limit=0.2)
    lines = desk.ask("named", "one {}")
    assert lines.startswith("ERROR no database connection within 0.2 s: ")
    assert lines.endswith("\nOK\n")
