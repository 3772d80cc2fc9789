"""A database connection for one block: when the block has ended, the server counts the session no more."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from select import POLLRDHUP, poll
from typing import Final

import psycopg

END_LIMIT_MS: Final = 2000  # for the server to end the session


@contextmanager
def connected(conninfo: str) -> Iterator[psycopg.Connection]:
    """Connect, in autocommit and UTF-8. Errors: those of psycopg.connect.

    The server counts a session against the limits of role and database until its process has ended, which is some time
    after the client has closed it: the next connection could be refused. That process closes the socket last of all.
    """
    # In a database that is SQL_ASCII, text would come as bytes without an encoding.
    with psycopg.connect(conninfo, autocommit=True, client_encoding="utf8") as connection:
        kept = os.dup(connection.fileno())
        try:
            yield connection
        finally:
            connection.close()
            _await_end(kept)


def _await_end(kept: int) -> None:
    ended = poll()
    ended.register(kept, POLLRDHUP)
    ended.poll(END_LIMIT_MS)
    os.close(kept)
