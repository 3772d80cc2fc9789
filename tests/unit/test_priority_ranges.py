"""Claims about patterns of priorities: which ranges they are, and which are refused."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.priority_ranges import EVERY, LETTERS, MOST_RANGES, TooComplexError, ranges_matching

PARTS = [
    "a",
    "b",
    "1",
    "z",
    "[a-f]",
    "[^n]",
    ".",
    "*",
    "|",
    "(a|b1)",
    "?",
    "$",
    "^",
    "+",
    "{2}",
    "(?:az)?",
    "\\d",
    "{0,}",
]
PRIORITIES = ["".join(each) for length in (1, 2, 3) for each in product("019AZabnz", repeat=length)]


@pytest.mark.parametrize(
    ("pattern", "ranges"),
    [
        ("", EVERY),
        (".", EVERY),
        ("^.*$", EVERY),
        ("^[a-f]", [("a", "g")]),
        ("^[a-f].*$", [("a", "g")]),
        ("[nz]", [("n", "o"), ("z", "{")]),
        ("^a1", [("a1", "a2")]),
        ("^a1$", [("a1", "a10")]),
        ("^az", [("az", "b")]),
        ("^(a1|b[34])", [("a1", "a2"), ("b3", "b5")]),
        ("^a$|^a.", [("a", "b")]),
        (r"\d|[A-Z]", [("0", "a")]),
        ("a{2,3}$", [("aa", "aa0"), ("aaa", "aaa0")]),
        ("z+$", [("z" * n, "z" * n + "0") for n in range(1, 17)]),
        ("-", []),
        ("^$", []),
    ],
)
def test_a_pattern_is_the_ranges_of_the_priorities_that_it_matches_r55(
    pattern: str, ranges: list[tuple[str, str]]
) -> None:
    assert ranges_matching(pattern) == tuple(ranges)


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join), st.sampled_from(PRIORITIES))
def test_a_priority_is_in_a_range_if_the_pattern_matches_from_its_beginning_r55(pattern: str, priority: str) -> None:
    try:
        matched = re.match(pattern, priority) is not None
        ranges = ranges_matching(pattern)
    except (re.error, TooComplexError):
        return
    assert any(start <= priority < end for start, end in ranges) is matched
    assert list(ranges) == sorted(ranges)


@pytest.mark.parametrize(
    "pattern",
    [".*1$", "..1", "(a|b)*c", "^[a-z]{1,16}$", "[a-z]{17}", "((a{16}){16}){16}", "(?=a)", "(?i)a", r"(a)\1", r"\ba"],
)
def test_a_pattern_that_is_no_few_ranges_is_refused_soon_r55(pattern: str) -> None:
    with pytest.raises(TooComplexError):
        ranges_matching(pattern)


def test_as_many_ranges_as_there_are_characters_are_no_mistake_r55() -> None:
    assert len(ranges_matching(".$")) == MOST_RANGES == len(LETTERS)
