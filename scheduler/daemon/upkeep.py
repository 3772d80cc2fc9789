"""Passes over tables that all groups share: what was not settled, what no scheduler takes, what is over.

A pass begins at each rescan and looks at one piece of each table a second. So it costs the same however many rows of
other groups, or of no group, are in the tables, and the lease and due rows come in between.
"""

import json
from collections import Counter
from typing import Final

from scheduler.daemon.command_rows import Context, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps
from scheduler.model.list_bounds import WORST, and_more

GAP_S: Final = 1.0  # from one piece to the next
PARENTS: Final = 200  # with children that are not settled, of a piece
PLACES: Final = 100  # a type and a queue in which jobs wait
JOBS: Final = 200  # in these, that no scheduler takes
ROWS: Final = 200  # events, subscriptions
_NUMBERED: Final = ("rescan", "forget_events", "forget_subscriptions")  # queries that go on after a number


class Upkeep:
    """The passes of a daemon; it remembers how far each got."""

    def __init__(self) -> None:
        self._beyond: dict[str, int] = {}  # of the passes under way
        self._place: tuple[str, str] | None = None  # of the pass over places
        self._alerts_wait = False
        self._recovers = False  # the pass over parents was begun after a loss: what it finds is not late
        self._missing: Counter[str] = Counter()  # queues that this pass has found not to exist, and the jobs in them
        self._warned: set[str] = set()

    def begin(self, *, recovers: bool) -> None:
        """Begin the passes that are not under way."""
        self._recovers = recovers or (self._recovers and "rescan" in self._beyond)
        self._beyond = dict.fromkeys(_NUMBERED, 0) | self._beyond
        self._place = self._place or ("", "")
        self._alerts_wait = True

    def go_on(self, context: Context) -> Steps[bool]:
        """Look at a piece of each table whose pass is under way; return whether there is more."""
        for query, beyond in list(self._beyond.items()):
            yield from self._look_beyond(context, query, beyond)
        if self._place is not None:
            yield from self._look_at_places(context, *self._place)
        if self._alerts_wait:
            yield from self._find_alerts(context)
        return bool(self._beyond) or self._place is not None

    def _look_beyond(self, context: Context, query: str, beyond: int) -> Steps[None]:
        most = PARENTS if query == "rescan" else ROWS
        ((*parents, place),) = yield from context.ask(query, beyond=beyond, most=most)
        if place is None:
            del self._beyond[query]
        else:
            self._beyond[query] = int(place)
        for listed in parents:
            context.settle_listed(listed, is_late=not self._recovers)

    def _look_at_places(self, context: Context, kind: str, queue: str) -> Steps[None]:
        rows = yield from context.ask("find_unserved", type=kind, queue=queue, places=PLACES, most=JOBS)
        self._place = None
        for entered, unknown, last_type, last_queue in rows:
            if entered not in (None, b"0"):
                log_line("warning", f"jobs that no scheduler takes: {text_of(entered)} more; see drover events --dead")
            self._missing.update(json.loads(unknown or b"{}"))
            if last_type is not None:
                self._place = text_of(last_type), text_of(last_queue)
        if self._place is None:
            self._warn_of_missing_queues()

    def _warn_of_missing_queues(self) -> None:
        """Warn of queues that jobs of our types name and that do not exist, once as long as that is so."""
        new = [(name, jobs) for name, jobs in self._missing.most_common() if name not in self._warned]
        advice = "; add it to the configuration, or with drover queue add"
        for name, jobs in new[:WORST]:
            log_line("warning", f"no queue '{name}', in which jobs wait: {jobs}{advice}")
        if (left := len(new) - WORST) > 0:
            log_line("warning", and_more(left, "queues that do not exist, in which jobs wait", "see drover status -v"))
        self._warned, self._missing = set(self._missing), Counter()

    def _find_alerts(self, context: Context) -> Steps[None]:
        self._alerts_wait = False
        ((found,),) = (yield from context.ask("find_alerts", most=JOBS)) or [(None,)]
        if found not in (None, b"0"):
            log_line("warning", f"jobs that cannot be as they are: {text_of(found)} more; see drover status")
