"""The trigger of drover.jobqueue allows exactly the transitions of the state table."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import psycopg
import pytest

from scheduler.model.states import COMMAND_MOVES, JOB_MOVES, JOB_STATES, TERMINAL
from tests.connection_tools import OWNER, fetch

ROW = {
    "held": "null, null, null, 0",
    "queued": "null, null, null, 0",
    "blocked": "null, null, null, 0",
    "claimed": f"'{OWNER}', now(), null, 0",
    "running": f"'{OWNER}', now(), null, 0",
} | dict.fromkeys(TERMINAL, "null, now(), now(), 2") | {"done": "null, now(), now(), 1"}  # fmt: skip
PATHS = {
    "held": ("held",), "queued": ("queued",), "claimed": ("queued", "claimed"),
    "running": ("queued", "claimed", "running"),
    "blocked": ("queued", "blocked"), "done": ("queued", "claimed", "done"), "failed": ("queued", "failed"),
    "cancelled": ("cancelled",), "ignored": ("held", "ignored"), "skipped": ("skipped",),
}  # fmt: skip
MOVE = (
    "update drover.jobqueue set jq_state = '{0}', jq_attempt = jq_attempt + 1,"
    " (jq_owner, jq_starttime, jq_endtime, jq_end_bits) = row({1})"
)


@pytest.fixture(scope="module")
def rows(postgres: str, migrated: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """One database for a hundred moves, each in a transaction that is rolled back."""
    fetch(postgres, f"create database moves template {migrated}")
    with psycopg.connect(postgres, dbname="moves") as connection:
        yield connection
    fetch(postgres, "drop database moves with (force)")


@pytest.mark.parametrize(("kind", "moves"), [("a", JOB_MOVES), ("command", COMMAND_MOVES)], ids=["job", "command"])
@pytest.mark.parametrize("after", JOB_STATES)
@pytest.mark.parametrize("before", JOB_STATES)
def test_guard_allows_exactly_the_transitions_of_the_table_t6(
    rows: psycopg.Connection[tuple[object, ...]], before: str, after: str, kind: str, moves: dict[str, frozenset[str]]
) -> None:
    refusal: AbstractContextManager[object] = nullcontext()
    if after != before and after not in moves[before]:
        refusal = pytest.raises(psycopg.errors.CheckViolation, match="may not move")
    with rows.transaction(force_rollback=True):
        rows.execute("insert into drover.jobqueue (jq_type, jq_args) values (%s, 'reload')", (kind,))
        for state in PATHS[before]:
            rows.execute(MOVE.format(state, ROW[state]).encode())
        with refusal:
            rows.execute(MOVE.format(after, ROW[after]).encode())
