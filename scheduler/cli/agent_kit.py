"""`drover agent new`, `drover agent run` and `drover agent-check PROGRAM`: for authors of agents.

None of them needs a daemon or a database. The referee's checks are in protocol_check.py, the skeletons in agents/lib.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.cli.agent_process import (
    AgentProcess,
    Talk,
    config_of,
    is_bundled,
    process_spec,
    status_in_words,
    talk,
    type_name,
)
from scheduler.cli.config_files import locate, shipped
from scheduler.cli.output import FAIL, OK, WARN, Finding, failed, print_findings, printable, warn
from scheduler.cli.protocol_check import Limits, Referee
from scheduler.drivers.os_calls import let_others_open, reset_signals
from scheduler.errors import AgentError, ConfigError
from scheduler.model import protocol
from scheduler.model.config import AgentType, Config
from scheduler.package_data import agent_module, agents_dir

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
IN_SKELETONS: Final = "drover-agent-NAME"
BLOCKED: Final = 75  # EX_TEMPFAIL, of a command
DEATH_S: Final = 1.0


class Language(NamedTuple):
    """The skeleton of a language, the suffix of its source, its helper library, and the command that builds it."""

    skeleton: str
    suffix: str = ""  # of a source that has to be compiled
    library: str = ""
    build: str = ""


LANGUAGES: Final = {  # those of options.LANGUAGES
    "python": Language("agent.py", library="drover_agent.py"),
    "bash": Language("agent.bash", library="drover_agent.sh"),
    "c": Language("agent.c", ".c", build="cc -O2 -Wall -o {program} {program}.c"),
    "node": Language("agent.js"),
    "perl": Language("agent.pl"),
}


# ---- drover agent-check PROGRAM


def is_program(word: str, config: Config) -> bool:
    """Return whether a word names a program and no agent type: a path, or a bundled agent."""
    return word not in config.agents and ("/" in word or is_bundled(word))


def check_program(options: Namespace) -> int:
    """Print what the referee finds about a program, then what comes next; 1 if something must be mended."""
    command = [_absolute(options.args[0]), *options.args[1:]]
    name = type_name(command[0])
    spec = process_spec(config_of(name, command), name)
    limits = Limits(start=options.timeout, ok=options.timeout)
    items = [_line(text, f"{options.command}: --item") for text in options.items]
    counts = {OK: 0, WARN: 0, FAIL: 0}

    def counted(finding: Finding) -> Finding:
        counts[finding[0]] += 1
        return finding

    referee = Referee(spec, items, limits, warn)
    status = print_findings(map(counted, referee.findings()))
    print(f"{counts[OK]} ok, {counts[WARN]} to look at (WARN), {counts[FAIL]} to mend (FAIL)")
    if not counts[FAIL]:
        print(f"\n{_next_steps(name, command, options.items, referee.statements)}")
    return status


def _next_steps(name: str, command: Sequence[str], items: Sequence[str], statements: Sequence[bytes]) -> str:
    """Return what puts a program to work, as commands and the lines of a file."""
    main = locate(None, os.environ)
    table = f"[agents.{name}]\ncommand = {_toml(command)}{_database_keys(name, statements)}"
    if main == shipped():
        folder = Path(os.environ.get("HOME") or "~", ".config/drover")
        steps = f"mkdir -p {folder}/conf.d && cp {main} {folder}/"
    else:
        folder, steps = main.parent, f"mkdir -p {main.parent}/conf.d"
    return (
        f"umask 022; {steps}\n"
        f"cat > {folder}/conf.d/{name}.toml <<'END'\n{table}\nEND\n"
        "drover command reload    # or, if no daemon runs: drover run\n"
        f"drover submit {name} --wait -- {shlex.quote(items[0] if items else '/etc/hosts')}"
    )


def _database_keys(name: str, statements: Sequence[bytes]) -> str:
    """Return what the table of a type has for its DB lines: db, and a beginning of each statement that was named."""
    found = [each for each in map(protocol.parse_statement, statements) if each is not None]
    if not statements:
        return ""
    if len(found) < len(statements):
        return '\ndb = "sql"'
    keys = {statement: _keys(values) for statement, values in reversed(found)}
    lines = [f"{statement} = {_toml(_beginning(keys[statement]))}" for statement in dict.fromkeys(n for n, _ in found)]
    note = "# write your own statements; the role drover_agentdb needs the rights"
    return "\n".join(['\ndb = "statements"', "", f"[agents.{name}.statements]  {note}", *lines])


def _keys(values: bytes) -> list[str]:
    """Return the keys of an object in JSON; none if it is something else."""
    import json  # not for drover agent new

    try:
        return list(json.loads(values))
    except ValueError:
        return []


def _beginning(keys: Sequence[str]) -> str:
    """Return a statement that saves values under these keys in a table whose name is to be changed."""
    if not keys:
        return "select from your_table"
    return f"insert into your_table ({', '.join(keys)}) values ({', '.join(f':{key}' for key in keys)})"


def _toml(words: Sequence[str]) -> str:
    """Return a string, or an array of them: JSON's escapes are among those of TOML."""
    import json  # not for drover agent new

    return json.dumps(words if isinstance(words, str) else list(words), ensure_ascii=False)


