"""`drover check` and `agent-check`: print a line for each thing that a scheduler needs, and whether it is there.

`check` logs in as the daemon does, over the same connections and all at once, so that a limit of connections shows here
too. Mistakes in the configuration never come here: they end every command with exit status 2. Changes nothing.

`agent-check` and `drover run -t` start each agent on each of its hosts, and compare its programs there. They use the
driver that the daemon uses, so that what is tested is what will run, and need no database. Programs are inspected on
their host, by its shell: only the host can say what a command names there.
"""

import os
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, count
from typing import Final, Literal, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus

from scheduler.cli.config_files import locate, with_logins
from scheduler.cli.output import printable
from scheduler.cli.session import (
    Session,
    conninfo_of_daemon,
    open_session,
    running_database,
    translated_errors,
    update_or_check,
)
from scheduler.database import migrate
from scheduler.drivers.libpq import login_of, readable, writable
from scheduler.drivers.loop import Loop
from scheduler.drivers.process_spec import Surroundings, find_program, interpreter_mistake, search_path, user_mistakes
from scheduler.drivers.processes import Processes
from scheduler.drivers.ssh_host import SshHost, ssh_hosts
from scheduler.errors import ConfigError, DatabaseAbsentError, DroverError, WorldError
from scheduler.model import protocol
from scheduler.model.config import Config
from scheduler.model.events import Created, Event, ForceKill, Gone, HostDown, HostUp, Kill, NotCreated, Send, Spawn
from scheduler.model.sql_text import bind
from scheduler.package_data import agent_folders

OK: Literal["ok"] = "ok"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"
Finding = tuple[Literal["ok", "WARN", "FAIL"], str]

FAILED, UNREACHABLE = 1, 3
REACH_LIMIT_S: Final = 20.0  # for a host to be reached
LOGIN_LIMIT_S: Final = 15
VARIABLE: Final = "DROVER_DATABASE_URL"
SCHEDULER: Final = "drover_scheduler"
MSQ: Final = "drover_msq"
AGENTDB: Final = "drover_agentdb"
GROUP_ROLES: Final = (
    "drover_owner", "drover_frontend", "drover_frontend_sql", "drover_tenant", "drover_operator", "drover_readonly",
)  # fmt: skip
ROLES: Final = [*GROUP_ROLES, SCHEDULER, MSQ, AGENTDB]
PREPARED: Final = b"drover_check"
ACCEPTED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

# What a server, or libpq, says of a log-in that it refuses, and what to do next; {role} and {keys} are put in.
ADVICE: Final = (
    (r'role ".*" does not exist', "run drover init --roles by a login that may create roles, or correct {keys}"),
    (r"is not permitted to log in", "alter role {role} login"),
    (r"no pg_hba.conf entry|pg_hba.conf rejects", "let {role} in, in pg_hba.conf, and reload the server"),
    (r"password authentication failed|no password supplied", "give its password, by {keys} or ~/.pgpass"),
    (r"authentication failed", "correct the line for {role} in pg_hba.conf, or {keys}"),
    (r"too many connections for role", "alter role {role} connection limit -1, or as many as are used"),
    (r"too many connections for database", "raise the connection limit of the database"),
    (r"permission denied for database", "grant connect on the database to {role}"),
    (r"remaining connection slots|too many clients", "raise max_connections of the server, or end other sessions"),
    (r"hot standby", "name the primary in {keys}"),
    (r"read-only", "name the primary in {keys} if this is a replica, else reset default_transaction_read_only"),
    (r"database \".*\" does not exist", "create it, or correct {keys}"),
)  # fmt: skip
OTHER_ADVICE: Final = "look into the log of the server, and correct {keys}"

STDERR_BYTES: Final = 4096  # kept, the last
STDOUT_BYTES: Final = 65_536  # kept, the first
REAP_LIMIT_S: Final = 5.0  # for the end of a killed agent to be reported
READY: Final = b"OK\n"
SHELL: Final = (b"sh", b"-s", b"--")
INSPECT: Final = b"""\
program=$(command -v -- "$1") || { echo "$1: not found" >&2; exit 127; }
shift
for file in "$program" "$@"; do [ ! -f "$file" ] || echo "$(cksum <"$file") $file"; done
[ -f "$program" ] || echo "$program"
exit 0
"""

Programs = tuple[str, ...]  # the files that a command names, each as cksum(1) has it


