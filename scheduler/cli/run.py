"""`drover run`: the daemon in the foreground, with its database, below a guardian.

`drover run JOB...` runs jobs by hand: the active scheduler runs them, and the command row ends when the last has.
"""

import os
import random
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from select import EPOLLIN
from typing import Any, Final

import attrs

from scheduler.cli.agent_check import refuse_root, test_agents
from scheduler.cli.answers import send
from scheduler.cli.config_files import is_embedded_url, load, locate, with_logins
from scheduler.cli.database_session import (
    connect,
    conninfo_of_daemon,
    open_session,
    running_database,
    running_or_new_database,
    translated_errors,
    update_or_check,
)  # fmt: skip
from scheduler.cli.embedded_database import database_locks, embedded_state_reader
from scheduler.cli.output import as_json, printable, printable_lines, warn
from scheduler.cli.wait import Progress
from scheduler.daemon import guardian, log, upgrade
from scheduler.daemon.cgroup_warden import KILL_EARLY_S
from scheduler.daemon.exec_handover import Takeover
from scheduler.daemon.fd_store_recovery import Inheritance
from scheduler.daemon.handover_document import config_to_go_on
from scheduler.daemon.wiring import Daemon
from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import close_all, hide, open_first_three, take_name
from scheduler.drivers.process_spec import Surroundings, user_mistakes
from scheduler.drivers.service_manager import pop_manager
from scheduler.errors import ConfigError, DatabaseAbsentError, SchemaOutdatedError
from scheduler.model.config import Config, Database
from scheduler.model.states import NEVER
from scheduler.package_data import agent_folders
from scheduler.policy.core import Core

FIRST_WAIT_S: Final = 0.2
DAEMON_ONLY: Final = ("read_stdin", "ignore_hosts", "rescue", "test", "test_first", "quits")


def run(
    options: Namespace, config: Config, takeover: Takeover | None = None, inheritance: Inheritance | None = None
) -> int:
    """Serve until it is stopped, or run by hand the jobs that are named; return the exit status.

    `takeover` is the state that the program before us has left, `inheritance` what the service manager keeps for us.
    """
    if options.jobs:
        return run_by_hand(options, config)
    if takeover is not None and takeover.is_trial:
        return rehearse(takeover, config)
    refuse_root(options)
    open_first_three()
    if takeover is None:  # else it is blocked, and may wait for the loop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # even if our starter ignores it
    environment = dict(os.environ) if takeover is None else takeover.environment  # as it was given to us
    log.set_up(config.scheduler, options.verbose, os.environ)
    hide()
    take_name(f"drover {config.scheduler.group}")
    config = _with_options(config, options)
    if takeover is None and (status := _status_before_serving(options, config)) is not None:
        return status
    return _serve(options, config, environment, takeover, inheritance or Inheritance(os.environ))


def _status_before_serving(options: Namespace, config: Config) -> int | None:
    """Return the exit status if there is nothing to serve: another daemon does, or the test of agents was all."""
    if options.quits and (daemon_name := _active_daemon(config)):
        print(printable(f"group {config.scheduler.group} is served by {daemon_name}"))
        return 0
    if options.test or options.test_first:
        failed = test_agents(config)
        if options.test or failed:
            return 1 if failed else 0
    return None


def _serve(
    options: Namespace,
    config: Config,
    environment: Mapping[str, str],
    takeover: Takeover | None,
    inheritance: Inheritance,
) -> int:
    """Run the daemon with its database, below a guardian; return the exit status."""
    log.LOG.info("configuration %s", locate(options.config, os.environ))
    written, config = config.database, with_logins(config, os.environ)
    read = _reload_function(options, written, config.database)
    own = config  # that of a state that was left may differ
    if takeover is not None:
        takeover, config = _with_state(takeover, config, inheritance)
    is_from_exec = takeover is not None and not takeover.is_left  # then the program that was before us may come back
    program = upgrade.started_program(environment, takeover.document if takeover and is_from_exec else None)
    manager = pop_manager(os.environ)
    kept_agents = inheritance.kept_agents(config, manager, takeover, options.read_stdin)
    say = partial(log.LOG.warning, "%s")
    # before the guardian: others may use that server when we are gone
    with running_or_new_database(config, say) as conninfo:
        if not _wait_for_database(config, conninfo, _end_of_lease(takeover)):
            inheritance.give_up("the schema is out of date, and the lease ends before drover init was run")
            takeover, config = None, own
            _wait_for_database(config, conninfo)
        guardian_fd = guardian.begin(os.environ)
        has_guardian = guardian_fd is not None
        if has_guardian:
            program = replace(program, environment={**environment, guardian.GUARDED: str(os.getppid())})
        locks = database_locks(config)
        survivors = inheritance.document(config, Surroundings(os.environ, tuple(agent_folders())), time.monotonic())
        try:
            daemon = Daemon(
                config, conninfo_of_daemon(config, conninfo), reads_stdin=options.read_stdin, manager=manager,
                has_guardian=has_guardian, quits_if_served=options.quits, read=read, program=program,
                locks=locks, takeover=takeover, kept_agents=kept_agents, survivors=survivors,
                read_server=embedded_state_reader(config.database.url),
            )  # fmt: skip
            if options.rescue and takeover is None:
                daemon.watch.lease.hurry()
            if guardian_fd is not None:
                daemon.loop.register(guardian_fd, EPOLLIN, partial(_guardian_ended, daemon.loop, guardian_fd))
            return daemon.run()
        finally:
            is_over = takeover is None or takeover.is_over  # else the program before us goes on with the agents
            if is_over and inheritance.warden is None:  # else the warden does that
                guardian.end_family()
            close_all(locks)


