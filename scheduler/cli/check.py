"""`drover check` and `drover doctor`: print a line for each thing that a scheduler needs, and whether it is there.

`check` looks, and logs in as the daemon does. `doctor` tries it as well: starts every agent, sends a notification,
compares clocks and limits. Mistakes in the configuration never come here: they end every command with exit status 2.
Changes nothing: no job is queued, no agent gets an item.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Final

import psycopg

from scheduler.cli.config_files import locate
from scheduler.cli.database_checks import LOGIN_LIMIT_S, findings_in_database, refused, tried_in_database
from scheduler.cli.database_session import running_database
from scheduler.cli.machine_checks import findings_of_configuration, findings_of_machine, program_finding
from scheduler.cli.output import FAIL, OK, WARN, Finding, print_findings
from scheduler.cli.spool_checks import findings_of_spools
from scheduler.cli.unknown_checks import not_looked
from scheduler.errors import ConfigError, NoDatabaseYetError, WorldError
from scheduler.model.config import Config

UNREACHABLE: Final = 3


def check(options: Namespace, config: Config) -> int:
    """Print every finding; 3 if the database failed or could not be looked at, 1 if something else failed."""
    return report(options, config, findings_here(options, config), findings_in_database)


def doctor(options: Namespace, config: Config) -> int:
    """Print every finding; the exit status is that of `drover check`."""
    here = chain(
        findings_here(options, config), findings_of_machine(config), _agents(options, config), _services(config)
    )
    return report(options, config, here, tried_in_database)


def report(
    options: Namespace, config: Config, here: Iterable[Finding], in_database: Callable[[Config, str], Iterable[Finding]]
) -> int:
    """Print findings that need no database, then those in it; return the exit status."""
    status = print_findings(here, json=options.json)
    try:
        with running_database(config) as conninfo:
            return print_findings(in_database(config, conninfo), json=options.json) or status
    except NoDatabaseYetError as error:
        print_findings([(WARN, str(error))], json=options.json)
        return status
    except WorldError as error:
        unlooked = not_looked(error.__cause__)
        found = (WARN, unlooked.sentence("database")) if unlooked else (FAIL, str(error))
        print_findings([found], json=options.json)
        return UNREACHABLE


def findings_here(options: Namespace, config: Config) -> Iterator[Finding]:
    """Yield the findings about this machine and the hosts that it connects to."""
    yield OK, f"configuration {locate(options.config, os.environ)}"
    yield from findings_of_configuration(config)
    yield from findings_of_spools(config)


def _agents(options: Namespace, config: Config) -> Iterator[Finding]:
    """Start an agent of each enabled type that has a program on each of its hosts, all at once."""
    # drover check starts no agents
    from scheduler.cli.agent_check import Prober, hosts_without_programs, refuse_root, what_to_do

    try:
        refuse_root(options)
    except ConfigError:
        yield WARN, "agents: not started: they would be root; run this as the user of the daemon, or with --allow-root"
        return
    names = [name for name, agent in config.agents.items() if agent.enabled and program_finding(config, name)[0] == OK]
    with closing(Prober(config)) as prober:
        started = prober.start(names)
        lacking = hosts_without_programs(config, started)
        for host, kinds in lacking.items():
            yield WARN, what_to_do(host, kinds, started)
        for name, reasons in started.items():
            ready = "is READY" if config.agents[name].kind == "line" else "has its program"
            for host, reason in reasons.items():
                if name in lacking.get(host, ()):
                    continue
                who, advice = f"agent {name} on {host}", f"drover agent-check {name} says more of its program"
                yield (FAIL, f"{who}: {reason}; {advice}") if reason else (OK, f"{who}: {ready}")


def _services(config: Config) -> Iterator[Finding]:
    """Log in to the service of each agent type that connects to a database itself."""
    for name, agent in config.agents.items():
        if agent.enabled and agent.database:
            who = f"log-in of agent {name} to service {agent.database}"
            try:
                psycopg.connect(service=agent.database, connect_timeout=LOGIN_LIMIT_S).close()
            except psycopg.Error as error:
                yield FAIL, refused(who, error, f"the user of service {agent.database}", "pg_service.conf")
            else:
                yield OK, who
