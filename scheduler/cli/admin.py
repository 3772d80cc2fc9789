"""Commands that become command rows: `drover release`, `hold`, `queue`, `host`, `agent`, `pause`, `command` and others.

Which verbs there are and what follows them is in scheduler.model.verbs, what they do is the scheduler's. Rows go in
through drover.command, so that a role that is no operator may command its own jobs. Queues, hosts and agent types are
changed by command rows too: the scheduler applies them at once, and its answer says what was wrong.

Jobs that are named, and `flush DAYS` alone, become commands at once; those that filters choose: see bulk.py.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from math import inf
from time import monotonic, sleep
from typing import Final

from scheduler.cli.answers import START_ONE, send
from scheduler.cli.arguments import job_number_or_name, verb_arguments
from scheduler.cli.database_session import MASKED, NOTHING, Session, connect
from scheduler.cli.health import SHOW_ALL
from scheduler.cli.output import Table, as_json, failed, print_rows, printable, warn
from scheduler.cli.restart_costs import KEPT, print_costs
from scheduler.cli.wait import Progress
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.list_bounds import WORST, and_more
from scheduler.model.verbs import SEE_RESULT, VERBS, quoted

VERB_OF: Final = {verb.cli: verb for verb in VERBS.values() if verb.cli}  # by what follows `drover`
NEED_QUOTES: Final = ("QUEUE", "FILTER...")  # in the usage of a verb: words that may hold blanks
COUNTED: Final = {"slots", "agents"}  # columns of lists that are counted from drover.scheduler_status
COUNTED_FROM: Final = {"queue": "jobqueue", "host": "scheduler_status", "agent": "scheduler_status"}

IDLE_POLL_S: Final = 1.0  # nothing announces that nothing is in hand any more


def send_commands(options: Namespace, config: Config) -> int:
    """Insert command rows, wait for their ends and print the answers; 1 if one is refused."""
    with connect(config) as session:
        return send_and_print(session, _commands(session, options), options.wait, options.patience, json=options.json)


def _commands(session: Session, options: Namespace) -> list[str]:
    """Return the commands that were written: one for each job, signal or condition, or one."""
    if options.command == "command":
        return [" ".join(options.args)]
    verb = VERB_OF[options.command]
    given = {name: getattr(options, name) for name, _ in verb_arguments(verb.usage)}
    others = [value for name, value in given.items() if name not in ("jobs", "signals", "conditions")]
    words = [word for value in others for word in (value if isinstance(value, list) else [value])]
    if "QUEUE" in verb.usage:
        words = [word and quoted(word) for word in words]
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


def send_and_print(session: Session, commands: Sequence[str], limit_s: float, patience_s: float, *, json: bool) -> int:
    """Print the answer to each command, refusals on stderr; return the exit status.

    A command that is given twice is sent once.
    """
    commands = list(dict.fromkeys(commands))
    with Progress(len(commands), "answers") as progress:
        sent = send(session, commands, limit_s, progress, patience_s)
    for answer in sent.answers:
        if json:
            print(as_json(answer._asdict()))
        elif answer.ok:
            print(as_json(answer.result) if answer.text == SEE_RESULT else printable(answer.text))
        else:
            warn(answer.text)
    return sent.status(limit_s)


def list_or_change(options: Namespace, config: Config) -> int:
    """Print the list, or insert the command, wait for its end and print the answer; 1 if it is refused."""
    if options.action == "list" and options.words:
        raise ConfigError(f"too many words: drover {options.command} list")
    with connect(config) as session:
        if options.action != "list":
            verb = VERB_OF[f"{options.command} {options.action}"]
            kinds = chain(verb.usage.split(), repeat(verb.usage.rpartition(" ")[2]))
            words = [quoted(w) if kind in NEED_QUOTES else w for kind, w in zip(kinds, options.words, strict=False)]
            return send_and_print(
                session, [" ".join([verb.name, *words])], options.wait, options.patience, json=options.json
            )
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
        words = " ".join(["pause", *map(quoted, options.queues)])
        queues = options.queues or None
        return _send_and_wait(session, options, words, lambda: session.value("jobs_in_hand", queues=queues))


def drain(options: Namespace, config: Config) -> int:
    """Let all schedulers finish what they have in hand, and end; with --wait until they have.

    With --dry-run print what would become of that work.
    """
    if options.dry_run:
        return print_costs(options, config)
    with connect(config) as session:
        if not session.value("is_any_scheduler_active"):
            print(as_json({"drained": True}) if options.json else "no scheduler is active: there is nothing to drain")
            return 0
        status = _send_and_wait(session, options, "shutdown", lambda: _left(session))
    if not status and not options.json:
        print(KEPT)
    return status


def _left(session: Session) -> int:
    """Return how many jobs are in hand; 1 if none is, but a scheduler still ends."""
    in_hand: int = session.value("jobs_in_hand", queues=None)
    return in_hand or int(session.value("is_any_scheduler_active"))


def _send_and_wait(session: Session, options: Namespace, words: str, left: Callable[[], int]) -> int:
    limit_s = inf if options.wait is None else options.wait
    ends_at = monotonic() + limit_s
    status = send_and_print(session, [words], limit_s, options.patience, json=options.json)
    if status or options.wait is None:
        return status
    still, is_orphaned = _wait_until_none(session, left, ends_at, options.patience)
    if is_orphaned:
        why = f"no scheduler is active for {options.patience:g} s"
        return failed(f"{why}: {still:,} jobs stay in hand until one is; {START_ONE}")
    if still:
        return failed(f"after {limit_s:g} s, {still:,} jobs are still in hand; drover ls -S running lists them")
    print(as_json({"in_hand": 0}) if options.json else "nothing is in hand any more")
    return 0


def _wait_until_none(session: Session, left: Callable[[], int], ends_at: float, patience_s: float) -> tuple[int, bool]:
    """Wait until nothing is left, until then, or until no scheduler was active for so long; return what is left.

    The second value is whether none was.
    """
    most = still = left()
    seen = monotonic()  # when a scheduler was active last

    def note() -> str:
        return "they are in hand" if monotonic() - seen < IDLE_POLL_S * 2 else f"no scheduler is active; {START_ONE}"

    with Progress(most, "jobs", note=note) as progress:
        while still and monotonic() < ends_at:
            progress.show(most - still)
            sleep(min(IDLE_POLL_S, max(ends_at - monotonic(), 0.0)))
            still = left()
            most = max(most, still)
            if session.value("is_any_scheduler_active"):
                seen = monotonic()
            elif still and monotonic() - seen >= patience_s:
                return still, True
    return still, False
