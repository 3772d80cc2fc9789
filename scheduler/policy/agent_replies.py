"""What agents print, and what that does to a slot and its item; `agent_output` is the hot path of the core.

Bytes of an agent's output come in, the line to send it next goes out. Only OK ends an item. An OK that answers nothing,
a second OK in one read, an OK for a line that was not read, a line without end, a flood: each has the agent killed.

What an agent says of one item is written out up to the `output_limit` of its type; then a warning says that the rest is
left out, and an agent that goes on all the same is killed.
"""

from typing import Final

from scheduler.model import protocol
from scheduler.model.events_and_effects import Echo, RunStatement
from scheduler.model.json_text import read_json
from scheduler.model.protocol import parse, printable
from scheduler.model.queue_requests import LogRow
from scheduler.model.states import DIE, FINISH, NEVER, NEXT, OK, SAID, ST_READY, ST_SPAWNED
from scheduler.model.wrong_answers import why_no_keyword
from scheduler.policy.agent_pool import DISABLED
from scheduler.policy.completion import finish
from scheduler.policy.dispatch import (
    assign,
    end_agent,
    first_job,
    must_end,
    next_prefetched,
    next_run_queue,
    prefetch,
    put_back,
    recall_unsent,
)
from scheduler.policy.job import Job
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

_FLOOD: Final = 64  # times the output that is written out
_MOST_WARNINGS: Final = 20  # about lines of one agent that are almost keywords


def agent_output(state: State, slot: Slot, data: bytes, now: float) -> bytes | None:
    """Act on what an agent printed; return the line to send it next, or None."""
    if data == b"OK\n" and not slot.output.partial_line and slot.wanted is not DIE:
        answer = ok(state, slot, now)
        if slot.prefetched is None or 2 * len(slot.prefetched) > slot.ahead:
            return answer
        return (answer or b"") + prefetch(state, slot, now) or None
    limit, answer, before = state.timers.line_limit, None, slot.job
    for line in slot.output.lines(data, now):
        if slot.wanted is DIE:
            break
        keyword, text = parse(line)
        if len(line) > limit:
            _violate(state, slot, f"line over {limit} bytes", now)
        elif keyword in protocol.OF_ITEM and (answer is not None or slot.job is None or slot.is_unsent):
            _warn_of_no_item(state, slot, keyword, None if answer is None else before, now)
        elif keyword != protocol.OK:
            if slot.state == ST_SPAWNED:
                slot.output.note_before_ok(line)
            agent_said(state, slot, keyword, text, now)
        elif answer is None:
            before = slot.job or before
            answer = ok(state, slot, now)
        else:
            why = "protocol violation: OK for a line that was not sent yet"
            pk = before.pk if before is not None else slot.about_job  # not the job that has got that line
            state.outbox.log(LogRow(pk, "ERROR", slot.host.name, slot.pool.name, slot.pid, f"{why}; killed"))
            slot.kill(why, now, counts=True)
    if len(slot.output.partial_line) > limit and slot.wanted is not DIE:
        _violate(state, slot, f"line over {limit} bytes", now)
    if slot.wanted is DIE:
        if answer is not None:
            put_back_unsent(state, slot)
        return None
    return answer if slot.prefetched is None else (answer or b"") + prefetch(state, slot, now) or None


def ok(state: State, slot: Slot, now: float) -> bytes | None:
    """Finish the item of an agent that said OK, and return the line of the next one if one waits."""
    job = slot.job
    if job is None:
        _came_up(state, slot, now)
        return None
    if slot.is_unsent:
        state.withdraw_line(slot)
        put_back_unsent(state, slot)  # first: the job that was to get that line is not to blame
        _violate(state, slot, "OK for a line that was not sent yet", now)
        return None
    if NEVER != slot.clogged_until <= slot.assigned_at + state.timers.write_limit and not slot.prefetched:
        _violate(state, slot, "OK for a line that was not read", now)  # it has not read since before that was sent
        return None
    finish(state, slot, job, now)
    if slot.prefetched:
        next_prefetched(state, slot, now)
        return None
    run_queue = next_run_queue(slot) if state.is_assigning and slot.pool.may_begin else None
    if run_queue is not None and not slot.host.is_tight:
        slot.fire(NEXT, now)
        return assign(state, slot, run_queue, now)
    slot.set_about_job(job.pk)
    _become_idle(state, slot, now)
    return None


