"""Jobs that cannot start: what becomes of those that wait for a host that is down, or for agents that do not come up.

By `on_start_failure` of their type they wait in the queue, which costs nothing; are blocked on the condition
`host:NAME` or `agent:TYPE`; or fail. Those in the queue are meant: what was given to an agent has started.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from scheduler.model.states import ST_READY, ST_RUNNING
from scheduler.policy import completion
from scheduler.policy.capacity import HostState
from scheduler.policy.conditions import AGENT, HOST, Answer, Condition
from scheduler.policy.job import Job, Pool
from scheduler.policy.state import State

BLOCK: Final = "block"
STATES: Final = {BLOCK: "blocked", "fail": "failed"}
ANY_HOST: Final = ""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Jobs of a type that ask for a host, or for none, cannot start: the state that they get, and their end text."""

    type: str
    host: str
    state: str
    text: str


def has_policies(state: State) -> bool:
    """Return whether some type has a policy other than to wait, or jobs may be blocked by one."""
    return bool(state.start_conditions) or any(pool.stops_jobs for pool in state.pools.values())


def start_failures(state: State, now: float) -> list[StartFailure]:
    """Return which waiting jobs cannot start and are not to wait in the queue. Those in hand go back to it."""
    pools = [pool for pool in state.pools.values() if pool.enabled and pool.stops_jobs]
    found = [failure for pool in pools for failure in _of_type(pool)]
    stuck = {failure.type for failure in found if failure.host == ANY_HOST}
    if stuck:
        which = partial(_is_stuck, stuck)
        completion.give_back_all(state, "no agent of its type can be started", now, which)
    state.start_conditions.update(_condition(failure.text) for failure in found if failure.state == STATES[BLOCK])
    return found


def _is_stuck(types: set[str], job: Job) -> bool:
    return job.pool.name in types and completion.is_untouched(job)


def _condition(text: str) -> str:
    return text.split(maxsplit=2)[1]  # blocked: CONDITION ...


def _of_type(pool: Pool) -> Iterator[StartFailure]:
    hosts = {slot.host.name: slot.host for slot in pool.slots}
    if why := _why_none_starts(pool, hosts):
        yield _failure(pool, ANY_HOST, AGENT + pool.name, why)
    for name, host in sorted(hosts.items()):
        if _is_down(host):
            yield _failure(pool, name, HOST + name, host.why_down)
        elif pool.blocked_until:
            yield _failure(pool, name, AGENT + pool.name, why)


def _is_down(host: HostState) -> bool:
    """Return whether an attempt to reach a host has failed; while the first is made nothing is known."""
    return host.enabled and not host.is_up and host.reason is not None


def _why_none_starts(pool: Pool, hosts: dict[str, HostState]) -> str:
    """Return why no agent of a type can be started anywhere; nothing, if one can."""
    if pool.blocked_until:
        return pool.reason or "its agents do not come up"
    enabled = [host for host in hosts.values() if host.enabled]
    if not enabled or not all(_is_down(host) for host in enabled):
        return ""
    return "; ".join(sorted(host.why_down for host in enabled))


def _failure(pool: Pool, host: str, condition: str, why: str) -> StartFailure:
    state = STATES[pool.kind.on_start_failure]
    who = f"agent '{pool.name}': cannot start "
    what = why if why.startswith(who) else f"{who}'{pool.kind.command[0]}': {why}"
    return StartFailure(pool.name, host, state, f"blocked: {condition} {why}" if state == STATES[BLOCK] else what)


# ---- the conditions


def answered(state: State, seen: Condition) -> Condition:
    """Return a condition with our own answer, if it is one of ours and its policy does not ask another."""
    is_ours = seen.name.startswith((HOST, AGENT)) and seen.name.count(":") == 1  # else an agent said it
    if seen.policy.tester or seen.policy.until or not is_ours:
        return seen
    if not seen.has_jobs:
        state.start_conditions.discard(seen.name)
        return seen
    state.start_conditions.add(seen.name)
    answer = _answer(state, seen.name)
    tries_one = answer is Answer.NOT_ASKED and not (seen.tries and not seen.came)  # else the one did not come back
    return replace(seen, answer=answer, policy=replace(seen.policy, at_once=1) if tries_one else seen.policy)


def take_cleared(state: State) -> list[str]:
    """Return the conditions that are over, so that they are checked now, and forget them."""
    cleared = {name for name in state.start_conditions if _answer(state, name) is Answer.CLEARED}
    state.start_conditions.difference_update(cleared)
    return sorted(cleared)


def _answer(state: State, condition: str) -> Answer:
    if condition.startswith(HOST):
        host = state.hosts.get(condition.removeprefix(HOST))
        return Answer.CLEARED if host is None or host.is_up else Answer.STILL_THERE
    pool = state.pools.get(condition.removeprefix(AGENT))
    if pool is None or pool.kind.on_start_failure != BLOCK:
        return Answer.CLEARED
    if pool.blocked_until or pool.is_cut_off:
        return Answer.STILL_THERE
    if pool.reason is None or any(slot.state in (ST_READY, ST_RUNNING) for slot in pool.slots):
        return Answer.CLEARED
    return Answer.NOT_ASKED  # whether agents come up is known when one is tried
