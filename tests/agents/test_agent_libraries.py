"""Claims about the two libraries for agents: small agents that use them, as processes between pipes."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent_tools import LIBRARY, Agent, record

PYTHON_AGENT = f"""#!{sys.executable}
import time, drover_agent
for item in drover_agent.items():
    {{body}}
"""


def python_agent(tmp_path: Path, body: str) -> Agent:
    """Return the smallest agent, with the library copied beside it."""
    (tmp_path / "drover_agent.py").write_bytes((LIBRARY / "drover_agent.py").read_bytes())
    (tmp_path / "agent").write_text(PYTHON_AGENT.format(body=body))
    (tmp_path / "agent").chmod(0o755)
    agent = Agent([tmp_path / "agent"])
    assert agent.hear() == b"OK"
    return agent


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("drover_agent.log(item['a'])", [b"LOG 1"]),
        ("drover_agent.log(item.line)", [b'LOG a="1"']),
        ("drover_agent.warning('two\\r\\nlines')", [b"WARNING two lines"]),
        ("drover_agent.error('')", [b"ERROR"]),
        ("drover_agent.fatal('x')", [b"FATAL x"]),
        ("drover_agent.echo('\\udce9\\ud800')", [b"ECHO \\udce9\\ud800"]),
        ("drover_agent.event('half')", [b"EVENT half"]),
        ("drover_agent.success()", [b"Success"]),
        ("drover_agent.heartbeat()", [b"Heartbeat"]),
        ("drover_agent.items_processed(7)", [b"ItemsProcessed 7"]),
        ("drover_agent.result({'a': 'ä'})", [rb'RESULT {"a":"\u00e4"}']),
        ("item.blocked('tape', 'wait')", [b"BLOCKED tape wait"]),
        ("item.fail(str(item.get('b')))", [b"FAIL None"]),
        ("item.fail('no JSON', final=True)", [b"FAIL! no JSON"]),
        ("print('hello'); drover_agent.log(str('b' in item))", [b"hello", b"LOG False"]),
        ("continue", []),
    ],
)  # fmt: skip
def test_each_library_call_prints_its_line(body: str, said: list[bytes], tmp_path: Path) -> None:
    with python_agent(tmp_path, body) as agent:
        assert agent.work(b'a="1"') == said


def test_a_text_too_long_for_a_line_is_cut_with_a_mark(tmp_path: Path) -> None:
    with python_agent(tmp_path, "drover_agent.log('x' * (1 << 21))") as agent:
        (line,) = agent.work(b"")
    assert len(line) < 1 << 20
    assert line.endswith(b"x ... (cut, 2097152 bytes)")


def test_an_exception_ends_the_agent_without_ending_its_item(tmp_path: Path) -> None:
    with python_agent(tmp_path, "raise SystemExit(3)") as agent:
        agent.say(b"")
        assert agent.hear() == b""
        assert agent.end() == 3


HANG_UPS = [lambda agent: agent.hang_up(), lambda agent: os.killpg(agent.process.pid, signal.SIGHUP)]
hang_up = pytest.mark.parametrize(
    ("hang_up", "status"), list(zip(HANG_UPS, (0, -signal.SIGHUP), strict=True)), ids=["stdin closes", "SIGHUP"]
)


@hang_up
def test_an_idle_agent_in_python_exits_at_once_f83_f111(
    tmp_path: Path, hang_up: Callable[[Agent], None], status: int
) -> None:
    with python_agent(tmp_path, "pass") as agent:
        assert agent.work(b"x") == []
        hang_up(agent)
        assert agent.end() == status


@pytest.mark.parametrize(
    "body", ["while not time.sleep(0.01): drover_agent.heartbeat()", "drover_agent.log('on'); drover_agent.db('x')"]
)
@hang_up
def test_an_agent_in_python_that_works_exits_at_once_f83_f111(
    tmp_path: Path, body: str, hang_up: Callable[[Agent], None], status: int
) -> None:
    with python_agent(tmp_path, body) as agent:
        agent.say(b"x")
        assert agent.hear() in (b"Heartbeat", b"LOG on")
        hang_up(agent)
        assert agent.end() == status


SHELL_AGENT = """#!/bin/sh
. "$LIBRARY"
drover_ready
while drover_next; do
    drover_value "$COLUMN"
    status=$?
    drover_log "$status $(printf '%s' "$DROVER_VALUE" | od -An -v -tx1 | tr -d ' \\n')"
    drover_done
