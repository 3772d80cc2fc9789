"""What is kept of an exec agent's output: head and tail of each stream as text, the gap marked.

The head is given out as it comes, so that it can be followed; the tail is held back until the end. Bytes that are no
UTF-8 become `\\xHH`, but a character that comes in two reads is one, and none is cut in two for the gap.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Final, NamedTuple

from scheduler.model.protocol import printable

PIECE: Final = 1 << 18  # characters of one row: however much there is, no row holds anybody up for long
_Decoder = getincrementaldecoder("utf-8")
_MOST_OF_REST: Final = 3  # bytes of a character without its first


class Piece(NamedTuple):
    """Text of one stream, "out" or "err"."""

    stream: str
    text: str


class Capture:
    """The output of one process, at most `limit` bytes a stream, in the order in which it was read."""

    __slots__ = ("_limit", "_streams", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[str, _Stream] = {}
        self._waiting: list[Piece] = []

    def add(self, stream: str, data: bytes) -> bool:
        """Take in output; whether there is something to take."""
        if stream not in self._streams:
            self._streams[stream] = _Stream(self._limit)
        text = self._streams[stream].add(data)
        if text:
            self._waiting.append(Piece(stream, text))
        return bool(self._waiting)

    def take(self) -> list[Piece]:
        """Give what is to be stored by now and was not given before."""
        taken, self._waiting = self._waiting, []
        return list(_joined(taken))

    def end(self) -> list[Piece]:
        """Give all that is left, each tail behind a mark that says how much was left out."""
        self._waiting += [Piece(name, text) for name, stream in self._streams.items() if (text := stream.end())]
        return self.take()


class _Stream:
    __slots__ = ("_decoder", "_dropped", "_head_left", "_tail", "_tail_most")

    def __init__(self, limit: int) -> None:
        self._head_left, self._tail_most = limit // 2, limit - limit // 2
        self._decoder = _Decoder("backslashreplace")
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> str:
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        text = self._decoder.decode(head)
        if rest:
            self._hold(rest)
        return text.replace("\0", r"\x00")

    def _hold(self, data: bytes) -> None:
        unfinished, _ = self._decoder.getstate()  # the character that the head has no room for
        self._decoder.reset()
        self._tail_most += len(unfinished)
        self._tail += unfinished + data
        surplus = max(0, len(self._tail) - self._tail_most)
        del self._tail[:surplus]
        self._dropped += surplus

    def end(self) -> str:
        text = self._decoder.decode(b"", final=True)
        if not self._dropped:
            return text + printable(bytes(self._tail))
        begin = _next_character(self._tail)
        return f"\n[... {self._dropped + begin} bytes left out ...]\n{printable(bytes(self._tail[begin:]))}"


def _next_character(data: bytearray) -> int:
    """Where the first character begins that is there from its first byte on; 0 if that is no text anyway."""
    for place, byte in enumerate(data[: _MOST_OF_REST + 1]):
        if byte & 0xC0 != 0x80:
            return place
    return len(data) if len(data) <= _MOST_OF_REST else 0


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    """What follows each other in one stream as one, but none over PIECE."""
    begin = 0
    for here, piece in enumerate(pieces, start=1):
        if here == len(pieces) or pieces[here].stream != piece.stream:
            text = "".join(each.text for each in pieces[begin:here])
            yield from (Piece(piece.stream, text[at : at + PIECE]) for at in range(0, len(text), PIECE))
            begin = here
