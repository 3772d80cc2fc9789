"""Deliveries of events: have what is due queued as jobs of type notify, look at how these ended, remove what is over.

The database decides (function drover.queue_deliveries); here is only when it is asked. A delivery that ends, or that is
new, is notified on channel drover_delivery; a look at every rescan finds what was missed.
"""

from typing import Final

from scheduler.daemon.command_rows import Ask, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps

MOST: Final = 200  # deliveries of one statement
PIECE: Final = 5000  # events that one statement looks at to remove some


class Deliveries:
    """The deliveries of a daemon; it remembers how far it looked for events to remove."""

    def __init__(self) -> None:
        self._beyond = 0

    def go_on(self, ask: Ask) -> Steps[float | None]:
        """Record the tries that ended, queue what is due; return the seconds until the next look, if that is known."""
        rows = yield from ask("queue_deliveries", most=MOST)
        if not rows:
            return None
        dead, queued, seconds = rows[0]
        if dead not in (None, b"0"):
            log_line("warning", f"deliveries of events given up: {text_of(dead)}; see drover events --dead")
        if queued not in (None, b"0"):
            log_line("debug", f"deliveries of events queued: {text_of(queued)}")
        return None if seconds is None else float(seconds)

    def tidy(self, ask: Ask) -> Steps[None]:
        """Record jobs without a consumer as dead letters, report impossible rows, and remove events that are over."""
        ((found,),) = (yield from ask("find_alternates", most=MOST)) or [(None,)]
        if found not in (None, b"0"):
            log_line("warning", f"jobs that no scheduler takes: {text_of(found)} more; see drover events --dead")
        ((found,),) = (yield from ask("find_alerts", most=MOST)) or [(None,)]
        if found not in (None, b"0"):
            log_line("warning", f"jobs that cannot be as they are: {text_of(found)} more; see drover status")
        ((place,),) = yield from ask("forget_events", beyond=self._beyond, most=PIECE)
        self._beyond = int(place or 0)
