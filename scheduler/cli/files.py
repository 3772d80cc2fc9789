"""Finds and reads the configuration files, and refuses those that others could have written or may read.

The first that there is: the file given with -c, DROVER_CONFIG, the user's own, the machine's, the shipped
one; then conf.d/*.toml beside it, in the order of their names. Knows nothing of what the texts say, but whether
there are secrets in them.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from scheduler.cli.templates import template_mistakes
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Contradiction, Database
from scheduler.model.config_text import holds_secret, parse
from scheduler.package_data import etc_dir

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
