"""`drover stats`: how fast jobs of each type end, how long they wait and run, what is slow, and what fails.

What ended was counted as it ended, in spans of time (drover.tally): minutes, and of older ends hours and days. For a
role that sees its own jobs alone their rows are read instead. Errors are looked for in the newest log lines.
"""

from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from scheduler.cli.backlog import estimates, in_words
from scheduler.cli.database_session import NOTHING, Session, connect
from scheduler.cli.jobs import instant
from scheduler.cli.output import Table, as_json, cell, clipped, print_table, printable, span, warn
from scheduler.model.config import Config
from scheduler.model.counters import BIN_ERROR, STARTED, quantile
from scheduler.model.list_bounds import LISTED, UNBOUNDED, WORST, and_more
from scheduler.model.states import DONE, FAILED

SHOW_ALL: Final = "drover stats --all shows them"
TEXT_WIDTH: Final = 80  # of one of several texts
REASONS: Final = 20  # of failures, and agents with errors
LOG_LINES: Final = 100_000  # the newest, which errors are looked for in
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NO_HOST: Final = "-"  # what the tally says of jobs that ended without an agent
TIMED: Final = (DONE, FAILED)  # states of jobs that ran


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures since an instant; a table that the role may not see is None."""

    since: datetime  # what is counted ended after it: the beginning of a span that was asked for in part
    minutes: float  # since then
    total: dict[str, Any]
    tables: dict[str, Table | None]
    estimates: list[dict[str, Any]]  # until what could start is done, see cli/backlog.py
    unseen: list[str]


def show_stats(options: Namespace, config: Config) -> int:
    """Print a line about all jobs, and tables; or one JSON object."""
    with connect(config) as session:
        stats = read_stats(session, options.since, show_all=options.all)
    if options.json:
        tables = {name: table and table.records() for name, table in stats.tables.items()}
        left_out = {name: table.left for name, table in stats.tables.items() if table and table.left}
        print(as_json({"since": stats.since, **stats.total, "error": BIN_ERROR, **tables,
                       "estimates": stats.estimates, "left_out": left_out, "unseen": stats.unseen}))  # fmt: skip
        return 0
    total = stats.total
    rate = f", {total['per_minute']:,} a minute" if total["ended"] else ""
    jobs = f"{total['ended']:,} {'job' if total['ended'] == 1 else 'jobs'} ended"
    print(f"{jobs} in {span(stats.minutes * 60)}, since {cell(stats.since)}{rate}; {total['failed']:,} failed")
    print("".join(f"{printable(in_words(row))}\n" for row in stats.estimates[:WORST]), end="")
    for table in stats.tables.values():
        if table and table.rows:
            print()
            print_table(with_texts(briefly(table)))
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
        counts = session.records("ended_stats", since=start)
        since = min([start, *(row["first"] for row in counts)])
        minutes = (session.value("now") - since) / timedelta(minutes=1)
        sees_log = session.access["log"] != NOTHING
        on_hosts = [row for row in counts if row["host"] != NO_HOST]
        agents = sorted(_ended(on_hosts, minutes, "type", "host"), key=lambda row: row["ran_p95"] or 0.0, reverse=True)
        tables = {
            "types": _table(f"Jobs that ended (times within {BIN_ERROR:.0%})", _ended(counts, minutes, "type"), listed),
            "backlog": session.first(listed, "Jobs that could start", "backlog"),
            "agents": _table("Slowest agents", agents, slowest, "per_minute", *_names("waited")),
            "failures": session.table("Failures", "failure_stats", since=start, limit=reasons),
            "errors": session.table("Errors in the log", "error_stats", since=start, most=LOG_LINES, limit=reasons)
            if sees_log
            else None,
        }
        left = estimates(session)
        total = next(iter(_ended(counts, minutes)), {"ended": 0, "failed": 0, "per_minute": 0.0})
    return Stats(since, minutes, {key: total[key] for key in ("ended", "failed", "per_minute")}, tables, left,
                 session.restrictions("jobqueue", "log"))  # fmt: skip


def _ended(counts: Sequence[Mapping[str, Any]], minutes: float, *by: str) -> list[dict[str, Any]]:
    """Return the figures of all jobs that ended, or of those that are alike `by` this: the most first."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in counts:
        groups[tuple(row[name] for name in by)].append(row)
    figures = [dict(zip(by, group, strict=True)) | _figures(rows, minutes) for group, rows in groups.items()]
    return sorted(
        (row for row in figures if row["ended"]), key=lambda row: (-row["ended"], *(row[name] for name in by))
    )


def _figures(rows: Sequence[Mapping[str, Any]], minutes: float) -> dict[str, Any]:
    """Return how many jobs ended, how many a minute, and how long they waited and ran."""
    totals = [row for row in rows if row["bin"] is None and row["state"] != STARTED]
    ended = sum(row["jobs"] for row in totals)
    return {
        "ended": ended,
        "failed": sum(row["jobs"] for row in totals if row["state"] == FAILED),
        "items": sum(row["items"] for row in totals),
        "per_minute": round(ended / minutes, 2) if minutes > 0 else 0.0,
        **_quantiles("waited", [row for row in rows if row["state"] == STARTED]),
        **_quantiles("ran", [row for row in rows if row["state"] in TIMED]),
    }


def _quantiles(what: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    bins = Counter[int]()
    for row in rows:
        if row["bin"] is not None:
            bins[row["bin"]] += row["jobs"]
    parts = QUANTILES.values()
    return dict(zip(_names(what), [round(quantile(bins, p), 6) if bins else None for p in parts], strict=True))


def _names(what: str) -> list[str]:
    return [f"{what}_{name}" for name in QUANTILES]


def _table(title: str, rows: Sequence[Mapping[str, Any]], most: int, *left_out: str) -> Table:
    columns = [key for key in (rows[0] if rows else {}) if key not in left_out]
    shown = [tuple(row[key] for key in columns) for row in rows[:most]]
    return Table(title, tuple(columns), shown, left=len(rows) - len(shown))


def briefly(table: Table) -> Table:
    """Return the table as people read it: the three times of a kind in one column, in units that fit."""
    if "ran_p50" not in table.columns:
        return table
    plain = [name for name in table.columns if not name.endswith(tuple(QUANTILES))]
    kinds = [what for what in ("waited", "ran") if _names(what)[0] in table.columns]
    columns = (*plain, *(f"{what} {'/'.join(QUANTILES)}" for what in kinds))
    rows = [
        (*(row[name] for name in plain), *(" / ".join(brief(row[name]) for name in _names(what)) for what in kinds))
        for row in table.records()
    ]
    return Table(table.title, columns, rows, ("items",), table.left)


def with_texts(table: Table) -> Table:
    """Return a table of failures as people read it: of several texts each with the number of jobs that have it."""
    if "texts" not in table.columns:
        return table
    columns = [name for name in table.columns if name != "texts"]
    records = [row | {"text": _texts(row)} for row in table.records()]
    return Table(table.title, tuple(columns), [tuple(row[name] for name in columns) for row in records])


def _texts(row: Mapping[str, Any]) -> str | None:
    several = [f"{each['jobs']:,} x {clipped(each['text'], TEXT_WIDTH)}" for each in row["texts"]]
    return "; ".join(several) if len(several) > 1 else row["text"]


def brief(seconds: float | None) -> str:
    """Return a length of time in two or three digits: `12 ms`, `1.2 s`, `40 s`, `3 min 20 s`."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else span(seconds)