def _with_state(takeover: Takeover, config: Config, inheritance: Inheritance) -> tuple[Takeover | None, Config]:
    """Return the state to go on with, and the configuration for it. Errors: ConfigError if it is of another group."""
    try:
        return takeover, config_to_go_on(takeover.document, config)
    except ConfigError as error:
        if not takeover.is_left:
            raise
        inheritance.give_up(str(error))
        return None, config


def rehearse(takeover: Takeover, config: Config) -> int:
    """Prove that this program can go on as the one that has left its state; nothing is changed. Errors: as a start."""
    config = config_to_go_on(takeover.document, config)
    Core.restored(takeover.document["core"], config, time.monotonic())
    if not is_embedded_url(config.database.url):
        with running_database(config) as conninfo, translated_errors():
            update_or_check(config, conninfo)
    return 0


def _active_daemon(config: Config) -> str | None:
    """Return the daemon that serves the group of the configuration, if one does.

    Errors: WorldError if the database does not answer: to wait for it is left to the next run.
    """
    with running_or_new_database(config) as conninfo, translated_errors():
        update_or_check(config, conninfo)
        with open_session(conninfo_of_daemon(config, conninfo)) as session:
            rows = session.rows("active_daemon", group=config.scheduler.group)
    return rows[0][0] if rows else None


def _end_of_lease(takeover: Takeover | None) -> float:
    """Return when the lease that was left ends, less the time to kill its agents; NEVER if none was left."""
    lease = takeover.document["watch"]["lease"] if takeover is not None and takeover.is_left else None
    return NEVER if lease is None else float(lease[0]) - KILL_EARLY_S


def _wait_for_database(config: Config, conninfo: str, until: float = NEVER) -> bool:
    """Return as soon as the database answers and is up to date, so that services start in any order.

    A new program may be there before `drover init` was run. Returns False if that is so at `until`: then daemons of the
    former version may take the group. Sleeps between tries: there is nothing else to do yet.
    Errors: WorldError if it has no schema or that of a newer version, or the embedded one cannot be started.
    """
    for wait_s in back_off(config.scheduler.reconnect_max):
        try:
            update_or_check(config, conninfo)
            return True
        except (DatabaseAbsentError, SchemaOutdatedError) as error:
            log.LOG.warning("%s; trying again in %.1f s", " ".join(str(error).split()), wait_s)
            if isinstance(error, SchemaOutdatedError) and time.monotonic() + wait_s >= until:
                return False
        time.sleep(wait_s)
    raise AssertionError("it waits for ever")


def back_off(longest: float) -> Iterator[float]:
    """Yield seconds to wait, for ever: twice as long each time, with jitter, so that clients come back one by one."""
    wait_s = FIRST_WAIT_S
    while True:
        yield min(wait_s, longest) * (0.5 + random.random() / 2)
        wait_s = min(2 * wait_s, longest)


def _reload_function(options: Namespace, written: Database, used: Database) -> Callable[[], Config]:
    """Return a function that reads the same files anew, but no password in a file of its own; it raises ConfigError."""
    file = str(locate(options.config, os.environ))

    def read() -> Config:
        config = _with_options(load(file, os.environ, checks=[user_mistakes]), options)
        return attrs.evolve(config, database=used) if config.database == written else config

    return read


def _with_options(config: Config, options: Namespace) -> Config:
    """Return the configuration, with every host on this machine if hosts are ignored (-H)."""
    if not options.ignore_hosts:
        return config
    hosts = {name: attrs.evolve(host, transport="local") for name, host in config.hosts.items()}
    return attrs.evolve(config, hosts=hosts)


def _guardian_ended(loop: Loop, guardian_fd: int, _mask: int) -> None:
    """End in order when the guardian was killed."""
    loop.unregister(guardian_fd)
    guardian.adopt_orphans()  # of the agents that are killed now; `run` ends them
    log.LOG.error("the guardian has ended: stopping, since no process would end the agents of a daemon that is killed")
    signal.raise_signal(signal.SIGTERM)


def run_by_hand(options: Namespace, config: Config) -> int:
    """Print what became of each job and its output, or all as one JSON object; 1 if one failed or was not run."""
    if any(getattr(options, name) for name in DAEMON_ONLY):
        raise ConfigError(
            "drover run: -I, -H, -R, -t, -T and --quit-if-served are for the daemon, not for jobs that are run by hand"
        )
    with connect(config) as session:
        words = " ".join(["run", *map(str, session.job_numbers(options.jobs))])
        with Progress(1, "answers") as progress:
            sent = send(session, [words], options.wait, progress, options.patience)
    status = sent.status(options.wait)
    for answer in sent.answers:
        result = answer.result or {"jobs": {}, "errors": {"command": answer.text}}
        if options.json:
            print(as_json(result))
        else:
            _print_result(result)
        if result["errors"] or not all(job and job["result"] == "ok" for job in result["jobs"].values()):
            status = status or 1
    return status


def _print_result(result: Mapping[str, Any]) -> None:
    """Print a line for each job, then its output as it was written; its stderr, and errors, on stderr."""
    for pk, job in result["jobs"].items():
        if job is None:
            warn(f"job {pk} does not exist any more")
            continue
        facts = [pk, job["result"], *(str(job[key]) for key in ("code", "signal") if job[key] is not None)]
        print(printable(" ".join(facts)))
        for stream, text in ((sys.stdout, job["stdout"]), (sys.stderr, job["stderr"])):
            stream.write(printable_lines(text or "") if stream.isatty() else text or "")
            stream.flush()
    for reason in result["errors"].values():
        warn(reason)
