"""Which values of a configuration contradict each other, though each is right by itself.

What two keys of one table say against each other is a row of the tables below; `contradictions` has the rest. The limit
of a key by itself is its validator (config.py).
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from scheduler.errors import ConfigError
from scheduler.model.config import AUTO, STEP, YEAR, AgentType, Condition, Config, Mistake, Path, Schedule
from scheduler.model.host_filters import NAME, NAME_RULE, QUEUE_RULE, is_queue_name
from scheduler.model.rate_limits import EACH_NEEDS_BY
from scheduler.model.schedule_times import TimesError, check_cron, zone_of
from scheduler.model.sql_text import bind
from scheduler.model.verbs import CommandError, parse

ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # a cron expression that ever comes, comes after it
RUNS_ANOTHER = "a schedule runs no other one: give it the job of that one, or the same times"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The daemon's own login at the database: an agent gets one of its own, by `database` or `env`.
SECRET = frozenset({"PGPASSWORD", "DROVER_DATABASE_URL"})
SECRET_RULE = "is the scheduler's own login; give the agent one of its own, with database or env"
RESERVED = frozenset({"THREAD_UNIQUE", "DROVER_HOST", "DROVER_AGENT", "DROVER_JOB", "DROVER_ATTEMPT", "DROVER_WORD"})

# What two keys of one table say against each other: the key to blame, what must hold, the message otherwise.
Rule = tuple[str, Callable[[Any], bool], str]

SCHEDULER_RULES: tuple[Rule, ...] = (
    ("lease_renewal", lambda s: s.lease_renewal < s.lease / 2, "must be less than half of lease"),
    ("max_idle", lambda s: s.min_idle <= s.max_idle, "must not be less than min_idle"),
    ("retry_max", lambda s: s.retry_base <= s.retry_max, "must not be less than retry_base"),
)
HOST_RULES: tuple[Rule, ...] = (
    ("address", lambda h: h.transport != "ssh" or h.address, 'is needed by transport = "ssh"'),
    ("command", lambda h: h.transport != "command" or h.command, 'is needed by transport = "command"'),
)
AGENT_RULES: tuple[Rule, ...] = (
    ("heartbeat", lambda a: a.kind == "line" or not a.heartbeat, "must be 0: exec agents have no heartbeat"),
    ("window", lambda a: a.kind == "line" or a.window in (1, AUTO), "must be 1: an exec agent gets one item"),
    ("prelude", lambda a: a.kind == "exec" or not a.prelude, "is for exec agents: a line agent is started once"),
    (
        "window",
        lambda a: a.db == "off" or a.window in (1, AUTO),
        "must be 1: answers to DB: lines would come behind lines ahead",
    ),
    ("statements", lambda a: a.db == "statements" or not a.statements, 'are for db = "statements" only'),
    ("canary", lambda a: not (a.canary and a.user), "must be 0: another user cannot read the copies of programs"),
    (
        "retry_max",
        lambda a: None in (a.retry_base, a.retry_max) or a.retry_base <= a.retry_max,
        "must not be less than retry_base",
    ),
    ("detached", lambda a: not (a.detached and a.canary), "contradicts canary: give one of them"),
    ("detached", lambda a: a.kind == "exec" or not a.detached, 'is for kind = "exec" only'),
    ("detached", lambda a: not (a.detached and a.user), "contradicts user: the spool is the daemon's"),
)
CONDITION_RULES: tuple[Rule, ...] = (
    ("steps", lambda c: c.wait is None or not c.steps, "contradicts wait: give one of them"),
    ("until", lambda c: not c.tester or not c.until, "contradicts tester: give one of them"),
    ("condition", lambda c: not re.search(r"\s", c.condition), "is one word, or * for all others"),
)


def _is_engine(config: Config, host: str) -> bool:
    return host in config.hosts and config.hosts[host].transport == "command"


def contradictions(config: Config) -> Iterator[Mistake]:
    """Yield every mistake of values that are right by themselves: the path to blame, and a message."""
    if not config.hosts:
        yield ("hosts",), "no host is configured; add a table like [hosts.local]"
    if not config.agents:
        yield ("agents",), "no agent is configured; add a table like [agents.sha256]"
    for table in ("hosts", "agents", "conditions", "schedules"):
        yield from (((table, name), NAME_RULE) for name in getattr(config, table) if not NAME.fullmatch(name))
    yield from _broken(SCHEDULER_RULES, ("scheduler",), config.scheduler)
    for name, host in config.hosts.items():
        yield from _broken(HOST_RULES, ("hosts", name), host)
        wrong = [number for number, queue in enumerate(host.queues) if not is_queue_name(queue)]
        yield from ((("hosts", name, "queues", number), QUEUE_RULE) for number in wrong)
    yield from _queue_mistakes(config)
    for name, schedule in config.schedules.items():
        yield from _schedule_mistakes(("schedules", name), schedule)
    for name, condition in config.conditions.items():
        yield from _broken(CONDITION_RULES, ("conditions", name), condition)
        yield from _condition_lists(("conditions", name), condition, config)
    for name, agent in config.agents.items():
        path = ("agents", name)
        if mistake := agent_name_mistake(name):
            yield path, mistake
        yield from _broken(AGENT_RULES, path, agent)
        yield from (((*path, *key), message) for key, message in _names_in(agent) if message)
        yield from _agent_hosts(path, agent, config)
        if agent.detached and (engines := [each for each in agent.hosts or config.hosts if _is_engine(config, each)]):
            yield (*path, "detached"), f'cannot be on hosts with transport = "command": {", ".join(engines)}'


def _queue_mistakes(config: Config) -> Iterator[Mistake]:
    """Yield the zones that there are not, and the filters whose order is open."""
    ranked: dict[int, str] = {}
    for name, queue in config.queues.items():
        if not is_queue_name(name):
            yield ("queues", name), QUEUE_RULE
        try:
            zone_of(queue.zone)
        except TimesError as mistake:
            yield ("queues", name, "zone"), str(mistake)
        if bool(queue.rate_each) != bool(queue.rate_by):
            yield ("queues", name, "rate_by"), EACH_NEEDS_BY
        if queue.filter and (other := ranked.setdefault(queue.priority, name)) != name:
            yield ("queues", name, "priority"), f"is that of queue {other} too; filters are tried in this order"


def _condition_lists(path: Path, condition: Condition, config: Config) -> Iterator[Mistake]:
    for number, step in enumerate(condition.steps):
        found = STEP.fullmatch(step)
        if not found or not 0 < float(found[2]) <= YEAR:
            yield (*path, "steps", number), "must be like 10x20: ten checks, 20 seconds before each; or 300, for ever"
        elif not found[1] and number < len(condition.steps) - 1:
            yield (*path, "steps", number), "is for ever: no step can follow it"
    types: list[tuple[Path, str]] = [(("types", number), name) for number, name in enumerate(condition.types)]
    types += [(("tester",), condition.tester)] if condition.tester else []
    unknown = [key for key, name in types if name not in config.agents]
    yield from (((*path, *key), "no such agent type is configured") for key in unknown)


def _schedule_mistakes(path: Path, schedule: Schedule) -> Iterator[Mistake]:
    yield from _time_mistakes(path, schedule)
    if bool(schedule.command) == bool(schedule.jobs):
        yield path, "either command or jobs is required, as jobs.main = { type = ..., args = ... }"
    elif schedule.command:
        try:
            if parse(schedule.command).verb == "schedule-run":
                yield (*path, "command"), RUNS_ANOTHER
        except CommandError as mistake:
            yield (*path, "command"), str(mistake)
    for name, job in schedule.jobs.items():
        if not job.type or job.type in ("command", "cleanup"):
            yield (*path, "jobs", name, "type"), "must be the agent type that the job is for"
        for number, other in enumerate(job.after):
            if other not in schedule.jobs or other == name:
                yield (*path, "jobs", name, "after", number), "is no other job of the schedule"


def _time_mistakes(path: Path, schedule: Schedule) -> Iterator[Mistake]:
    given = [key for key in ("at", "every", "cron") if getattr(schedule, key)]
    if len(given) != 1:
        yield path, f"one of at, every and cron is required (given: {' and '.join(given) or 'none'})"
        return
    key = given[0]
    try:
        zone_of(schedule.zone)
    except TimesError as mistake:
        yield (*path, "zone"), str(mistake)
        return
    try:
        if schedule.times.cron is not None:
            check_cron(schedule.times.cron, schedule.zone, ANY_TIME)
    except TimesError as mistake:
        yield (*path, key), str(mistake)
    if schedule.every and schedule.every < 1:
        yield (*path, "every"), "must be at least 1 second"
    elif schedule.every and schedule.jitter >= schedule.every:
        yield (*path, "jitter"), "must be less than every"


def agent_name_mistake(name: str) -> str:
    """Return what is wrong with the name of an agent type beyond NAME_RULE; empty if nothing is."""
    if name == "command":
        return "is the type of the scheduler's own commands; choose another name"
    return "must not have a dot: job names are type.nonce" if "." in name else ""


def _broken(rules: tuple[Rule, ...], path: Path, table: object) -> Iterator[Mistake]:
    return (((*path, key), message) for key, holds, message in rules if not holds(table))


def _names_in(agent: AgentType) -> Iterator[Mistake]:
    """Yield what is wrong with each environment variable, statement and attribute; "" is nothing."""
    for variable in agent.env:
        yield ("env", variable), _variable_mistake(variable)
    for number, variable in enumerate(agent.pass_env):
        yield ("pass_env", number), _variable_mistake(variable) or (SECRET_RULE if variable in SECRET else "")
    for name, sql in agent.statements.items():
        yield ("statements", name), _statement_mistake(name, sql)
    for name, value in agent.attributes.items():
        yield ("attributes", name), _attribute_mistake(name, value)


def _variable_mistake(name: str) -> str:
    if not VARIABLE.fullmatch(name):
        return "is not the name of an environment variable"
    return "is set by the scheduler itself" if name in RESERVED else ""


def _attribute_mistake(name: str, value: str) -> str:
    if not VARIABLE.fullmatch(name):
        return "the name of an attribute is one word of letters, digits and _"
    return "" if NAME.fullmatch(value) else f"is one word: {NAME_RULE}"


def _statement_mistake(name: str, sql: str) -> str:
    if not VARIABLE.fullmatch(name):
        return "the name of a statement is one word of letters, digits and _"
    try:
        bound, _ = bind(sql)
    except ConfigError as error:
        return str(error)
    return "" if bound.strip() else "must not be empty"


def _agent_hosts(path: Path, agent: AgentType, config: Config) -> Iterator[Mistake]:
    unknown = [number for number, host in enumerate(agent.hosts) if host not in config.hosts]
    yield from (((*path, "hosts", number), "no such host is configured") for number in unknown)
    if unknown or not config.hosts:
        return
    hosts = config.hosts_of(str(path[1]))
    if not hosts:
        yield path, "no host takes it: the key types of each leaves it out"
    remote = [host for host in hosts if config.hosts[host].transport != "local"]
    if agent.user and remote:
        yield (*path, "user"), f"is for local hosts, which {remote[0]} is not; name others in its key hosts"
