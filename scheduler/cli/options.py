"""Every command and every option, as argparse declares them; drover(1) and drover(8) describe the same.

Decides what may be written on a command line; the table COMMANDS names the function that runs each command. Imports
nothing slow, so that a usage message comes at once.
"""

import re
from argparse import REMAINDER, SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, Final, Literal

from scheduler.model.commands import VERBS, Verb
from scheduler.model.states import JOB_STATES

LARGEST: Final = 2**63 - 1
LARGEST_INTEGER: Final = 2**31 - 1
NAME: Final = re.compile(r"[^.\s]+\.[^.\s]+")  # of a job: type.nonce


@dataclass(frozen=True, slots=True)
class Command:
    """The function that runs a command, by module and name; its line of help, and what declares its options.

    `needs` says how much of the configuration has to be read.
    """

    function: str
    help: str
    declare: Callable[[ArgumentParser], None]
    needs: Literal["nothing", "database", "group", "all"] = "database"


def parse(argv: Sequence[str]) -> Namespace:
    """The command as `command`, -c as `config` and -d as `database` (None if not given), then what the command takes.

    Errors: SystemExit(2) with a usage message on stderr; SystemExit(0) for --help.
    """
    words = ["version", *argv[1:]] if argv[:1] == ["--version"] else list(argv)
    end = words.index("--") if "--" in words else len(words)
    top = top_parser().parse_args(words[:end])
    own = Namespace(command=top.command, config=top.config, database=top.database)
    parser = command_parser(top.command)
    return _with_rest(parser, parser.parse_intermixed_args(_explicit(top.rest), own), words[end + 1 :])


