"""A connection for one block, which waits at its end until the server has ended the session too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from select import POLLRDHUP, poll
from time import monotonic, sleep
from typing import Final

import psycopg

END_LIMIT_S: Final = 2.0  # for the server to end a session
LOOK_S: Final = 0.02
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
