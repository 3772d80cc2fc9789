"""A database that was restored from a dump is served as the manual says (drover(8), BACKUPS)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.database.embedded import find_binaries
from tests.conftest import _database
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec, start

pytestmark = pytest.mark.slow


@pytest.fixture
def restored(postgres: str) -> Iterator[str]:
    """Yield the conninfo of a database with nothing in it."""
    with _database(postgres, "template0") as (_, conninfo):
        yield conninfo


def test_a_dump_has_all_jobs_and_what_was_in_hand_begins_again_t111(
    launch: Launch, restored: str, tmp_path: Path, gate: Path
) -> None:
    record = tmp_path / "record"
    text = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\n[hosts.alpha]\n" + agent("a", rec(record), slots=1)
    first = launch(text)
    ended = first.insert(jq_type="a", jq_args="ended")
    first.wait(ended)
    in_hand = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(in_hand, "running")
    queued = first.insert(jq_type="a", jq_args="queued")

    dump = tmp_path / "dump"
    postgres = find_binaries()
    subprocess.run([postgres / "pg_dump", "-Fc", "-f", dump, first.database], check=True)
    subprocess.run([postgres / "pg_restore", "--exit-on-error", "-d", restored, dump], check=True)
    gate.touch()
    first.wait(queued)
    first.stop()

    with start(text, restored) as second:
        rows = [second.wait(pk) for pk in (ended, in_hand, queued)]
        new = second.insert(jq_type="a", jq_args="new")
        second.wait(new)
    assert [row["jq_state"] for row in rows] == ["done"] * 3
    assert [row["jq_attempt"] for row in rows[:2]] == [1, 2]
    assert new == queued + 1
    assert lines(record) == ["ended", f"gate:{gate}", "queued", f"gate:{gate}", "queued", "new"]
