"""How the process of an agent is started: its argv with wrappers, its directory, its environment, its user.

Decides what an agent inherits, which is little, and never a secret of ours. Touches the file system to find programs,
the accounts of this machine, and our own capabilities. processes.py starts it.
"""

import errno
import os
import pwd
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from scheduler.drivers.executable_files import advice_for, find_program, is_run_by_sh, problem_of
from scheduler.drivers.keeper_scripts import words_of
from scheduler.drivers.os_calls import boot_id, is_removed
from scheduler.drivers.trusted_files import who_may_write
from scheduler.model.config import PRELUDE_WORDS, AgentType, Config, Limits, Mistake
from scheduler.model.events_and_effects import Spawn

KEPT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"})
OWN = "DROVER_"  # DROVER_DATABASE_URL may hold our password: never inherited, not even by name
EXEC_DIRECTORY = "/tmp"

OPTIONS = {  # of prlimit(1)
    "nofile": "--nofile", "memory": "--as", "cpu": "--cpu", "nproc": "--nproc", "fsize": "--fsize", "core": "--core",
}  # fmt: skip
NOT_FOUND: Final = 127  # the exit status that shells have for a command that does not exist
NOT_STARTED: Final = 126  # and for one that cannot be started for another reason

STATUS: Final = "/proc/self/status"
OOM_ADJUST: Final = "/proc/self/oom_score_adj"
EFFECTIVE, AMBIENT = "CapEff", "CapAmb"
NEEDED: Final = {"CAP_SETUID": 7, "CAP_SETGID": 6, "CAP_KILL": 5}  # capabilities(7): to become others, to signal them
NO_CAPABILITIES: Final = ("--inh-caps=-all", "--ambient-caps=-all")  # of setpriv(1): else they would outlive the change


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Settings that all processes share: our environment, the folders first on PATH, and their limit of open files."""

    inherited: Mapping[str, str]
    folders: Sequence[str]
    files: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """All that it takes to start a process; directory None is the scheduler's own."""

    argv: tuple[str, ...]
    directory: str | None
    environment: dict[bytes, bytes]
    files: tuple[int, int] | None = None  # limit of open files, soft and hard; None is the scheduler's own
    is_of_other_user: bool = False


class SpawnTemplates:
    """Makes the specification of each process. What the processes of a type and host share is found once."""

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._config, self._around = config, around
        self._templates: dict[tuple[str, str], ProcessSpec] = {}  # by type and host; argv is the wrapper
        self._programs: dict[tuple[str, str, str], str] = {}  # by type, host and word

    def spec(self, spawn: Spawn, copy: str = "") -> ProcessSpec:
        """Return what a process is started with; its program is this copy, if one is named.

        Errors: OSError, its program is missing or may not be run; PermissionError, others may write to its prelude.
        """
        agent = self._config.agents[spawn.type]
        if agent.prelude and not prefix_of(self._config, spawn.host):
            for problem in prelude_mistakes(agent):
                raise PermissionError(errno.EACCES, problem, agent.prelude)
        key = spawn.type, spawn.host
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._make(spawn)
        word, *arguments = command_of(self._config, spawn)
        program = copy or self._programs.get((*key, word))
        if program is None:
            path = search_path(agent, self._around)
            program = self._programs[(*key, word)] = find_program(word, path, template.directory)
        argv = (*template.argv, program, *arguments)
        environment = template.environment | own_environment(spawn)
        return ProcessSpec(  # replace() takes three times as long
            argv, template.directory, environment, template.files, template.is_of_other_user
        )

    def why_not_run(self, spawn: Spawn, status: int) -> str:
        """Return what kept its program from running, for a process that exited as shells do then; empty if unknown."""
        agent = self._config.agents.get(spawn.type)
        if agent is None or prefix_of(self._config, spawn.host):
            return ""
        command = list(map(os.fsdecode, spawn.argv)) if spawn.argv is not None else agent.command
        word = next(iter(command[PRELUDE_WORDS if agent.prelude else 0 :]), "")  # none if a reload has changed it
        path = search_path(agent, self._around)
        directory = agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else None)
        try:
            program = find_program(word, path, directory)
        except PermissionError as error:
            program = str(error.filename2)
        except OSError:
            return ""
        problem = "" if is_run_by_sh(program) else problem_of(program, path)
        if problem or status != NOT_STARTED or not is_wrapped(agent, path):
            return problem
        return f"its error output says whether {program} could not be started, as while it is being written"

    def forget(self) -> None:
        """Find programs anew from now on."""
        self._templates.clear()
        self._programs.clear()

    def _make(self, spawn: Spawn) -> ProcessSpec:
        agent = self._config.agents[spawn.type]
        path, known = search_path(agent, self._around), self._around.inherited
        environment = {name: text for name, text in known.items() if name in KEPT or name.startswith("LC_")}
        account = _account(agent.user)
        if account is not None:
            shell = account.pw_shell or "/bin/sh"
            environment |= {"HOME": account.pw_dir, "USER": agent.user, "LOGNAME": agent.user, "SHELL": shell}
        environment |= {**passed_environment(agent, spawn, known), "PATH": path}
        has_prefix = bool(prefix_of(self._config, spawn.host))
        if agent.detached and not has_prefix:
            environment["DROVER_BOOT_ID"] = boot_id()  # a keeper may not see the part of /proc that has it
        wrapper: list[str] = []
        limits = () if has_prefix or agent.detached else prlimit_options(agent.limits)
        oom, user = choom_options(path), setpriv_options(agent.user)
        for program, options in (("choom", oom), ("prlimit", limits), ("setpriv", user)):
            if options:  # each wrapper costs a start 0.8 ms
                wrapper += (find_program(program, path, None), *options, "--")
        return ProcessSpec(
            tuple(wrapper),
            agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else None),
            {os.fsencode(name): os.fsencode(text) for name, text in environment.items()},
            self._around.files,
            account is not None and account.pw_uid != os.geteuid(),
        )


