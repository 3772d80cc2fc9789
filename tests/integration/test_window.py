"""Lines ahead, with a real daemon and real agents: nothing is lost, nothing is worked twice, order is kept."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.model.config import MOST_LINES
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, Row, agent, python
from tests.integration.ssh_tools import table
from tests.needs import need
from tests.ssh.sshd import serving

WINDOW = 8
MANY = 3000
LOCAL = "[hosts.local]\nmax = 8\n"
ROWS = "select n from generate_series(1, 200) n"
# An agent that notes each line it comes to, and how many it has by then: it reads all there is before it works.
GREEDY = """
import os, select, sys
record, dies_at, gate = sys.argv[1:4]
print("OK")
held = b""
while True:
    while b"\\n" not in held or select.select([0], [], [], 0)[0]:
        data = os.read(0, 65536)
        if not data:
            sys.exit()
        held += data
    count = held.count(b"\\n")
    line, _, held = held.partition(b"\\n")
    with open(record, "a") as file:
        file.write(f"{os.getpid()} {count} {line.decode()}\\n")
    if line.decode() == dies_at and not os.path.exists(gate):
        open(gate, "w").close()
        os._exit(3)
    while gate.endswith("gate") and not os.path.exists(gate):
        select.select([], [], [], 0.005)
    print("OK")
"""
# An agent that works fast, but for one line, at which it waits for the gate.
SLOW_ONCE = """
import os, select, sys
record, slow, gate = sys.argv[1:4]
print("OK")
for line in sys.stdin:
    with open(record, "a") as file:
        file.write(f"{os.getpid()} 1 {line}")
    while line.strip() == slow and not os.path.exists(gate):
        select.select([], [], [], 0.005)
    print("OK")