def _absolute(word: str) -> str:
    return os.path.abspath(word) if "/" in word else word


def _line(text: str, who: str) -> bytes:
    """Return an item as the bytes of its line, without newline. Errors: ConfigError, no agent would get it."""
    line = os.fsencode(text)
    if mistake := protocol.check_argument(line):
        raise ConfigError(f"drover {who}: {mistake}")
    return line


# ---- drover agent run


def run_item(options: Namespace, config: Config) -> int:
    """Send one item to a new agent, print what it says and how the item ended; 1 unless it is done."""
    name = options.type
    if is_program(name, config):
        command = [_absolute(name)]
        name = type_name(name)
        config = config_of(name, command)
    if name not in config.agents:
        raise ConfigError(unknown_type("agent run", [name], config))
    agent, text = config.agents[name], " ".join(options.args)
    if agent.kind == "exec":
        return _run_command(config, name, os.fsencode(text))
    line = os.fsencode(text) if not text and agent.empty == "send" else _line(text, "agent run")
    with AgentProcess(process_spec(config, name)) as process:
        return _run_line(process, line, options.timeout)


def unknown_type(command: str, names: Sequence[str], config: Config) -> str:
    """Return what to do about words that are no agent types."""
    program = next((name for name in names if os.path.isfile(name)), None)
    hint = (
        f"; for the program in this directory write ./{program}" if program else f" (it has {', '.join(config.agents)})"
    )
    return f"drover {command}: the configuration has no agent type {', '.join(names)}{hint}"


def _run_line(process: AgentProcess, line: bytes, limit_s: float) -> int:
    """Wait for the first OK of a line agent, and let it do an item."""
    try:
        for heard in process.lines(limit_s):
            if protocol.parse(heard)[0] == protocol.OK:
                break
            _show(heard)
        else:
            end = process.end_in_words(DEATH_S) if process.is_over else f"no OK within {limit_s:g} s"
            return failed(f"failed before its first OK: {end}; drover agent-check PROGRAM looks for the reason")
        told = talk(process, line + b"\n", limit_s, _show)
        for mistake in told.mistakes:
            warn(mistake)
        if told.statements:
            warn("there is no database here: each DB line was answered with no rows")
        warn(_outcome(told, limit_s))
        return int(told.outcome != "done")
    finally:
        process.close_input()
        process.status_within(DEATH_S)
        _show_errors(process)


