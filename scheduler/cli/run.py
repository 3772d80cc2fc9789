"""`drover run`: the daemon in the foreground, with its database, below a guardian.

`drover run JOB...` runs jobs by hand: the active scheduler runs them, and the command row ends when the last has.
"""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from select import EPOLLIN
from typing import Any

import attrs

from scheduler.cli.admin import answered, answers_status
from scheduler.cli.agent_check import refuse_root, test_agents
from scheduler.cli.config import SYSTEM, load, locate, with_logins
from scheduler.cli.db import awaited, connect, conninfo_of_daemon, job_numbers
from scheduler.cli.output import as_json, printable, printable_lines, warn
from scheduler.daemon import guardian, log, upgrade
from scheduler.daemon.wiring import Daemon
from scheduler.drivers.loop import Loop
from scheduler.drivers.service_manager import Manager, take_manager
from scheduler.drivers.spawn import user_mistakes
from scheduler.drivers.system import hide
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Database

DAEMON_ONLY = ("read_stdin", "ignore_hosts", "rescue", "test", "test_first")


def run(options: Namespace, config: Config) -> int:
    """Serve until told to end, or run the jobs that are named by hand; give the exit status."""
    if options.jobs:
        return _by_hand(options, config)
    refuse_root(options)
    environment = dict(os.environ)  # as it was given to us
    log.set_up(config.scheduler, options.verbose, os.environ)
    hide()
    config = as_asked(config, options)
    if options.test or options.test_first:
        failed = test_agents(config, sys.stdout)
        if options.test or failed:
            return 1 if failed else 0
    log.LOG.info("configuration %s", locate(options.config, os.environ))
    written, config = config.database, with_logins(config, os.environ)
    read = _reader(options, written, config.database)
    manager = take_manager(os.environ)
    with awaited(config) as conninfo:  # before there is a guardian: others may use that server when we are gone
        watched = guardian.begin(os.environ)
        try:
            daemon = _daemon(config, conninfo_of_daemon(config, conninfo), options, manager, watched, read)
            status = daemon.run()
        finally:
            guardian.end_family()
    if daemon.is_superseded:
        upgrade.go_on(environment | ({} if watched is None else {guardian.GUARDED: str(os.getppid())}))
    return status


def _by_hand(options: Namespace, config: Config) -> int:
    if any(getattr(options, name) for name in DAEMON_ONLY):
        raise ConfigError("drover run: -I, -H, -R, -t and -T are for the daemon, not for jobs that are run by hand")
    return run_by_hand(options, config)


def _daemon(
    config: Config, conninfo: str, options: Namespace, manager: Manager | None, watched: int | None,
    read: Callable[[], Config],
) -> Daemon:  # fmt: skip
    """Give a daemon, which ends in order if its guardian is killed."""
    has_guardian = watched is not None
    daemon = Daemon(
        config, conninfo, reads_stdin=options.read_stdin, manager=manager, has_guardian=has_guardian, read=read
    )  # fmt: skip
    if watched is not None:
        daemon.loop.register(watched, EPOLLIN, lambda _mask: _end_alone(daemon.loop, watched))
    return daemon


def _reader(options: Namespace, written: Database, used: Database) -> Callable[[], Config]:
    """Give what reads the same files anew; passwords in files of their own are not read again. Errors: ConfigError."""
    file = str(locate(options.config, os.environ))

    def read() -> Config:
        config = as_asked(load(file, os.environ, SYSTEM, user_mistakes), options)
        return attrs.evolve(config, database=used) if config.database == written else config

    return read


def as_asked(config: Config, options: Namespace) -> Config:
    """Give the configuration as the options change it."""
    return ignoring_hosts(config) if options.ignore_hosts else config


def _end_alone(loop: Loop, watched: int) -> None:
    loop.unregister(watched)
    guardian.adopt_orphans()  # of the agents that are killed now; `run` ends them
    log.LOG.error("the guardian is gone: stopping, for nobody would end what a killed daemon leaves")
    signal.raise_signal(signal.SIGTERM)


def ignoring_hosts(config: Config) -> Config:
    """Give the configuration with every host on this machine (-H)."""
    hosts = {name: attrs.evolve(host, transport="local") for name, host in config.hosts.items()}
    return attrs.evolve(config, hosts=hosts)


def run_by_hand(options: Namespace, config: Config) -> int:
    """Print what became of each job and its output, or all as one JSON object; 1 if one failed or was not run."""
    with connect(config) as connection:
        words = " ".join(["run", *map(str, job_numbers(connection, options.jobs))])
        answers = answered(connection, [words], options.wait)
    results = [answer.result or {"jobs": {}, "errors": {"command": answer.text}} for answer in answers]
    for result in results:
        if options.json:
            print(as_json(result))
        else:
            _show_result(result)
    return answers_status(answers, 1, options.wait) or int(not all(map(_went_well, results)))


def _went_well(result: Mapping[str, Any]) -> bool:
    return not result["errors"] and all(job and job["result"] == "ok" for job in result["jobs"].values())


def _show_result(result: Mapping[str, Any]) -> None:
    """A line for each job, then its output as it was written; what it said on stderr, and errors, on stderr."""
    for pk, job in result["jobs"].items():
        if job is None:
            warn(f"job {pk} is gone")
            continue
        facts = [pk, job["result"], *(str(job[key]) for key in ("code", "signal") if job[key] is not None)]
        print(printable(" ".join(facts)))
        for stream, text in ((sys.stdout, job["stdout"]), (sys.stderr, job["stderr"])):
            stream.write(printable_lines(text or "") if stream.isatty() else text or "")
            stream.flush()
    for reason in result["errors"].values():
        warn(reason)
