"""The log-ins of the daemon, tried one by one: which role on which connection, and what to do where one is refused.

Opens what `drover run` opens, in the same order and all at once, so that a limit of connections shows here as it would
there. Changes nothing.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.secrets import with_logins
from scheduler.drivers.postgres_connect import login_of, readable, writable
from scheduler.errors import ConfigError
from scheduler.model.config import Config

LIMIT_S: Final = 15  # for one log-in
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
ELSE: Final = "look into the log of the server, and correct {keys}"
OF_SCHEDULER: Final = ("queue", "watch")
MAY_REGISTER: Final = "select has_table_privilege('drover.scheduler', 'insert')"
LIMIT: Final = "select rolconnlimit from pg_roles where rolname = session_user"

Finding = tuple[Literal["ok", "WARN", "FAIL"], str]


@dataclass(frozen=True, slots=True)
class Login:
    """A connection that the daemon makes, what for, by which connection string, and the keys that decide about it."""

    connection: str
    purpose: str
    conninfo: str
    keys: str
    count: int  # of connections that are opened in this way

    @property
    def role(self) -> str:
        """The role that it names, or else libpq's choice."""
        return login_of(self.conninfo) or os.environ.get("PGUSER") or "the user of the daemon"


def logins(config: Config, conninfo: str) -> Iterator[Login]:
    """Every log-in that a daemon with this configuration makes. Errors: ConfigError, a password that cannot be read."""
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
        count = config.scheduler.agentdb_connections
        yield Login("agent-database", f"DB: lines of {', '.join(asking)}", url, keys, count)


def tried(config: Config, conninfo: str) -> Iterator[Finding]:
    """Log in as the daemon does, over each of its connections, and keep them all until the last is there."""
    with ExitStack() as held:
        try:
            for login in logins(config, conninfo):
                yield _tried(login, held)
        except ConfigError as error:
            yield "FAIL", f"log-in: {error}"


def _tried(login: Login, held: ExitStack) -> Finding:
    who = f"log-in {login.connection} ({login.purpose}) as {login.role}"
    try:
        given = {"connect_timeout": LIMIT_S, **conninfo_to_dict(login.conninfo)}
        connection = held.enter_context(psycopg.connect(make_conninfo("", **given), autocommit=True))
        is_right = login.connection not in OF_SCHEDULER or connection.execute(MAY_REGISTER).fetchone() == (True,)
        ((most,),) = connection.execute(LIMIT).fetchall()
    except psycopg.Error as error:
        refusal = str(error).removeprefix("connection failed: ")
        return "FAIL", f"{who}: {refusal}; {advice(login, refusal)}"
    if not is_right and login.keys == VARIABLE:  # a person looks, perhaps
        return "WARN", f"{who}: this role may not register a scheduler: {VARIABLE} is for no daemon, and hides its URL"
    if not is_right:
        return "FAIL", f"{who}: this role may not register a scheduler; let {login.keys} name {SCHEDULER}"
    if 0 <= most < login.count:
        return "WARN", f"{who}: its role may have {most} connections, and {login.count} may be wanted: the rest waits"
    return "ok", who


def advice(login: Login, refusal: str) -> str:
    """Return what to do next about a log-in that was refused."""
    next_step = next((words for pattern, words in ADVICE if re.search(pattern, refusal)), ELSE)
    return next_step.format(role=login.role, keys=login.keys)
