"""The passwords that stand in files of their own: found, trusted, read once, and put into connection strings.

A plain name is a file of $CREDENTIALS_DIRECTORY, where systemd puts what LoadCredential= names; anything else is a
whole path. A password is never told, nor kept anywhere but in the connection string that it belongs to.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.files import others_may_read
from scheduler.errors import ConfigError
from scheduler.model.config import Config

EMBEDDED = "embedded"  # or embedded:DIRECTORY
CREDENTIALS = "CREDENTIALS_DIRECTORY"  # systemd.exec(5)
LONGEST = 1000  # bytes; libpq takes no more


def with_password(config: Config, environ: Mapping[str, str]) -> Config:
    """The configuration with database.password_file read into database.url. Errors: ConfigError."""
    name = config.database.password_file
    if not name:
        return config
    url = _joined("password_file", config.database.url, {}, name, environ)
    return attrs.evolve(config, database=attrs.evolve(config.database, url=url, password_file=""))


def with_logins(config: Config, environ: Mapping[str, str]) -> Config:
    """The same with the passwords of the logins for SQL jobs and for agents, which only the daemon needs."""
    found = config.database
    for key, name, role in (
        ("msq_url", found.msq_password_file, "drover_msq"),
        ("agentdb_url", found.agentdb_password_file, "drover_agentdb"),
    ):
        if name and not is_embedded(getattr(found, key) or found.url):
            own = getattr(found, key)
            file_key = key.replace("url", "password_file")
            url = _joined(file_key, own or found.url, {} if own else {"user": role}, name, environ)
            found = attrs.evolve(found, **{key: url, file_key: ""})
    return attrs.evolve(config, database=found)


def shown(url: str) -> str:
    """Give a connection string that everybody may have seen. Errors: ConfigError if a password is in it."""
    try:
        has_password = not is_embedded(url) and "password" in conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError("-d: the connection string cannot be read") from None
    if has_password:
        raise ConfigError("-d: everybody may see a command line; put the password into ~/.pgpass or a password_file")
    return url


def is_embedded(url: str) -> bool:
    """Whether a database is one that we start ourselves: it asks for no password."""
    return url == EMBEDDED or url.startswith(f"{EMBEDDED}:")


def _joined(key: str, url: str, changes: dict[str, str], name: str, environ: Mapping[str, str]) -> str:
    where = f"database.{key}"
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(f"{where}: the connection string that it belongs to cannot be read") from None  # nor told
    if given.get("password") and not changes:
        raise ConfigError(f"{where}: the connection string has a password already; keep one of them")
    return make_conninfo(url, **changes, password=_password(where, name, environ))


def _password(where: str, name: str, environ: Mapping[str, str]) -> str:
    """The one line of a file that nobody else may read."""
    path = _place(where, name, environ)
    try:
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), file.read(LONGEST + 2)
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if others_may_read(status):
        raise ConfigError(f"{where}: others may read {path} (mode {S_IMODE(status.st_mode):04o}); chmod 400 {path}")
    return _text(where, path, data.removesuffix(b"\n").removesuffix(b"\r"))


def _place(where: str, name: str, environ: Mapping[str, str]) -> Path:
    if "/" in name:
        return Path(name)
    folder = environ.get(CREDENTIALS)
    if not folder:
        raise ConfigError(
            f"{where}: ${CREDENTIALS} is not set, which systemd does for LoadCredential={name}:FILE; "
            f"name a file by its path (got {name!r})"
        )
    return Path(folder) / name


def _text(where: str, path: Path, data: bytes) -> str:
    if not data:
        raise ConfigError(f"{where}: {path} is empty")
    if len(data) > LONGEST or b"\n" in data or b"\0" in data:
        raise ConfigError(f"{where}: {path} must hold one line, of {LONGEST} bytes at most")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8") from None
