"""A session of a command, and what the server still counts of it."""

from scheduler.database.connected import connected
from tests.connection_tools import member

SESSIONS = 100


def test_role_of_one_connection_connects_again_at_once(database_with_roles: str) -> None:
    with member(database_with_roles, "drover_readonly", 1) as conninfo:
        for _ in range(SESSIONS):
            with connected(conninfo) as connection:
                assert connection.execute("select 1").fetchone() == (1,)
