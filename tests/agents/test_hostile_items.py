"""Every bundled agent answers every item, whatever bytes it holds, and lives on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent_tools import LIBRARY, Agent, bundled, module, record

sending = module("notify/sending.py")

# What an agent needs, and what keeps it from doing harm: the shell gets data only; no database, no relay is there.
OPTIONS: dict[str, tuple[list[str], dict[str, str]]] = {
    "sha256": ([], {}),
    "mimetype": ([], {}),
    "license": ([], {}),
    "noop": ([], {}),
    "shell": ([": %{*} %{1} %{path}"], {}),
    "cleanup": (["--root", "/srv/none"], {}),
    "notify": (["--smtp", "127.0.0.1:1"], {}),
    "http": ([], {}),
    "map": (["/srv/none", "0", "0", "0"], {}),
    "sql": ([], {"PGHOST": "/srv/none", "PGCONNECT_TIMEOUT": "2"}),
}
DEEP, DIGITS, MIB = 50_000, b"7" * 5000, (1 << 20) - 2


def delivery(**values: Any) -> bytes:
    return json.dumps({"to": "mailto:a@b", "body": "{}", "headers": {}, **values}).encode()


LINES = {
    "nothing": b"",
    "deep array": b"[" * DEEP,
    "deep object": b'{"a":' * DEEP,
    "deep and closed": b"[" * DEEP + b"]" * DEEP,
    "many digits": DIGITS,
    "many digits in an object": b'{"to":' + DIGITS + b',"body":"","headers":{},"folder":"/","names":[' + DIGITS + b"]}",
    "no number": b'{"to":NaN,"body":Infinity,"headers":-Infinity,"folder":1e999,"names":[1e-999]}',
    "half a pair": b'{"to":"mailto:a@b","body":"\\ud800","headers":{"\\udfff":"\\ud800"}}',
    "half a pair in a name": b'{"folder":"/","names":["\\ud800"]}',
    "NUL": b'\x00{"to":"\\u0000","body":"\\u0000","headers":{},"folder":"/srv\\u0000","names":["\\u0000"]}',
    "NUL in a name": b'{"folder":"/srv/none","names":["\\u0000"]}',
    "not UTF-8": b"\xff\xfe\x80",
    "not UTF-8 in an object": b'{"to":"\xff","body":"\xff","headers":{"\xff":"\xff"}}',
    "not UTF-8 in a name": b'{"folder":"/\xff","names":["\xff"]}',
    "a text": b'"to body headers folder names"',
    "null": b"null",
    "wrong types": delivery(to=[], body={}, headers=[]),
    "deep target": b'{"to":' + b"[" * 900 + b"]" * 900 + b',"body":"","headers":{}}',
    "deep body": delivery(body="[" * DEEP),
    "deep event": delivery(body='{"data":{"text":' + "[" * 900 + "]" * 900 + "}}"),
    "body of many digits": delivery(body='{"data":{"job":' + DIGITS.decode() + "}}"),
    "body is no object": delivery(body="[]"),
    "data is no object": delivery(body='{"data":[]}'),
    "text with lines": delivery(body=json.dumps({"data": {"text": "a\r\nBcc: b\x00\x1b"}})),
    "header with a line": delivery(to="http://127.0.0.1:1/", headers={"a": "b\r\nc: d"}),
    "header of a number": delivery(to="http://127.0.0.1:1/", headers={"a": 1}),
    "bracket": delivery(to="mailto:a@["),
    "bracket of a URL": delivery(to="http://["),
    "empty label": delivery(to="http://a..b/"),
    "long label": delivery(to=f"http://{'a' * 64}/"),
    "port": delivery(to="http://127.0.0.1:65536/"),
    "no port": delivery(to="http://127.0.0.1:x/"),
    "half a pair in a host": delivery(to="http://\ud800/"),
    "URL with a bracket": b"http://[",
    "URL with an empty label": b"http://a..b/",
    "URL of a long label": b"http://" + b"a" * 64 + b"/",
    "record of odd columns": record({"path": b"\0\xff", "url": b"http://[", "self": b"1", "name": b"2"}),
    "record without a value": b'path="',
    "record of a long column": record({"url": b"http://127.0.0.1:1/", "path": b"/", "a": b"\xff" * 300_000}),
    "long": b"x" * MIB,
    "long path": b"/" * MIB,
    "long array": b"[" + b"[]," * (MIB // 3 - 2) + b"[]]",
    "quotes": b"'\"`$(`",
}  # fmt: skip

texts = st.text(st.characters(exclude_categories=[]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "to": values | texts.map("mailto:{}".format) | texts.map("http://127.0.0.1:1/{}".format),
        "body": values | values.map(json.dumps),
        "headers": values,
        "folder": values | st.just("/srv/none"),
        "names": values | st.lists(texts),
    },
)
columns = st.dictionaries(
    st.sampled_from(["path", "url", "method", "body", "type", "self", "a"]), st.binary(max_size=50)
)
plain = st.binary(max_size=200).map(lambda raw: raw.replace(b"\n", b" ").replace(b"http", b""))
lines = plain | (values | objects).map(lambda value: json.dumps(value).encode()) | columns.map(record)


def start(name: str) -> Agent:
    options, environment = OPTIONS[name]
    return bundled(name, *options, **environment)


@pytest.fixture(scope="module", params=OPTIONS)
def living(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with start(request.param) as agent:
        yield agent


def unexpected(said: list[bytes]) -> list[bytes]:
    return [line for line in said if line.startswith(b"WARNING not expected")]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_agent_answers_a_hostile_item_and_lives(living: Agent, line: bytes) -> None:
    assert unexpected(living.work(line)) == []
    assert living.process.poll() is None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=lines)
def test_agent_answers_any_item_and_lives(living: Agent, line: bytes) -> None:
    assert unexpected(living.work(line)) == []


@pytest.mark.parametrize("name", ["cleanup", "notify"])
@pytest.mark.parametrize("line", [b"[" * DEEP, DIGITS, b"[]", b"7"], ids=["deep", "digits", "array", "number"])
def test_item_that_is_no_order_fails_with_a_reason(name: str, line: bytes) -> None:
    with start(name) as agent:
        (said,) = agent.work(line)
        assert said.startswith(b"FAIL not a ")


SAVING = [("sha256", "path"), ("mimetype", "path"), ("license", "path")]


@pytest.mark.parametrize(("name", "column"), SAVING)
def test_file_agent_fails_an_item_too_long_to_be_saved_and_lives(name: str, column: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    line = record({column: bytes(tmp_path / "file"), "a": "ä".encode() * 300_000})
    with bundled(name, "--save", "save") as agent:
        (said,) = agent.work(line)
        assert said.startswith(b"FAIL! a line of 18")


MISTAKEN = """#!/usr/bin/env python3
import drover_agent

