"""What browsers are told when something is announced."""

import pytest

from scheduler.web.live_updates import EVERY, Listener, jobs_in


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
