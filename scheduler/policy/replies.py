"""What agents say, and what that does to a slot and its item; `hear` is the hot door of the core.

Bytes of an agent's output come in, the line to send it next goes out. Only OK ends an item. An OK that answers nothing,
a second OK in one read, an OK for a line that was not read, a line without end, a flood: each costs the agent its life.

What an agent says of one item is written out up to the `output_limit` of its type; then a warning says that the rest is
left out, and whoever goes on and on all the same is killed.
"""

import json
from collections.abc import Callable
from typing import Final

from scheduler.model import protocol
from scheduler.model.events import Echo, RunStatement, Send
from scheduler.model.jobs import LogRow
from scheduler.model.protocol import parse, printable
from scheduler.model.states import DIE, FINISH, NEVER, NEXT, OK, SAID, ST_READY
from scheduler.policy.assignment import advance, fill, give, next_turns, put_back, recall_unsent
from scheduler.policy.completion import finish
from scheduler.policy.dispatch import first_job, leave, must_leave
from scheduler.policy.entities import DISABLED, Job, Slot
from scheduler.policy.state import World

Act = Callable[[World, Slot, bytes, float], None]
_STDERR_LINE: Final = 8192  # bytes
_LINE_BYTES: Final = 64  # that a line costs whatever is in it
_FLOOD: Final = 64  # times the output that is written out
_SPARE_DEPTH: Final = 50


def hear(world: World, slot: Slot, data: bytes, now: float) -> bytes | None:
    """Take in what an agent printed and give the line to send it next, or None."""
    if data == b"OK\n" and not slot.held and slot.wanted is not DIE:
        answer = ok(world, slot, now)
        return answer if slot.ahead is None else _with_more(world, slot, answer, now)
    *lines, slot.held = (slot.held + data).split(b"\n")
    slot.heard = now
    limit, answer, before = world.timers.line_limit, None, slot.job
    for line in lines:
        if slot.wanted is DIE:
            break
        keyword, text = parse(line)
        if len(line) > limit:
            _violate(world, slot, f"line over {limit} bytes", now)
        elif keyword != protocol.OK:
            said(world, slot, keyword, text, now)
        elif answer is None:
            before = slot.job or before
            answer = ok(world, slot, now)
        else:
            _second_ok(world, slot, before, now)
    if len(slot.held) > limit and slot.wanted is not DIE:
        _violate(world, slot, f"line over {limit} bytes", now)
    if slot.wanted is not DIE:
        return answer if slot.ahead is None else _with_more(world, slot, answer, now)
    if answer is not None:
        take_back(world, slot)
    return None


def _with_more(world: World, slot: Slot, answer: bytes | None, now: float) -> bytes | None:
    """Add lines ahead to the answer, if there is room for any."""
    return (answer or b"") + fill(world, slot, now) or None


def ok(world: World, slot: Slot, now: float) -> bytes | None:
    """The agent is ready: its item is finished, and it gets the next one if one waits."""
    job = slot.job
    fire = world.slots.fire
    if job is None:
        was_wanted = slot.wanted
        if not fire(slot, OK, now):
            if was_wanted is not DIE:
                world.log(slot, "ERROR", f"{slot.reason}; killed")
            return None
        slot.heard = now
        slot.pool.reason = None
        slot.pool.idle[slot.host.name].append(slot)
        slot.host.idle[slot] = None
        if not slot.pool.enabled:
            world.slots.kill(slot, DISABLED, now)
        world.stirred.add(slot.pool)
        return None
    if slot.is_unsent:
        _refuse_early(world, slot, now)
        return None
    if slot.clogged_until != NEVER and slot.clogged_until <= slot.fed_at + world.timers.write_limit and not slot.ahead:
        _violate(world, slot, "OK for a line that was not read", now)  # it has not read since before that was sent
        return None
    finish(world, slot, job, now)
    if slot.ahead:
        advance(world, slot, now)
        return None
    turns = next_turns(slot) if world.feeding and slot.pool.may_begin else None
    if turns is not None and not slot.host.is_tight:
        fire(slot, NEXT, now)
        return give(world, slot, turns, now)
    slot.about = job.pk
    _rest(world, slot, now)
    return None


