"""`drover pause` and `drain`: start no more jobs, of queues or at all; with --wait until what was in hand has ended."""

from argparse import Namespace
from collections.abc import Callable
from math import inf
from time import monotonic, sleep
from typing import Final

from scheduler.cli import admin
from scheduler.cli.output import as_json, failed
from scheduler.cli.progress import Progress
from scheduler.cli.session import Session, connect
from scheduler.model.config import Config

POLL_S: Final = 1.0  # nothing announces that nothing is in hand any more


def pause(options: Namespace, config: Config) -> int:
    """Pause queues, all if none is named; with --wait until none of their jobs is in hand."""
    with connect(config) as session:
        words = " ".join(["pause", *options.queues])
        queues = options.queues or None
        return _send_and_wait(session, options, words, lambda: session.value("jobs_in_hand", queues=queues))


def drain(options: Namespace, config: Config) -> int:
    """Let all schedulers finish what they have in hand, and end; with --wait until they have."""
    with connect(config) as session:
        if not session.value("is_any_scheduler_active"):
            print(as_json({"drained": True}) if options.json else "no scheduler is active: there is nothing to drain")
            return 0
        return _send_and_wait(session, options, "shutdown", lambda: _left(session))


def _left(session: Session) -> int:
    """Return how many jobs are in hand; 1 if none is, but a scheduler still ends."""
    in_hand: int = session.value("jobs_in_hand", queues=None)
    return in_hand or int(session.value("is_any_scheduler_active"))


def _send_and_wait(session: Session, options: Namespace, words: str, left: Callable[[], int]) -> int:
    limit_s = inf if options.wait is None else options.wait
    ends_at = monotonic() + limit_s
    status = admin.send_and_print(session, [words], limit_s, json=options.json)
    if status or options.wait is None:
        return status
    still = _wait_until_none(left, ends_at)
    if still:
        return failed(f"after {limit_s:g} s, {still:,} jobs are still in hand; drover ls -S running lists them")
    print(as_json({"in_hand": 0}) if options.json else "nothing is in hand any more")
    return 0


def _wait_until_none(left: Callable[[], int], ends_at: float) -> int:
    """Wait until nothing is left, or until then; return what is left."""
    most = still = left()
    progress = Progress(most, "jobs")
    while still and monotonic() < ends_at:
        progress.show(most - still)
        sleep(min(POLL_S, max(ends_at - monotonic(), 0.0)))
        still = left()
        most = max(most, still)
    progress.clear()
    return still
