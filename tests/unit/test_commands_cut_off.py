"""A command has its effect once and its row ends, whatever statement of it is refused, is late or loses its answer."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduler.drivers.statement_runner import RefusedError
from scheduler.model.config import AgentType
from tests.core_tools import claim, make_core, saved, settle, turn
from tests.fakes import LOST, After, Answer, Site, refused

FAILURES = [refused(), refused("55P03"), LOST]
OF_A_COMMAND = ["read_commands", "begin_command", "cancel_job", "end_command", "close_runs", "close_commands"]


@dataclass
class Commands:
    """Command rows, and the jobs that they are about, as drover.jobqueue has them."""

    site: Site
    open: dict[int, str] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=lambda: {1: "queued"})
    took_effect: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    begun: list[int] = field(default_factory=list)
    ended: dict[int, tuple[bool, str]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    patience: float | None = None
    children: bool = True

    def __post_init__(self) -> None:
        for name in ("read_commands", "begin_command", "cancel_job", "end_command", "acknowledge", "close_commands"):
            self.site.answers[name] = getattr(self, name)

    def give(self, text: str) -> int:
        """Insert a command, of which a notification tells."""
        pk = 100 + len(self.open) + len(self.ended)
        self.open[pk] = text
        self.site.tasks.read_commands_in(0.0)
        return pk

    def read_commands(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        rows = []
        for pk, text in self.open.items():
            if pk in values["passed"] or pk in self.acknowledged:
                continue
            job = int(text.split()[1]) if text[-1].isdigit() else None
            is_ours = self.jobs.get(job or 0) == "claimed"
            rows.append(
                (pk, text, job, self.jobs.get(job or 0), "by ann", is_ours, False, pk in self.took_effect, False)
            )
        return rows

    def begin_command(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        self.begun.append(values["command"])
        return [(False, self.patience)]

    def cancel_job(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Cancel a job that is as it was read, and note in the command that it took effect, in one statement."""
        if self.jobs[values["job"]] != "queued":
            return []
        self.jobs[values["job"]] = "cancelled"
        self.cancelled.append(values["job"])
        self.took_effect.add(values["command"])
        return [(values["job"], self.children)]

    def acknowledge(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        self.acknowledged.add(values["command"])
        return []

    def close_commands(self, _: object) -> list[tuple[Any, ...]]:
        closed = [pk for pk in self.acknowledged if pk in self.open]
        for pk in closed:
            self._end(pk, True, "acknowledged")
        return [(pk, False, False, None, None, None, None, None, None) for pk in closed]

    def end_command(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        if values["command"] not in self.open:
            return []
        self._end(values["command"], values["ok"], values["text"])
        return [(values["command"], False)]

    def _end(self, pk: int, ok: bool, text: str) -> None:
        del self.open[pk]
        self.ended[pk] = ok, text

    def carried_out_but(self, query: str, answer: Answer) -> None:
        """Let the next statement of this name be carried out, and its answer be lost."""
        usual = self.site.answers[query]

        def once(values: dict[str, Any]) -> Answer:
            self.site.answers[query] = usual
            usual(values)
            return answer

        self.site.answers[query] = once  # type: ignore[assignment]


def commands() -> Commands:
    return Commands(Site(make_core()))


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("query", OF_A_COMMAND)
def test_a_command_whose_statement_fails_is_carried_out_once(query: str, answer: Exception) -> None:
    each = commands()
    each.site.run(15.0)
    each.site.answer(query, answer)
    pk = each.give("cancel 1")
    each.site.run(70.0)
    assert (each.cancelled, each.ended) == ([1], {pk: (True, "job 1: cancelled")})
    assert each.site.core.state.outbox.parents.count(1) >= 1


@pytest.mark.parametrize("query", ["begin_command", "cancel_job", "end_command"])
def test_a_command_whose_answer_is_lost_is_carried_out_once(query: str) -> None:
    each = commands()
    each.site.run(15.0)
    pk = each.give("cancel 1")
    each.carried_out_but(query, LOST)
    each.site.run(70.0)
    assert (each.cancelled, each.ended) == ([1], {pk: (True, "job 1: cancelled")})
    assert 1 in each.site.core.state.outbox.parents


@pytest.mark.parametrize("query", ["begin_command", "set_wanted", "end_command"])
@pytest.mark.parametrize("answer", FAILURES)
def test_a_job_in_hand_is_killed_once_though_a_statement_fails(query: str, answer: Exception) -> None:
    each = commands()
    each.site.answers["set_wanted"] = lambda values: [(values["job"],)]
    turn(each.site.core, claim(1))
    each.jobs[1] = "claimed"
    each.site.run(1.0)
    each.site.answer(query, answer)
    pk = each.give("killjob 1")
    each.site.run(70.0)
    assert each.ended == {pk: (True, "job 1: is being killed")}
    assert [row.state for row in saved(settle(each.site.core, each.site.now))] == ["failed"]


@pytest.mark.parametrize("query", ["acknowledge", "begin_command", "close_commands"])
@pytest.mark.parametrize("answer", FAILURES)
def test_a_shutdown_is_obeyed_once_though_a_statement_fails(query: str, answer: Exception) -> None:
    each = commands()
    each.site.run(15.0)
    each.site.answer(query, answer)
    pk = each.give("shutdown")
    each.site.run(70.0)
    assert (each.site.drains, each.ended) == (1, {pk: (True, "acknowledged")})


@pytest.mark.parametrize("answer", FAILURES)
def test_what_all_schedulers_have_acknowledged_ends_soon_though_a_statement_fails(answer: Exception) -> None:
    each = commands()
    each.site.run(15.0)
    each.site.answer("close_commands", answer)
    pk = each.give("reopen-log")
    each.site.run(5.0)
    assert each.ended == {pk: (True, "acknowledged")}


def test_runs_that_are_over_are_ended_soon_though_that_was_refused() -> None:
    each = commands()
    each.site.run(15.0)
    each.site.answer("close_runs", refused(), [(50, True)])
    each.site.tasks.read_commands_in(0.0)
    each.site.run(5.0)
    assert 50 in each.site.core.state.outbox.parents


def test_a_command_that_is_refused_does_not_hold_up_those_behind_it() -> None:
    each = commands()
    each.jobs[2] = "queued"
    each.site.run(15.0)
    first, second = each.give("cancel 1"), each.give("cancel 2")
    each.site.answer("cancel_job", refused())
    each.site.run(0.5)
    assert list(each.ended) == [second]
    each.site.run(5.0)
    assert list(each.ended) == [second, first]


@pytest.mark.parametrize("answer", [refused(), []])
def test_a_command_is_given_up_when_its_time_is_over_and_says_why(answer: RefusedError | list[Any]) -> None:
    each = commands()
    each.patience = 10.0
    each.site.answers["cancel_job"] = lambda _: answer
    pk = each.give("cancel 1")
    each.site.run(20.0)
    ((ok, text),) = each.ended.values()
    assert (ok, text.partition(":")[0]) == (False, "given up after 10 s")
    assert each.open == {}
    assert each.begun == [pk]


def test_a_command_that_goes_on_after_a_late_answer_is_not_read_again_meanwhile() -> None:
    each = commands()
    each.jobs[2] = "queued"
    each.site.run(15.0)
    each.site.answer("begin_command", After(5.0, [(False, None)]))
    each.give("cancel 1")
    each.site.run(1.0)
    each.give("cancel 2")
    each.site.run(10.0)
    assert each.cancelled == [1, 2]
    assert len(each.ended) == 2


@pytest.mark.parametrize("answer", FAILURES)
def test_a_daemon_steps_down_once_and_says_who_took_over(answer: Exception) -> None:
    each = commands()
    each.site.run(15.0)
    each.site.answer("may_step_down", answer, [(None, "here.7")])
    each.site.answers["may_step_down"] = lambda _: [("elsewhere", "here.7")]
    each.give("step-down")
    each.site.run(10.0)
    assert (each.site.step_downs, each.ended) == (1, {})
    each.site.answers["may_step_down"] = lambda _: [("past", "here.8")]
    each.site.run(5.0)
    assert list(each.ended.values()) == [(False, "served by here.8, for no other scheduler took the group over")]


def test_a_command_about_a_job_that_another_was_about_is_read_anew_first() -> None:
    each = commands()
    each.site.run(15.0)
    each.give("cancel 1")
    again = each.give("cancel 1")
    each.site.run(5.0)
    assert each.cancelled == [1]
    assert each.ended[again] == (False, "job 1 has ended: it is cancelled")


def test_slots_that_failed_are_tried_again_by_one_command_whose_end_is_refused() -> None:
    each = Commands(Site(make_core({"sha": AgentType(command=("agent",))})))
    each.site.run(15.0)
    each.site.answer("end_command", refused(), [], refused())
    pk = each.give("status")
    each.site.run(10.0)
    assert each.ended == {pk: (True, "see jq_result")}
    assert each.begun == [pk]
