"""What is decided about a condition that jobs are blocked on, when its check is due."""

import pytest

from scheduler.model.config import Condition as Configured
from scheduler.policy.conditions import (
    Answer,
    Ask,
    Condition,
    Fail,
    Forget,
    Policy,
    Release,
    Wait,
    decide,
    read_policy,
    wait_before,
)
from tests.config_tools import LEAST, good, mistakes

STEPS = ((2, 10.0), (3, 20.0), (0, 300.0))


def seen(policy: Policy, tries: int = 0, came: int = 1, elapsed: float = 0.0, answer: Answer = Answer.NOT_ASKED,
         *, has_jobs: bool = True) -> Condition:  # fmt: skip
    return Condition("tape", policy, tries, came, elapsed, has_jobs, answer)


def test_waits_of_a_stepwise_policy_follow_its_steps_t79() -> None:
    assert [wait_before(Policy(STEPS), tries) for tries in range(8)] == [10, 10, 20, 20, 20, 300, 300, 300]


def test_waits_of_a_constant_policy_are_equal_t79() -> None:
    assert {wait_before(Policy(((0, 60.0),)), tries) for tries in range(100)} == {60.0}


def test_last_step_with_a_count_goes_on_for_ever_t79() -> None:
    assert [wait_before(Policy(((1, 5.0),)), tries) for tries in range(3)] == [5, 5, 5]


def test_check_without_tester_lets_all_jobs_try_t85() -> None:
    assert decide(seen(Policy(STEPS), tries=1)) == Release(None, 2, 20.0, is_new=False)


def test_check_lets_only_as_many_jobs_go_as_the_policy_says_t85() -> None:
    assert decide(seen(Policy(at_once=2))) == Release(2, 1, 60.0, is_new=False)


def test_checks_begin_anew_when_no_job_came_back() -> None:
    step = decide(seen(Policy(STEPS, max_tries=3, at_once=2), tries=3, came=0))
    assert step == Release(2, 1, 10.0, is_new=True)


def test_condition_without_jobs_is_forgotten() -> None:
    assert decide(seen(Policy(), has_jobs=False)) == Forget()


def test_jobs_fail_after_the_last_try_t90() -> None:
    step = decide(seen(Policy(max_tries=3), tries=3))
    assert step == Fail("recovery_timeout: condition tape was still there after 3 checks")


def test_jobs_fail_after_the_longest_time_t90() -> None:
    step = decide(seen(Policy(max_elapsed=100.0), tries=1, elapsed=100.5))
    assert step == Fail("recovery_timeout: condition tape was still there after 100 s")


def test_next_check_is_not_after_the_end_of_the_policy_t79() -> None:
    assert decide(seen(Policy(max_elapsed=100.0), elapsed=70.0)) == Release(None, 1, 30.0, is_new=False)


@pytest.mark.parametrize(
    ("elapsed", "step"),
    [
        (99.5, Release(None, 2, 0.5, is_new=False)),
        (100.0, Fail("recovery_timeout: condition tape was still there after 100 s")),
    ],
)
def test_policy_ends_after_exactly_its_longest_time_t90(elapsed: float, step: object) -> None:
    assert decide(seen(Policy(max_elapsed=100.0), tries=1, elapsed=elapsed)) == step


def test_policy_without_limits_goes_on_for_ever_t79() -> None:
    assert decide(seen(Policy(), tries=9999, elapsed=1e9)) == Release(None, 10_000, 60.0, is_new=False)


@pytest.mark.parametrize(("tries", "waits"), [(2, False), (3, True)])
def test_jobs_try_as_often_as_the_policy_says_t90(tries: int, waits: bool) -> None:
    assert isinstance(decide(seen(Policy(max_tries=3), tries=tries)), Fail) == waits


def test_first_check_is_counted_though_no_job_came_since_the_condition_was_set() -> None:
    assert decide(seen(Policy(STEPS), came=0)) == Release(None, 1, 10.0, is_new=False)


def test_time_of_a_condition_that_was_over_does_not_end_the_next_one_t90() -> None:
    step = decide(seen(Policy(max_elapsed=100.0), tries=1, came=0, elapsed=500.0))
    assert step == Release(None, 1, 60.0, is_new=True)


def test_tester_is_asked_though_no_job_came_since_the_last_check_t80() -> None:
    assert decide(seen(Policy(tester="probe"), tries=2, came=0)) == Ask("probe", "tape", 60.0)


