"""What a line agent prints on stderr, as the log of its job has it."""

import pytest

from scheduler.model import events_and_effects as e
from tests.core_tools import claim, logged, make_core, ready


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nt", b"wo\n"], ["one", "two"]),
        ([b"one\nlast words"], ["one", "last words"]),
        ([b"last ", b"words"], ["last words"]),
    ],
)
def test_each_line_on_stderr_is_logged_the_last_one_without_its_end_too_f80(
    printed: list[bytes], lines: list[str]
) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    for data in printed:
        core.agent_stderr(slot.number, data, 1.0)
    core.handle(e.Gone(slot.number, code=3), 1.0)
    assert [row for row in logged(core) if row[1] == "STDERR"] == [(1, "STDERR", line) for line in lines]
