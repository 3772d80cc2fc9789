"""Commands about all jobs that filters choose: `drover cancel --type a`, and so on; and `drover flush` with filters.

The jobs are counted first; on a terminal the count must be confirmed, elsewhere --yes be given. Then one command goes
out for all of them, which the scheduler carries out in batches: the filter finds the jobs once more, among those that
were inserted before the command. Ctrl-C ends the wait; the scheduler goes on. Only `flush` removes the jobs here.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from scheduler.cli.admin import VERB_OF, send_commands
from scheduler.cli.answers import Answer, send
from scheduler.cli.arguments import filters_are_given, verb_arguments
from scheduler.cli.database_session import Session, connect
from scheduler.cli.job_lists import find, reading
from scheduler.cli.jobs import COMMAND_TYPE, brief, chosen, in_words
from scheduler.cli.output import as_json, failed, print_records, print_table, printable, warn
from scheduler.cli.wait import Progress
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.states import FAILED, JOB_STATES, TERMINAL
from scheduler.model.verbs import parse, quoted

FLUSHED_AT_ONCE: Final = 1000  # jobs that one statement removes
MEND_REFUSAL: Final = "remove the rows that refer to them, or let the foreign key say on delete cascade"
LISTED_JOBS: Final = 20  # jobs that --dry-run lists
UNCOUNTED: Final = ("groups", "ran_on", "codes", "since", "until", "jobs", "before")  # filters for single jobs
ALL_ROWS: Final = "all"  # how much of the jobs the role may read
PRINTED_REFUSALS: Final = 5  # that are printed; the others are counted
# Where the options of the filters are in a filter of drover.command.
KEYS: Final = {"types": "type", "queues": "queue", "hosts": "host", "submitters": "by", "groups": "group",
               "states": "state", "ran_on": "ran_on", "codes": "code", "since": "since", "until": "until"}  # fmt: skip


class Job(NamedTuple):
    """A job that was chosen."""

    number: int
    state: str


def send_to_chosen(options: Namespace, config: Config) -> int:
    """Send a command about the jobs that are named, or about those that filters choose.

    Return the exit status: 0, 1 if a job is refused, 4 if the command was withdrawn.
    """
    if not filters_are_given(options) and not options.dry_run:
        return send_commands(options, config)
    with connect(config) as session:
        values = _values(session, options)
        counts = _counts(session, values)
        if not counts:
            what = " or ".join(state for state in JOB_STATES if state in values["states"])
            ran = "; --ran-on chooses by the host where a job ran" if getattr(options, "hosts", None) else ""
            print(printable(f"nothing to {options.command}: no jobs {in_words(options)} are {what}{ran}"))
            return 0
        if options.dry_run:
            return _print_chosen(session, options, values, counts)
        if not _is_meant(options, counts):
            return failed("nothing was done")
        if options.command == "flush":
            return _flush(session, options, [Job(*row) for row in session.rows("choose_jobs", **values)])
        return _send_one(session, options, values, sum(counts.values()))


def _values(session: Session, options: Namespace) -> dict[str, Any]:
    """Return the parameters of choose_jobs and count_chosen."""
    days, states = getattr(options, "days", None), _states(options)
    before = None if days is None else session.value("now") - timedelta(days=days)
    named = session.job_numbers(options.jobs) if getattr(options, "jobs", None) else None
    return {
        "states": sorted(states), "before": before, "jobs": named,
        "with_commands": COMMAND_TYPE in (options.types or ()) and options.command == "flush",
        "with_manual": options.command != "release", **chosen(session, options),
    }  # fmt: skip


def _counts(session: Session, values: Mapping[str, Any]) -> dict[str, int]:
    """Return how many jobs these are, by state."""
    return dict(session.rows("count_by_kind" if _are_counted(session, values) else "count_chosen", **values))


def _are_counted(session: Session, values: Mapping[str, Any]) -> bool:
    """Return whether the counts of jobs know all that the filters ask for, so that no job need be read."""
    is_plain = values["with_manual"] and not values["with_commands"]
    is_plain = is_plain and all(values[name] is None for name in UNCOUNTED)
    return is_plain and session.access["jobqueue"] == ALL_ROWS


def _states(options: Namespace) -> frozenset[str]:
    if options.command == "flush":
        return TERMINAL if options.failed else TERMINAL - {FAILED}
    takes = VERB_OF[options.command].in_bulk
    return takes & frozenset(options.states) if options.states else takes


def _print_chosen(session: Session, options: Namespace, values: Mapping[str, Any], counts: Mapping[str, int]) -> int:
    """Print what would be done, and to which jobs."""
    if options.json:
        print_records(Job(*row)._asdict() for row in session.rows("choose_jobs", **values))
        return 0
    print(f"would {options.command} {_count(counts)}")
    listed = session.table("", "jobs_by_number", jobs=_some(session, values))
    kind = listed.columns.index("type")
    jobs = [row for row in listed.rows if row[kind] != COMMAND_TYPE or values["with_commands"]]
    print_table(brief(replace(listed, rows=jobs)))
    if sum(counts.values()) > LISTED_JOBS:
        warn(f"{LISTED_JOBS} of them are listed; --json lists all")
    return 0


def _some(session: Session, values: Mapping[str, Any]) -> list[int]:
    """Return the numbers of some of the jobs: the newest, where they are found without reading the others.

    There may be commands among them, which are no jobs that filters choose.
    """
    if not _are_counted(session, values):
        return [Job(*row).number for row in session.rows("choose_jobs", **values)][:LISTED_JOBS]
    wanted = {name: values[name] for name in ("types", "queues", "hosts", "submitters", "states")}
    with reading(session):
        return find(session, {**wanted, "with_hidden": True, "with_ended_commands": False}, LISTED_JOBS).jobs


def _count(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    states = ", ".join(f"{counts[state]:,} {state}" for state in JOB_STATES if state in counts)
    return f"{total:,} {'job' if total == 1 else 'jobs'}: {states}"


def _is_meant(options: Namespace, counts: Mapping[str, int]) -> bool:
    """Return whether the user confirms it, on a terminal or by --yes. Errors: ConfigError if neither is there."""
    if options.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"drover {options.command}: this is about {_count(counts)}; give --yes, or look with --dry-run"
        )
    print(f"{options.command} {_count(counts)}", end="? [y/N] ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send_one(session: Session, options: Namespace, values: Mapping[str, Any], total: int) -> int:
    """Send one command about all these jobs, wait, and print its answer; return the exit status."""
    verb = VERB_OF[options.command]
    rest = [getattr(options, name) for name, _ in verb_arguments(verb.usage) if name != "jobs"]
    words = " ".join(str(word) for word in rest if word not in (None, ""))
    if verb.usage == "JOB QUEUE":
        words = quoted(words)
    try:
        parse(f"{verb.name} all {words}".rstrip())
    except ValueError as mistake:
        raise ConfigError(f"{mistake}; no command was sent") from None
    with Progress(total, "jobs") as progress:
        sent = send(
            session, [f"{verb.name} {words}".rstrip()], options.wait, progress, options.patience, _filter(values)
        )
    for answer in sent.answers:
        _report(options, answer, total)
    refused = any(answer.ok and answer.result["refused"] for answer in sent.answers)
    return sent.status(options.wait) or int(refused)


def _filter(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filter of drover.command that finds the same jobs."""
    found = {key: values[name] for name, key in KEYS.items() if values[name] is not None}
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in found.items()}


