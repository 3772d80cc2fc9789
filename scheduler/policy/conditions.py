"""Decide about a condition that jobs are blocked on, when its check is due: pure functions of the rows that were read.

A check without a tester releases jobs for a try: it was unsuccessful if they are blocked again before the next check. A
check with a tester asks it, and releases jobs when the answer is that the condition is cleared. The waits between
checks come from the steps of the policy; a policy may end after a number of unsuccessful checks, or of seconds.
Instants are those of the database, so only lengths come in here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final

TIMEOUT: Final = "recovery_timeout"  # begins the end text of jobs whose condition lasted too long
FAILURE: Final = "recovery_failure"  # of those whose tester failed, where that is to end them
HOST: Final = "host:"  # these begin the names of conditions that the scheduler itself knows; an agent's do not
AGENT: Final = "agent:"
QUOTA: Final = "quota:"
OURS: Final = (HOST, AGENT, QUOTA)
USUAL_WAIT_S: Final = 60.0
GRACE_S: Final = 5.0  # that the answer of a tester may take longer than the tester


class Answer(Enum):
    """The state of the tester of a condition, as it was read."""

    NOT_ASKED = "none was asked"
    CLEARED = "the condition is cleared"
    STILL_THERE = "the condition is still there, or the tester said nothing in time"
    FAILED = "the tester failed"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for a condition; steps are (checks, seconds before each), the last for ever; 0 is no limit."""

    steps: tuple[tuple[int, float], ...] = ((0, USUAL_WAIT_S),)
    max_tries: int = 0
    max_elapsed: float = 0.0
    at_once: int = 0  # jobs that one check releases
    tester: str = ""  # an agent type
    tester_args: str = ""  # that it is given, or the condition
    tester_timeout: float = USUAL_WAIT_S
    tester_failure: str = "wait"  # or fail
    until: str = ""  # in place of a tester: `host NAME`, `agent TYPE` or `queue NAME`; the database knows the answer


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition whose check is due."""

    name: str
    policy: Policy
    tries: int  # unsuccessful checks
    came: int  # jobs that were blocked since the last check
    elapsed: float  # seconds since it began
    has_jobs: bool
    answer: Answer = Answer.NOT_ASKED


@dataclass(frozen=True, slots=True)
class Forget:
    """No job waits for it any more: it is over."""


@dataclass(frozen=True, slots=True)
class Release:
    """Queue the blocked jobs that come first, `most` of them or all; the next check comes in `wait` seconds."""

    most: int | None
    tries: int
    wait: float
    is_new: bool  # its time begins anew: the condition was cleared


@dataclass(frozen=True, slots=True)
class Ask:
    """Queue a job of the tester."""

    type: str
    args: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave the jobs blocked until the next check."""

    tries: int
    wait: float


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the blocked jobs."""

    text: str


Step = Forget | Release | Ask | Wait | Fail


def read_policy(rules: Mapping[str, Any]) -> Policy:
    """Return a policy as the database has it; what it leaves out is as usual."""
    given = {each.name: rules[each.name] for each in fields(Policy) if rules.get(each.name) is not None}
    if "steps" in given:
        given["steps"] = tuple((int(count or 0), float(wait)) for count, wait in given["steps"])
    return Policy(**given)


def wait_before(policy: Policy, tries: int) -> float:
    """Return the seconds before the check that follows so many unsuccessful ones."""
    for count, wait in policy.steps:
        if tries < count or count == 0:
            return wait
        tries -= count
    return policy.steps[-1][1]


def decide(seen: Condition) -> Step:
    """Return what to do about a condition whose check is due, or whose tester has answered."""
    policy = seen.policy
    if not seen.has_jobs:
        return Forget()
    if seen.answer is Answer.CLEARED:
        return Release(policy.at_once or None, 0, wait_before(policy, 0), is_new=True)
    if seen.answer is Answer.FAILED and policy.tester_failure == "fail":
        return Fail(f"{FAILURE}: the tester of condition {seen.name} failed")
    if seen.answer is not Answer.NOT_ASKED:
        return _after_unsuccessful_check(replace(seen, tries=seen.tries + 1))
    was_cleared = (
        not policy.tester and seen.tries > 0 and seen.came == 0
    )  # the jobs that it released were not blocked again
    if not was_cleared and (why := _over(seen)):
        return Fail(why)
    if policy.tester:
        return Ask(policy.tester, policy.tester_args or seen.name, policy.tester_timeout)
    if was_cleared:
        return Release(policy.at_once or None, 1, wait_before(policy, 1), is_new=True)
    return Release(policy.at_once or None, seen.tries + 1, _next_wait(seen, seen.tries + 1), is_new=False)


def _after_unsuccessful_check(seen: Condition) -> Step:
    why = _over(seen)
    return Fail(why) if why else Wait(seen.tries, _next_wait(seen, seen.tries))


def _over(seen: Condition) -> str:
    """Return why the policy ends: the text for the jobs that fail; empty if it goes on."""
    policy, what = seen.policy, f"{TIMEOUT}: condition {seen.name} was still there after"
    if policy.max_tries and seen.tries >= policy.max_tries:
        return f"{what} {seen.tries} checks"
    if policy.max_elapsed and seen.elapsed >= policy.max_elapsed:
        return f"{what} {policy.max_elapsed:g} s"
    return ""


def _next_wait(seen: Condition, tries: int) -> float:
    """Return the seconds to the next check, or to the end of the policy, which is not over, if that comes first."""
    wait = wait_before(seen.policy, tries)
    if not seen.policy.max_elapsed:
        return wait
    return min(wait, seen.policy.max_elapsed - seen.elapsed)