def check(options: Namespace, config: Config) -> int:
    """Print every finding; 3 if it is the database that failed, 1 if it is something else."""
    file: Finding = OK, f"configuration {locate(options.config, os.environ)}"
    status = print_findings(chain([file], _programs(config), _queues(config), _hosts(config)))
    try:
        with running_database(config) as conninfo:
            return print_findings(_database(config, conninfo)) or status
    except WorldError as error:
        print_findings([(FAIL, str(error))])
        return UNREACHABLE


def print_findings(findings: Iterable[Finding]) -> int:
    """Print each finding as it comes, as a line; return the exit status."""
    status = 0
    for severity, text in findings:
        print(f"{severity:4} {printable(' '.join(text.split()))}", flush=True)
        status = FAILED if severity == FAIL else status
    return status


def _programs(config: Config) -> Iterator[Finding]:
    """Yield whether programs can be started here; not those of other hosts, and a disabled type may lack its own."""
    around = Surroundings(os.environ, agent_folders())
    for path, mistake in user_mistakes(config):
        yield WARN, f"{'.'.join(map(str, path))}: {mistake}; run by this user, drover run would refuse it"
    for name, agent in config.agents.items():
        who, word, severity = f"agent {name}: ", agent.command[0], FAIL if agent.enabled else WARN
        if all(config.hosts[host].transport != "local" for host in config.hosts_of(name)):
            yield OK, f"{who}runs on other hosts only, where drover agent-check looks for {word}"
            continue
        try:
            program = find_program(word, search_path(agent, around), agent.cwd or None)
        except PermissionError as error:
            yield severity, f"{who}{error.filename2} is not executable; chmod +x {error.filename2}"
        except OSError:
            place = "there" if "/" in word else "in agents/ or on PATH"
            yield severity, f"{who}no program {word} is {place}; install it or correct its command"
        else:
            problem = interpreter_mistake(program, search_path(agent, around))
            yield (severity, f"{who}{program}: {problem}") if problem else (OK, who + program)


def _queues(config: Config) -> Iterator[Finding]:
    """Yield the queues whose limit is beyond what all agents could work at once."""
    for name, queue in config.queues.items():
        agents = 0
        for host, limits in config.hosts.items():
            if limits.enabled and name in (limits.queues or [name]):
                slots = sum(a.slots for kind, a in config.agents.items() if a.enabled and host in config.hosts_of(kind))
                agents += slots if limits.max < 0 else min(slots, limits.max)
        if queue.concurrency is not None and queue.concurrency > agents:
            yield WARN, f"queue {name}: concurrency is {queue.concurrency}, but only {agents} agents can work for it"


def _hosts(config: Config) -> Iterator[Finding]:
    """Connect to all hosts that have to be connected to, at once."""
    loop, hosts = Loop(), ssh_hosts(config)
    findings: dict[str, Finding] = {}

    def handle(event: Event) -> None:
        if isinstance(event, HostUp):
            findings[event.host] = OK, f"host {event.host}: reached"
        elif isinstance(event, HostDown):
            findings.setdefault(event.host, (FAIL, f"host {event.host}: {event.reason}"))

    reached = [SshHost(loop, name, host, handle) for name, host in hosts.items()]
    deadline = loop.now + REACH_LIMIT_S
    while len(findings) < len(hosts) and loop.now < deadline:
        loop.turn(deadline)
    for host in reached:
        host.close()
    for name in hosts:
        yield findings.get(name, (FAIL, f"host {name}: no answer within {REACH_LIMIT_S:g} s"))


def _database(config: Config, conninfo: str) -> Iterator[Finding]:
    """Yield the findings about the database; WorldError if it cannot be reached, after all log-ins were tried."""
    try:
        update_or_check(config, conninfo)
    except (DatabaseAbsentError, ConfigError):
        yield from try_logins(config, conninfo_of_daemon(config, conninfo))
        raise
    yield OK, f"database {config.database.url if config.database.url == 'embedded' else 'reached'}, schema up to date"
    with translated_errors(), open_session(conninfo) as session:
        problem = "the database is read-only, but a scheduler must write"
        match session.rows("read_only"):
            case [(True, True)]:
                yield FAIL, f"{problem}: it is a replica: name its primary in [database] url"
            case [(True, False)]:
                yield FAIL, f"{problem}: default_transaction_read_only is on: reset it for the database or the role"
        missing = ", ".join(name for (name,) in session.rows("missing_roles", roles=ROLES))
        yield (WARN, f"roles: {missing} missing; run drover init --roles") if missing else (OK, "roles")
    yield from try_logins(config, conninfo_of_daemon(config, conninfo))  # with no session of ours beside them
    with translated_errors(), open_session(conninfo) as session:
        yield from _warnings(session)
    yield from _statements(config, conninfo)


