"""Commands that become command rows: `drover release`, `hold`, `queue`, `host`, `agent`, `pause`, `command` and others.

Which verbs there are and what follows them is in scheduler.model.verbs, what they do is the scheduler's. Rows go in
through drover.command, so that a role that is no operator may command its own jobs. Queues, hosts and agent types are
changed by command rows too: the scheduler applies them at once, and its answer says what was wrong.

Jobs that are named, and `flush DAYS` alone, become commands at once. Jobs that filters choose are counted first; on a
terminal the count must be confirmed, elsewhere --yes be given. Commands go out in parts, so that Ctrl-C leaves the rest
undone.
"""

import sys
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from scheduler.cli.arguments import filters_are_given, job_number_or_name, verb_arguments
from scheduler.cli.database_session import MASKED, NOTHING, Session, connect
from scheduler.cli.health import SHOW_ALL
from scheduler.cli.jobs import COMMAND_TYPE, brief, chosen, in_words
from scheduler.cli.output import Table, as_json, failed, print_records, print_rows, print_table, printable, warn
from scheduler.cli.wait import Progress, job_ends
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.list_bounds import WORST, and_more
from scheduler.model.states import FAILED, JOB_STATES, TERMINAL
from scheduler.model.verbs import SEE_RESULT, VERBS, CommandError, parse

VERB_OF: Final = {verb.cli: verb for verb in VERBS.values() if verb.cli}  # by what follows `drover`
COUNTED: Final = {"slots", "agents"}  # columns of lists that are counted from drover.scheduler_status
COUNTED_FROM: Final = {"queue": "jobqueue", "host": "scheduler_status", "agent": "scheduler_status"}

IDLE_POLL_S: Final = 1.0  # nothing announces that nothing is in hand any more

SENT_AT_ONCE: Final = 200  # commands that are sent at once: some seconds
FLUSHED_AT_ONCE: Final = 1000  # jobs that one statement removes
MEND_REFUSAL: Final = "remove the rows that refer to them, or let the foreign key say on delete cascade"
WANTED: Final = {"retry": "have failed", "cancel": "are left that have not ended", "flush": "have ended so long ago"}
LISTED_JOBS: Final = 20  # jobs that --dry-run lists
PRINTED_REFUSALS: Final = 5  # that are printed; the others are counted


class Answer(NamedTuple):
    """How a command row ended: whether it was done, in words, and with what. A row of `answers`."""

    command: int
    words: str
    ok: bool
    text: str
    result: Any


def send_commands(options: Namespace, config: Config) -> int:
    """Insert command rows, wait for their ends and print the answers; 1 if one is refused."""
    with connect(config) as session:
        return send_and_print(session, _commands(session, options), options.wait, json=options.json)


def _commands(session: Session, options: Namespace) -> list[str]:
    """Return the commands that were written: one for each job, signal or condition, or one."""
    if options.command == "command":
        return [" ".join(options.args)]
    verb = VERB_OF[options.command]
    given = {name: getattr(options, name) for name, _ in verb_arguments(verb.usage)}
    others = [value for name, value in given.items() if name not in ("jobs", "signals", "conditions")]
    words = [word for value in others for word in (value if isinstance(value, list) else [value])]
    rest = " ".join(str(word) for word in words if word not in (None, ""))
    match next(iter(given), ""):
        case "signals":
            return [f"{verb.name} {job} {signal}" for job, signal in _signals(session, verb.name, options.signals)]
        case "conditions":  # a word that is not the name of a job is a condition
            numbers = session.numbers_by_name(options.conditions)
            return [f"{verb.name} {numbers.get(word, word)}" for word in options.conditions]
        case "jobs":
            return [f"{verb.name} {job} {rest}".rstrip() for job in session.job_numbers(options.jobs)]
    return [f"{verb.name} {rest}".rstrip()]


