"""Each login that gives commands may run what they ask: a right that one role lacks is found here, not by its users."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import STATEMENT_FILES, Session, statement, statements

# What is no business of a login; the commands look before they ask, or say which right it lacks.
REFUSED = {
    "drover_scheduler": {
        "flush_jobs", "set_up_job", "resubmit_jobs", "insert_commands", "add_dependencies", "add_schedule",
        "set_quota", "set_quota_most", "remove_quota",
        "hide_job", "subscribe", "unsubscribe", "enable_subscription", "disable_subscription", "post_event",
        "withdraw_commands", "command_waits", "ended_in_vain",
    },
}  # fmt: skip
UTILITIES = {"one_moment", "use_plpgsql"}  # which no plan is made of, nor a right asked for
NAMES = sorted({name for file in STATEMENT_FILES for name in statements(file) if "." not in name} - UTILITIES)


@pytest.mark.parametrize("role", REFUSED)
def test_login_of_the_daemon_may_ask_what_commands_ask(database_with_roles: str, role: str) -> None:
    refused = set()
    with psycopg.connect(make_conninfo(database_with_roles, user=role), autocommit=True) as connection:
        session = Session(connection)
        for name in NAMES:
            text, values = session._permitted(name, dict.fromkeys(statement(name).names))
            try:
                psycopg.RawCursor(connection).execute(b"explain " + text, values)
            except psycopg.errors.InsufficientPrivilege:
                refused.add(name)
    assert refused == REFUSED[role]
