"""Find and read configuration files and the passwords they name; refuse those that others could write or read.

The first file that exists: the file given with -c, DROVER_CONFIG, the user's own, the machine's (four places), the
shipped one; then conf.d/*.toml beside it, sorted by name. What the texts mean is in scheduler.model.config_reader.
"""

import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.output import Table, failed, print_records, print_table
from scheduler.drivers.home_directory import home_directory
from scheduler.errors import ConfigError
from scheduler.model.config import AgentType, Config, Database, Mistake
from scheduler.model.config import Path as Key
from scheduler.model.config_reader import dotted, holds_secret, key_lines, masked, parse
from scheduler.package_data import agent_module, etc_dir

SYSTEM: Final = Path("etc/drover/drover.toml")  # below each of these, and first below the prefix of the installation
PREFIXES: Final = (Path("/usr/local"), Path("/usr"), Path("/"))
OWN_ENVIRONMENT: Final = Path("lib/drover")  # below the prefix of `make install`
USER: Final = Path(".config/drover/drover.toml")
WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
ROOT: Final = 0
EMBEDDED: Final = "embedded"  # or embedded:DIRECTORY
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"  # systemd.exec(5)
LONGEST_PASSWORD: Final = 1000  # bytes; libpq takes no more
SHELL_AGENT: Final = "drover-agent-shell"
WHOLE_LINE: Final = "%{*}"
WITH_VALUE: Final = "--heartbeat"  # the one option of that agent; the value may be the next word
# A shell reads the prelude, then executes the program, or calls the function of that name that the prelude defines.
# This text has no braces: in a command the words in braces, such as {args}, are replaced.
# Its mode is looked at here too, as it may be on another host: a w for the group or for others.
BEHIND_PRELUDE: Final = (
    'case $(ls -dlL "$0") in ?????w*|????????w*) echo "others may write to $0; chmod go-w $0" >&2; exit 126 ;; esac; '
    'test -r "$0" && . "$0" || exit; case $(command -v -- "$1") in */*) exec "$@" ;; esac; "$@"'
)

Check = Callable[[Config], Iterable[Mistake]]

DEFAULT_ORIGIN: Final = "default"
OVERRIDDEN: Final = ("url", "people_url", "password_file")  # keys of [database], by DROVER_DATABASE_URL


def prefix(environment: Path) -> Path:
    """Return the prefix of an installation in a Python environment; `make install` makes PREFIX/lib/drover."""
    depth = len(OWN_ENVIRONMENT.parts)
    return environment.parents[depth - 1] if environment.parts[-depth:] == OWN_ENVIRONMENT.parts else environment


def system_files(environment: Path) -> tuple[Path, ...]:
    """Return where the machine's file may be, the nearest to the installation first."""
    return tuple(dict.fromkeys(place / SYSTEM for place in (prefix(environment), *PREFIXES)))


def load(
    option: str | None, environ: Mapping[str, str], system: Sequence[Path] | None = None, checks: Sequence[Check] = ()
) -> Config:
    """Return the configuration that applies; `option` is the argument of -c, `checks` find what only a daemon needs.

    DROVER_DATABASE_URL overrides database.url, people_url and password_file: it may be another login. A password in a
    file is not read yet. Errors: ConfigError, every mistake: of the files if one cannot be read or trusted, else of
    what they say.
    """
    main = locate(option, environ, system)
    config = parse(read(main), template_mistakes, *checks, processors=processors())
    url = environ.get("DROVER_DATABASE_URL")
    database = attrs.evolve(config.database, url=url, people_url="", password_file="") if url else config.database
    agents = {name: _with_prelude(agent, main.absolute().parent) for name, agent in config.agents.items()}
    return attrs.evolve(config, database=database, agents=agents)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def _with_prelude(agent: AgentType, folder: Path) -> AgentType:
    """Return the type with its command behind the file that is read before it, in the folder unless it says another."""
    if not agent.prelude:
        return agent
    prelude = str(folder / agent.prelude)
    words = ("sh", "-c", BEHIND_PRELUDE, prelude.replace("{", "{{"))
    return attrs.evolve(agent, prelude=prelude, command=(*words, *agent.command))


def locate(option: str | None, environ: Mapping[str, str], system: Sequence[Path] | None = None) -> Path:
    """Return the main file: one that was asked for need not exist (reading it says so), the others do.

    Errors: ConfigError, HOME is no absolute path.
    """
    if asked := option or environ.get("DROVER_CONFIG"):
        return Path(asked)
    machines = system_files(Path(sys.prefix)) if system is None else system
    candidates = [*([home_directory(environ) / USER] if environ.get("HOME") else []), *machines]
    return next((path for path in candidates if _exists(path)), shipped())