def _rest(world: World, slot: Slot, now: float) -> None:
    """The agent has nothing to do, or has to go."""
    world.slots.fire(slot, OK, now)
    if slot.state != ST_READY:
        return
    slot.pool.idle[slot.host.name].append(slot)
    slot.host.idle[slot] = None
    if slot.wanted is FINISH:
        world.slots.kill(slot, slot.reason, now)
    elif not slot.pool.enabled:
        world.slots.kill(slot, DISABLED, now)
    elif slot.host.is_tight and must_leave(slot, first_job(next_turns(slot))):
        leave(world, slot, now)
    world.stirred.add(slot.pool)
    world.stirred.update(world.starving)


def _refuse_early(world: World, slot: Slot, now: float) -> None:
    """The line was to be sent at the end of this turn, so this OK cannot be meant for it."""
    world.commands[:] = [c for c in world.commands if not (isinstance(c, Send) and c.slot == slot.number)]
    _violate(world, slot, "OK for a line that was not sent yet", now)
    take_back(world, slot)


def take_back(world: World, slot: Slot) -> None:
    """What was given but not sent goes back to the front of its lanes, untouched."""
    recall_unsent(world, slot)
    job, item = slot.job, slot.item
    if job is None or item is None:
        return
    job.in_flight -= 1
    host = slot.host.name if slot.is_bound else None
    if slot.lone:
        slot.pool.again.appendleft((job, item, host))
        slot.lone = False
    else:
        put_back(world, job, item, host)
    slot.part()


def _violate(world: World, slot: Slot, what: str, now: float) -> None:
    why = f"protocol violation: {what}"
    world.log_death(slot, why, killed=True)
    world.slots.kill(slot, why, now, counts=True)


def _second_ok(world: World, slot: Slot, job: Job | None, now: float) -> None:
    """One read had two OKs: the job that the first one ended is to blame, not the one whose line is not sent yet."""
    why = "protocol violation: OK for a line that was not sent yet"
    pk = job.pk if job is not None else slot.about
    world.ledger.log(LogRow(pk, "ERROR", slot.host.name, slot.pool.name, slot.pid, f"{why}; killed"))
    world.slots.kill(slot, why, now, counts=True)


# ---- everything but OK
def said(world: World, slot: Slot, keyword: bytes, text: bytes, now: float) -> None:
    """One line other than OK."""
    world.slots.fire(slot, SAID, now)
    slot.heard = now
    _ACTS.get(keyword, _debug)(world, slot, text, now)
    if slot.asks_bytes > world.timers.line_limit:
        _violate(world, slot, f"over {world.timers.line_limit} bytes of DB: lines that wait for answers", now)


def _is_written(world: World, slot: Slot, text: bytes, now: float) -> bool:
    """Count what an agent says of one item, and say whether this line of it is still to be written out."""
    if slot.told_of != slot.total:
        slot.told_of, slot.told, slot.is_cut = slot.total, 0, False
    limit, before = slot.pool.kind.output_limit, slot.told
    slot.told = before + len(text) + _LINE_BYTES
    if before < limit:
        return True
    if not slot.is_cut:
        slot.is_cut = True
        world.log(slot, "WARNING", f"over {limit} bytes of output about one item: the rest is left out")
    most = _FLOOD * (limit or world.timers.line_limit)
    if slot.told > most and slot.wanted is not DIE:
        _violate(world, slot, f"over {most} bytes of output about one item", now)
    return False


def _write(world: World, slot: Slot, kind: str, text: bytes, now: float) -> None:
    if _is_written(world, slot, text, now):
        world.log(slot, kind, text)


def _show(world: World, slot: Slot, prefix: str, text: bytes, now: float) -> None:
    if _is_written(world, slot, text, now):
        world.commands.append(Echo(prefix + printable(text)))


def _log(kind: str) -> Act:
    def act(world: World, slot: Slot, text: bytes, now: float) -> None:
        _write(world, slot, kind, text, now)

    return act


