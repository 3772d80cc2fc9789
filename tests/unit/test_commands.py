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
from scheduler.model.verbs import (
    ANY,
    EVERY,
    GROUP,
    HOST,
    JOB,
    TYPE,
    VERBS,
    CommandError,
    about,
    filter_of,
    is_about_all,
    parse,
    quoted,
)
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
        ('add-queue "late night" 1', {"queue": "late night", "concurrency": 1}),
        ("add-queue one 2147483647", {"queue": "one", "concurrency": 2**31 - 1}),
        ("set-queue-priority one -2147483647", {"queue": "one", "priority": 1 - 2**31}),
        ("set-queue-priority one 2147483647", {"queue": "one", "priority": 2**31 - 1}),
        ("set-max-length one 0", {"queue": "one", "length": 0}),
        ("host-max alpha 0 0", {"name": "alpha", "max": 0, "urgent": 0}),
        ("verbose 0", {"level": 0}),
        ("killjob 1", {"job": 1}),
        ("priority 1 " + "z" * 16, {"job": 1, "letters": "z" * 16}),
        ("flush 0", {"days": 0, "failed": None}),
        ("flush 36500 failed", {"days": 36500, "failed": "failed"}),
        ("unblock 5", {"job": 5}),
        ("unblock disk", {"job": "disk"}),
        ("unblock all", {"job": "all"}),
        ("status", {"group": None}),
        ("host-filter alpha types=^a queues=one,two", {"name": "alpha", "filter": ("types=^a", "queues=one,two")}),
        ('host-filter alpha "queues=late night"', {"name": "alpha", "filter": ("queues=late night",)}),
        ("cancel 1 " + "x" * 991, {"job": 1, "text": "x" * 991}),
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
        ("flush -1", "a number of days, at most 36500, is required (got '-1'): flush"),
        ("flush 36501", "a number of days, at most 36500, is required (got '36501')"),
        ("flush 1 done", "only `failed` may follow (got 'done'): flush DAYS [failed]"),
        ("host-max alpha -2", "a maximum is a number, -1 for none (got '-2')"),
        ("host-max alpha 1 -1", "the number for urgent jobs is at least 0 (got '-1')"),
        ("set-queue-priority one -2147483648", "a priority is a number"),
        ("priority 1 " + "z" * 17, "a priority has letters and digits, 16 at most"),
        ("priority 1 a-b", "a priority has letters and digits, 16 at most (got 'a-b')"),
        ("release -5", "a job number is required (got '-5'): release JOB|NAME"),
        ("schedule-run a;b", "a name has letters"),
        ("host-filter alpha types", "types=, queues= or priorities= is required (got 'types')"),
        ("host-filter alpha hosts=a", "types=, queues= or priorities= is required (got 'hosts=a')"),
        ("host-filter alpha types=(", "types: is not a regular expression (got '(')"),
        ("host-filter alpha queues=a,b;c", "queues: the name of a queue has"),
        ("reload now", "too many words: reload"),
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


@pytest.mark.parametrize("name", ["one", "late night", "l\u00e4te", "a/b"])
def test_the_name_of_a_queue_is_one_word_when_quoted(name: str) -> None:
    assert parse(f"add-queue {quoted(name)} 1").values["queue"] == name


@pytest.mark.parametrize(
    ("verb", "every"), [("run", 1), ("signal", 2), ("cancel", 0), ("hold", 0), ("pause", 0), ("release", 0)]
)
def test_which_words_of_a_verb_name_jobs(verb: str, every: int) -> None:
    assert VERBS[verb].job_every == every


def test_only_verbs_that_take_a_filter_are_about_all_jobs() -> None:
    said = {name: is_about_all(name, ["all"]) for name in VERBS}
    assert [name for name, is_about in said.items() if is_about] == [
        "release", "hold", "ice", "retry", "priority", "move", "cancel", "killjob",
    ]  # fmt: skip
    assert not is_about_all("cancel", ["1", "all"])
    assert not is_about_all("cancel", [])


def test_a_filter_of_a_host_is_read_by_its_key() -> None:
    assert filter_of("queues=one,,two,") == ("queues", ("one", "two"))
    assert filter_of("types=a=b") == ("types", "a=b")
    assert filter_of("priorities=") == ("priorities", "")
