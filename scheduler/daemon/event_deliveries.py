"""Deliveries of events: have what is due queued as jobs of type notify, and look at how these ended.

The database decides (function drover.queue_deliveries); here is only when it is asked. A delivery that ends, or that is
new, is notified on channel drover_delivery; a look at every rescan finds what was missed.
"""

from typing import Final

from scheduler.daemon.command_rows import Ask, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps

MOST: Final = 200  # deliveries of one statement


def go_on(ask: Ask) -> Steps[float | None]:
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