def prelude_mistakes(agent: AgentType) -> Iterator[str]:
    """Yield who else may change the prelude of a type: its lines are executed as the user of its agents."""
    yield from who_may_write(agent.prelude, users_of(agent))


def users_of(agent: AgentType) -> list[int]:
    """Return the user whose agents these are, if the type names one: what that user executes may belong to it."""
    account = _account(agent.user)
    return [] if account is None else [account.pw_uid]


def passed_environment(agent: AgentType, spawn: Spawn, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what pass_env and env of the type give an agent, and what we add: all that agents on other hosts get."""
    passed = {name: inherited[name] for name in agent.pass_env if name in inherited and not name.startswith(OWN)}
    ours = {"PYTHONUNBUFFERED": "1", "DROVER_HOST": spawn.host, "DROVER_AGENT": spawn.type}
    if agent.database:
        ours["PGSERVICE"] = agent.database
    return {**passed, **agent.env, **ours}


def search_path(agent: AgentType, around: Surroundings) -> str:
    rest = agent.env.get("PATH") or around.inherited.get("PATH") or os.defpath
    return os.pathsep.join([*around.folders, rest])


Fingerprint = tuple[str, int, int, int]  # path, inode, size, time of the last change in nanoseconds


def fingerprint(agent: AgentType, around: Surroundings) -> Fingerprint | None:
    """Return what distinguishes the program file of a type from its replacement; None while there is none."""
    try:
        path = find_program(agent.command[0], search_path(agent, around), agent.cwd or None)
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_ino, found.st_size, found.st_mtime_ns


def is_wrapped(agent: AgentType, path: str) -> bool:
    """Return whether another program starts the program of a type here: one that has sh(1) run what has no `#!`."""
    if agent.detached or agent.prelude or prlimit_options(agent.limits) or choom_options(path):
        return True
    with suppress(OSError):
        return bool(setpriv_options(agent.user))
    return True


def command_of(config: Config, spawn: Spawn) -> list[str]:
    """Return the command of a process, behind the prefix of its host if that has one."""
    agent = config.agents[spawn.type]
    command = map(os.fsdecode, spawn.argv) if spawn.argv is not None else agent.command
    prefix = prefix_of(config, spawn.host)
    if spawn.keeper is not None:
        words = limited(agent, tuple(map(os.fsencode, command)))
        return list(map(os.fsdecode, words_of(spawn.keeper, spawn.job or 0, spawn.attempt or 0, words)))
    limits = prlimit_options(agent.limits) if prefix else ()  # they are for what the prefix starts, not for the prefix
    return [*prefix, *(("prlimit", *limits, "--") if limits else ()), *command]


def limited(agent: AgentType, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return a command behind the prlimit(1) that sets the limits of its type, if it has any."""
    limits = prlimit_options(agent.limits)
    return (b"prlimit", *map(os.fsencode, limits), b"--", *words) if limits else words


def prefix_of(config: Config, name: str) -> tuple[str, ...]:
    """Return the words that start a program on a host of another engine; none for any other host."""
    host = config.hosts.get(name)
    if host is None or host.transport != "command":
        return ()
    return tuple(word.replace("{host}", name) for word in host.command)


def directory_mistake(agent: AgentType, word: str) -> str:
    """Return what is wrong with the directory in which a program of a type is started; empty if nothing is."""
    directory = agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else "")
    if directory and not os.path.isdir(directory):
        kind = "no directory; " if os.path.exists(directory) else "not there; create it, or "
        return f"its cwd {directory} is {kind}correct cwd"
    if directory:
        may_enter = os.access(directory, os.X_OK)
        return "" if may_enter else f"its cwd {directory} may not be entered by this user; change its mode, or cwd"
    gone = "the directory in which the daemon was started was removed; set cwd, or start the daemon in another"
    return gone if "/" in word and not word.startswith("/") and is_removed() else ""


