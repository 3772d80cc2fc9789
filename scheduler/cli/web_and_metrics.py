"""Starts the servers of `drover web` and `drover metrics`, whose packages come with extras of the same names.

The dashboard, scheduler.web, and the exporter, scheduler.metrics, stand above the commands and use their sessions and
statements, so they are started by their names.
"""

import os
import socket
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from scheduler.errors import ConfigError
from scheduler.model.config import Config

WEB_PACKAGES: Final = ("starlette", "uvicorn", "jinja2")
METRICS_PACKAGES: Final = ("prometheus_client",)


def serve_dashboard(options: Namespace, config: Config) -> int:
    """Serve the dashboard until it is stopped."""
    _require("web", WEB_PACKAGES)
    status: int = import_module("scheduler.web.server").serve(options, config)
    return status


def export_metrics(options: Namespace, config: Config) -> int:
    """Answer Prometheus until it is stopped, or write its file."""
    _require("metrics", METRICS_PACKAGES)
    status: int = import_module("scheduler.metrics.export").export(options, config)
    return status


def cannot_listen(command: str, host: str, port: int, error: OSError) -> ConfigError:
    """Return the error for an address that is in use, or not one of this machine."""
    said = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    return ConfigError(f"drover {command}: cannot listen on {host} port {port}: {said}; see --port")


def address(host: str, port: int) -> str:
    """Return the beginning of the URLs of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _require(command: str, packages: Sequence[str]) -> None:
    """Raise ConfigError, with what to install, if a command lacks packages."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise ConfigError(
            f"drover {command} needs packages that are not installed: {', '.join(missing)}; "
            f"install them with pip install 'drover-scheduler[{command}]'"
        )
