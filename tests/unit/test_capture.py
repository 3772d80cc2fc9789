"""Claims about the output of exec agents that is kept: head and tail, the gap marked, as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.output_buffers import PIECE, Capture, Piece

TEXT = "aé€😀\n"  # characters of one to four bytes


def kept(pieces: list[bytes], limit: int) -> str:
    capture = Capture(limit)
    taken: list[Piece] = []
    for data in pieces:
        capture.add("out", data)
        taken += capture.take()
    return "".join(piece.text for piece in [*taken, *capture.end()])


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return the data as reads of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.text(st.sampled_from(TEXT), max_size=100), st.lists(st.integers(1, 9), max_size=100))
def test_text_within_the_limit_is_kept_exactly_wherever_reads_split_it_j33(text: str, sizes: list[int]) -> None:
    data = text.encode()
    assert kept(cut(data, sizes), max(1, len(data))) == text


@given(st.binary(max_size=100), st.lists(st.integers(1, 9), max_size=100))
def test_invalid_bytes_are_shown_alike_wherever_reads_cut_them_j33(data: bytes, sizes: list[int]) -> None:
    assert kept(cut(data, sizes), 400) == data.decode("utf-8", "backslashreplace").replace("\0", r"\x00")


@given(st.text(st.sampled_from(TEXT), max_size=200), st.lists(st.integers(1, 40), max_size=20), st.integers(0, 100))
def test_head_and_tail_are_whole_characters_and_the_rest_is_counted_j110(
    text: str, sizes: list[int], limit: int
) -> None:
    whole = text.encode()
    found = re.fullmatch(
        r"(.*?)(?:\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n(.*))?", kept(cut(whole, sizes), limit), re.S
    )
    assert found
    head, left_out, tail = found[1].encode(), int(found[2] or 0), (found[3] or "").encode()
    assert (whole.startswith(head), whole.endswith(tail)) == (True, True)
    assert len(head) + left_out + len(tail) == len(whole)
    assert min(limit, len(whole)) - 3 * bool(left_out) <= len(head) + len(tail) <= limit


def test_a_character_larger_than_the_limit_is_dropped_j110() -> None:
    assert kept(["é".encode()], 1) == "\n[... 2 bytes left out ...]\n"


@pytest.mark.parametrize("stream", ["out", "err"])
def test_streams_have_a_limit_each(stream: str) -> None:
    capture = Capture(8)
    for name, data in (("out", b"abcd"), ("err", b"efgh")):
        capture.add(name, data)
    assert capture.take() == [("out", "abcd"), ("err", "efgh")]
    capture.add(stream, b"1234")
    assert capture.end() == [(stream, "1234")]


def test_output_of_both_streams_keeps_its_order_and_adjacent_reads_are_joined() -> None:
    capture = Capture(1000)
    for stream, data in (("out", b"a"), ("out", b"\xc3"), ("err", b"x"), ("out", b"\xa9"), ("out", b"b")):
        capture.add(stream, data)
    assert capture.take() == [("out", "a"), ("err", "x"), ("out", "éb")]
    assert capture.end() == []


def test_no_captured_piece_is_large() -> None:
    capture = Capture(1 << 24)
    capture.add("out", b"x" * (1 << 24))
    pieces = [*capture.take(), *capture.end()]
    assert {len(piece.text) for piece in pieces} == {PIECE}
    assert len(pieces) == (1 << 24) / PIECE
