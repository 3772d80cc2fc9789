"""What the machine allows: the barest loops that do the same work, and nothing of ours in them.

They are written for speed and measure themselves; a ratio to them means something only if both ran in turns.
"""

import os
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Final

import psycopg

from tests.bench.rates import Rate
from tests.bench.usage import Meter, metered, this_process

BATCH: Final = 1000  # rows of one statement
READY: Final = [b'id="%d" path="some/path/of/file_%d"\n' % (i, i) for i in range(1, 1001)]

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
WORK: Final = """
create temporary table bare_work as
select i::bigint as id, 'some/path/of/file_' || i as path from generate_series(1, {}) i
"""

# ---- lines to agents


def ping_pong(conninfo: str, command: Sequence[str], agents: int, items: int) -> Rate:
    """Return the rate of items of agents that get ready lines, one in flight for each."""
    with metered(conninfo) as meter:
        return _exchange(meter, command, agents, islice(cycle(READY), items), items)


def fetch_and_ping_pong(conninfo: str, command: Sequence[str], agents: int, items: int) -> Rate:
    """Do the same with lines made of rows, which are fetched from the database meanwhile."""
    with metered(conninfo) as meter, psycopg.connect(conninfo) as connection:
        connection.execute(WORK.format(items).encode())
        return _exchange(meter, command, agents, _formatted(connection), items)


def _formatted(connection: "psycopg.Connection[tuple[int, str]]") -> Iterator[bytes]:
    with connection.cursor("rows") as cursor:
        cursor.execute("select id, path from bare_work")
        while rows := cursor.fetchmany(BATCH):
            for row in rows:
                yield b'id="%d" path="%s"\n' % (row[0], row[1].encode())


def _exchange(meter: Meter, command: Sequence[str], agents: int, lines: Iterable[bytes], items: int) -> Rate:
    """Start agents and give them all lines; the rate from the first line to the last OK."""
    with ExitStack() as stack, select.epoll() as epoll:
        stdin = dict(_start(stack, command) for _ in range(agents))
        for out in stdin:
            os.read(out, 3)
            epoll.register(out, select.EPOLLIN)
        meter.begin(this_process())
        seconds = _seconds_of(epoll, stdin, iter(lines))
        return Rate(items / seconds, meter.cost(items))


def _start(stack: ExitStack, command: Sequence[str]) -> tuple[int, int]:
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
    assert process.stdout is not None
    assert process.stdin is not None
    return process.stdout.fileno(), process.stdin.fileno()


def _seconds_of(epoll: select.epoll, stdin: dict[int, int], lines: Iterator[bytes]) -> float:
    read, write, poll = os.read, os.write, epoll.poll
    begun = time.monotonic()
    unanswered = 0
    for into, line in zip(stdin.values(), lines, strict=False):
        write(into, line)
        unanswered += 1
    while unanswered:
        for out, _ in poll():
            read(out, 4096)
            line = next(lines, b"")
            if line:
                write(stdin[out], line)
            else:
                unanswered -= 1
    return time.monotonic() - begun


# ---- rows


def complete_and_claim(conninfo: str, rows: int) -> Rate:
    """Return the rate of rows through one connection that completes a batch and claims the next in one statement."""
    with metered(conninfo) as meter, psycopg.connect(conninfo, autocommit=True) as connection:
        _bare_table(connection, BARE_ROWS, rows)
        meter.begin(this_process())
        begun = time.monotonic()
        done = _drain(connection)
        seconds = time.monotonic() - begun
        cost = meter.cost(rows)
    assert done == rows, f"the bare loop has done {done} of {rows} rows"
    return Rate(rows / seconds, cost)


def copy(conninfo: str, rows: int) -> Rate:
    """Return the rate of rows copied into the same bare table, which has its key and one index for the claim."""
    text = "".join(f"noop\targument {i}\n" for i in range(rows)).encode()
    with metered(conninfo) as meter, psycopg.connect(conninfo, autocommit=True) as connection:
        _bare_table(connection)
        meter.begin(this_process())
        begun = time.monotonic()
        with connection.cursor().copy("copy bare (type, args) from stdin") as copying:
            copying.write(text)
        seconds = time.monotonic() - begun
        return Rate(rows / seconds, meter.cost(rows))


def _bare_table(connection: "psycopg.Connection[tuple[int, ...]]", query: str = "", rows: int = 0) -> None:
    connection.execute(BARE_TABLE.encode())
    if query:
        connection.execute(query.encode(), (rows,))
    for word in (b"vacuum analyze", b"checkpoint"):
        connection.execute(word)


def _drain(connection: "psycopg.Connection[tuple[int, ...]]") -> int:
    done = 0
    pks: list[int] = []
    while True:
        claimed = connection.execute(COMPLETE_AND_CLAIM, (pks, BATCH), prepare=True).fetchall()
        done += len(pks)
        pks = [row[0] for row in claimed]
        if not pks:
            return done
