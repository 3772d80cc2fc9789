"""Turn the Scheduler.conf and Hosts.conf of the original scheduler into TOML and SQL: `drover import-scheduler-conf`.

A Scheduler.conf has lines `%Host NAME [MAX [URGENT]]`, `%Verbose N` and `agent=NAME [ATTRIBUTE...] [host=NAME] |
COMMAND`; N equal agent lines are N processes on one host. A Hosts.conf has lines `HOST [TYPE] FROM TO`: the files whose
names begin with hexadecimal digits from FROM to TO are on that host. Both may have blank lines, and comments that begin
with # or ;.

What differs here: a type has one command, one number of slots for all of its hosts, and one set of attributes, so that
lines of one agent with other attributes are another type; no shell runs a command; ranges are compared byte by byte, as
whole values.
"""

import json
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scheduler.cli.output import printable, warn
from scheduler.errors import ConfigError
from scheduler.model.config import LARGEST
from scheduler.model.config_rules import agent_name_mistake
from scheduler.model.host_filters import NAME, NAME_RULE

LARGEST_FILE: Final = 16_777_216  # bytes of one file
MODE: Final = 0o644  # a configuration that others may write to is refused
EXISTS: Final = "{}: exists already; --force replaces it"
NEW, REPLACED = os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_CREAT | os.O_TRUNC

LONGEST_LINE: Final = 65_536  # bytes; the kernel takes twice that as one argument
LONGEST_NAME: Final = 64  # of a type, as NAME has it
FIRST_HOST: Final = "localhost"  # where a file without %Host lines has its agents
REPOSITORY_TYPES: Final = ("*", "files")  # the original asked for the host of a row in the ranges of these
NO_LIMIT: Final = -1
HEXADECIMAL: Final = re.compile(r"[0-9a-f]{1,64}")
DIGITS: Final = "0123456789abcdef"
FIRST_LETTER: Final = DIGITS.index("a")
BEHIND_ALL: Final = "~"  # sorts behind every character that the name of a file had in the original
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # all but tab
ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
SHELL_TOKEN: Final = re.compile(
    r"""\\. | '[^']*' | "(?P<double>(?:\\.|[^"\\])*)" | (?P<operator>[$`|;&<>()])""", re.VERBOSE
)
DEFAULTS: Final = ("", "-1", "1")  # of a %Host line
BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
ATTRIBUTE: Final = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)=({NAME.pattern})")
HEADER = """\
# Written by drover import-scheduler-conf; drover.toml(5) describes every key, and MOVING FROM THE ORIGINAL SCHEDULER in
# drover(8) what is different. The database is Drover's own unless a table [database] names another.
#
# Agents get what the original sent them: escape and nulls keep the form of its lines, and window = 1 sends a line when
# the one before is done. Without window, agents of short items get lines ahead, which is faster; see drover-agent(7).
# Where agents print Heartbeat, heartbeat = 180 kills those that are silent for as long as the original waited.
"""
AS_BEFORE = 'escape = "shell"\nnulls = "empty"\nwindow = 1\n'
BY_SSH = """\
# Its agents are started by ssh. Drover can hold the connections itself, with commands without ssh: HOSTS in drover(8).
#transport = "ssh"
#address = {}
"""
SQL_HEADER = """\
-- Which host a value of the jq_runonpfile column belongs to: run this once, as a drover_operator. Of the rules that
-- fit a value the oldest counts, so remove earlier ones first if they are to be replaced. In upper case and lower case.
"""
INSERT = "insert into drover.placement (placement_from, placement_to, placement_host) values ('{}', '{}', '{}');\n"

Place = tuple[int, int]  # number of the file, line
Kind = tuple[str, tuple[str, ...]]  # the agent of a line and its attributes, as KEY=VALUE
Argv = tuple[str, ...]


class Imported(NamedTuple):
    """The configuration, or "" if it would have no agent; the placements, or ""; problems as `file:line: reason`."""

    toml: str
    sql: str
    problems: list[str]


