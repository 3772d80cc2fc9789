"""Agents that mean harm, under the real daemon: each costs itself its life or its item, the log says who and why, the
daemon grows by next to nothing, and the agents beside it work on as fast as before.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, NamedTuple

import pytest

from scheduler.drivers.loop import Loop
from scheduler.drivers.pipes import BURST_S, FLOOD_CHUNK, FREE, LINE_S, LINES_CHUNK, SHARE
from scheduler.model.config import Config, Scheduler
from scheduler.model.events_and_effects import Send
from tests.child_tools import Family
from tests.child_tools import python as script
from tests.cli_tools import Drover
from tests.integration.conftest import Launch
from tests.integration.daemon import PYTHON, Daemon, agent
from tests.integration.puppets import LOCAL, puppet, settings, slots

HOSTILE = Path(__file__).parent / "hostile"
MIB = 1 << 20
NOBODYS_UID = "54321"
TIMERS = {"write_limit": 0.5, "kill_grace": 0.5, "exit_grace": 0.5, "respawn_count": 50}
QUICK = settings(**TIMERS)


def hostile(program: str, *arguments: str, name: str = "bad", **keys: Any) -> str:
    """Return the table of an agent type that is one of the hostile programs."""
    return agent(name, [*PYTHON, str(HOSTILE / f"{program}.py"), *arguments], **keys)


@contextmanager
def growing_less_than(daemon: Daemon, most: int) -> Iterator[None]:
    """See that the daemon never needs so many bytes of memory more than before."""
    before = _memory(daemon.pid, "VmRSS")
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    yield
    grown = _memory(daemon.pid, "VmHWM") - before
    assert grown < most, f"it grew by {grown / MIB:.1f} MiB"


def _memory(pid: int, what: str) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) << 10


def work_beside(daemon: Daemon, count: int = 20) -> None:
    """Let the good agent do some jobs, one after the other."""
    for _ in range(count):
        daemon.wait(daemon.insert(jq_type="good", jq_args=":"))


# ---- one by one


class Attack(NamedTuple):
    """A hostile program, and how its job ends."""

    program: str
    end: str
    arguments: tuple[str, ...] = ()
    line: str = "x"
    keys: tuple[tuple[str, Any], ...] = ()
    write_limit: float = 0.5


OVER = "protocol violation: over 4194304 bytes of output about one item"
ASKED = "protocol violation: over 1048576 bytes of DB: lines that wait for answers"
SMALL = (("output_limit", 65_536),)
ONE_SECOND = (("item_timeout", 1),)
ATTACKS = {
    "never reads": Attack("never_reads", "does not read its line", line="x" * 500_000),
    "endless line": Attack("endless_line", "protocol violation: line over 1048576 bytes"),
    "says OK and reads nothing": Attack(
        "ok_storm", "protocol violation: OK for a line that was not read", line="x" * 100_000
    ),
    "flood of debug output": Attack("floods", OVER, ("1", "la " * 100), keys=SMALL),
    "flood of log lines": Attack("floods", OVER, ("1", "LOG " + "la " * 100), keys=SMALL),
    "flood of errors": Attack("floods", OVER, ("1", "ERROR " + "la " * 100), keys=SMALL),
    "flood for the operator": Attack("floods", OVER, ("1", "ECHO " + "la " * 100), keys=SMALL),
    "flood on stderr": Attack("floods", OVER, ("2", "la " * 100), keys=SMALL),
    "flood of heartbeats": Attack("floods", "item took longer than 1 s", ("1", "Heartbeat"), keys=ONE_SECOND),
    "flood of empty lines": Attack("floods", "item took longer than 1 s", ("1", ""), keys=ONE_SECOND),
    "flood of refused DB: lines": Attack("asks", ASKED, write_limit=20.0),
    "flood of DB: lines": Attack("asks", ASKED, keys=(("db", "sql"),), write_limit=20.0),
    "stubborn": Attack("stubborn", "item took longer than 1 s", keys=ONE_SECOND),
    "stops itself": Attack("stops_itself", "item took longer than 1 s", keys=ONE_SECOND),
    "exits while it is told": Attack(
        "leaves_while_told", "agent terminated prematurely, with exit status 5", line="x" * 500_000
    ),
    "leaves a child in its group": Attack("leaves_a_child", "agent terminated prematurely, with exit status 3"),
    "leaves a child in another session": Attack(
        "leaves_a_child", "agent terminated prematurely, with exit status 3", ("setsid",)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_agent_loses_its_item_and_delays_no_other_f75_f103_f113(launch: Launch, attack: Attack) -> None:
    bad = hostile(attack.program, *attack.arguments, **dict(attack.keys))
    timers = settings(**TIMERS | {"write_limit": attack.write_limit})
    daemon = launch(timers + LOCAL + bad + puppet("good"))
    work_beside(daemon)
    with growing_less_than(daemon, 10 * MIB):
        job = daemon.insert(jq_type="bad", jq_args=attack.line)
        work_beside(daemon)
        row = daemon.wait(job, "failed")
        work_beside(daemon)
    assert (row["jq_endtext"], row["jq_attempt"]) == (attack.end, 1)
    daemon.until(lambda: attack.end in daemon.log_text(job))
    (why, *_) = [row for row in daemon.log_rows(job) if attack.end in row["log_message"]]
    assert (why["log_type"], why["log_agent"], why["log_host"]) == ("ERROR", "bad", "local")
    assert why["log_pid"] is not None
    assert len(daemon.stderr()) < MIB
    slots(daemon, "ST_FREE", "bad")


@pytest.mark.slow
def test_a_fork_bomb_stops_at_its_limit_and_is_killed_whole(launch: Launch) -> None:
    bomb = hostile("fork_bomb", NOBODYS_UID, limits={"nproc": 50}, item_timeout=2)
    daemon = launch(QUICK + LOCAL + bomb + puppet("good"))
    work_beside(daemon)
    with growing_less_than(daemon, 10 * MIB):
        job = daemon.insert(jq_type="bad", jq_args="x")
        daemon.until(lambda: "LOG Resource temporarily unavailable" in daemon.log_text(job))
        work_beside(daemon)
        assert daemon.wait(job, "failed")["jq_endtext"] == "item took longer than 2 s"
    daemon.until(lambda: not [uid for uid in _users() if str(uid) == NOBODYS_UID], what="the bomb is not all dead")


def _users() -> Iterator[int]:
    """Yield the owner of every process, one that ends just now left out."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield path.stat().st_uid
        except FileNotFoundError:
            continue


