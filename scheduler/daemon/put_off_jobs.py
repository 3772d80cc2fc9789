"""Frees the jobs that a rate limit put off which was changed or removed since: those of one queue, page by page.

drover.queue has since when that is to be done, so a daemon that takes over goes on with it. The queue connection may
still save a job that the limit of before put off; so a queue is done only when a pass that began a while after the new
limit was read has found none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.daemon.command_rows import Context, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps
from scheduler.model.events_and_effects import Woken
from scheduler.model.queue_requests import Cells

PAGE: Final = 2000  # rows that wait for an instant
GAP_S: Final = 0.05  # between two pages
LOCKED_S: Final = 1.0  # until a page with rows that others have locked is read again
SAVED_S: Final = 5.0  # after which nothing is on its way that a limit of before put off
FIRST: Final = "-infinity"


@dataclass(slots=True)
class _Pass:
    changed: str  # the instant in the row of the queue
    known_at: float
    began: float
    next_at: float  # when its next page is to be read
    after: str = FIRST
    freed: int = 0


class PutOffJobs:
    """The queues whose rate limit has changed, and how far each is read. `due_in` lets `free` run after seconds."""

    def __init__(self, context: Context, due_in: Callable[[float], None]) -> None:
        self._context, self._due_in = context, due_in
        self._passes: dict[str, _Pass] = {}

    def changed(self, queues: Mapping[str, str]) -> None:
        """Learn which queues have another rate limit, and since when."""
        now = self._context.now()
        before, self._passes = self._passes, {}
        for name, changed in queues.items():
            known = before.get(name)
            self._passes[name] = known if known and known.changed == changed else _Pass(changed, now, now, now)
        self._set_timer()

    def free(self) -> Steps[None]:
        """Read the next page of a queue, if one is due, and free what its limit of before put off."""
        now = self._context.now()
        due = [(name, each) for name, each in self._passes.items() if each.next_at <= now]
        for name, each in due[:1]:
            values = {"queue": name, "after": each.after, "most": PAGE, "current": self._context.core.rate_text(name)}
            rows = yield from self._context.ask("free_put_off", **values)
            if self._passes.get(name) is each:
                yield from self._go_on(name, each, rows)
        self._set_timer()

    def _set_timer(self) -> None:
        """Let `free` run when the next page of a queue is due."""
        if self._passes:
            self._due_in(max(0.0, min(each.next_at for each in self._passes.values()) - self._context.now()))

    def _go_on(self, name: str, each: _Pass, rows: Sequence[Cells]) -> Steps[None]:
        now = self._context.now()
        for freed, found, last in rows:
            each.freed += int(freed or 0)
            if freed not in (None, b"0"):
                log_line("info", f"queue {name}: {text_of(freed)} jobs that another rate limit put off are free")
                self._context.core.handle(Woken(), now)
            if freed != found:
                each.next_at = now + LOCKED_S
            elif last is not None:
                each.after, each.next_at = text_of(last), now + GAP_S
            else:
                yield from self._end_pass(name, each, now)

    def _end_pass(self, name: str, each: _Pass, now: float) -> Steps[None]:
        if each.freed or each.began < each.known_at + SAVED_S:
            each.began = each.next_at = max(now + GAP_S, each.known_at + SAVED_S)
            each.after, each.freed = FIRST, 0
            return
        yield from self._context.ask("put_off_is_free", queue=name, changed=each.changed)
        del self._passes[name]