class Host(NamedTuple):
    """A %Host line."""

    place: Place
    max: int = NO_LIMIT
    urgent: int = 1


class AgentLine(NamedTuple):
    """An agent line; its host is "" if it names none."""

    place: Place
    host: str
    command: Argv


class Range(NamedTuple):
    """A line of a Hosts.conf, with its text."""

    place: Place
    host: str
    first: str
    last: str
    text: str


@dataclass(slots=True)
class Old:
    """The hosts, agents and ranges read from the lines so far, and the problems found in them."""

    hosts: dict[str, Host] = field(default_factory=dict)
    agents: dict[Kind, list[AgentLine]] = field(default_factory=dict)
    ranges: list[Range] = field(default_factory=list)
    verbose: int = 0
    problems: list[tuple[Place, str]] = field(default_factory=list)

    def note(self, place: Place, problem: str) -> None:
        """Add a problem."""
        self.problems.append((place, problem))

    def raise_verbose(self, level: int) -> None:
        """Note that a line asks for a level: the greatest counts."""
        self.verbose = max(self.verbose, level)


class Agent(NamedTuple):
    """A type of agent: the command on each of its hosts, the slots on every one, and its attributes."""

    commands: dict[str, Argv]
    slots: int
    attributes: dict[str, str]


def convert(files: Sequence[tuple[str, bytes]]) -> Imported:
    """Return the configuration and the placements for (file name, content) pairs, which count as one file."""
    old = Old()
    for file, (_, content) in enumerate(files):
        for number, line in enumerate(content.split(b"\n"), 1):
            try:
                _read_line(old, (file, number), line)
            except ValueError as reason:
                old.note((file, number), str(reason))
    ranges = _known_ranges(old)
    hosts = old.hosts or {FIRST_HOST: Host((0, 1))}
    names = _names(old.agents)
    agents = {names[kind]: agent for kind, lines in old.agents.items() if (agent := _agent(old, hosts, kind, lines))}
    for name, agent in agents.items():
        if agent.attributes.get("agent") == name:
            del agent.attributes["agent"]  # as it is without
    toml = "".join(_toml(old.verbose, hosts, agents)) if agents else ""
    sql = "".join(_sql(ranges))
    return Imported(toml, sql, [f"{files[file][0]}:{line}: {text}" for (file, line), text in sorted(old.problems)])


def _read_line(old: Old, place: Place, line: bytes) -> None:
    text = _text(line)
    words = text.split()
    if not words:
        return
    if read := DIRECTIVES.get(words[0]):
        read(old, place, words[1:])
    elif words[0].startswith("%"):
        raise ValueError(f"unknown directive {_shown(words[0])}; there are {' and '.join(DIRECTIVES)}")
    elif "|" in text:
        _read_agent(old, place, text)
    elif any(word.startswith("agent=") for word in words):
        raise ValueError("has no command: agent=NAME | COMMAND")
    elif len(words) in (3, 4):
        _read_range(old, place, words)
    else:
        raise ValueError("is neither %Host, %Verbose nor agent=NAME | COMMAND, nor a range HOST TYPE FROM TO")


def _text(line: bytes) -> str:
    """Return what a line says; empty if it is a comment, in whatever encoding."""
    line = line.strip()
    if line.startswith((b"#", b";")):
        return ""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"is longer than {LONGEST_LINE} bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (got byte {line[error.start]:#x})") from None
    if found := CONTROL.search(text):
        raise ValueError(f"holds a control character (got {ord(found[0]):#x})")
    return text