def _signals(session: Session, verb: str, words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Return each job with its signal: JOB=SIGNAL, or the last word for all. Errors: ConfigError."""
    pairs = [word.rpartition("=")[::2] for word in words] if "=" in words[-1] else [(w, words[-1]) for w in words[:-1]]
    if not pairs or not all(job for job, _ in pairs):
        raise ConfigError(f"drover {verb}: expected JOB... SIGNAL or JOB=SIGNAL...; no command was sent")
    try:
        jobs = session.job_numbers([job_number_or_name(job) for job, _ in pairs])
    except ArgumentTypeError as error:
        raise ConfigError(f"drover {verb}: a job {error}; no command was sent") from None
    return zip(jobs, (signal for _, signal in pairs), strict=True)


def send_and_print(session: Session, commands: Sequence[str], limit_s: float, *, json: bool) -> int:
    """Print the answer to each command, refusals on stderr; 1 if one was refused or not answered in time.

    A command that is given twice is sent once.
    """
    commands = list(dict.fromkeys(commands))
    with Progress(len(commands), "answers") as progress:
        answers = send(session, commands, limit_s, progress.show)
    for answer in answers:
        if json:
            print(as_json(answer._asdict()))
        elif answer.ok:
            print(as_json(answer.result) if answer.text == SEE_RESULT else printable(answer.text))
        else:
            warn(answer.text)
    return status_of(answers, len(commands), limit_s)


def send(
    session: Session, commands: Sequence[str], limit_s: float, each: Callable[[int], object] = int
) -> list[Answer]:
    """Insert the commands, all or none; return the answers that came in time. Errors: ConfigError if one is none.

    `each` is called while they wait, with the number of commands that have ended.
    """
    try:
        for words in commands:
            words.encode()
            parse(words)
    except UnicodeEncodeError:
        raise ConfigError("the words are not UTF-8; no command was sent") from None
    except CommandError as mistake:
        raise ConfigError(f"{mistake}; no command was sent") from None
    pks = [pk for (pk,) in session.rows("insert_commands", commands=list(commands))]
    if not session.value("is_any_scheduler_active"):
        warn("no scheduler is active: the commands wait until one is; start one with drover run")
    for _ in job_ends(session, pks, limit_s, each):
        pass
    return [Answer(*row) for row in session.rows("answers", commands=pks)]


def status_of(answers: Sequence[Answer], sent: int, limit_s: float) -> int:
    """Return the exit status, and print so if answers are missing."""
    if len(answers) < sent:
        return failed(f"after {limit_s:g} s, {sent - len(answers)} of {sent} commands have no answer; they stay queued")
    return int(not all(answer.ok for answer in answers))


def list_or_change(options: Namespace, config: Config) -> int:
    """Print the list, or insert the command, wait for its end and print the answer; 1 if it is refused."""
    if options.action == "list" and options.words:
        raise ConfigError(f"too many words: drover {options.command} list")
    with connect(config) as session:
        if options.action != "list":
            words = " ".join([VERB_OF[f"{options.command} {options.action}"].name, *options.words])
            return send_and_print(session, [words], options.wait, json=options.json)
        table = _list(session, options.command)
        unknown = session.first(WORST, "", "unknown_queues") if options.command == "queue" else None
    print_rows(table, json=options.json)
    for row in unknown.records() if unknown else ():
        what = f"no queue '{row['queue']}', in which jobs wait: {row['jobs']}"
        warn(f"{what}; add it to the configuration, or with drover queue add")
    if unknown and unknown.left:
        warn(and_more(unknown.left, "queues that do not exist, in which jobs wait", SHOW_ALL))
    return 0


def _list(session: Session, what: str) -> Table:
    """Return all queues, hosts or agent types; print what the role may not see, and leave counts from it empty."""
    table, source = session.table("", f"list_{what}"), COUNTED_FROM[what]
    if session.access[source] != MASKED:
        for sentence in session.restrictions(source):
            warn(sentence)
    if session.access[source] != NOTHING:
        return table
    rows = [{**record, **dict.fromkeys(record.keys() & COUNTED)} for record in table.records()]
    return Table(table.title, table.columns, [tuple(row.values()) for row in rows])


# ---- pause and drain, which may wait until nothing is in hand


def pause(options: Namespace, config: Config) -> int:
    """Pause queues, all if none is named; with --wait until none of their jobs is in hand."""
    with connect(config) as session:
        words = " ".join(["pause", *options.queues])
        queues = options.queues or None
        return _send_and_wait(session, options, words, lambda: session.value("jobs_in_hand", queues=queues))


def drain(options: Namespace, config: Config) -> int:
    """Let all schedulers finish what they have in hand, and end; with --wait until they have."""
    with connect(config) as session:
        if not session.value("is_any_scheduler_active"):
            print(as_json({"drained": True}) if options.json else "no scheduler is active: there is nothing to drain")
            return 0
        return _send_and_wait(session, options, "shutdown", lambda: _left(session))


def _left(session: Session) -> int:
    """Return how many jobs are in hand; 1 if none is, but a scheduler still ends."""
    in_hand: int = session.value("jobs_in_hand", queues=None)
    return in_hand or int(session.value("is_any_scheduler_active"))


def _send_and_wait(session: Session, options: Namespace, words: str, left: Callable[[], int]) -> int:
    limit_s = inf if options.wait is None else options.wait
    ends_at = monotonic() + limit_s
    status = send_and_print(session, [words], limit_s, json=options.json)
    if status or options.wait is None:
        return status
    still = _wait_until_none(left, ends_at)
    if still:
        return failed(f"after {limit_s:g} s, {still:,} jobs are still in hand; drover ls -S running lists them")
    print(as_json({"in_hand": 0}) if options.json else "nothing is in hand any more")
    return 0


def _wait_until_none(left: Callable[[], int], ends_at: float) -> int:
    """Wait until nothing is left, or until then; return what is left."""
    most = still = left()
    with Progress(most, "jobs") as progress:
        while still and monotonic() < ends_at:
            progress.show(most - still)
            sleep(min(IDLE_POLL_S, max(ends_at - monotonic(), 0.0)))
            still = left()
            most = max(most, still)
    return still


# ---- jobs that filters choose


class Job(NamedTuple):
    """A job that was chosen."""

    number: int
    state: str


def send_to_chosen(options: Namespace, config: Config) -> int:
    """Retry, cancel or flush the jobs that are named, or those that filters choose; 1 if one is refused."""
    if not filters_are_given(options) and not options.dry_run:
        return send_commands(options, config)
    with connect(config) as session:
        jobs = _choose(session, options)
        if not jobs:
            print(printable(f"nothing to {options.command}: no jobs {in_words(options)} {WANTED[options.command]}"))
            return 0
        if options.dry_run:
            return _print_chosen(session, options, jobs)
        if not _is_meant(options, jobs):
            return failed("nothing was done")
        return (_flush if options.command == "flush" else _send_in_parts)(session, options, jobs)


def _choose(session: Session, options: Namespace) -> list[Job]:
    """Return the jobs, the oldest first."""
    match options.command:
        case "flush":
            states = TERMINAL if options.failed else TERMINAL - {FAILED}
        case "cancel":
            states = frozenset(JOB_STATES) - TERMINAL
        case _:
            states = frozenset({FAILED})
    days = getattr(options, "days", None)
    before = None if days is None else session.value("now") - timedelta(days=days)
    named = session.job_numbers(options.jobs) if getattr(options, "jobs", None) else None
    jobs = session.rows(
        "choose_jobs", states=list(states), before=before,
        with_commands=COMMAND_TYPE in (options.types or ()), jobs=named, **chosen(session, options),
    )  # fmt: skip
    return [Job(*row) for row in jobs]


def _print_chosen(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Print what would be done, and to which jobs."""
    if options.json:
        print_records(job._asdict() for job in jobs)
        return 0
    print(f"would {options.command} {_count(jobs)}")
    print_table(brief(session.table("", "jobs_by_number", jobs=[job.number for job in jobs[:LISTED_JOBS]])))
    if len(jobs) > LISTED_JOBS:
        warn(f"the first {LISTED_JOBS} are listed; --json lists all")
    return 0


def _count(jobs: Sequence[Job]) -> str:
    counts = Counter(job.state for job in jobs)
    states = ", ".join(f"{counts[state]:,} {state}" for state in JOB_STATES if counts[state])
    return f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}: {states}"


