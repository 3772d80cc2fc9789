"""Commands that stand above the others and need packages of an extra of their own name: is it installed?"""

from collections.abc import Sequence
from importlib.util import find_spec

from scheduler.errors import ConfigError


def require(command: str, packages: Sequence[str]) -> None:
    """Raise ConfigError, with what to install, if a command lacks packages."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise ConfigError(
            f"drover {command} needs packages that are not installed: {', '.join(missing)}; "
            f"install them with pip install 'drover-scheduler[{command}]'"
        )
