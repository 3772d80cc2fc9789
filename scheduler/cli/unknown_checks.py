"""Run a check of the database, and tell an error that kept it from looking (NotLooked) from one that is a fault.

A time limit, a lock, a missing right, a conflict on a replica or a server without its libraries says nothing about
what the check looks for: health, status, check, doctor and metrics show it as unknown, with the reason and what to do
next. Any other error, such as a lost connection, is raised.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import psycopg

from scheduler.cli.database_session import Session
from scheduler.drivers.statements import FILES_REPLACED, lacks_files

Found = TypeVar("Found")
LIMIT_MS: Final = 10_000  # of a check that has no limit of its own
LOCK_MS: Final = 1000
NO_PRIVILEGE: Final = "no privilege"
REASONS: Final = (  # by the beginning of the SQLSTATE: why, and what to do next
    ("57014", "time limit", "try again; warnings slow query, lock and dead rows, if there are any, say what to do"),
    ("55P03", "lock", "try again; if it stays, end the session that pg_locks names"),
    ("42501", NO_PRIVILEGE, "look as drover_operator; drover init --roles grants what is missing"),
    ("40", "conflict", "try again; on a replica, raise max_standby_streaming_delay"),
    ("53", "resources", "give the server the memory, disk or connections that it lacks"),
)


class NotLooked(NamedTuple):
    """Why a check could not look, and what to do next."""

    reason: str
    message: str  # of the server
    next: str

    @property
    def why(self) -> str:
        """Return the reason and what the server said."""
        return f"{self.reason}: {self.message}"

    def sentence(self, what: str) -> str:
        """Return in one sentence what was not looked for, why, and what to do next."""
        return f"not looked for: {what}: {self.why}; next: {self.next}"


def not_looked(error: BaseException | None) -> NotLooked | None:
    """Return what an error says of a check that could not look; None if it says something else."""
    if not isinstance(error, psycopg.Error):
        return None
    message = error.diag.message_primary or str(error)
    if lacks_files(str(error), error.sqlstate):
        return NotLooked("server files", message, FILES_REPLACED)
    for state, reason, next_step in REASONS:
        if (error.sqlstate or "").startswith(state):
            return NotLooked(reason, message, next_step)
    return None


def look(session: Session, read: Callable[[], Found], limit_ms: int = LIMIT_MS) -> Found | NotLooked:
    """Return what `read` returns, or why it could not look; a lock is waited for, for a second at most.

    What it changes is undone, so that the limits are of this check alone.
    """
    try:
        with session.connection.transaction(force_rollback=True):
            session.run("limit_statement", timeout_ms=limit_ms, lock_ms=min(limit_ms // 2, LOCK_MS))
            return read()
    except psycopg.Error as error:
        if (found := not_looked(error)) is None:
            raise
        if isinstance(error, psycopg.errors.QueryCanceled) and "statement timeout" in found.message:
            return found._replace(message=f"it took over {limit_ms / 1000:g} s and was skipped")
        return found