def _is_meant(options: Namespace, jobs: Sequence[Job]) -> bool:
    """Return whether the user confirms it, on a terminal or by --yes. Errors: ConfigError if neither is there."""
    if options.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"drover {options.command}: this is about {_count(jobs)}; give --yes, or look with --dry-run")
    print(f"{options.command} {_count(jobs)}", end="? [y/N] ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send_in_parts(session: Session, options: Namespace, jobs: Sequence[Job]) -> int:
    """Send a command for each job, in parts; print how many were done, and why others were not."""
    rest = f" {options.reason}" if getattr(options, "reason", "") else ""
    verb = VERB_OF[options.command].name
    answers: list[Answer] = []
    with Progress(len(jobs), "jobs") as progress:
        for first in range(0, len(jobs), SENT_AT_ONCE):
            commands = [f"{verb} {job.number}{rest}" for job in jobs[first : first + SENT_AT_ONCE]]
            part = send(session, commands, options.wait, partial(progress.show, before=first))
            answers += part
            if len(part) < len(commands):
                break
    return _report(options, answers, len(jobs))


def _report(options: Namespace, answers: Sequence[Answer], asked: int) -> int:
    refused = [answer for answer in answers if not answer.ok]
    if options.json:
        print(*(as_json(answer._asdict()) for answer in answers), sep="\n")
    else:
        print(f"{options.command}: {len(answers) - len(refused):,} of {asked:,} jobs")
    for answer in refused[:PRINTED_REFUSALS]:
        warn(answer.text)
    if len(refused) > PRINTED_REFUSALS:
        warn(f"and {len(refused) - PRINTED_REFUSALS:,} more were refused; --json has them all")
    if len(answers) < asked:
        return failed(f"{asked - len(answers):,} have no answer yet, or were not asked for")
    return int(bool(refused))


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
