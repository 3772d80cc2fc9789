"""An upgrade whose new program cannot begin: the old one goes on, says why, and tries again when it may be better.

The trial is a real process, of a program of a few words; the daemon's state is one that a test sets.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.daemon.exec_handover import VARIABLE, Takeover, read
from scheduler.daemon.upgrade import AGAIN_S, LIMITS_S, Program, Upgrade, last_line
from scheduler.drivers.loop import Loop
from scheduler.model.states import UpgradeState
from tests.patience import PATIENCE_S, Deadline

READS = f"import os; fd = int(os.environ['{VARIABLE}'].split()[1]); assert os.pread(fd, 9, 0).startswith(b'{{')"
BREAKS = "raise SystemExit('no module named scheduler')"
HANGS = "import time; time.sleep(600)"


class Daemon:
    """What an upgrade knows of a daemon (handover_document.DaemonState), and what it did to it."""

    kept_agents: Any = None

    def __init__(self) -> None:
        self.query: int | None = None
        self.in_the_way = self.left = ""
        self.done: list[str] = []
        self.is_frozen = False

    def unfinished_query(self) -> int | None:
        return self.query

    def hold(self) -> None:
        self.done.append("hold")

    def freeze(self) -> None:
        self.done.append("freeze")
        self.is_frozen = True

    def release(self) -> None:
        self.done.append("release")
        self.is_frozen = False

    def obstacle(self) -> str:
        return self.in_the_way

    def unsaved(self) -> str:
        return self.left

    def document(self) -> dict[str, Any]:
        return {"fds": []}


class Bench:
    """An upgrade with a clock that the test moves: `place` has the files of its program."""

    def __init__(
        self, place: Path, script: str = READS, *, prepare: Callable[[], None] = lambda: None, keeps_copy: bool = False
    ) -> None:
        self.daemon, self.now, self.file = Daemon(), 100.0, place / "package" / "main.py"
        self.loop = Loop(lambda: self.now)
        self.argv = [sys.executable, "-I", "-S", "-c", script]
        self.done = self.daemon.done
        self.file.parent.mkdir()
        self.file.write_text("1")
        environment = {"RUNTIME_DIRECTORY": str(place if keeps_copy else place / "missing")}
        program = Program(self.argv, [], environment, self.file.parent, place / "schema")
        state: Any = self.daemon
        self.upgrade = Upgrade(
            self.loop, state, program, prepare, lambda: self.done.append("recover"), follows=True, limit_s=30.0
        )

    def replace_program(self, text: str) -> None:
        self.file.write_text(text)
        self.upgrade.check()
        self.upgrade.check()

    def let_pass(self, seconds: float) -> None:
        self.now += seconds
        self.loop.turn(self.now)
        self.upgrade.step()

    def outcome(self, command: int = 7) -> tuple[bool, str]:
        """Ask for the upgrade as a command does, until it is known what came of it."""
        deadline = Deadline(PATIENCE_S)
        while (outcome := self.upgrade.ask(command)) is None:
            assert deadline.left > 0, self.upgrade.troubles()
            self.upgrade.step()
            self.loop.turn(self.now)
            time.sleep(0.001)  # for the trial, a process beside us
        return outcome


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def begin(*words: str, **options: Any) -> Bench:
        benches.append(Bench(tmp_path, *words, **options))
        return benches[-1]

    yield begin
    for bench in benches:
        bench.upgrade.close()
        bench.loop.close()


Make = Callable[..., Bench]


def children() -> set[str]:
    """Return the pids of the processes that this one has started and not waited for; other tests may have left some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_new_program_that_cannot_start_is_refused_with_its_last_words(make: Make) -> None:
    bench = make(BREAKS)
    assert bench.outcome() == (False, "the new program cannot go on: no module named scheduler")
    assert (bench.upgrade.is_resting, bench.done) == (True, [])


def test_a_new_program_that_dies_without_a_word_is_refused_with_its_status(make: Make) -> None:
    assert make("import os; os._exit(3)").outcome() == (False, "the new program cannot go on: 3")


def test_a_program_that_was_refused_is_tried_again_when_its_files_change_and_not_before(make: Make) -> None:
    bench = make(BREAKS)
    bench.replace_program("a second one")
    assert not bench.upgrade.is_resting
    assert not bench.outcome()[0]
    bench.let_pass(2 * AGAIN_S)
    bench.upgrade.check()
    assert bench.upgrade.is_resting
    bench.replace_program("a third one, which is longer")
    assert not bench.upgrade.is_resting


def test_a_program_that_is_late_is_killed_and_tried_again_after_its_interval(make: Make) -> None:
    bench, before = make(HANGS), children()
    bench.replace_program("another one")
    bench.let_pass(0.0)
    (trial,) = children() - before
    bench.let_pass(LIMITS_S[UpgradeState.TRYING])
    assert bench.upgrade.is_resting
    assert trial not in children()
    bench.let_pass(AGAIN_S - 1.0)
    bench.upgrade.check()
    assert bench.upgrade.is_resting
    bench.let_pass(1.0)
    bench.upgrade.check()
    assert not bench.upgrade.is_resting


def test_the_command_says_that_the_new_program_is_late(make: Make) -> None:
    bench = make(HANGS)
    assert bench.upgrade.ask(7) is None
    bench.let_pass(0.0)
    bench.let_pass(LIMITS_S[UpgradeState.TRYING])
    assert bench.upgrade.ask(7) == (False, "the new program has not read the state, after 30 s of TRYING")


