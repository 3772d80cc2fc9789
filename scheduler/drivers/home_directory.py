"""The home directory of our user, and what `~` means: an absolute path, whatever HOME is.

An empty HOME would be the root of the file system, and a relative one whatever directory we are in.
"""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from scheduler.errors import ConfigError

ADVICE = "set it to the absolute path of your home directory"


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return HOME, or the home of our account if it is empty or not set. Errors: ConfigError, it is not absolute."""
    home = environment.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise ConfigError(f"HOME is not set, and user {os.getuid()} has no account: {ADVICE}") from None
    return _absolute("HOME", home)


def state_directory(environment: Mapping[str, str]) -> Path:
    """Return where our data is: in the service's state directory, else below the home. Errors: ConfigError."""
    state = environment.get("STATE_DIRECTORY", "").split(":")[0]
    return _absolute("STATE_DIRECTORY", state) if state else home_directory(environment) / ".local/share/drover"


def expanded(path: str) -> str:
    """Return a path whose `~/` is our home directory, and `~user/` that of another user. Errors: ConfigError."""
    if path == "~" or path.startswith("~/"):
        return str(home_directory(os.environ)) + path[1:]
    return os.path.expanduser(path)


def _absolute(name: str, path: str) -> Path:
    if not os.path.isabs(path):
        raise ConfigError(
            f"{name} is {path!r}, which is no absolute path: {ADVICE if name == 'HOME' else 'correct it'}"
        )
    return Path(path)
