"""The soak, for seconds: it prints its table, finds nothing wrong, and its check finds what is."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.needs import need
from tests.soak.chaos import Chaos, chaos

ROOT = Path(__file__).parents[2]
SECONDS = 45.0


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory(prefix="drover-soak-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_short_soak_tries_each_fault_and_loses_nothing() -> None:
    need("postgres account")
    words = ["--minutes", str(SECONDS / 60), "--steps", "5000", "--seed", "3"]
    done = subprocess.run([sys.executable, "-m", "tests.soak", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "again: make soak SOAK='--seed 3 " in done.stdout
    (lost,) = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("jobs and items lost")]
    assert lost == "0"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_short_run_of_exchanges_of_keys_loses_nothing() -> None:
    need("sshd")
    words = ["--gb", "0.2", "--ours-mb", "1", "--seed", "3", "--patient"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.rekeying", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"exchanges: [1-9].*wrong: 0\n", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_soak_finds_an_item_that_the_ledger_lacks(place: Path) -> None:
    need("postgres account")
    with chaos(place, 1) as one:
        work(one)
        kept = one.site.ended.read_text().splitlines(keepends=True)
        one.site.ended.write_text("".join(line for line in kept if " k" not in line or ".7 " not in line))
        (wrong,) = one.result()
        assert "the ledger lacks the end of" in str(wrong)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_soak_finds_a_command_that_an_attempt_began_twice(place: Path) -> None:
    need("postgres account")
    with chaos(place, 1) as one:
        work(one)
        line = next(line for line in one.site.record.read_text().splitlines() if line.startswith("exec "))
        with one.site.record.open("a") as record:
            record.write(f"{line}\n")
        rules = {str(each[0]) for each in one.result() if isinstance(each, tuple)}
        assert "I5 an attempt was begun twice" in rules


def work(one: Chaos) -> None:
    """Let daemons do some jobs, without faults."""
    one.endure(0.0, print)
    one.site.submit()
    one.site.add_query(9)
    one.site.settle()
