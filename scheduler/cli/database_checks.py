"""Checks of the database: log-ins over each connection of a daemon, the schema, roles, statements, notifications.

All connections of the daemon are open at once, so that a limit of connections shows here too. Changes nothing.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus

from scheduler.cli.config_files import with_logins
from scheduler.cli.database_session import (
    Session,
    conninfo_of_daemon,
    open_session,
    translated_errors,
    update_or_check,
)  # fmt: skip
from scheduler.cli.embedded_database import embedded_state_reader
from scheduler.cli.health import ADDED_BY_SITE, CRITICAL, OF_SITE, Limits, found_by, level_of, sentence
from scheduler.cli.output import FAIL, OK, WARN, Finding
from scheduler.cli.unknown_checks import NotLooked, look, not_looked
from scheduler.database import migrate
from scheduler.database.connect import advice_for, ended
from scheduler.drivers.libpq import login_of, readable, writable
from scheduler.errors import ConfigError, DatabaseAbsentError, DroverError, WorldError
from scheduler.model.config import Config
from scheduler.model.sql_text import bind
from scheduler.package_data import version

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

NOTIFY_LIMIT_S: Final = 3.0
CLOCK_LIMIT_S: Final = 2.0


def findings_in_database(config: Config, conninfo: str) -> Iterator[Finding]:
    """Yield the findings about the database; WorldError if it cannot be reached, after all log-ins were tried."""
    try:
        update_or_check(config, conninfo)
    except (DatabaseAbsentError, ConfigError):
        yield from try_logins(config, conninfo_of_daemon(config, conninfo))
        raise
    yield OK, f"database {config.database.url if config.database.url == 'embedded' else 'reached'}, schema up to date"
    yield from _server_files(config)
    with translated_errors(), open_session(conninfo) as session:
        session.run("use_plpgsql")
        problem = "the database is read-only, but a scheduler must write"
        match session.rows("read_only"):
            case [(True, True)]:
                yield FAIL, f"{problem}: it is a replica: name its primary in [database] url"
            case [(True, False)]:
                yield FAIL, f"{problem}: default_transaction_read_only is on: reset it for the database or the role"
        missing = ", ".join(name for (name,) in session.rows("missing_roles", roles=ROLES))
        yield (WARN, f"roles: {missing} missing; run drover init --roles") if missing else (OK, "roles")
    yield from try_logins(
        config, conninfo_of_daemon(config, conninfo)
    )  # while no session of ours counts against a limit
    with translated_errors(), open_session(conninfo) as session:
        yield from _warnings(session)
        yield from _objects_of_site(session)
        yield from _hosts_down(session, config.scheduler.group)
    yield from _statements(config, conninfo)


def _server_files(config: Config) -> Iterator[Finding]:
    """Yield from what the embedded server runs, and whether those files are still there."""
    read = embedded_state_reader(config.database.url)
    if read is None or (state := read()) is None:
        return
    yield (WARN, f"embedded server: {state.trouble}") if state.trouble else (OK, f"embedded server: {state.binaries}")


def _warnings(session: Session) -> Iterator[Finding]:
    """Yield what `drover init` refuses now, rights that PostgreSQL 14 gave to all, and clean-ups that are not done."""
    encoding = session.connection.info.parameter_status("server_encoding")
    if encoding not in migrate.ENCODINGS:
        yield WARN, migrate.wrong_encoding(encoding)
    if session.value("public_is_open"):
        problem = "schema public: every role may create tables and functions there, SQL of jobs and agents too"
        yield WARN, f"{problem}; unless that is wanted: revoke create on schema public from public"
    for restriction in session.restrictions("jobqueue"):
        yield WARN, f"clean-ups: {restriction}"
    stuck = look(session, partial(session.rows, "stuck_clean_ups"))
    failed = look(session, partial(session.value, "failed_clean_ups"))
    for what, found in (("clean-ups that no agent can do", stuck), ("clean-ups that have failed", failed)):
        if isinstance(found, NotLooked):
            yield WARN, found.sentence(what)
    for waiting, first, why in () if isinstance(stuck, NotLooked) else stuck:
        if waiting:
            yield WARN, f"clean-ups: no agent can do {waiting} that wait, such as job {first}: {why}"
    if failed and not isinstance(failed, NotLooked):
        yield WARN, f"clean-ups: {failed} have failed; drover ls -S failed -t cleanup, and drover retry"


def _objects_of_site(session: Session) -> Iterator[Finding]:
    """Yield what the site has put on our tables: what stops the queue, what is in the way, and what may stay."""
    for row in found_by((*OF_SITE, ADDED_BY_SITE), session, Limits()):
        yield FAIL if level_of(row) == CRITICAL else WARN, ": ".join(sentence(row))


def _hosts_down(session: Session, group: str) -> Iterator[Finding]:
    """Yield the hosts that the active scheduler cannot reach: since when, why, and when it tries next."""
    found = look(session, partial(session.rows, "hosts_down", group=group))
    if isinstance(found, NotLooked):
        yield WARN, found.sentence("host down")
        return
    for row in found:
        yield WARN, ": ".join(sentence(("host down", *row, "")))


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
            session.connection.execute("reset search_path")  # these are the site's
            for where, text in texts.items():
                problem = _problem(session.connection, text)
                yield (FAIL, f"{where}: {problem}") if problem else (OK, where)
    except WorldError as error:
        unlooked = not_looked(error.__cause__)
        yield (WARN, unlooked.sentence("statements")) if unlooked else (
            FAIL, "statements: not checked, because the log-in agent-database failed; correct that first"
        )  # fmt: skip
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


# ---- log-ins


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
        session = Session(held.enter_context(ended(psycopg.connect(make_conninfo("", **given), autocommit=True))))
        is_right = login.connection not in ("queue", "watch") or session.value("may_register")
        most = session.value("role_connection_limit")
    except psycopg.Error as error:
        return _refused(who, error, login.role, login.keys)
    if not is_right and login.keys == VARIABLE:  # perhaps a person runs the check
        problem = f"this role may not register a scheduler: {VARIABLE} is not a daemon's login"
        return WARN, f"{who}: {problem}; unset it to check [database] url"
    if not is_right:
        return FAIL, f"{who}: this role may not register a scheduler; let {login.keys} name {SCHEDULER}"
    if 0 <= most < login.sessions:
        problem = f"the role is limited to {most} connections, and the daemon may open {login.sessions}"
        return WARN, f"{who}: {problem}; alter role {login.role} connection limit {login.sessions}, or the rest waits"
    return OK, who


def _refused(who: str, error: psycopg.Error, role: str, keys: str) -> Finding:
    """Return that a log-in is refused or lacks a right, or that a time limit or a lock left this open."""
    unlooked = not_looked(error)
    if unlooked and not isinstance(error, psycopg.errors.InsufficientPrivilege):
        return WARN, unlooked.sentence(who)
    return FAIL, refused(who, error, role, keys)


def refused(who: str, error: psycopg.Error, role: str, keys: str) -> str:
    """Return what the server says of a log-in that it refuses, and what to do next."""
    refusal = str(error).removeprefix("connection failed: ")
    return f"{who}: {refusal}; {advice_for(refusal).format(role=role, keys=keys)}"


# ---- what drover doctor tries


def tried_in_database(config: Config, conninfo: str) -> Iterator[Finding]:
    """Yield the findings of check, then those about the connections of the daemon and of people."""
    yield from findings_in_database(config, conninfo)
    own = conninfo_of_daemon(config, conninfo)
    try:
        yield from _server(writable(own), sum(login.sessions for login in logins(config, own)))
    except (psycopg.Error, ConfigError) as error:
        unlooked = not_looked(error)
        yield (WARN, unlooked.sentence("server")) if unlooked else (
            FAIL, "server: not examined further: a log-in of the daemon fails, see above"
        )  # fmt: skip
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
        return _refused(who, error, "this role", "people_url in [database]")
    problem = "the role is no member of drover_operator, so it only reads"
    return (OK, who) if may else (WARN, f"{who}: {problem}; grant drover_operator to it, if it is to command")
