"""What is done when a statement fails: one policy for every routine."""

from collections.abc import Iterator

import psycopg
import pytest

from scheduler.drivers.loop import ConnectionLostError, Loop, Steps, Task
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statement_runner import RefusedError, RefusedStatements, Statements
from scheduler.drivers.statements import Query, Rows, Stat
from tests.connection_tools import end_backends, fetch, opened, rows_of
from tests.loop_tools import turn_until

QUERIES = {
    "one": Query("one", "select $1::text", ("text",)),
    "table": Query("table", "select i from t"),
    "lock": Query("lock", "select from u for update nowait"),
    "sleep": Query("sleep", "select pg_sleep(20)"),
}


class Desk:
    """Statements on one connection, and what was logged."""

    def __init__(self, database: str) -> None:
        self.loop = Loop()
        self.connection: Connection = opened(self.loop, database)
        self.logged: list[str] = []
        self.refused = RefusedStatements(lambda level, text: self.logged.append(f"{level} {text}"), lambda text: None)
        self.statements = Statements(self.loop, self.connection, QUERIES, self.refused, limit=20.0)

    def run(self, steps: Steps[Rows]) -> list[tuple[bytes | None, ...]]:
        """Run steps to their end and return their rows."""
        results: list[Rows] = []
        Task(self.loop, steps, results.append).start()
        turn_until(self.loop, lambda: results)
        return rows_of(results[0])


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    desk = Desk(database)
    yield desk
    desk.connection.close()
    desk.loop.close()


def test_rows_of_a_statement_are_returned(desk: Desk) -> None:
    assert desk.run(desk.statements.ask("one", text="a")) == [(b"a",)]
    assert desk.logged == []


def test_figures_of_a_statement_that_runs_on_two_connections_add_up() -> None:
    assert Stat(2, 1.5, 1.0) + Stat(3, 0.75, 0.5) == Stat(5, 2.25, 1.0)


def test_refused_statement_is_reported_and_raises(desk: Desk) -> None:
    with pytest.raises(RefusedError, match="does not exist"):
        desk.run(desk.statements.ask("table"))
    assert desk.refused.text == 'table: relation "t" does not exist (42P01)'
    assert desk.logged == [
        'warning the database refuses table: relation "t" does not exist (42P01); tried again until accepted'
    ]


def test_lock_timeout_is_logged_and_delays_nothing(desk: Desk, database: str) -> None:
    fetch(database, "create table u as select 1 as i")
    with psycopg.connect(database) as other:
        other.execute("select from u for update")
        with pytest.raises(RefusedError):
            desk.run(desk.statements.ask("lock"))
    assert (desk.refused.text, len(desk.logged)) == (None, 1)
    assert desk.logged[0].startswith("error lock: ")


def test_required_statement_is_repeated_until_accepted(
    desk: Desk, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.drivers.statement_runner.AGAIN_S", 0.01)
    results: list[Rows] = []
    Task(desk.loop, desk.statements.insist("table"), results.append).start()
    turn_until(desk.loop, lambda: desk.connection.sent > 5)
    fetch(database, "create table t as select 1 as i")
    turn_until(desk.loop, lambda: results)
    assert rows_of(results[0]) == [(b"1",)]
    assert [line.split(":")[0] for line in desk.logged] == [
        "warning the database refuses table", "info the database takes table again",
    ]  # fmt: skip


def test_task_of_a_lost_connection_ends_without_a_result(desk: Desk, database: str) -> None:
    def steps() -> Steps[None]:
        try:
            yield from desk.statements.insist("sleep")
        except ConnectionLostError:
            story.append("lost")
            raise

    story: list[str] = []
    Task(desk.loop, steps(), lambda _: story.append("done")).start()
    turn_until(desk.loop, lambda: not desk.connection.is_idle)
    end_backends(database, "drover test")
    turn_until(desk.loop, lambda: story)
    assert (story, desk.logged) == (["lost"], [])
