"""Claims about values of options and arguments: what is read, and what is refused."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from math import inf

import pytest

from scheduler.cli.arguments import (
    COUNT,
    POSITIVE,
    argument,
    filters_are_given,
    job_number_or_name,
    number,
    seconds,
    verb_arguments,
)
from scheduler.model.verbs import LARGEST_PK


@pytest.mark.parametrize("text", ["3", "7", "007"])
def test_a_number_may_be_its_least_and_its_most(text: str) -> None:
    assert number(3, 7)(text) == int(text)


@pytest.mark.parametrize("text", ["2", "8", "", "-3", "+3", "3.0", " 3", "x"])
def test_other_numbers_are_refused_with_what_was_wanted(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"must be a number from 3 to 7 .got {text!r}".replace("+", r"\+")):
        number(3, 7)(text)


def test_a_count_may_be_none_and_a_job_may_not() -> None:
    assert (COUNT("0"), POSITIVE("1"), POSITIVE(str(LARGEST_PK))) == (0, 1, LARGEST_PK)
    for text in ("0", str(LARGEST_PK + 1)):
        with pytest.raises(ArgumentTypeError, match="must be a number from 1 on"):
            POSITIVE(text)


@pytest.mark.parametrize(("text", "job"), [("7", 7), ("noop.nightly", "noop.nightly"), ("1.5", "1.5")])
def test_a_job_has_a_number_or_a_name(text: str, job: int | str) -> None:
    assert job_number_or_name(text) == job


@pytest.mark.parametrize("text", ["0", "-1", "noop", "a.b.c", "a .b", ".a", "a."])
def test_other_words_are_no_job(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="the number of a job, or its name"):
        job_number_or_name(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("0.5", 0.5), ("1e3", 1000.0), ("inf", inf)])
def test_seconds_may_have_a_fraction_or_no_end(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["-0.1", "nan", "", "5s", "-inf"])
def test_other_texts_are_no_seconds(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be seconds"):
        seconds(text)


def parsed(form: str, *words: str, **settings: object) -> Namespace:
    parser = ArgumentParser()
    argument(form, "help", **settings)(parser)
    return parser.parse_args(words)


def test_a_form_declares_a_flag_an_option_or_an_argument() -> None:
    assert (parsed("--all").all, parsed("--all", "--all").all) == (False, True)
    assert parsed("-q,--queue QUEUE", "-q", "night").queue == "night"
    assert parsed("jobs JOB", "7", nargs="+").jobs == ["7"]


def test_help_names_the_values_to_choose_from() -> None:
    parser = ArgumentParser()
    argument("--order WORD", "the order", choices=("up", "down"))(parser)
    assert "WORD" in parser.format_help()
    assert "the order: up, down" in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("usage", "words", "values"),
    [
        ("QUEUE CONCURRENCY", ["a", "1"], {"queue": "a", "concurrency": "1"}),
        ("NAME MAX [URGENT]", ["a", "1"], {"name": "a", "max": "1", "urgent": None}),
        ("NAME FILTER...", ["a", "b", "c"], {"name": "a", "filter": ["b", "c"]}),
        ("QUEUE [LIMIT...]", ["a"], {"queue": "a", "limit": []}),
        ("[QUEUE...]", [], {"queues": []}),
        ("JOB [TEXT...]", ["7", "--reason", "x"], {"jobs": [7], "reason": "x"}),
        ("JOB SIGNAL [MORE...]", ["7", "TERM"], {"signals": ["7", "TERM"]}),
        ("DAYS [failed]", ["7", "--failed"], {"days": 7, "failed": "failed"}),
        ("", [], {}),
    ],
)
def test_words_of_a_verb_are_arguments(usage: str, words: list[str], values: dict[str, object]) -> None:
    parser = ArgumentParser()
    for _, declare in verb_arguments(usage):
        declare(parser)
    assert vars(parser.parse_args(words)) == values
    assert {name for name, _ in verb_arguments(usage)} == values.keys()


@pytest.mark.parametrize(("usage", "words"), [("NAME FILTER...", ["a"]), ("JOB", []), ("QUEUE CONCURRENCY", ["a"])])
def test_words_that_a_verb_needs_are_required(usage: str, words: list[str]) -> None:
    parser = ArgumentParser()
    for _, declare in verb_arguments(usage):
        declare(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)


@pytest.mark.parametrize(
    "name", ["types", "queues", "submitters", "groups", "hosts", "ran_on", "codes", "since", "until", "states"]
)
def test_any_filter_chooses_jobs(name: str) -> None:
    assert filters_are_given(Namespace(**{name: ["a"]}))
    assert not filters_are_given(Namespace(**{name: None}, others=["a"]))
