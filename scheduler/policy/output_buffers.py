"""Keeps what agents have printed: lines of line agents that are not dealt with yet, and the output of exec agents.

Of an exec agent head and tail of each stream are kept as text, the gap marked.

The head is given out as it comes, so that it can be followed; the tail is held back until the end. Bytes that are no
UTF-8 become `\\xHH`, but a character that comes in two reads is one, and none is cut in two for the gap.
"""

from codecs import getincrementaldecoder
from collections import deque
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from scheduler.model.protocol import OK, printable
from scheduler.model.wrong_answers import lookalike, why_no_ok
from scheduler.policy.handover_values import BYTES, Snapshot

PIECE: Final = 1 << 18  # characters of one row, so that no statement takes long
LINE_BYTES: Final = 64  # that a line costs whatever is in it
STDERR_LINE: Final = 8192  # bytes
SHOWN_BYTES: Final = 256  # of a line, enough for a message
LAST_LINE: Final = 200  # characters of the last line on stderr, in the reason why an item failed
_KEPT_END: Final = 1024  # bytes in which that line is looked for
_Decoder = getincrementaldecoder("utf-8")
_MOST_OF_REST: Final = 3  # bytes of a character without its first


class Piece(NamedTuple):
    """Text of one stream, "out" or "err"."""

    stream: str
    text: str


def last_line_of(data: bytes) -> str:
    """Return the last line that is not blank, cut if it is long; a carriage return ends a line too."""
    lines = [line for line in printable(data).replace("\r", "\n").split("\n") if not line.isspace()]
    last = next(filter(None, reversed(lines)), "").strip()
    return last if len(last) <= LAST_LINE else f"{last[:LAST_LINE]}..."


