"""Find what is installed: the version, and the folders of the schema, the configuration and the bundled agents.

An installed wheel carries them in `scheduler/_data`, a checkout beside the package. Refuses to know what files
hold.
"""

import sys
from functools import cache
from pathlib import Path
from types import ModuleType

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


@cache
def agent_module(name: str, path: str) -> ModuleType | None:
    """Load a module of the agents, which are no package, from its file below agents/; None if it was taken away."""
    from importlib import util  # as above

    file = agents_dir() / path
    spec = util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agent_folders() -> list[str]:
    """Return where bundled agents and the Python that has their libraries are found, whatever PATH says."""
    folders = [str(folder) for folder in sorted(agents_dir().iterdir()) if folder.is_dir()]
    return [*folders, str(Path(sys.executable).parent)]


def _shipped(name: str) -> Path:
    installed = PACKAGE / "_data"
    return (installed if installed.is_dir() else PACKAGE.parent) / name
