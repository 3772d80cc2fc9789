"""What drover.subscribe takes as a target, the agent for deliveries can send to, and what it refuses harms no agent.

The grid has each part of a target in many forms, written in every combination; hypothesis writes the others.
"""

import json
from email import message_from_bytes, policy
from itertools import product
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent_tools import bundled, module
from tests.connection_tools import fetch
from tests.event_tools import HOOK, subscribe

sending = module("notify/sending.py")

LONG = "x" * 63
NAMES = [
    "a", "a.b", "a+b", "o'neil", "{a}", "=?utf-8?q?a?=", "a=b", "a%40b", "a..b", ".a", "a.", "", "a b", '"a"', "a(b)",
    "(a)", "<a>", "a;b", "[a]", "a\\b", "a\tb", "ä", "a" * 64, "a" * 65, "a:b", "a,b", "\x7f", "a\u2028b",
    "a\r\nBcc: b", "\x01",
]  # fmt: skip
HOSTS = [
    "b", "example.org", "example.org.", "b..c", ".b", "b.", "-b", "b-", "b_c", "xn--bcher-kva.example",
    "bücher.example", "[", "]", "[]", "[::1]", "[::1", "::1]", "[1.2.3.4]", "[x]", "[v1.x]",
    "[fe80::1%25eth0]", "[1::2::3]", "[:::]",
    "[::ffff:1.2.3.4]",
    "1.2.3.4", "0x7f.1", "2130706433", "1.2.3.4.5", "999.1.1.1", LONG, LONG + "x",
    ".".join([LONG] * 3), ".".join([LONG] * 5),
    "", " ", "b c", "(b)", "b(c)", '"b"', "b;c", "b,c", "b<c>", "b\\c", "b\tc", "b\nc", "b@c", "%62", "b%",
    "\u2100.example", "b\x7f",
    "\uff11.2.3.4", "b#c", "b?c", "b/c", "*", "b&c", "!", "b=c", "b'c", "b`c", "b|c", "b{c", "b~c",
    "b\x1fc",
]  # fmt: skip
PORTS = [
    "",
    ":",
    ":0",
    ":1",
    ":080",
    ":65535",
    ":65536",
    ":99999",
    ":-1",
    ":+1",
    ":1_0",
    ":x",
    ":1:2",
    ":\u0661",
    ":" + "9" * 5000,
]
PATHS = [
    "",
    "/",
    "/a?b=c#d",
    "?a",
    "#a",
    "/[",
    "/]",
    "/a b",
    "/ä",
    "/%20",
    "/\\",
    "//",
    "/@b",
    "/a\r\nX: y",
    "/" + "x" * 1900,
    "x",
]
GRID = [
    *(f"mailto:{name}@{host}" for name, host in product(NAMES, HOSTS)),
    *(f"{scheme}://{host}{port}/" for scheme, host, port in product(("http", "https"), HOSTS, PORTS)),
    *(f"http://{host}{path}" for host, path in product(HOSTS, PATHS)),
    *("mailto:", "mailto:a", "http:", "https://", "HTTP://a/", "", "ftp://a/", "http://a:b@c/", "x" * 3000),
]  # fmt: skip

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
odd = st.sampled_from(list("[]@:./?#%-_<>()\"'\\,; =\t\r\n~!")) | characters
texts = st.text(odd, max_size=30)
targets = st.one_of(
    st.builds("mailto:{}@{}".format, texts, texts),
    st.builds("{}://{}{}{}".format, st.sampled_from(["http", "https"]), texts, st.sampled_from(PORTS[:9]), texts),
    st.builds("http://[{}]/".format, st.text("0123456789abcdef:.%", max_size=40)),
    st.builds("mailto:{}@{}".format, st.text("ab!#$%&'*+/=^_`{|}~.-", max_size=70), st.text("ab0.-", max_size=270)),
    st.builds("http://{}{}".format, st.text("ab0._-", max_size=270), texts),
    texts,
)


