"""`drover doctor`: all that `drover check` finds, and what can only be found by trying it.

Starts every agent, sends a notification through the database, compares clocks and limits. Each trouble is a line that
ends with what to do next. Changes nothing: no job is queued, no agent gets an item.
"""

import os
import platform
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import Any, Final

import psycopg
from psycopg import pq

from scheduler.cli.agent_check import Prober, refuse_root
from scheduler.cli.check import findings_here, findings_in_database, program_finding, report
from scheduler.cli.findings import FAIL, OK, WARN, Finding
from scheduler.cli.login_checks import LOGIN_LIMIT_S, logins, refused
from scheduler.cli.machine_checks import findings_of_machine
from scheduler.cli.session import Session, conninfo_of_daemon, open_session
from scheduler.drivers.libpq import writable
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.package_data import version

NOTIFY_LIMIT_S: Final = 3.0
CLOCK_LIMIT_S: Final = 2.0


def doctor(options: Namespace, config: Config) -> int:
    """Print every finding; the exit status is that of `drover check`."""
    here = chain(
        findings_here(options, config), findings_of_machine(config), _agents(options, config), _services(config)
    )
    return report(options, config, here, _in_database)


def _agents(options: Namespace, config: Config) -> Iterator[Finding]:
    """Start an agent of each enabled type that has a program on each of its hosts, all at once."""
    try:
        refuse_root(options)
    except ConfigError:
        yield WARN, "agents: not started: they would be root; run this as the user of the daemon, or with --allow-root"
        return
    names = [name for name, agent in config.agents.items() if agent.enabled and program_finding(config, name)[0] == OK]
    with closing(Prober(config)) as prober:
        for name, reasons in prober.start(names).items():
            ready = "is READY" if config.agents[name].kind == "line" else "has its program"
            for host, reason in reasons.items():
                who, advice = f"agent {name} on {host}", f"drover agent-check {name} says more of its program"
                yield (FAIL, f"{who}: {reason}; {advice}") if reason else (OK, f"{who}: {ready}")


def _services(config: Config) -> Iterator[Finding]:
    """Log in to the service of each agent type that connects to a database itself."""
    for name, agent in config.agents.items():
        if agent.enabled and agent.database:
            who = f"log-in of agent {name} to service {agent.database}"
            try:
                psycopg.connect(service=agent.database, connect_timeout=LOGIN_LIMIT_S).close()
            except psycopg.Error as error:
                yield FAIL, refused(who, error, f"the user of service {agent.database}", "pg_service.conf")
            else:
                yield OK, who


def _in_database(config: Config, conninfo: str) -> Iterator[Finding]:
    """Yield what check finds, then what the connections of the daemon and of people are good for."""
    yield from findings_in_database(config, conninfo)
    own = conninfo_of_daemon(config, conninfo)
    try:
        yield from _server(writable(own), sum(login.sessions for login in logins(config, own)))
    except (psycopg.Error, ConfigError):
        yield FAIL, "server: not examined further: a log-in of the daemon fails, see above"
    if config.database.people_url:
        yield _people(config.database.people_url)


def _server(conninfo: str, sessions: int) -> Iterator[Finding]:
    with open_session(conninfo) as session:
        session.rows("server_facts")  # the first takes longer
        before = time.time()
        (facts,) = session.records("server_facts")
        half_s = (time.time() - before) / 2
        yield _versions(session, facts)
        yield clock(facts["clock"] - before - half_s, half_s)
        yield room(sessions, facts["most"] - facts["used"], facts["most"])
    yield _listens(conninfo)


def _versions(session: Session, facts: dict[str, Any]) -> Finding:
    libpq, server = _dotted(pq.version()), facts["version"]
    pooled = ", behind a pooler" if facts["backend"] != session.connection.info.backend_pid else ""
    ours = f"drover {version()}, Python {platform.python_version()}, psycopg {psycopg.__version__}, libpq {libpq}"
    return OK, f"versions: {ours}; PostgreSQL {server}{pooled}, schema {facts['schema']}"


def _dotted(number: int) -> str:
    """Return a version of libpq as people write it."""
    return f"{number // 10_000}.{number % 10_000}"


def clock(ahead_s: float, doubt_s: float) -> Finding:
    """Return whether the clock of the server goes as ours does, as far as the time of the answer lets us know."""
    difference = f"that of the server is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) - doubt_s <= CLOCK_LIMIT_S:
        return OK, "clock: as that of the server"
    effect = "the times of rows and of the log differ, and schedules follow the server"
    return WARN, f"clock: {difference}: {effect}; set both by NTP"


def room(sessions: int, free: int, most: int) -> Finding:
    """Return whether the server has room for all sessions that the daemon may open."""
    text = f"connections: the daemon may open {sessions}, and {free} of {most} are free"
    if sessions <= free:
        return OK, text
    advice = "raise max_connections, or lower expansions and agentdb_connections in [scheduler]"
    return WARN, f"{text} (a daemon that runs now has its own already); {advice}"


def _listens(conninfo: str) -> Finding:
    """Send a notification from one session to another, as front-ends wake the daemon."""
    channel = f"drover_doctor_{os.getpid()}"
    with open_session(conninfo) as listener, open_session(conninfo) as sender:
        listener.listen(channel)
        sender.run("notify_doctor", channel=channel)
        for _ in listener.connection.notifies(timeout=NOTIFY_LIMIT_S, stop_after=1):
            return OK, "LISTEN: a NOTIFY comes through"
    problem = f"a NOTIFY did not come within {NOTIFY_LIMIT_S:g} s, as behind a pooler of transactions"
    return WARN, f"LISTEN: {problem}; jobs wait up to poll_interval; let [database] url name the server itself"


def _people(url: str) -> Finding:
    """Log in as the commands of people do."""
    who = "log-in people (commands)"
    try:
        with open_session(url) as session:
            may = session.value("is_operator")
    except psycopg.Error as error:
        return FAIL, refused(who, error, "this role", "people_url in [database]")
    problem = "the role is no member of drover_operator, so it only reads"
    return (OK, who) if may else (WARN, f"{who}: {problem}; grant drover_operator to it, if it is to command")
