"""A process that has imported the product and all fast tests once, and forks a child for each mutant.

The parent runs no test. Its children measure which lines each test reaches, and then run, for one mutant each, the
tests that reach its lines, the shortest first, until one fails. A child gives the functions of the product the
mutant's code, so nothing is imported again. That is why these tests are those that run the product in their own
process: tests/unit and tests/sim, those that `make check` runs.
"""

import gc
import os
import pickle
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import coverage
import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ("tests/unit", "tests/sim")
PRODUCT: Final = ("scheduler", "agents")
UNSEEN: Final = ""  # no test failed
TIME_OUT: Final = "(it did not end)"
# A child may use this many times the processor time that its tests took when lines were measured; real time only
# ends a child that sleeps for ever.
CPU_TIMES: Final = 5
CPU_LEAST_S: Final = 10
SLEEP_S: Final = 600
MEMORY_BYTES: Final = 4 << 30
# What one mutant's tests may take altogether. The simulation of one seed takes seconds, and reaches nearly all.
TESTS_S: Final = 30.0


@dataclass(slots=True)
class Reached:
    """Which tests reach a line, and how long each test takes in seconds of the processor."""

    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)

    def add(self, other: "Reached") -> None:
        """Add what other tests reach."""
        self.durations |= other.durations
        for module, lines in other.tests.items():
            mine = self.tests.setdefault(module, {})
            for line, tests in lines.items():
                mine.setdefault(line, []).extend(tests)

    def forget(self, gone: Collection[str]) -> None:
        """Forget tests that are not there any more, or are measured anew."""
        for test in gone:
            self.durations.pop(test, None)
        for lines in self.tests.values():
            for line, tests in lines.items():
                lines[line] = [test for test in tests if test not in gone]

    def lines(self, module: str) -> set[int]:
        """Return the lines of a module that a test reaches."""
        return {line for line, tests in self.tests.get(module, {}).items() if tests}

    def of(self, mutant: Mutant, most_s: float = TESTS_S) -> list[str]:
        """Return the tests of a mutant's lines, the shortest first, as many as fit into `most_s`."""
        lines = self.tests.get(mutant.module, {})
        found = {test for line in mutant.lines for test in lines.get(line, ())}
        left = most_s
        chosen: list[str] = []
        for test in sorted(found, key=lambda test: (self.durations[test], test)):
            left -= self.durations[test]
            if left < 0:
                break
            chosen.append(test)
        return chosen


