"""The bundled agents as commands of the environment that Drover is installed in, to try them by hand.

The scheduler does not need them: it starts the programs themselves. Each name is in pyproject.toml.
"""

import os
import sys
from typing import NoReturn

from scheduler.package_data import agents_dir

PREFIX = "drover-agent-"


def main() -> NoReturn:
    """Become the agent of the name that was called, with the Python that has its libraries."""
    name = os.path.basename(sys.argv[0])
    program = agents_dir() / name.removeprefix(PREFIX) / name
    os.execv(sys.executable, [sys.executable, str(program), *sys.argv[1:]])