def _came_up(state: State, slot: Slot, now: float) -> None:
    """Mark an agent idle at its first OK; an OK that answers nothing is a violation."""
    was_wanted = slot.wanted
    if slot.fire(OK, now):
        slot.output.heartbeat(now)
        slot.pool.set_reason(None)
        slot.pool.add_idle(slot)
        state.mark_dirty(slot.pool)
    elif was_wanted is not DIE:
        state.log(slot, "ERROR", f"{slot.reason}; killed")


def _become_idle(state: State, slot: Slot, now: float) -> None:
    """Mark an agent idle, or end it if it is to end."""
    slot.fire(OK, now)
    if slot.state != ST_READY:
        return
    slot.pool.add_idle(slot)
    if slot.wanted is FINISH:
        slot.kill(slot.reason, now)
    elif not slot.pool.enabled:
        slot.kill(DISABLED, now)
    elif slot.host.is_tight and must_end(slot, first_job(next_run_queue(slot))):
        end_agent(state, slot, now)
    state.mark_dirty(slot.pool)
    state.retry_starving()


def put_back_unsent(state: State, slot: Slot) -> None:
    """Put back the items that are assigned and not sent, before the others of their lanes."""
    recall_unsent(state, slot)
    job, item = slot.job, slot.item
    if job is None or item is None:
        return
    host = slot.host.name if slot.is_bound else None
    if slot.is_second_try:
        job.returned()
        slot.pool.put_back_second_try(job, item, host)
    else:
        put_back(state, job, item, host)
    slot.clear_item()


def _violate(state: State, slot: Slot, what: str, now: float) -> None:
    why = f"protocol violation: {what}"
    state.log_death(slot, why, killed=True)
    slot.kill(why, now, counts=True)


# ---- everything but OK


def agent_said(state: State, slot: Slot, keyword: bytes, text: bytes, now: float) -> None:
    """Act on a line other than OK."""
    slot.fire(SAID, now)
    slot.output.heartbeat(now)
    match keyword:
        case protocol.HEARTBEAT:
            pass  # as every line is one
        case protocol.SUCCESS:
            state.count("successes")
        case protocol.ITEMS:
            _count_items(state, slot, text, now)
        case protocol.ECHO:
            _show(state, slot, "", text, now)
        case protocol.DEBUG:
            _show(state, slot, f"DEBUG[{slot.number}]: ", text, now)
            _warn_of_no_keyword(state, slot, text)
        case protocol.FAIL | protocol.FAIL_FOR_GOOD | protocol.BLOCKED:
            _end_item(state, slot, keyword, text, now)
        case protocol.RESULT:
            _keep_result(state, slot, text, now)
        case protocol.DB:  # answers come in order, and never more than two wait
            slot.output.add_statement(text)
            slot.stop_prefetching()  # the answer is to be the next line that it reads
            ask_next(state, slot)
        case _:
            _write(state, slot, keyword.decode(), text, now)
            if keyword == protocol.ERROR and slot.job is not None:  # the job ends with the non-fatal bit
                slot.job.set_nonfatal()
    if slot.output.statement_bytes > state.timers.line_limit:
        _violate(state, slot, f"over {state.timers.line_limit} bytes of DB: lines that wait for answers", now)


