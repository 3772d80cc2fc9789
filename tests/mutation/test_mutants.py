"""The mutants, and what is noted of them. What they say of the product's tests is told by `make mutants`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import mutants, notes
from tests.mutation.mutants import Mutant
from tests.mutation.notes import Found, Score
from tests.mutation.warm import ROOT, TIME_OUT, UNSEEN, Reached

LISTED = notes.equivalent()
MODULE = '''\
"""A module."""

MOST = 3


class Line:
    """Things that wait."""

    @property
    def has_room(self) -> bool:
        """Tell whether 3 < 4."""
        return len(self.all) < MOST

    def take(self, each: Thing = NOTHING, most: int = 5) -> Iterator[int]:
        if not self.has_room:
            return
        self.all.append(each)
        match each:
            case Big() if each.is_ready:
                yield 1
            case Small():
                yield 2
            case _:
                assert_never(each)
'''
FAULTS = {
    "Line.has_room: - return len(self.all) < MOST + return len(self.all) <= MOST",
    "Line.take: - if not self.has_room: + if (not self.has_room) and False:",
    "Line.take: - if not self.has_room: + if (not self.has_room) or True:",
    "Line.take: - if not self.has_room: + if self.has_room:",
    "Line.take: - self.all.append(each) + pass",
    "Line.take: - case Big() if each.is_ready: - yield 1",
    "Line.take: - case Big() if each.is_ready: + case Big():",
    "Line.take: - case Small(): - yield 2",
    "Line.take: - yield 1 + yield 2",
    "Line.take: - yield 2 + yield 3",
}


def made(folder: Path, text: str = MODULE) -> list[Mutant]:
    path = folder / "line.py"
    path.write_text(text)
    return mutants.of_module(path, folder)


def test_bodies_of_functions_are_changed_and_no_constants_defaults_types_and_texts(tmp_path: Path) -> None:
    assert {mutant.name for mutant in made(tmp_path)} == FAULTS


def test_each_mutant_is_the_module_with_one_change_at_its_lines(tmp_path: Path) -> None:
    before = MODULE.splitlines()
    for mutant in made(tmp_path):
        compile(mutant.source, "line.py", "exec")
        gone = [line[1:] for line in mutant.diff.splitlines() if line.startswith("-")]
        assert gone == [each for each in before if each in gone]
        assert (
            any(before[number - 1] in gone for number in mutant.lines) or "match each:" in before[mutant.lines[0] - 1]
        )


def test_a_change_of_a_line_that_a_function_has_twice_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [mutant.name for mutant in made(tmp_path, "def f():\n    g()\n    h(-1)\n    g()\n")]
    assert [name for name in names if "g()" in name] == ["f: - g() + pass", "f: - g() + pass (2)"]


@pytest.mark.parametrize(("reached", "functions"), [(None, {"f", "g"}), ({2}, {"f"}), ({6}, {"g"}), (set(), set())])
def test_functions_count_as_a_whole_if_a_test_reaches_them(
    tmp_path: Path, reached: set[int] | None, functions: set[str]
) -> None:
    path = tmp_path / "line.py"
    path.write_text("def f():\n    a(1)\n    b(2)\n\ndef g():\n    a(1)\n")
    found = mutants.of_module(path, tmp_path, reached)
    assert {each.function for each in found} == functions
    assert len([each for each in found if each.function == "f"]) in (0, 4)


def test_a_line_without_a_test_is_not_reached() -> None:
    reached = Reached({"line.py": {1: ["a"], 2: []}}, {"a": 1})
    assert (reached.lines("line.py"), reached.lines("other.py")) == ({1}, set())


def of_line(number: int, name: str = "f: - a + b") -> Mutant:
    return Mutant("line.py", "f", range(number, number + 1), "", name, "")


def test_tests_of_a_line_are_run_shortest_first_as_many_as_there_is_time_for() -> None:
    reached = Reached({"line.py": {1: ["slow", "quick", "middle"], 2: ["other"]}}, {"slow": 9, "quick": 1, "middle": 2})
    assert reached.of(of_line(1)) == ["quick", "middle", "slow"]
    assert reached.of(of_line(1), most_s=4) == ["quick", "middle"]
    assert reached.of(of_line(3)) == []


@pytest.mark.parametrize(
    ("module", "package"),
    [("scheduler/cli/wait.py", "scheduler/cli"), ("agents/lib/drover_agent.py", "agents"), ("agents/x.py", "agents")],
)
def test_the_score_of_a_module_is_that_of_its_package_and_agents_are_one(module: str, package: str) -> None:
    assert notes.package(module) == package


def test_a_test_that_is_gone_reaches_nothing() -> None:
    reached = Reached({"line.py": {1: ["a", "b"]}}, {"a": 1, "b": 1})
    reached.forget({"a"})
    assert reached.of(of_line(1)) == ["b"]


@pytest.mark.parametrize(
    ("by", "changed", "known"),
    [
        ("a.py::x", "b.py", True),
        ("a.py::x", "a.py", False),
        ("a.py::x", "line.py", False),
        (UNSEEN, "c.py", True),
        (UNSEEN, "b.py", False),
        (TIME_OUT, "b.py", False),
    ],
)
def test_a_mutant_is_tried_again_when_what_decided_has_changed(
    tmp_path: Path, by: str, changed: str, known: bool
) -> None:
    tests = ["a.py::x", "b.py::y"]
    found = Found(tmp_path)
    found.digests = {"line.py": "1", "a.py": "2", "b.py": "3", "c.py": "4"}
    found.note(of_line(1), by, tests)
    later = Found(tmp_path)
    later.digests = found.digests | {changed: "5"}
    assert (later.of(of_line(1), tests) == by) is known


def test_a_mutant_that_no_test_saw_is_tried_again_when_another_test_reaches_it(tmp_path: Path) -> None:
    found = Found(tmp_path)
    found.digests = {"line.py": "1"}
    found.note(of_line(1), UNSEEN, ["a.py::x"])
    later = Found(tmp_path)
    later.digests = found.digests
    assert [later.of(of_line(1), tests) for tests in (["a.py::x"], ["a.py::x", "a.py::y"])] == [UNSEEN, None]


def test_a_mutant_that_does_not_end_counts_as_seen() -> None:
    assert notes.score(["a.py::x", UNSEEN, TIME_OUT, "a.py::x"]) == Score(4, 3)


def test_the_interval_of_a_sample_holds_its_score_and_gets_narrow() -> None:
    few, many = Score(20, 17).interval(), Score(2000, 1700).interval()
    assert few[0] < many[0] < 85 < many[1] < few[1]


# ---- what is kept with the sources


@pytest.mark.slow
def test_each_mutant_listed_as_equivalent_is_still_made() -> None:
    modules = sorted({module for module, _ in LISTED})
    every = [mutant for module in modules for mutant in mutants.of_module(ROOT / module, ROOT)]
    assert notes.not_met(every, LISTED) == []


def test_each_mutant_listed_as_equivalent_has_a_reason() -> None:
    assert [name for (_, name), reason in LISTED.items() if len(reason.split()) < 4] == []


def test_a_listed_mutant_that_is_not_made_any_more_is_told(tmp_path: Path) -> None:
    assert notes.not_met(made(tmp_path), {("line.py", "Line.gone: - a + b"): "it was"}) == [
        "line.py: Line.gone: - a + b"
    ]


@pytest.mark.slow
def test_a_run_names_what_no_test_saw_and_the_next_goes_on_from_there(tmp_path: Path) -> None:
    words = ["-m", "tests.mutation", "scheduler/policy/rates.py", "--tests", "tests/unit/test_rates.py"]
    words += ["--notes", str(tmp_path), "--sample", "12"]
    runs = [
        subprocess.run([sys.executable, *words, *more], cwd=ROOT, capture_output=True, text=True, check=False)
        for more in (["--minutes", "0"], [], [])
    ]
    assert "12 mutants, 12 of them to try" in runs[0].stdout
    assert "0 not tried" in runs[1].stdout, runs[1].stderr
    assert "12 mutants, 0 of them to try" in runs[2].stdout
    assert runs[1].stdout.splitlines()[-1] == runs[2].stdout.splitlines()[-1]