def _warnings(session: Session) -> Iterator[Finding]:
    """Yield what `drover init` refuses now, rights that PostgreSQL 14 gave to all, and clean-ups that are not done."""
    encoding = session.connection.info.parameter_status("server_encoding")
    if encoding not in migrate.ENCODINGS:
        yield WARN, migrate.wrong_encoding(encoding)
    if session.value("public_is_open"):
        problem = "schema public: every role may create tables and functions there, SQL of jobs and agents too"
        yield WARN, f"{problem}; unless that is wanted: revoke create on schema public from public"
    ((waiting, first, why),) = session.rows("stuck_clean_ups")
    failed = session.value("failed_clean_ups")
    for restriction in session.restrictions("jobqueue"):
        yield WARN, f"clean-ups: {restriction}"
    if waiting:
        yield WARN, f"clean-ups: no agent can do {waiting} that wait, such as job {first}: {why}"
    if failed:
        yield WARN, f"clean-ups: {failed} have failed; drover ls -S failed -t cleanup, and drover retry"


def _statements(config: Config, conninfo: str) -> Iterator[Finding]:
    """Prepare every statement of every agent as the role that will run them."""
    texts = {
        f"agents.{name}.statements.{key}": text
        for name, agent in config.agents.items()
        for key, text in agent.statements.items()
    }
    if not texts:
        return
    try:
        url = with_logins(config, os.environ).database.agentdb_url or make_conninfo(conninfo, user=AGENTDB)
        with translated_errors(), open_session(url) as session:
            for where, text in texts.items():
                problem = _problem(session.connection, text)
                yield (FAIL, f"{where}: {problem}") if problem else (OK, where)
    except WorldError:
        yield FAIL, "statements: not checked, because the log-in agent-database failed; correct that first"
    except DroverError as error:
        yield FAIL, f"statements: cannot be prepared as {AGENTDB}: {error}"


def _problem(connection: psycopg.Connection, text: str) -> str:
    """Return why the server refuses it: preparing finds mistakes, explaining what the role may not touch."""
    query, names = bind(text)
    values = f"({', '.join(['null'] * len(names))})" if names else ""
    results = (
        connection.pgconn.prepare(PREPARED, query.encode()),
        connection.pgconn.exec_(b"explain execute " + PREPARED + values.encode()),
        connection.pgconn.exec_(b"deallocate " + PREPARED),
    )
    return next((result.get_error_message() for result in results if result.status not in ACCEPTED), "")


class Login(NamedTuple):
    """A connection that the daemon makes: purpose, connection string, and the keys that decide about it."""

    connection: str
    purpose: str
    conninfo: str
    keys: str
    sessions: int  # that are opened in this way

    @property
    def role(self) -> str:
        """Return the role that it names, or else libpq's choice."""
        return login_of(self.conninfo) or os.environ.get("PGUSER") or "the user of the daemon"


def logins(config: Config, conninfo: str) -> Iterator[Login]:
    """Yield every log-in that a daemon makes. Errors: ConfigError if a password cannot be read."""
    own = writable(conninfo)
    keys = VARIABLE if os.environ.get(VARIABLE) else "[database] url"
    yield Login("queue", "claims and results", own, keys, 2)
    yield Login("watch", "the lease and commands", own, keys, 2)
    found = with_logins(config, os.environ).database
    queries = found.msq_url or make_conninfo(conninfo, user=MSQ)
    keys = "msq_url and msq_password_file in [database]"
    yield Login("expansion", "queries of SQL jobs", readable(queries), keys, config.scheduler.expansions)
    if asking := [name for name, agent in config.agents.items() if agent.db != "off"]:
        url = found.agentdb_url or make_conninfo(conninfo, user=AGENTDB)
        keys = "agentdb_url and agentdb_password_file in [database]"
        sessions = config.scheduler.agentdb_connections
        yield Login("agent-database", f"DB: lines of {', '.join(asking)}", url, keys, sessions)