class Capture:
    """The output of one process, at most `limit` bytes a stream, in the order in which it was read."""

    __slots__ = ("_limit", "_streams", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[str, _Stream] = {}
        self._waiting: list[Piece] = []

    def snapshot(self) -> dict[str, Any]:
        """Return what is to be stored later. What is to be stored by now was taken before."""
        return {name: stream.snapshot() for name, stream in self._streams.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue with the output of a snapshot."""
        for name, each in snapshot.items():
            self._streams[name] = _Stream(self._limit)
            self._streams[name].restore(each)

    def add(self, stream: str, data: bytes) -> bool:
        """Add output; return whether `take` would return some."""
        if stream not in self._streams:
            self._streams[stream] = _Stream(self._limit)
        text = self._streams[stream].add(data)
        if text:
            self._waiting.append(Piece(stream, text))
        return bool(self._waiting)

    @property
    def last_error(self) -> str:
        """Return the last line on stderr, cut; empty if there is none."""
        return last_line_of(self._streams["err"].newest) if "err" in self._streams else ""

    def take(self) -> list[Piece]:
        """Return what is to be stored now, each piece once."""
        taken, self._waiting = self._waiting, []
        pieces: list[Piece] = []
        for name, run in groupby(taken, attrgetter("stream")):  # as few as possible, but none over PIECE
            text = "".join(piece.text for piece in run)
            pieces += [Piece(name, text[at : at + PIECE]) for at in range(0, len(text), PIECE)]
        return pieces

    def end(self) -> list[Piece]:
        """Return all that is left, each tail behind a mark that says how much was left out."""
        self._waiting += [Piece(name, text) for name, stream in self._streams.items() if (text := stream.end())]
        return self.take()


class _Stream:
    __slots__ = ("_decoder", "_dropped", "_head_left", "_tail", "_tail_most", "newest")

    def __init__(self, limit: int) -> None:
        self._head_left, self._tail_most = limit // 2, limit - limit // 2
        self._decoder = _Decoder("backslashreplace")
        self._tail = bytearray()
        self._dropped = 0
        self.newest = b""  # what came last, whether it is kept or not

    def snapshot(self) -> dict[str, Any]:
        unfinished, _ = self._decoder.getstate()
        sizes = {"head_left": self._head_left, "tail_most": self._tail_most, "dropped": self._dropped}
        texts = {"unfinished": unfinished, "tail": bytes(self._tail), "newest": self.newest}
        return {**sizes, **{name: text.decode(BYTES) for name, text in texts.items()}}

    def restore(self, snapshot: Snapshot) -> None:
        self._head_left, self._tail_most = int(snapshot["head_left"]), int(snapshot["tail_most"])
        self._dropped, self._tail = int(snapshot["dropped"]), bytearray(snapshot["tail"].encode(BYTES))
        self._decoder.setstate((snapshot["unfinished"].encode(BYTES), 0))
        self.newest = snapshot.get("newest", "").encode(BYTES)

    def add(self, data: bytes) -> str:
        self.newest = (self.newest + data[-_KEPT_END:])[-_KEPT_END:]
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        text = self._decoder.decode(head)
        if rest:
            unfinished, _ = self._decoder.getstate()  # the character that the head has no room for
            self._decoder.reset()
            self._tail_most += len(unfinished)
            self._tail += unfinished + rest
            surplus = max(0, len(self._tail) - self._tail_most)
            del self._tail[:surplus]
            self._dropped += surplus
        return text.replace("\0", r"\x00")

    def end(self) -> str:
        text = self._decoder.decode(b"", final=True)
        if not self._dropped:
            return text + printable(bytes(self._tail))
        # the first character that is there from its first byte on; 0 if that is no text anyway
        starts = (at for at, byte in enumerate(bytes(self._tail[: _MOST_OF_REST + 1])) if byte & 0xC0 != 0x80)
        begin = next(starts, len(self._tail) if len(self._tail) <= _MOST_OF_REST else 0)
        return f"\n[... {self._dropped + begin} bytes left out ...]\n{printable(bytes(self._tail[begin:]))}"


class AgentOutput:
    """Output of the process of a slot that was not processed yet."""

    __slots__ = (
        "_counted_item", "_error", "_error_item", "at", "in_place_of_ok", "is_cut", "is_statement_running",
        "item_bytes", "partial_line", "partial_stderr", "statement_bytes", "statements", "warned_of", "warnings",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.at = now  # when it printed last
        self.in_place_of_ok = b""  # the last line before the first OK, or one that may be meant as that; cut
        self.partial_line = b""
        self.partial_stderr = b""
        self.statements: deque[bytes] = deque()  # DB: lines that wait for the answer to an earlier one to be read
        self.statement_bytes = 0
        self.is_statement_running = False
        self.item_bytes = 0  # about one item
        self.is_cut = False  # more than its limit: the rest is left out
        self.warned_of, self.warnings = 0, 0  # the last job with a line that is almost a keyword; how many there were
        self._counted_item = 0
        self._error, self._error_item = b"", 0  # the last line on stderr, and the number of the item then

    def snapshot(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "at": self.at, "line": self.partial_line.decode(BYTES), "stderr": self.partial_stderr.decode(BYTES),
            "statements": [text.decode(BYTES) for text in self.statements], "item_bytes": self.item_bytes,
            "is_cut": self.is_cut, "item": self._counted_item, "in_place_of_ok": self.in_place_of_ok.decode(BYTES),
        }  # fmt: skip

    def restore(self, snapshot: Snapshot) -> None:
        """Continue with the output of a snapshot; no statement of its process runs."""
        self.at = float(snapshot.get("at", 0.0))
        self.partial_line = snapshot.get("line", "").encode(BYTES)
        self.partial_stderr = snapshot.get("stderr", "").encode(BYTES)
        for text in snapshot.get("statements", ()):
            self.add_statement(text.encode(BYTES))
        self.item_bytes, self.is_cut = int(snapshot.get("item_bytes", 0)), bool(snapshot.get("is_cut", False))
        self._counted_item = int(snapshot.get("item", 0))
        self.in_place_of_ok = snapshot.get("in_place_of_ok", "").encode(BYTES)

    def heartbeat(self, now: float) -> None:
        self.at = now

    def lines(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that are complete with this, and keep the rest."""
        *lines, self.partial_line = (self.partial_line + data).split(b"\n")
        self.at = now
        return lines

    def note_before_ok(self, line: bytes) -> None:
        """Keep a line that came before the first OK, unless an earlier one was probably meant as that."""
        if lookalike(self.in_place_of_ok) != OK.decode():
            self.in_place_of_ok = line[:SHOWN_BYTES]

    def why_no_ok(self) -> str:
        """Return why there was no first OK yet, as far as what was printed says that."""
        if self.in_place_of_ok:
            return why_no_ok(self.in_place_of_ok)
        return why_no_ok(self.partial_line[:SHOWN_BYTES], is_whole=False)

    def last_line(self) -> bytes:
        """Return what the process printed last, without its end."""
        last, self.partial_line = self.partial_line, b""
        return last

    def stderr_lines(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines on stderr that are complete; a line without end is cut into pieces."""
        *lines, self.partial_stderr = (self.partial_stderr + data).split(b"\n")
        if len(self.partial_stderr) > STDERR_LINE:
            lines.append(self.partial_stderr)
            self.partial_stderr = b""
        self.at = now
        return lines

    def note_error(self, line: bytes, item: int) -> None:
        """Keep the last line on stderr while an agent works on an item, which has a number of its own."""
        if line and not line.isspace():
            self._error, self._error_item = line[-_KEPT_END:], item

    def error_about(self, item: int) -> str:
        """Return the last line on stderr about this item, cut; empty if there is none."""
        return last_line_of(self._error) if self._error_item == item else ""

    def count(self, size: int, item: int) -> int:
        """Count a line about an item, which has a number of its own; return the bytes about it before."""
        if self._counted_item != item:
            self._counted_item, self.item_bytes, self.is_cut = item, 0, False
        before = self.item_bytes
        self.item_bytes = before + size + LINE_BYTES
        return before

    def cut(self) -> bool:
        """Leave the rest about this item out; return whether that begins now."""
        is_new, self.is_cut = not self.is_cut, True
        return is_new

    def note_warning(self, job: int) -> None:
        """Note that a line about this job was almost a keyword, and that a warning says so."""
        self.warned_of = job
        self.warnings += 1

    def add_statement(self, text: bytes) -> None:
        """Keep a DB: line until its turn."""
        self.statements.append(text)
        self.statement_bytes += len(text) + LINE_BYTES

    def next_statement(self) -> bytes | None:
        """Return the DB: line to run now; None while there is none, or one runs."""
        if not self.statements or self.is_statement_running:
            return None
        text = self.statements.popleft()
        self.statement_bytes -= len(text) + LINE_BYTES
        self.is_statement_running = True
        return text

    def statement_answered(self) -> None:
        """Note that the answer to a DB: line is written."""
        self.is_statement_running = False
