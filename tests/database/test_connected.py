"""A session of a command, and what the server still counts of it."""

from threading import Timer

import psycopg
import pytest

from scheduler.database import connect
from scheduler.database.connect import connected
from tests.connection_tools import member

SESSIONS = 100


@pytest.mark.slow
def test_role_of_one_connection_connects_again_at_once(database_with_roles: str) -> None:
    with member(database_with_roles, "drover_readonly", 1) as conninfo:
        for _ in range(SESSIONS):
            with connected(conninfo) as connection:
                assert connection.execute("select 1").fetchone() == (1,)


def test_session_that_ends_in_a_moment_is_waited_for(database_with_roles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that was refused: it counts against the limit that refused it."""
    monkeypatch.setattr(connect, "END_LIMIT_S", 60.0)
    with member(database_with_roles, "drover_readonly", 1) as conninfo:
        other = psycopg.connect(conninfo)
        Timer(0.3, other.close).start()
        with connected(conninfo) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