def _charge_output(state: State, slot: Slot, text: bytes, now: float) -> bool:
    """Count what an agent says of one item, and return whether this line of it is still to be written out."""
    limit = slot.pool.kind.output_limit
    if slot.output.count(len(text), slot.total) < limit:
        return True
    if slot.output.cut():
        state.log(slot, "WARNING", f"over {limit} bytes of output about one item: the rest is left out")
    most = _FLOOD * (limit or state.timers.line_limit)
    if slot.output.item_bytes > most and slot.wanted is not DIE:
        _violate(state, slot, f"over {most} bytes of output about one item", now)
    return False


def _write(state: State, slot: Slot, kind: str, text: bytes, now: float) -> None:
    if _charge_output(state, slot, text, now):
        state.log(slot, kind, text)


def _show(state: State, slot: Slot, prefix: str, text: bytes, now: float) -> None:
    if _charge_output(state, slot, text, now):
        state.emit(Echo(prefix + printable(text)))


def _warn_of_no_keyword(state: State, slot: Slot, line: bytes) -> None:
    """Log that a line about an item is almost a keyword and changes nothing: once a job, and a few times an agent."""
    job, said = slot.job, slot.output
    if job is None or slot.is_unsent or said.is_cut or said.warned_of == job.pk or said.warnings >= _MOST_WARNINGS:
        return
    if why := why_no_keyword(line):
        said.note_warning(job.pk)
        state.log(slot, "WARNING", why)


def _count_items(state: State, slot: Slot, text: bytes, now: float) -> None:
    if text.isdigit() and len(text) < 10:
        slot.count_items(int(text))
    else:
        _write(state, slot, "WARNING", b"ItemsProcessed without a number: " + text[:100], now)


def _warn_of_no_item(state: State, slot: Slot, keyword: bytes, last: Job | None, now: float) -> None:
    """Log, for the last job that it had, that an agent speaks of an item but has none, or has not read its line."""
    slot.fire(SAID, now)
    slot.output.heartbeat(now)
    text = keyword + b" without an item in hand: it is to come between the line of the item and its OK"
    if _charge_output(state, slot, text, now):
        pk = slot.about_job if last is None else last.pk
        state.outbox.log(LogRow(pk, "WARNING", slot.host.name, slot.pool.name, slot.pid, text.decode()))


def _end_item(state: State, slot: Slot, keyword: bytes, text: bytes, now: float) -> None:
    """Keep why the item fails, or cannot be done now, until its end; of several reasons all but the last are logged."""
    word, is_failure = keyword.decode(), keyword != protocol.BLOCKED
    before = slot.failed if is_failure else slot.blocked
    if _charge_output(state, slot, text, now) and before is not None:
        state.log(slot, "ERROR" if is_failure else "WARNING", f"{word} {before}")
    why = printable(text) or f"the agent said {word}"
    if is_failure:
        slot.say_item_failed(why, for_good=keyword == protocol.FAIL_FOR_GOOD)
    else:
        slot.say_item_blocked(why)


def _keep_result(state: State, slot: Slot, text: bytes, now: float) -> None:
    """Keep the result of a one-parameter job; it must be possible to write it again inside of other things."""
    job = slot.job
    if job is None or job.query is not None:
        return
    try:
        value: object = read_json(text.decode())
    except ValueError as error:
        _write(state, slot, "WARNING", f"RESULT is not JSON: {error}".encode(errors="backslashreplace"), now)
    else:
        job.set_result(value)


def ask_next(state: State, slot: Slot) -> None:
    """Run the next DB: line of an agent, once it has read the last answer."""
    if state.is_held:
        return
    if slot.clogged_until == NEVER and (text := slot.output.next_statement()) is not None:
        state.emit(RunStatement(slot.number, slot.serial, slot.pool.name, text))


def agent_stderr(state: State, slot: Slot, data: bytes, now: float) -> None:
    """Log each line on stderr, tagged with the slot."""
    for line in slot.output.stderr_lines(data, now):
        if slot.job is not None:
            slot.output.note_error(line, slot.total)
        if _charge_output(state, slot, line, now):
            state.log(slot, "STDERR", line)
            state.emit(Echo(f"STDERR[{slot.number}]: {printable(line)}"))
