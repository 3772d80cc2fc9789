"""`drover init` and `drover psql`: the schema of the database, and psql on it, logged in as the commands log in.

The login goes to psql in the environment, so that no password is on a command line. The embedded server runs for as
long as psql does.
"""

import os
import signal
import subprocess
from argparse import Namespace
from shutil import which

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from scheduler.cli.config_files import is_embedded_url
from scheduler.cli.database_session import people_database, running_or_new_database, translated_errors
from scheduler.database import migrate
from scheduler.errors import ConfigError, WorldError
from scheduler.model.config import Config


def init(options: Namespace, config: Config) -> int:
    """Apply what is missing, all or nothing, and print what that was; running it again does nothing."""
    roles = options.roles or is_embedded_url(config.database.url)  # there the daemon logs in as a role of its own
    with running_or_new_database(config) as conninfo, translated_errors():
        with migrate.changing(conninfo) as connection:
            lines = [migrate.server(connection), *_apply(connection, options, roles=roles)]
        print(*lines, sep="\n")  # when it has taken effect
    return 0


def _apply(connection: psycopg.Connection, options: Namespace, *, roles: bool) -> list[str]:
    """Apply what is missing and what was asked for; return a line about each."""
    applied = migrate.apply_missing(connection)
    lines = [f"applied {name}" for name in applied] or ["nothing to do"]
    if roles:
        migrate.apply_roles(connection)
        lines.append("applied roles")
    elif applied not in ([], ["commands"]) and migrate.has_roles(connection):
        lines.append("the roles have no rights yet on the new tables and functions; run drover init --roles")
    there = migrate.present_compat(connection) if roles else migrate.lost_compat(connection)
    for name in sorted({*options.compat, *there}):
        migrate.apply_compat(connection, name)
        lines.append(f"applied compat/{name}.sql")
    return lines


def run_psql(options: Namespace, config: Config) -> int:
    """Run psql with these arguments; return its exit status. Errors: ConfigError if it is not installed."""
    program = _program()
    with people_database(config) as conninfo:
        process = subprocess.Popen([program, *options.args], env=environment(conninfo))
        ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is psql's: it cancels a statement
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, ours)


def environment(conninfo: str) -> dict[str, str]:
    """Return our environment with the variables of libpq that say the same as a conninfo."""
    variables = {each.keyword.decode(): each.envvar.decode() for each in pq.Conninfo.get_defaults() if each.envvar}
    given = {variables[key]: str(value) for key, value in conninfo_to_dict(conninfo).items() if key in variables}
    return os.environ | {"PGAPPNAME": "drover psql"} | given


def _program() -> str:
    if found := which("psql"):
        return found
    from scheduler.database.embedded import find_binaries

    try:
        program = find_binaries() / "psql"
    except WorldError:
        program = None
    if program is None or not program.exists():
        raise ConfigError("psql is not installed here: install postgresql-client")
    return str(program)
