"""`drover why`: why one job is not running, or how it ended; or why all jobs wait, grouped by reason."""

from argparse import Namespace
from dataclasses import replace
from typing import Final

from scheduler.cli.output import Table, as_json, no_such_job, print_records, print_table, printable, warn
from scheduler.cli.session import Session, connect
from scheduler.model.config import Config

KINDS: Final = 300  # of jobs that are asked about, those with the most jobs
COLUMNS: Final = ("jobs", "types", "oldest", "example", "reason")


def show_reason(options: Namespace, config: Config) -> int:
    """Print one line: why the job is not running, or what became of it; with --all a table of reasons."""
    with connect(config) as session:
        if options.all:
            return _show_all(session, json=options.json)
        job = session.job_number(options.job)
        rows = session.rows("job_reason", job=job)
    if not rows:
        return no_such_job(job)
    print(as_json({"job": job, "reason": rows[0][0]}) if options.json else printable(rows[0][0]))
    return 0


def _show_all(session: Session, *, json: bool) -> int:
    reasons = all_reasons(session)
    for sentence in session.restrictions("jobqueue"):
        warn(sentence)
    if json:
        print_records(reasons.records())
    elif reasons.rows:
        picked = [reasons.columns.index(name) for name in COLUMNS]
        print_table(replace(reasons, columns=COLUMNS, rows=[tuple(row[n] for n in picked) for row in reasons.rows]))
    else:
        print("no job waits or runs")
    return 0


def all_reasons(session: Session) -> Table:
    """Return the reasons of all jobs that have not ended, that of the most jobs first."""
    return session.table("", "reasons", most=KINDS)
