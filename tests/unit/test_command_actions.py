"""Each verb while its statements fail or find rows locked, and when it does not fit what it names."""

from typing import Any, NamedTuple

import pytest

from scheduler.daemon.command_rows import CommandRow
from tests.core_tools import claim, make_core, saved, settle, turn
from tests.fakes import LOST, Answer, Site, refused

FAILURES = [refused(), refused("55P03"), LOST]


class Verb(NamedTuple):
    """A command about a job in a state, its statement with the row that it returns, and how the command ends."""

    text: str
    state: str | None
    query: str
    row: tuple[Any, ...]
    end: str
    ok: bool = True


VERBS = (
    Verb("hold 1", "queued", "hold_job", (1, True), "job 1: held"),
    Verb("ice 1", "held", "ice_job", (1, True), "job 1: on ice"),
    Verb("cancel 1", "blocked", "cancel_job", (1, True), "job 1: cancelled"),
    Verb("retry 1", "failed", "retry_job", (None,), "job 1: queued again"),
    Verb("retry 1", "failed", "retry_job", ("its queue is gone",), "job 1: its queue is gone", False),
    Verb("priority 1 a", "held", "set_priority", (1,), "job 1: priority a"),
    Verb("move 1 one", "queued", "move_job", (True, 1), "job 1: in queue one"),
    Verb("move 1 one", "queued", "move_job", (False, None), "no queue one", False),
    Verb("release 1", "held", "release_job", (3, False), "job 1: released, and 2 that wait for it"),
    Verb("release 1", "held", "release_job", (0, True), "job 1 is manual: run 1", False),
    Verb("unblock 1", "blocked", "unblock", (1, 1), "job 1: not blocked any more"),
    Verb("unblock 1", "queued", "unblock", (0, 0), "job 1 is not blocked: it is queued", False),
    Verb("run 1", None, "begin_run", (0, '{"1": "no job 1"}', None), "no job 1", False),
    Verb("host-disable alpha", None, "set_host", ("disabled", None), "host alpha: disabled"),
    Verb("host-disable alpha", None, "set_host", (None, "one"), "no such queue: one", False),
    Verb("host-max beta 4", None, "set_host", (None, None), "no host beta", False),
    Verb("agent-disable sha", None, "set_type", ("disabled",), "agent type sha: disabled"),
    Verb("agent-enable x", None, "set_type", (None,), "no agent type x", False),
    Verb("pause one", None, "pause_queues", ("", "one", ""), "paused: one"),
    Verb("continue one", None, "pause_queues", ("one", "", ""), "no queue one", False),
    Verb("add-queue one 3", None, "add_queue", (True,), "queue one: concurrency 3"),
    Verb("add-queue one 3", None, "add_queue", (False,), "there is a queue one already", False),
    Verb("remove-queue one", None, "remove_queue", ("used",), "queue one is not empty", False),
    Verb("remove-queue one", None, "remove_queue", ("removed",), "queue one: removed"),
    Verb("set-concurrency one 3", None, "set_queue", (True, "done"), "done"),
    Verb("set-filter one", None, "set_filter", (True, "said"), "said"),
    Verb("set-rate one", None, "set_rate", (False,), "no queue one", False),
    Verb("schedule-enable one", None, "set_schedule", (False,), "no schedule one", False),
    Verb("schedule-disable one", None, "set_schedule", (True,), "schedule one: disabled"),
    Verb("schedule-run one", None, "run_schedule", (True, "started"), "started"),
    Verb("flush 9", None, "flush", (5, None, 0, 0, "", None), "removed 5 jobs, 0 job groups, 0 log lines about no job"),
    Verb("flush 9", None, "flush", (1, None, 0, 2, "7, 8", "x"), "removed 1 jobs, 0 job groups, 0 log lines about no "
         "job; the database refuses to remove 2 jobs, such as 7, 8: x"),
    Verb("step-down", None, "may_step_down", ("alone", "a.1"), "no other scheduler of the group stands by", False),
    Verb("step-down", None, "may_step_down", ("past", "a.1"), "served by a.1"),
    Verb("cancel all", None, "change_jobs", (True, True, 3, 0, {}, "1,2", "", 0, {}, None), "cancel: 3 jobs"),
    Verb("cancel all", None, "change_jobs", (False, False, 0, 0, {}, None, "", 0, {}, "no filter"), "no filter", False),
)  # fmt: skip
ONCE = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb.text}: {verb.end}")


