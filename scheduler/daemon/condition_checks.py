"""Checks of the conditions that jobs are blocked on: read one that is due, let the policy decide, carry that out.

One condition is checked at a time, so that the lease and other tasks come in between. What cannot be done because
another session has a job locked is tried again a moment later: the check stays due until it is over.
"""

import json
from collections.abc import Sequence
from typing import Final

from scheduler.daemon.command_rows import Context, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps
from scheduler.model.events_and_effects import Woken
from scheduler.model.queue_requests import Cells
from scheduler.policy.conditions import (
    GRACE_S,
    Answer,
    Ask,
    Condition,
    Fail,
    Forget,
    Release,
    Step,
    Wait,
    read_policy,
)

PIECE: Final = 2000  # jobs that one statement moves
AGAIN_S: Final = 1.0  # until jobs are looked at again that are locked
AT_ONCE: Final = 0.0
_ANSWERS: Final = {b"done": Answer.CLEARED, b"failed": Answer.FAILED}  # by the state of the job; others: still there


def check_next(context: Context) -> Steps[float | None]:
    """Check the condition that is due longest; return the seconds until this is to be done again, if that is known."""
    rows = yield from context.ask("read_recovery")
    if not rows:
        return None
    pk, *cells, seconds = rows[0]
    if pk is None:
        return float(seconds or 0)
    seen = read_condition(cells)
    step = context.core.next_step(seen)
    name, values = statement_of(seen, step)
    rows = yield from context.ask(name, recovery=int(pk), tries=seen.tries, **values)
    match step:
        case Release():
            return _released(context, seen, rows)
        case Fail(text):
            return _failed(context, text, rows)
    return AT_ONCE


def read_condition(cells: Sequence[bytes | None]) -> Condition:
    """Return the condition in a row of query `read_recovery`, without the first cell and the last."""
    name, tries, came, elapsed, rules, has_jobs, tester, state, said, is_over = cells
    policy, answer = read_policy(json.loads(rules or b"{}")), Answer.NOT_ASKED
    if policy.until:
        answer = Answer.CLEARED if is_over == b"t" else Answer.STILL_THERE
    elif tester is not None:
        is_late = (said or b"").startswith(b"timeout: ")
        answer = Answer.STILL_THERE if is_late else _ANSWERS.get(state or b"", Answer.STILL_THERE)
    return Condition(
        text_of(name), policy, int(tries or 0), int(came or 0), float(elapsed or 0), has_jobs == b"t", answer,
    )  # fmt: skip


def statement_of(seen: Condition, step: Step) -> tuple[str, dict[str, object]]:
    """Return the query that carries a step out, and its parameters beside `recovery` and `tries`."""
    match step:
        case Forget():
            return "forget_recovery", {"came": seen.came}
        case Release(most, tries, wait, is_new):
            values = {"came": seen.came, "most": most or PIECE, "is_limited": most is not None, "is_new": is_new}
            return "release_blocked", {**values, "after": tries, "wait": wait}
        case Fail(text):
            return "fail_blocked", {"most": PIECE, "text": text}
        case Ask(kind, args, timeout):
            return "ask_tester", {"type": kind, "args": args, "timeout": timeout, "wait": timeout + GRACE_S}
        case Wait(tries, wait):
            return "postpone_recovery", {"after": tries, "wait": wait}


def _released(context: Context, seen: Condition, rows: Sequence[Cells]) -> float:
    for count, is_over, parents in rows:
        context.settle_listed(parents)
        if count != b"0":
            log_line("info", f"condition {seen.name}: {text_of(count)} jobs are queued again")
            context.core.handle(Woken(), context.now())
        elif is_over != b"t":
            return AGAIN_S
    return AT_ONCE


def _failed(context: Context, text: str, rows: Sequence[Cells]) -> float:
    for count, parents, is_over in rows:
        if count != b"0":
            log_line("warning", f"{text}: {text_of(count)} jobs failed")
            context.settle_listed(parents)
        elif is_over != b"t":
            return AGAIN_S
    return AT_ONCE
