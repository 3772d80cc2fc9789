"""The configuration: every table, key, default and limit.

Each key's own limit is its validator; which values contradict each other is in config_rules.py. Knows nothing of TOML,
files or line numbers (config_text reads texts, cli/config_files.py finds them).
"""

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any, Literal

import attrs
from attrs import field, frozen

from scheduler.errors import ConfigError
from scheduler.model.host_filters import FILTERS, NAME, NAME_RULE, filter_mistake
from scheduler.model.priority_ranges import EVERY, Range, ranges_matching
from scheduler.model.queue_filters import filter_mistake as mistake_of_queue_filter
from scheduler.model.queue_filters import parse_filter
from scheduler.model.rate_limits import MOST_STARTS, RATE_BY, RATE_BY_RULE, rate_limits
from scheduler.model.schedule_times import Times, read_time, zone_of
from scheduler.model.verbs import PRIORITY as LETTERS
from scheduler.model.verbs import PRIORITY_RULE

Path = tuple[str | int, ...]
Mistake = tuple[Path, str]  # the value to blame, and a message
Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]
Argv = Annotated[tuple[str, ...], "a text is split by shell rules"]
Window = Annotated[int | str, 'a number, or "auto"']
AUTO = "auto"
PRELUDE_WORDS = 4  # before the command of a type that has a prelude
MOST_LINES = 16  # of a window that is AUTO; with more there is little to gain