class Given:
    """A command that was given, and how its row ends; `row` is what `read_commands` returns of it."""

    def __init__(self, site: Site, text: str, state: str | None, **row: Any) -> None:
        self.site, self.ends = site, []  # type: ignore[var-annotated]
        words = text.split()
        job = int(words[1]) if state is not None else None
        cells = CommandRow(100, text, job, state, "by ann", False, False, False, False)._replace(**row)[:-1]
        site.answers["read_commands"] = lambda values: [] if self.ends or 100 in values["passed"] else [cells]
        site.answers["begin_command"] = lambda _: [(False, None)]
        site.answers["end_command"] = self._end
        site.tasks.read_commands_in(0.0)

    def _end(self, values: dict[str, Any]) -> Answer:
        self.ends.append((values["text"], values["ok"]))
        return [(100, False)]


def carried_out(text: str, state: str | None, **row: Any) -> tuple[str, bool]:
    """Give a command that needs no answer; return how it ends."""
    given = Given(Site(make_core()), text, state, **row)
    given.site.run(5.0)
    (end,) = given.ends
    return end  # type: ignore[no-any-return]


@ONCE
def test_what_is_locked_is_tried_again_until_the_command_can_be_carried_out(verb: Verb) -> None:
    site = Site(make_core())
    given = Given(site, verb.text, verb.state)
    site.answer(verb.query, [], [], [verb.row])
    site.run(5.0)
    assert given.ends == [(verb.end, verb.ok)]
    assert len(site.sent(verb.query)) == 3


@pytest.mark.parametrize("answer", FAILURES)
@ONCE
def test_a_command_whose_statement_fails_is_carried_out_a_few_seconds_later(verb: Verb, answer: Exception) -> None:
    site = Site(make_core())
    given = Given(site, verb.text, verb.state)
    site.answer(verb.query, answer, [verb.row])
    site.run(10.0)
    assert given.ends == [(verb.end, verb.ok)]


@pytest.mark.parametrize(
    ("text", "state", "end"),
    [
        ("hold 1", "running", "job 1 is in hand: it is running"),
        ("hold 1", "done", "job 1 has ended: it is done"),
        ("ice 1", "done", "job 1 is neither held nor queued: it is done"),
        ("cancel 1", "done", "job 1 has ended: it is done"),
        ("retry 1", "done", "job 1 has not failed: it is done; drover resubmit queues it as another job"),
        ("retry 1", "queued", "job 1 has not failed: it is queued"),
        ("killjob 1", "queued", "job 1 is not being worked: it is queued"),
        ("priority 1 a", "running", "job 1 is in hand: it is running"),
        ("move 1 one", "failed", "job 1 has ended: it is failed"),
        ("signal 1 TERM", "queued", "job 1 is not running: it is queued"),
        ("signal 1 TERM", "running", "no agent works on job 1 here now"),
        ("signal 1 NONE", "running", "no signal 'NONE': a name such as TERM, or a number, is required"),
        ("host-filter alpha types=none", None, "no host would take agents of type sha"),
    ],
)
def test_a_command_that_does_not_fit_what_it_names_says_why(text: str, state: str | None, end: str) -> None:
    assert carried_out(text, state) == (end, False)


@pytest.mark.parametrize(
    ("text", "state", "end"),
    [
        ("ice 1", "skipped", "job 1: on ice"),
        ("cancel 1", "cancelled", "job 1: cancelled"),
        ("retry 1", "queued", "job 1: queued again"),
        ("killjob 1", "failed", "job 1: killed"),
        ("add-queue one 3", None, "queue one: concurrency 3"),
        ("remove-queue one", None, "queue one: removed"),
        ("schedule-run one", None, "schedule one: started"),
    ],
)
def test_a_command_that_took_effect_before_its_row_ended_has_no_second_effect(
    text: str, state: str | None, end: str
) -> None:
    assert carried_out(text, state, took_effect=True) == (end, True)


def test_the_children_of_a_job_whose_command_took_effect_before_are_settled() -> None:
    given = Given(Site(make_core()), "cancel 1", "cancelled", took_effect=True)
    given.site.run(5.0)
    assert 1 in given.site.core.state.outbox.parents


