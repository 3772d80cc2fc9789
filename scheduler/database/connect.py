"""A connection for one block, which waits at its end until the server has ended the session too.

Also what its errors mean to the operator, and what to do next.
"""

import os
import re
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

# Of an answer of a server to a log-in: libpq has `failed: FATAL:  text`, with two blanks, in any language.
ANSWER: Final = re.compile(r"failed: \S+:  (.*)", re.DOTALL)
GONE: Final = ("08", "57P")  # SQLSTATEs of a session that is lost, and of a server that starts or ends

# What a server, or libpq, says of a log-in that it refuses, and what to do next; {role} and {keys} are put in.
ADVICE: Final = (
    (r'role ".*" does not exist', "run drover init --roles by a login that may create roles, or correct {keys}"),
    (r"is not permitted to log in", "alter role {role} login"),
    (r"no pg_hba.conf entry|pg_hba.conf rejects", "let {role} in, in pg_hba.conf, and reload the server"),
    (r"password authentication failed|no password supplied", "give its password, by {keys} or ~/.pgpass"),
    (r"authentication failed", "correct the line for {role} in pg_hba.conf, or {keys}"),
    (r"too many connections for role", "alter role {role} connection limit -1, or as many as are used"),
    (r"too many connections for database", "raise the connection limit of the database"),
    (r"permission denied for database", "grant connect on the database to {role}"),
    (r"remaining connection slots|too many clients", "raise max_connections of the server, or end other sessions"),
    (r"database system is", "try again in a moment: the server starts, ends or recovers"),
    (r"hot standby", "name the primary in {keys}"),
    (r"read-only", "name the primary in {keys} if this is a replica, else reset default_transaction_read_only"),
    (r"database \".*\" does not exist", "create it, or correct {keys}"),
    (r"could not load library|could not access file|incompatible library", FILES_REPLACED),
)  # fmt: skip
RAISE_LIMIT: Final = "try again, or raise statement_timeout of the role or the database"
OTHER_ADVICE: Final = "look into the log of the server, and correct {keys}"


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
    """Return why a database is not reached, refuses the log-in, or a statement, and what to do next.

    A server that answers is reached: the url need not be wrong.
    """
    if lacks_files(str(error), error.sqlstate):
        return f"database not usable: {error}; {FILES_REPLACED}"
    if error.sqlstate and not error.sqlstate.startswith(GONE):
        said = error.diag.message_primary or str(error)
        return f"the database refuses it: {said} (SQLSTATE {error.sqlstate}); look into the log of the server"
    if answer := ANSWER.search(str(error)):
        advice = advice_for(answer[1]).format(role="ROLE", keys="[database] url")
        return f"database refuses the log-in: {answer[1]}; {advice}"
    return f"database not reachable: {error}; check [database] url"


def advice_for(refusal: str) -> str:
    """Return what to do next where a log-in is refused; {role} and {keys} are to be put in."""
    return next((words for pattern, words in ADVICE if re.search(pattern, refusal)), OTHER_ADVICE)


def cancelled(error: psycopg.errors.QueryCanceled, next_step: str = RAISE_LIMIT) -> str:
    """Return why the server cancelled a statement, and what to do next: a time limit, unless it was ended by hand."""
    reason = error.diag.message_primary or str(error)
    return f"a statement was cancelled: {reason}; {next_step}"
