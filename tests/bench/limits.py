"""What the machine allows: the barest loops that do the same work, and nothing of ours in them.

They are written for speed and measure themselves; a ratio to them means something only if both ran in turns.
"""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Final

import psycopg

BATCH: Final = 1000  # rows of one statement

BARE_TABLE: Final = """
drop table if exists bare;
create table bare (pk bigserial primary key, type text not null, args text not null, starttime timestamptz,
  endtime timestamptz, priority integer not null default 0, status smallint not null default 0) with (fillfactor = 70);
create index bare_runnable on bare (priority desc, pk) where status = 0;
"""
BARE_ROWS: Final = "insert into bare (type, args) select 'noop', 'argument number ' || i from generate_series(1, %s) i"
# `= any (array(...))`: with `in (select ... limit)` the plan flips to a sequential scan at 1,000 rows.
COMPLETE_AND_CLAIM: Final = """
with done as (update bare set status = 2, endtime = now() where pk = any (%s::bigint[]))
update bare set status = 1, starttime = now()
 where pk = any (array(select pk from bare where status = 0 order by priority desc, pk limit %s for update skip locked))
returning pk, type, args
"""


def ping_pong(command: Sequence[str], agents: int, lines: Sequence[bytes], items: int) -> float:
    """Give items a second of agents that get ready lines, one in flight for each."""
    with ExitStack() as stack, select.epoll() as epoll:
        stdin = dict(_start(stack, command) for _ in range(agents))
        for out in stdin:
            os.read(out, 3)
            epoll.register(out, select.EPOLLIN)
        return items / _seconds_of(epoll, stdin, lines, items)


def _start(stack: ExitStack, command: Sequence[str]) -> tuple[int, int]:
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
    assert process.stdout is not None
    assert process.stdin is not None
    return process.stdout.fileno(), process.stdin.fileno()


def _seconds_of(epoll: select.epoll, stdin: dict[int, int], lines: Sequence[bytes], items: int) -> float:
    ready, read, write, poll = cycle(lines), os.read, os.write, epoll.poll
    begun = time.monotonic()
    for into in stdin.values():
        write(into, next(ready))
    unsent, unanswered = items - len(stdin), items
    while unanswered > 0:
        for out, _ in poll():
            read(out, 4096)
            unanswered -= 1
            if unsent > 0:
                unsent -= 1
                write(stdin[out], next(ready))
    return time.monotonic() - begun


def complete_and_claim(conninfo: str, rows: int) -> float:
    """Give rows a second through one connection that completes a batch and claims the next in one statement."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(BARE_TABLE.encode())
        connection.execute(BARE_ROWS, (rows,))
        for word in (b"vacuum analyze bare", b"checkpoint"):
            connection.execute(word)
        begun = time.monotonic()
        done = _drain(connection)
        seconds = time.monotonic() - begun
    assert done == rows, f"the bare loop has done {done} of {rows} rows"
    return rows / seconds


def _drain(connection: psycopg.Connection) -> int:
    done = 0
    pks: list[int] = []
    while True:
        claimed = connection.execute(COMPLETE_AND_CLAIM, (pks, BATCH), prepare=True).fetchall()
        done += len(pks)
        pks = [row[0] for row in claimed]
        if not pks:
            return done
