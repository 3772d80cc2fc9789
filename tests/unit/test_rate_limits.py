"""Claims about the words of a rate limit: what is read, and how it is told."""

import pytest

from scheduler.model.list_bounds import and_more
from scheduler.model.rate_limits import MOST_STARTS, Limits, limits_in_words, read_limits


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        ([], None),
        (["rate=0"], None),
        (["rate=2"], {"rate": 2, "each": 0, "by": "", "interval": 60.0}),
        ([f"rate={MOST_STARTS}", "rate_interval=0.5"], {"rate": MOST_STARTS, "each": 0, "by": "", "interval": 0.5}),
        (["rate=1", "rate_interval=31536000"], {"rate": 1, "each": 0, "by": "", "interval": 31_536_000.0}),
        (["rate_by=data.a=b", "rate_each=1"], {"rate": 0, "each": 1, "by": "data.a=b", "interval": 60.0}),
    ],
)
def test_limits_are_read(words: list[str], limits: Limits | None) -> None:
    assert read_limits(words) == limits


@pytest.mark.parametrize(
    "words",
    [
        ["rate"], ["rate="], ["speed=1"], ["rate=1", "rate=1"], ["rate=10001"], ["rate=-1"], ["rate=1.5"],
        ["rate_each=1"], ["rate_by=host"], ["rate_each=0", "rate_by=host"], ["rate_each=1", "rate_by=data."],
        ["rate=1", "rate_interval=0"], ["rate=1", "rate_interval=31536001"], ["rate=1", "rate_interval=1e3"],
    ],
)  # fmt: skip
def test_other_words_are_no_limits(words: list[str]) -> None:
    with pytest.raises(ValueError, match="rate"):
        read_limits(words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no rate limit"),
        (["rate=2", "rate_interval=0.5"], "2 starts in 0.5 s"),
        (["rate_each=1", "rate_by=host"], "1 for each host in 60 s"),
        (["rate=3", "rate_each=1", "rate_by=type"], "3 starts, 1 for each type in 60 s"),
    ],
)
def test_limits_are_told_in_words(words: list[str], told: str) -> None:
    assert limits_in_words(read_limits(words)) == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (and_more(1234), "and 1,234 more"),
        (and_more(2, "queues"), "and 2 more queues"),
        (and_more(2, "", "--all"), "and 2 more; --all"),
        (and_more(2, "queues", "--all"), "and 2 more queues; --all"),
    ],
)
def test_a_list_says_how_many_more_there_are(line: str, told: str) -> None:
    assert line == told