"""


class Notes:
    """What the agents noted: process, how many lines it had, the line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[str, int, str]]:
        rows = [line.split(" ", 2) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        return [(pid, int(count), line) for pid, count, line in rows]

    def lines(self) -> list[str]:
        return [line for _, _, line in self.read()]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def greedy(notes: Notes, *, dies_at: str = "", gate: str = "", window: int | str = WINDOW, **keys: object) -> str:
    """Return the table of a type of such agents; those with a gate wait before each OK until it is there."""
    command = [*python(GREEDY), str(notes.path), dies_at, str(notes.path.parent / gate) if gate else ""]
    return agent("greedy", command, window=window, **keys)


def jobs(count: int) -> list[Row]:
    return [{"jq_type": "greedy", "jq_args": f"job {n}"} for n in range(1, count + 1)]


def at_work(daemon: Daemon, notes: Notes) -> None:
    daemon.until(lambda: notes.read(), what="no agent has a line")


def test_every_row_runs_once_and_agents_get_no_more_than_their_window(launch: Launch, notes: Notes) -> None:
    daemon = launch(LOCAL + greedy(notes, slots=2))
    pk = daemon.insert(jq_type="greedy", jq_args=ROWS, jq_msq=True)
    row = daemon.wait(pk)
    assert (row["jq_state"], row["jq_itemsprocessed"]) == ("done", 200)
    assert Counter(notes.lines()) == {f'n="{n}"': 1 for n in range(1, 201)}
    counts = [count for _, count, _ in notes.read()]
    assert 1 < max(counts) <= WINDOW
    for pid in {pid for pid, _, _ in notes.read()}:
        mine = [int(line[3:-1]) for owner, _, line in notes.read() if owner == pid]
        assert mine == sorted(mine)


def test_the_death_of_an_agent_fails_its_current_item_only(launch: Launch, notes: Notes) -> None:
    daemon = launch(LOCAL + greedy(notes, dies_at='n="3"', gate="died"))
    pk = daemon.insert(jq_type="greedy", jq_args=ROWS, jq_msq=True)
    row = daemon.wait(pk)
    assert (row["jq_state"], row["jq_itemsprocessed"], row["jq_itemsfailed"]) == ("done", 200, 0)
    assert Counter(notes.lines()) == {f'n="{n}"': 1 + (n == 3) for n in range(1, 201)}


def test_jobs_ahead_of_a_dead_agent_run_at_their_next_attempt(launch: Launch, notes: Notes) -> None:
    daemon = launch(LOCAL + greedy(notes, dies_at="job 3", gate="died"))
    pks = daemon.insert_all(jobs(20))
    states = [row["jq_state"] for row in daemon.wait_all(pks, {"done", "failed"})]
    assert states == ["done", "done", "failed", *["done"] * 17]
    assert Counter(notes.lines()) == {f"job {n}": 1 for n in range(1, 21)}
    twice = daemon.execute("select att_jq_fk, att_attempt from drover.attempt group by 1, 2 having count(*) > 1")
    assert twice == []
    given_back = daemon.execute("select att_reason from drover.attempt where att_outcome = 'given back'")
    assert {row["att_reason"] for row in given_back} <= {"the agent died before it came to it"}


def test_cancelling_a_job_whose_line_is_ahead_affects_no_other(launch: Launch, notes: Notes) -> None:
    daemon = launch(LOCAL + greedy(notes, gate="gate"))
    pks = daemon.insert_all(jobs(3))
    at_work(daemon, notes)
    daemon.wait(daemon.insert(jq_type="command", jq_args=f"cancel {pks[1]} not wanted", role="drover_operator"))
    (notes.path.parent / "gate").touch()
    ends = daemon.wait_all(pks, {"done", "cancelled"})
    assert [row["jq_state"] for row in ends] == ["done", "cancelled", "done"]
    assert ends[1]["jq_endtext"] == "cancelled by drover_operator: not wanted"
    assert notes.lines().count("job 1") == notes.lines().count("job 3") == 1


@pytest.fixture
def far(tmp_path: Path) -> Iterator[str]:
    need("sshd")
    with serving(tmp_path / "beta") as server:
        yield table("beta", server, max=4)


@pytest.mark.slow
def test_lines_are_sent_ahead_to_agents_on_other_hosts(launch: Launch, notes: Notes, far: str) -> None:
    daemon = launch(far + greedy(notes, slots=2))
    pk = daemon.insert(jq_type="greedy", jq_args=ROWS, jq_msq=True)
    assert daemon.wait(pk)["jq_itemsprocessed"] == 200
    assert Counter(notes.lines()) == {f'n="{n}"': 1 for n in range(1, 201)}
    assert 1 < max(count for _, count, _ in notes.read()) <= WINDOW


def test_jobs_in_hand_and_ahead_go_back_when_the_daemon_stops(launch: Launch, notes: Notes) -> None:
    daemon = launch(LOCAL + greedy(notes, gate="gate"))
    pks = daemon.insert_all(jobs(5))
    at_work(daemon, notes)
    assert daemon.stop() == 0
    rows = [daemon.row(pk) for pk in pks]
    assert {(row["jq_state"], row["jq_interruptions"]) for row in rows} == {("queued", 0)}


# ---- window = "auto", the default: how many lines are ahead depends on how fast this machine is, what holds does not


@pytest.mark.slow
@pytest.mark.parametrize("is_query", [True, False], ids=["rows", "jobs"])
def test_a_slow_item_among_fast_ones_delays_only_the_lines_sent_before(
    launch: Launch, notes: Notes, is_query: bool
) -> None:
    gate, slow = notes.path.parent / "gate", f'n="{MANY // 2}"'
    daemon = launch(LOCAL + agent("fast", [*python(SLOW_ONCE), str(notes.path), slow, str(gate)], slots=2))
    lines = [f'n="{n}"' for n in range(1, MANY + 1)]
    if is_query:
        query = f"select n from generate_series(1, {MANY}) n"
        pks = [daemon.insert(jq_type="fast", jq_args=query, jq_msq=True)]
    else:
        pks = daemon.insert_all([{"jq_type": "fast", "jq_args": line} for line in lines])
    daemon.until(lambda: len(notes.lines()) > MANY - MOST_LINES, what="the other agent does not work on the others")
    gate.touch()
    assert {row["jq_state"] for row in daemon.wait_all(pks, {"done", "failed"})} == {"done"}
    assert Counter(notes.lines()) == dict.fromkeys(lines, 1)


def test_the_death_of_a_fast_agent_costs_the_rows_behind_nothing(launch: Launch, notes: Notes) -> None:
    last = f'n="{MANY // 2}"'
    daemon = launch(LOCAL + greedy(notes, dies_at=last, gate="died", window="auto", slots=2))
    pk = daemon.insert(jq_type="greedy", jq_args=f"select n from generate_series(1, {MANY}) n", jq_msq=True)
    row = daemon.wait(pk)
    assert (row["jq_state"], row["jq_itemsprocessed"], row["jq_itemsfailed"]) == ("done", MANY, 0)
    assert Counter(notes.lines()) == {line: 1 + (line == last) for line in (f'n="{n}"' for n in range(1, MANY + 1))}
    assert max(count for _, count, _ in notes.read()) <= MOST_LINES