UGLY = {
    "clears the screen": b"\x1b[2J\x1b]0;title\x07",
    "C1": "\x9b31m".encode(),
    "DEL and backspace": b"\x7f\x08",
    "carriage return": b"\rfake",
    "right to left": "\u202egpj.\u2066".encode(),
    "another record": "\u2028 ERROR forged\x85\x0b\x0c\x1e".encode(),
    "bytes": b"\xff\xfe\x9b\xc3",
    "NUL": b"\0",
}


@pytest.mark.parametrize("ugly", UGLY.values(), ids=UGLY)
def test_agent_output_controls_no_terminal_and_forges_no_record_f80_f95_f105(
    launch: Launch, drover: Drover, monkeypatch: pytest.MonkeyPatch, ugly: bytes
) -> None:
    daemon = launch(QUICK + LOCAL + hostile("steers_terminals", ugly.hex()))
    monkeypatch.setenv("DROVER_DATABASE_URL", daemon.database)
    job = daemon.insert(jq_type="bad", jq_args="x")
    assert daemon.wait(job, "failed")["jq_endtext"].startswith("last ")
    daemon.until(lambda: "ERROR last" in daemon.log_text(job))
    told = [daemon.stderr(), drover("log").out, drover("ls", "--all").out, drover("why", str(job)).out]
    lines = [line for text in told for line in text.split("\n")]
    assert [line for line in lines if not line.replace("\t", "").isprintable()] == []
    assert [row["log_type"] for row in daemon.log_rows(job)].count("LOG") == 1


# ---- how much of it is heard, and when


BABBLING = "import os\nos.write(1, b'up\\n')\nwhile True: os.write(1, b'la\\n' * 5000)"
ENDING = "import os\nos.write(1, b'up\\n' + b'la\\n' * {count})\n{end}"
MOST_S = 0.005
SLOW = """
import os
os.write(1, b"up\\n")
while data := os.read(0, 4096):
    os.write(1, b"%d\\n" % len(data))
"""


