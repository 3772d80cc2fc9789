"""Read a command line by the table of command_table.py; say what was perhaps meant by one that is wrong.

The original scheduler was called `fossology-scheduler [options] [Scheduler.conf]`, without a command: such a command
line is answered with what each of its options has become.
"""

import re
import sys
from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from os.path import basename, isfile
from shlex import quote
from typing import Final, NoReturn

from scheduler.cli.arguments import filters_are_given
from scheduler.cli.command_table import BY_FILTER, COMMANDS, EXAMPLES, NOTES
from scheduler.model.verbs import VERBS
from scheduler.package_data import version

COUNTS_FAILURES: Final = {"map": 255}  # commands whose exit status is a number of failures, and that for a mistake
NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|inf")
CHOICE: Final = re.compile(
    r"argument (?P<name>[^:]*): invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)"
)
UNKNOWN: Final = re.compile(r"unrecognized arguments: (?P<words>.*)")
OLD_OPTIONS: Final = {  # by the letter of the option, in the order in which they are printed
    "d": "-d (as a daemon): drover run, in the foreground; systemd or nohup puts it into the background",
    "i": "-i (initialise the database): drover init --roles",
    "k": "-k (end running schedulers): drover command shutdown, which finishes work in hand, or shutdown now",
    "l": "-l (open the log anew): drover command reopen-log",
    "L": "-L FILE (log into a file): log_file in the table [scheduler] of the configuration",
    "q": '-q (tell no states): log_level = "warning" in the table [scheduler] of the configuration',
    "I": "-I (jobs on standard input): drover run -I",
    "H": "-H (ignore hosts): drover run -H",
    "R": "-R (reset the queue): drover run -R; rows of dead schedulers go back to the queue without it too, but later",
    "t": "-t (test agents, then end): drover run -t",
    "T": "-T (test agents first): drover run -T",
    "v": "-v (say more): drover run -v, and -vv",
}
OLD_CONFIGURATION: Final = """\
{0} (the configuration): drover import-scheduler-conf {0} -o drover.toml, then drover -c drover.toml run"""
# Mistakes that argparse cannot find: the command, whether it is made, the message.
MISTAKES: Final[Sequence[tuple[str, Callable[[Namespace, Sequence[str]], bool], str]]] = (
    ("run", lambda options, words: not options.jobs and any(re.match("--(json|wait)", word) for word in words),
     "--json and --wait are for jobs that are run by hand: name the jobs"),
    ("run", lambda options, words: options.quits and options.read_stdin,
     "--quit-if-served would leave the lines of -I unread"),
    *((name, lambda options, words: bool(options.jobs) == filters_are_given(options),
       "name jobs, or choose them by --type, --queue, --host, --by, --group, --state or --since")
      for name in BY_FILTER),
    ("submit", lambda options, words: options.result and options.json,
     "--result prints JSON already: leave --json out"),
    ("why", lambda options, words: (options.job is None) != options.all, "name a job, or give --all"),
)  # fmt: skip


def parse(argv: Sequence[str]) -> Namespace:
    """Return `command`, -c as `config`, -d as `database` (None if not given), and the arguments of the command.

    `command` is None if there are no words behind these options.
    Errors: SystemExit(2) with a usage message on stderr; SystemExit(0) for --help.
    """
    words = ["version", *argv[1:]] if argv[:1] == ["--version"] else _with_end_of_options(list(argv))
    if instead := old_options_answer(words):
        _top_parser().error(instead)
    end = words.index("--") if "--" in words else len(words)
    top = _top_parser().parse_args(words[:end])
    command, rest = top.command, top.rest
    if command is None:
        return Namespace(command=None, config=top.config, database=top.database)
    if rest and f"{command} {rest[0]}" in COMMANDS:  # a command of two words
        command, rest = f"{command} {rest[0]}", rest[1:]
    own = Namespace(command=command, config=top.config, database=top.database)
    parser = command_parser(command)
    for word, behind in pairwise(rest):
        if word == "--wait" and NUMBER.fullmatch(behind):
            parser.error(f"--wait {behind}: seconds are written --wait={behind}; any other word comes before --wait")
    # argparse would take the word after `--wait` for its optional seconds
    before = ["--wait=inf" if word == "--wait" else word for word in rest]
    options = parser.parse_intermixed_args(before, own)
    for name, is_wrong, mistake in MISTAKES:
        if name == command and is_wrong(options, before):
            parser.error(mistake)
    if behind := words[end + 1 :]:  # argparse loses words behind -- if options may be in any place
        if not hasattr(options, "args"):
            parser.error(f"no words are expected after -- (got {' '.join(behind)})")
        options.args += behind
    return options


def _with_end_of_options(words: list[str]) -> list[str]:
    """Return the words with a `--` before the command of `drover map`: options behind it are of that command."""
    if words[:1] != ["map"]:
        return words
    takes_value = {
        option for action in command_parser("map")._actions if action.nargs is None for option in action.option_strings
    }
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "--"):
        is_number = words[place] == "--resume" and words[place + 1 : place + 2] and words[place + 1].isdecimal()
        place += 2 if words[place] in takes_value or is_number else 1
    return words if words[place : place + 1] in ([], ["--"]) else [*words[:place], "--", *words[place:]]


