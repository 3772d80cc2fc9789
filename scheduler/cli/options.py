"""Every command and every option, as argparse declares them; drover(1) and drover(8) describe the same.

The table COMMANDS names the function that runs each command; those that become command rows are the verbs of the
registry, scheduler.model.verbs. Imports nothing slow, so that a usage message comes at once.
"""

import re
from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final, Literal, NamedTuple

from scheduler.cli import old_options
from scheduler.cli.arguments import COUNT, POSITIVE, Declaration, job_number_or_name, number, seconds
from scheduler.cli.arguments import argument as _argument
from scheduler.cli.arguments import job as _job
from scheduler.cli.examples import epilog
from scheduler.cli.suggestions import Parser
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import LARGEST_NUMBER, VERBS, Verb
from scheduler.package_data import compat_names, version


class Command(NamedTuple):
    """The function that runs a command, as module.name; its help, its arguments, and what it needs configured."""

    function: str
    help: str
    arguments: Sequence[Declaration] = ()
    needs: Literal["nothing", "database", "group", "all", "types"] = "database"  # types: all, if it names agent types


def parse(argv: Sequence[str]) -> Namespace:
    """Return `command`, -c as `config`, -d as `database` (None if not given), and the arguments of the command.

    Errors: SystemExit(2) with a usage message on stderr; SystemExit(0) for --help.
    """
    words = ["version", *argv[1:]] if argv[:1] == ["--version"] else list(argv)
    if instead := old_options.answer(words, COMMANDS):
        _top_parser().error(instead)
    end = words.index("--") if "--" in words else len(words)
    top = _top_parser().parse_args(words[:end])
    command, rest = top.command, top.rest
    if rest and f"{command} {rest[0]}" in COMMANDS:  # a command of two words
        command, rest = f"{command} {rest[0]}", rest[1:]
    own = Namespace(command=command, config=top.config, database=top.database)
    parser = command_parser(command)
    # argparse would take the word after `--wait` for its optional seconds
    before = ["--wait=inf" if word == "--wait" else word for word in rest]
    options = parser.parse_intermixed_args(before, own)
    for name, is_wrong, mistake in MISTAKES:
        if name == command and is_wrong(options, before):
            parser.error(mistake)
    if behind := words[end + 1 :]:  # argparse would lose some of them, when options may be in any place
        if not hasattr(options, "args"):
            parser.error(f"no words are expected after -- (got {' '.join(behind)})")
        options.args += behind
    return options


def filters_are_given(options: Namespace) -> bool:
    """Return whether options choose jobs."""
    return any(getattr(options, name) for name in ("types", "queues", "submitters", "groups", "since"))


# What argparse cannot tell: of a command, from its options and its words.
MISTAKES: Final[Sequence[tuple[str, Callable[[Namespace, Sequence[str]], bool], str]]] = (
    ("run", lambda options, words: not options.jobs and any(re.match("--(json|wait)", word) for word in words),
     "--json and --wait are for jobs that are run by hand: name the jobs"),
    ("run", lambda options, words: options.quits and options.read_stdin,
     "--quit-if-served would leave the lines of -I unread"),
    *((name, lambda options, words: bool(options.jobs) == filters_are_given(options),
       "name jobs, or choose them by --type, --queue, --by, --group or --since") for name in ("retry", "cancel")),
    ("submit", lambda options, words: options.result and options.json,
     "--result prints JSON already: leave --json out"),
    ("why", lambda options, words: (options.job is None) != options.all, "name a job, or give --all"),
)  # fmt: skip


