"""Our side of a warden: what it is asked, what it answers, and since when it has been silent.

A connection lives as long as its warden answers. The beat is confirmed by the answer, and counts from when it was sent:
what was sent later may never have arrived.
"""

from collections import defaultdict, deque
from collections.abc import Callable

import paramiko

from scheduler.ssh.mailbox import BufferEvent
from scheduler.ssh.paramiko_adapters import ParamikoSocket
from scheduler.ssh.relay import BROKEN, PIECE, Relay

Answer = Callable[[str], object]


class ControlSession:
    """The control session of one connection."""

    def __init__(
        self, relay: Relay, wire: ParamikoSocket, channel: paramiko.Channel, lost: Callable[[str], object]
    ) -> None:
        self._relay, self._wire, self._channel, self._lost = relay, wire, channel, lost
        self.confirmed_at = relay.loop.now
        self._beats: deque[float] = deque()
        self._waiting: dict[int, deque[Answer]] = defaultdict(deque)  # by pid, in the order in which they were asked
        self._heard = b""
        channel.settimeout(0.0)
        bell = BufferEvent(relay.calls, self._listen)
        channel.in_buffer.set_event(bell)
        bell.set()

    def beat(self) -> None:
        """Renew the lease."""
        self._beats.append(self._relay.loop.now)
        self._say("beat")

    def guard(self, pid: int, then: Answer) -> None:
        """Kill a group when the lease or the connection ends."""
        self._ask(f"add {pid}", pid, then)

    def signal(self, pid: int, name: str, then: Answer) -> None:
        """Send a signal to a group; it answers "gone" if nobody was there any more, "alive" for zombies too."""
        self._ask(f"kill {pid} {name}", pid, then)

    def end(self, pid: int, then: Answer) -> None:
        """Kill what is left of a group and guard it no longer."""
        self._ask(f"end {pid}", pid, then)

    def _ask(self, line: str, pid: int, then: Answer) -> None:
        self._waiting[pid].append(then)
        self._say(line)

    def _say(self, line: str) -> None:
        self._relay.cork(self._wire)
        try:
            self._channel.sendall(line.encode() + b"\n")
        except BROKEN:  # or a window that a few lines have shut: nobody reads them
            self._lost("its warden does not listen")

    def _listen(self) -> None:
        try:
            data = self._channel.recv(PIECE)
        except TimeoutError:
            return
        except BROKEN:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._take(line.decode("ascii", "replace").split())
        if self._channel.eof_received:  # closed without that is the end of the connection, of which its wire tells
            self._lost("its warden has ended")

    def _take(self, words: list[str]) -> None:
        match words:
            case ["beat"] if self._beats:
                self.confirmed_at = self._beats.popleft()
            case [pid, answer] if pid.isdigit() and (waiting := self._waiting.get(int(pid))):
                then = waiting.popleft()
                if not waiting:
                    del self._waiting[int(pid)]
                then(answer)
