"""Claims about live updates: which browsers are told of what, and how many may wait."""

from contextlib import ExitStack

import pytest

from scheduler.web.live_updates import (
    EVERY,
    MOST_BROWSERS,
    MOST_OF_STRANGERS,
    MOST_OF_VISITOR,
    OF_ROLE,
    Changes,
    Listener,
    jobs_in,
)  # fmt: skip


@pytest.mark.parametrize(
    ("channel", "payload", "jobs"),
    [
        (
            "drover_event",
            '[{"jq_pk":12,"state":"done","job_pk":null},{"jq_pk":13,"state":"done","job_pk":null}]',
            {12, 13},
        ),
        ("drover_event", '[{"jq_pk" : 12, "state" : "queued", "job_pk" : null}]', {12}),
        ("drover_output", "[4, 5]", {4, 5}),
        ("drover_queue", "", set()),
        ("drover_event", "", set()),
        ("drover_event", "12\x1b", set()),
        ("drover_event", "[" + "9" * 7000, {int("9" * 19)}),  # any role may send one
    ],
)
def test_a_notification_names_the_jobs_that_it_is_about(channel: str, payload: str, jobs: set[int]) -> None:
    assert jobs_in(channel, payload) == jobs


def test_page_of_a_job_is_drawn_anew_for_that_job_alone() -> None:
    listener = Listener(12)
    listener.tell(frozenset({13}))
    listener.tell(frozenset())
    assert not listener.changed.is_set()
    listener.tell(frozenset({12, 13}))
    assert listener.changed.is_set()


def test_a_list_is_drawn_anew_for_every_change() -> None:
    listener = Listener(None)
    listener.tell(frozenset())
    assert listener.changed.is_set()


def test_all_pages_are_drawn_anew_after_a_lost_connection() -> None:
    listener = Listener(12)
    listener.tell(EVERY)
    assert listener.changed.is_set()


def test_strangers_who_say_many_addresses_leave_places_to_people_who_have_signed_in() -> None:
    told = Changes("")
    with ExitStack() as taken:
        for number in range(MOST_OF_STRANGERS):
            taken.enter_context(told.place(f"10.0.0.{number}"))
        assert not told.has_place("10.0.1.1")
        assert told.has_place("role boss")


def test_a_visitor_has_some_places_and_all_have_some() -> None:
    told = Changes("")
    with ExitStack() as taken:
        for _ in range(MOST_OF_VISITOR):
            assert told.has_place(f"{OF_ROLE}ann")
            taken.enter_context(told.place(f"{OF_ROLE}ann"))
        assert not told.has_place(f"{OF_ROLE}ann")
        for number in range(MOST_BROWSERS - MOST_OF_VISITOR):
            assert told.has_place(f"{OF_ROLE}{number}")
            taken.enter_context(told.place(f"{OF_ROLE}{number}"))
        assert not told.has_place(f"{OF_ROLE}bob")
    assert told.has_place(f"{OF_ROLE}ann")
    assert not told._places