def try_logins(config: Config, conninfo: str) -> Iterator[Finding]:
    """Log in as the daemon does, over each of its connections, and keep them all until the last is there."""
    with ExitStack() as held:
        try:
            for login in logins(config, conninfo):
                yield _try_login(login, held)
        except ConfigError as error:
            yield FAIL, f"log-in: {error}"


def _try_login(login: Login, held: ExitStack) -> Finding:
    who = f"log-in {login.connection} ({login.purpose}) as {login.role}"
    try:
        given = {"connect_timeout": LOGIN_LIMIT_S, **conninfo_to_dict(login.conninfo)}
        session = Session(held.enter_context(psycopg.connect(make_conninfo("", **given), autocommit=True)))
        is_right = login.connection not in ("queue", "watch") or session.value("may_register")
        most = session.value("role_connection_limit")
    except psycopg.Error as error:
        refusal = str(error).removeprefix("connection failed: ")
        advice = next((words for pattern, words in ADVICE if re.search(pattern, refusal)), OTHER_ADVICE)
        return FAIL, f"{who}: {refusal}; {advice.format(role=login.role, keys=login.keys)}"
    if not is_right and login.keys == VARIABLE:  # perhaps a person runs the check
        problem = f"this role may not register a scheduler: {VARIABLE} is not a daemon's login"
        return WARN, f"{who}: {problem}; unset it to check [database] url"
    if not is_right:
        return FAIL, f"{who}: this role may not register a scheduler; let {login.keys} name {SCHEDULER}"
    if 0 <= most < login.sessions:
        problem = f"the role is limited to {most} connections, and the daemon may open {login.sessions}"
        return WARN, f"{who}: {problem}; alter role {login.role} connection limit {login.sessions}, or the rest waits"
    return OK, who


# ---- agents


def test_agents(config: Config) -> int:
    """Test every enabled type, a line for each host that it has; return how many failed."""
    failed = tested = 0
    with closing(Prober(config)) as prober:
        for name in (name for name, agent in config.agents.items() if agent.enabled):
            for host, reason in prober.start(name).items():
                print(f"{name} on {host}: {reason or 'ok'}", flush=True)
                tested += 1
                failed += reason is not None
    print(f"{failed} of {tested} agents failed")
    return failed


def check_agents(options: Namespace, config: Config) -> int:
    """Print what was found, for each type and what it is on its hosts; 1 if one cannot be started somewhere."""
    refuse_root(options)
    if unknown := [name for name in options.types if name not in config.agents]:
        raise ConfigError(f"drover agent-check: the configuration has no agent type {', '.join(unknown)}")
    names = options.types or [name for name, agent in config.agents.items() if agent.enabled]
    with closing(Prober(config)) as prober:
        return print_findings(finding for name in names for finding in _findings(prober, name))


def refuse_root(options: Namespace) -> None:
    """Raise ConfigError for the user root: agents run as the user who starts them."""
    if os.geteuid() == 0 and not options.allow_root and os.environ.get("DROVER_ALLOW_ROOT") != "1":
        raise ConfigError(
            f"drover {options.command}: refuses to run as root: agents would be root too; "
            "use a user of its own, or --allow-root"
        )


def _findings(prober: "Prober", name: str) -> Iterator[Finding]:
    """Yield hosts where a type does not start, then each version of its program; paths may differ, not contents."""
    programs = prober.inspect(name)
    reasons = {host: reason for host, reason in prober.start(name).items() if reason}
    for host, reason in reasons.items():
        yield FAIL, f"agent {name} on {host}: {reason}"
    hosts_of: dict[Programs, list[str]] = defaultdict(list)
    for host, found in programs.items():
        if host in reasons:
            continue
        if isinstance(found, str):
            yield WARN, f"agent {name} on {host}: starts, but its program cannot be inspected: {found}"
        else:  # by check sum and size of each file, without its path
            hosts_of[tuple(" ".join(line.split()[:2]) for line in found)].append(host)
    for hosts in hosts_of.values():
        severity, others = (OK, "") if len(hosts_of) == 1 else (WARN, ", another version than elsewhere")
        yield severity, f"agent {name} on {', '.join(hosts)}: {'; '.join(programs[hosts[0]])}{others}"