def mistakes(database: str, targets: list[str]) -> dict[str, str | None]:
    """Return what the database says of each target; None: it is taken."""
    query = "select target, drover.target_mistake(target) from unnest(%s::text[]) as target"
    return dict(fetch(database, query, targets))


def sent(target: str) -> Any:
    """Return what the agent makes of a target before it connects. Raises ValueError."""
    if target.startswith("mailto:"):
        return sending.message("drover", target.removeprefix("mailto:"), {})
    hook = sending.webhook(target)
    return sending.request(hook.path, hook.netloc, b"{}", {})


def can_be_sent(target: str) -> bool:
    """Return whether the agent takes it; anything but ValueError would be a mistake of the agent."""
    try:
        sent(target)
    except ValueError:
        return False
    return True


def test_target_that_the_database_takes_can_be_sent_to(database: str) -> None:
    found = mistakes(database, GRID)
    taken = [target for target in GRID if found[target] is None]
    assert len(taken) > 200
    assert [target for target in taken if not can_be_sent(target)] == []


def test_target_that_the_database_refuses_harms_no_agent(database: str) -> None:
    found = mistakes(database, GRID)
    refused = [target for target in GRID if found[target] is not None]
    assert len(refused) > 2000
    assert all(can_be_sent(target) in (True, False) for target in refused)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(targets, min_size=1, max_size=50))
def test_any_target_that_the_database_takes_can_be_sent_to(database: str, written: list[str]) -> None:
    found = mistakes(database, written)
    assert [target for target in written if found[target] is None and not can_be_sent(target)] == []
    assert all(can_be_sent(target) in (True, False) for target in written)


def test_mail_goes_to_the_address_of_the_target_and_to_no_other(database: str) -> None:
    taken = [target for target, why in mistakes(database, GRID).items() if why is None and target.startswith("mailto:")]
    assert len(taken) > 20
    for target in taken:
        read = message_from_bytes(sent(target).as_bytes(), policy=policy.SMTP)
        assert [each.addr_spec for each in read["To"].addresses] == [target.removeprefix("mailto:")]
        assert [name for name in read if name.lower() in ("cc", "bcc")] == []


def test_agent_answers_each_target_of_the_grid_and_lives() -> None:
    lines = [json.dumps({"to": each, "body": "{}", "headers": {}}).encode() for each in GRID if each[:7] == "mailto:"]
    with bundled("notify", "--smtp", "127.0.0.1:1") as agent:  # nothing listens there
        said = [agent.work(line) for line in lines]
    assert [line[0][:5] for line in said] == [b"FAIL "] * len(lines)
    assert [line for line in said if len(line) != 1] == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("mailto:a@[", "HOST has labels of 1 to 63 letters, digits and hyphens"),
        ("mailto:a..b@c", "NAME has 1 to 64 letters, digits and"),
        ("mailto:" + "a" * 65 + "@c", "NAME has 1 to 64 letters"),
        ("mailto:ä@c", "what is not ASCII are written as %20, a host as xn--"),
        ("http://[x]/", "behind // are a host, an IPv4 address, or an IPv6 address in brackets"),
        ("http://[1::2::3]/", "in the brackets is no IPv6 address"),
        ("http://a..b/", "a host has labels of 1 to 63"),
        ("http://a:65536/", "a port is a number from 1 to 65535"),
        ("http://a/ü", "what is not ASCII"),
    ],
)
def test_target_that_cannot_be_sent_to_is_refused_with_the_reason(database: str, target: str, why: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        subscribe(database, targets=[HOOK, target])
    assert f"a target is http://... or https://... without a password, or mailto:NAME@HOST (got '{target}'): " in str(
        refused.value
    )
    assert why in str(refused.value)


def test_subscription_to_an_old_target_can_be_disabled_and_enabled(database: str) -> None:
    number = subscribe(database, targets=[HOOK])
    fetch(database, "update drover.subscription set sub_targets = '{mailto:a@[}'")
    for is_on in (False, True):
        assert fetch(database, "select drover.subscription_enable(%s, %s)", number, is_on) == [(True,)]
