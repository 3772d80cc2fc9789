"""`drover run`: the daemon in the foreground, with its database, below a guardian."""

import logging
import os
import signal
import sys
from argparse import Namespace
from select import EPOLLIN

import attrs
from psycopg.conninfo import make_conninfo

from scheduler import guardian
from scheduler.cli.database import is_embedded, opened
from scheduler.cli.selftest import test_agents
from scheduler.daemon import Daemon, set_up_log
from scheduler.errors import ConfigError
from scheduler.loop import Loop
from scheduler.model.config import Config, Host

log = logging.getLogger("drover")


def run(options: Namespace, config: Config) -> int:
    """Serve until told to end; give the exit status."""
    _refuse_root(options)
    config = ignoring_hosts(config) if options.ignore_hosts else config
    _refuse_remote(config)
    set_up_log(config.scheduler.log_level, options.verbose)
    if options.test or options.test_first:
        failed = test_agents(config, sys.stdout)
        if options.test or failed:
            return 1 if failed else 0
    with opened(config) as conninfo:  # before there is a guardian: others may use that server when we are gone
        watched = guardian.begin(os.environ)
        try:
            return _daemon(config, login(config, conninfo), options, watched).run()
        finally:
            guardian.end_family()


def _daemon(config: Config, conninfo: str, options: Namespace, watched: int | None) -> Daemon:
    """Give a daemon, which ends in order if its guardian is killed."""
    daemon = Daemon(config, conninfo, typed=options.read_stdin)
    if watched is not None:
        daemon.loop.register(watched, EPOLLIN, lambda _mask: _end_alone(daemon.loop, watched))
    return daemon


def _end_alone(loop: Loop, watched: int) -> None:
    loop.unregister(watched)
    guardian.adopt_orphans()  # of the agents that are killed now; `run` ends them
    log.error("the guardian is gone: stopping, for nobody would end what a killed daemon leaves")
    signal.raise_signal(signal.SIGTERM)


def login(config: Config, conninfo: str) -> str:
    """The embedded database belongs to its starter; the daemon uses no more of it than it needs."""
    return make_conninfo(conninfo, user="drover_scheduler") if is_embedded(config) else conninfo


def ignoring_hosts(config: Config) -> Config:
    """Give the configuration with every host on this machine (-H)."""
    hosts = {name: attrs.evolve(host, transport="local") for name, host in config.hosts.items()}
    return attrs.evolve(config, hosts=hosts)


def _refuse_remote(config: Config) -> None:
    """This version starts agents on its own machine only; saying so beats starting them in the wrong place."""
    if remote := remote_hosts(config):
        raise ConfigError("\n".join(remote))


def remote_hosts(config: Config) -> list[str]:
    """Give a complaint for each host that this version cannot drive."""
    hosts = config.hosts.items()
    return [f"hosts.{name}.transport: {_kind(host)}" for name, host in hosts if host.transport != "local"]


def _kind(host: Host) -> str:
    return f"only local hosts are driven by this version; -H runs all agents here (got {host.transport!r})"


def _refuse_root(options: Namespace) -> None:
    if os.geteuid() == 0 and not options.allow_root and os.environ.get("DROVER_ALLOW_ROOT") != "1":
        raise ConfigError(
            "drover run: refuses to run as root: agents would be root too; use a user of its own, or --allow-root"
        )