@pytest.fixture
def babbler() -> Iterator[Callable[..., Family]]:
    """Start a line agent, a Python program, that is up once it has said so."""
    made: list[Family] = []

    def make(program: str, clock: Callable[[], float] = time.monotonic) -> Family:
        config = Config(agents={"line": script(program)}, scheduler=Scheduler(exit_grace=600.0))
        made.append(Family(Loop(clock), config, ()))
        made[-1].up()
        return made[-1]

    yield make
    for one in made:
        one.processes.close()
        one.loop.close()


@pytest.mark.slow
def test_a_flooding_agent_gets_a_bounded_share_of_the_time(babbler: Callable[..., Family]) -> None:
    one = babbler(BABBLING)
    begun, reads = one.loop.now, one.reads
    one.until(lambda: one.loop.now > begun + 1.0 and one.said[0].count(b"\n") > 1000)
    weighed = (BURST_S + (one.loop.now - begun) * SHARE) / LINE_S
    assert 1000 < one.said[0].count(b"\n") < weighed + (one.reads - reads) * FREE + LINES_CHUNK


def waiting_little() -> Callable[[], float]:
    """Return a clock that misses the time for which others have the processor: it would forgive a babbler."""
    times = [time.monotonic(), 0.0]

    def now() -> float:
        before, times[0] = times[0], time.monotonic()
        times[1] += min(times[0] - before, MOST_S)
        return times[1]

    return now


@pytest.mark.slow
def test_a_flooding_agent_is_read_in_small_pieces(babbler: Callable[..., Family]) -> None:
    one = babbler(BABBLING, waiting_little())
    one.until(lambda: one.said[0].count(b"\n") > 2 * BURST_S / LINE_S)
    one.largest, reads = 0, one.reads
    one.until(lambda: one.reads > reads + 5)
    assert one.largest <= FLOOD_CHUNK


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_a_flooding_agent_loses_no_output(babbler: Callable[..., Family], count: int) -> None:
    one = babbler(ENDING.format(count=count, end="import time; time.sleep(600)"))
    one.until(lambda: len(one.said[0]) >= 3 + 3 * count)
    assert one.said[0] == b"up\n" + b"la\n" * count


def test_output_of_a_flooding_agent_is_read_at_once_after_its_death_f106(babbler: Callable[..., Family]) -> None:
    one = babbler(ENDING.format(count=20_000, end="os._exit(7)"), lambda: 0.0)  # no pause ends by itself
    assert one.end().code == 7
    assert one.said[0] == b"up\n" + b"la\n" * 20_000


def test_a_slowly_reading_agent_gets_all_its_input_f103(babbler: Callable[..., Family]) -> None:
    one = babbler(SLOW)
    one.processes.send(Send(0, b"x" * (8 * MIB)))
    one.until(lambda: sum(map(int, one.said[0].split()[1:])) >= 8 * MIB)
    assert sum(map(int, one.said[0].split()[1:])) == 8 * MIB


# ---- the others

ROUNDS = 10
JOBS = 6
SLOWER = 2.0


@pytest.mark.slow
def test_floods_less_than_double_the_duration_of_jobs_of_other_types_f75(launch: Launch) -> None:
    floods = {"words": ("1", "la"), "logs": ("1", "LOG la"), "errors": ("2", "la")}
    tables = [hostile("floods", *how, name=name) for name, how in floods.items()]
    daemon = launch(QUICK + LOCAL + "".join(tables) + puppet("good"))
    work_beside(daemon)
    daemon.wait_all([daemon.insert(jq_type=name, jq_args="x") for name in floods], "running")
    bad = [row["status_pid"] for row in slots(daemon, "ST_RUNNING", count=len(floods))]
    quiet, loud = [], []
    for _ in range(ROUNDS):  # in turns, since nothing else keeps still on a machine that others use too
        quiet += _with_all(bad, SIGSTOP, daemon)
        loud += _with_all(bad, SIGCONT, daemon)
    assert statistics.median(loud) < SLOWER * statistics.median(quiet)


def _with_all(pids: list[int], number: int, daemon: Daemon) -> list[float]:
    for pid in pids:
        os.kill(pid, number)
    work_beside(daemon, 2)  # what is still in their pipes
    return [_seconds_of_a_job(daemon) for _ in range(JOBS)]


def _seconds_of_a_job(daemon: Daemon) -> float:
    begun = time.perf_counter()
    daemon.wait(daemon.insert(jq_type="good", jq_args=":"))
    return time.perf_counter() - begun
