"""drover-tutorial(7), typed into a shell by somebody with an empty HOME: every command, and what it prints."""

from pathlib import Path

import pytest

from tests.needs import need
from tests.walk_pages import Shell, Step, is_as_told, literal_blocks, newcomer, steps, walk

ROOT = Path(__file__).parents[2]
PAGE = [step for block in literal_blocks((ROOT / "man/drover-tutorial.7").read_text()) for step in steps(block)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_the_tutorial_prints_what_it_says(tmp_path: Path, home: Path) -> None:
    need("postgres")
    with Shell(tmp_path, ROOT, newcomer(home)) as shell:
        walk(PAGE, shell)
    assert [*home.rglob("*drover*"), *home.rglob("*.toml")] == []


def test_dots_of_a_page_are_any_text() -> None:
    assert is_as_told("a\n...\nb ... c\n", "a\n1\n2\nb 3 c\n")
    assert not is_as_told("a\n", "a\nb\n")


def test_a_here_document_belongs_to_its_command() -> None:
    assert steps("$ cat <<'END'\nx\nEND\nx\n$ true\n") == [Step("cat <<'END'\nx\nEND", "x\n"), Step("true", "")]