def _top_parser() -> ArgumentParser:
    """Return the parser of the words before the command; all words behind it are `rest`."""
    parser = Parser(
        prog="drover",
        usage="drover [-h] [-c FILE] [-d URL] [COMMAND ...]",
        description="The super-agent: drives a queue in Postgres through warm agents.",
        epilog="commands:\n" + "".join(f"  {name:10}  {command.help}\n" for name, command in COMMANDS.items()),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("-c", dest="config", metavar="FILE", help="configuration file")
    parser.add_argument("-d", dest="database", metavar="URL", help="database, as in DROVER_DATABASE_URL")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("rest", nargs=REMAINDER, help=SUPPRESS)
    return parser


def command_parser(name: str) -> ArgumentParser:
    """Return the parser of one command; -c and -d may be given here too, and win."""
    command = COMMANDS[name]
    examples = "examples:\n" + "".join(f"  {line}\n" for line in EXAMPLES.get(name, ()))
    examples = f"{NOTES[name]}\n{examples}" if name in NOTES else examples
    parser = Parser(
        prog=f"drover {name}", description=command.help, epilog=_actions(name) + examples,
        formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    if command.needs != "nothing":
        parser.add_argument("-c", dest="config", metavar="FILE", default=SUPPRESS, help="configuration file")
        parser.add_argument("-d", dest="database", metavar="URL", default=SUPPRESS, help="database")
    parser.status = COUNTS_FAILURES.get(name, parser.status)
    for declare in command.arguments:
        declare(parser)
    return parser


def _actions(name: str) -> str:
    """Return a line for each verb that is an action of this command, with the words that follow it."""
    actions = {verb.cli.removeprefix(f"{name} "): verb for verb in VERBS.values() if verb.cli.startswith(f"{name} ")}
    lines = [f"  {action} {verb.usage}\n      {verb.help}\n" for action, verb in actions.items()]
    return "actions:\n" + "".join(lines) + "\n" if lines else ""


# ---- what was perhaps meant


class Parser(ArgumentParser):
    """An ArgumentParser whose errors suggest words that are similar to an unknown one."""

    status = 2  # of a wrong command line

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what was perhaps meant, and exit with 2, or the status of the command for that."""
        self.print_usage(sys.stderr)
        self.exit(self.status, f"{self.prog}: error: {self._helpful(message)}\n")

    def _helpful(self, message: str) -> str:
        if found := CHOICE.fullmatch(message):
            choices = [each.strip(" '") for each in found["choices"].split(",")]
            near = suggestion(found["word"], choices)
            if found["name"] == "COMMAND":
                return f"no command {found['word']!r}{near or ';'} drover --help lists all"
            return f"{message}{near}"
        if found := UNKNOWN.fullmatch(message):
            word = found["words"].split()[0].partition("=")[0]
            return f"{message}{suggestion(word, self._option_string_actions) if word.startswith('--') else ''}"
        return message


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X or Y?` if known words are near to this one, else nothing."""
    from difflib import get_close_matches  # rarely needed

    near = get_close_matches(word, list(known), n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


# ---- the command line of the original scheduler


def old_configuration_hint(path: str | None) -> str:
    """Return what to do with a file given as our configuration that has the name of theirs; empty for any other."""
    return OLD_CONFIGURATION.format(quote(path)) if path and basename(path) == "Scheduler.conf" else ""


def old_options_answer(words: Sequence[str]) -> str:
    """Return what to do instead of such a command line, a line for each option; empty if it is none."""
    letters, path = _read_old_options(words)
    lines = [text for letter, text in OLD_OPTIONS.items() if letter in letters]
    if isfile(path) or old_configuration_hint(path):
        lines.append(OLD_CONFIGURATION.format(quote(path)))
    if not lines:
        return ""
    title = "this is how the original scheduler was called; MOVING FROM THE ORIGINAL SCHEDULER in drover(8) says more"
    return "\n  ".join((title, *lines))


def _read_old_options(words: Sequence[str]) -> tuple[set[str], str]:
    """Return the letters of old options, and the word in the place of the command; neither if that is a command."""
    letters: set[str] = set()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in COMMANDS or word.startswith("--"):
            return set(), ""
        if not word.startswith("-"):
            return letters, word
        if word == "-c" or (word == "-d" and _is_database(rest)):
            rest[:1] = []
            continue
        cluster, has_log, log = word[1:].partition("L")
        if not set(cluster) <= OLD_OPTIONS.keys():
            return set(), ""
        letters.update(cluster, has_log)
        if has_log and not log:
            rest[:1] = []
    return letters, ""


def _is_database(rest: Sequence[str]) -> bool:
    """Return whether the word behind a -d is our URL: no file has that name, or a command follows."""
    if not rest or rest[0].startswith("-"):
        return False
    return not isfile(rest[0]) or any(word in COMMANDS for word in rest)


# ---- commands about the command line itself; those of other modules import the database first

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