def _report(options: Namespace, answer: Answer, total: int) -> None:
    """Print what came of it, and the first reasons why jobs were refused."""
    if options.json:
        print(as_json(answer._asdict()))
    elif answer.result is None:
        warn(answer.text)
    else:
        print(f"{options.command}: {answer.result['jobs']:,} of {total:,} jobs")
        for group, jobs in sorted(answer.result.get("given", {}).items()):
            print(printable(f"{jobs:,} given to the scheduler of group {group}, by a command about each"))
        reasons = list(answer.result["reasons"].items())[:PRINTED_REFUSALS]
        for job, reason in reasons:
            warn(f"job {job}: {reason}")
        if (more := answer.result["refused"] - len(reasons)) > 0:
            warn(f"and {more:,} more were refused")


def _flush(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Remove the jobs, in pieces; those that others wait for stay, and those that the database refuses to remove."""
    removed, refused, reason = 0, list[int](), None
    with Progress(len(jobs), "jobs") as progress:
        for first in range(0, len(jobs), FLUSHED_AT_ONCE):
            numbers = [job.number for job in jobs[first : first + FLUSHED_AT_ONCE]]
            ((count, kept, why),) = session.rows("flush_jobs", jobs=numbers)
            removed, refused, reason = removed + count, refused + kept, reason or why
            progress.show(first + len(numbers))
    result: dict[str, Any] = {"removed": removed, "kept": len(jobs) - removed, "refused": refused, "reason": reason}
    waiting = result["kept"] - len(refused)
    kept = f"; {waiting:,} stay, since others wait for them" if waiting else ""
    print(as_json(result) if options.json else printable(f"flush: removed {removed:,} of {len(jobs):,} jobs{kept}"))
    if refused:
        named = ", ".join(map(str, refused[:PRINTED_REFUSALS])) + (" ..." if len(refused) > PRINTED_REFUSALS else "")
        many = "1 job" if len(refused) == 1 else f"{len(refused):,} jobs"
        warn(f"the database refuses to remove {many}: {named}: {reason}; {MEND_REFUSAL}")
    return 0
