"""The control session of a connection: a small shell on the host that signals the agents there and guards them.

It holds a lease, which each heartbeat renews; when the lease runs out, or the connection ends, it kills every process
group that was added. So agents die when the supervisor, this process or the network is gone. A connection is alive
while its control session answers; an answer counts from when its heartbeat was sent, as what came later may be lost.
"""

import re
import shlex
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.paramiko_adapters import BROKEN, BufferEvent, ParamikoSocket
from scheduler.ssh.relay import PIECE_BYTES, Relay

PID_LINE: Final = re.compile(rb"DROVER (\d+)\n")  # the first line of our scripts; a login shell may print before it
NOISE_BYTES: Final = 8192  # what may come before that line

# For any POSIX sh, as a host needs nothing but sshd. Traps: dash takes a negative pid only as `kill -s SIG -- -PID`;
# `read` has a time limit in some shells only, so a ticker writes into the same pipe; writing to a dead connection must
# not kill the script before it has killed the agents, so it ignores SIGPIPE. `kill` is the shell's own: it needs no
# session and no place in a full process table.
TICKS: Final = 5
SCRIPT: Final = """\
trap "" PIPE HUP INT TERM
{ while sleep TICK_S; do echo tick || exit; done & cat; echo over; } | {
groups= missed=0
send_signal() { kill -s "$2" -- "-$1"; if kill -s 0 -- "-$1"; then echo "$1 alive"; else echo "$1 gone"; fi; }
echo "DROVER $$"
while read -r verb pid name; do
case $verb in
tick) missed=$((missed + 1)); [ $missed -lt TICKS ] || break ;;
beat) missed=0; echo beat ;;
add) groups="$groups $pid"; echo "$pid added" ;;
kill) send_signal "$pid" "$name" ;;
end) send_signal "$pid" KILL; others=
for each in $groups; do [ "$each" = "$pid" ] || others="$others $each"; done; groups=$others ;;
over) break ;;
esac
done
for pid in $groups; do kill -s KILL -- "-$pid"; done
kill -s KILL -- -$$
} 2>/dev/null
"""


def control_command(lease_s: int) -> bytes:
    """Return the command of a control session that kills `lease_s` seconds, at least 2, after the last heartbeat."""
    tick_s = max(lease_s // TICKS, 1)
    return shell_command(SCRIPT.replace("TICK_S", str(tick_s)).replace("TICKS", str(max(lease_s // tick_s, 2))))


def shell_command(script: str, *words: bytes) -> bytes:
    """Return the command that replaces a login shell by /bin/sh with a script and its arguments."""
    quoted = (shlex.quote(word.decode("latin-1")).encode("latin-1") for word in words)
    return b" ".join((b"exec /bin/sh -c", shlex.quote(script).encode(), b"sh", *quoted))


def start_control_session(transport: paramiko.Transport, settings: SshSettings) -> paramiko.Channel:
    """Return the channel of a control session that runs; blocks. Errors: WorldError."""
    received = b""
    try:
        channel = transport.open_session(timeout=settings.connect_s)
        channel.exec_command(control_command(settings.lease_s))
        channel.settimeout(settings.connect_s)
        while not PID_LINE.search(received):
            data = channel.recv(NOISE_BYTES)
            if not data or len(received) > NOISE_BYTES:
                with suppress(*BROKEN):
                    received += channel.recv_stderr(NOISE_BYTES)
                raise paramiko.SSHException(f"its shell said {received[:200]!r} and no more")
            received += data
    except BROKEN as error:
        raise WorldError(f"it runs no commands for us: {error or 'no answer'}") from error
    return channel


OnAnswer = Callable[[], object]


@dataclass(slots=True)
class Answer:
    """The answer to one request, empty until it has come; `on_come` is called then."""

    on_come: OnAnswer
    text: str = ""

    def come(self, text: str) -> None:
        self.text = text
        self.on_come()


class ControlSession:
    """Our side of a control session: the requests that were sent, and what was answered."""

    def __init__(
        self, relay: Relay, sock: ParamikoSocket, channel: paramiko.Channel, on_lost: Callable[[str], object]
    ) -> None:
        self._relay, self._sock, self._channel, self._on_lost = relay, sock, channel, on_lost
        self.confirmed_at = relay.loop.now
        self._beats: deque[float] = deque()
        self._pending: dict[int, deque[Answer]] = defaultdict(deque)  # by pid, in the order of the requests
        self._received = b""
        channel.settimeout(0.0)
        event = BufferEvent(relay.calls, self._receive)
        channel.in_buffer.set_event(event)
        event.set()

    def beat(self) -> None:
        """Renew the lease."""
        self._beats.append(self._relay.loop.now)
        self._send("beat")

    def add(self, pid: int, on_answer: OnAnswer) -> Answer:
        """Have a process group killed when the lease or the connection ends."""
        return self._ask(f"add {pid}", pid, on_answer)

    def signal(self, pid: int, name: str, on_answer: OnAnswer = lambda: None) -> Answer:
        """Send a signal to a process group; the answer is "gone" or "alive", which zombies are too."""
        return self._ask(f"kill {pid} {name}", pid, on_answer)

    def end(self, pid: int, on_answer: OnAnswer) -> Answer:
        """Kill what is left of a process group, and guard it no longer; answered as `signal` is."""
        return self._ask(f"end {pid}", pid, on_answer)

    def _ask(self, line: str, pid: int, on_answer: OnAnswer) -> Answer:
        answer = Answer(on_answer)
        self._pending[pid].append(answer)
        self._send(line)
        return answer

    def _send(self, line: str) -> None:
        self._relay.cork(self._sock)
        try:
            self._channel.sendall(line.encode() + b"\n")
        except BROKEN:  # or a few lines have shut the window: the script does not read any more
            self._on_lost("its control session takes no requests")

    def _receive(self) -> None:
        try:
            data = self._channel.recv(PIECE_BYTES)
        except TimeoutError:
            return
        except BROKEN:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._handle(line.decode("ascii", "replace").split())
        if self._channel.eof_received:  # closed without that is the end of the connection, which its socket reports
            self._on_lost("its control session has ended")

    def _handle(self, words: list[str]) -> None:
        match words:
            case ["beat"] if self._beats:
                self.confirmed_at = self._beats.popleft()
            case [pid, text] if pid.isdigit() and (pending := self._pending.get(int(pid))):
                answer = pending.popleft()
                if not pending:
                    del self._pending[int(pid)]
                answer.come(text)