def test_half_of_a_replacement_is_not_tried(make: Make) -> None:
    bench = make()
    for size in range(2, 6):
        bench.file.write_text("1" * size)
        bench.upgrade.check()
    assert bench.upgrade.is_resting


@pytest.mark.parametrize(
    ("state", "done"), [("in_the_way", ["hold", "release"]), ("left", ["hold", "freeze", "release"])]
)
def test_the_old_program_goes_on_if_something_does_not_end_in_time(make: Make, state: str, done: list[str]) -> None:
    bench = make()
    setattr(bench.daemon, state, "a statement is under way")
    assert bench.upgrade.ask(7) is None
    deadline = Deadline(PATIENCE_S)
    while not bench.upgrade.troubles():
        assert deadline.left > 0
        bench.let_pass(0.0)
        time.sleep(0.001)  # for the trial, a process beside us
    assert bench.upgrade.troubles()[0]["reason"] == "a statement is under way"
    bench.let_pass(20.0)
    ok, why = bench.upgrade.ask(7) or (True, "")
    assert (ok, why.partition(",")[0]) == (False, "a statement is under way")
    assert [each for n, each in enumerate(bench.done) if each not in bench.done[:n]] == done
    assert not bench.daemon.is_frozen
    assert bench.upgrade.troubles() == []


def test_a_query_that_cannot_travel_is_waited_for_an_hour(make: Make) -> None:
    bench = make()
    bench.daemon.query = 5
    assert bench.upgrade.ask(7) is None
    bench.let_pass(3000.0)
    assert bench.upgrade.troubles()[0]["seconds"] == 3000.0
    assert bench.upgrade.ask(7) is None
    bench.let_pass(600.0)
    ok, why = bench.upgrade.ask(7) or (True, "")
    assert (ok, why) == (
        False, "job 5 has a query without a key, and more rows left than can travel, after 3600 s of WAITING"
    )  # fmt: skip


def test_an_exec_that_fails_lets_the_old_program_go_on_with_everything(make: Make) -> None:
    def refuse() -> None:
        raise OSError(12, "Cannot allocate memory")

    bench = make(prepare=refuse)
    assert bench.outcome() == (False, "the new program is not executed: Cannot allocate memory")
    assert bench.done == ["hold", "freeze", "recover", "release"]
    assert bench.upgrade.is_resting


def test_a_trial_that_cannot_be_started_lets_the_old_program_go_on(make: Make) -> None:
    bench = make()
    bench.argv.append("x" * (1 << 21))  # more than execve(2) takes
    assert bench.outcome() == (False, "the state is not written: Argument list too long")
    assert bench.done == []


def test_a_daemon_that_ends_drops_the_upgrade_and_says_why(make: Make) -> None:
    bench, before = make(HANGS), children()
    assert bench.upgrade.ask(7) is None
    bench.let_pass(0.0)
    (trial,) = children() - before
    bench.upgrade.drop("the daemon ends")
    assert bench.upgrade.ask(7) == (False, "the daemon ends")
    assert trial not in children()


def test_each_command_that_waits_learns_what_came_of_it(make: Make) -> None:
    bench = make(BREAKS)
    assert bench.upgrade.ask(8) is None
    assert bench.outcome(7) == bench.upgrade.ask(8)


def test_the_trial_gets_the_state_and_the_copy_to_go_back_to(make: Make, tmp_path: Path) -> None:
    bench = make(
        READS + f"; open({str(tmp_path / 'seen')!r}, 'wb').write(os.pread(fd, 1 << 20, 0)); os._exit(1)",
        keeps_copy=True,
    )
    assert not bench.outcome()[0]
    fd = os.open(tmp_path / "seen", os.O_RDONLY)
    program = read(fd)["program"]
    os.close(fd)
    assert (program["commands"], program["argv"]) == ([7], bench.argv)
    assert Path(program["copy"]).parent == tmp_path


@pytest.mark.parametrize(("kind", "ok"), [("go", True), ("back the new program does not come up: no schema", False)])
def test_the_program_that_runs_in_the_end_tells_the_command_what_came_of_it(
    tmp_path: Path, kind: str, ok: bool
) -> None:
    kind, _, why = kind.partition(" ")
    given = {"program": {"commands": [7], "version": "0.1", "copy": None}}
    fd = os.memfd_create("state")
    takeover = Takeover(f"{kind} {fd} {why}", {}, given)
    program = Program([], [], {}, tmp_path, tmp_path)
    state: Any = Daemon()
    loop = Loop(lambda: 0.0)
    upgrade = Upgrade(
        loop, state, program, lambda: None, lambda: None, follows=False, limit_s=30.0, takeover=takeover
    )  # fmt: skip
    outcome = upgrade.ask(7)
    assert outcome is not None
    assert outcome[0] is ok
    assert outcome[1].endswith(why or "has taken over from 0.1")
    loop.close()
    os.close(fd)


@pytest.mark.parametrize(("said", "line"), [("", ""), ("Traceback\n  x\nE: no  room \n\n", "E: no room"), ("a", "a")])
def test_the_last_words_of_a_program_are_its_last_line(said: str, line: str) -> None:
    assert last_line(said) == line
