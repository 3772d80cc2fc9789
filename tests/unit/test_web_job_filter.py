"""Claims about the filter of the list of jobs: what a link may say, and that an action finds what the list showed."""

from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import LARGEST_PK
from scheduler.web.job_filter import LENGTHS, LONGEST, SINCE, Filter, link, number, of_request, read

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
WORD = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(lambda text: text.strip())
WORDS = WORD.map(str.strip)
ALL = Filter(("queued", "failed"), "md5", "night", "alpha", "ann", 7, "1h", "no space")


@given(
    st.builds(
        Filter,
        st.sets(st.sampled_from(JOB_STATES)).map(lambda some: tuple(each for each in JOB_STATES if each in some)),
        *[st.none() | WORDS for _ in range(4)],
        group=st.none() | st.integers(1, LARGEST_PK),
        since=st.none() | st.sampled_from(sorted(SINCE)),
        text=st.none() | WORDS,
    )
)
def test_a_link_to_a_list_leads_to_the_same_filter(wanted: Filter) -> None:
    assert read(parse_qs(link(wanted).removeprefix("?"))) == wanted


def test_no_filter_needs_no_query() -> None:
    assert link(Filter()) == ""


@pytest.mark.parametrize(
    "query",
    [
        {"state": ["nosuch"]},
        {"since": ["2h"]},
        {"group": ["-1"]},
        {"group": ["1e3"]},
        {"group": [str(LARGEST_PK + 1)]},
        {"type": [" "]},
        {"type": []},
        {"text": ["\0"]},
        {"nosuch": ["1"]},
    ],
)
def test_what_cannot_be_a_filter_is_left_out(query: dict[str, list[str]]) -> None:
    assert read(query) == Filter()


def test_a_value_is_cut_and_the_last_of_several_holds() -> None:
    assert read({"type": ["a", f" {'b' * (LONGEST + 1)}"]}).type == "b" * LONGEST


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("12", 12), (str(LARGEST_PK), LARGEST_PK), ("9" * 19, None)])
def test_the_number_of_a_row_fits_into_its_column(text: str, value: int | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", " 1", "+1", "1.0", "\u0663", "\u00b2", "0" * 20])
def test_other_digits_are_no_number(text: str) -> None:
    assert number(text) is None


def test_a_command_finds_the_jobs_that_the_list_shows() -> None:
    assert ALL.of_command({"queued", "failed"}, NOW) == {
        "type": "md5", "queue": "night", "host": "alpha", "by": "ann", "group": 7, "text": "no space",
        "queued_since": "2026-11-29T11:00:00+00:00", "state": ["failed", "queued"], "hidden": False,
    }  # fmt: skip


def test_a_command_about_all_jobs_names_their_states_alone() -> None:
    assert Filter().of_command({"failed"}, NOW) == {"state": ["failed"], "hidden": False}


def test_the_list_asks_for_what_the_filter_says() -> None:
    assert ALL.wanted(12) == {
        "types": ["md5"], "queues": ["night"], "submitters": ["ann"], "groups": [7], "hosts": ["alpha"],
        "states": ["queued", "failed"], "text": "no space", "before": 12, "queued_within": "1 hour",
        "with_ended_commands": True,
    }  # fmt: skip
    assert Filter().wanted(None) == {
        "types": None, "queues": None, "submitters": None, "groups": None, "hosts": None, "states": list(JOB_STATES),
        "text": None, "before": None, "queued_within": None, "with_ended_commands": False,
    }  # fmt: skip


def test_jobs_are_counted_by_the_same_filter() -> None:
    assert ALL.parameters() == {
        "states": ["queued", "failed"], "type": "md5", "queue": "night", "host": "alpha", "by": "ann", "group": 7,
        "since": "1 hour", "text": "no space",
    }  # fmt: skip
    assert {*Filter().parameters().values()} == {None}


@pytest.mark.parametrize(("wanted", "is_of_kinds"), [
    (Filter(("queued",), "md5", "night", "alpha", "ann"), True), (Filter(group=1), False), (Filter(since="1h"), False),
    (Filter(text="x"), False),
])  # fmt: skip
def test_a_group_a_time_or_a_text_cannot_be_counted_by_kind(wanted: Filter, is_of_kinds: bool) -> None:
    assert wanted.is_of_kinds() is is_of_kinds


def test_words_of_a_filter() -> None:
    assert Filter(("queued", "failed"), "md5").words() == "state queued or failed; type md5"
    assert Filter().words() == "all jobs"


def test_lengths_of_time_are_those_of_the_database() -> None:
    hours = {"minutes": 1 / 60, "hour": 1, "day": 24, "days": 24}
    said = {name: float(text.split()[0]) * hours[text.split()[1]] for name, text in SINCE.items()}
    assert {name: length.total_seconds() / 3600 for name, length in LENGTHS.items()} == said


def test_all_values_of_a_name_are_read() -> None:
    assert of_request(QueryParams("state=a&state=b&type=c")) == {"state": ["a", "b"], "type": ["c"]}
