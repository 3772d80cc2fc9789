"""A slot that takes certain jobs only is a host of its own on the same machine (R9)."""

from pathlib import Path

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec

SLOTS = """
[hosts.alpha]
[hosts.alpha-express]
types = "^rec$"
priorities = "^[a-e]"
"""


def test_slot_with_filters_of_type_and_priority_is_a_host_of_its_own_r9(
    launch: Launch, record: Path, gate: Path
) -> None:
    daemon = launch(SLOTS + agent("rec", rec(record)) + agent("other", rec(record)))
    first = [daemon.insert(jq_type=kind, jq_args=f"gate:{gate}") for kind in ("rec", "other")]
    daemon.until(lambda: len(lines(record)) == 2)
    waiting = [daemon.insert(jq_type="rec", jq_args="n"), daemon.insert(jq_type="other", jq_args="b", jq_priority="a")]
    express = daemon.insert(jq_type="rec", jq_args="a", jq_priority="a")
    assert daemon.wait(express)["jq_done_host"] == "alpha-express"
    assert lines(record)[2:] == ["a"]
    gate.touch()
    daemon.wait_all([*first, *waiting])
    assert {daemon.row(pk)["jq_done_host"] for pk in (*first, *waiting)} == {"alpha"}
