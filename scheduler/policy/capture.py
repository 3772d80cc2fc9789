"""What is kept of an exec agent's output: head and tail of each stream, the gap marked.

The head is passed on as it comes, so that it can be followed; the tail is held back until the end.
"""

from typing import Final

_STREAMS: Final = ("out", "err")


class Capture:
    """The output of one process, at most `limit` bytes a stream."""

    __slots__ = ("_dropped", "_head_left", "_limit", "_tails")

    def __init__(self, limit: int) -> None:
        self._limit = limit - limit // 2
        self._head_left = dict.fromkeys(_STREAMS, limit // 2)
        self._tails = {stream: bytearray() for stream in _STREAMS}
        self._dropped = dict.fromkeys(_STREAMS, 0)

    def add(self, stream: str, data: bytes) -> bytes:
        """Take in output and give what of it is to be stored now."""
        head, rest = data[: self._head_left[stream]], data[self._head_left[stream] :]
        self._head_left[stream] -= len(head)
        if rest:
            tail = self._tails[stream]
            tail += rest
            surplus = max(0, len(tail) - self._limit)
            del tail[:surplus]
            self._dropped[stream] += surplus
        return head

    def end(self, stream: str) -> bytes:
        """Give what is left to store, behind a mark that says how much was left out."""
        tail, dropped = bytes(self._tails[stream]), self._dropped[stream]
        return b"\n[... %d bytes left out ...]\n" % dropped + tail if dropped else tail
