"""The fake database of tests/fakes.py answers as the real one: the columns of each statement, and its first rows."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg import pq

from scheduler.daemon.command_rows import VERBS_ABOUT
from scheduler.drivers.statements import encode
from tests.connection_tools import OWNER, QUERIES, take_group
from tests.fakes import AT_FIRST, TYPES, cells

OF_A_COMMAND: Final = (  # a test that gives one says what these answer
    "pause_queues", "release_job", "set_filter", "set_host", "set_queue", "set_rate", "set_schedule", "set_type",
    "unblock", "unknown_queues",
)  # fmt: skip
SHORT: Final = {b"timestamp with time zone": b"timestamptz", b"double precision": b"float8"}
CHECK: Final = {"recovery": 1, "tries": 0, "most": 10, "text": "", "wait": 1.0, "after": 0, "came": 0}
VALUES: Final[dict[str, dict[str, object]]] = {  # with which each statement is run, where it takes any
    **{name: {"command": 1, "job": 2} for name in ("hold_job", "ice_job", "release_job", "retry_job")},
    "acknowledge": {"command": 1, "ok": True, "text": ""},
    "add_queue": {"command": 1, "name": "default", "concurrency": 1},
    "add_up_changes": {"most": 10, "zones": 4},
    "adopt": {
        "live": [], "before": "2026-01-01 00:00:00+00", "types": ["a"], "guarded": [], "unread": 3, "schedinfo": "a.1"
    },
    "ask_tester": CHECK | {"type": "a", "args": "", "timeout": 1.0},
    "begin_run": {"command": 1, "jobs": [2]},
    "change_jobs": {"command": 1, "most": 10},
    "may_step_down": {"command": 1, "name": None},
    "move_job": {"job": 2, "queue": "default"},
    "pause_queues": {"names": ["default"], "paused": False},
    "remove_queue": {"command": 1, "name": "one"},
    "run_schedule": {"command": 1, "name": "one"},
    "set_filter": {"name": "one", "filter": "", "tree": None},
    "set_host": {
        "name": "a", **dict.fromkeys(("enabled", "letters", "most", "priorities", "queues", "types", "urgent")),
    },
    "set_priority": {"job": 2, "letters": "a"},
    "set_queue": {"queue": "one", "concurrency": 1, "length": None, "priority": None},
    "set_rate": {"name": "one", "rate": None},
    "set_schedule": {"name": "one", "enabled": True},
    "set_type": {"name": "a", "enabled": True},
    "unblock": {"command": 1, "job": 2, "condition": None},
    "unknown_queues": {"names": ["one"]},
    "begin_command": {"command": 1},
    "cancel_job": {"command": 1, "job": 2, "text": ""},
    "check_now": {"names": ["quota:"]},
    "close_commands": {"every": VERBS_ABOUT["every"], "gone": []},
    "count": {"rows": []},
    "due_schedules": {"most": 10, "late": 30.0},
    "end_command": {"command": 1, "ok": True, "text": "", "result": None},
    "fail_blocked": CHECK,
    "find_alerts": {"most": 10},
    "find_suspects": {"most": 10},
    "find_unserved": {"type": "", "queue": "", "places": 10, "most": 10},
    "flush": {"command": None, "days": {"done": 1}, "most": 10, "stage": "log", "place": 0},
    "fold_tally": {"most": 10},
    "forget_events": {"beyond": 0, "most": 10},
    "forget_kept": {"pks": [1], "attempts": [1], "left_pks": [], "left_attempts": []},
    "forget_recovery": CHECK,
    "forget_subscriptions": {"beyond": 0, "most": 10},
    "free_put_off": {"queue": "default", "after": "-infinity", "most": 10, "current": None},
    "postpone_recovery": CHECK,
    "put_off_is_free": {"queue": "default", "changed": "2026-01-01 00:00:00+00"},
    "queue_deliveries": {"most": 10},
    "read_commands": {**VERBS_ABOUT, "passed": []},
    "release_blocked": CHECK | {"is_limited": False, "is_new": True},
    "remove_dead": {"age": 60.0},
    "rescan": {"beyond": 0, "most": 10},
    "rescue": {"live": [], "age": 10.0},
    "set_wanted": {"command": 1, "job": 2, "wanted": "kill"},
    "show_agents": {"rows": []},
    "show_hosts": {"rows": []},
    "show_starts": {"rows": []},
    "show_status": {"rows": [], "gone": []},
    "start_schedules": {"rows": []},
    "stop_unstartable": {"most": 10, "type": "a", "host": "", "state": "blocked", "text": ""},
}  # fmt: skip


@pytest.fixture
def real(database: str) -> Iterator[pq.abc.PGconn]:
    take_group(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection.pgconn


def test_the_columns_of_every_faked_statement_are_those_of_the_real_one(real: pq.abc.PGconn) -> None:
    assert {name: columns(real, name) for name in TYPES} == TYPES


def test_the_first_answer_of_every_faked_statement_is_that_of_an_empty_database(real: pq.abc.PGconn) -> None:
    faked = {name: cells(name, [AT_FIRST[name]] if name in AT_FIRST else []) for name in TYPES}
    answers = {name: shape(rows(real, name)) for name in TYPES if name not in OF_A_COMMAND}
    assert answers == {name: shape(rows) for name, rows in faked.items() if name not in OF_A_COMMAND}


def columns(real: pq.abc.PGconn, name: str) -> list[str]:
    """Return the types of the columns of a statement."""
    assert real.prepare(b"", QUERIES[name].sql.encode()).status == pq.ExecStatus.COMMAND_OK, real.error_message
    seen = real.describe_prepared(b"")
    types = [str(seen.ftype(at)).encode() for at in range(seen.nfields)]
    words = [real.exec_params(b"select format_type($1, null)", [each]).get_value(0, 0) or b"" for each in types]
    return [SHORT.get(word, word).decode() for word in words]


def rows(real: pq.abc.PGconn, name: str) -> list[tuple[bytes | None, ...]]:
    """Run a statement where no job and no command is."""
    values: dict[str, Any] = {"group": "default", "owner": OWNER, **VALUES.get(name, {})}
    given = [b"[]" if each == "rows" else encode(values[each]) for each in QUERIES[name].names]
    answer = real.exec_params(QUERIES[name].sql.encode(), given)
    assert answer.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK), (name, real.error_message)
    return [tuple(answer.get_value(row, at) for at in range(answer.nfields)) for row in range(answer.ntuples)]


def shape(rows: list[tuple[bytes | None, ...]]) -> list[list[bool]]:
    """Return which cells hold something."""
    return [[cell is not None for cell in row] for row in rows]
