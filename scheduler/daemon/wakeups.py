"""Wake-ups from the database: how many are let through, and whether any arrive at all.

NOTIFY is unrestricted, and each wake-up asks the database something, so a channel is rate-limited (NotifyRateLimit).
Where a pooler gives each transaction another server process, LISTEN fails silently, so it is probed (ListenProbe).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import Answer, Failure, Query
from scheduler.drivers.statements import NOTIFY, RefusedStatements

BURST: Final = 5
WITHIN_S: Final = 2.0  # from the commit of a notification to its arrival, at most
AGAIN_S: Final = 1.0  # when a ring proved nothing
POOLER: Final = "a pooler gives each transaction another connection"
SILENCE: Final = "the database tells us nothing"
FULL: Final = "the NOTIFY queue of the server is full"


class NotifyRateLimit:
    """What stands between the notifications and those whom they wake."""

    def __init__(self, loop: Loop, wake: Callable[[str], None], gap_s: float) -> None:
        self._loop, self._wake = loop, wake
        self.gap_s = gap_s
        self._paid: dict[str, float] = {}  # until when a channel has used up its rings
        self._waiting: dict[str, Timer] = {}

    def ring(self, channel: str) -> None:
        """Somebody has notified a channel; its payload is nobody's business."""
        if channel in self._waiting:
            return
        now = self._loop.now
        early = self._paid.get(channel, now) - (BURST - 0.5) * self.gap_s
        if now >= early:
            self._pass_on(channel)
        else:
            self._waiting[channel] = self._loop.at(early, partial(self._pass_on, channel))

    def worthwhile(self, channel: str) -> None:
        """A wake-up of this channel led to something: it is not counted, and the one that waits is told now."""
        self._paid[channel] = self._paid.get(channel, 0.0) - self.gap_s
        if timer := self._waiting.get(channel):
            timer.cancel()
            self._pass_on(channel)

    def _pass_on(self, channel: str) -> None:
        self._waiting.pop(channel, None)
        self._paid[channel] = max(self._paid.get(channel, 0.0), self._loop.now) + self.gap_s
        self._wake(channel)


class ListenProbe:
    """Notifies by `voice` with query `probe_listen`; while `ear` does not receive it, calls `poll` periodically."""

    def __init__(
        self,
        loop: Loop,
        ring: Query,
        say: Callable[[str, str], None],
        poll: Callable[[], None],
        refusals: RefusedStatements,
        *,
        every: float,
        poll_interval: float,
    ) -> None:
        self.channel = f"drover_probe_{uuid4().hex}"
        self.is_deaf = False
        self._loop, self._query, self._say, self._poll = loop, ring, say, poll
        self._refusals = refusals
        refusals.notify_is_full = self.up
        self._every, self._poll_interval = every, poll_interval
        self._sent: int | None = None  # statements of the ear when we rang; None: we have not
        self._timer: Timer | None = None
        self._voice: Connection  # given by `attach`, as the links need our callbacks first
        self._ear: Connection

    def attach(self, voice: Connection, ear: Connection, listen: Sequence[str]) -> None:
        """Take the connections; `listen` is what `ear` ran to hear others."""
        self._voice, self._ear, self._listen = voice, ear, (*listen, f"listen {self.channel}")

    def up(self) -> None:
        """Ring now: the ear is connected, or there may be no room for notifications."""
        self._wait(0.0, self._ring)

    def heard(self, channel: str) -> bool:
        """Take a notification; false if it is not our own."""
        if channel != self.channel:
            return False
        sent, self._sent = self._sent, None
        if sent is not None and sent != self._ear.sent:
            self._wait(AGAIN_S, self._ring)
        elif sent is not None:
            self._hears()
        return True

    # ---- ringing

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.at(self._loop.now + seconds, then)

    def _ring(self) -> None:
        if not self._ear.is_up:
            return  # `up` comes
        if not self._voice.is_up:
            self._wait(AGAIN_S, self._ring)
        elif self.is_deaf:
            self._listen_anew()
        else:
            self._ring_now()

    def _listen_anew(self) -> None:
        """Whatever made us deaf may have been the end of LISTEN alone."""
        *first, last = self._listen
        for text in first:
            self._ear.run(text, lambda _: None)
        self._ear.run(last, lambda answer: None if isinstance(answer, Failure) else self._ring_now())
        self._wait(self._every, self._ring)

    def _ring_now(self) -> None:
        self._sent = self._ear.sent
        self._voice.ask(self._query, {"channel": self.channel}, self._rung)

    def _rung(self, answer: Answer) -> None:
        if isinstance(answer, Failure):
            self._sent = None
            self._wait(AGAIN_S, self._ring)
            if answer.is_of_notify:
                self._refusals.refused(NOTIFY, answer)
                self._go_deaf(FULL)
            return
        if answer.rows[0][-1] == b"t":
            self._refusals.accepted(NOTIFY)
        if self._sent is not None:
            self._wait(WITHIN_S, self._unheard)

    # ---- what came of it

    def _hears(self) -> None:
        if self.is_deaf:
            self.is_deaf = False
            self._say("info", "LISTEN is heard again")
        self._wait(self._every, self._ring)

    def _unheard(self) -> None:
        self._sent = None
        if not self._ear.is_idle:  # nobody is told of anything before his statement has ended
            self._wait(AGAIN_S, self._ring)
            return
        self._wait(self._every, self._ring)
        self._go_deaf(POOLER if self._ear.is_pooled else SILENCE)

    def _go_deaf(self, why: str) -> None:
        if self.is_deaf:
            return
        self.is_deaf = True
        self._say("warning", f"LISTEN is not heard ({why}): the queue is looked at every {self._poll_interval:g} s")
        self._look()

    def _look(self) -> None:
        if self.is_deaf:
            self._poll()
            self._loop.at(self._loop.now + self._poll_interval, self._look)