def shipped() -> Path:
    """Return the configuration that comes with the program; it is trusted as the program is."""
    return etc_dir() / "drover.toml"


def read(main: Path) -> list[tuple[str, str]]:
    """Return (file name, text) of the main file, then of each of its conf.d, sorted.

    Errors: ConfigError, naming every file and directory that cannot be read or trusted.
    """
    if main == shipped():
        return [(str(main), _text(main))]
    folder = main.parent / "conf.d"
    parts = _parts(folder)
    mistakes = [*_directory_mistakes(main.parent, [main, folder]), *_directory_mistakes(folder, parts)]
    for target in dict.fromkeys(path.resolve() for path in (main, *parts) if path.is_symlink()):
        mistakes += _directory_mistakes(target.parent, [target])
    texts: list[tuple[str, str]] = []
    for path in (main, *parts):
        try:
            texts.append((str(path), _text(path)))
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return texts


def _exists(path: Path) -> bool:
    """Return whether a file exists; one behind a closed directory does: to skip it would run another configuration."""
    try:
        path.stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
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
    """Yield who else may change a directory; a sticky one like /tmp is safe if its entries are ours or root's."""
    try:
        mode = folder.stat().st_mode
        strangers = [path for path in entries if _exists(path) and path.lstat().st_uid not in (ROOT, os.geteuid())]
    except OSError:
        return  # what is in it cannot be read either, and the message about that says more
    if not mode & WRITABLE:
        return
    if not mode & stat.S_ISVTX:
        yield f"{folder}: others may write to this directory{_shown(mode)}; chmod go-w {folder}"
    for path in strangers:
        yield f"{path}: belongs to another user, where every user may write; move it to a directory of yours"


def _text(path: Path) -> str:
    """Return the text of a file that its owner alone may write, and read if it holds a password."""
    try:
        with path.open("rb") as file:
            data, status = file.read(), os.fstat(file.fileno())  # of the same file, whatever has this name now
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; see -c and DROVER_CONFIG") from error
    if status.st_mode & WRITABLE and path != shipped():
        raise ConfigError(f"{path}: others may write to this file{_shown(status.st_mode)}; chmod go-w {path}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: syntax: is not UTF-8 (got byte {data[error.start]:#x})") from None
    if holds_secret(text) and _others_may_read(status):
        raise ConfigError(f"{path}: holds a password and others may read it{_shown(status.st_mode)}; chmod 600 {path}")
    return text


def _shown(mode: int) -> str:
    return f" (mode {stat.S_IMODE(mode):04o})"


def _others_may_read(status: os.stat_result) -> bool:
    """Return whether others may read a file; the group may read one of root, as root gives a daemon its password."""
    return bool(status.st_mode & (stat.S_IROTH if status.st_uid == ROOT else stat.S_IROTH | stat.S_IRGRP))


def with_password(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the configuration with database.password_file read into database.url. Errors: ConfigError."""
    return attrs.evolve(config, database=_with_password(config.database, "url", "", environ))


def with_logins(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the same with the passwords of the logins for SQL jobs and for agents, which only the daemon needs."""
    database = _with_password(config.database, "msq_url", "drover_msq", environ)
    return attrs.evolve(config, database=_with_password(database, "agentdb_url", "drover_agentdb", environ))


def without_password(url: str) -> str:
    """Return a connection string that may be shown. Errors: ConfigError if a password is in it."""
    try:
        has_password = not is_embedded_url(url) and "password" in conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(
            "-d: not a connection string; write key=value pairs, or a URL that starts with postgresql://"
        ) from None
    if has_password:
        raise ConfigError(
            "-d: every user of this machine can read a command line; put the password into ~/.pgpass or a password_file"
        )
    return url


def is_embedded_url(url: str) -> bool:
    """Return whether a database is one that we start ourselves: it asks for no password."""
    return url == EMBEDDED or url.startswith(f"{EMBEDDED}:")


def _with_password(database: Database, key: str, role: str, environ: Mapping[str, str]) -> Database:
    """Return the same with the password in the file that belongs to a key; without its own url it is url, as a role."""
    file_key = key.replace("url", "password_file")
    where, name, own = f"database.{file_key}", getattr(database, file_key), getattr(database, key)
    url = own or database.url
    if not name or is_embedded_url(url):
        return database
    try:
        has_password = bool(conninfo_to_dict(url).get("password"))
    except psycopg.Error:
        raise ConfigError(
            f"{where}: its url is not a connection string; write key=value pairs, or a URL"
        ) from None  # nor shown
    if has_password and own:
        raise ConfigError(f"{where}: the connection string has a password already; keep one of them")
    login = {} if own else {"user": role}
    complete = make_conninfo(url, **login, password=_password(where, name, environ))
    return attrs.evolve(database, **{key: complete, file_key: ""})


def _password(where: str, name: str, environ: Mapping[str, str]) -> str:
    """Return the one line of a file that only its owner may read."""
    folder = environ.get(CREDENTIALS)
    if "/" not in name and not folder:
        raise ConfigError(
            f"{where}: ${CREDENTIALS} is not set, which systemd does for LoadCredential={name}:FILE; "
            f"name a file by its path (got {name!r})"
        )
    path = Path(name) if "/" in name else Path(folder or "", name)
    try:
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), file.read(LONGEST_PASSWORD + 2)
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if _others_may_read(status):
        raise ConfigError(f"{where}: others may read {path}{_shown(status.st_mode)}; chmod 400 {path}")
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise ConfigError(f"{where}: {path} is empty")
    if len(line) > LONGEST_PASSWORD or b"\n" in line or b"\0" in line:
        raise ConfigError(f"{where}: {path} must hold one line, of {LONGEST_PASSWORD} bytes at most")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8") from None


