"""Logins of people who sign in: with the role and the password that they gave, and with nothing of this process.

libpq fills in what a conninfo leaves out: from a service file, variables of the environment, a file of passwords, a
certificate in the home directory, a ticket of Kerberos. So a login that says only role and password could be that of
the user who runs `drover web`. Where the server is, and how it proves who it is, is kept from the configuration. Every
other keyword that the linked libpq knows is given a value here, and after the login the connection is asked what it
used, and the server whom it let in.
"""

from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from scheduler.errors import ConfigError

OF_SERVER: Final = frozenset((
    "service", "servicefile", "host", "hostaddr", "port", "dbname", "target_session_attrs", "load_balance_hosts",
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
    "sslmode", "sslnegotiation", "sslcompression", "sslrootcert", "sslcrl", "sslcrldir", "sslsni", "requirepeer",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "min_protocol_version", "max_protocol_version",
    "channel_binding", "client_encoding", "application_name", "fallback_application_name",
))  # fmt: skip
ABSENT: Final = "/dev/null/none"  # no file: libpq takes an empty name for that in the home directory
UNUSED: Final[Mapping[str, str]] = {
    "passfile": ABSENT, "sslcert": ABSENT, "sslkey": ABSENT, "sslcertmode": "disable", "gssencmode": "disable",
    "gssdelegation": "0",
}  # fmt: skip
NEVER_EMPTY: Final = ("scram_client_key", "scram_server_key")  # libpq refuses an empty one; `check` finds a given one
WITH_PASSWORD: Final = ("scram-sha-256", "md5", "password")
UNPROVEN: Final = (
    "the database lets this role in without a password, so a login proves nothing: set one up in pg_hba.conf, or sign "
    "in with the key"
)


def conninfo_of(conninfo: str, role: str, password: str) -> str:
    """Return the conninfo of a role at the server of another conninfo."""
    known = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}
    given = conninfo_to_dict(conninfo)
    configured = known | {name: str(value) for name, value in given.items()}
    made = {name: value for name, value in given.items() if name in OF_SERVER}
    made |= {name: UNUSED.get(name, "") for name in known if name not in OF_SERVER and name not in NEVER_EMPTY}
    if "require_auth" in known:  # since libpq 16
        made["require_auth"] = _methods(configured["require_auth"])
    if not configured["dbname"] and not configured["service"]:
        made["dbname"] = configured["user"]  # libpq would take the role's name
    return make_conninfo("", **{**made, "user": role, "password": password})


def check(connection: psycopg.Connection, conninfo: str, role: str) -> None:
    """Raise ConfigError unless the server asked for the password, got only that, and let this role in."""
    pg, wanted = connection.pgconn, conninfo_to_dict(conninfo)
    used = {option.keyword.decode(): (option.val or b"").decode() for option in pg.info}
    if others := [name for name, value in used.items() if name not in OF_SERVER and value != wanted.get(name, "")]:
        raise ConfigError(f"the login of drover web has {', '.join(others)}, which would serve for everybody: take it "
                          "out of url, of the service file and of the environment")  # fmt: skip
    if not pg.used_password or ("require_auth" in used and pg.used_gssapi):  # both came with libpq 16
        raise ConfigError(UNPROVEN)
    if (row := connection.execute("select session_user").fetchone()) != (role,):
        raise ConfigError(f"the database let another role in, {row and row[0]}: a pooler before it signs in for others")


def _methods(configured: str) -> str:
    """Return the methods that prove a password, without those that the configuration excludes."""
    words = [word.strip() for word in configured.split(",") if word.strip()]
    if configured.startswith("!"):
        left = [method for method in WITH_PASSWORD if f"!{method}" not in words]
    else:
        left = [method for method in WITH_PASSWORD if method in words]
    return ",".join(left or WITH_PASSWORD)
