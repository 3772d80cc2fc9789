"""`drover version`."""

from argparse import Namespace
from importlib.metadata import version

from scheduler.model.config import Config


def run(_options: Namespace, _config: Config) -> int:
    """Print name and version of what is installed."""
    print("drover", version("drover-scheduler"))
    return 0
