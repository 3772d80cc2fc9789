"""Find and read configuration files and the passwords they name; refuse those that others could write or read.

The first file that exists: the file given with -c, DROVER_CONFIG, the user's own, the machine's, the shipped one; then
conf.d/*.toml beside it, sorted by name. What the texts mean is in scheduler.model.config_text. A password in a file of
its own is kept nowhere but in the connection string that it belongs to. Templates of the bundled shell agent are
checked by its own module (agents/shell/quoting.py), which is loaded from where the agents are.
"""

import importlib.util
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from stat import S_IMODE
from types import ModuleType
from typing import Final

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.errors import ConfigError
from scheduler.model.config import Config, Contradiction, Database
from scheduler.model.config_text import holds_secret, parse
from scheduler.package_data import agents_dir, etc_dir

SYSTEM = Path("/etc/drover/drover.toml")
USER = Path(".config/drover/drover.toml")
Check = Callable[[Config], Iterable[Contradiction]]
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0


def load(option: str | None, environ: Mapping[str, str], system: Path = SYSTEM, *checks: Check) -> Config:
    """The configuration that applies; `option` is the argument of -c. DROVER_DATABASE_URL beats database.url.

    `checks` give mistakes beside those of every configuration: what only a daemon needs.

    It beats database.people_url and password_file too: it may be another login. A password in a file is not read yet.
    Errors: ConfigError, every mistake: of the files if one cannot be read or trusted, else of what they say.
    """
    config = parse(read(locate(option, environ, system)), template_mistakes, *checks)
    url = environ.get("DROVER_DATABASE_URL")
    if not url:
        return config
    return attrs.evolve(config, database=attrs.evolve(config.database, url=url, people_url="", password_file=""))


def database_alone(environ: Mapping[str, str]) -> Config | None:
    """A configuration of nothing but the database that DROVER_DATABASE_URL names, if it names one."""
    url = environ.get("DROVER_DATABASE_URL")
    return Config(database=Database(url=url)) if url else None


def locate(option: str | None, environ: Mapping[str, str], system: Path = SYSTEM) -> Path:
    """The main file: one that was asked for need not exist (reading it says so), the others do."""
    asked = option or environ.get("DROVER_CONFIG")
    if asked:
        return Path(asked)
    home = environ.get("HOME")
    candidates = [Path(home) / USER, system] if home else [system]
    return next((path for path in candidates if _is_there(path)), shipped())


def shipped() -> Path:
    """The configuration that comes with the program; it is trusted as the program is."""
    return etc_dir() / "drover.toml"


def read(main: Path) -> list[tuple[str, str]]:
    """(file name, text) of the main file, then of each of its conf.d, sorted.

    Errors: ConfigError, naming every file and directory that cannot be read or trusted.
    """
    if main == shipped():
        return [(str(main), _decoded(main, _content(main)[0]))]
    folder = main.parent / "conf.d"
    parts = _parts(folder)
    mistakes = [*_directory_mistakes(main.parent, [main, folder]), *_directory_mistakes(folder, parts)]
    for target in dict.fromkeys(path.resolve() for path in (main, *parts) if path.is_symlink()):
        mistakes += _directory_mistakes(target.parent, [target])
    texts: list[tuple[str, str]] = []
    for path in (main, *parts):
        try:
            texts.append((str(path), _trusted_text(path)))
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return texts


