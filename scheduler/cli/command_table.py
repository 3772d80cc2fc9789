"""Every command: its help, its arguments, the function that runs it, and examples; see drover(1) and drover(8).

Those that become command rows are the verbs of the registry, scheduler.model.verbs. Imports nothing slow, so that a
usage message comes at once.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from math import inf
from operator import methodcaller
from typing import Any, Final, Literal, NamedTuple

from scheduler.cli.arguments import (
    COUNT,
    PATIENCE_S,
    POSITIVE,
    Declaration,
    argument,
    job,
    job_number_or_name,
    number,
    seconds,
    verb_arguments,
)
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import LARGEST_NUMBER, VERBS, Verb
from scheduler.package_data import compat_names


class Command(NamedTuple):
    """The function that runs a command, as module.name; its help, its arguments, and what it needs configured."""

    function: str
    help: str
    arguments: Sequence[Declaration] = ()
    needs: Literal["nothing", "database", "group", "all", "types"] = "database"  # types: all, if it names agent types


def _tests_of_run(parser: ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-t", action="store_true", dest="test", help="test every agent and exit")
    either.add_argument("-T", action="store_true", dest="test_first", help="test every agent and go on")


def _named(*names: str, **settings: Any) -> Declaration:
    """Return the declaration of an option with several names, as in xargs(1); without VALUE it is a flag."""
    flag = {} if "metavar" in settings else {"action": "store_true"}
    return methodcaller("add_argument", *names, **flag, **settings)


def _quit_of_run(parser: ArgumentParser) -> None:
    names, told = ("--quit-if-served", "--once"), "exit with 0 if a daemon serves the group already; for cron"
    parser.add_argument(*names, action="store_true", dest="quits", help=told)


# Arguments that several commands share.

COMPAT: Final = {"action": "append", "default": [], "choices": compat_names()}
OR_NULL: Final = {"action": "store_const", "const": True}  # not given is no value for the column
STATES: Final = {"action": "append", "default": [], "choices": JOB_STATES}
JSON_LINES: Final = argument("--json", "one JSON object a line")
JSON_OBJECT: Final = argument("--json", "one JSON object")
GROUP: Final = argument("group GROUP", "default: that of the configuration", nargs="?")
LISTEN_ON: Final = argument(
    "--host HOST", "listen on this address; default 127.0.0.1, this machine alone", default="127.0.0.1"
)
WATCH: Final = argument("--watch", "repeat when something has changed, until Ctrl-C")
FOR: Final = argument(
    "--for SECONDS", f"withdraw it if no scheduler takes it for so long; default {PATIENCE_S:g}, inf: never",
    dest="patience", type=seconds, default=PATIENCE_S,
)  # fmt: skip
ANSWER: Final = (
    argument("--json", "print the answer as JSON"),
    argument(
        "--wait SECONDS", "--wait=9: wait at most 9 s for the answer; default: no limit", type=seconds, default=inf
    ),
    FOR,
)
UNTIL_IDLE: Final = (
    argument("--json", "print the answer as JSON"),
    FOR,
    argument("--wait SECONDS", "wait until nothing is in hand any more; --wait=9: at most 9 s", type=seconds),
)
JOB_OPTIONS: Final = (  # of a new job, for submit and schedule
    argument("--force", "queue it even if no scheduler serves the type, or queue or host do not exist"),
    argument("--sql", "ARGS is a query: one work item a row", **OR_NULL),
    argument("--runonpfile COLUMN", "like --sql; this column decides on which host each row is processed"),
    argument("--key COLUMN", "unique, ordered column: progress is checkpointed by it"),
    argument("--host HOST", "run on this host only"),
    argument("--queue QUEUE", "use this named queue"),
    argument("--urgent", "run it before all jobs that are not urgent", **OR_NULL),
    argument("--priority LETTERS", "letters and digits, a before z; default n"),
    argument("--retries N", "retries after failure; default 0", type=number(0, LARGEST_NUMBER)),
    argument("--delete FILE", "remove this file after success; may be repeated", action="append"),
)
FILTERS: Final = (  # which jobs a command is about
    argument("--type TYPE", "jobs of this type only; may be repeated", dest="types", action="append"),
    argument("--queue QUEUE", "jobs of this queue only; may be repeated", dest="queues", action="append"),
    argument("--by ROLE", "jobs that this role submitted only; may be repeated", dest="submitters", action="append"),
    argument("--group N", "jobs of this job group only; may be repeated", dest="groups", action="append",
              type=POSITIVE),
    argument("--host HOST", "jobs that asked for this host only; may be repeated", dest="hosts", action="append"),
    argument("--ran-on HOST", "jobs that ran on this host last; may be repeated", action="append"),
    argument("--code CODE", "jobs that ended with this exit status, or for this reason, as timeout; may be repeated",
             dest="codes", action="append"),
    argument("--since TIME", "jobs queued, started or ended since: 90, 15m, 1h 30m, 2d ago, or at a local time"),
    argument("--until TIME", "jobs of which nothing of that is later, as --since"),
)  # fmt: skip
SORTS: Final = ("job", "queued", "start", "end", "waited", "ran", "type", "state", "queue", "by", "priority")
MANY: Final = (  # of a command that takes filters in place of jobs
    *FILTERS,
    argument("--yes", "do not ask for confirmation"),
    argument("--dry-run", "print which jobs these are, and do nothing"),
)
BULK: Final = (
    *MANY,
    argument("--state STATE", "jobs in this state only, may be repeated", dest="states", **STATES),
)
EVENT_KINDS: Final = ("all", "status", "error", "subscription", "share", "user", "alternate", "dead", "alert")
LANGUAGES: Final = ("python", "bash", "c", "node", "perl")  # of skeletons of agents
PATIENCE: Final = argument(
    "--timeout SECONDS", "wait at most so long for each OK; default 10", type=seconds, default=10.0
)
SUBSCRIPTIONS: Final = {"type": number(1, 2**63 - 1)}
SCHEDULE_ACTIONS: Final = ("list", "add", "run", "enable", "disable", "remove", "next")
BY_FILTER: Final = tuple(verb.cli for verb in VERBS.values() if verb.in_bulk)


def _verb_command(verb: Verb) -> Command:
    if verb.cli == "pause":
        queues = [declare for _, declare in verb_arguments(verb.usage)]
        return Command("admin.pause", verb.help, (*queues, *UNTIL_IDLE))
    if verb.in_bulk or verb.cli == "flush":
        jobs = [job("jobs", "*") if name == "jobs" else declare for name, declare in verb_arguments(verb.usage)]
        return Command("bulk.send_to_chosen", verb.help, (*jobs, *(BULK if verb.in_bulk else MANY), *ANSWER))
    arguments = [declare for _, declare in verb_arguments(verb.usage)]
    return Command("admin.send_commands", verb.help, (*arguments, *ANSWER))


def _list_command(name: str, help: str) -> Command:
    actions = [verb.cli.removeprefix(f"{name} ") for verb in VERBS.values() if verb.cli.startswith(f"{name} ")]
    return Command("admin.list_or_change", help, (
        argument("action", "default: list", nargs="?", default="list", choices=["list", *actions]),
        argument("words WORD", "the name, then the new values", nargs="*"),
        *ANSWER,
    ))  # fmt: skip


COMMANDS: Final[dict[str, Command]] = {
    "run": Command("run.run", "run the scheduler daemon, in the foreground; or run jobs by hand", (
        job("jobs", "*"),
        *ANSWER,
        argument("-I", "also read `type | args` lines from stdin", dest="read_stdin"),
        argument("-H", "ignore hosts: run everything here", dest="ignore_hosts"),
        argument("-R", "take the group as soon as no lease runs: no other daemon of it lives", dest="rescue"),
        _tests_of_run,
        _quit_of_run,
        argument("--allow-root", "run although the user is root"),
        argument("-v", "log more; may be repeated", dest="verbose", action="count", default=0),
    ), "all"),
    "init": Command("database.init", "create the schema in the database, or bring it up to date", (
        argument("--roles", "create the roles and their grants too"),
        argument("--compat NAME", "make the views of an older system's tables", **COMPAT),
    )),
    "check": Command("check.check", "check that everything is there that a scheduler needs", (JSON_LINES,), "all"),
    "doctor": Command("check.doctor", "the same, and try it: agents, LISTEN, clock, limits, files", (
        argument("--allow-root", "start agents although the user is root; agents are root too then"),
        JSON_LINES,
    ), "all"),
    "config": Command("config_files.show_settings", "print each setting with its value, and where that comes from", (
        argument("settings SETTING", "this one, or those below this name; default: all", nargs="*"),
        argument("--given", "leave out those that have their default"),
        JSON_LINES,
    ), "all"),
    "agent-check": Command("agent_check.check_agents", "check that agents start, or all that a new program does", (
        argument("args TYPE|PROGRAM", "these types, enabled or not, on each of their hosts; default: all enabled; "
                  "or a program that no configuration names yet, with its path and arguments", nargs="*"),
        argument("--item LINE", "give it this line; may be repeated; default: a file's path, a row", dest="items",
                  action="append", default=[]),
        PATIENCE,
        argument("--allow-root", "start types although the user is root; agents are root too then"),
    ), "types"),
    "demo": Command("demo.run_demo", "process real files, with a temporary database", (
        argument("directory DIR", "process the files below it; default: the Python library", nargs="?"),
        argument("--keep", "keep the database, and print how to use it"),
        argument("--agents N", "start so many agents of each type", type=POSITIVE),
        argument("--limit N", "process at most so many files", type=POSITIVE),
    ), "nothing"),
    "map": Command("map_command.run_map", "run a command for each item, on all processors, without a configuration", (
        argument("args WORD", "-- COMMAND WORD... ::: ITEM...; without ::: an item is a line of stdin", nargs="*"),
        _named("-j", "-P", "--jobs", help="run so many at once; default: processors", dest="slots", metavar="N",
               type=POSITIVE),
        _named("-k", "--keep-order", help="print in the order of the items, not as the commands end"),
        _named("-0", "--null", help="items end with a NUL, not with a line"),
        _named("-a", "--arg-file", metavar="FILE", help="read the items from this file"),
        _named("-C", "--colsep", metavar="REGEX", help="columns of an item, {1} {2}..., are separated by this"),
        _named("-n", "--max-args", metavar="N", type=POSITIVE, default=1, help="give each command N items"),
        _named("-I", "--replace", metavar="STRING", default="{}", help="this stands for the item, not {}"),
        _named("-r", "--no-run-if-empty", help="leave out items that are empty"),
        argument("--dry-run", "print the commands, and do nothing"),
        argument("--retries N", "try a command that failed N more times; default 0", type=COUNT, default=0),
        argument("--timeout SECONDS", "kill a command that takes longer", type=seconds, default=0),
        argument("--halt WHEN", "soon,fail=N: begin nothing after N failures; now,fail=N: and kill what runs",
                 default="never"),
        argument("--resume RUN", "go on with an interrupted run; default: the latest", nargs="?", type=POSITIVE,
                 const=0),
    ), "nothing"),
    "status": Command("status.show_status", "show warnings, agents, jobs and queues, shortened to the screen", (
        GROUP,
        argument("-v", "each slot and statement, and all rows", dest="verbose"),
        argument("--json", "one JSON object; long lists are cut unless -v is given too"),
        WATCH,
    ), "group"),
    "health": Command("health.show_health", "exit with 0 if all is well, 1 with warnings, 2 if work stands", (
        GROUP,
        argument("--all", "all warnings, not the worst of each kind"),
        JSON_OBJECT,
    ), "group"),
    "stats": Command("stats.show_stats", "show rates, waiting and run times, backlogs, slow agents and errors", (
        argument("--since TIME", "since then: 90, 15m, 2d ago, or a local time; default: 1h", default="1h"),
        argument("--all", "all rows of each table"),
        JSON_OBJECT,
    )),
    "submit": Command("submit.submit_jobs", "queue a job, or many", (
        argument("type TYPE", "agent type, or command; 'TYPE KEY=VALUE ...' for one with these attributes"),
        argument("args ARGS", "the parameter, joined by blanks; - reads one job a line from stdin", nargs="*"),
        argument("--wait SECONDS", "wait for the end; --wait=9: at most 9 s", nargs="?", type=seconds),
        argument("--json", "one JSON object a line for each job; with --wait for its end too"),
        *JOB_OPTIONS,
        argument("--manual", "hold it until it is run by hand, with drover run", action="store_const", const="manual"),
        argument("--name TYPE.NONCE", "unique name of the job"),
        argument("--traceparent ID", "the trace it belongs to, as in W3C Trace Context"),
        argument("--unique-key KEY", "refuse it while another job of this key has not ended"),
        argument("--not-before TIME", "start it at this time or later: 90, 15m, 1h 30m, 2d from now, or a local time"),
        argument("--not-after TIME", "let it fail if it has not started by then"),
        argument("--timeout INTERVAL", "kill an attempt that takes longer, as 90, 15m or 1h 30m"),
        argument("--depends JOB", "start it when this job is done; may be repeated", action="append", default=[],
                  type=job_number_or_name),
        argument("--eta", "print how long it takes until all jobs of this type that could start are done"),
        argument("--result", "wait for the end, and print the result alone, as JSON"),
    )),
    "setup": Command("submit.set_up_job", "set a job up by name, held until it is released", (
        argument("name TYPE.NONCE", "unique name of the job; its variables are read from stdin"),
        argument("-p LETTERS", "letters and digits, a before z; default n", dest="priority"),
        argument("--force", "set it up even if no scheduler serves the type, or queue or host do not exist"),
    )),
    "resubmit": Command("submit.resubmit_jobs", "queue jobs that have ended once more, as new jobs", (
        job("jobs", "+"),
        argument("--json", "one JSON object a line for each job"),
    )),
    **{verb.cli: _verb_command(verb) for verb in VERBS.values() if verb.cli and " " not in verb.cli},
    "drain": Command("admin.drain", "let all schedulers finish what they have in hand, and end", (
        *UNTIL_IDLE,
        argument("--dry-run", "print what is lost by that, or by a restart without it, and do nothing"),
    )),
    "quota": Command("quota.list_or_change", "list quotas, or set or remove one", (
        argument("action", "default: list", nargs="?", default="list", choices=("list", "set", "remove")),
        argument("args WORD", "the name; for set then how many jobs may be in hand at once", nargs="*"),
        argument("--tenant ROLE", "count the jobs of its members"),
        argument("--user ROLE", "count the jobs that it submitted; * counts those of each role apart"),
        argument("--queue QUEUE", "count the jobs of this queue"),
        argument("--host HOST", "count the jobs that ask for this host"),
        argument("--group GROUP", "count within this scheduler group; default: default"),
        argument("--json", "print the list, or what was done, as JSON"),
    )),
    "queue": _list_command("queue", "list queues, or change one"),
    "host": _list_command("host", "list hosts, or change one"),
    "agent": _list_command("agent", "list agent types, or enable or disable one"),
    "agent new": Command("agent_kit.new_agent", "make the skeleton of an agent, in a directory of its name", (
        argument("name NAME", "the name of its type"),
        argument("--lang LANGUAGE", "the language of its program", choices=LANGUAGES, default="python"),
    ), "nothing"),
    "agent run": Command("agent_kit.run_item", "let an agent do one item, without daemon and database", (
        argument("type TYPE|PROGRAM", "a type of the configuration, or a program with its path"),
        argument("args LINE", "the item, joined by blanks", nargs="*"),
        PATIENCE,
    ), "types"),
    "schedule": Command("schedule.list_or_change", "list schedules, or add, change or start one", (
        argument("action", "default: list", nargs="?", default="list", choices=SCHEDULE_ACTIONS),
        argument("args WORD", "the name; for add then type and arguments, for next a number", nargs="*"),
        argument("--at TIME", "start once, at this local time"),
        argument("--every INTERVAL", "start at equal intervals, as 13m, 1h 30m or 90, in seconds"),
        argument("--cron EXPRESSION", "start as cron says: five fields, or @daily and the like"),
        argument("--zone ZONE", "the time zone, as Europe/Berlin; default: UTC", default="UTC"),
        argument("--catch-up WHICH", "missed starts to make up for", choices=("one", "all", "none"), default="one"),
        argument("--jitter INTERVAL", "start later by a part of this interval", default="0"),
        argument("--overlap HOW", "queue a start behind the one before, or skip it", choices=("queue", "skip"),
                  default="queue"),
        argument("--disabled", "start nothing until it is enabled"),
        argument("--jobs FILE", "queue the group of jobs that this JSON file describes; - is stdin"),
        *JOB_OPTIONS,
        *ANSWER,
    )),
    "command": Command("admin.send_commands", "give the scheduler any command", (
        argument("args WORD", "a verb and its arguments; see COMMANDS in drover-jobqueue(7)", nargs="+"),
        *ANSWER,
    )),
    "ls": Command("jobs.list_jobs", "list jobs", (
        argument("-s,--also STATE", "list jobs in this state too, may be repeated", dest="also", **STATES),
        argument("-S,--state STATE", "list jobs in this state only, may be repeated", dest="only", **STATES),
        argument("-t TYPE", "the same as --type", dest="types", action="append"),
        *FILTERS,
        argument("--sort COLUMN", "order by it, the greatest last; default: job", choices=SORTS, default="job"),
        argument("--all", "list jobs in every state, and hidden ones"),
        argument("--before JOB", "list jobs with lower numbers only: the next page", type=POSITIVE),
        argument("-n N", "list the newest N, 0 for all; default 1000", dest="rows", type=COUNT, default=1000),
        JSON_LINES,
        WATCH,
    )),
    "log": Command("show.show_log", "print the log lines about a job, or about all", (
        job("job", "?"),
        argument("-n LINES", "print the last LINES; default: 100, or all of a job", dest="lines", type=COUNT),
        argument("-f", "continue with new lines until the job ends", dest="follow"),
        JSON_LINES,
    )),
    "show": Command("show.show_job", "print all that is known of a job", (job("job"), JSON_OBJECT)),
    "items": Command("show.list_items", "print the items of a job that failed, with the reason", (
        job("job"),
        argument("--all", "list those of earlier attempts too"),
        argument("--by-reason", "print how many failed for each reason alone"),
        argument("-n N", "list the newest N, 0 for all; default 1000", dest="rows", type=COUNT, default=1000),
        JSON_LINES,
    )),
    "why": Command("show.show_reason", "print why a job is not running, or how it ended", (
        job("job", "?"),
        argument("--all", "group all jobs that have not ended by the reason"),
        JSON_LINES,
    )),
    "out": Command("show.show_output", "print the output of a job", (
        job("job"),
        argument("-e", "print its error output instead", dest="errors"),
        argument("-t", "continue with new output until the job ends", dest="follow"),
        argument("--attempt K", "print the output of this attempt; default: the latest", type=POSITIVE),
    )),
    "wait": Command("wait.wait_for_jobs", "wait until jobs have ended, and print how each ended", (
        job("jobs", "+"),
        argument("--timeout SECONDS", "wait at most so long", type=seconds, default=inf),
        argument("--json", "one JSON object a line, with the output of the job"),
    )),
    "exit": Command("show.show_exit_status", "print the exit status of a job", (
        job("job"),
        argument("-q", "print nothing and exit with that status", dest="quiet"),
        argument("-w", "wait until the job has ended", dest="wait"),
    )),
    "hide": Command("jobs.hide", "leave jobs out of drover ls; they run as before", (job("jobs", "+"), JSON_LINES)),
    "unhide": Command("jobs.hide", "list hidden jobs again", (job("jobs", "+"), JSON_LINES)),
    "subscribe": Command("events.subscribe", "be told of events of a job, or of all jobs of an owner", (
        job("job", "?"),
        argument("--owner ROLE", "all jobs of this role; default, without a job: one's own"),
        argument("--tenant NAME", "all jobs of this tenant"),
        argument("--site", "everything, dead letters too"),
        argument("--kind KIND", "events of this kind only", choices=EVENT_KINDS, default="all"),
        argument("--to TARGET", "deliver to this URL or to mailto:ADDRESS; may be repeated", action="append"),
        argument("--ttl INTERVAL", "end the subscription after so long, as 90m"),
        argument("--most N", "drop new deliveries while N are waiting", type=POSITIVE),
        argument("--secret-file FILE", "sign with the secret in this file; - is stdin; default: one is made"),
        JSON_OBJECT,
    )),
    "unsubscribe": Command("events.unsubscribe", "remove subscriptions", (
        argument("subscriptions SUBSCRIPTION", "their numbers", nargs="+", **SUBSCRIPTIONS),
        JSON_LINES,
    )),
    "subscriptions": Command("events.subscriptions", "list subscriptions, or switch some on or off", (
        argument("action", "default: list", nargs="?", default="list", choices=("list", "enable", "disable")),
        argument("subscriptions SUBSCRIPTION", "their numbers", nargs="*", **SUBSCRIPTIONS),
        JSON_LINES,
    )),
    "events": Command("events.events", "print events, or post one", (
        job("job", "?"),
        argument("-n N", "print the newest N, 0 for all; default 100", dest="rows", type=COUNT, default=100),
        argument("--offset N", "leave out the newest N", type=COUNT, default=0),
        argument("--deliveries", "print what was delivered, and what is to be"),
        argument("--dead", "print what was given up, and jobs that no scheduler takes"),
        argument("--post TEXT", "record this text as an event of the job"),
        JSON_LINES,
    )),
    "top": Command("top.show_top", "watch slots, rates, queues and jobs live, with keys to pause, kill and ask why", (
        GROUP,
    ), "group"),
    "psql": Command("database.run_psql", "run psql on the database, logged in as these commands are", (
        argument("args ARGS", "of psql; options of it after --", nargs="*"),
    )),
    "web": Command("web_and_metrics.serve_dashboard", "serve the dashboard, a page for browsers", (
        LISTEN_ON,
        argument("--port N", "listen on this port; default 8300", type=number(0, 65535), default=8300),
        argument("--name HOST", "a name under which browsers may reach it; may be repeated", dest="names",
                  action="append", default=[]),
    )),
    "metrics": Command("web_and_metrics.export_metrics", "serve metrics to Prometheus, or write them into a file", (
        LISTEN_ON,
        argument("--port N", "listen on this port; default 9834", type=number(0, 65535), default=9834),
        argument("--textfile FILE", "write them into this file, once, and exit; - is standard output"),
    )),
    "import-scheduler-conf": Command("import_scheduler_conf.convert_files", "write the TOML of an old Scheduler.conf", (
        argument("files FILE", "a Scheduler.conf, and the Hosts.conf that goes with it", nargs="+"),
        argument("-o FILE", "write the configuration into this file; default: standard output", dest="output"),
        argument("--placements FILE", "write the host ranges into this file, as SQL; default: as comments"),
        argument("--force", "replace files that exist"),
    ), "nothing"),
    "completion": Command("parser.print_completion", "print a script that completes commands in a shell", (
        argument("shell", "which shell", choices=("bash",)),
    ), "nothing"),
    "version": Command("parser.print_version", "print the version", (), "nothing"),
}  # fmt: skip
NOTES: Final = {  # what else --help says of a command
    "top": "keys:\n  arrows, j, k  choose a queue or a job\n  w, enter      why the job is not running\n"
           "  p             pause the queue, or continue it\n  K             kill the job, after y\n"
           "  q             quit\n",
}  # fmt: skip
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "run": ("drover run", "drover run --once -v", "drover run billing.1"),
    "init": ("DROVER_DATABASE_URL=dbname=drover drover init --roles",),
    "check": ("drover check",),
    "doctor": ("drover doctor",),
    "config": ("drover config", "drover config --given", "drover config database scheduler.lease --json"),
    "agent-check": ("drover agent-check", "drover agent-check ./my-agent --item 'path=\"/etc/hosts\"'"),
    "demo": ("drover demo", "drover demo /usr/share/doc --limit 500"),
    "map": (
        "drover map -- gzip -k ::: *.log",
        "find . -name '*.tif' -print0 | drover map -0 -k -- convert {} {.}.png",
        "drover map --resume",
    ),
    "status": ("drover status", "drover status -v --watch", "drover status --json | jq .warnings"),
    "health": ("drover health", "drover health --json | jq -r .health"),
    "stats": ("drover stats", "drover stats --since 1d", "drover stats --json | jq .types"),
    "submit": (
        "drover submit sha256 /etc/hosts",
        "drover submit --wait=60 shell -- ls -l /tmp",
        "find . -type f | drover submit sha256 -",
        "drover submit --not-before 2h --timeout 10m --unique-key nightly shell date",
    ),
    "setup": ("printf 'userid=simpsons\\n' | drover setup billing.1 -p a",),
    "resubmit": ("drover resubmit 17",),
    "release": ("drover release billing.1",),
    "hold": ("drover hold 17 18",),
    "ice": ("drover ice 17",),
    "retry": ("drover retry 17", "drover retry --type sha256 --since 1h --dry-run"),
    "priority": ("drover priority 17 a", "drover priority --by web --state queued b"),
    "move": ("drover move 17 night", "drover move --queue mail --since 1h night"),
    "cancel": ("drover cancel 17 --reason 'wrong directory'", "drover cancel --type scan --state queued --yes"),
    "kill": ("drover kill 17",),
    "signal": ("drover signal 17 18 USR1", "drover signal 17=TERM 18=INT"),
    "unblock": ("drover unblock 17", "drover unblock licence"),
    "pause": ("drover pause mail", "drover pause --wait=600"),
    "continue": ("drover continue mail",),
    "drain": ("drover drain", "drover drain --wait", "drover drain --dry-run"),
    "quota": ("drover quota", "drover quota set few 2 --user '*' --queue heavy", "drover quota remove few"),
    "poll": ("drover poll",),
    "reexec": ("drover reexec", "drover reexec --wait=300"),
    "flush": ("drover flush 30", "drover flush 7 --type sha256 --dry-run"),
    "queue": ("drover queue", "drover queue add heavy 3", "drover queue rate mail rate=100"),
    "host": ("drover host", "drover host disable alpha", "drover host max alpha 8"),
    "agent": ("drover agent", "drover agent enable sha256"),
    "agent new": ("drover agent new resize --lang bash",),
    "agent run": ("drover agent run sha256 /etc/hosts",),
    "schedule": (
        "drover schedule",
        "drover schedule add nightly --cron '0 3 * * *' --zone Europe/Berlin shell date",
        "drover schedule next 5",
    ),
    "command": ("drover command shutdown", "drover command step-down"),
    "ls": ("drover ls", "drover ls -S failed --since 1h", "drover ls --all --type sha256 --sort ran -n 10"),
    "log": ("drover log", "drover log 17 -f"),
    "show": ("drover show 17",),
    "items": ("drover items 17", "drover items 17 --by-reason", "drover items 17 --json | jq -r .line"),
    "why": ("drover why 17", "drover why --all"),
    "out": ("drover out 17", "drover out 17 -t", "drover out 17 -e --attempt 2"),
    "wait": ("drover wait 17 18", "drover wait billing.1 --timeout 60 --json"),
    "exit": ("drover exit 17", "drover exit -q -w 17"),
    "hide": ("drover hide 17",),
    "unhide": ("drover unhide 17",),
    "subscribe": ("drover subscribe 17 --to mailto:me@example.org", "drover subscribe --kind error --ttl 7d"),
    "unsubscribe": ("drover unsubscribe 3",),
    "subscriptions": ("drover subscriptions", "drover subscriptions disable 3"),
    "events": ("drover events 17", "drover events --dead"),
    "top": ("drover top",),
    "psql": ("drover psql", "drover psql -- -c 'select * from drover.why'"),
    "web": ("drover web", "drover web --port 8400"),
    "metrics": ("drover metrics", "drover metrics --textfile /var/lib/node-exporter/drover.prom"),
    "import-scheduler-conf": ("drover import-scheduler-conf Scheduler.conf Hosts.conf -o drover.toml",),
    "completion": ("source <(drover completion bash)",),
    "version": ("drover version",),
}
