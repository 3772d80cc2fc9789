"""`drover metrics`: answer Prometheus until Ctrl-C, or write a file for the textfile collector of node_exporter."""

import os
import sys
import threading
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.cli.config_files import is_embedded_url
from scheduler.cli.database_session import connect, people_database
from scheduler.cli.output import warn
from scheduler.cli.unknown_checks import NO_PRIVILEGE, NotLooked, look
from scheduler.cli.web_and_metrics import address, cannot_listen
from scheduler.errors import ConfigError, DroverError
from scheduler.metrics.families import STATEMENTS, families
from scheduler.metrics.scrape_server import ScrapeServer
from scheduler.model.config import Config

FRESH_S: Final = 1.0  # for so long an answer is given again: scrapes that come faster cost the database nothing
CONNECT_LIMIT_S: Final = 5
STATEMENT_LIMIT_MS: Final = 10_000
UNREACHABLE: Final = 3  # the exit status


class Exporter(Collector):
    """Reads the metrics from the database, by a session of its own each time; one thread at a time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._read_at = -FRESH_S
        self._metrics: list[Metric] = []
        self._trouble = ""  # the last error, which was printed
        self._unread: set[str] = set()  # statements that could not look the last time
        os.environ.setdefault("PGCONNECT_TIMEOUT", str(CONNECT_LIMIT_S))

    @property
    def is_up(self) -> bool:
        """Return whether the database could be read the last time."""
        return not self._trouble

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; if the database cannot be read, only that."""
        with self._lock:
            if monotonic() - self._read_at >= FRESH_S:
                self._metrics = self._read()
                self._read_at = monotonic()
            return self._metrics

    def _read(self) -> list[Metric]:
        began, trouble = monotonic(), ""
        metrics: list[Metric] = []
        unread: dict[str, NotLooked] = {}
        try:
            metrics, unread = self._read_database()
        except DroverError as error:
            trouble = " ".join(str(error).split())
        self._warn_once(trouble, unread)
        up = GaugeMetricFamily("drover_up", "Whether the database could be read.", value=float(not trouble))
        took = GaugeMetricFamily("drover_scrape_seconds", "Time that it took to read it.", value=monotonic() - began)
        return [up, took, *metrics, _not_looked_for(unread)]

    def _warn_once(self, trouble: str, unread: Mapping[str, NotLooked]) -> None:
        """Print what cannot be read, unless that was printed the last time."""
        if trouble and trouble != self._trouble:
            warn(f"drover_up is 0: {trouble}")
        for name in sorted(unread.keys() - self._unread):
            warn(unread[name].sentence(name))
        self._trouble, self._unread = trouble, set(unread)

    def _read_database(self) -> tuple[list[Metric], dict[str, NotLooked]]:
        """Return what the database knows, all of the same moment, and what could not be looked for, by statement.

        Errors: DroverError.
        """
        with connect(self._config) as session:
            session.run("limit_session", limit_ms=str(STATEMENT_LIMIT_MS))
            session.run("be_visitor")
            with session.connection.transaction():
                session.run("one_moment")
                read = {name: look(session, partial(session.records, name)) for name in STATEMENTS}
        unread = {name: rows for name, rows in read.items() if isinstance(rows, NotLooked)}
        for rows in unread.values():
            if rows.reason == NO_PRIVILEGE:  # the exporter runs as a role that never sees it
                raise ConfigError(f"{rows.message}: {rows.next}")
        metrics = families({name: [] if isinstance(rows, NotLooked) else rows for name, rows in read.items()})
        return list(metrics), unread


def _not_looked_for(unread: Iterable[str]) -> Metric:
    """Return the metric of the statements that could not look; those of all others are complete."""
    told = GaugeMetricFamily(
        "drover_not_looked_for", "A statement that could not look: its metrics are missing.", labels=("statement",)
    )
    for name in unread:
        told.add_metric([name], 1.0)
    return told


def export(options: Namespace, config: Config) -> int:
    """Serve until it is stopped, or write the file once."""
    with ExitStack() as stack:
        if is_embedded_url(config.database.people_url or config.database.url):
            stack.enter_context(people_database(config))  # its server runs as long as we do
        exporter, registry = Exporter(config), CollectorRegistry()
        registry.register(exporter)
        if not options.textfile:
            return _serve(options.host, options.port, registry)
        _write(options.textfile, registry)
        return 0 if exporter.is_up else UNREACHABLE


def _serve(host: str, port: int, registry: CollectorRegistry) -> int:
    try:
        server = ScrapeServer(host, port, registry)
    except OSError as error:
        raise cannot_listen("metrics", host, port, error) from error
    with server:
        try:
            print(f"metrics are at {address(host, server.server_port)}/metrics until Ctrl-C", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:  # which may come at once after the line
            pass
    return 0


def _write(file: str, registry: CollectorRegistry) -> None:
    """Write the metrics and rename the file into place, so that no reader gets half of it; `-` is standard output."""
    if file == "-":
        sys.stdout.write(generate_latest(registry).decode())
        return
    try:
        write_to_textfile(file, registry)
    except OSError as error:
        raise ConfigError(f"drover metrics: cannot write {file}: {error.strerror}") from error
