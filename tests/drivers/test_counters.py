"""The counters of `drover metrics` in the database: what is added to them, by whom, and what is not counted."""

from typing import Any

import psycopg
import pytest

from scheduler.drivers.statements import to_json
from scheduler.model.queue_requests import Save, SaveRow
from tests.connection_tools import fetch
from tests.queue_tools import Desk, insert

COUNTERS = "select counter_name, counter_labels, counter_value from drover.counters order by 1, 2"
SAVED = "select counter_name, counter_labels, counter_value from drover.counter order by 1, 2"
NEW = "select count(*) from drover.counter_new"
AGENT = "insert into drover.agent (agent_group, agent_type) values ('default', 'a')"


def count(watch: Any, *rows: tuple[str, list[str], float]) -> None:
    watch("count", rows=to_json([{"name": name, "labels": labels, "value": value} for name, labels, value in rows]))


def test_counts_are_added_to_what_was_counted_before(watch: Any, database: str) -> None:
    count(watch, ("spawned", ["a", "alpha"], 2), ("worked", ["a"], 0.5))
    count(watch, ("spawned", ["a", "alpha"], 3), ("spawned", ["b", "alpha"], 1))
    assert fetch(database, SAVED) == [
        ("spawned", ["a", "alpha"], 5.0),
        ("spawned", ["b", "alpha"], 1.0),
        ("worked", ["a"], 0.5),
    ]


def test_ends_are_counted_by_type_state_and_code(desk: Desk, database: str) -> None:
    fetch(database, AGENT)
    for n in range(1, 4):
        insert(database)
        (claim,) = desk.claim()
        rows = [SaveRow(n, claim.attempt, "failed", bits=2, text="exit status 3", outcome="failed", code=3)]
        desk.ask(Save(rows))
    assert fetch(database, COUNTERS) == [("ended", ["a", "failed", "exit_status"], 3.0)]


def test_progress_and_jobs_that_go_back_are_no_ends(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(1, claim.attempt, "running", text="in progress")]))
    desk.ask(Save([SaveRow(1, claim.attempt, "queued", text="later", outcome="retry")]))
    assert fetch(database, COUNTERS) == []


def test_ends_of_jobs_that_nobody_had_in_hand_are_counted(watch: Any, database: str) -> None:
    fetch(database, AGENT)
    insert(database)
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    watch("cancel_job", command=order, job=1, text="no")
    assert fetch(database, COUNTERS) == [("ended", ["a", "cancelled", "cancelled"], 1.0)]


def test_types_that_no_scheduler_knows_share_a_counter(desk: Desk, database: str) -> None:
    pks = [pk for name in ("x", "y", "z") for pk in insert(database, f"('{name}', 'x')")]
    fetch(database, "select drover.announce(%s::bigint[], '{cancelled,cancelled,cancelled}')", pks)
    assert fetch(database, COUNTERS) == [("ended", ["(unknown)", "cancelled", "cancelled"], 3.0)]


def test_ends_of_commands_are_not_counted(database: str) -> None:
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    fetch(database, "select drover.announce(array[%s::bigint], '{done}')", order)
    assert fetch(database, COUNTERS) == []


def test_new_counts_are_added_up_by_a_scheduler(watch: Any, database: str) -> None:
    insert(database)
    fetch(database, "select drover.announce('{1}', '{cancelled}')")
    before = fetch(database, COUNTERS)
    count(watch)
    assert (fetch(database, SAVED), fetch(database, NEW)) == (before, [(0,)])


def test_counting_waits_for_nobody_who_has_counted_and_not_committed(watch: Any, database: str) -> None:
    insert(database)
    with psycopg.connect(database) as other:
        other.execute("select drover.announce('{1}', '{cancelled}')")
        count(watch, ("worked", ["a"], 1.0))
        assert fetch(database, SAVED) == [("worked", ["a"], 1.0)]
    count(watch)
    assert len(fetch(database, SAVED)) == 2


def test_wait_is_counted_at_the_first_claim_only(desk: Desk, database: str) -> None:
    insert(database, "('a', 'x', now() - interval '10 s')", "jq_type, jq_args, jq_queued")
    insert(
        database,
        "('a', 'x', now() - interval '2 h'), ('a', 'x', now() - interval '2 h')",
        "jq_type, jq_args, jq_queued",
    )
    claims = desk.claim()
    counted = desk.courier.take_counted()
    assert {key: value for key, value in counted.items() if key[0] == "waited"} == {
        ("waited", "a", "15"): 1,
        ("waited", "a", "43200"): 2,
    }
    assert 14_400 < counted["waited_seconds", "a"] < 14_500
    desk.ask(Save([SaveRow(claims[0].pk, 1, "queued", text="later", outcome="given back")]))
    assert len(desk.claim()) == 1
    assert desk.courier.take_counted() == {}


@pytest.mark.parametrize("queued", ["infinity", "-infinity"])
def test_time_that_python_cannot_read_stops_no_claim(desk: Desk, database: str, queued: str) -> None:
    insert(database, f"('a', 'x', '{queued}')", "jq_type, jq_args, jq_queued")
    assert len(desk.claim()) == 1
