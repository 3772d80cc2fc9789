"""The SQL files can be read: short lines, a purpose for each query and fragment, no text that is left over."""

import re
from pathlib import Path

import pytest

from scheduler.drivers.statements import expand
from scheduler.package_data import schema_dir

RELEASED = ("0001_create_drover.sql", "0002_harden_queue.sql")  # never edited
FILES = sorted(
    path
    for path in (
        *(schema_dir() / name for name in ("queries.sql", "cli.sql", "web.sql", "metrics.sql", "roles.sql")),
        *schema_dir().glob("migrations/*.sql"),
    )
    if path.name not in RELEASED
)
TEXT = (schema_dir() / "queries.sql").read_text()
BLOCKS = re.findall(r"^-- (name|fragment): (\S+)\n(.*)\n", TEXT, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_line_of_sql_is_longer_than_120_characters(path: Path) -> None:
    long = {n: line for n, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120}
    assert long == {}


def test_every_query_and_fragment_has_a_purpose_line() -> None:
    assert [name for _, name, line in BLOCKS if not re.match(r"-- [A-Z].+[.:;,\w]$", line)] == []


def test_every_fragment_is_used() -> None:
    fragments = [name for kind, name, _ in BLOCKS if kind == "fragment"]
    assert fragments
    assert [name for name in fragments if f"{{{{{name}}}}}" not in TEXT] == []


def test_no_fragment_is_left_in_a_query() -> None:
    assert "{{" not in expand(TEXT)


@pytest.mark.parametrize("shared", ["group_lease_until > now()", "'took effect' from"])
def test_the_lease_guard_and_the_mark_of_a_command_are_written_once(shared: str) -> None:
    owner = [line for line in TEXT.splitlines() if shared in line and (":owner" in line or "took" in line)]
    assert len(owner) == 1
