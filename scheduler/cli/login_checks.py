"""Log in as the daemon does, over each of its connections, and say what to do where one is refused."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.config_files import with_logins
from scheduler.cli.findings import FAIL, OK, WARN, Finding
from scheduler.cli.session import Session
from scheduler.database.connected import ended
from scheduler.drivers.libpq import login_of, readable, writable
from scheduler.errors import ConfigError
from scheduler.model.config import Config

LOGIN_LIMIT_S: Final = 15
VARIABLE: Final = "DROVER_DATABASE_URL"
SCHEDULER: Final = "drover_scheduler"
MSQ: Final = "drover_msq"
AGENTDB: Final = "drover_agentdb"

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
        return FAIL, refused(who, error, login.role, login.keys)
    if not is_right and login.keys == VARIABLE:  # perhaps a person runs the check
        problem = f"this role may not register a scheduler: {VARIABLE} is not a daemon's login"
        return WARN, f"{who}: {problem}; unset it to check [database] url"
    if not is_right:
        return FAIL, f"{who}: this role may not register a scheduler; let {login.keys} name {SCHEDULER}"
    if 0 <= most < login.sessions:
        problem = f"the role is limited to {most} connections, and the daemon may open {login.sessions}"
        return WARN, f"{who}: {problem}; alter role {login.role} connection limit {login.sessions}, or the rest waits"
    return OK, who


def refused(who: str, error: psycopg.Error, role: str, keys: str) -> str:
    """Return what the server says of a log-in that it refuses, and what to do next."""
    refusal = str(error).removeprefix("connection failed: ")
    advice = next((words for pattern, words in ADVICE if re.search(pattern, refusal)), OTHER_ADVICE)
    return f"{who}: {refusal}; {advice.format(role=role, keys=keys)}"
