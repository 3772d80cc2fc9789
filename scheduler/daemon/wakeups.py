"""Limits how often notifications wake the daemon, by channel; probes whether they arrive, and polls while they do not.

NOTIFY is unrestricted, and each wake-up asks the database something, so each channel is rate-limited: BURST at once,
and one every `gap_s` seconds in the long run; what comes sooner waits and becomes one. A wake-up that led to something
does not count, so plain inserts are never delayed. The queue connection itself listens to what it claims for: while it
is down nothing can be claimed, and when it is up again everything is asked for; the watch connection hears all else.

Where a pooler gives each transaction another server process, LISTEN fails silently. So the daemon notifies itself now
and then, over another connection than the one that listens: a server process delivers its own notifications with its
next answer, whatever is in between. For the same reason a notification that arrives after a statement of the listening
connection proves nothing, and the probe is repeated. While none arrives, the queue is polled.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from scheduler.drivers.loop import Callback, Loop, Steps, Task, Until
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statement_runner import AGAIN_S, NOTIFY, RefusedStatements, answer_to
from scheduler.drivers.statements import Failure, Query

LISTEN_TO_QUEUE: Final = "listen drover_queue"  # run by the connection that claims: its server process is awake then
BURST: Final = 5  # wake-ups of a channel that pass at once
WITHIN_S: Final = 2.0  # from the commit of a notification to its arrival, at most
POOLER: Final = "a pooler gives each transaction another connection"
SILENCE: Final = "the database tells us nothing"
FULL: Final = "the NOTIFY queue of the server is full"


class Clock(Protocol):
    """The part of Loop that NotifyRateLimit uses: the time, and calls at an instant."""

    @property
    def now(self) -> float: ...

    def at(self, instant: float, call: Callable[[], None], /) -> "Cancellable": ...


class Cancellable(Protocol):
    """A call that is to come."""

    def cancel(self) -> None: ...


class NotifyRateLimit:
    """Passes on the notifications of each channel, as many as its rate allows."""

    def __init__(self, clock: Clock, wake: Callable[[str], None], gap_s: float) -> None:
        self._clock, self._wake, self._gap_s = clock, wake, gap_s
        self._used_until: dict[str, float] = {}  # when a channel has its whole allowance again
        self._delayed: dict[str, Cancellable] = {}

    def set_gap(self, gap_s: float) -> None:
        """Apply another rate."""
        self._gap_s = gap_s

    def notified(self, channel: str) -> None:
        """Pass a notification on, now or later; payloads are ignored."""
        if channel in self._delayed:
            return
        now = self._clock.now
        earliest = self._used_until.get(channel, now) - (BURST - 0.5) * self._gap_s
        if now >= earliest:
            self._pass_on(channel)
        else:
            self._delayed[channel] = self._clock.at(earliest, partial(self._pass_on, channel))

    def was_worthwhile(self, channel: str) -> None:
        """Do not count a wake-up of this channel, which led to something; pass the delayed one on now."""
        self._used_until[channel] = self._used_until.get(channel, 0.0) - self._gap_s
        if timer := self._delayed.get(channel):
            timer.cancel()
            self._pass_on(channel)

    def _pass_on(self, channel: str) -> None:
        self._delayed.pop(channel, None)
        self._used_until[channel] = max(self._used_until.get(channel, 0.0), self._clock.now) + self._gap_s
        self._wake(channel)


class ListenProbe:
    """Notifies itself over `sender` by query `probe_listen`; polls while `listener` does not receive that.

    `listen` is what `listener` ran to listen, last for the channel of the probe.
    """

    def __init__(
        self, loop: Loop, query: Query, sender: Connection, listener: Connection, listen: Sequence[str],
        refused: RefusedStatements, poll: Callable[[], None], log: Callable[[str, str], None], *, every: float,
        poll_interval: float,
    ) -> None:  # fmt: skip
        self.channel = listen[-1].split()[1]
        self.is_polling = False
        self._loop, self._query, self._sender, self._listener, self._listen = loop, query, sender, listener, listen
        self._refused, self._poll, self._log = refused, poll, log
        self._every, self._poll_interval = every, poll_interval
        self._task: Task[None] | None = None
        self._arrived: int | None = None  # statements of the listener when the last probe arrived
        self._resume: Callable[[], None] | None = None  # what waits for its arrival

    def start(self) -> None:
        """Probe now: the listener is connected, or there may be no room for notifications."""
        if self._task:
            self._task.stop()
        self._task = Task(self._loop, self._probe_repeatedly()).start()

    def arrived(self, channel: str) -> bool:
        """Take note of a notification; return False if it is not of the probe."""
        if channel != self.channel:
            return False
        self._arrived = self._listener.sent
        if self._resume:
            self._resume()
        return True

    # ---- probing

    def _probe_repeatedly(self) -> Steps[None]:
        while self._listener.is_up:  # else `start` comes
            wait_s = yield from self._probe()
            yield Until(self._loop.now + wait_s)

    def _probe(self) -> Steps[float]:
        """Probe once; return the seconds to the next time."""
        if not self._sender.is_up:
            return AGAIN_S
        if self.is_polling:  # listen again: the reason may have been the end of LISTEN alone
            yield from answer_to(self._sender, LISTEN_TO_QUEUE)
            for text in self._listen:
                listens = yield from answer_to(self._listener, text)
            if isinstance(listens, Failure):
                return self._every
        sent, self._arrived = self._listener.sent, None
        answer = yield from answer_to(self._sender, self._query, {"channel": self.channel})
        if isinstance(answer, Failure):
            if answer.is_of_notify:
                self._refused.refused(NOTIFY, answer)
                Task(self._loop, self._poll_repeatedly(FULL)).start()
            return AGAIN_S
        if answer.rows[0][-1] == b"t":
            self._refused.accepted(NOTIFY)
        if (yield Callback(self._call_when_arrived)):
            return self._has_arrived(sent)
        if not self._listener.is_idle:  # nothing arrives before its statement has ended
            return AGAIN_S
        why = POOLER if self._listener.is_pooled else SILENCE
        Task(self._loop, self._poll_repeatedly(why)).start()
        return self._every

    def _call_when_arrived(self, resume: Callable[[bool], None]) -> None:
        """Call with True when the probe arrives, if it has not yet, and with False later; the first call counts."""
        self._resume = partial(resume, True)
        self._loop.at(self._loop.now + WITHIN_S, partial(resume, False))
        if self._arrived is not None:
            resume(True)

    def _has_arrived(self, sent: int) -> float:
        if sent != self._arrived:  # it came with the answer to a statement, and proves nothing
            return AGAIN_S
        if self.is_polling:
            self.is_polling = False
            self._log("info", "LISTEN is heard again")
        return self._every

    def _poll_repeatedly(self, why: str) -> Steps[None]:
        if self.is_polling:
            return
        self.is_polling = True
        self._log("warning", f"LISTEN gets nothing ({why}): the queue is polled every {self._poll_interval:g} s")
        while self.is_polling:
            self._poll()
            yield Until(self._loop.now + self._poll_interval)