def test_tester_is_not_asked_again_after_the_end_of_the_policy_t90() -> None:
    step = decide(seen(Policy(tester="probe", max_elapsed=100.0), tries=2, came=0, elapsed=100.0))
    assert step == Fail("recovery_timeout: condition tape was still there after 100 s")


def test_wait_after_an_answer_is_not_longer_than_the_policy_t79() -> None:
    policy = Policy(tester="probe", max_elapsed=100.0)
    assert decide(seen(policy, elapsed=70.0, answer=Answer.STILL_THERE)) == Wait(1, 30.0)
    assert decide(seen(policy, elapsed=10.0, answer=Answer.STILL_THERE)) == Wait(1, 60.0)


def test_tester_is_asked_and_no_job_tries_t80() -> None:
    policy = Policy(tester="probe", tester_timeout=5.0)
    assert decide(seen(policy)) == Ask("probe", "tape", 5.0)


def test_tester_is_given_its_own_argument_t80() -> None:
    assert decide(seen(Policy(tester="probe", tester_args="far"))) == Ask("probe", "far", 60.0)


def test_jobs_go_when_the_tester_says_so_t85() -> None:
    step = decide(seen(Policy(tester="probe", at_once=2), tries=7, answer=Answer.CLEARED))
    assert step == Release(2, 0, 60.0, is_new=True)


@pytest.mark.parametrize("answer", [Answer.STILL_THERE, Answer.FAILED])
def test_jobs_wait_while_the_tester_finds_the_condition_t79(answer: Answer) -> None:
    assert decide(seen(Policy(STEPS, tester="probe"), tries=1, answer=answer)) == Wait(2, 20.0)


def test_jobs_fail_with_the_last_answer_of_the_tester_t90() -> None:
    step = decide(seen(Policy(tester="probe", max_tries=3), tries=2, answer=Answer.STILL_THERE))
    assert step == Fail("recovery_timeout: condition tape was still there after 3 checks")


def test_jobs_fail_with_their_tester_if_the_policy_says_so_t90() -> None:
    step = decide(seen(Policy(tester="probe", tester_failure="fail"), answer=Answer.FAILED))
    assert step == Fail("recovery_failure: the tester of condition tape failed")


# ---- configuration


def test_policy_is_read_as_it_is_configured_t79_t81() -> None:
    keys = 'steps = ["2x10", "3x20", "300"]\nmax_tries = 9\nat_once = 2\ntester = "a"\n'
    rules = good(LEAST + "[conditions.tape]\n" + keys).conditions["tape"].rules(60.0)
    assert read_policy(rules) == Policy(STEPS, max_tries=9, at_once=2, tester="a")


def test_policy_that_says_nothing_is_the_usual_one_t79() -> None:
    assert read_policy({"steps": None, "max_tries": None, "at_once": None, "else": 1}) == Policy()
    assert read_policy({"steps": [[None, 5]], "max_elapsed": 0.0}) == Policy(((0, 5.0),))


def test_wait_of_a_policy_is_blocked_delay_by_default_t79() -> None:
    assert read_policy(Configured().rules(7.0)).steps == ((0, 7.0),)


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ('steps = ["0"]', "steps[0]: must be like 10x20: ten checks, 20 seconds before each; or 300, for ever"),
        ('steps = ["often"]', "steps[0]: must be like 10x20: ten checks, 20 seconds before each; or 300, for ever"),
        ('steps = ["10", "2x5"]', "steps[0]: is for ever: no step can follow it"),
        ('wait = 5\nsteps = ["10"]', "steps: contradicts wait: give one of them"),
        ('until = "tape is back"', "until: must be like host NAME, agent TYPE or queue NAME"),
        ('until = "host alpha"\ntester = "a"', "until: contradicts tester: give one of them"),
        ('tester = "nobody"', "tester: no such agent type is configured"),
        ('types = ["a", "nobody"]', "types[1]: no such agent type is configured"),
        ('condition = "two words"', "condition: is one word, or * for all others"),
    ],
)
def test_mistake_in_a_policy_is_told(keys: str, mistake: str) -> None:
    (found,) = mistakes(LEAST + "[conditions.tape]\n" + keys)
    assert f"conditions.tape.{mistake} (got " in found
