"""`drover release`, `hold`, `flush`, `queue`, `host`, `agent`, `command` and others that become command rows.

Which verbs there are and what follows them is in scheduler.model.commands, what they do is the scheduler's. Rows go in
through drover.command, so that a role that is no operator may command its own jobs. Queues, hosts and agent types are
changed by command rows too: the scheduler obeys at once, and answers what was wrong with them.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import class_row

from scheduler.cli.db import (
    MASKED,
    NOTHING,
    connect,
    job_numbers,
    located,
    numbers_by_name,
    sight,
    table,
    translated,
    unseen,
    visible,
)
from scheduler.cli.options import COMMANDS, command_parser, job_number_or_name, verb_options
from scheduler.cli.output import Table, as_json, failed, printable, show, warn
from scheduler.cli.wait import ends
from scheduler.database import migrate
from scheduler.errors import ConfigError
from scheduler.model.commands import SEE_RESULT, VERBS, CommandError, parse
from scheduler.model.config import Config

INSERT = "select drover.command(words) from unnest(%s::text[]) with ordinality as u(words, n) order by n"
IS_ACTIVE = (
    "select exists (select from drover.scheduler_group where group_owner is not null and group_lease_until > now())"
)
ANSWERS = """
select jq_pk as command, jq_args as words, jq_state = 'done' as ok, coalesce(jq_endtext, '') as text,
       jq_result as result
  from drover.jobqueue where jq_pk = any (%s) and jq_endtime is not null order by jq_pk
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command row ended: whether it was done, in a word, and with what."""

    command: int
    words: str
    ok: bool
    text: str
    result: Any


def carry_out(connection: psycopg.Connection, commands: Sequence[str], limit_s: float, *, json: bool) -> int:
    """Print the answer to each command, refusals on stderr; 1 if one was refused or not answered in time.

    What is said twice is commanded once.
    """
    commands = list(dict.fromkeys(commands))
    answers = answered(connection, commands, limit_s)
    for answer in answers:
        if json:
            print(as_json(asdict(answer)))
        elif answer.ok:
            print(as_json(answer.result) if answer.text == SEE_RESULT else printable(answer.text))
        else:
            warn(answer.text)
    return answers_status(answers, len(commands), limit_s)


def answered(connection: psycopg.Connection, commands: Sequence[str], limit_s: float) -> list[Answer]:
    """Queue the commands, all or none, and give the answers that came in time. Errors: ConfigError if one is none."""
    for words in commands:
        _check(words)
    pks = [pk for (pk,) in connection.execute(INSERT, (list(commands),))]
    if connection.execute(IS_ACTIVE).fetchone() == (False,):
        warn("no scheduler is active: what is commanded waits until one is; start it with drover run")
    for _ in ends(connection, pks, limit_s):
        pass
    return connection.cursor(row_factory=class_row(Answer)).execute(visible(connection, ANSWERS), (pks,)).fetchall()


def answers_status(answers: Sequence[Answer], asked: int, limit_s: float) -> int:
    """Give the exit status, and say so if answers are missing."""
    if len(answers) < asked:
        return failed(
            f"after {limit_s:g} s, {asked - len(answers)} of {asked} commands have no answer; they stay queued"
        )
    return int(not all(answer.ok for answer in answers))


def _check(words: str) -> None:
    try:
        words.encode()
        parse(words)
    except UnicodeEncodeError:
        raise ConfigError("the words are not UTF-8; nothing was commanded") from None
    except CommandError as mistake:
        raise ConfigError(f"{mistake}; nothing was commanded") from None


def send_commands(options: Namespace, config: Config) -> int:
    """Insert the commands, wait for their ends and print the answers; 1 if one is refused."""
    with connect(config) as connection:
        commands = _commands(connection, options)
        return carry_out(connection, commands, options.wait, json=options.json)


def _commands(connection: psycopg.Connection, options: Namespace) -> list[str]:
    """Return the commands that were written: one for each job, or one."""
    if options.command == "command":
        return [" ".join(options.args)]
    verb = next(verb for verb in VERBS.values() if verb.cli == options.command)
    if verb.name == "signal":
        return _signals(connection, options)
    name, *rest = verb_options(verb)
    if name == "words":  # what is the name of no job is a condition
        found = numbers_by_name(connection, options.words)
        return [f"{verb.name} {found.get(word, word)}" for word in options.words]
    if name == "jobs":
        return [_joined(verb.name, job, *_values(options, rest)) for job in job_numbers(connection, options.jobs)]
    return [_joined(verb.name, *_values(options, [name, *rest]))]


def _values(options: Namespace, names: Sequence[str]) -> Iterator[object]:
    for name in names:
        value = getattr(options, name)
        yield from value if isinstance(value, list) else [value]


def _joined(*words: object) -> str:
    return " ".join(str(word) for word in words if word not in (None, ""))


def _signals(connection: psycopg.Connection, options: Namespace) -> list[str]:
    """One signal for all jobs, the last word; or each job with its own. Errors: ConfigError."""
    words = options.words
    pairs = [word.rpartition("=")[::2] for word in words] if "=" in words[-1] else [(w, words[-1]) for w in words[:-1]]
    if not pairs or not all(job for job, _ in pairs):
        raise ConfigError("drover signal: JOB... SIGNAL or JOB=SIGNAL... is wanted; nothing was commanded")
    jobs = job_numbers(connection, [_job(job) for job, _ in pairs])
    return [f"signal {job} {signal}" for job, (_, signal) in zip(jobs, pairs, strict=True)]


def _job(word: str) -> int | str:
    try:
        return job_number_or_name(word)
    except ArgumentTypeError as error:
        raise ConfigError(f"drover signal: a job {error}; nothing was commanded") from None


LIST: Final = "list"
# Who serves: the owner of the group, if its lease holds.
QUEUES = """
select queue_name as queue, queue_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       queue_concurrency as concurrency, queue_reserved as reserved, queue_priority as priority, queue_paused as paused,
       count(jq_pk) filter (where jq_state = 'queued') as queued,
       count(jq_pk) filter (where jq_state in ('claimed', 'running')) as in_hand
  from drover.queue
  left join drover.scheduler_group on group_name = queue_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.jobqueue on jq_queue = queue_name and jq_state in ('queued', 'claimed', 'running')
 where queue_present
 group by queue_name, scheduler_uuid order by queue_group, queue_name