def _read_host(old: Old, place: Place, words: list[str]) -> None:
    name, most, urgent = (*words, *DEFAULTS[len(words) :])[:3]
    if not NAME.fullmatch(name):
        raise ValueError(f"%Host {_shown(name)}: {NAME_RULE}")
    host = Host(place, _number("max", most), _number("urgent", urgent))
    if not NO_LIMIT <= host.max <= LARGEST or not 0 <= host.urgent <= LARGEST:
        raise ValueError(f"max must be -1 (no limit) or more, urgent 0 or more (got {most} and {urgent})")
    if others := words[3:]:
        old.note(place, f"what follows the numbers is left out: {_shown(' '.join(others))}")
    if host.max == 0:
        old.note(place, f"host {name} is written with enabled = false: with max 0 it can run nothing, urgent or not")
    before = old.hosts.get(name)
    if before and before[1:] != host[1:]:
        old.note(before.place, f"host {name} is declared again in line {place[1]}, which counts")
    old.hosts[name] = host


def _read_verbose(old: Old, _place: Place, words: list[str]) -> None:
    old.raise_verbose(_number("%Verbose", " ".join(words)))


DIRECTIVES: Final[dict[str, Callable[[Old, Place, list[str]], None]]] = {"%Host": _read_host, "%Verbose": _read_verbose}


def _read_agent(old: Old, place: Place, text: str) -> None:
    attributes, _, command = text.partition("|")
    words = attributes.split()
    names = _values("agent=", words)
    hosts = _values("host=", words)
    if len(names) != 1 or len(hosts) > 1:
        raise ValueError("must have agent=NAME once before the |, and host=NAME at most once")
    name = names[0]
    if mistake := agent_name_mistake(name) if NAME.fullmatch(name) else NAME_RULE:
        raise ValueError(f"agent {_shown(name)}: {mistake}")
    argv = _argv(name, command.strip())
    others = [word for word in words if not word.startswith(("agent=", "host="))]
    given = sorted(word for word in others if ATTRIBUTE.fullmatch(word))
    if wrong := [word for word in others if word not in given]:
        old.note(place, f"agent {name} is written without {_shown(' '.join(wrong))}: attributes are KEY=VALUE")
    old.agents.setdefault((name, tuple(given)), []).append(AgentLine(place, hosts[0] if hosts else "", argv))


def _argv(name: str, command: str) -> Argv:
    """Return the words of a command, or a shell with it if it uses more of the shell than quotes."""
    if not command:
        raise ValueError(f"agent {name} has no command behind the |")
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        raise ValueError(f"agent {name}: a quote of the command has no end") from None
    return ("sh", "-c", command) if _needs_shell(command) else words


def _needs_shell(command: str) -> bool:
    """Return whether a command has what a shell expands or acts on, outside quotes that keep it from that."""
    active = (token["operator"] or set("$`") & set(token["double"] or "") for token in SHELL_TOKEN.finditer(command))
    return bool(ASSIGNMENT.match(command)) or any(active)


def _read_range(old: Old, place: Place, words: list[str]) -> None:
    host, first, last = words[0], words[-2].lower(), words[-1].lower()
    if len(words) == 4 and words[1] not in REPOSITORY_TYPES:
        raise ValueError(f"type {_shown(words[1])}: the original placed jobs by the ranges of files and * alone")
    if not HEXADECIMAL.fullmatch(first) or not HEXADECIMAL.fullmatch(last):
        raise ValueError(f"a range is two series of hexadecimal digits (got {_shown(' '.join(words[-2:]))})")
    length = max(len(first), len(last))
    if first.ljust(length, "0") > last.ljust(length, "f"):
        raise ValueError(f"the range ends before it begins (got {first} {last})")
    old.ranges.append(Range(place, host, first.ljust(length, "0"), last.ljust(length, "f"), " ".join(words)))


def _values(key: str, words: Iterable[str]) -> list[str]:
    return [word.removeprefix(key) for word in words if word.startswith(key)]


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text):
        raise ValueError(f"{name} must be a number (got {_shown(text)})")
    return int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _known_ranges(old: Old) -> list[Range]:
    """Return the ranges but those of hosts that no line declares."""
    for each in old.ranges:
        if each.host not in old.hosts:
            text = f"no %Host line declares {_shown(each.host)}; give Scheduler.conf and Hosts.conf together"
            old.note(each.place, text)
    return [each for each in old.ranges if each.host in old.hosts]