def prlimit_options(limits: Limits) -> tuple[str, ...]:
    given = [(option, getattr(limits, name)) for name, option in OPTIONS.items()]
    return tuple(f"{option}={value}:{value}" for option, value in given if value is not None)


def reason(config: Config, spawn: Spawn, error: OSError | ValueError) -> str:
    """Return why a process could not be started, and what to look at."""
    word = command_of(config, spawn)[0]
    who = f"agent '{spawn.type}': cannot start '{word}'"
    if not isinstance(error, OSError):
        return f"{who}: {error}"
    program = error.filename
    where = f" ({os.fsdecode(program)})" if program is not None and program != word else ""
    advice = ""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        advice = directory_mistake(config.agents[spawn.type], word)
    advice = advice or advice_for(error, os.defpath)
    return f"{who}{where}: {error.strerror} (errno {error.errno}){'; ' if advice else ''}{advice}"


def start_status(error: OSError | ValueError) -> int:
    """Return the exit status for a process that could not be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED


def own_environment(spawn: Spawn) -> dict[bytes, bytes]:
    """Return the environment variables of this process alone."""
    unique = {b"THREAD_UNIQUE": b"%d" % spawn.slot}
    if spawn.job is None:
        return unique
    attempt = {b"DROVER_JOB": b"%d" % spawn.job, b"DROVER_ATTEMPT": b"%d" % (spawn.attempt or 0)}
    return {**unique, **attempt, **(spawn.environment or {})}


def user_mistakes(config: Config) -> Iterator[Mistake]:
    """Return every type whose user does not exist, or whose processes we may not start and end."""
    missing = [name for name, bit in NEEDED.items() if not capabilities(EFFECTIVE) >> bit & 1]
    for name, agent in config.agents.items():
        account = _account(agent.user)
        if agent.user and account is None:
            yield ("agents", name, "user"), "is no user of this machine"
        elif account is not None and missing and account.pw_uid != os.geteuid():
            yield ("agents", name, "user"), f"needs a daemon that is root, or that has {', '.join(missing)}"


def setpriv_options(user: str) -> tuple[str, ...]:
    """Return the options of setpriv(1) that make a process this user's, with all its groups; none if nothing changes.

    Our ambient capabilities, if we have any, are for us alone: agents of our own user lose them too.
    Errors: OSError, there is no such user.
    """
    account = _account(user)
    if user and account is None:
        raise FileNotFoundError(2, "there is no such user", user)
    if account is None or account.pw_uid == os.geteuid():
        return NO_CAPABILITIES if capabilities(AMBIENT) else ()
    groups = ",".join(map(str, os.getgrouplist(user, account.pw_gid)))
    return (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", f"--groups={groups}", *NO_CAPABILITIES)


def choom_options(path: str) -> tuple[str, ...]:
    """Return the options of choom(1) that make a process no better off than others when memory runs out.

    There are none unless we are spared then (OOMScoreAdjust=): that is for the scheduler, not for what uses the memory.
    """
    with suppress(OSError, ValueError), open(OOM_ADJUST, encoding="ascii") as adjust:
        if int(adjust.read()) < 0 and shutil.which("choom", path=path):
            return ("-n", "0")
    return ()


def capabilities(which: str) -> int:
    """Return one of our sets of capabilities, one bit each."""
    with open(STATUS, encoding="ascii", errors="replace") as status:
        return next((int(line.split()[1], 16) for line in status if line.startswith(f"{which}:")), 0)


def _account(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user) if user else None
    except KeyError:
        return None