def template_mistakes(config: Config) -> Iterator[Mistake]:
    """Yield every type whose template could run, split or expand what is in an item: the path to blame, a message."""
    shells = {name: agent for name, agent in config.agents.items() if Path(agent.command[0]).name == SHELL_AGENT}
    if shells and (quoting := agent_module("drover_shell_quoting", "shell/quoting.py")):
        for name, agent in shells.items():
            template = _template(agent.command[1:])
            try:
                if template.strip() != WHOLE_LINE:
                    quoting.check(template)
            except ValueError as error:
                yield ("agents", name, "command"), f"is not a safe template: {error}"


def _template(command: Sequence[str]) -> str:
    """Return the template among the words behind the name of the agent; the default if there is none."""
    words = iter(command)
    for word in words:
        if word == "--":
            return next(words, WHOLE_LINE)
        if word == WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return WHOLE_LINE


# ---- drover config


class Setting(NamedTuple):
    """A setting as people are shown it."""

    setting: str
    value: str
    origin: str


def show_settings(options: Namespace, config: Config) -> int:
    """Print all settings, or those below the names that were given; 1 if there is none of a name."""
    texts = read(locate(options.config, os.environ))
    as_written = attrs.evolve(
        parse(texts, processors=processors()), database=config.database
    )  # what was loaded has preludes in its commands
    origins = _file_origins(texts) | _database_origins(options)
    settings = [_main_file(options), *_settings(as_written, (), origins)]
    names = options.settings
    if unknown := [name for name in names if not any(_is_below(each, name) for each in settings)]:
        return failed(f"no setting {', '.join(unknown)}; drover config lists all")
    chosen = [each for each in settings if not names or any(_is_below(each, name) for name in names)]
    rows = [each for each in chosen if not options.given or each.origin != DEFAULT_ORIGIN]
    if options.json:
        print_records(each._asdict() for each in rows)
    else:
        print_table(Table("", tuple(heading.upper() for heading in Setting._fields), rows))
    return 0


def _is_below(each: Setting, name: str) -> bool:
    return each.setting == name or each.setting.startswith(f"{name}.")


def _main_file(options: Namespace) -> Setting:
    """Return which file is read, and what chose it."""
    path = locate(options.config, os.environ)
    if options.config:
        origin = "-c"
    elif os.environ.get("DROVER_CONFIG"):
        origin = "DROVER_CONFIG"
    else:
        places = dict.fromkeys(system_files(Path(sys.prefix)), "the machine's") | {shipped(): "comes with the program"}
        origin = places.get(path, f"~/{USER}")
    return Setting("file", str(path), origin)


def _file_origins(texts: Iterable[tuple[str, str]]) -> dict[Key, str]:
    """Return the file and line of each key that is given; a later file wins."""
    origins: dict[Key, str] = {}
    for name, text in texts:
        origins |= {key: f"{name}:{line}" for key, line in key_lines(text).items()}
    return origins


def _database_origins(options: Namespace) -> dict[Key, str]:
    """Return the origin of the keys of [database] that -d or the environment overrides."""
    if options.database is not None:
        return {("database", key): "-d" for key in OVERRIDDEN}
    is_given = os.environ.get("DROVER_DATABASE_URL")
    return {("database", key): "DROVER_DATABASE_URL" for key in OVERRIDDEN} if is_given else {}


def _settings(value: Any, key: Key, origins: Mapping[Key, str]) -> Iterator[Setting]:
    """Yield the settings of a table in the order of its keys, or the one that a value is."""
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from _settings(getattr(value, field.name), (*key, field.name), origins)
    elif isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _settings(entry, (*key, name), origins)
    else:
        yield Setting(dotted(key), masked(key, value), origins.get(key, DEFAULT_ORIGIN))
