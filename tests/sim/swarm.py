"""Swarm testing: each seed of a swarm switches features of the world on and off, so that rare ones meet each other.

A world without features is that of its seed alone: nothing here throws its dice then. What a feature does stands where
it happens: `sim.has(NAME)`.
"""

from random import Random
from typing import TYPE_CHECKING, Final

import attrs

from scheduler.model.config import AgentType, Config
from scheduler.policy.conditions import read_policy
from tests.sim import configs

if TYPE_CHECKING:
    from tests.sim.world import Sim

FEATURES: Final = (
    "voices",  # agents say all that the protocol has, and much of it
    "clogs",  # agents that do not read
    "starts",  # starts fail by the fault of the item, the machine or the program; some ends are not known
    "moves",  # hosts are reached otherwise, kills are refused
    "connections",  # those that queries and DB: lines need cannot be made for a while
    "item rates",  # of types
    "rates",  # of queues, by all attributes, and changed
    "odd",  # rows that no agent can be given, in part or at all
    "variables",  # of jobs
    "rules",  # of types: retries, submitters, prompt hints
    "testers",  # of conditions
    "thefts",  # rows in hand are changed by others
    "pauses",  # the machine sleeps
    "schedules",  # start jobs
    "refusals",  # of marks, and connections that break at a fetch
    "few queries",  # may be open at once, and none has a key
    "locks",  # on children of ended rows
    "keepers",  # of detached jobs fail, and hosts print what nobody asked for
    "lease",  # the lease is poked, its statements are slow
    "reexec",  # another program takes over
)
OFTEN: Final = 0.35
HALF: Final = 0.5
RESIDUES: Final = (configs.has_canaries, configs.has_detached, configs.has_quotas, configs.has_start_policies)
APART: Final = 1000  # seeds
STEPS: Final = 600  # of a world, until its faults stop

RATES: Final = (  # of a queue
    None,
    {"rate": 2, "interval": 5.0},
    {"each": 1, "by": "submitter", "interval": 3.0},
    {"each": 2, "by": "host", "interval": 10.0},
    {"rate": 3, "each": 2, "by": "type", "interval": 4.0},
    {"each": 1, "by": "data.tape", "interval": 2.0},
)
POLICIES: Final = tuple(
    read_policy(rules)
    for rules in (
        {"tester": "sha"},
        {"tester": "sha", "tester_args": "look", "tester_failure": "fail", "max_tries": 3},
        {"steps": [[2, 10.0], [1, 20.0]], "at_once": 2, "max_elapsed": 100.0},
        {"tester": "sha", "max_elapsed": 200.0},
        {"max_tries": 2, "steps": [[1, 3.0], [0, 9.0]]},
    )
)


def features(number: int) -> frozenset[str]:
    """Return the features of a world of the swarm."""
    rng = Random(f"swarm {number}")
    return frozenset(name for name in FEATURES if rng.random() < OFTEN)


def world(number: int) -> "Sim":
    """Return a world of the swarm."""
    from tests.sim.world import Sim

    return Sim(seed_of(number), features=features(number))


def seed_of(number: int) -> int:
    """Return the seed of a world of the swarm: one with some of what only some seeds have."""
    rng = Random(f"seed {number}")
    wanted = [rng.random() < HALF for _ in RESIDUES]
    seeds = range(number * APART, (number + 1) * APART)
    return max(seeds, key=lambda seed: sum(has(seed) == want for has, want in zip(RESIDUES, wanted, strict=True)))


def configured(names: frozenset[str], config: Config, rng: Random) -> Config:
    """Return a configuration with what the features give to types and to the scheduler."""
    if not names:
        return config
    agents = {name: _type(names, kind, rng) for name, kind in config.agents.items()}
    timers = config.scheduler
    if "few queries" in names:
        timers = attrs.evolve(timers, expansions=2, expansions_per_type=2, msq_file_bytes=rng.choice((0, 300, 10**9)))
    if "voices" in names or "rules" in names:
        timers = attrs.evolve(timers, start_hint=0.02)
    if "rules" in names:
        timers = attrs.evolve(timers, max_idle=60.0)
    timers = attrs.evolve(timers, respawn_interval=20.0, respawn_count=2)
    return attrs.evolve(config, agents=agents, scheduler=timers)


def _type(names: frozenset[str], kind: AgentType, rng: Random) -> AgentType:
    if "voices" in names:
        kind = attrs.evolve(kind, output_limit=rng.choice((300, 3000, 0)))
    if names & {"connections", "voices"} and kind.kind == "line":
        kind = attrs.evolve(kind, db=rng.choice(("off", "statements")))
    if "item rates" in names and not kind.detached:
        kind = attrs.evolve(kind, item_rate=rng.choice((0.0, 0.0, 0.7, 5.0, 30.0)))
    if "odd" in names and kind.kind == "line":
        kind = attrs.evolve(kind, escape="shell")
    if "variables" in names and kind.kind == "exec" and not kind.detached and rng.random() < 0.3:
        kind = attrs.evolve(kind, command=("tool", "{args}", "{tape}"))
    if "rules" in names:
        kind = attrs.evolve(
            kind, retries=rng.choice((0, 1)), retry_backoff=rng.choice(("exponential", "constant")),
            retry_base=rng.choice((None, 1.0)), retry_max=rng.choice((None, 3.0)), retry_jitter=rng.random() < HALF,
            submitters=rng.choice((("*",), ("*",), ("anna", "staff"))),
        )  # fmt: skip
    return kind
