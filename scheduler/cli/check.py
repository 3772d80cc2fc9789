"""`drover check`: print a line for each thing that a scheduler needs, and whether it is there.

`check` logs in as the daemon does, over the same connections and all at once, so that a limit of connections shows here
too. Mistakes in the configuration never come here: they end every command with exit status 2. Changes nothing.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from scheduler.cli.config_files import locate, with_logins
from scheduler.cli.findings import FAIL, OK, WARN, Finding, print_findings, shown_as
from scheduler.cli.login_checks import AGENTDB, MSQ, SCHEDULER, try_logins
from scheduler.cli.session import (
    Session,
    conninfo_of_daemon,
    open_session,
    running_database,
    translated_errors,
    update_or_check,
)
from scheduler.database import migrate
from scheduler.drivers.loop import Loop
from scheduler.drivers.process_spec import Surroundings, find_program, interpreter_mistake, search_path, user_mistakes
from scheduler.drivers.ssh_host import SshHost, ssh_hosts
from scheduler.errors import ConfigError, DatabaseAbsentError, DroverError, WorldError
from scheduler.model.config import Config
from scheduler.model.events import Event, HostDown, HostUp
from scheduler.model.sql_text import bind
from scheduler.package_data import agent_folders

UNREACHABLE: Final = 3
REACH_LIMIT_S: Final = 20.0  # for a host to be reached
GROUP_ROLES: Final = (
    "drover_owner", "drover_frontend", "drover_frontend_sql", "drover_tenant", "drover_operator", "drover_readonly",
)  # fmt: skip
ROLES: Final = [*GROUP_ROLES, SCHEDULER, MSQ, AGENTDB]
PREPARED: Final = b"drover_check"
ACCEPTED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def check(options: Namespace, config: Config) -> int:
    """Print every finding; 3 if it is the database that failed, 1 if it is something else."""
    return report(options, config, findings_here(options, config), findings_in_database)


def report(
    options: Namespace,
    config: Config,
    here: Iterable[Finding],
    in_database: Callable[[Config, str], Iterable[Finding]],
) -> int:
    """Print findings that need no database, then those in it; return the exit status."""
    show = shown_as(options)
    status = print_findings(here, show)
    try:
        with running_database(config) as conninfo:
            return print_findings(in_database(config, conninfo), show) or status
    except WorldError as error:
        print_findings([(FAIL, str(error))], show)
        return UNREACHABLE


def findings_here(options: Namespace, config: Config) -> Iterator[Finding]:
    """Yield the findings about this machine and the hosts that it connects to."""
    yield OK, f"configuration {locate(options.config, os.environ)}"
    yield from chain(_programs(config), _queues(config), _hosts(config))


def _programs(config: Config) -> Iterator[Finding]:
    """Yield whether programs can be started here; not those of other hosts."""
    for path, mistake in user_mistakes(config):
        yield WARN, f"{'.'.join(map(str, path))}: {mistake}; run by this user, drover run would refuse it"
    for name in config.agents:
        yield program_finding(config, name)


def program_finding(config: Config, name: str) -> Finding:
    """Return whether the program of an agent type can be started here; a disabled type may lack its own."""
    around, agent = Surroundings(os.environ, agent_folders()), config.agents[name]
    who, word, severity = f"agent {name}: ", agent.command[0], FAIL if agent.enabled else WARN
    if all(config.hosts[host].transport != "local" for host in config.hosts_of(name)):
        return OK, f"{who}runs on other hosts only, where drover agent-check looks for {word}"
    if agent.prelude:  # what it may define no program
        is_there = os.path.isfile(agent.prelude) and os.access(agent.prelude, os.R_OK)
        problem = f"{agent.prelude} is not there or cannot be read; write it, or correct its prelude"
        return (OK, f"{who}{agent.prelude}") if is_there else (severity, f"{who}{problem}")
    try:
        program = find_program(word, search_path(agent, around), agent.cwd or None)
    except PermissionError as error:
        return severity, f"{who}{error.filename2} is not executable; chmod +x {error.filename2}"
    except OSError:
        place = "there" if "/" in word else "in agents/ or on PATH"
        return severity, f"{who}no program {word} is {place}; install it or correct its command"
    problem = interpreter_mistake(program, search_path(agent, around))
    return (severity, f"{who}{program}: {problem}") if problem else (OK, who + program)


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


def findings_in_database(config: Config, conninfo: str) -> Iterator[Finding]:
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