class Plugin:
    """Collect the tests as pytest does, then call `work` in place of running them."""

    def __init__(self, work: Callable[["Warm"], None]) -> None:
        """Work is what is done when all is imported."""
        self.work = work
        self.error: BaseException | None = None

    def pytest_configure(self) -> None:
        """Let a property test try the same examples each time, and keep none that a mutant failed."""
        import hypothesis  # pytest rewrites its asserts, so it may not be imported before

        hypothesis.settings.register_profile(
            "mutants", parent=hypothesis.settings.get_profile("drover"), derandomize=True, database=None
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work; pytest runs nothing itself."""
        if session.testsfailed:
            return True
        self.work(Warm(session))
        return True


class Warm:
    """The tests that were collected, and the functions of the product."""

    def __init__(self, session: pytest.Session) -> None:
        """Find the functions: their code is what is replaced."""
        self.items = {item.nodeid: item for item in session.items}
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        tops = tuple(f"{ROOT}/{top}/" for top in PRODUCT)
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(tops):
                code = each.__code__
                self.functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
        gc.collect()
        gc.freeze()  # a child that collects would copy all pages

    def measure(self, tests: Sequence[str], jobs: int, place: Path) -> Reached:
        """Run tests, a share of them in each of `jobs` children, and note which lines each reaches.

        A test that fails without a mutant is named, and left out.
        """
        files = [place / f"part-{number}" for number in range(jobs)]
        pids = [child(partial(self._cover, tests[number::jobs], file)) for number, file in enumerate(files)]
        reached = Reached()
        for file, pid in zip(files, pids, strict=True):
            if os.waitpid(pid, 0)[1]:
                raise SystemExit("the lines that tests reach could not be measured")
            part, failed = pickle.loads(file.read_bytes())
            reached.add(part)
            for test, report in failed.items():
                print(f"{test} fails without a mutant, so it is left out:\n{report}", flush=True)
        return reached

    def _cover(self, share: Sequence[str], file: Path) -> int:
        meter = coverage.Coverage(data_file=None, include=[f"{ROOT}/{top}/*" for top in PRODUCT], config_file=False)
        reached, reports = Reached(), dict[str, str]()
        meter.start()
        for test in share:
            meter.switch_context(test)
            began = time.process_time()
            if report := self.failed(test):
                reports[test] = report
            else:
                reached.durations[test] = time.process_time() - began
        meter.stop()
        data = meter.get_data()
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path).items()
            passed = {line: [test for test in tests if test in reached.durations] for line, tests in lines}
            reached.tests[str(Path(path).relative_to(ROOT))] = passed
        file.write_bytes(pickle.dumps((reached, reports)))
        return 0

    def run(self, work: Iterator[tuple[Mutant, Sequence[str], float]], jobs: int) -> Iterator[tuple[Mutant, str]]:
        """Run each mutant's tests in a child, `jobs` children at once; yield which test failed."""
        children: dict[int, tuple[Mutant, int]] = {}
        for mutant, tests, took_s in work:
            read, write = os.pipe()
            limit = CPU_LEAST_S + int(CPU_TIMES * took_s)
            pid = child(partial(self._try, mutant, tests, limit, write))
            os.close(write)
            children[pid] = (mutant, read)
            if len(children) >= jobs:
                yield _end(children)
        while children:
            yield _end(children)

    def _try(self, mutant: Mutant, tests: Sequence[str], limit_s: int, write: int) -> int:
        """Run the tests until one fails, and write its name."""
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.alarm(SLEEP_S)
        self.put(mutant)
        for test in tests:
            if self.failed(test):
                os.write(write, test.encode())
                break
        return 0

    def put(self, mutant: Mutant) -> None:
        """Give the functions of this process the mutant's code."""
        path = str(ROOT / mutant.module)
        codes = [list(_codes(compile(text, path, "exec"))) for text in (Path(path).read_text(), mutant.source)]
        changed = [(old, new) for old, new in zip(*codes, strict=True) if _bare(old) != _bare(new)]
        assert changed, f"its code is the same: {mutant.name}"
        for old, new in changed:
            for function in self.functions[path, old.co_qualname, old.co_firstlineno]:
                function.__code__ = new

    def failed(self, test: str) -> str:
        """Run a test; return the report of its failure, or nothing."""
        reports = runtestprotocol(self.items[test], log=False, nextitem=None)
        return next((str(report.longrepr) for report in reports if report.failed), "")


def _end(children: dict[int, tuple[Mutant, int]]) -> tuple[Mutant, str]:
    pid, status = os.waitpid(-1, 0)
    while pid not in children:  # a process that a test left
        pid, status = os.waitpid(-1, 0)
    mutant, read = children.pop(pid)
    test = os.read(read, 4096).decode()
    os.close(read)
    return mutant, test or (TIME_OUT if status else UNSEEN)


def child(work: Callable[[], int]) -> int:
    """Fork a child that does this, with no output."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        code = work()
    finally:
        os._exit(code)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions and methods; of one within another, the outer only."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            if not each.co_flags & 1:  # CO_OPTIMIZED: a function; a class has functions of its own
                yield from _codes(each)


def _bare(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_bare(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return (code.co_code, code.co_names, code.co_varnames, constants)


def serve(work: Callable[[Warm], None], tests: Sequence[str]) -> int:
    """Import the product and these tests, and do the work; return another status than 0 if one cannot be imported."""
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", "-m", "not slow", *tests]
    return int(pytest.main(arguments, plugins=[Plugin(work)]))