def _error(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Logged; the item goes on, and the job ends with the non-fatal bit."""
    _write(world, slot, "ERROR", text, now)
    if slot.job is not None:
        slot.job.nonfatal = True


def _success(world: World, slot: Slot, text: bytes, now: float) -> None:
    world.successes += 1


def _items(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Counts in place of the 1 that the item would count."""
    if slot.job is None:
        _write(world, slot, "WARNING", b"ItemsProcessed without an item in hand: it is to come before the OK", now)
    elif text.isdigit() and len(text) < 10:
        slot.counted = (slot.counted or 0) + int(text)
    else:
        _write(world, slot, "WARNING", b"ItemsProcessed without a number: " + text[:100], now)


def _heartbeat(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Any line is one."""


def _echo(world: World, slot: Slot, text: bytes, now: float) -> None:
    _show(world, slot, "", text, now)


def _fail(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Logged at the end of the item; of several reasons all but the last at once."""
    if slot.job is not None:
        if _is_written(world, slot, text, now) and slot.failed is not None:
            world.log(slot, "ERROR", f"FAIL {slot.failed}")
        slot.failed = printable(text) or "the agent said FAIL"


def _blocked(world: World, slot: Slot, text: bytes, now: float) -> None:
    """The same for the reason why the item cannot be done now."""
    if slot.job is not None:
        if _is_written(world, slot, text, now) and slot.blocked is not None:
            world.log(slot, "WARNING", f"BLOCKED {slot.blocked}")
        slot.blocked = printable(text) or "the agent said BLOCKED"


def _result(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Stored with a one-parameter job."""
    job = slot.job
    if job is None or job.expansion is not None:
        return
    try:
        job.result = _storable(text)
    except (ValueError, RecursionError) as error:
        _write(world, slot, "WARNING", f"RESULT is not JSON: {error}".encode(errors="backslashreplace"), now)


def _storable(text: bytes) -> object:
    """Give the value of a JSON text; ValueError or RecursionError when it could not be written as JSON again."""
    value: object = json.loads(text)
    json.loads(b"[" * _SPARE_DEPTH + text + b"]" * _SPARE_DEPTH)  # it is written inside of other things, elsewhere
    json.dumps(value, allow_nan=False)
    return value


def _db(world: World, slot: Slot, text: bytes, now: float) -> None:
    """Asked when the answers to earlier ones are read, so that they come in order and never more than two wait."""
    slot.asks.append(text)
    slot.asks_bytes += len(text) + _LINE_BYTES
    ask_next(world, slot)


def ask_next(world: World, slot: Slot) -> None:
    """Ask the database what an agent has asked next, once it has read what it was told."""
    if slot.asks and not slot.is_asking and slot.clogged_until == NEVER:
        text = slot.asks.popleft()
        slot.asks_bytes -= len(text) + _LINE_BYTES
        slot.is_asking = True
        world.commands.append(RunStatement(slot.number, slot.serial, slot.pool.name, text))


def _debug(world: World, slot: Slot, text: bytes, now: float) -> None:
    _show(world, slot, f"DEBUG[{slot.number}]: ", text, now)


_ACTS: Final[dict[bytes, Act]] = {
    protocol.ERROR: _error,
    protocol.WARNING: _log("WARNING"),
    protocol.FATAL: _log("FATAL"),
    protocol.LOG: _log("LOG"),
    protocol.SUCCESS: _success,
    protocol.ITEMS: _items,
    protocol.HEARTBEAT: _heartbeat,
    protocol.ECHO: _echo,
    protocol.DB: _db,
    protocol.FAIL: _fail,
    protocol.BLOCKED: _blocked,
    protocol.RESULT: _result,
}


def hear_err(world: World, slot: Slot, data: bytes, now: float) -> None:
    """Take in stderr: each line is logged, tagged with the slot; a line without end is cut into pieces."""
    slot.heard = now
    *lines, slot.held_err = (slot.held_err + data).split(b"\n")
    if len(slot.held_err) > _STDERR_LINE:
        lines.append(slot.held_err)
        slot.held_err = b""
    for line in lines:
        if _is_written(world, slot, line, now):
            world.log(slot, "STDERR", line)
            world.commands.append(Echo(f"STDERR[{slot.number}]: {printable(line)}"))