"""
HOSTS = """
select host_name as host, host_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       host_transport as transport, host_max as max, host_urgent as urgent, host_enabled as enabled,
       nullif(concat_ws(' ', 'types=' || nullif(host_types, ''), 'queues=' || array_to_string(host_queues, ','),
                        'priorities=' || nullif(host_priorities, '')), '') as filter,
       count(status_pid) as agents, host_down_until as down_until, host_reason as reason
  from drover.host
  left join drover.scheduler_group on group_name = host_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_host = host_name and status_slot >= 0
 where host_present
 group by host_name, scheduler_uuid order by host_group, host_name
"""
AGENTS = """
select agent_type as type, agent_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       agent_kind as kind, agent_enabled as enabled, count(status_slot) as slots, count(status_pid) as agents,
       agent_blocked_until as blocked_until, agent_reason as reason
  from drover.agent
  left join drover.scheduler_group on group_name = agent_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_agent = agent_type and status_slot >= 0
 where agent_present
 group by agent_group, agent_type, scheduler_uuid order by agent_group, agent_type
"""
LISTS: Final[dict[str, LiteralString]] = {"queue": QUEUES, "host": HOSTS, "agent": AGENTS}
OF_SLOTS: Final = {"slots", "agents"}  # columns that are counted from drover.scheduler_status
COUNTED: Final = {"queue": "jobqueue", "host": "scheduler_status", "agent": "scheduler_status"}


def list_or_change(options: Namespace, config: Config) -> int:
    """List them, or insert the command, wait for its end and print the answer; 1 if it is refused."""
    if options.action == LIST and options.words:
        raise ConfigError(f"too many words: drover {options.command} list")
    with connect(config) as connection:
        if options.action != LIST:
            wanted = f"{options.command} {options.action}"
            verb = next(verb for verb in VERBS.values() if verb.cli == wanted)
            words = " ".join([verb.name, *options.words])
            return carry_out(connection, [words], options.wait, json=options.json)
        listed = _listed(connection, options.command)
    if options.json:
        print("".join(as_json(record) + "\n" for record in listed.records()), end="")
    else:
        show(listed)
    return 0


def _listed(connection: psycopg.Connection, what: str) -> Table:
    """All of them; what the role may not see is said, and what would be counted from it is left empty."""
    listed, seen = table(connection, "", LISTS[what]), sight(connection)
    if seen[COUNTED[what]] != MASKED:
        for missing in unseen(connection, seen, COUNTED[what]):
            warn(missing)
    if seen[COUNTED[what]] != NOTHING:
        return listed
    rows = [{**record, **dict.fromkeys(record.keys() & OF_SLOTS)} for record in listed.records()]
    return Table(listed.title, listed.columns, [tuple(row.values()) for row in rows])


def init(options: Namespace, config: Config) -> int:
    """Apply what is missing and say what that was; running it again does nothing."""
    with located(config) as conninfo, translated():
        applied = [f"applied {name}" for name in migrate.apply(conninfo)]
        print(*applied or ["nothing to do"], sep="\n")
        if options.roles:
            migrate.apply_roles(conninfo)
            print("applied roles")
        elif applied and migrate.has_roles(conninfo):
            print("the roles have no rights yet on what is new: run drover init --roles")
    return 0


BASH = """\
_drover() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= before= each
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $each == -* || $before == -[cd] ]] || {{ command=$each; break; }}
        before=$each
    done
    case $command in
{cases}
        *) COMPREPLY=($(compgen -W "{commands}" -- "$word")) ;;
    esac
}}
complete -o default -F _drover drover
"""
CASE = '        {name}) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;'


def print_completion(_options: Namespace, _config: Config) -> int:
    """Print the script."""
    cases = "\n".join(CASE.format(name=name, words=" ".join(words(name))) for name in COMMANDS)
    print(BASH.format(cases=cases, commands=" ".join(COMMANDS)), end="")
    return 0


def words(command: str) -> list[str]:
    """What may follow a command: its options, and the words of which one is to be chosen."""
    actions = command_parser(command)._actions
    chosen = [choice for action in actions if not action.option_strings for choice in action.choices or ()]
    return [*chosen, *(option for action in actions for option in action.option_strings)]


def print_version(_options: Namespace, _config: Config) -> int:
    """Print name and version of what is installed."""
    print("drover", version("drover-scheduler"))
    return 0