def _outcome(told: Talk, limit_s: float) -> str:
    """Return how an item ended, in words."""
    match told.outcome:
        case "done":
            return f"done in {told.seconds:.2g} s"
        case "silent":
            return f"failed: no OK within {limit_s:g} s; --timeout waits longer"
        case "died":
            return f"failed: it died, {told.reason}"
        case outcome:
            return f"{outcome} in {told.seconds:.2g} s: {told.reason}"


def _show(line: bytes) -> None:
    print(printable(protocol.printable(line)), flush=True)


def _show_errors(process: AgentProcess) -> None:
    for line in protocol.printable(process.stderr).splitlines():
        print(printable(line), file=sys.stderr)


def _run_command(config: Config, name: str, line: bytes) -> int:
    """Start the command of an exec agent for an item, with our own standard output and error."""
    agent: AgentType = config.agents[name]
    columns = _columns(line)
    item = protocol.Item(line + b"\n", 0, None, tuple(map(os.fsencode, columns.values())))
    names = [os.fsencode(column) for column in columns]
    if mistake := protocol.check_template(agent.command, names):
        raise ConfigError(f"drover agent run: {mistake}")
    try:
        argv = tuple(protocol.fill_template(agent.command, 0, item, names))
    except AgentError as error:
        raise ConfigError(f"drover agent run: {error}") from None
    spec = process_spec(config, name, argv)
    sys.stdout.flush()
    stdin, to_stdin = os.pipe()
    if spec.is_of_other_user:
        let_others_open([stdin])
    with subprocess.Popen(
        spec.argv, stdin=stdin, cwd=spec.directory, env=spec.environment, preexec_fn=reset_signals
    ) as done:
        os.close(stdin)
        with suppress(BrokenPipeError), open(to_stdin, "wb", 0) as file:
            file.write(item.line)
    if done.returncode == BLOCKED:
        return failed("blocked, on condition exit: exit status 75")
    warn(f"{'failed' if done.returncode else 'done'}: {status_in_words(done.returncode)}")
    return int(done.returncode != 0)


def _columns(line: bytes) -> dict[str, str]:
    """Return the columns of a line, none if it is one parameter, as the library for agents reads it."""
    library = agent_module("drover_agent", "lib/drover_agent.py")
    assert library is not None
    try:
        columns: dict[str, str] = library.parse(line)
    except ValueError:
        return {}
    return columns


# ---- drover agent new


def new_agent(options: Namespace, _config: Config) -> int:
    """Write the skeleton of an agent into a new directory, and print what to do next."""
    name, language = options.name, LANGUAGES[options.lang]
    if not NAME.fullmatch(name):
        advice = "write letters, digits, - and _, a letter first: it becomes [agents.NAME]"
        raise ConfigError(f"drover agent new: {name!r} is no name for an agent type; {advice}")
    folder, program = Path(name), IN_SKELETONS.replace("NAME", name)
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConfigError(f"drover agent new: {folder} exists already; remove it, or choose another name") from None
    except OSError as error:
        raise ConfigError(f"drover agent new: cannot make the directory {folder}: {error.strerror}") from None
    print("made", " and ".join(map(str, _write_skeleton(folder, program, language))))
    build = f"(cd {folder} && {language.build.format(program=program)})\n" if language.build else ""
    shown = shlex.quote(f"./{folder / program}")
    print(
        "it counts the lines of a file; put your own work in its place. Then:\n\n"
        f"{build}drover agent run {shown} /etc/hosts      # one item, to see what it says\n"
        f"drover agent-check {shown}                # every rule of the protocol, and how to go on"
    )
    return 0


def _write_skeleton(folder: Path, program: str, language: Language) -> list[Path]:
    """Write the source of a program, and its library; return which files these are."""
    library = agents_dir() / "lib"
    source = folder / (program + language.suffix)
    source.write_text((library / "skeletons" / language.skeleton).read_text().replace(IN_SKELETONS, program))
    if not language.suffix:
        source.chmod(0o755)
    if not language.library:
        return [source]
    return [source, shutil.copyfile(library / language.library, folder / language.library)]
