"""A wait of a test that its time limit ends says what it waited for, and how things were."""

import sys

import pytest

from tests.patience import line_of, named


def test_a_wait_that_the_time_limit_ends_says_what_it_was_for() -> None:
    with (
        pytest.raises(AssertionError, match=r"job 7 is not done: Timeout \(>120.0s\)\njob 7 is blocked"),
        named(lambda: "job 7 is not done", lambda: "job 7 is blocked"),
    ):
        pytest.fail("Timeout (>120.0s)")


def test_another_failure_within_a_wait_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), named(lambda: "it is not done", lambda: ""):
        raise ZeroDivisionError


def test_a_wait_without_a_name_is_named_by_its_line() -> None:
    assert line_of(sys._getframe()).startswith("not so yet: assert line_of(sys._getframe())")
