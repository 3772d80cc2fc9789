"""Where the files that ship with the package are: schema, configuration, bundled agents.

Pure path logic: an installed wheel carries them in `scheduler/_data`, a checkout beside the package. Touches
nothing but the name of that directory; refuses to know what the files hold.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def schema_dir() -> Path:
    """Give the directory of migrations/, queries.sql, roles.sql and schema.sql."""
    return _shipped("schema")


def etc_dir() -> Path:
    """Give the directory of drover.toml and its examples."""
    return _shipped("etc")


def agents_dir() -> Path:
    """Give the directory of the bundled agents and their library."""
    return _shipped("agents")


def _shipped(name: str) -> Path:
    installed = PACKAGE / "_data"
    return (installed if installed.is_dir() else PACKAGE.parent) / name
