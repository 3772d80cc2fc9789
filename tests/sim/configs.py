"""Configurations at random: the one that a daemon starts with, and those that it is told to read later."""

from random import Random
from typing import Any, Final, Literal

import attrs

from scheduler.model.config import AgentType, Config, Host, Scheduler
from scheduler.policy.conditions import Policy

KEPT_TYPE: Final = "shell"  # whose jobs are detached in some seeds
HOSTS: Final = ("alpha", "beta", "gamma")
LONGER: Final = {"": "", "^[a-m]": "^(a1|n$)", "[nz]": "^(n1|z$)"}  # patterns of more than one character

EVERY_FIFTH: Final = 5  # seed has quotas
CANARIES: Final = (7, 5)  # of so many seeds this one has types whose new programs are tried in one slot first
DETACHED: Final = (6, 3)  # of so many seeds this one has a type whose jobs are detached
START_POLICIES: Final = (15, 7)  # of so many seeds this one has types whose jobs do not wait if they cannot start

FILES: Final = {1: 0, 10: 200, 1000: 4_000_000_000}  # bytes of rows in files, by hold_max
POLICIES: Final = (  # for conditions
    Policy(),
    Policy(steps=((2, 10.0), (3, 20.0), (0, 60.0)), at_once=2),
    Policy(max_tries=3),
    Policy(max_elapsed=100.0),
)


def first(rng: Random) -> Config:
    """Make a small installation: two hosts, one to four agent types."""
    hosts = {name: _host(rng) for name in HOSTS[:2]}
    agents = {name: _line(rng, tuple(hosts)) for name in ("sha", "mime", "lic")[: rng.choice((1, 2, 3))]}
    if rng.random() < 0.5:
        agents["shell"] = _exec(rng, ())
    return Config(scheduler=_timers(rng), hosts=hosts, agents=agents)


def other(rng: Random, old: Config) -> Config:
    """Change one: some hosts and types go, some come, some are others now; or nothing at all."""
    if rng.random() < 0.1:
        return old
    hosts = {name: old.hosts.get(name, _host(rng)) for name in HOSTS if rng.random() < 0.8}
    hosts = {name: _host(rng) if rng.random() < 0.2 else host for name, host in hosts.items()} or dict(old.hosts)
    agents = {name: _other_type(rng, kind, tuple(hosts)) for name, kind in old.agents.items() if rng.random() < 0.85}
    for name in ("sha", "mime", "lic", "shell"):
        if not agents or (name not in old.agents and rng.random() < 0.2):
            agents[name] = rng.choice((_line, _exec))(rng, tuple(hosts))
    timers = _timers(rng) if rng.random() < 0.3 else old.scheduler
    return Config(scheduler=timers, hosts=hosts, agents=agents)


def every(old: Config, types: set[str]) -> Config:
    """Return one in which all these types are served, everywhere."""
    open_hosts = {name: old.hosts.get(name, Host()) for name in HOSTS}
    hosts = {name: attrs.evolve(host, types="", queues=(), priorities="") for name, host in open_hosts.items()}
    kinds = {name: old.agents.get(name, AgentType(command=("agent",))) for name in sorted(types)}
    agents = {name: attrs.evolve(kind, hosts=(), enabled=True) for name, kind in kinds.items()}
    return Config(scheduler=old.scheduler, hosts=hosts, agents=agents)


def _other_type(rng: Random, old: AgentType, hosts: tuple[str, ...]) -> AgentType:
    what = rng.random()
    if what < 0.1:
        return (_exec if old.kind == "line" else _line)(rng, hosts)
    if what < 0.3:
        return (_line if old.kind == "line" else _exec)(rng, hosts)
    if what < 0.5:
        return attrs.evolve(old, slots=rng.choice((1, 2, 3)), hosts=_some(rng, hosts), fair=rng.random() < 0.5)
    return attrs.evolve(old, hosts=tuple(name for name in old.hosts if name in hosts))


def has_longer(config: Config) -> bool:
    """Return whether a host tells priorities apart that begin with the same character."""
    return any(host.priorities in LONGER.values() for host in config.hosts.values() if host.priorities)


def _host(rng: Random) -> Host:
    transport: Literal["local", "ssh"] = "ssh" if rng.random() < 0.25 else "local"
    host = Host(
        max=rng.choice((-1, 1, 2, 3, 4)), urgent=rng.choice((0, 1, 2)), transport=transport, address="far",
        types=rng.choice(("", "", "", "", "^[ms]")), queues=rng.choice(((), (), (), ("default",), ("heavy", "light"))),
        priorities=rng.choice(("", "", "", "^[a-m]", "[nz]")),
    )  # fmt: skip
    return attrs.evolve(host, priorities=LONGER[host.priorities]) if host.max == 3 else host


