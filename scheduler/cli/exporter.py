"""`drover metrics`: start the exporter, scheduler.metrics, whose package is an extra of the installation."""

from argparse import Namespace
from importlib import import_module

from scheduler.cli.extras import require
from scheduler.model.config import Config

PACKAGES = ("prometheus_client",)


def export(options: Namespace, config: Config) -> int:
    """Answer Prometheus until it is stopped, or write its file."""
    require("metrics", PACKAGES)
    status: int = import_module("scheduler.metrics.export").export(options, config)
    return status