def _names(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """Return the name of each type: of those of one agent the first has its name, one without attributes before all."""
    names: dict[Kind, str] = {}
    plain = {agent for agent, _ in kinds}
    for kind in sorted(kinds, key=lambda each: bool(each[1])):
        agent, attributes = kind
        name = agent
        if agent in names.values():
            values = "-".join(each.partition("=")[2] for each in attributes)
            name = f"{agent}-{values.replace('.', '_')}"[:LONGEST_NAME]
        while name in names.values() or (name != agent and name in plain):
            name = f"{name[: LONGEST_NAME - 1]}x"
        names[kind] = name
    return names


def _agent(old: Old, hosts: dict[str, Host], kind: Kind, lines: list[AgentLine]) -> Agent | None:
    """Return the type that lines of one agent make, or None if none of them can be carried over."""
    name, attributes = kind
    first: dict[str, AgentLine] = {}
    counts: dict[str, int] = {}
    for line in lines:
        host = line.host or next(iter(hosts))  # the original's default
        if host not in hosts:
            old.note(line.place, f"agent {name}: no %Host line that was carried over declares {_shown(host)}")
        elif line.command != first.setdefault(host, line).command:
            old.note(
                line.place,
                f"agent {name} has another command in line {first[host].place[1]}, which is written: a type has one "
                f"command on a host; give this one another agent name",
            )
        else:
            counts[host] = counts.get(host, 0) + 1
    if not first:
        return None
    slots = max(counts.values())
    for host, count in counts.items():
        most = hosts[host].max
        if count < (min(slots, most) if most > 0 else slots):
            text = f"agent {name} gets {slots} slots on host {host} too, not {count}: slots is the same on each host"
            old.note(first[host].place, text)
    described = {"agent": name} | dict(each.split("=", 1) for each in attributes) if attributes else {}
    return Agent({host: line.command for host, line in first.items()}, slots, described)


def _toml(verbose: int, hosts: dict[str, Host], agents: dict[str, Agent]) -> Iterator[str]:
    yield HEADER
    if verbose:
        yield f'\n[scheduler]\nlog_level = "{"debug" if verbose == 1 else "trace"}"\n'
    for name, host in hosts.items():
        yield f"\n[hosts.{_key(name)}]\n"
        yield f"max = {host.max}\n" if host.max else "enabled = false\n"
        yield f"urgent = {host.urgent}\n"
        commands = [agent.commands[name] for agent in agents.values() if name in agent.commands]
        if commands and all(map(_is_ssh, commands)):
            yield BY_SSH.format(_quoted(name))
    for name, agent in agents.items():
        yield f"\n[agents.{_key(name)}]\n"
        yield f"command = {_command(agent.commands)}\n"
        if len(hosts) > 1:
            yield f"hosts = {_array(agent.commands)}\n"
        if agent.attributes:
            pairs = ", ".join(f"{key} = {_quoted(value)}" for key, value in agent.attributes.items())
            yield f"attributes = {{ {pairs} }}\n"
        yield f"slots = {agent.slots}\n" + AS_BEFORE


def _command(commands: dict[str, Argv]) -> str:
    """Return the command of a type as TOML; where it differs among its hosts, a shell that chooses by DROVER_HOST."""
    if len(set(commands.values())) == 1:
        return _array(next(iter(commands.values())))
    cases = "".join(f"{host}) exec {shlex.join(argv)} ;;\n" for host, argv in commands.items())
    script = "".join(_quoted(line)[1:-1] + "\n" for line in f"case $DROVER_HOST in\n{cases}esac".split("\n"))
    return f'["sh", "-c", """\n{script}"""]'


def _is_ssh(argv: Argv) -> bool:
    return argv[0].rpartition("/")[2] == "ssh"


def _array(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, whose escapes are those of JSON; it has no control character but tab."""
    return json.dumps(text, ensure_ascii=False)


def _sql(ranges: Sequence[Range]) -> Iterator[str]:
    """Yield the placements of ranges; the first that fits a value counted, and so does the oldest row."""
    if not ranges:
        return
    yield SQL_HEADER + "begin;\n"
    for each in ranges:
        yield f"-- {each.text}\n"
        for first, last in _rules(each.first, each.last):
            yield INSERT.format(first, last + BEHIND_ALL, each.host)
    yield "commit;\n"


def _rules(first: str, last: str) -> Iterator[tuple[str, str]]:
    """Yield a range as pairs (first, what the last begin with) whose values are all in it, in upper or lower case.

    The order of bytes is digits, upper case, lower case: one pair from 2B to 54 would take in 2a, of another range.
    """
    for prefix, low, high in _blocks(first, last):
        for start, end in ((low, min(high, FIRST_LETTER - 1)), (max(low, FIRST_LETTER), high)):
            if start <= end:
                pair = prefix + DIGITS[start], prefix + DIGITS[end]
                yield from dict.fromkeys((pair, (pair[0].upper(), pair[1].upper())))


def _blocks(first: str, last: str, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield (prefix, x, y), in order: all that begins with the prefix and then a digit from x to y is in the range.

    Both ends have the same number of digits: 2b to 54 is 2 b..f, then 3..4, then 5 0..4.
    """
    low, high = DIGITS.index(first[0]), DIGITS.index(last[0])
    head, tail = first[1:], last[1:]
    if low == high and (head.strip("0") or tail.strip("f")):
        yield from _blocks(head, tail, prefix + first[0])
        return
    if head.strip("0"):
        yield from _blocks(head, "f" * len(head), prefix + first[0])
        low += 1
    is_partial = bool(tail.strip("f"))
    if low <= high - is_partial:
        yield prefix, low, high - is_partial
    if is_partial:
        yield from _blocks("0" * len(tail), tail, prefix + last[0])


# ---- drover import-scheduler-conf


def convert_files(options: Namespace, _config: object) -> int:
    """Write the configuration, and the placements as SQL; return 1 if a line could not be carried over.

    Errors: ConfigError if a file cannot be read or written, or if no agent is left.
    """
    _refuse_to_replace(options)
    found = convert([(path, _content(path)) for path in options.files])
    for problem in found.problems:
        print(printable(problem), file=sys.stderr)
    if not found.toml:
        raise ConfigError(f"{', '.join(options.files)}: no agent line can be carried over; nothing is written")
    _write(options, found)
    return 1 if found.problems else 0


def _refuse_to_replace(options: Namespace) -> None:
    """Raise ConfigError for a file that exists, before any is written."""
    for path in (options.output, options.placements):
        if path and not options.force and os.path.lexists(path):
            raise ConfigError(EXISTS.format(path))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_FILE or b"\0" in content:
        raise ConfigError(f"{path}: cannot be read: is not a text of at most {LARGEST_FILE} bytes")
    return content


def _write(options: Namespace, found: Imported) -> None:
    """Write the SQL into its file, or as comments behind the configuration, and that into its file or on stdout."""
    toml, flags = found.toml, REPLACED if options.force else NEW
    if found.sql and options.placements:
        _save(options.placements, found.sql, flags)
        warn(f"{options.placements}: run it once, with psql -f, as a drover_operator")
    elif options.placements:
        warn(f"{options.placements}: not written: there is no range that can be carried over")
    elif found.sql:
        toml += "\n" + "".join(f"# {line}\n" for line in found.sql.splitlines())
    if options.output:
        _save(options.output, toml, flags)
    else:
        sys.stdout.buffer.write(toml.encode())  # TOML is UTF-8, whatever the terminal is


def _save(path: str, text: str, flags: int) -> None:
    try:
        descriptor = os.open(path, flags, MODE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(EXISTS.format(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
