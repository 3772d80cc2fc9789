"""The words of command rows: understood, or refused with what is wrong and how it is said right."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.daemon.command_actions import ACTIONS
from scheduler.daemon.command_rows import BULK
from scheduler.drivers.statements import load
from scheduler.model.host_filters import QUEUE_RULE
from scheduler.model.verbs import ANY, EVERY, GROUP, HOST, JOB, TYPE, VERBS, CommandError, about, parse
from scheduler.package_data import schema_dir

MANUAL = (Path(__file__).parents[2] / "man" / "drover-jobqueue.7").read_text()
EXAMPLES = {
    "JOB": "17",
    "SIGNAL": "TERM",
    "NAME": "alpha",
    "SCHEDULE": "nightly",
    "MAX": "4",
    "[URGENT]": "1",
    "LEVEL": "2",
    "[now]": "now",
} | {
    "[GROUP]": "default",
    "JOB|NAME": "noop.nightly",
    "JOB|CONDITION": "licence",
    "JOB...": "17 18",
    "[QUEUE...]": "one two",
    "QUEUE": "one",
    "LENGTH": "5",
    "CONCURRENCY": "3",
    "PRIORITY": "-1",
    "LETTERS": "a1",
    "[MORE...]": "18 KILL",
    "DAYS": "5",
    "[failed]": "failed",
    "FILTER...": "types=^a queues= priorities=[a-f]",
    "[EXPRESSION...]": "urgent",
    "[LIMIT...]": "rate=1",
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_read_as_its_usage_says_and_is_in_the_manual(verb: str) -> None:
    words = [EXAMPLES.get(word, "some text") for word in VERBS[verb].usage.split()]
    order = parse(" ".join([verb, *words]))
    assert order.verb == verb
    assert None not in order.values.values()
    assert re.search(rf"^\.It .*\bLi {re.escape(verb)}( |$)", MANUAL, re.MULTILINE)


def test_every_verb_says_what_it_applies_to() -> None:
    assert set(about(EVERY, JOB, HOST, TYPE, GROUP, ANY)) == set(VERBS)
    assert about(HOST) == ["host-enable", "host-disable", "host-max", "host-filter"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cancel 5", {"job": 5, "text": None}),
        ("  cancel\t5  because   of it ", {"job": 5, "text": "because of it"}),
        ("shutdown", {"now": None}),
        ("host-max alpha -1", {"name": "alpha", "max": -1, "urgent": None}),
        ("killjob 9223372036854775807", {"job": 2**63 - 1}),
        ("release 5", {"job": 5}),
        ("release noop.nightly", {"job": "noop.nightly"}),
        ("run 5 6 5", {"job": (5, 6, 5)}),
        ("cancel all because of it", {"job": "all", "text": "because of it"}),
        ("move all night", {"job": "all", "queue": "night"}),
        ("pause", {"queue": None}),
        ("continue one two", {"queue": ("one", "two")}),
        ("signal 5 TERM 6 9", {"job": 5, "signal": "TERM", "more": ("6", "9")}),
        ("set-queue-priority one -7", {"queue": "one", "priority": -7}),
        ("set-filter one", {"queue": "one", "expression": None}),
        (" set-filter\tone  data.a =  'b  \n c'\n", {"queue": "one", "expression": "data.a =  'b  \n c'"}),
        ("set-rate one", {"queue": "one", "limit": None}),
        ("set-rate one rate=2 rate_interval=0.5", {"queue": "one", "limit": ("rate=2", "rate_interval=0.5")}),
    ],
)
def test_arguments_of_a_verb_are_parsed(text: str, values: dict[str, object]) -> None:
    assert parse(text).values == values


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "an empty command"),
        (" \n ", "an empty command"),
        ("Shutdown", "unknown command 'Shutdown': there are shutdown, reload"),
        ("killjob", "too few words: killjob JOB"),
        ("reset now", "too many words: reset"),
        ("run", "too few words: run JOB..."),
        ("run 5 x", "a job number is required (got 'x'): run JOB..."),
        ("signal all TERM", "a job number is required (got 'all'): signal JOB SIGNAL"),
        ("move all", "too few words: move JOB QUEUE"),
        ("release 0", "a job number is required (got '0'): release JOB|NAME"),
        ("add-queue one 0", "a concurrency is a number from 1 (got '0'): add-queue QUEUE CONCURRENCY"),
        ("add-queue one -1", "a concurrency is a number from 1 (got '-1')"),
        ("set-concurrency one many", "a concurrency is a number from 1 (got 'many')"),
        ("add-queue a;b 1", f"{QUEUE_RULE} (got 'a;b'): add-queue QUEUE CONCURRENCY"),
        ("pause " + "x" * 65, f"{QUEUE_RULE} (got '{'x' * 65}'): pause [QUEUE...]"),
        ("killjob 0", "a job number is required (got '0'): killjob JOB"),
        ("killjob 9223372036854775808", "a job number is required"),
        ("killjob ١٢", "a job number is required"),
        ("verbose -1", "a level is a number from 0 (got '-1'): verbose LEVEL"),
        ("host-max alpha many", "a maximum is a number, -1 for none (got 'many')"),
        ("host-max alpha 2147483648", "a maximum is a number"),
        ("set-filter one 1/0 = 1", "the filter, character 1: "),
        ("set-filter one type =", "the filter, character "),
        ("set-filter one pg_sleep(9) is null", "the filter, character 1: functions are not allowed; write comparisons"),
        ("set-rate one 5", "rate=, rate_each=, rate_by=, rate_interval= are the limits of a rate (got '5'): set-rate"),
        ("set-max-length one -1", "a length is a number, 0 for any (got '-1'): set-max-length QUEUE LENGTH"),
        ("set-rate one rate=-1", "rate must be from 0 (no limit) to 10000 (got '-1'): set-rate QUEUE [LIMIT...]"),
        ("set-rate one rate=10001", "rate must be from 0 (no limit) to 10000 (got '10001')"),
        ("set-rate one rate=1 rate=2", "rate is given twice"),
        ("set-rate one rate_each=1", "rate_by and rate_each belong together: give both"),
        ("set-rate one rate_each=1 rate_by=x", "rate_by must be submitter, host, type or data.NAME (got 'x')"),
        ("set-rate one rate=1 rate_interval=0", "rate_interval must be more than 0 and at most 3.1536e+07 seconds"),
        ("set-rate one rate=1 rate_interval=nan", "rate_interval must be more than 0"),
        ("shutdown later", "only `now` may follow (got 'later'): shutdown [now]"),
        ("cancel 1 " + "x" * 1000, "a command has at most 1000 characters"),
    ],
)
def test_malformed_command_is_refused_with_the_reason_j87_j95(text: str, complaint: str) -> None:
    with pytest.raises(CommandError, match=f"^{re.escape(complaint)}"):
        parse(text)


@given(st.text() | st.lists(st.sampled_from([*VERBS, "1", "x", "-1", "now"])).map(" ".join))
def test_any_text_is_a_command_or_refused_j95(text: str) -> None:
    try:
        verb = parse(text).verb
    except CommandError:
        return
    assert verb in VERBS


def test_every_verb_is_carried_out_by_an_action_or_a_query() -> None:
    queries = load((schema_dir() / "queries.sql").read_text())
    names = {verb.carried_out_by for verb in VERBS.values()}
    assert names <= ACTIONS.keys() | queries.keys()
    assert names | {BULK} >= ACTIONS.keys()