@pytest.mark.parametrize("text", ["killjob 1", "cancel 1"])
def test_a_job_in_hand_elsewhere_is_left_to_the_daemon_that_has_it(text: str) -> None:
    given = Given(Site(make_core()), text, "claimed")
    given.site.run(5.0)
    assert (given.ends, given.site.sent("set_wanted")) == ([], [])


@pytest.mark.parametrize(("text", "state"), [("killjob 1", "failed"), ("cancel 1", "cancelled")])
def test_a_job_in_hand_whose_row_is_locked_is_ended_when_its_row_says_so(text: str, state: str) -> None:
    site = Site(make_core())
    turn(site.core, claim(1))
    given = Given(site, text, "claimed", is_ours=True)
    site.run(5.0)
    assert saved(settle(site.core, site.now)) == []
    site.answers["set_wanted"] = lambda _: [(1,)]
    site.run(5.0)
    assert [ok for _, ok in given.ends] == [True]
    assert [row.state for row in saved(settle(site.core, site.now))] == [state]


@pytest.mark.parametrize("answer", [*FAILURES, []])
def test_jobs_blocked_on_a_condition_of_which_some_are_locked_are_counted_once(answer: Answer) -> None:
    site = Site(make_core())
    given = Given(site, "unblock licence", None)
    site.answer("unblock", [(5, 3)], answer, [(2, 2)])
    site.run(10.0)
    (text, ok), = given.ends  # fmt: skip
    assert (text, ok) == ("5 jobs were blocked on licence", True)


# ---- many jobs at a time


def batch(*, is_over: bool, done: int, ours: str = "", told: int = 0, has_moved: bool = True) -> Answer:
    return [(is_over, has_moved, done, 0, {}, None, ours, told, {}, None)]


@pytest.mark.parametrize("answer", FAILURES)
def test_a_command_about_many_jobs_goes_on_with_the_next_batch_though_a_statement_fails(answer: Exception) -> None:
    site = Site(make_core())
    given = Given(site, "cancel all", None)
    site.answer("change_jobs", batch(is_over=False, done=1000), answer, batch(is_over=True, done=1200))
    site.run(10.0)
    assert given.ends == [("cancel: 1200 jobs", True)]


def test_a_batch_with_a_row_that_is_refused_shrinks_until_that_row_is_alone() -> None:
    site = Site(make_core())
    given = Given(site, "cancel all", None)
    site.answer("change_jobs", *[refused("23514")] * 3, batch(is_over=True, done=1))
    site.run(10.0)
    assert [each.values["most"] for each in site.sent("change_jobs")] == [1000, 100, 10, 1]
    assert given.ends == [("cancel: 1 job", True)]


def test_a_row_alone_that_is_refused_is_tried_again_every_second() -> None:
    site = Site(make_core())
    given = Given(site, "cancel all", None)
    site.answers["change_jobs"] = lambda _: refused("23514")
    site.run(10.0)
    assert 6 <= len([each for each in site.sent("change_jobs") if each.values["most"] == 1]) <= 10
    assert given.ends == []


def test_a_full_disk_makes_no_batch_smaller() -> None:
    site = Site(make_core())
    Given(site, "cancel all", None)
    site.answer("change_jobs", refused("53100"), batch(is_over=True, done=1))
    site.run(10.0)
    assert {each.values["most"] for each in site.sent("change_jobs")} == {1000}


def test_jobs_in_hand_that_a_command_about_many_ends_are_ended_and_counted_once() -> None:
    site = Site(make_core())
    turn(site.core, claim(7))
    given = Given(site, "killjob all", None)
    site.answer(
        "change_jobs", batch(is_over=False, done=1, ours="7", told=1), LOST, batch(is_over=True, done=1, told=1)
    )
    site.run(10.0)
    assert given.ends == [("killjob: 2 jobs", True)]
    assert [row.state for row in saved(settle(site.core, site.now))] == ["failed"]


@pytest.mark.parametrize("answer", [*FAILURES, []])
def test_a_flush_goes_on_where_it_was_though_a_statement_fails(answer: Answer) -> None:
    site = Site(make_core())
    given = Given(site, "flush 9", None)
    site.answer("flush", [(5, "groups", 3, 0, "", None)], answer, [(1, None, 0, 0, "", None)])
    site.run(10.0)
    assert given.ends == [("removed 5 jobs, 1 job groups, 0 log lines about no job", True)]
