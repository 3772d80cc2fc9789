"""`drover web`: start the dashboard, scheduler.web, whose packages are an extra of the installation.

The dashboard stands above the commands and uses their sessions and statements, so it is started by its name.
"""

from argparse import Namespace
from importlib import import_module

from scheduler.cli.extras import require
from scheduler.model.config import Config

PACKAGES = ("starlette", "uvicorn", "jinja2")


def serve(options: Namespace, config: Config) -> int:
    """Serve the dashboard until it is stopped."""
    require("web", PACKAGES)
    status: int = import_module("scheduler.web.serve").serve(options, config)
    return status
