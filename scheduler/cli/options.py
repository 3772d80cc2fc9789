"""Every command and every option, as argparse declares them; drover(1) and drover(8) describe the same.

Decides what may be written on a command line. Refuses to know what a command does: it lives in the module of its
name in this package. Imports nothing slow, so that a usage message comes at once.
"""

from argparse import REMAINDER, SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan

from scheduler.model.states import JOB_STATES

LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Command:
    """One line of help, what declares the options, and whether a configuration is loaded for it."""

    help: str
    declare: Callable[[ArgumentParser], None]
    configured: bool = True


def parse(argv: Sequence[str]) -> Namespace:
    """The command as `command`, the file of -c as `config` (None if not given), then the command's own options.

    Errors: SystemExit(2) with a usage message on stderr; SystemExit(0) for --help.
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    top = top_parser().parse_args(words[:end])
    own = Namespace(command=top.command, config=top.config)
    parser = command_parser(top.command)
    return _with_rest(parser, parser.parse_intermixed_args(_explicit(top.rest), own), words[end + 1 :])


def top_parser() -> ArgumentParser:
    """What comes before the command; the rest belongs to the command, options in any place."""
    parser = ArgumentParser(
        prog="drover",
        usage="drover [-h] [-c FILE] COMMAND ...",
        description="The super-agent: drives a queue in Postgres through warm agents.",
        epilog="commands:\n" + "".join(f"  {name:8}  {command.help}\n" for name, command in COMMANDS.items()),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-c", dest="config", metavar="FILE", help="configuration file")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("rest", nargs=REMAINDER, help=SUPPRESS)
    return parser


def command_parser(name: str) -> ArgumentParser:
    """The options of one command; -c may be given here too, and wins."""
    command = COMMANDS[name]
    parser = ArgumentParser(prog=f"drover {name}", description=command.help, allow_abbrev=False)
    if command.configured:
        parser.add_argument("-c", dest="config", metavar="FILE", default=SUPPRESS, help="configuration file")
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
    parser.add_argument("-I", dest="read_stdin", action="store_true", help="also read `type | args` lines from stdin")
    parser.add_argument("-H", dest="ignore_hosts", action="store_true", help="ignore hosts: run everything here")
    parser.add_argument("-R", dest="rescue", action="store_true", help="give abandoned rows back before READY")
    tests = parser.add_mutually_exclusive_group()
    tests.add_argument("-t", dest="test", action="store_true", help="test every agent and exit")
    tests.add_argument("-T", dest="test_first", action="store_true", help="test every agent and go on")
    parser.add_argument("--allow-root", action="store_true", help="run although the user is root")
    parser.add_argument("-v", dest="verbose", action="count", default=0, help="say more; may be given again")


def _init(parser: ArgumentParser) -> None:
    parser.add_argument("--roles", action="store_true", help="create the roles and their grants too")


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", metavar="DIR", help="whose files; default: the Python library")
    parser.add_argument("--keep", action="store_true", help="keep the database, and say how to go on with it")
    parser.add_argument("--agents", type=_positive, metavar="N", help="agents of each type")
    parser.add_argument("--limit", type=_positive, metavar="N", help="at most so many files")


def _status(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _submit(parser: ArgumentParser) -> None:
    parser.add_argument("type", metavar="TYPE", help="agent type, or command")
    parser.add_argument("args", nargs="*", metavar="ARGS", help="joined by blanks; - reads one job a line from stdin")
    parser.add_argument("--wait", nargs="?", type=_seconds, metavar="SECONDS", help="wait for the end; --wait=9: 9 s")
    parser.add_argument("--force", action="store_true", help="queue it even if nobody serves the type")
    parser.add_argument("--sql", action="store_const", const=True, help="ARGS is a query: one work item a row")
    parser.add_argument("--runonpfile", metavar="COLUMN", help="like --sql; this column places each row on a host")
    parser.add_argument("--key", metavar="COLUMN", help="unique, ordered column: progress is checkpointed by it")
    parser.add_argument("--host", metavar="HOST", help="run on this host only")
    parser.add_argument("--queue", metavar="QUEUE", help="named queue")
    parser.add_argument("--urgent", action="store_const", const=True, help="before all that are not urgent")
    parser.add_argument("--priority", metavar="LETTERS", help="a before z; default n")
    parser.add_argument("--retries", type=_count, metavar="N", help="retries after failure; default 0")
    parser.add_argument("--name", metavar="TYPE.NONCE", help="unique name of the job")


def _ls(parser: ArgumentParser) -> None:
    for flag, name, text in (("-s", "also", "too"), ("-S", "only", "only")):
        text = f"list jobs in this state {text}; may be given again"
        parser.add_argument(
            flag, dest=name, action="append", default=[], choices=JOB_STATES, metavar="STATE", help=text
        )
    parser.add_argument("-t", dest="types", action="append", metavar="TYPE", help="jobs of this type only")
    parser.add_argument("--all", action="store_true", help="jobs in every state")
    parser.add_argument("-n", dest="rows", type=_count, default=1000, metavar="N", help="the newest N, 0 for all; 1000")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _log(parser: ArgumentParser) -> None:
    _job(parser, nargs="?")
    parser.add_argument("-n", dest="lines", type=_count, metavar="LINES", help="the last LINES; 100 without a job")
    parser.add_argument("-f", dest="follow", action="store_true", help="go on with what is logged from now on")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _out(parser: ArgumentParser) -> None:
    _job(parser)
    parser.add_argument("-e", dest="errors", action="store_true", help="its error output instead")


def _job(parser: ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("job", nargs=nargs, type=_positive, metavar="N", help="jq_pk of the job")


COMMANDS = {
    "run": Command("be the scheduler daemon, in the foreground", _run),
    "init": Command("create the schema in the database, or bring it up to date", _init),
    "check": Command("look whether everything is there that a scheduler needs", _none),
    "demo": Command("show it at work on real files, in a database of its own", _demo, configured=False),
    "status": Command("show schedulers, slots, jobs and queues", _status),
    "submit": Command("queue a job, or many", _submit),
    "ls": Command("list jobs", _ls),
    "log": Command("show what was logged, of a job or of all", _log),
    "why": Command("say why a job is not running", _job),
    "out": Command("print the output of a job", _out),
    "version": Command("print the version", _none, configured=False),
}


# Kinds of values.


def _count(text: str) -> int:
    return _between(text, 0)


def _positive(text: str) -> int:
    return _between(text, 1)


def _between(text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= LARGEST:
        raise ArgumentTypeError(f"must be a number from {least} on (got {text!r})")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -inf
    if isnan(seconds) or seconds < 0:
        raise ArgumentTypeError(f"must be seconds (got {text!r})")
    return seconds
