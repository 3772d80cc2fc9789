"""Queries of jobs: one held cursor each, read-only, bounded in time, and nothing left behind for the next job."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from scheduler.drivers.loop import Loop
from scheduler.drivers.query_cursors import FIRST_ROWS, JobQueries
from scheduler.model.config import Config, Scheduler
from scheduler.model.events_and_effects import ConnectionsChanged, Event, Fetched, Kept, NotExpanded, Opened
from scheduler.model.sql_text import cursor_query
from tests.connection_tools import backends, end_backends, fetch, let_in, member, shut_out
from tests.loop_tools import turn_until

MakeDesk = Callable[..., "Desk"]


class Desk:
    """JobQueries with their loop, and the events they told."""

    def __init__(
        self, conninfo: str, count: int = 2, limit: float = 60.0, reconnect_max: float = 0.2, **settings: int
    ) -> None:
        self.loop = Loop()
        self.events: list[Event] = []
        self.unconnected: list[ConnectionsChanged] = []
        timers = Scheduler(expansions=count, expansion_limit=limit, reconnect_max=reconnect_max, **settings)  # type: ignore[arg-type]
        self.queries = JobQueries(self.loop, conninfo, timers, self.events.append, self.unconnected.append)

    def next(self) -> Event:
        """Return the next event."""
        turn_until(self.loop, lambda: self.events)
        return self.events.pop(0)

    def open(self, job: int, sql: str, key: str | None = None) -> Event:
        """Expand the SQL of a job and give what is told."""
        self.queries.expand(job, cursor_query(sql, key, None, ()))
        return self.next()

    def fetch(self, job: int, count: int) -> Event:
        """Fetch rows and give what is told."""
        self.queries.fetch(job, count)
        return self.next()

    @property
    def free(self) -> int:
        """Return how many more queries can run."""
        return self.queries._pool.count - len(self.queries._cursors)

    def shut(self) -> None:
        """Leave nothing open."""
        self.queries.close()
        self.loop.close()


@pytest.fixture
def make_desk(database: str) -> Iterator[MakeDesk]:
    desks: list[Desk] = []

    def make(conninfo: str = database, **options: float) -> Desk:
        desks.append(Desk(conninfo, **options))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for desk in desks:
        desk.shut()


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()


def test_query_reports_columns_and_total_then_rows_f17(desk: Desk) -> None:
    opened = desk.open(7, "select i, 'x' || i as name, null as nothing from generate_series(1, 5) i;")
    assert opened == Opened(7, (b"i", b"name", b"nothing"), 5)
    assert desk.fetch(7, 2) == Fetched(7, [(b"1", b"x1", None), (b"2", b"x2", None)], True)
    assert desk.fetch(7, 2) == Fetched(7, [(b"3", b"x3", None), (b"4", b"x4", None)], True)
    assert desk.fetch(7, 2) == Fetched(7, [(b"5", b"x5", None)], False)


def test_last_full_fetch_reports_that_no_more_come_f17(desk: Desk) -> None:
    desk.open(7, "select generate_series(1, 4) as i")
    assert desk.fetch(7, 4) == Fetched(7, [(b"1",), (b"2",), (b"3",), (b"4",)], False)


def test_query_without_rows_opens_with_total_zero_f34(desk: Desk) -> None:
    assert desk.open(7, "select 1 as i where false") == Opened(7, (b"i",), 0)


def test_rows_are_those_of_the_snapshot_of_the_query_f17(desk: Desk, database: str) -> None:
    fetch(database, "create table public.t (i int); insert into public.t values (1), (2)")
    desk.open(7, "select i from public.t order by i")
    fetch(database, "delete from public.t")
    assert desk.fetch(7, 9) == Fetched(7, [(b"1",), (b"2",)], False)


def test_open_cursor_holds_no_snapshot_f17(desk: Desk, database: str) -> None:
    desk.open(7, "select generate_series(1, 9) as i")
    assert backends(database, "drover exp", "(backend_xmin is not null or state <> 'idle')") == 0


@pytest.mark.parametrize(
    "values",
    ["(1.0), (1.00)", "('[1]'::jsonb), ('[1.0]')", "(row(1, 2)), (row(1, 2))", "('1 day'::interval), ('24:00')"],
)
def test_keys_equal_in_sql_are_one_key_however_they_are_written(desk: Desk, values: str) -> None:
    told = desk.open(7, f"select * from (values {values}) v(k)", "k")
    assert isinstance(told, NotExpanded)
    assert re.fullmatch("key '.+' comes twice: keys must be unique", told.reason)
    assert not told.again


def test_one_row_with_a_literal_key_is_no_duplicate_f17(desk: Desk) -> None:
    assert desk.open(7, "select 17 as k", "k") == Opened(7, (b"k",), 1)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select 1 frm t", 'syntax error at or near "t" (SQLSTATE 42601, at character 14)'),
        ("select nonsense", 'column "nonsense" does not exist (SQLSTATE 42703, at character 8)'),
        ("select 1 / (i - 2) from generate_series(1, 3) i", "division by zero (SQLSTATE 22012)"),
        ("select 1) q; commit; select (2", "insert multiple commands into a prepared statement (SQLSTATE 42601)"),
        ("select job_pk from drover.job for update", "SELECT FOR UPDATE in a read-only transaction (SQLSTATE 25006)"),
        ("with x as (delete from drover.job returning 1) select * from x", "SQLSTATE 0A000"),
        ("copy drover.job to stdout", "SQLSTATE 42601"),
    ],
)  # fmt: skip
def test_query_with_an_error_fails_with_its_message_f29(desk: Desk, sql: str, words: str) -> None:
    event = desk.open(7, sql)
    assert isinstance(event, NotExpanded)
    assert words in event.reason
    assert (event.job, event.again) == (7, False)
    assert isinstance(desk.open(8, "select 1 as i"), Opened)


AT_THE_END = (
    "syntax error at the end of the SQL: it is not complete, or has a bracket too many (SQLSTATE 42601, at character"
)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "the SQL is empty (SQLSTATE 42601)"),
        (" ; ", "the SQL is empty (SQLSTATE 42601)"),
        ("-- later\n/* or\nnever */", "the SQL is empty (SQLSTATE 42601)"),
        ("select 1 from", f"{AT_THE_END} 14)"),
        ("select (1", f"{AT_THE_END} 10)"),
        ("select 1 /* a", "unterminated /* comment (SQLSTATE 42601, at character 10)"),
    ],
)
@pytest.mark.parametrize("key", [None, "k"])
def test_mistake_at_the_end_of_the_sql_names_no_character_that_nobody_wrote(
    desk: Desk, sql: str, said: str, key: str | None
) -> None:
    event = desk.open(7, sql, key)
    assert isinstance(event, NotExpanded)
    assert event.reason == said


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select 'a", "unterminated quoted string (SQLSTATE 42601, at character 8)"),
        ('select 1 as "a', "unterminated quoted identifier (SQLSTATE 42601, at character 13)"),
    ],
)
def test_quote_that_is_not_closed_is_told_without_what_follows_it(desk: Desk, sql: str, said: str) -> None:
    event = desk.open(7, sql)
    assert isinstance(event, NotExpanded)
    assert event.reason == said


@pytest.mark.parametrize(
    "sql",
    ["select public.w() as i", "select set_config('transaction_read_only', 'off', true), public.w() as i"],
)
def test_query_cannot_write_f29(desk: Desk, database: str, sql: str) -> None:
    fetch(database, "create function public.w() returns bigint language sql as"
                    " 'insert into drover.job default values returning job_pk'")  # fmt: skip
    event = desk.open(7, sql)
    assert isinstance(event, NotExpanded)
    assert "SQLSTATE 25" in event.reason
    assert fetch(database, "select from drover.job") == []


def test_query_without_the_right_fails_f29(desk: Desk, database: str) -> None:
    fetch(database, "create function public.f() returns int language plpgsql as"
                    " $$ begin raise insufficient_privilege; end $$")  # fmt: skip
    event = desk.open(7, "select public.f()")
    assert event == NotExpanded(7, "insufficient_privilege (SQLSTATE 42501)", False)


def test_endless_query_ends_at_our_limit_f100(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(limit=0.2)
    assert desk.open(7, "select pg_sleep(60)") == NotExpanded(7, "the query ran longer than 0.2 s", False)
    turn_until(desk.loop, lambda: isinstance(desk.open(8, "select 1 as i"), Opened))
    assert backends(database, "drover exp", "query = 'commit' and state = 'active'") == 0


def test_slow_query_does_not_hold_up_another_f100(desk: Desk) -> None:
    desk.queries.expand(7, "select pg_sleep(60)")
    assert desk.open(8, "select 1 as i") == Opened(8, (b"i",), 1)
    assert desk.free == 0


def test_closing_a_query_frees_its_connection_in_any_state_f17(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=1)
    desk.open(6, "select 1 as i")
    desk.queries.close_query(6)
    desk.queries.expand(7, "select pg_sleep(60)")
    desk.loop.turn(desk.loop.now)
    desk.queries.close_query(7)
    assert desk.free == 1
    assert desk.open(8, "select 2 as i") == Opened(8, (b"i",), 1)
    assert desk.fetch(8, 5) == Fetched(8, [(b"2",)], False)
    assert backends(database, "drover exp") == 1


def test_query_closed_before_it_began_leaves_nothing_f17(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=1)
    desk.queries.expand(7, "select 1 as i")
    desk.queries.close_query(7)
    assert desk.open(8, "select 2 as i") == Opened(8, (b"i",), 1)
    assert backends(database, "drover exp", "state = 'idle in transaction'") == 0


def test_query_sees_no_session_state_of_the_one_before_f17(make_desk: MakeDesk) -> None:
    desk = make_desk(count=1)
    set_secret, set_limit = "set_config('drover.secret', 'x', false)", "set_config('statement_timeout', '1', false)"
    desk.open(7, f"select {set_secret} as s, {set_limit} as l, pg_advisory_lock(7)::text as k")
    desk.queries.close_query(7)
    names = ("drover.secret", "statement_timeout", "default_transaction_read_only")
    settings = ", ".join(f"current_setting('{name}', true) as s{n}" for n, name in enumerate(names))
    desk.open(8, f"select {settings}, (select count(*) from pg_locks where locktype = 'advisory') as locks")
    event = desk.fetch(8, 1)
    assert isinstance(event, Fetched)
    assert event.rows[0][0] in (None, b"")
    assert event.rows[0][1:] == (b"0", b"on", b"0")


def test_connections_are_opened_when_needed_and_kept_f17(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=3)
    assert backends(database, "drover exp") == 0
    for job in range(3):
        desk.open(job, "select 1 as i")
        desk.queries.close_query(job)
    assert backends(database, "drover exp") == 1


def test_connection_lost_between_fetches_puts_the_job_back_f29(desk: Desk, database: str) -> None:
    desk.open(7, "select 1 as i")
    end_backends(database, "drover exp")
    assert desk.next() == NotExpanded(7, "server closed the connection unexpectedly", True, True)
    assert desk.free == 2
    assert desk.open(9, "select 1 as i") == Opened(9, (b"i",), 1)


def test_connection_lost_after_the_last_row_changes_nothing(desk: Desk, database: str) -> None:
    desk.open(7, "select 1 as i")
    desk.fetch(7, 1)
    desk.open(8, "select generate_series(1, 3) as i")
    end_backends(database, "drover exp")
    event = desk.next()
    assert isinstance(event, NotExpanded)
    turn_until(desk.loop, lambda: desk.free == 2)
    assert (event.job, desk.events) == (8, [])


def test_connection_lost_while_the_query_runs_puts_the_job_back_f29(desk: Desk) -> None:
    event = desk.open(7, "select pg_terminate_backend(pg_backend_pid())")
    assert event == NotExpanded(7, "terminating connection due to administrator command (SQLSTATE 57P01)", True, True)
    assert desk.open(8, "select 1 as i") == Opened(8, (b"i",), 1)


# ---- log-ins that fail


@pytest.fixture
def shut(database_with_roles: str) -> str:
    """Return the conninfo of a role that may not connect."""
    shut_out(database_with_roles)
    return make_conninfo(database_with_roles, user="drover_msq")


def test_refused_log_in_puts_the_job_back_at_once_with_the_reason(make_desk: MakeDesk, shut: str) -> None:
    desk = make_desk(shut, reconnect_max=60.0)
    event = desk.open(7, "select 1 as i")
    assert isinstance(event, NotExpanded)
    assert event.reason.startswith("no connection as drover_msq: ")
    assert "permission denied for database" in event.reason
    assert (event.again, event.interrupted) == (True, False)
    assert event.retry_in is not None
    assert desk.free == 2


def test_job_that_arrives_while_log_ins_are_refused_goes_back_at_once(make_desk: MakeDesk, shut: str) -> None:
    desk = make_desk(shut, reconnect_max=60.0)
    desk.open(7, "select 1 as i")
    desk.queries.expand(8, "select 1 as i")
    (event,) = desk.events
    assert isinstance(event, NotExpanded)
    assert (event.job, event.again) == (8, True)


def test_refused_log_in_is_reported_at_each_attempt_and_when_it_is_over(
    make_desk: MakeDesk, shut: str, database_with_roles: str
) -> None:
    desk = make_desk(shut)
    desk.open(7, "select 1 as i")
    turn_until(desk.loop, lambda: len(desk.unconnected) >= 3)
    assert {(each.need, each.login, each.up) for each in desk.unconnected} == {("queries", "drover_msq", 0)}
    let_in(database_with_roles)
    turn_until(desk.loop, lambda: desk.unconnected[-1].reason is None)
    assert desk.open(8, "select 1 as i") == Opened(8, (b"i",), 1)


def test_log_in_refused_for_a_connection_limit_keeps_open_connections(
    make_desk: MakeDesk, database_with_roles: str
) -> None:
    with member(database_with_roles, "drover_msq", 1) as conninfo:
        desk = make_desk(conninfo)
        assert isinstance(desk.open(7, "select 1 as i"), Opened)
        event = desk.open(8, "select 1 as i")
        assert isinstance(event, NotExpanded)
        assert 'too many connections for role "drover_msq_1"' in event.reason
        assert desk.unconnected[-1].up == 1
        desk.queries.close_query(7)
        assert isinstance(desk.open(9, "select 1 as i"), Opened)


def test_job_prefers_a_closing_connection_to_a_refused_one(make_desk: MakeDesk, database_with_roles: str) -> None:
    with member(database_with_roles, "drover_msq", 1) as conninfo:
        desk = make_desk(conninfo, reconnect_max=60.0)
        desk.open(7, "select 1 as i")
        desk.open(8, "select 1 as i")
        desk.queries.close_query(7)
        desk.queries.expand(9, "select pg_sleep(60)")
        turn_until(desk.loop, lambda: backends(database_with_roles, "drover", "query = 'commit' and state = 'active'"))
        desk.queries.close_query(9)
        assert isinstance(desk.open(10, "select 1 as i"), Opened)


def test_refused_connection_is_closed_when_fewer_are_configured(make_desk: MakeDesk, database_with_roles: str) -> None:
    with member(database_with_roles, "drover_msq", 1) as conninfo:
        desk = make_desk(conninfo)
        desk.open(7, "select 1 as i")
        desk.open(8, "select 1 as i")
        desk.queries.reload(Config(scheduler=Scheduler(expansions=1)))
        assert desk.unconnected[-1].reason is None
        desk.queries.close_query(7)
        assert isinstance(desk.open(9, "select 1 as i"), Opened)


def test_unreachable_server_is_reported_at_once_f29(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(make_conninfo(database, port=5999))
    event = desk.open(7, "select 1 as i")
    assert isinstance(event, NotExpanded)
    assert event.retry_in is not None
    assert desk.free == 2


def test_large_result_is_fetched_in_parts_f17(desk: Desk) -> None:
    assert desk.open(7, "select i, repeat('x', 50) as t from generate_series(1, 100000) i") == Opened(
        7, (b"i", b"t"), 100_000
    )
    sizes = [len(desk.fetch(7, 40_000).rows) for _ in range(4)]  # type: ignore[union-attr]
    assert sizes == [FIRST_ROWS, 40_000, 40_000, 20_000 - FIRST_ROWS]


# ---- limits (threats 12 and 13)


def test_query_with_more_rows_than_allowed_fails_before_any_is_fetched(make_desk: MakeDesk) -> None:
    desk = make_desk(msq_rows=100)
    reason = "the query gives 101 rows, and msq_rows allows 100"
    assert desk.open(7, "select generate_series(1, 101) as i") == NotExpanded(7, reason, False)
    assert desk.open(8, "select generate_series(1, 100) as i") == Opened(8, (b"i",), 100)


def test_query_with_more_bytes_than_allowed_fails_at_the_limit(make_desk: MakeDesk) -> None:
    desk = make_desk(count=1, msq_bytes=100_000)
    desk.open(7, "select repeat('x', 1000) as v from generate_series(1, 200)")
    assert len(desk.fetch(7, 1000).rows) == FIRST_ROWS  # type: ignore[union-attr]
    reason = "the rows of the query have more bytes than msq_bytes allows, 100000"
    assert desk.fetch(7, 51) == NotExpanded(7, reason, False)
    assert desk.open(8, "select 1 as i") == Opened(8, (b"i",), 1)


def test_query_with_as_many_bytes_as_allowed_is_fetched_whole(make_desk: MakeDesk) -> None:
    desk = make_desk(msq_bytes=100_000)
    desk.open(7, "select repeat('x', 1000) as v, null::text as n from generate_series(1, 100)")
    desk.fetch(7, 1000)
    assert desk.fetch(7, 1000) == Fetched(7, [(b"x" * 1000, None)] * FIRST_ROWS, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "select repeat('x', 700000) as v",
        "select repeat('x', case when n > 50 then 100000 else 1 end) as v from generate_series(1, 5000) n",
    ],
    ids=["one row", "many rows, the first of them small"],
)
def test_rows_too_large_for_memory_fail_their_query_with_the_reason(make_desk: MakeDesk, sql: str) -> None:
    desk = make_desk(fetch_bytes=10_000)
    desk.open(7, sql)
    events = [desk.fetch(7, 1000)]
    if isinstance(events[-1], Fetched):
        events.append(desk.fetch(7, 1000))
    assert isinstance(events[-1], NotExpanded)
    assert "have more than 640000 bytes: select less, or lower fetch_rows" in events[-1].reason
    assert not events[-1].again
    assert isinstance(desk.open(8, "select 1 as i"), Opened)


# ---- rows in files


def keep(desk: Desk, job: int, count: int) -> Event:
    """Fetch rows into the file of a job and give what is told."""
    desk.queries.keep(job, count)
    return desk.next()


def test_rows_of_a_file_come_first_then_those_of_the_server_f49(desk: Desk) -> None:
    desk.open(7, "select generate_series(1, 6) as i")
    assert desk.fetch(7, 1) == Fetched(7, [(b"1",)], True)
    kept = [keep(desk, 7, 2), keep(desk, 7, 1)]
    assert [(event.rows, event.more, event.problem) for event in kept if isinstance(event, Kept)] == [
        (2, True, ""), (1, True, "")
    ]  # fmt: skip
    assert [desk.fetch(7, 5) for _ in range(3)] == [
        Fetched(7, [(b"2",), (b"3",)], True), Fetched(7, [(b"4",)], True), Fetched(7, [(b"5",), (b"6",)], False)
    ]  # fmt: skip


def test_connection_of_a_query_whose_rows_are_all_in_its_file_is_free_f49(make_desk: MakeDesk, database: str) -> None:
    desk = make_desk(count=1)
    desk.open(7, "select i, null as none, repeat('x', 1000) as x from generate_series(1, 300) i")
    assert isinstance(told := keep(desk, 7, 1000), Kept)
    assert (told.rows, told.more) == (300, False)
    assert told.size > 300_000
    assert desk.open(8, "select 1 as i") == Opened(8, (b"i",), 1)
    end_backends(database, "drover exp")
    assert isinstance(desk.next(), NotExpanded)  # of job 8
    rows = [(b"%d" % number, None, b"x" * 1000) for number in range(1, 301)]
    assert desk.fetch(7, 1) == Fetched(7, rows, False)


def test_rows_that_may_have_no_file_wait_in_memory_and_the_reason_is_told_f49(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    desk.open(7, "select generate_series(1, 3) as i")
    assert isinstance(told := keep(desk, 7, 2), Kept)
    assert (told.rows, told.size, told.more) == (2, 0, True)
    assert "No such file or directory" in told.problem
    assert [desk.fetch(7, 5) for _ in range(2)] == [
        Fetched(7, [(b"1",), (b"2",)], True), Fetched(7, [(b"3",)], False)
    ]  # fmt: skip


def test_rows_behind_some_that_could_not_be_written_come_after_them_f49(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "place"))
    desk.open(7, "select generate_series(1, 3) as i")
    assert isinstance(keep(desk, 7, 1), Kept)
    (tmp_path / "place").mkdir()
    assert isinstance(told := keep(desk, 7, 1), Kept)
    assert told.problem == ""
    assert [desk.fetch(7, 1) for _ in range(3)] == [
        Fetched(7, [(b"1",)], True), Fetched(7, [(b"2",)], True), Fetched(7, [(b"3",)], False)
    ]  # fmt: skip


def test_file_of_rows_has_no_name_f49(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    desk.open(7, "select generate_series(1, 3) as i")
    assert isinstance(keep(desk, 7, 2), Kept)
    assert list(tmp_path.iterdir()) == []
