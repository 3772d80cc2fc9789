"""Claims about the output of exec agents that is kept: head and tail, the gap marked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.capture import Capture


def kept(pieces: list[bytes], limit: int) -> bytes:
    capture = Capture(limit)
    head = b"".join(capture.add("out", piece) for piece in pieces)
    return head + capture.end("out")


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_output_within_the_limit_is_kept_whole(pieces: list[bytes]) -> None:
    assert kept(pieces, 400) == b"".join(pieces)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20), st.integers(0, 100))
def test_head_and_tail_are_kept_and_the_rest_is_counted(pieces: list[bytes], limit: int) -> None:
    data = b"".join(pieces)
    gap = max(0, len(data) - limit)
    mark = b"\n[... %d bytes left out ...]\n" % gap if gap else b""
    head, tail = limit // 2, limit - limit // 2
    assert kept(pieces, limit) == (data[:head] + mark + data[len(data) - tail :] if gap else data)


@pytest.mark.parametrize("stream", ["out", "err"])
def test_streams_have_a_limit_each(stream: str) -> None:
    capture = Capture(4)
    assert capture.add("out", b"ab") + capture.add("err", b"cd") == b"abcd"
    assert capture.end(stream) == b""
