"""What a daemon writes down of its configuration: a value that changed in the file wins, else the current one stays."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg.types.json import Jsonb

from scheduler.drivers.loop import Loop
from scheduler.drivers.statements import to_json
from tests.connection_tools import OWNER, QUERIES, ask, fetch, opened, rows_of
from tests.patience import PATIENCE_S

DAEMON: Final = {
    "host": "here", "pid": 7, "boot_id": "b", "pid_space": "s", "pid_start": 1, "version": "0", "lease": 30.0,
}  # fmt: skip
HOST: Final[dict[str, Any]] = {
    "name": "alpha", "max": 4, "urgent": 1, "enabled": True, "transport": "local", "types": "", "queues": [],
    "priorities": "", "letters": None,
}  # fmt: skip
QUEUE: Final[dict[str, Any]] = {
    "name": "slow", "concurrency": None, "paused": False, "reserved": 0, "priority": 0, "filter": None,
    "route": None, "limits": None, "zone": "UTC", "max_length": 0,
}  # fmt: skip
AGENT: Final[dict[str, Any]] = {
    "type": "sha", "enabled": True, "kind": "line", "submitters": ["*"], "cwd": "", "fair": False, "revision": None,
}  # fmt: skip
# What may change at run time: part of the configuration, setting, column, and two values of the file, one of a command.
CHANGEABLE: Final = [
    ("hosts", "max", "host.host_max", 4, 5, 6),
    ("hosts", "urgent", "host.host_urgent", 1, 2, 3),
    ("hosts", "enabled", "host.host_enabled", True, False, False),
    ("hosts", "types", "host.host_types", "a", "b", "c"),
    ("hosts", "queues", "host.host_queues", ["a"], ["b"], ["c"]),
    ("hosts", "priorities", "host.host_priorities", "a", "b", "c"),
    ("queues", "concurrency", "queue.queue_concurrency", None, 1, 2),
    ("queues", "paused", "queue.queue_paused", False, True, True),
    ("queues", "reserved", "queue.queue_reserved", 0, 1, 2),
    ("queues", "priority", "queue.queue_priority", 0, 1, 2),
    ("queues", "route", "queue.queue_route", None, {"text": "urgent"}, {"text": "sql"}),
    ("queues", "max_length", "queue.queue_max_length", 4, 5, 6),
    ("queues", "limits", "queue.queue_rate", {"rate": 1}, None, {"rate": 2}),
    ("agents", "enabled", "agent.agent_enabled", True, False, False),
]
Register = Callable[..., list[tuple[bytes | None, ...]]]


def configuration(**parts: Any) -> dict[str, Any]:
    """Return what a daemon registers with one host, queue and type; `parts` are instead of these."""
    return {**DAEMON, "hosts": [HOST], "queues": [QUEUE], "agents": [AGENT], **parts}


@pytest.fixture
def register(database: str) -> Iterator[Register]:
    """Yield a function that registers a daemon of the default group with these parts of its configuration."""
    loop = Loop()
    connection = opened(loop, database)

    def go(**parts: Any) -> list[tuple[bytes | None, ...]]:
        config = to_json(configuration(**parts))
        return rows_of(ask(loop, connection, QUERIES["register"], group="default", owner=OWNER, config=config))

    yield go
    connection.close()
    loop.close()


@pytest.mark.parametrize(("part", "key", "column", "first", "second", "commanded"), CHANGEABLE)
def test_a_value_of_the_file_wins_only_when_it_has_changed(
    register: Register, database: str, part: str, key: str, column: str, first: Any, second: Any, commanded: Any
) -> None:
    table, _, name = column.partition(".")
    entry = {"hosts": HOST, "queues": QUEUE, "agents": AGENT}[part]
    where = f"where {table}_{'type' if part == 'agents' else 'name'} = '{entry.get('name', 'sha')}'"

    def registered(value: Any) -> Any:
        assert register(**{part: [{**entry, key: value}]}) == []
        return fetch(database, f"select {name} from drover.{table} {where}")[0][0]

    def command() -> None:
        value = Jsonb(commanded) if isinstance(commanded, dict) else commanded
        fetch(database, f"update drover.{table} set {name} = %s {where}", value)

    assert registered(first) == first
    command()
    assert registered(first) == commanded
    assert registered(second) == second
    command()
    assert registered(second) == commanded
    assert registered(first) == first


def test_each_setting_that_daemons_read_wakes_them_when_it_is_changed_with_sql(database: str) -> None:
    read = set(re.findall(r"\b(?:host|agent|queue|placement|quota)_[a-z_]+", QUERIES["read_shared_settings"].sql))
    query = "select table_name, column_name from information_schema.columns where table_schema = 'drover'"
    settings = [row for row in fetch(database, query) if row[1] in read and row[1].startswith(f"{row[0]}_")]
    assert len(settings) == len(read - {"queue_start"})
    with psycopg.connect(database, autocommit=True) as daemon:
        daemon.execute("listen drover_change")
        for table, column in settings:
            # neither keys nor a column that daemons write themselves
            if column not in ("host_name", "agent_type", "placement_pk", "agent_trial"):
                fetch(database, f"update drover.{table} set {column} = {column}")
                assert len(list(daemon.notifies(timeout=PATIENCE_S, stop_after=1))) == 1, f"{table}.{column}"


def test_what_a_daemon_shows_of_its_types_and_hosts_wakes_no_daemon(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.agent (agent_group, agent_type) values ('default', 'a')")
    shown = {"type": "a", "seconds": 9.0, "queries_wait": False, "knows": True, "trial": {"state": "HELD_BACK"}}
    with psycopg.connect(database, autocommit=True) as daemon:
        daemon.execute("listen drover_change")
        watch("show_agents", rows=to_json([shown]))
        watch("show_hosts", rows=to_json([]))
        assert fetch(database, "select agent_trial from drover.agent") == [({"state": "HELD_BACK"},)]
        fetch(database, "select pg_notify('drover_change', 'a change')")
        first = next(daemon.notifies(timeout=PATIENCE_S))
    assert first.payload == "a change"


@pytest.mark.parametrize(
    ("part", "entry", "query"),
    [
        ("hosts", HOST, "select host_present from drover.host"),
        ("agents", AGENT, "select agent_present from drover.agent"),
    ],
)
def test_a_removed_queue_or_host_is_marked_until_configured_again(
    register: Register, database: str, part: str, entry: dict[str, Any], query: str
) -> None:
    told = []
    for entries in ([entry], [], [entry]):
        register(**{part: entries})
        told.append(fetch(database, query))
    assert told == [[(True,)], [(False,)], [(True,)]]


def test_names_of_another_group_are_reported_and_nothing_is_registered(register: Register, database: str) -> None:
    fetch(database, "insert into drover.host (host_name, host_group) values ('alpha', 'others')")
    assert register() == [(b"host alpha belongs to group others",)]
    written = "select (select count(*) from drover.scheduler), (select count(*) from drover.agent)"
    assert fetch(database, written) == [(0, 0)]


@pytest.mark.parametrize(
    ("letters", "taken"),
    [
        (None, ["a", "a1", "a12", "b", "Z", "9"]),
        ("a1-a2,b-b0", ["a1", "a12", "b"]),
        ("A-{", ["a", "a1", "a12", "b", "Z"]),
        ("ab", ["a", "a1", "a12", "b"]),  # of a daemon of the version before
    ],
)
def test_the_view_why_reads_the_priorities_that_a_host_takes_r55(
    database: str, letters: str | None, taken: list[str]
) -> None:
    query = "select p from unnest(%s::text[]) with ordinality as u(p, n) where drover.takes_priority(%s, p) order by n"
    assert fetch(database, query, ["a", "a1", "a12", "b", "Z", "9"], letters) == [(each,) for each in taken]


# ---- policies for conditions

POLICY: Final[dict[str, Any]] = {"name": "tape", "condition": "tape", "types": ["sha"], "rules": {"max_tries": 3}}
POLICIES: Final = "select policy_name, policy_condition, policy_types, policy_rules from drover.recovery_policy"


def test_policies_are_those_of_the_configuration_t79(register: Register, database: str) -> None:
    register(policies=[POLICY, {**POLICY, "name": "disk"}])
    register(policies=[POLICY])
    assert fetch(database, POLICIES) == [("tape", "tape", ["sha"], {"max_tries": 3})]


def test_daemon_of_the_version_before_leaves_policies_as_they_are(register: Register, database: str) -> None:
    register(policies=[POLICY])
    register()
    assert len(fetch(database, POLICIES)) == 1


def test_starts_of_a_queue_with_a_rate_limit_are_written_down_and_read(register: Register, database: str) -> None:
    limits = {"rate": 2, "each": 1, "by": "submitter", "interval": 60.0}
    loop = Loop()
    connection = opened(loop, database)

    def show(**row: Any) -> None:
        rows_of(ask(loop, connection, QUERIES["show_starts"], rows=to_json([{"queue": "slow", **row}])))

    def read() -> dict[str, Any]:
        rows = rows_of(ask(loop, connection, QUERIES["read_shared_settings"], group="default"))
        (found,) = [row for row in json.loads(rows[0][0] or b"") if row["name"] == "slow"]
        return dict(found)

    register(queues=[{**QUEUE, "limits": None}])
    assert (read()["rate"], read()["starts"]) == (None, None)
    register(queues=[{**QUEUE, "limits": limits}])
    assert (read()["rate"], read()["starts"]) == (limits, None)
    show(value="", ages=[], next=None)
    show(value="=anna", ages=[30.5, 4.25], next=1.5)
    ((_, ages),) = read()["starts"].items()
    assert round(ages[0] - ages[1], 3) == 26.25
    assert ages[1] >= 4.25
    show(value="=anna", ages=[], next=None)
    assert read()["starts"] is None
    connection.close()
    loop.close()