done
"""


def shell_agent(tmp_path: Path, column: str, script: str = SHELL_AGENT) -> Agent:
    (tmp_path / "agent").write_text(script)
    (tmp_path / "agent").chmod(0o755)
    agent = Agent([tmp_path / "agent"], LIBRARY=str(LIBRARY / "drover_agent.sh"), COLUMN=column)
    assert agent.hear() == b"OK"
    return agent


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"two words", b"$(id) `id` ${HOME} \\ \" ' ;", b"\n\n", b"end\n", b"\r\t\x01\x1b\x7f",
        "ä€𝄞".encode(), b"caf\xe9", b'b="2"', b'x b="', b"* ? [a]", b"-n", b"\\n", b"%s %d \\x41", b"\x0a1",
    ],
)  # fmt: skip
def test_the_shell_library_returns_a_value_unchanged_f86(value: bytes, tmp_path: Path) -> None:
    with shell_agent(tmp_path, "b") as agent:
        expected = [b"LOG 0 " + value.hex().encode()]
        assert agent.work(record({"a": value, "b": value, "c": b"3"})) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (record({"a": b"1", "b": None}), b"LOG 1 "),
        (b"", b"LOG 1 "),
        (b"bare line", b"LOG 2 "),
        (b'b="cut', b"LOG 2 "),
        (b'b="\\q"', b"LOG 2 "),
    ],
)
def test_the_shell_library_tells_null_from_an_invalid_column_f87(line: bytes, said: bytes, tmp_path: Path) -> None:
    with shell_agent(tmp_path, "b") as agent:
        assert agent.work(line) == [said]


@hang_up
def test_an_idle_agent_in_shell_exits_at_once_f83_f111(
    tmp_path: Path, hang_up: Callable[[Agent], None], status: int
) -> None:
    with shell_agent(tmp_path, "b") as agent:
        assert agent.work(b'b="1"') == [b"LOG 0 31"]
        hang_up(agent)
        assert agent.end() == status


WORDS = """#!/bin/sh
. "$LIBRARY"
drover_ready
while drover_next; do
    drover_error "two
lines"; drover_warning a  b; drover_fatal x; drover_echo y; drover_event z; drover_success; drover_heartbeat
    drover_items_processed 3; drover_result '{}'; drover_blocked tape later; drover_fail "no $(drover_get a)"
    drover_fail_final "no $(drover_get a)"
    drover_done
done
"""


def test_each_function_of_the_shell_library_prints_its_line(tmp_path: Path) -> None:
    with shell_agent(tmp_path, "", WORDS) as agent:
        assert agent.work(b'a="good"') == [
            b"ERROR two lines", b"WARNING a b", b"FATAL x", b"ECHO y", b"EVENT z", b"Success", b"Heartbeat",
            b"ItemsProcessed 3", b"RESULT {}", b"BLOCKED tape later", b"FAIL no good",
            b"FAIL! no good",
        ]  # fmt: skip


SAVES = """#!/bin/sh
. "$LIBRARY"
drover_ready
while drover_next; do
    drover_value b || DROVER_VALUE=$DROVER_LINE
    if drover_db save id 7 text "$DROVER_VALUE" --null note; then
        drover_row_value size
        drover_log "$? $DROVER_VALUE of $DROVER_ROWS for $DROVER_LINE"
    else
        drover_fail "not saved: $DROVER_ERROR"
    fi
    drover_done
done
"""


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "two words", "$(id) `id` ${HOME} \\ \" ' ;", "\n\n", "end\n", "\r\t\x01\x1b\x7f", "ä€𝄞", "* ? [a]",
        "-n", "\\u", 'a long one: "\\\n\t\x01é' * 110 + "\n",
    ],
)  # fmt: skip
def test_a_value_reaches_a_statement_unchanged_from_shell(value: str, tmp_path: Path) -> None:
    with shell_agent(tmp_path, "", SAVES) as agent:
        agent.say(record({"b": value.encode()}))
        said = agent.hear()
        assert said.startswith(b"DB: save ")
        assert json.loads(said.removeprefix(b"DB: save ")) == {"id": "7", "text": value, "note": None}


def test_a_statement_from_shell_returns_its_rows_and_its_error(tmp_path: Path) -> None:
    with shell_agent(tmp_path, "", SAVES) as agent:
        agent.say(b'b="1"')
        agent.hear()
        agent.say(b'size="3"\nsize="4"\nOK')
        assert [agent.hear(), agent.hear()] == [b'LOG 0 3 of size="3" size="4" for b="1"', b"OK"]
        agent.say(b'b="1"')
        agent.hear()
        agent.say(b"ERROR no such table\nOK")
        assert [agent.hear(), agent.hear()] == [b"FAIL not saved: no such table", b"OK"]


def test_a_statement_from_shell_with_a_value_too_long_for_a_line_fails_and_the_agent_lives(tmp_path: Path) -> None:
    with shell_agent(tmp_path, "", SAVES) as agent:
        assert agent.work(b"x" * 1_048_560) == [
            b"FAIL not saved: the line would have 1 MiB or more, which is the limit"
        ]
