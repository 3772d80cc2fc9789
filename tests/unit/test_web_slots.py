"""Claims about slots as the dashboard has them: which are busy, and which are in trouble."""

from datetime import timedelta
from typing import Any

from scheduler.web.slot_cells import STATE_WORDS, by_host
from scheduler.web.trouble import MOST_HOSTS, as_shown, found, hidden, slots_in_trouble


def slot(agent: str = "md5", host: str = "alpha", state: str = "ST_READY", **more: Any) -> dict[str, Any]:
    given = {"agent": agent, "host": host, "state": state, "slot": 1, "since": timedelta(seconds=5), "pid": None}
    return given | {"job": None, "items": 0, "reason": None} | more


def test_slots_are_grouped_by_host_and_type() -> None:
    hosts = by_host([slot("sha"), slot("md5", "beta"), slot("md5"), slot("md5", slot=2)])
    assert [(host, [(name, len(cells)) for name, cells, _ in kinds]) for host, kinds in hosts] == [
        ("alpha", [("md5", 2), ("sha", 1)]),
        ("beta", [("md5", 1)]),
    ]


def test_busy_slots_are_those_that_have_or_get_or_end_a_process() -> None:
    states = {state: by_host([slot(state=state)])[0][1][0][2] for state in STATE_WORDS}
    assert [state for state, said in states.items() if said.startswith("1 of 1 busy")] == [
        "ST_RUNNING", "ST_SPAWNED", "ST_PREP", "ST_FREEING",
    ]  # fmt: skip
    assert states["ST_FAIL"] == "0 of 1 busy, 1 failed"


def test_a_cell_says_what_its_slot_does() -> None:
    said = [slot(state="ST_RUNNING", pid=7, job=12, items=1234), slot(state="ST_FREE", slot=2), slot(state="ST_NEW")]
    cells = by_host(said)[0][1][0][1]
    assert [cell["said"] for cell in cells] == [
        "slot 1: ST_RUNNING for 0:00:05, pid 7, job 12, 1,234 items",
        "slot 2: ST_FREE for 0:00:05",
        "slot 1: ST_NEW for 0:00:05",
    ]
    assert cells[2]["letter"] == "?"


def test_slots_that_failed_or_are_ended_for_a_reason_are_counted_by_type() -> None:
    rows = [
        *[
            slot(host=f"h{number}", state="ST_FAIL", since=timedelta(seconds=number))
            for number in range(MOST_HOSTS + 2)
        ],
        slot("sha", state="ST_FREEING", reason="host is disabled"),
        slot("sha"),
    ]
    (failed, ended) = slots_in_trouble(rows)
    assert failed[:4] == (
        "slots", "type md5", timedelta(seconds=MOST_HOSTS + 1), "7 slots failed on h0, h1, h2, h3, h4, 2 more",
    )  # fmt: skip
    assert ended[1] == "type sha"
    assert ended[3].startswith("1 slot ")
    assert ended[3].endswith(" on alpha: host is disabled")


def test_a_warning_of_a_type_says_all_of_its_slots() -> None:
    group = {"active": True, "name": "night"}
    warned = ("agents failed", "type md5", timedelta(seconds=1), "all agents failed", "look at drover log")
    unseen = ("hidden", "statistics", None, "are not shown", "")
    rows = found(group, [unseen, warned], [slot(state="ST_FAIL"), slot("sha", state="ST_FAIL")])
    assert [(row[0], row[1]) for row in rows] == [("agents failed", "type md5"), ("slots", "type sha")]
    assert hidden([unseen, warned]) == ["statistics are not shown"]


def test_trouble_is_shown_the_worst_first_with_what_to_do_next() -> None:
    rows = found(
        {"active": False, "name": "night"}, [("lock", "pid 7", timedelta(minutes=2), "blocks 3", "end it")], []
    )
    assert as_shown(rows) == [
        ("critical", "no scheduler", "group night: no scheduler is active", "start one with drover run"),
        ("warning", "lock", "pid 7, for 0:02:00: blocks 3", "end it"),
    ]


def test_five_hosts_are_all_named() -> None:
    ((*_, what, _),) = slots_in_trouble([slot(host=f"h{number}", state="ST_FAIL") for number in range(MOST_HOSTS)])
    assert what.endswith(" on h0, h1, h2, h3, h4")
