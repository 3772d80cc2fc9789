"""Find what is installed: the version, and the folders of the schema, the configuration and the bundled agents.

An installed wheel carries them in `scheduler/_data`, a checkout beside the package. Touches nothing but names of
directories; refuses to know what the files hold.
"""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def version() -> str:
    """Return the version, and whether modules are compiled (see `make compiled`)."""
    from importlib import metadata, util  # not for --help

    errors = util.find_spec("scheduler.errors")
    is_compiled = errors is not None and not str(errors.origin).endswith(".py")
    return metadata.version("drover-scheduler") + (" (compiled)" if is_compiled else "")


def schema_dir() -> Path:
    """Return the directory of migrations/, queries.sql, roles.sql and schema.sql."""
    return _shipped("schema")


def compat_names() -> list[str]:
    """Return the older systems whose tables there are views for: the names of the files in schema/compat."""
    return sorted(path.stem for path in (schema_dir() / "compat").glob("*.sql"))


def etc_dir() -> Path:
    """Return the directory of drover.toml and its examples."""
    return _shipped("etc")


def agents_dir() -> Path:
    """Return the directory of the bundled agents and their library."""
    return _shipped("agents")


def agent_folders() -> list[str]:
    """Return where bundled agents and the Python that has their libraries are found, whatever PATH says."""
    folders = [str(folder) for folder in sorted(agents_dir().iterdir()) if folder.is_dir()]
    return [*folders, str(Path(sys.executable).parent)]


def _shipped(name: str) -> Path:
    installed = PACKAGE / "_data"
    return (installed if installed.is_dir() else PACKAGE.parent) / name
