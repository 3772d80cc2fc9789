"""Reads tests/transcripts/*.txt: what an agent prints, and what the parser must report (README there)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|\{([^{}]*)\*(\d+)\}|(r)|(\\))")


class Exchange(NamedTuple):
    """`line` is without its newline; `text` is empty if the keyword stands alone."""

    line: bytes
    keyword: bytes
    text: bytes


def read(path: Path) -> list[Exchange]:
    """Return the exchanges of one transcript. Raises ValueError where `<` and `=` do not alternate."""
    written = [line for line in path.read_bytes().split(b"\n") if line and not line.startswith(b"#")]
    return [_exchange(said, meant) for said, meant in _pairs(written)]


def _pairs(written: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for said, meant in zip(written[::2], written[1::2], strict=True):
        if not (said.startswith(b"<") and meant.startswith(b"= ")):
            raise ValueError(f"a `<` line and its `=` line, not {said[:60]!r} and {meant[:60]!r}")
        yield said[2:], meant[2:]


def _exchange(said: bytes, meant: bytes) -> Exchange:
    keyword, _, text = meant.partition(b" ")
    return Exchange(_plain(said), keyword, _plain(text))


def _plain(escaped: bytes) -> bytes:
    return _ESCAPE.sub(_byte, escaped)


def _byte(found: re.Match[bytes]) -> bytes:
    code, repeated, times, carriage_return, backslash = found.groups()
    if code:
        return bytes.fromhex(code.decode())
    if times:
        return bytes(repeated * int(times))
    return b"\r" if carriage_return else bytes(backslash)