YEAR = 31_536_000
LARGEST = 2_147_483_647
HUGE = 2**63 - 1
MOST_DAYS = 36_500
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(:[0-9]{1,5})?")
STEP = re.compile(r"(?:([1-9][0-9]{0,8})x)?([0-9]{1,8}(?:\.[0-9]{1,3})?)")
UNTIL = re.compile(r"(host|agent) \S+|queue \S.*")
SPOOL = re.compile(r"~?/[^\0\n]*")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class ConfigMistakes(ConfigError):  # noqa: N818  (it is several)
    """Every mistake of a configuration, one line each: `file:line: key: message (got value)`."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


def _must(holds: Callable[[Any], bool], message: str) -> Check:
    def check(_instance: Any, _attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not holds(value):
            raise ValueError(message)

    return check


def _filters(key: str) -> Check:
    def check(_instance: Any, _attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if mistake := filter_mistake(key, value):
            raise ValueError(mistake)

    return check


def _check_queue_filter(_instance: Any, _attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if mistake := mistake_of_queue_filter(value):
        raise ValueError(mistake)


def _matches(pattern: re.Pattern[str], message: str) -> Check:
    """Return a check by a pattern; an empty text means "not given" and is always allowed."""
    return _must(lambda text: not text or pattern.fullmatch(text) is not None, message)


SPAN = _must(lambda s: 0 < s <= YEAR, f"must be more than 0 and at most {YEAR} seconds")
GRACE = _must(lambda s: 0 <= s <= YEAR, f"must be from 0 to {YEAR} seconds")
COUNT = _must(lambda n: 1 <= n <= LARGEST, f"must be from 1 to {LARGEST}")
COUNT_OR_AUTO = _must(lambda n: n == AUTO or 1 <= n <= LARGEST, f'must be "auto", or from 1 to {LARGEST}')
MOST_CANARY = 1000
CANARY = _must(lambda n: 0 <= n <= MOST_CANARY, f"must be from 0 (no trial of a new program) to {MOST_CANARY} items")
COUNT_OR_NONE = _must(lambda n: 0 <= n <= LARGEST, f"must be from 0 to {LARGEST}")
RATE = _must(lambda n: 0 <= n <= MOST_STARTS, f"must be from 0 (no limit) to {MOST_STARTS}")
ITEM_RATE = _must(
    lambda n: n == 0 or 1e-6 <= n <= 100_000, "must be from 0.000001 to 100000 items a second, or 0: no limit"
)
DAYS = _must(lambda n: 0 <= n <= MOST_DAYS, f"must be from 0 to {MOST_DAYS} days")
DAYS_OR_USUAL = _must(lambda n: -1 <= n <= MOST_DAYS, f"must be -1 (as retention) or from 0 to {MOST_DAYS} days")
MAXIMUM = _must(lambda n: n == -1 or 1 <= n <= LARGEST, "must be -1 (no limit) or more than 0")
PRIORITY = _must(lambda n: abs(n) <= LARGEST, f"must be from -{LARGEST} to {LARGEST}")
SIZE = _must(lambda n: 0 <= n <= HUGE, f"must be from 0 to {HUGE}")
LIMIT = attrs.validators.optional(SIZE)
GIVEN = _must(bool, "must not be empty")
STANDARD_ERROR, SYSLOG = "stderr", "syslog"  # destinations of the log, beside paths
LOGS = _must(
    lambda places: all(
        place in (STANDARD_ERROR, SYSLOG) or place.removeprefix(f"{SYSLOG}:").startswith("/") for place in places
    ),
    'must be a list of "stderr", "syslog", "syslog:/path/of/its/socket" or absolute paths',
)
PLACE = _must(lambda path: not path or path.startswith("/"), "must be an absolute path")


@frozen
class Database:
    """The database of the queue, and the logins of the daemon; people_url is the login of the commands of people.

    An empty msq_url or agentdb_url means the server of url under that login role, an empty people_url means url.
    """

    url: str = field(default="embedded", validator=GIVEN)
    people_url: str = ""
    msq_url: str = ""
    agentdb_url: str = ""
    password_file: str = ""
    msq_password_file: str = ""
    agentdb_password_file: str = ""


@frozen
class Scheduler:
    """The daemon's settings; floats are seconds."""

    group: str = field(default="default", validator=[GIVEN, _matches(NAME, NAME_RULE)])
    respawn_interval: float = field(default=300.0, validator=SPAN)
    respawn_count: int = field(default=5, validator=COUNT_OR_NONE)
    kill_grace: float = field(default=20.0, validator=GRACE)
    min_idle: float = field(default=20.0, validator=GRACE)
    max_idle: float = field(default=900.0, validator=SPAN)
    start_limit: float = field(default=60.0, validator=SPAN)
    start_hint: float = field(default=5.0, validator=SPAN)
    write_limit: float = field(default=60.0, validator=SPAN)
    exit_grace: float = field(default=2.0, validator=GRACE)
    lease: float = field(default=30.0, validator=SPAN)
    lease_renewal: float = field(default=10.0, validator=SPAN)
    rescan: float = field(default=60.0, validator=SPAN)
    poll_interval: float = field(default=1.0, validator=SPAN)
    wake_interval: float = field(default=0.1, validator=SPAN)
    progress_interval: float = field(default=1.0, validator=SPAN)
    output_interval: float = field(default=0.2, validator=SPAN)
    status_interval: float = field(default=30.0, validator=SPAN)
    retention: int = field(default=0, validator=DAYS)
    retention_done: int = field(default=-1, validator=DAYS_OR_USUAL)
    retention_failed: int = field(default=0, validator=DAYS)
    retention_cancelled: int = field(default=-1, validator=DAYS_OR_USUAL)
    retention_skipped: int = field(default=-1, validator=DAYS_OR_USUAL)
    retention_ignored: int = field(default=-1, validator=DAYS_OR_USUAL)
    hold: float = field(default=0.1, validator=SPAN)
    hold_max: int = field(default=2000, validator=COUNT)
    fetch_limit: int = field(default=1000, validator=COUNT_OR_NONE)
    expansions: int = field(default=8, validator=COUNT)
    expansions_per_type: int = field(default=4, validator=COUNT)
    expansion_limit: float = field(default=3600.0, validator=SPAN)
    fetch_rows: int = field(default=0, validator=SIZE)
    fetch_bytes: int = field(default=1_000_000, validator=COUNT)
    msq_rows: int = field(default=0, validator=SIZE)
    msq_bytes: int = field(default=0, validator=SIZE)
    msq_file_bytes: int = field(default=4_000_000_000, validator=SIZE)
    agentdb_connections: int = field(default=2, validator=COUNT)
    statement_limit: float = field(default=30.0, validator=SPAN)
    lock_limit: float = field(default=0.2, validator=SPAN)
    retry_base: float = field(default=10.0, validator=SPAN)
    retry_max: float = field(default=3600.0, validator=SPAN)
    blocked_delay: float = field(default=60.0, validator=SPAN)
    line_limit: int = field(default=1_048_576, validator=COUNT)
    reconnect_max: float = field(default=30.0, validator=SPAN)
    hang_limit: float = field(default=10.0, validator=GRACE)
    reexec: bool = False
    reexec_limit: float = field(default=30.0, validator=SPAN)
    keep_agents: bool = False
    ready_file: str = field(default="", validator=PLACE)
    log_level: Literal["trace", "debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    log_file: str = field(default="", validator=PLACE)
    log_also: tuple[str, ...] = field(default=(), validator=LOGS)

    @property
    def days_kept(self) -> dict[str, int]:
        """Return after how many days jobs are removed, by how they ended, and lines about no job; others stay."""
        given = {
            "done": self.retention_done, "failed": self.retention_failed, "cancelled": self.retention_cancelled,
            "skipped": self.retention_skipped, "ignored": self.retention_ignored, "command": -1, "log": -1,
        }  # fmt: skip
        days = {what: self.retention if own == -1 else own for what, own in given.items()}
        return {what: each for what, each in days.items() if each}


@frozen
class Host:
    """A machine where agents run, and how to connect to it."""

    max: int = field(default=-1, validator=MAXIMUM)
    urgent: int = field(default=1, validator=COUNT_OR_NONE)
    enabled: bool = True
    transport: Literal["local", "ssh", "command"] = "local"
    address: str = field(default="", validator=_matches(ADDRESS, 'must be "host" or "host:port"'))
    user: str = field(default="", validator=_matches(USER, "is not a login name"))
    identity: str = ""
    known_hosts: str = ""
    command: Argv = ()
    spool: str = field(default="", validator=_matches(SPOOL, "must be a path that begins with / or ~/"))
    types: str = field(default="", validator=_filters("types"))
    queues: tuple[str, ...] = ()
    priorities: str = field(default="", validator=_filters("priorities"))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Return the priorities that are taken here."""
        return ranges_matching(self.priorities)

    @property
    def is_selective(self) -> bool:
        """Return whether it takes only some jobs of the types that it takes."""
        return bool(self.queues) or self.ranges != EVERY

    @property
    def filters(self) -> dict[str, Any]:
        """Return the filters, by key."""
        return {key: getattr(self, key) for key in FILTERS}

    @property
    def is_remote(self) -> bool:
        """Return whether it has to be connected to before anything can be started there."""
        return self.transport == "ssh"


@frozen
class Limits:
    """Resource limits of one agent process, as setrlimit(2) counts them; None leaves the daemon's own."""

    nofile: int | None = field(default=None, validator=LIMIT)
    memory: int | None = field(default=None, validator=LIMIT)
    cpu: int | None = field(default=None, validator=LIMIT)
    nproc: int | None = field(default=None, validator=LIMIT)
    fsize: int | None = field(default=None, validator=LIMIT)
    core: int | None = field(default=None, validator=LIMIT)


@frozen
class AgentType:
    """A kind of agent: its program, where and how many of it run, who may queue for it and what it may do."""

    command: Argv = field(validator=GIVEN)
    kind: Literal["line", "exec"] = "line"
    hosts: tuple[str, ...] = ()
    slots: int = field(default=1, validator=COUNT)
    submitters: tuple[str, ...] = ("*",)
    database: str = ""
    db: Literal["off", "statements", "sql"] = "off"
    statements: dict[str, str] = field(factory=dict)
    heartbeat: float = field(default=0.0, validator=GRACE)
    item_timeout: float = field(default=0.0, validator=GRACE)
    item_rate: float = field(default=0.0, validator=ITEM_RATE)
    spill: float = field(default=0.0, validator=GRACE)
    enabled: bool = True
    user: str = field(default="", validator=_matches(USER, "is not a login name"))
    cwd: str = ""
    env: dict[str, str] = field(factory=dict)
    pass_env: tuple[str, ...] = ()
    limits: Limits = field(factory=Limits)
    output_limit: int = field(default=1_048_576, validator=COUNT_OR_NONE)
    window: Window = field(default=AUTO, validator=COUNT_OR_AUTO)
    escape: Literal["all", "shell"] = "all"
    nulls: Literal["omit", "empty"] = "omit"
    empty: Literal["fail", "send"] = "fail"
    fair: bool = False
    retries: int = field(default=0, validator=COUNT_OR_NONE)
    retry_backoff: Literal["exponential", "constant"] = "exponential"
    retry_base: float | None = field(default=None, validator=attrs.validators.optional(SPAN))
    retry_max: float | None = field(default=None, validator=attrs.validators.optional(SPAN))
    retry_jitter: bool = True
    on_start_failure: Literal["wait", "block", "fail"] = "wait"
    attributes: dict[str, str] = field(factory=dict)
    prelude: str = ""
    canary: int = field(default=0, validator=CANARY)
    detached: bool = False

    @property
    def most_lines(self) -> int:
        """The number of lines that an agent has at most: the one that it works on, and those behind it."""
        if self.item_rate:
            return 1
        if isinstance(self.window, int):
            return self.window
        return MOST_LINES if self.kind == "line" and self.db == "off" else 1


@frozen
class Queue:
    """A named queue; concurrency None means unlimited."""

    concurrency: int | None = field(default=None, validator=attrs.validators.optional(COUNT))
    paused: bool = False
    reserved: int = field(default=0, validator=COUNT_OR_NONE)
    priority: int = field(default=0, validator=PRIORITY)
    filter: str = field(default="", validator=_check_queue_filter)
    zone: str = field(default="UTC", validator=GIVEN)
    max_length: int = field(default=0, validator=COUNT_OR_NONE)
    rate: int = field(default=0, validator=RATE)
    rate_each: int = field(default=0, validator=RATE)
    rate_by: str = field(default="", validator=_matches(RATE_BY, RATE_BY_RULE))
    rate_interval: float = field(default=60.0, validator=SPAN)

    @property
    def limits(self) -> dict[str, Any] | None:
        """Return the rate limits as policy/rates.py reads them; None if there is none."""
        return rate_limits(self.rate, self.rate_each, self.rate_by, self.rate_interval)

    @property
    def route(self) -> dict[str, Any] | None:
        """Return what the database makes its function of: nothing but what the filter was parsed to."""
        return {"text": self.filter, "zone": self.zone, "tree": parse_filter(self.filter)} if self.filter else None


@frozen
class Condition:
    """The policy for jobs that are blocked on a condition; floats are seconds, 0 is no limit."""

    condition: str = ""
    types: tuple[str, ...] = ()
    wait: float | None = field(default=None, validator=attrs.validators.optional(SPAN))
    steps: tuple[str, ...] = ()
    max_tries: int = field(default=0, validator=COUNT_OR_NONE)
    max_elapsed: float = field(default=0.0, validator=GRACE)
    at_once: int = field(default=0, validator=COUNT_OR_NONE)
    tester: str = ""
    tester_args: str = ""
    tester_timeout: float = field(default=60.0, validator=SPAN)
    tester_failure: Literal["wait", "fail"] = "wait"
    until: str = field(default="", validator=_matches(UNTIL, "must be like host NAME, agent TYPE or queue NAME"))

    def rules(self, usual_wait: float) -> dict[str, Any]:
        """Return the rules as policy/conditions.py reads them."""
        steps = [STEP.fullmatch(step) for step in self.steps]
        read = [(int(found[1] or 0), float(found[2])) for found in steps if found]
        return {
            "steps": read or [(0, usual_wait if self.wait is None else self.wait)],
            "max_tries": self.max_tries, "max_elapsed": self.max_elapsed, "at_once": self.at_once,
            "tester": self.tester, "tester_args": self.tester_args, "tester_timeout": self.tester_timeout,
            "tester_failure": self.tester_failure, "until": self.until,
        }  # fmt: skip


@frozen
class ScheduledJob:
    """A job that a schedule queues; `after` are names of jobs of the schedule that must succeed before it."""

    type: str = ""
    args: str = ""
    after: tuple[str, ...] = ()
    queue: str = ""
    host: str = ""
    priority: str = field(default="n", validator=_matches(LETTERS, PRIORITY_RULE))
    urgent: bool = False
    retries: int = field(default=0, validator=COUNT_OR_NONE)
    sql: bool = False
    runonpfile: str = ""
    key: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns that are given."""
        given = {"type": self.type, "args": self.args, "queue": self.queue, "host": self.host}
        given |= {"runonpfile": self.runonpfile, "key": self.key}
        wanted: dict[str, Any] = {f"jq_{key}": value for key, value in given.items() if value}
        wanted |= {"jq_priority": self.priority, "jq_urgent": self.urgent, "jq_retries": self.retries}
        return wanted | ({"jq_msq": True} if self.sql else {})


@frozen
class Schedule:
    """A schedule: the times, and the jobs or the command that is queued then."""

    at: str = ""
    every: float = field(default=0.0, validator=GRACE)
    cron: str = ""
    zone: str = field(default="UTC", validator=GIVEN)
    catch_up: Literal["one", "all", "none"] = "one"
    jitter: float = field(default=0.0, validator=_must(lambda s: 0 <= s <= 86_400, "must be from 0 to 86400 seconds"))
    overlap: Literal["queue", "skip"] = "queue"
    enabled: bool = True
    command: str = ""
    jobs: dict[str, ScheduledJob] = field(factory=dict)

    @property
    def times(self) -> Times:
        """Return when it starts. Errors: TimesError."""
        at = read_time(self.at, zone_of(self.zone)) if self.at else None
        every = timedelta(seconds=self.every) if self.every else None
        return Times(at, every, " ".join(self.cron.split()) or None, self.zone)

    def job(self, name: str) -> dict[str, Any]:
        """Return what it queues, as drover.schedule has it."""
        if self.command:
            return {"jq_type": "command", "jq_args": self.command}
        jobs = list(self.jobs.items())
        if len(jobs) == 1:
            return jobs[0][1].columns
        return {
            "group": {"job_name": name},
            "jobs": [{"name": each, "after": job.after} | job.columns for each, job in jobs],
        }


@frozen
class Config:
    """A whole configuration, each table by its name."""

    database: Database = field(factory=Database)
    scheduler: Scheduler = field(factory=Scheduler)
    hosts: dict[str, Host] = field(factory=dict)
    agents: dict[str, AgentType] = field(factory=dict)
    queues: dict[str, Queue] = field(factory=dict)
    conditions: dict[str, Condition] = field(factory=dict)
    schedules: dict[str, Schedule] = field(factory=dict)

    def hosts_of(self, kind: str) -> tuple[str, ...]:
        """Return the hosts on which a type has slots."""
        names = self.agents[kind].hosts or self.hosts
        return tuple(name for name in names if re.search(self.hosts[name].types, kind))
