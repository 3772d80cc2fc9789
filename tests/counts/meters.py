"""What counts: the calls and lines of our own Python, and what the server says it has written and read."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import psycopg

OURS: Final = str(Path(__file__).parents[2] / "scheduler")
INLINED: Final = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>"))  # no calls any more from Python 3.12 on

LSN: Final = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
TUPLES: Final = """
select sum(n_tup_ins)::bigint, sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint, sum(n_tup_del)::bigint
  from pg_stat_user_tables
"""
# after `analyze` of tables that fit its sample: exact
ENTRIES: Final = """
select coalesce(sum(reltuples), 0)::bigint from pg_class
 where relkind = 'i' and relnamespace = 'drover'::regnamespace and reltuples > 0
"""


class Work:
    """What the product's own Python did: calls of its functions, and lines it ran, those of loops each time."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] = Counter()
        self._lines: Counter[CodeType] = Counter()

    def trace(self, frame: FrameType, event: str, _: Any) -> "Trace | None":
        """Take in a call, as sys.settrace has it."""
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        self._calls[code] += 1
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> "Trace":
        if event == "line":
            self._lines[frame.f_code] += 1
        return self._line

    @property
    def calls(self) -> int:
        """Return how often functions were called; a generator is called for each value it gives."""
        return sum(count for code, count in self._calls.items() if code.co_name not in INLINED)

    @property
    def lines(self) -> int:
        """Return how many lines were run."""
        return sum(self._lines.values())

    def most(self, count: int) -> list[tuple[str, int]]:
        """The functions that ran most lines."""
        return [(f"{Path(c.co_filename).stem}.{c.co_qualname}", n) for c, n in self._lines.most_common(count)]


Trace = Callable[[FrameType, str, Any], Any]


@contextmanager
def work() -> Iterator[Work]:
    """Count what is run within a block."""
    counted, before = Work(), sys.gettrace()
    sys.settrace(counted.trace)
    try:
        yield counted
    finally:
        sys.settrace(before)


def number(connection: psycopg.Connection[Any], query: str) -> int:
    """The one number that a query gives."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def buffers(plan: dict[str, Any]) -> int:
    """The pages that a statement looked at, by its EXPLAIN (analyze, buffers)."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