def _top_parser() -> ArgumentParser:
    """Return the parser of what comes before the command; the rest belongs to the command, options in any place."""
    parser = Parser(
        prog="drover",
        usage="drover [-h] [-c FILE] [-d URL] COMMAND ...",
        description="The super-agent: drives a queue in Postgres through warm agents.",
        epilog="commands:\n" + "".join(f"  {name:10}  {command.help}\n" for name, command in COMMANDS.items()),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("-c", dest="config", metavar="FILE", help="configuration file")
    parser.add_argument("-d", dest="database", metavar="URL", help="database, as in DROVER_DATABASE_URL")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("rest", nargs=REMAINDER, help=SUPPRESS)
    return parser


def command_parser(name: str) -> ArgumentParser:
    """Return the parser of one command; -c and -d may be given here too, and win."""
    command = COMMANDS[name]
    parser = Parser(
        prog=f"drover {name}", description=command.help, epilog=epilog(name),
        formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    if command.needs != "nothing":
        parser.add_argument("-c", dest="config", metavar="FILE", default=SUPPRESS, help="configuration file")
        parser.add_argument("-d", dest="database", metavar="URL", default=SUPPRESS, help="database")
    for declare in command.arguments:
        declare(parser)
    return parser


# Arguments, and those that several commands share.


def _tests_of_run(parser: ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-t", action="store_true", dest="test", help="test every agent and exit")
    either.add_argument("-T", action="store_true", dest="test_first", help="test every agent and go on")


def _quit_of_run(parser: ArgumentParser) -> None:
    names, told = ("--quit-if-served", "--once"), "exit with 0 if a daemon serves the group already; for cron"
    parser.add_argument(*names, action="store_true", dest="quits", help=told)


COMPAT: Final = {"action": "append", "default": [], "choices": compat_names()}
OR_NULL: Final = {"action": "store_const", "const": True}  # not given is no value for the column
STATES: Final = {"action": "append", "default": [], "choices": JOB_STATES}
JSON_LINES: Final = _argument("--json", "one JSON object a line")
WATCH: Final = _argument("--watch", "repeat when something has changed, until Ctrl-C")
ANSWER: Final = (
    _argument("--json", "print the answer as JSON"),
    _argument("--wait SECONDS", "wait at most so long for the answer; default: no limit", type=seconds, default=inf),
)
UNTIL_IDLE: Final = (
    _argument("--json", "print the answer as JSON"),
    _argument("--wait SECONDS", "wait until nothing is in hand any more; --wait=9: at most 9 s", type=seconds),
)
JOB_OPTIONS: Final = (  # what a job asks for, of those who submit or schedule it
    _argument("--force", "queue it even if no scheduler serves the type, or queue or host do not exist"),
    _argument("--sql", "ARGS is a query: one work item a row", **OR_NULL),
    _argument("--runonpfile COLUMN", "like --sql; this column decides on which host each row is processed"),
    _argument("--key COLUMN", "unique, ordered column: progress is checkpointed by it"),
    _argument("--host HOST", "run on this host only"),
    _argument("--queue QUEUE", "use this named queue"),
    _argument("--urgent", "run it before all jobs that are not urgent", **OR_NULL),
    _argument("--priority LETTERS", "letters and digits, a before z; default n"),
    _argument("--retries N", "retries after failure; default 0", type=number(0, LARGEST_NUMBER)),
    _argument("--delete FILE", "remove this file after success; may be repeated", action="append"),
)
FILTERS: Final = (  # which jobs a command is about; see filters.py
    _argument("--type TYPE", "jobs of this type only; may be repeated", dest="types", action="append"),
    _argument("--queue QUEUE", "jobs of this queue only; may be repeated", dest="queues", action="append"),
    _argument("--by ROLE", "jobs that this role submitted only; may be repeated", dest="submitters", action="append"),
    _argument("--group N", "jobs of this job group only; may be repeated", dest="groups", action="append",
              type=POSITIVE),
    _argument("--since TIME", "jobs queued, started or ended since: 90, 15m, 1h 30m, 2d ago, or at a local time"),
)  # fmt: skip
SORTS: Final = ("job", "queued", "start", "end", "waited", "ran", "type", "state", "queue", "by", "priority")
MANY: Final = (  # of a command that takes filters in place of jobs
    *FILTERS,
    _argument("--yes", "do not ask whether the number of jobs is meant"),
    _argument("--dry-run", "print which jobs these are, and do nothing"),
)
BY_FILTER: Final = ("retry", "cancel", "flush")
EVENT_KINDS: Final = ("all", "status", "error", "subscription", "share", "user", "alternate", "dead", "alert")
LANGUAGES: Final = ("python", "bash", "c", "node", "perl")  # of skeletons of agents
PATIENCE: Final = _argument(
    "--timeout SECONDS", "wait at most so long for each OK; default 10", type=seconds, default=10.0
)
SUBSCRIPTIONS: Final = {"type": number(1, 2**63 - 1)}
SCHEDULE_ACTIONS: Final = ("list", "add", "run", "enable", "disable", "remove", "next")

# For words in the usage of a verb of the registry: the attribute of the parsed options, and the argument that sets it.
CONDITIONS: Final = "a job, or a condition that jobs are blocked on"
SIGNALS: Final = "jobs, then the name or number of a signal; or JOB=SIGNAL for each"
ARGUMENTS: Final[dict[str, tuple[str, Declaration]]] = {
    "JOB": ("jobs", _job("jobs", "+")),  # as many command rows
    "JOB|NAME": ("jobs", _job("jobs", "+")),
    "JOB SIGNAL [MORE...]": ("signals", _argument("signals WORD", SIGNALS, nargs="+")),
    "JOB|CONDITION": ("conditions", _argument("conditions JOB|CONDITION", CONDITIONS, nargs="+")),
    "[TEXT...]": ("reason", _argument("--reason TEXT", "the text in its row; default: cancelled", default="")),
    "[QUEUE...]": ("queues", _argument("queues QUEUE", "these queues; default: all", nargs="*")),
    "DAYS": ("days", _argument("days DAYS", "remove jobs that ended more than so many days ago", type=COUNT)),
    "LETTERS": ("letters", _argument("letters LETTERS", "letters and digits, a before z; n is the usual one")),
    "[failed]": ("failed", _argument("--failed", "remove failed jobs too", action="store_const", const="failed")),
}


def verb_arguments(usage: str) -> Iterator[tuple[str, Declaration]]:
    """Yield for each word of a verb's usage the attribute of the parsed options, and the argument that sets it."""
    for word in [usage] if usage in ARGUMENTS else usage.split():
        metavar = word.strip("[].")
        name, is_optional, takes_several = metavar.lower(), word.startswith("["), "..." in word
        nargs = ("*" if takes_several else "?") if is_optional else ("+" if takes_several else None)
        yield ARGUMENTS.get(word) or (name, _argument(f"{name} {metavar}", "", nargs=nargs))


def _verb_command(verb: Verb) -> Command:
    if verb.cli == "pause":
        queues = [declare for _, declare in verb_arguments(verb.usage)]
        return Command("pauses.pause", verb.help, (*queues, *UNTIL_IDLE))
    if verb.cli in BY_FILTER:
        jobs = [_job("jobs", "*") if name == "jobs" else declare for name, declare in verb_arguments(verb.usage)]
        return Command("bulk_commands.send_commands", verb.help, (*jobs, *MANY, *ANSWER))
    arguments = [declare for _, declare in verb_arguments(verb.usage)]
    return Command("admin.send_commands", verb.help, (*arguments, *ANSWER))


def _list_command(name: str, help: str) -> Command:
    actions = [verb.cli.removeprefix(f"{name} ") for verb in VERBS.values() if verb.cli.startswith(f"{name} ")]
    return Command("admin.list_or_change", help, (
        _argument("action", "default: list", nargs="?", default="list", choices=["list", *actions]),
        _argument("words WORD", "the name, then the new values", nargs="*"),
        *ANSWER,
    ))  # fmt: skip


COMMANDS: Final[dict[str, Command]] = {
    "run": Command("run.run", "run the scheduler daemon, in the foreground; or run jobs by hand", (
        _job("jobs", "*"),
        *ANSWER,
        _argument("-I", "also read `type | args` lines from stdin", dest="read_stdin"),
        _argument("-H", "ignore hosts: run everything here", dest="ignore_hosts"),
        _argument("-R", "give the rows of dead schedulers back before READY", dest="rescue"),
        _tests_of_run,
        _quit_of_run,
        _argument("--allow-root", "run although the user is root"),
        _argument("-v", "log more; may be repeated", dest="verbose", action="count", default=0),
    ), "all"),
    "init": Command("admin.init", "create the schema in the database, or bring it up to date", (
        _argument("--roles", "create the roles and their grants too"),
        _argument("--compat NAME", "make the views of an older system's tables", **COMPAT),
    )),
    "check": Command("check.check", "check that everything is there that a scheduler needs", (JSON_LINES,), "all"),
    "doctor": Command("doctor.doctor", "the same, and try it: agents, LISTEN, clock, limits, files", (
        _argument("--allow-root", "start agents although the user is root; agents are root too then"),
        JSON_LINES,
    ), "all"),
    "config": Command("settings.show_settings", "print each setting with its value, and where that comes from", (
        _argument("settings SETTING", "this one, or those below this name; default: all", nargs="*"),
        _argument("--given", "leave out those that have their default"),
        JSON_LINES,
    ), "all"),
    "agent-check": Command("agent_check.check_agents", "check that agents start, or all that a new program does", (
        _argument("args TYPE|PROGRAM", "these types, enabled or not, on each of their hosts; default: all enabled; "
                  "or a program that no configuration names yet, with its path and arguments", nargs="*"),
        _argument("--item LINE", "give it this line; may be repeated; default: a file's path, a row", dest="items",
                  action="append", default=[]),
        PATIENCE,
        _argument("--allow-root", "start types although the user is root; agents are root too then"),
    ), "types"),
    "demo": Command("demo.run_demo", "process real files, with a temporary database", (
        _argument("directory DIR", "process the files below it; default: the Python library", nargs="?"),
        _argument("--keep", "keep the database, and print how to use it"),
        _argument("--agents N", "start so many agents of each type", type=POSITIVE),
        _argument("--limit N", "process at most so many files", type=POSITIVE),
    ), "nothing"),
    "status": Command("status.show_status", "show what is wrong, agents, jobs and queues, as a screen holds it", (
        _argument("group GROUP", "default: that of the configuration", nargs="?"),
        _argument("-v", "each slot and statement, and all rows", dest="verbose"),
        _argument("--json", "one JSON object, of all that -v shows"),
        WATCH,
    ), "group"),
    "health": Command("health.show_health", "exit with 0 if all is well, 1 with warnings, 2 if work stands", (
        _argument("group GROUP", "default: that of the configuration", nargs="?"),
        _argument("--json", "one JSON object"),
    ), "group"),
    "stats": Command("stats.show_stats", "show rates, waiting and run times, backlogs, slow agents and errors", (
        _argument("--since TIME", "since then: 90, 15m, 2d ago, or a local time; default: 1h", default="1h"),
        _argument("--json", "one JSON object"),
    )),
    "submit": Command("submit.submit_jobs", "queue a job, or many", (
        _argument("type TYPE", "agent type, or command; 'TYPE KEY=VALUE ...' for one with these attributes"),
        _argument("args ARGS", "the parameter, joined by blanks; - reads one job a line from stdin", nargs="*"),
        _argument("--wait SECONDS", "wait for the end; --wait=9: at most 9 s", nargs="?", type=seconds),
        _argument("--json", "one JSON object a line for each job; with --wait for its end too"),
        *JOB_OPTIONS,
        _argument("--manual", "hold it until it is run by hand, with drover run", action="store_const", const="manual"),
        _argument("--name TYPE.NONCE", "unique name of the job"),
        _argument("--traceparent ID", "the trace it belongs to, as in W3C Trace Context"),
        _argument("--unique-key KEY", "refuse it while another job of this key has not ended"),
        _argument("--not-before TIME", "start it at this time or later: 90, 15m, 1h 30m, 2d from now, or a local time"),
        _argument("--not-after TIME", "let it fail if it has not started by then"),
        _argument("--timeout INTERVAL", "kill an attempt that takes longer, as 90, 15m or 1h 30m"),
        _argument("--depends JOB", "start it when this job is done; may be repeated", action="append", default=[],
                  type=job_number_or_name),
        _argument("--result", "wait for the end, and print the result alone, as JSON"),
    )),
    "setup": Command("submit.set_up_job", "set a job up by name, held until it is released", (
        _argument("name TYPE.NONCE", "unique name of the job; its variables are read from stdin"),
        _argument("-p LETTERS", "letters and digits, a before z; default n", dest="priority"),
        _argument("--force", "set it up even if no scheduler serves the type, or queue or host do not exist"),
    )),
    "resubmit": Command("submit.resubmit_jobs", "queue jobs that have ended once more, as new jobs", (
        _job("jobs", "+"),
        _argument("--json", "one JSON object a line for each job"),
    )),
    **{verb.cli: _verb_command(verb) for verb in VERBS.values() if verb.cli and " " not in verb.cli},
    "drain": Command("pauses.drain", "let all schedulers finish what they have in hand, and end", UNTIL_IDLE),
    "queue": _list_command("queue", "list queues, or change one"),
    "host": _list_command("host", "list hosts, or change one"),
    "agent": _list_command("agent", "list agent types, or enable or disable one"),
    "agent new": Command("agent_kit.new_agent", "make the skeleton of an agent, in a directory of its name", (
        _argument("name NAME", "the name of its type"),
        _argument("--lang LANGUAGE", "one of " + ", ".join(LANGUAGES), choices=LANGUAGES, default="python"),
    ), "nothing"),
    "agent run": Command("agent_kit.run_item", "let an agent do one item, without daemon and database", (
        _argument("type TYPE|PROGRAM", "a type of the configuration, or a program with its path"),
        _argument("args LINE", "the item, joined by blanks", nargs="*"),
        PATIENCE,
    ), "types"),
    "schedule": Command("schedule.list_or_change", "list schedules, or add, change or start one", (
        _argument("action", "default: list", nargs="?", default="list", choices=SCHEDULE_ACTIONS),
        _argument("args WORD", "the name; for add then type and arguments, for next a number", nargs="*"),
        _argument("--at TIME", "start once, at this local time"),
        _argument("--every INTERVAL", "start at equal intervals, as 13m, 1h 30m or 90, in seconds"),
        _argument("--cron EXPRESSION", "start as cron says: five fields, or @daily and the like"),
        _argument("--zone ZONE", "the time zone, as Europe/Berlin; default: UTC", default="UTC"),
        _argument("--catch-up WHICH", "missed starts to make up for", choices=("one", "all", "none"), default="one"),
        _argument("--jitter INTERVAL", "start later by a part of this interval", default="0"),
        _argument("--overlap HOW", "queue a start behind the one before, or skip it", choices=("queue", "skip"),
                  default="queue"),
        _argument("--disabled", "start nothing until it is enabled"),
        _argument("--jobs FILE", "queue the group of jobs that this JSON file describes; - is stdin"),
        *JOB_OPTIONS,
        *ANSWER,
    )),
    "command": Command("admin.send_commands", "give the scheduler any command", (
        _argument("args WORD", "a verb and its arguments; see COMMANDS in drover-jobqueue(7)", nargs="+"),
        *ANSWER,
    )),
    "ls": Command("jobs.list_jobs", "list jobs", (
        _argument("-s STATE", "list jobs in this state too; may be repeated", dest="also", **STATES),
        _argument("-S STATE", "list jobs in this state only; may be repeated", dest="only", **STATES),
        _argument("-t TYPE", "the same as --type", dest="types", action="append"),
        *FILTERS,
        _argument("--sort COLUMN", "order by it, the greatest last; default: job", choices=SORTS, default="job"),
        _argument("--all", "list jobs in every state, and hidden ones"),
        _argument("-n N", "list the newest N, 0 for all; default 1000", dest="rows", type=COUNT, default=1000),
        JSON_LINES,
        WATCH,
    )),
    "log": Command("jobs.show_log", "print the log lines about a job, or about all", (
        _job("job", "?"),
        _argument("-n LINES", "print the last LINES; default: 100, or all of a job", dest="lines", type=COUNT),
        _argument("-f", "continue with new lines until the job ends", dest="follow"),
        JSON_LINES,
    )),
    "show": Command("show.show_job", "print all that is known of a job", (
        _job("job"),
        _argument("--json", "one JSON object"),
    )),
    "items": Command("show.list_items", "print the items of a job that failed, with the reason", (
        _job("job"),
        _argument("-n N", "list the newest N, 0 for all; default 1000", dest="rows", type=COUNT, default=1000),
        JSON_LINES,
    )),
    "why": Command("why.show_reason", "print why a job is not running, or how it ended", (
        _job("job", "?"),
        _argument("--all", "group all jobs that have not ended by the reason"),
        JSON_LINES,
    )),
    "out": Command("jobs.show_output", "print the output of a job", (
        _job("job"),
        _argument("-e", "print its error output instead", dest="errors"),
        _argument("-t", "continue with new output until the job ends", dest="follow"),
        _argument("--attempt K", "print the output of this attempt; default: the latest", type=POSITIVE),
    )),
    "wait": Command("jobs.wait_for_jobs", "wait until jobs have ended, and print how each ended", (
        _job("jobs", "+"),
        _argument("--timeout SECONDS", "wait at most so long", type=seconds, default=inf),
        _argument("--json", "one JSON object a line, with the output of the job"),
    )),
    "exit": Command("jobs.show_exit_status", "print the exit status of a job", (
        _job("job"),
        _argument("-q", "print nothing and exit with that status", dest="quiet"),
        _argument("-w", "wait until the job has ended", dest="wait"),
    )),
    "hide": Command("hide.hide", "leave jobs out of drover ls; they run as before", (
        _job("jobs", "+"),
        JSON_LINES,
    )),
    "unhide": Command("hide.unhide", "list hidden jobs again", (_job("jobs", "+"), JSON_LINES)),
    "subscribe": Command("events.subscribe", "be told of events of a job, or of all jobs of an owner", (
        _job("job", "?"),
        _argument("--owner ROLE", "all jobs of this role; default, without a job: one's own"),
        _argument("--tenant NAME", "all jobs of this tenant"),
        _argument("--site", "everything, dead letters too"),
        _argument("--kind KIND", "events of this kind only", choices=EVENT_KINDS, default="all"),
        _argument("--to TARGET", "deliver to this URL or to mailto:ADDRESS; may be repeated", action="append"),
        _argument("--ttl INTERVAL", "end the subscription after so long, as 90m"),
        _argument("--most N", "give up what more than N deliveries wait for", type=POSITIVE),
        _argument("--secret-file FILE", "sign with the secret in this file; - is stdin; default: one is made"),
        _argument("--json", "one JSON object"),
    )),
    "unsubscribe": Command("events.unsubscribe", "remove subscriptions", (
        _argument("subscriptions SUBSCRIPTION", "their numbers", nargs="+", **SUBSCRIPTIONS),
        JSON_LINES,
    )),
    "subscriptions": Command("events.subscriptions", "list subscriptions, or switch some on or off", (
        _argument("action", "default: list", nargs="?", default="list", choices=("list", "enable", "disable")),
        _argument("subscriptions SUBSCRIPTION", "their numbers", nargs="*", **SUBSCRIPTIONS),
        JSON_LINES,
    )),
    "events": Command("events.events", "print events, or post one", (
        _job("job", "?"),
        _argument("-n N", "print the newest N, 0 for all; default 100", dest="rows", type=COUNT, default=100),
        _argument("--offset N", "leave out the newest N", type=COUNT, default=0),
        _argument("--deliveries", "print what was delivered, and what is to be"),
        _argument("--dead", "print what was given up, and jobs that no scheduler takes"),
        _argument("--post TEXT", "record this text as an event of the job"),
        JSON_LINES,
    )),
    "top": Command("top.show_top", "watch slots, rates, queues and jobs live, with keys to pause, kill and ask why", (
        _argument("group GROUP", "default: that of the configuration", nargs="?"),
    ), "group"),
    "psql": Command("psql.run_psql", "run psql on the database, logged in as these commands are", (
        _argument("args ARGS", "of psql; options of it after --", nargs="*"),
    )),
    "web": Command("dashboard.serve", "serve the dashboard, a page for browsers", (
        _argument("--host HOST", "listen on this address; default 127.0.0.1, this machine alone", default="127.0.0.1"),
        _argument("--port N", "listen on this port; default 8300", type=number(0, 65535), default=8300),
        _argument("--name HOST", "a name under which browsers may reach it; may be repeated", dest="names",
                  action="append", default=[]),
    )),
    "metrics": Command("exporter.export", "serve metrics to Prometheus, or write them into a file", (
        _argument("--host HOST", "listen on this address; default 127.0.0.1, this machine alone", default="127.0.0.1"),
        _argument("--port N", "listen on this port; default 9834", type=number(0, 65535), default=9834),
        _argument("--textfile FILE", "write them into this file, once, and exit; - is standard output"),
    )),
    "import-scheduler-conf": Command("import_conf.import_scheduler_conf", "write the TOML of an old Scheduler.conf", (
        _argument("files FILE", "a Scheduler.conf, and the Hosts.conf that goes with it", nargs="+"),
        _argument("-o FILE", "write the configuration into this file; default: standard output", dest="output"),
        _argument("--placements FILE", "write the host ranges into this file, as SQL; default: as comments"),
        _argument("--force", "replace files that exist"),
    ), "nothing"),
    "completion": Command("options.print_completion", "print a script that completes commands in a shell", (
        _argument("shell", "which shell", choices=("bash",)),
    ), "nothing"),
    "version": Command("options.print_version", "print the version", (), "nothing"),
}  # fmt: skip


# Commands about the command line itself; they run here, since modules of others import the database first.

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


def print_completion(_options: Namespace, _config: object) -> int:
    """Print a script that completes commands and options in bash, made from the table of commands."""
    names = [name for name in COMMANDS if " " not in name]
    cases = "\n".join(CASE.format(name=name, words=" ".join(following(name))) for name in names)
    print(BASH.format(cases=cases, commands=" ".join(names)), end="")
    return 0


def following(command: str) -> list[str]:
    """Return what may follow a command: its options, and the words of which one is to be chosen."""
    actions = command_parser(command)._actions
    chosen = [choice for action in actions if not action.option_strings for choice in action.choices or ()]
    seconds = [words[1] for name in COMMANDS if (words := name.split())[0] == command and len(words) > 1]
    return [*chosen, *seconds, *(option for action in actions for option in action.option_strings)]


def print_version(_options: Namespace, _config: object) -> int:
    """Print name and version of what is installed."""
    print("drover", version())
    return 0
