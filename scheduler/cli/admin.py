"""`drover release`, `hold`, `flush`, `queue`, `host`, `agent`, `command` and others that become command rows.

Which verbs there are and what follows them is in scheduler.model.verbs, what they do is the scheduler's. Rows go in
through drover.command, so that a role that is no operator may command its own jobs. Queues, hosts and agent types are
changed by command rows too: the scheduler obeys at once, and answers what was wrong with them. `drover init` sends no
row: it migrates the schema itself.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from scheduler.cli.arguments import job_number_or_name
from scheduler.cli.jobs import job_ends
from scheduler.cli.options import verb_arguments
from scheduler.cli.output import Table, as_json, failed, print_records, print_table, printable, warn
from scheduler.cli.progress import Progress
from scheduler.cli.session import MASKED, NOTHING, Session, connect, running_database, translated_errors
from scheduler.database import migrate
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.verbs import SEE_RESULT, VERBS, CommandError, parse

VERB_OF: Final = {verb.cli: verb for verb in VERBS.values() if verb.cli}  # by what follows `drover`
COUNTED: Final = {"slots", "agents"}  # columns of lists that are counted from drover.scheduler_status
COUNTED_FROM: Final = {"queue": "jobqueue", "host": "scheduler_status", "agent": "scheduler_status"}


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
    progress = Progress(len(commands), "answers")
    answers = send(session, commands, limit_s, progress.show)
    progress.clear()
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

    `each` is called now and then with the number of those that have ended.
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
        unknown = session.records("unknown_queues") if options.command == "queue" else []
    if options.json:
        print_records(table.records())
    else:
        print_table(table)
    for row in unknown:
        what = f"no queue '{row['queue']}', in which jobs wait: {row['jobs']}"
        warn(f"{what}; add it to the configuration, or with drover queue add")
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


def init(options: Namespace, config: Config) -> int:
    """Apply migrations that are missing and print which; running it again does nothing."""
    with running_database(config) as conninfo, translated_errors():
        applied = [f"applied {name}" for name in migrate.apply(conninfo)]
        print(*applied or ["nothing to do"], sep="\n")
        if options.roles:
            migrate.apply_roles(conninfo)
            print("applied roles")
        elif applied not in ([], ["applied commands"]) and migrate.has_roles(conninfo):
            print("the roles have no rights yet on the new tables and functions; run drover init --roles")
        for name in migrate.compat_to_apply(conninfo, options.compat, all_there=options.roles):
            migrate.apply_compat(conninfo, name)
            print(f"applied compat/{name}.sql")
    return 0
