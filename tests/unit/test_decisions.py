"""man/decisions: one page each, with pain, decision and price, about files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "man/decisions").glob("*.md"))
BASES = (ROOT, ROOT / "scheduler")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_its_number_and_its_three_parts(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]}: ")
    assert [part for part in ("Pain", "Decision", "Price") if f"\n**{part}.**" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"\b[a-z]+(?:/[a-z_]+)+\.(?:py|sql)\b", page.read_text()))
    assert [path for path in sorted(named) if not any((base / path).exists() for base in BASES)] == []


def test_pages_are_numbered_without_gaps() -> None:
    assert [page.name[:4] for page in PAGES] == [f"{number:04}" for number in range(1, len(PAGES) + 1)]
