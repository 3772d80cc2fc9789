"""`drover retry`, `cancel` and `flush` of the jobs that filters choose: how many, whether that is meant, and how far.

Jobs that are named, and `flush DAYS` alone, become commands at once, as before. Jobs that are chosen are counted first;
on a terminal the count must be confirmed, elsewhere --yes be given. Commands go out in parts, so that Ctrl-C leaves the
rest undone.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from scheduler.cli import admin
from scheduler.cli.job_filters import chosen, in_words
from scheduler.cli.jobs import COMMAND_TYPE, brief
from scheduler.cli.options import filters_are_given
from scheduler.cli.output import as_json, failed, print_records, print_table, printable, warn
from scheduler.cli.progress import Progress
from scheduler.cli.session import Session, connect
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.states import CANCELLED, DONE, FAILED, IGNORED, JOB_STATES, SKIPPED

ENDED: Final = (DONE, FAILED, CANCELLED, IGNORED, SKIPPED)
LIVE: Final = tuple(state for state in JOB_STATES if state not in ENDED)
PART: Final = 200  # commands that are sent at once: some seconds
PIECE: Final = 1000  # jobs that one statement removes
WANTED: Final = {"retry": "have failed", "cancel": "are left that have not ended", "flush": "have ended so long ago"}
SHOWN: Final = 20  # jobs that --dry-run lists
REFUSALS: Final = 5  # that are printed; of the rest, how many


class Job(NamedTuple):
    """A job that was chosen."""

    number: int
    state: str


def send_commands(options: Namespace, config: Config) -> int:
    """Do it to the jobs that are named, or to those that are chosen; 1 if one is refused."""
    if not filters_are_given(options) and not options.dry_run:
        return admin.send_commands(options, config)
    with connect(config) as session:
        jobs = _choose(session, options)
        if not jobs:
            print(printable(f"nothing to {options.command}: no jobs {in_words(options)} {WANTED[options.command]}"))
            return 0
        if options.dry_run:
            return _list(session, options, jobs)
        if not _is_meant(options, jobs):
            return failed("nothing was done")
        return (_flush if options.command == "flush" else _send)(session, options, jobs)


def _states(options: Namespace) -> tuple[str, ...]:
    if options.command == "flush":
        return ENDED if options.failed else tuple(state for state in ENDED if state != FAILED)
    return {"retry": (FAILED,), "cancel": LIVE}[options.command]


def _choose(session: Session, options: Namespace) -> list[Job]:
    """Return the jobs, the oldest first."""
    days = getattr(options, "days", None)
    before = None if days is None else session.value("now") - timedelta(days=days)
    jobs = session.rows(
        "choose_jobs", states=list(_states(options)), before=before,
        with_commands=COMMAND_TYPE in (options.types or ()), jobs=_named(session, options), **chosen(session, options),
    )  # fmt: skip
    return [Job(*row) for row in jobs]


def _named(session: Session, options: Namespace) -> list[int] | None:
    named = getattr(options, "jobs", None)
    return session.job_numbers(named) if named else None


def _list(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Print what would be done, and to which jobs."""
    if options.json:
        print_records(job._asdict() for job in jobs)
        return 0
    print(f"would {options.command} {_count(jobs)}")
    print_table(brief(session.table("", "jobs_by_number", jobs=[job.number for job in jobs[:SHOWN]])))
    if len(jobs) > SHOWN:
        warn(f"the first {SHOWN} are listed; --json lists all")
    return 0


def _count(jobs: Sequence[Job]) -> str:
    counts = Counter(job.state for job in jobs)
    states = ", ".join(f"{counts[state]:,} {state}" for state in JOB_STATES if counts[state])
    return f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}: {states}"


def _is_meant(options: Namespace, jobs: Sequence[Job]) -> bool:
    """Ask, on a terminal; return True if --yes says so. Errors: ConfigError if there is no terminal to ask on."""
    if options.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"drover {options.command}: this is about {_count(jobs)}; give --yes, or look with --dry-run")
    print(f"{options.command} {_count(jobs)}", end="? [y/N] ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Send a command for each job, in parts; print how many were done, and why others were not."""
    rest = f" {options.reason}" if getattr(options, "reason", "") else ""
    verb = admin.VERB_OF[options.command].name
    progress = Progress(len(jobs), "jobs")
    answers: list[admin.Answer] = []
    for first in range(0, len(jobs), PART):
        progress.done = first
        commands = [f"{verb} {job.number}{rest}" for job in jobs[first : first + PART]]
        part = admin.send(session, commands, options.wait, each=progress.show)
        answers += part
        if len(part) < len(commands):
            break
    progress.clear()
    return _report(options, answers, len(jobs))


def _report(options: Namespace, answers: Sequence[admin.Answer], asked: int) -> int:
    refused = [answer for answer in answers if not answer.ok]
    if options.json:
        print(*(as_json(answer._asdict()) for answer in answers), sep="\n")
    else:
        print(f"{options.command}: {len(answers) - len(refused):,} of {asked:,} jobs")
    for answer in refused[:REFUSALS]:
        warn(answer.text)
    if len(refused) > REFUSALS:
        warn(f"and {len(refused) - REFUSALS:,} more were refused; --json has them all")
    if len(answers) < asked:
        return failed(f"{asked - len(answers):,} have no answer yet, or were not asked for")
    return int(bool(refused))


def _flush(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Remove the jobs, in pieces; those that others wait for stay."""
    progress, removed = Progress(len(jobs), "jobs"), 0
    for first in range(0, len(jobs), PIECE):
        numbers = [job.number for job in jobs[first : first + PIECE]]
        removed += session.value("flush_jobs", jobs=numbers)
        progress.show(first + len(numbers))
    progress.clear()
    result: dict[str, Any] = {"removed": removed, "kept": len(jobs) - removed}
    kept = f"; {result['kept']:,} stay, since others wait for them" if result["kept"] else ""
    print(as_json(result) if options.json else printable(f"flush: removed {removed:,} of {len(jobs):,} jobs{kept}"))
    return 0