def _line(rng: Random, hosts: tuple[str, ...]) -> AgentType:
    return AgentType(
        command=("agent", rng.choice("ab")), slots=rng.choice((1, 1, 2, 3)), hosts=_some(rng, hosts),
        heartbeat=rng.choice((60.0, 90.0)) if rng.random() < 0.7 else 0.0, item_timeout=100.0,
        spill=rng.choice((0.0, 0.0, 2.0)), window=rng.choice((1, 2, 7, "auto", "auto")), fair=rng.random() < 0.3,
    )  # fmt: skip


def _exec(rng: Random, hosts: tuple[str, ...]) -> AgentType:
    kind: Literal["exec"] = "exec"
    return AgentType(
        command=("tool", "{args}", "{id}", rng.choice("ab")), kind=kind, slots=rng.choice((1, 3)),
        hosts=_some(rng, hosts), output_limit=500, item_timeout=100.0,
    )  # fmt: skip


def _some(rng: Random, hosts: tuple[str, ...]) -> tuple[str, ...]:
    return rng.choice(((), (), *((name,) for name in hosts)))


def _timers(rng: Random) -> Scheduler:
    timers = Scheduler(
        expansions=rng.choice((1, 2, 3, 8)), expansions_per_type=rng.choice((1, 2)),
        fetch_rows=rng.choice((1, 5, 0)), line_limit=2000, min_idle=rng.choice((0.0, 5.0, 20.0)), max_idle=100_000.0,
        hold_max=rng.choice((1, 10, 1000)), fetch_limit=rng.choice((0, 1, 10, 1000)),
        start_limit=rng.choice((60.0, 60.0, 30.0)), kill_grace=rng.choice((20.0, 20.0, 5.0)),
    )  # fmt: skip
    return attrs.evolve(timers, msq_file_bytes=FILES[timers.hold_max])  # without dice


def has_start_policies(seed: int) -> bool:
    """Return whether jobs of types of this seed do not wait if they cannot start."""
    return seed % START_POLICIES[0] == START_POLICIES[1]


def start_policies(seed: int, config: Config) -> Config:
    """Let jobs of some seeds be blocked or fail if they cannot start, and a host be away at times; without dice."""
    if not has_start_policies(seed):
        return config
    ways: tuple[Literal["block", "fail", "wait"], ...] = ("block", "fail", "block", "wait")
    agents = {
        name: attrs.evolve(kind, on_start_failure=ways[(seed // 15 + number) % 4])
        for number, (name, kind) in enumerate(config.agents.items())
    }
    hosts = {
        name: attrs.evolve(host, transport="ssh") if name == "alpha" else host for name, host in config.hosts.items()
    }
    return attrs.evolve(config, agents=agents, hosts=hosts)


def has_canaries(seed: int) -> bool:
    """Say whether new programs of types of this seed are tried in one slot first."""
    return seed % CANARIES[0] == CANARIES[1]


def canaries(seed: int, config: Config) -> Config:
    """Let new programs be tried in some seeds, with few items; without dice."""
    if not has_canaries(seed):
        return config
    agents = {
        name: attrs.evolve(kind, canary=(seed + 2 * number) % 5)
        for number, (name, kind) in enumerate(config.agents.items())
    }
    return attrs.evolve(config, agents=agents)


def has_detached(seed: int) -> bool:
    """Return whether this seed has an agent type whose jobs are detached."""
    return seed % DETACHED[0] == DETACHED[1]


def detached(seed: int, config: Config) -> Config:
    """Let jobs of one type be detached in some seeds; without dice. At times no daemon serves it."""
    if not has_detached(seed) or (KEPT_TYPE not in config.agents and (seed + len(config.agents)) % 4 == 0):
        return config
    command = ("tool", "{args}", "{id}", "a")
    kind = AgentType(
        command=command, kind="exec", slots=1 + seed % 3, output_limit=500, item_timeout=100.0, detached=True
    )
    hosts = config.hosts | {
        name: attrs.evolve(host, transport="ssh") for name, host in config.hosts.items() if name == "alpha"
    }
    return attrs.evolve(config, agents=config.agents | {KEPT_TYPE: kind}, hosts=hosts)


def by_seed(seed: int, config: Config) -> Config:
    """Return a configuration with what only some seeds have."""
    return detached(seed, canaries(seed, start_policies(seed, config)))


def has_quotas(seed: int) -> bool:
    """Return whether this seed has quotas."""
    return seed % EVERY_FIFTH == EVERY_FIFTH - 1


def quotas(seed: int, steps: int = 0) -> list[dict[str, Any]]:
    """Return quotas for every fifth seed, others at another step, without dice: other seeds are as they were."""
    if not has_quotas(seed):
        return []
    most = 1 + (seed // EVERY_FIFTH + steps) % 3
    nothing = dict.fromkeys(("tenant", "user", "queue", "host"))
    return [
        nothing | {"name": "anna", "most": most, "user": "anna"},
        nothing | {"name": "each", "most": most + 1, "user": "*", "queue": "heavy"},
        nothing | {"name": "staff", "most": most + 2, "tenant": "staff"},
        nothing | {"name": "there", "most": most, "host": "alpha", "user": "*"},
    ][: (seed + steps) % 5]
