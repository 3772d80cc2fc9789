"""Claims about the transcripts themselves, and about the parser on each of their lines."""

from pathlib import Path

import pytest

from scheduler.model import protocol
from tests import read_transcripts

KEYWORDS = {
    b"OK", b"ERROR", b"WARNING", b"FATAL", b"LOG", b"EVENT", b"Success", b"ItemsProcessed",
    b"Heartbeat", b"ECHO", b"DB", b"FAIL", b"FAIL!", b"BLOCKED", b"RESULT", b"DEBUG",
}  # fmt: skip


@pytest.mark.parametrize("path", read_transcripts.TRANSCRIPTS, ids=lambda path: path.stem)
def test_every_transcript_line_is_parsed_as_recorded(path: Path) -> None:
    exchanges = read_transcripts.read(path)
    assert [protocol.parse(said.line) for said in exchanges] == [(said.keyword, said.text) for said in exchanges]


def test_every_keyword_is_in_some_transcript() -> None:
    exchanges = [said for path in read_transcripts.TRANSCRIPTS for said in read_transcripts.read(path)]
    assert {said.keyword for said in exchanges} == KEYWORDS