class Prober:
    """Starts the agents of a type on all their hosts at once, and ends them; each process has a slot of its own."""

    def __init__(self, config: Config) -> None:
        self._config, self._loop, self._slots = config, Loop(), count()
        self._script = b""  # for the standard input of what is being started
        self._out: dict[int, bytes] = defaultdict(bytes)
        self._err: dict[int, bytes] = defaultdict(bytes)
        self._ends: dict[int, NotCreated | Gone] = {}
        self._late: set[int] = set()  # did not end by themselves in time
        self._processes = Processes(
            self._loop, config, agent_folders(), self._on_stdout, self._on_stderr, self._on_capture, self._on_event
        )
        self.close = self._processes.close

    def start(self, name: str) -> dict[str, str | None]:
        """Return for each enabled host why an agent of a type cannot be used there, or None; no command is run."""
        if self._config.agents[name].kind == "exec":
            return {host: found if isinstance(found, str) else None for host, found in self.inspect(name).items()}
        return {host: None if READY in out else why for host, out, why in self._run(name, None, "OK", READY)}

    def inspect(self, name: str) -> dict[str, Programs | str]:
        """Return for each enabled host what the command of a type names there, or why that cannot be said."""
        argv = (*SHELL, *map(os.fsencode, self._config.agents[name].command))
        results = self._run(name, argv, "answer", None)
        return {host: tuple(protocol.printable(out).splitlines()) or why for host, out, why in results}

    def _run(
        self, name: str, argv: tuple[bytes, ...] | None, what: str, enough: bytes | None
    ) -> list[tuple[str, bytes, str]]:
        """Start a process of a type on each host, and end it when its output is enough.

        `argv` is a shell to inspect with. Return each host with the output, and why that is not what was wanted.
        """
        limits, script = self._config.scheduler, b"" if argv is None else INSPECT
        self._script = script if self._config.agents[name].kind == "line" else b""  # a command gets it with its start
        slots = {next(self._slots): host for host in self._config.hosts_of(name) if self._config.hosts[host].enabled}
        for slot, host in slots.items():
            self._processes.spawn(Spawn(slot, 1, name, host, argv, script))
        self._wait(slots, limits.start_limit, enough)
        self._late |= slots.keys() - self._ends.keys()
        for slot in slots:
            self._processes.kill(Kill(slot))
        self._wait(slots, limits.kill_grace)
        for slot in slots:
            self._processes.force_kill(ForceKill(slot))
        self._wait(slots, REAP_LIMIT_S)
        return [(host, self._out[slot], self._failure(slot, what)) for slot, host in slots.items()]

    def _wait(self, slots: Collection[int], limit_s: float, enough: bytes | None = None) -> None:
        """Wait until each has ended, or its output has what is enough."""
        deadline = self._loop.now + limit_s
        while self._loop.now < deadline:
            if all(slot in self._ends or (enough is not None and enough in self._out[slot]) for slot in slots):
                return
            self._loop.turn(deadline)

    def _on_event(self, event: Event) -> None:
        match event:
            case Created(slot=slot) if self._script:  # not at once: this may be called from within spawn
                self._loop.at(self._loop.now, partial(self._processes.send, Send(slot, self._script)))
            case NotCreated(slot=slot) | Gone(slot=slot):
                self._ends[slot] = event

    def _on_stdout(self, slot: int, data: bytes, _now: float) -> None:
        self._out[slot] = (self._out[slot] + data)[:STDOUT_BYTES]

    def _on_stderr(self, slot: int, data: bytes, _now: float) -> None:
        self._err[slot] = (self._err[slot] + data)[-STDERR_BYTES:]

    def _on_capture(self, slot: int, stream: str, data: bytes, now: float) -> None:
        (self._on_stdout if stream == "out" else self._on_stderr)(slot, data, now)

    def _failure(self, slot: int, what: str) -> str:
        if slot in self._late:
            return f"no {what} within {self._config.scheduler.start_limit:g} s"
        lines = protocol.printable(self._err[slot]).strip().splitlines()
        last_line = f": {lines[-1]}" if lines else ""
        match self._ends.get(slot):
            case NotCreated(reason=reason):
                return reason
            case Gone(lost=True):
                return f"the connection to its host was lost before its first {what}"
            case Gone(code=127) if lines:  # of a shell, env(1) or the like: they say what does not exist
                return lines[-1]
            case Gone(signal=str(name)):
                return f"died before its first {what}, killed by {name}{last_line}"
            case Gone(code=code):
                return f"died before its first {what}, exit status {code}{last_line}"
        return f"sent no {what}, and did not end when it was killed"
