"""`drover stats`: how fast jobs of each type end, how long they wait and run, what is slow, and what fails.

Everything is read from the rows of jobs and from the newest log lines; the daemon counts nothing for it.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from scheduler.cli.database_session import NOTHING, Session, connect
from scheduler.cli.jobs import instant
from scheduler.cli.output import Table, as_json, cell, print_table, span, warn
from scheduler.model.config import Config
from scheduler.model.list_bounds import LISTED, UNBOUNDED, WORST, and_more

SHOW_ALL: Final = "drover stats --all shows them"
REASONS: Final = 20  # of failures, and agents with errors
LOG_LINES: Final = 100_000  # the newest, which errors are looked for in
ALL_JOBS, OF_TYPE, OF_AGENT = range(3)  # depth of a row of ended_stats
QUANTILES: Final = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures since an instant; a table that the role may not see is None."""

    since: datetime
    total: dict[str, Any]
    tables: dict[str, Table | None]
    unseen: list[str]


def show_stats(options: Namespace, config: Config) -> int:
    """Print a line about all jobs, and tables; or one JSON object."""
    with connect(config) as session:
        stats = read_stats(session, options.since, show_all=options.all)
    if options.json:
        tables = {name: table and table.records() for name, table in stats.tables.items()}
        left_out = {name: table.left for name, table in stats.tables.items() if table and table.left}
        print(as_json({"since": stats.since, **stats.total, **tables, "left_out": left_out, "unseen": stats.unseen}))
        return 0
    total = stats.total
    rate = f", {total['per_minute']:,} a minute" if total["ended"] else ""
    jobs = f"{total['ended']:,} {'job' if total['ended'] == 1 else 'jobs'} ended"
    print(f"since {cell(stats.since)}: {jobs}{rate}; {total['failed']:,} failed")
    for table in stats.tables.values():
        if table and table.rows:
            print()
            print_table(in_words(table))
            if table.left:
                print(and_more(table.left, how=SHOW_ALL))
    for sentence in stats.unseen:
        warn(sentence)
    return 0


def read_stats(session: Session, since_text: str, *, show_all: bool = False) -> Stats:
    """Return the figures since an instant, which the text names. Errors: ConfigError if it names none."""
    listed, reasons, slowest = (UNBOUNDED,) * 3 if show_all else (LISTED, REASONS, WORST)
    with session.connection.transaction():
        session.run("one_moment")
        start = instant(session, "--since", since_text, sign=-1) or datetime.max
        minutes = (session.value("now") - start) / timedelta(minutes=1)
        ended = [_rates(row, minutes) for row in session.records("ended_stats", since=start)]
        sees_log = session.access["log"] != NOTHING
        agents = sorted(_of(ended, OF_AGENT), key=lambda row: row["ran_p95"] or 0.0, reverse=True)
        tables = {
            "types": _table("Jobs that ended", _of(ended, OF_TYPE), "host", listed),
            "backlog": session.first(listed, "Jobs that could start", "backlog"),
            "agents": _table("Slowest agents", agents, "per_minute", slowest),
            "failures": session.table("Failures", "failure_stats", since=start, limit=reasons),
            "errors": session.table("Errors in the log", "error_stats", since=start, most=LOG_LINES, limit=reasons)
            if sees_log
            else None,
        }
        (total,) = _of(ended, ALL_JOBS)
    return Stats(start, {key: total[key] for key in ("ended", "failed", "per_minute")}, tables,
                 session.restrictions("jobqueue", "log"))  # fmt: skip


def _of(rows: Sequence[Mapping[str, Any]], depth: int) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "depth"} for row in rows if row["depth"] == depth]


def _rates(row: Mapping[str, Any], minutes: float) -> dict[str, Any]:
    """Return a row of ended_stats with its rate, and each quantile under a name of its own."""
    rates = {"per_minute": round(row["ended"] / minutes, 2) if minutes > 0 else 0.0}
    times = {
        f"{what}_{name}": None if row[what] is None else round(row[what][place], 6)
        for what in ("waited", "ran")
        for place, name in enumerate(QUANTILES)
    }
    return {key: value for key, value in row.items() if key not in ("waited", "ran")} | rates | times


def _table(title: str, rows: Sequence[Mapping[str, Any]], left_out: str, most: int) -> Table:
    columns = [key for key in (rows[0] if rows else {}) if key != left_out]
    shown = [tuple(row[key] for key in columns) for row in rows[:most]]
    return Table(title, tuple(columns), shown, left=len(rows) - len(shown))


def in_words(table: Table) -> Table:
    """Return the table as people read it: the three times of a kind in one column, in units that fit."""
    if "waited_p50" not in table.columns:
        return table
    plain = [name for name in table.columns if not name.endswith(QUANTILES)]
    columns = (*plain, "waited p50/p95/p99", "ran p50/p95/p99")
    rows = [
        (*(row[name] for name in plain), *(" / ".join(brief(row[f"{what}_{q}"]) for q in QUANTILES)
                                           for what in ("waited", "ran")))
        for row in table.records()
    ]  # fmt: skip
    return Table(table.title, columns, rows, ("items",), table.left)


def brief(seconds: float | None) -> str:
    """Return a length of time in two or three digits: `12 ms`, `1.2 s`, `40 s`, `3 min 20 s`."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else span(seconds)