def _is_there(path: Path) -> bool:
    """A file behind a closed directory is there: to pass over it would be to run another configuration."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _parts(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    return [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def _directory_mistakes(folder: Path, entries: list[Path]) -> Iterator[str]:
    """A sticky directory like /tmp is safe as long as what we read in it belongs to us or to root."""
    try:
        mode = folder.stat().st_mode
        strangers = [path for path in entries if _is_there(path) and not _is_ours(path.lstat())]
    except OSError:
        return  # whatever is in it cannot be read either, and that is told better
    if not mode & WRITABLE:
        return
    if not mode & stat.S_ISVTX:
        yield f"{folder}: others may write to this directory{_mode(mode)}; chmod go-w {folder}"
    for path in strangers:
        yield f"{path}: belongs to another user, in a directory that all may write to; move it"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (ROOT, os.geteuid())


def _trusted_text(path: Path) -> str:
    """The text of a file that its owner alone may write, and read if it holds a password."""
    data, status = _content(path)
    if status.st_mode & WRITABLE:
        raise ConfigError(f"{path}: others may write to this file{_mode(status.st_mode)}; chmod go-w {path}")
    text = _decoded(path, data)
    if holds_secret(text) and others_may_read(status):
        raise ConfigError(f"{path}: holds a password and others may read it{_mode(status.st_mode)}; chmod 600 {path}")
    return text


def _content(path: Path) -> tuple[bytes, os.stat_result]:
    """Bytes and status of the same open file, so that nobody can change one for the other between."""
    try:
        with path.open("rb") as file:
            return file.read(), os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; see -c and DROVER_CONFIG") from error


def _mode(mode: int) -> str:
    return f" (mode {stat.S_IMODE(mode):04o})"


def others_may_read(status: os.stat_result) -> bool:
    """The group may read a file of root: so root gives a daemon its password (libpq has it so for keys)."""
    return bool(status.st_mode & (stat.S_IROTH if status.st_uid == ROOT else stat.S_IROTH | stat.S_IRGRP))


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: syntax: is not UTF-8 (got byte {data[error.start]:#x})") from None


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
        if name and not is_embedded_url(getattr(found, key) or found.url):
            own = getattr(found, key)
            file_key = key.replace("url", "password_file")
            url = _joined(file_key, own or found.url, {} if own else {"user": role}, name, environ)
            found = attrs.evolve(found, **{key: url, file_key: ""})
    return attrs.evolve(config, database=found)


def without_password(url: str) -> str:
    """Return a connection string that is given in public. Errors: ConfigError if a password is in it."""
    try:
        has_password = not is_embedded_url(url) and "password" in conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError("-d: the connection string cannot be read") from None
    if has_password:
        raise ConfigError("-d: everybody may see a command line; put the password into ~/.pgpass or a password_file")
    return url


def is_embedded_url(url: str) -> bool:
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
    path = _password_path(where, name, environ)
    try:
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), file.read(LONGEST + 2)
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if others_may_read(status):
        raise ConfigError(f"{where}: others may read {path} (mode {S_IMODE(status.st_mode):04o}); chmod 400 {path}")
    return _password_text(where, path, data.removesuffix(b"\n").removesuffix(b"\r"))


def _password_path(where: str, name: str, environ: Mapping[str, str]) -> Path:
    if "/" in name:
        return Path(name)
    folder = environ.get(CREDENTIALS)
    if not folder:
        raise ConfigError(
            f"{where}: ${CREDENTIALS} is not set, which systemd does for LoadCredential={name}:FILE; "
            f"name a file by its path (got {name!r})"
        )
    return Path(folder) / name


def _password_text(where: str, path: Path, data: bytes) -> str:
    if not data:
        raise ConfigError(f"{where}: {path} is empty")
    if len(data) > LONGEST or b"\n" in data or b"\0" in data:
        raise ConfigError(f"{where}: {path} must hold one line, of {LONGEST} bytes at most")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8") from None


SHELL_AGENT: Final = "drover-agent-shell"
WHOLE_LINE: Final = "%{*}"
WITH_VALUE: Final = "--heartbeat"  # its one option; the value may be the next word


def template_mistakes(config: Config) -> Iterator[Contradiction]:
    """Every type whose template could run, split or expand what is in an item: the path to blame, and a message."""
    for name, agent in config.agents.items():
        is_shell = Path(agent.command[0]).name == SHELL_AGENT
        if is_shell and (mistake := _template_mistake(template_of(agent.command[1:]))):
            yield ("agents", name, "command"), mistake


def template_of(words: Sequence[str]) -> str:
    """Return the template among the words behind the name of the agent; the default if there is none."""
    is_value = is_end = False
    for word in words:
        if is_value:
            is_value = False
        elif is_end or not word.startswith("-"):
            return word
        else:
            is_value, is_end = word == WITH_VALUE, word == "--"
    return WHOLE_LINE


def _template_mistake(template: str) -> str:
    quoting = _quoting()
    if quoting is None or template.strip() == WHOLE_LINE:
        return ""
    try:
        quoting.check(template)
    except ValueError as error:
        return f"is no safe template: {error}"
    return ""


@cache
def _quoting() -> ModuleType | None:
    """Load the grammar of the agent; None if it is not there."""
    path = agents_dir() / "shell" / "quoting.py"
    spec = importlib.util.spec_from_file_location("drover_shell_quoting", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