def work(item):
    if item.line == "memory":
        raise MemoryError
    return {"a": 1}[item.line]

drover_agent.work(work)
"""


@pytest.fixture
def mistaken(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "agent").write_text(MISTAKEN)
    (tmp_path / "agent").chmod(0o755)
    with Agent([tmp_path / "agent"], PYTHONPATH=str(LIBRARY)) as agent:
        assert agent.hear() == b"OK"
        yield agent


def test_mistake_of_an_agent_fails_the_item_and_is_shown_with_its_place(mistaken: Agent) -> None:
    assert mistaken.work(b"b") == [
        b"WARNING not expected: KeyError: 'b' (agent:7 < drover_agent.py:%d)" % place_of("            do(item)"),
        b"FAIL KeyError: 'b'",
    ]
    assert mistaken.work(b"a") == []


def place_of(line: str) -> int:
    return (LIBRARY / "drover_agent.py").read_text().split("\n").index(line) + 1


def test_agent_out_of_memory_ends(mistaken: Agent) -> None:
    mistaken.say(b"memory")
    assert mistaken.hear() == b""
    assert mistaken.end() == 1


@pytest.mark.parametrize(
    "options", [("--smtp", "localhost:65536"), ("--smtp", "localhost:0"), ("--smtp", "localhost"), ("--from", "a@[")]
)
def test_notify_refuses_options_that_no_mail_could_be_sent_with(options: tuple[str, str]) -> None:
    with Agent([LIBRARY.parent / "notify/drover-agent-notify", *options]) as agent:
        assert agent.hear() == b""
        assert agent.end() == 2
