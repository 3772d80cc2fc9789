"""Let inserts go by the filters of queues: the database makes a function of them, if they have changed."""

from collections.abc import Callable

from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps
from scheduler.model.queue_requests import Cells


def install_routes(ask: Callable[..., Steps[list[Cells]]]) -> Steps[None]:
    """Install the filters as they are now. What fails is tried again when tables are read, at each rescan."""
    for (failure,) in (yield from ask("install_routes")):
        if failure is None:
            log_line("info", "the filters of queues are installed")
        else:
            log_line("warning", f"the filters of queues are not installed yet: {failure.decode(errors='replace')}")
