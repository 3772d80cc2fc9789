"""A connection for one block, which waits at its end until the server has ended the session too.

Also what its errors mean to the operator, and what to do next.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from select import POLLRDHUP, poll
from time import monotonic, sleep
from typing import Final

import psycopg

from scheduler.drivers.statements import FILES_REPLACED, lacks_files
from scheduler.errors import ConfigError, DatabaseAbsentError

END_LIMIT_S: Final = 2.0  # for the server to end a session
LOOK_S: Final = 0.02
# A function or type that somebody made in another schema must not be taken for that of the server. Behind a pooler
# other clients would get the session as it is left: there the path of the role and the database stays.
SAFE_PATH: Final = """
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)
 where pg_catalog.pg_backend_pid() operator(pg_catalog.=) %s::pg_catalog.int4
"""
TOO_MANY: Final = "too many connections for"  # this role, or this database


@contextmanager
def connected(conninfo: str) -> Iterator[psycopg.Connection]:
    """Connect, in autocommit and UTF-8. Errors: those of psycopg.connect.

    A session that was refused before, by a limit, counts against that limit itself until its process has ended.
    """
    deadline = monotonic() + END_LIMIT_S
    while True:
        try:
            # In a database that is SQL_ASCII, text would come as bytes without an encoding.
            connection = psycopg.connect(conninfo, autocommit=True, client_encoding="utf8")
            break
        except psycopg.OperationalError as error:
            if TOO_MANY not in str(error) or monotonic() > deadline:
                raise
        sleep(LOOK_S)
    with ended(connection):
        yield connection


def set_safe_path(connection: psycopg.Connection) -> None:
    """Let names without a schema mean what the server has, in sessions that run our statements alone."""
    connection.execute(SAFE_PATH, (connection.info.backend_pid,))


@contextmanager
def ended(connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """Close a connection behind the block, and wait for the end of its session.

    The server counts a session against the limits of role and database until its process has ended, which is some time
    after the client has closed it: the next connection could be refused. That process closes the socket last of all.
    """
    with connection:
        kept = os.dup(connection.fileno())
        try:
            yield connection
        finally:
            connection.close()
            _await_end(kept)


def _await_end(kept: int) -> None:
    end = poll()
    end.register(kept, POLLRDHUP)
    end.poll(END_LIMIT_S * 1000)
    os.close(kept)


@contextmanager
def translated(next_step: str) -> Iterator[None]:
    """Raise errors of psycopg as ours; `next_step` is for a login that lacks a right."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"{error}: {next_step}") from error
    except psycopg.errors.QueryCanceled as error:
        raise DatabaseAbsentError(cancelled(error)) from error
    except psycopg.OperationalError as error:
        raise DatabaseAbsentError(unreachable(error)) from error
    except psycopg.InternalError as error:
        if lacks_files(str(error), error.sqlstate):
            raise DatabaseAbsentError(unreachable(error)) from error
        raise
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"database: {error}; check [database] url") from error


def unreachable(error: psycopg.Error) -> str:
    """Return why a database is not reached, or not usable, and what to do next.

    Neither a role of ours that is missing nor a server whose files were replaced is a wrong url.
    """
    if lacks_files(str(error), error.sqlstate):
        return f"database not usable: {error}; {FILES_REPLACED}"
    is_role = 'role "drover_' in str(error) and "does not exist" in str(error)
    advice = "run drover init --roles by a login that may create roles" if is_role else "check [database] url"
    return f"database not reachable: {error}; {advice}"


def cancelled(error: psycopg.errors.QueryCanceled) -> str:
    """Return why the server cancelled a statement: a time limit, unless it was ended by hand."""
    reason = error.diag.message_primary or str(error)
    return f"a statement was cancelled: {reason}; try again, or raise statement_timeout of the role or the database"
