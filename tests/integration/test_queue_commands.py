"""Commands about queues: what changes holds at once, for what is queued and for what is in hand, and lasts."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.integration.test_commands import HOST, command, told
from tests.integration.test_groups import standby

PATIENT = "[scheduler]\nlease = 600\nlease_renewal = 200\n"  # nobody looks by himself while a test lasts
TWO = "[queues.one]\n[queues.two]\n"


@pytest.fixture
def text(record: Path) -> str:
    return HOST + TWO + agent("a", rec(record), slots=4)


def queue(daemon: Daemon, count: int, gate: Path | None = None, **columns: object) -> list[int]:
    acts = f"gate:{gate}" if gate else "x"
    return daemon.insert_all([{"jq_type": "a", "jq_args": acts, **columns} for _ in range(count)])


def in_hand(daemon: Daemon, pks: list[int]) -> int:
    found = "select count(*) from drover.jobs where jq_pk = any (%s) and jq_state in ('claimed', 'running')"
    return int(daemon.value(found, pks))


# ---- pause and continue


def test_a_paused_queue_starts_nothing_and_running_jobs_go_on_j76_j77(
    launch: Launch, text: str, gate: Path, record: Path
) -> None:
    daemon = launch(text)
    (running,) = queue(daemon, 1, gate, jq_queue="one")
    daemon.wait(running, "running")
    assert told(daemon, "pause one") == "paused: one"
    (waiting,) = queue(daemon, 1, jq_queue="one")
    daemon.wait_all(queue(daemon, 1, jq_queue="two"))
    gate.touch()
    daemon.wait(running)
    assert (daemon.row(waiting)["jq_state"], daemon.why(waiting)) == ("queued", "queue one is paused")
    assert told(daemon, "continue one") == "running: one"
    daemon.wait(waiting)
    assert len(lines(record)) == 3


def test_pause_without_a_name_applies_to_all_queues_j76(launch: Launch, text: str) -> None:
    daemon = launch(text)
    assert told(daemon, "pause") == "paused: default, one, two"
    pks = queue(daemon, 1) + queue(daemon, 1, jq_queue="two")
    told(daemon, "poll")
    assert {daemon.row(pk)["jq_state"] for pk in pks} == {"queued"}
    assert told(daemon, "continue") == "running: default, one, two"
    daemon.wait_all(pks)


def test_claimed_jobs_not_begun_go_back_when_their_queue_is_paused_j76(
    launch: Launch, record: Path, gate: Path
) -> None:
    daemon = launch("[scheduler]\nhold = 10\n" + HOST + TWO + agent("a", rec(record), slots=1))
    daemon.wait_all(queue(daemon, 50, jq_queue="one"))  # now many are taken at once
    pks = queue(daemon, 1, gate, jq_queue="one") + queue(daemon, 50, jq_queue="one")
    daemon.wait(pks[0], "running")
    told(daemon, "pause one")
    gate.touch()
    daemon.wait(pks[0])
    daemon.until(lambda: in_hand(daemon, pks) == 0)
    assert {daemon.row(pk)["jq_state"] for pk in pks[1:]} == {"queued"}
    assert len(lines(record)) == 51
    told(daemon, "continue one")
    daemon.wait_all(pks)


def test_pausing_a_paused_queue_is_reported_and_no_failure_j78(launch: Launch, text: str) -> None:
    daemon = launch(text)
    told(daemon, "pause one")
    assert told(daemon, "pause one two") == "paused: two; paused already: one"
    assert told(daemon, "pause one two") == "paused already: one, two"
    assert told(daemon, "continue one default") == "running: one; running already: default"


@pytest.mark.slow
def test_a_paused_queue_stays_so_under_the_next_daemon_j79(launch: Launch, text: str) -> None:
    first = launch(text)
    told(first, "pause one")
    first.stop()
    second = launch(text)
    (pk,) = queue(second, 1, jq_queue="one")
    second.wait_all(queue(second, 1, jq_queue="two"))
    assert (second.row(pk)["jq_state"], second.why(pk)) == ("queued", "queue one is paused")


def test_an_unknown_queue_fails_the_command_and_changes_nothing_j75(launch: Launch, text: str) -> None:
    daemon = launch(text)
    assert told(daemon, "pause one three", "failed") == "no queue three"
    assert daemon.value("select bool_or(queue_paused) from drover.queue") is False


# ---- poll


def test_poll_takes_queues_and_fails_for_an_unknown_one_j75_j46(launch: Launch, text: str) -> None:
    daemon = launch(text)
    assert told(daemon, "poll one two").endswith(": looked at the queue")
    assert told(daemon, "poll one three", "failed").endswith(": invalid target: three")


# ---- adding and removing


@pytest.mark.slow
def test_an_added_queue_is_known_to_all_daemons_at_once_j63(launch: Launch, record: Path, gate: Path, ask: Ask) -> None:
    text = PATIENT + HOST + agent("a", rec(record), slots=4)
    first, second = launch(text), standby(launch, text)
    told(first, "add-queue new 2")
    (row,) = first.execute("select * from drover.queue where queue_name = 'new'", role="drover_readonly")
    assert (row["queue_group"], row["queue_concurrency"], row["queue_paused"]) == ("default", 2, False)
    listed = {each["queue"]: each["concurrency"] for each in map(json.loads, ask("queue list --json").out.splitlines())}
    assert listed["new"] == 2
    asked = command(first, "status")
    assert first.wait(asked)["jq_result"]["queues"]["new"]["concurrency"] == 2
    first.stop()
    pks = queue(second, 4, gate, jq_queue="new")
    second.until(lambda: in_hand(second, pks) == 2)
    second.until(lambda: second.why(pks[3]) == "queue new is full")
    gate.touch()
    second.wait_all(pks)


def test_a_queue_can_be_added_once_and_works_at_once_j81(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    assert told(daemon, "add-queue new 2") == "queue new: concurrency 2"
    pks = queue(daemon, 3, gate, jq_queue="new")
    daemon.until(lambda: in_hand(daemon, pks) == 2)
    assert daemon.why(pks[2]) == "queue new is full"
    assert told(daemon, "add-queue new 2", "failed") == "there is a queue new already"
    for words in ("add-queue other 0", "add-queue other -1"):
        assert told(daemon, words, "failed").startswith("a concurrency is a number from 1")
    gate.touch()
    daemon.wait_all(pks)


@pytest.mark.parametrize("state", ["held", "queued", "running"])
def test_a_queue_is_removed_when_it_is_empty_j82(launch: Launch, text: str, gate: Path, state: str) -> None:
    daemon = launch(text)
    told(daemon, "add-queue new 1")
    if state == "queued":
        told(daemon, "pause new")
    (pk,) = queue(daemon, 1, gate, jq_queue="new", jq_state="held" if state == "held" else "queued")
    daemon.wait(pk, state)
    assert told(daemon, "remove-queue new", "failed") == "queue new is not empty"
    told(daemon, f"cancel {pk}")
    daemon.wait(pk, "cancelled")
    assert told(daemon, "remove-queue new") == "queue new: removed"
    assert told(daemon, "remove-queue new", "failed") == "no queue new"
    assert told(daemon, "remove-queue default", "failed") == "queue default is a group's own"


# ---- limits


@pytest.mark.slow
def test_a_higher_limit_starts_more_jobs_and_a_lower_one_kills_none_j83(
    launch: Launch, text: str, gate: Path, tmp_path: Path
) -> None:
    daemon = launch(text)
    told(daemon, "add-queue new 1")
    first = queue(daemon, 3, gate, jq_queue="new")
    daemon.wait(first[0], "running")
    assert in_hand(daemon, first) == 1
    assert told(daemon, "set-concurrency new 3") == "queue new: concurrency 3, priority 0"
    daemon.wait_all(first, "running")
    told(daemon, "set-concurrency new 1")
    other = tmp_path / "other"
    second = queue(daemon, 2, other, jq_queue="new")
    told(daemon, "poll")
    assert (in_hand(daemon, first), in_hand(daemon, second)) == (3, 0)
    gate.touch()
    daemon.wait_all(first)
    daemon.wait(second[0], "running")
    assert in_hand(daemon, second) == 1
    other.touch()
    daemon.wait_all(second)
    assert told(daemon, "set-concurrency three 1", "failed") == "no queue three"
    assert told(daemon, "set-concurrency new 0", "failed").startswith("a concurrency is a number from 1")


@pytest.mark.slow
def test_a_queue_priority_set_by_command_stays_until_the_file_changes_it(launch: Launch, text: str) -> None:
    daemon = launch(text)
    assert told(daemon, "set-queue-priority one 7") == "queue one: concurrency unlimited, priority 7"
    assert told(daemon, "set-queue-priority three 7", "failed") == "no queue three"
    daemon.stop()
    again = launch(text)
    kept = "select queue_priority from drover.queue where queue_name = 'one'"
    assert again.value(kept) == 7
    again.stop()
    assert launch(text.replace("[queues.one]\n", "[queues.one]\npriority = 3\n")).value(kept) == 3


def test_status_shows_queues_j80(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    told(daemon, "pause two")
    told(daemon, "set-concurrency one 1")
    pks = queue(daemon, 2, gate, jq_queue="one")
    daemon.until(lambda: in_hand(daemon, pks) == 1)
    queues = daemon.wait(command(daemon, "status"))["jq_result"]["queues"]
    assert queues == {
        "default": {"paused": False, "concurrency": None, "in_hand": 0},
        "one": {"paused": False, "concurrency": 1, "in_hand": 1},
        "two": {"paused": True, "concurrency": None, "in_hand": 0},
    }


# ---- a queue that does not exist


@pytest.mark.slow
def test_a_queue_that_does_not_exist_is_named_by_queue_status_and_once_by_the_log_t38(
    launch: Launch, text: str, ask: Ask
) -> None:
    daemon = launch("[scheduler]\nrescan = 0.2\n" + text)
    pks = queue(daemon, 3, jq_queue="defualt")
    told_of = "no queue 'defualt', in which jobs wait: 3; add it to the configuration, or with drover queue add"
    daemon.until(lambda: told_of in daemon.stderr(), what="the log does not name it")
    assert ask("queue").err == f"drover: {told_of}\n"
    assert "Jobs in queues that do not exist\nQUEUE    JOBS  TYPES\ndefualt     3  a\n" in ask("status -v").out
    told(daemon, "reset")  # looks again
    daemon.wait_all(queue(daemon, 1))
    assert told(daemon, "add-queue defualt 2") == "queue defualt: concurrency 2"
    daemon.wait_all(pks)
    assert daemon.stderr().count("no queue 'defualt'") == 1
    assert ask("queue").err == ""
