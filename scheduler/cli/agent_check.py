"""`drover agent-check`: whether each agent can be started on each of its hosts, and is the same program there.

It needs no database and no daemon.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping

from scheduler.cli.check import FAIL, FAILED, OK, WARN, Finding, told
from scheduler.cli.run import refuse_root
from scheduler.cli.selftest import Programs, Trial
from scheduler.errors import ConfigError
from scheduler.model.config import Config


def run(options: Namespace, config: Config) -> int:
    """Print what was found, for each type and what it is on its hosts; 1 if one cannot be started somewhere."""
    refuse_root(options)
    names = _asked_for(options.types, config)
    with Trial(config) as trial:
        found = [told(finding) for name in names for finding in _findings(trial, name)]
    return FAILED if any(severity == FAIL for severity, _ in found) else 0


def _asked_for(types: list[str], config: Config) -> list[str]:
    if unknown := [name for name in types if name not in config.agents]:
        raise ConfigError(f"drover agent-check: the configuration has no agent type {', '.join(unknown)}")
    return types or [name for name, agent in config.agents.items() if agent.enabled]


def _findings(trial: Trial, name: str) -> Iterator[Finding]:
    looks = trial.look(name)
    reasons = {host: reason for host, reason in trial.start(name).items() if reason}
    for host, reason in reasons.items():
        yield FAIL, f"agent {name} on {host}: {reason}"
    yield from _versions(name, {host: look for host, look in looks.items() if host not in reasons})


def _versions(name: str, looks: Mapping[str, Programs | str]) -> Iterator[Finding]:
    """Give a finding for each version there is; paths may differ from host to host, contents are what counts."""
    hosts_of: dict[Programs, list[str]] = defaultdict(list)
    for host, look in looks.items():
        if isinstance(look, str):
            yield WARN, f"agent {name} on {host}: starts, but its program cannot be looked at: {look}"
        else:
            hosts_of[_sums(look)].append(host)
    for hosts in hosts_of.values():
        severity, others = (OK, "") if len(hosts_of) == 1 else (WARN, ", another version than elsewhere")
        yield severity, f"agent {name} on {', '.join(hosts)}: {'; '.join(looks[hosts[0]])}{others}"


def _sums(programs: Programs) -> Programs:
    """Give check sum and size of each file, without its path."""
    return tuple(" ".join(line.split()[:2]) for line in programs)