def top_parser() -> ArgumentParser:
    """What comes before the command; the rest belongs to the command, options in any place."""
    parser = ArgumentParser(
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
    """The options of one command; -c and -d may be given here too, and win."""
    command = COMMANDS[name]
    parser = ArgumentParser(prog=f"drover {name}", description=command.help, allow_abbrev=False)
    if command.needs != "nothing":
        parser.add_argument("-c", dest="config", metavar="FILE", default=SUPPRESS, help="configuration file")
        parser.add_argument("-d", dest="database", metavar="URL", default=SUPPRESS, help="database")
    command.declare(parser)
    return parser


def _explicit(words: list[str]) -> list[str]:
    """Write `--wait` as `--wait=inf`: argparse would take the next word for its optional seconds."""
    return ["--wait=inf" if word == "--wait" else word for word in words]


def _with_rest(parser: ArgumentParser, options: Namespace, rest: list[str]) -> Namespace:
    """Words after `--` are ARGS as they stand: argparse loses some of them when options may be in any place."""
    if rest and not hasattr(options, "args"):
        parser.error(f"no words are expected after -- (got {' '.join(rest)})")
    if rest:
        options.args += rest
    return options


# The options of each command, in the order of the table below.


def _none(_parser: ArgumentParser) -> None:
    pass


def _run(parser: ArgumentParser) -> None:
    _jobs(parser, nargs="*")
    _answer(parser)
    parser.add_argument("-I", dest="read_stdin", action="store_true", help="also read `type | args` lines from stdin")
    parser.add_argument("-H", dest="ignore_hosts", action="store_true", help="ignore hosts: run everything here")
    parser.add_argument("-R", dest="rescue", action="store_true", help="give abandoned rows back before READY")
    tests = parser.add_mutually_exclusive_group()
    tests.add_argument("-t", dest="test", action="store_true", help="test every agent and exit")
    tests.add_argument("-T", dest="test_first", action="store_true", help="test every agent and go on")
    parser.add_argument("--allow-root", action="store_true", help="run although the user is root")
    parser.add_argument("-v", dest="verbose", action="count", default=0, help="say more; may be given again")


def _types(parser: ArgumentParser) -> None:
    parser.add_argument("types", nargs="*", metavar="TYPE", help="these types, enabled or not; default: all enabled")
    parser.add_argument("--allow-root", action="store_true", help="although the user is root, as agents are then too")


def _init(parser: ArgumentParser) -> None:
    parser.add_argument("--roles", action="store_true", help="create the roles and their grants too")


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", metavar="DIR", help="whose files; default: the Python library")
    parser.add_argument("--keep", action="store_true", help="keep the database, and say how to go on with it")
    parser.add_argument("--agents", type=positive, metavar="N", help="agents of each type")
    parser.add_argument("--limit", type=positive, metavar="N", help="at most so many files")


def _status(parser: ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", metavar="GROUP", help="default: that of the configuration")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _watch(parser)


def _submit(parser: ArgumentParser) -> None:
    parser.add_argument("type", metavar="TYPE", help="agent type, or command")
    parser.add_argument("args", nargs="*", metavar="ARGS", help="joined by blanks; - reads one job a line from stdin")
    parser.add_argument("--wait", nargs="?", type=seconds, metavar="SECONDS", help="wait for the end; --wait=9: 9 s")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line: of each job, with --wait of its end"
    )
    parser.add_argument("--force", action="store_true", help="queue it even if nobody serves the type")
    parser.add_argument("--sql", action="store_const", const=True, help="ARGS is a query: one work item a row")
    parser.add_argument("--runonpfile", metavar="COLUMN", help="like --sql; this column places each row on a host")
    parser.add_argument("--key", metavar="COLUMN", help="unique, ordered column: progress is checkpointed by it")
    parser.add_argument("--host", metavar="HOST", help="run on this host only")
    parser.add_argument("--queue", metavar="QUEUE", help="named queue")
    parser.add_argument("--urgent", action="store_const", const=True, help="before all that are not urgent")
    parser.add_argument("--priority", metavar="LETTERS", help="a before z; default n")
    parser.add_argument("--retries", type=integer, metavar="N", help="retries after failure; default 0")
    parser.add_argument("--name", metavar="TYPE.NONCE", help="unique name of the job")
    text = "remove this file after success; may be given again"
    parser.add_argument("--delete", action="append", metavar="FILE", help=text)


def _ls(parser: ArgumentParser) -> None:
    for flag, name, text in (("-s", "also", "too"), ("-S", "only", "only")):
        text = f"list jobs in this state {text}; may be given again"
        parser.add_argument(
            flag, dest=name, action="append", default=[], choices=JOB_STATES, metavar="STATE", help=text
        )
    parser.add_argument("-t", dest="types", action="append", metavar="TYPE", help="jobs of this type only")
    parser.add_argument("--all", action="store_true", help="jobs in every state, and of hidden groups")
    parser.add_argument("-n", dest="rows", type=count, default=1000, metavar="N", help="the newest N, 0 for all; 1000")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    _watch(parser)


def _log(parser: ArgumentParser) -> None:
    _job(parser, nargs="?")
    parser.add_argument("-n", dest="lines", type=count, metavar="LINES", help="the last LINES; 100 without a job")
    parser.add_argument("-f", dest="follow", action="store_true", help="go on with what is logged from now on")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _out(parser: ArgumentParser) -> None:
    _job(parser)
    parser.add_argument("-e", dest="errors", action="store_true", help="its error output instead")
    parser.add_argument("-t", dest="follow", action="store_true", help="go on with what is written from now on")
    parser.add_argument("--attempt", type=positive, metavar="K", help="of this attempt; default: the latest")


def _wait(parser: ArgumentParser) -> None:
    _jobs(parser, nargs="+")
    parser.add_argument("--timeout", type=seconds, default=inf, metavar="SECONDS", help="wait no longer than that")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with what the job wrote")


def _exit(parser: ArgumentParser) -> None:
    _job(parser)
    parser.add_argument("-q", dest="quiet", action="store_true", help="print nothing, exit with the status of the job")
    parser.add_argument("-w", dest="wait", action="store_true", help="wait until the job has ended")


def _setup(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="TYPE.NONCE", help="unique name of the job; its variables come on stdin")
    parser.add_argument("-p", dest="priority", metavar="LETTERS", help="a before z; default n")
    parser.add_argument("--force", action="store_true", help="set it up even if nobody serves the type")


def _jobs_only(parser: ArgumentParser) -> None:
    _jobs(parser, nargs="+")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: of each job")


def _signal(parser: ArgumentParser) -> None:
    text = "jobs, then the name or number of a signal; or JOB=SIGNAL, each its own"
    parser.add_argument("words", nargs="+", metavar="WORD", help=text)
    _answer(parser)


def _verb(verb: Verb) -> Callable[[ArgumentParser], None]:
    """Return what declares an option for each word of the verb's usage."""

    def declare(parser: ArgumentParser) -> None:
        for word in verb.usage.split():
            name, details = _option(word)
            parser.add_argument(name, **details)
        _answer(parser)

    return declare


def verb_options(verb: Verb) -> list[str]:
    """Return the names that the options of a verb have when they are parsed, one for each word of its usage."""
    return [_option(word)[0].lstrip("-") for word in verb.usage.split()]


def _option(word: str) -> tuple[str, dict[str, Any]]:
    """Return name and details of the option for a word of a usage."""
    metavar = word.strip("[].")
    return VERB_OPTIONS.get(word) or (metavar.lower(), {"nargs": "?" if word[0] == "[" else None, "metavar": metavar})


def _command(parser: ArgumentParser) -> None:
    parser.add_argument("args", nargs="+", metavar="WORD", help="a verb and what it is about")
    _answer(parser)


def _list_or_change(what: str) -> Callable[[ArgumentParser], None]:
    """Return what declares the actions that the registry has for queues, hosts or agent types."""
    actions = [verb.cli.removeprefix(f"{what} ") for verb in VERBS.values() if verb.cli.startswith(f"{what} ")]

    def declare(parser: ArgumentParser) -> None:
        parser.add_argument("action", nargs="?", default="list", choices=("list", *actions), help="default: list")
        parser.add_argument("words", nargs="*", metavar="WORD", help="a name, then what is to be")
        _answer(parser)

    return declare


def _jobs(parser: ArgumentParser, nargs: str) -> None:
    parser.add_argument("jobs", nargs=nargs, type=job_number_or_name, metavar="JOB", help="number or name of a job")


def _answer(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--wait", type=seconds, default=inf, metavar="SECONDS", help="--wait=9: for 9 s; else as long as it takes"
    )


def _completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash",), help="which shell")


def _watch(parser: ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="go on, and show it anew when something happens")


def _job(parser: ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("job", nargs=nargs, type=job_number_or_name, metavar="JOB", help="number or name of the job")


COMMANDS = {
    "run": Command("run.run", "be the scheduler daemon, in the foreground; or run jobs by hand", _run, needs="all"),
    "init": Command("admin.init", "create the schema in the database, or bring it up to date", _init),
    "check": Command("check.check", "look whether everything is there that a scheduler needs", _none, needs="all"),
    "agent-check": Command(
        "agent_check.check_agents", "start each agent on each host, and compare their programs", _types, needs="all"
    ),
    "demo": Command("demo.run_demo", "show it at work on real files, in a database of its own", _demo, needs="nothing"),
    "status": Command("status.show_status", "show schedulers, slots, jobs and queues", _status, needs="group"),
    "submit": Command("submit.submit_jobs", "queue a job, or many", _submit),
    "setup": Command("submit.set_up_job", "set a job up by name, held until it is released", _setup),
    "resubmit": Command("submit.resubmit_jobs", "queue a job that has ended once more, as a new one", _jobs_only),
    # `drover hold` and so on: each verb of the registry that is a command of its own.
    **{
        verb.cli: Command("admin.send_commands", verb.help, _signal if verb.name == "signal" else _verb(verb))
        for verb in VERBS.values()
        if verb.cli and " " not in verb.cli
    },
    "queue": Command("admin.list_or_change", "list queues, or change one", _list_or_change("queue")),
    "host": Command("admin.list_or_change", "list hosts, or change one", _list_or_change("host")),
    "agent": Command("admin.list_or_change", "list agent types; serve one, or not", _list_or_change("agent")),
    "command": Command("admin.send_commands", "tell the scheduler to do anything else", _command),
    "ls": Command("jobs.list_jobs", "list jobs", _ls),
    "log": Command("jobs.show_log", "show what was logged, of a job or of all", _log),
    "why": Command("jobs.show_reason", "say why a job is not running", _job),
    "out": Command("jobs.show_output", "print the output of a job", _out),
    "wait": Command("wait.wait_for_jobs", "wait until jobs have ended, and show how", _wait),
    "exit": Command("jobs.show_exit_status", "print the exit status of a job", _exit),
    "completion": Command(
        "admin.print_completion", "print a script that completes commands in a shell", _completion, needs="nothing"
    ),
    "version": Command("admin.print_version", "print the version", _none, needs="nothing"),
}


# Types of values: each reads a word. Errors: ArgumentTypeError, with what was wanted instead.


def count(text: str) -> int:
    """A number from 0."""
    return _between(text, 0)


def integer(text: str) -> int:
    """A number from 0 that a column of type integer can hold."""
    return _between(text, 0, LARGEST_INTEGER)


def positive(text: str) -> int:
    """A number from 1."""
    return _between(text, 1)


def job_number_or_name(text: str) -> int | str:
    """The number of a job, or its name."""
    if NAME.fullmatch(text):
        return text
    try:
        return positive(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"must be the number of a job, or its name, TYPE.NONCE (got {text!r})") from None


def seconds(text: str) -> float:
    """Seconds, with a fraction or without end."""
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if isnan(value) or value < 0:
        raise ArgumentTypeError(f"must be seconds (got {text!r})")
    return value


def _between(text: str, least: int, most: int = LARGEST) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        limit = "on" if most == LARGEST else f"to {most}"
        raise ArgumentTypeError(f"must be a number from {least} {limit} (got {text!r})")
    return int(text)


# What is written for a word of a verb's usage, where it is not just that word: several jobs are as many commands.
_SEVERAL_JOBS: Final[tuple[str, dict[str, Any]]] = (
    "jobs", {"nargs": "+", "type": job_number_or_name, "metavar": "JOB", "help": "number or name of a job"},
)  # fmt: skip
VERB_OPTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "JOB": _SEVERAL_JOBS,
    "JOB|NAME": _SEVERAL_JOBS,
    "JOB|CONDITION": (
        "words", {"nargs": "+", "metavar": "JOB|CONDITION", "help": "a job, or what jobs are blocked on"},
    ),
    "[TEXT...]": ("--reason", {"default": "", "metavar": "TEXT", "help": "what its row says; default: cancelled"}),
    "[QUEUE...]": ("queues", {"nargs": "*", "metavar": "QUEUE", "help": "these queues; default: every one"}),
    "DAYS": ("days", {"type": count, "metavar": "DAYS", "help": "what ended more than so many days ago"}),
    "[failed]": ("--failed", {"action": "store_const", "const": "failed", "help": "failed jobs too"}),
}  # fmt: skip
