"""Our side of a control session: how it is started, what is asked of it, and what it answers.

The control session is a small shell on the host. It holds a lease, which each heartbeat renews; when the lease runs
out, or the connection ends, it kills every process group that was added, and what has left one. So agents die when the
supervisor, this process or the network is gone. A connection is alive while its control session answers; an answer
counts from when its heartbeat was sent, as what came later may be lost.

What has left its group may be anywhere in /proc, so that is searched for all agents at once that have ended since the
last time.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import paramiko

from scheduler.drivers.os_calls import MOST_PID
from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.connection_troubles import text_of, told, who
from scheduler.ssh.login_output import LoginOutput, await_reply
from scheduler.ssh.paramiko_io import BROKEN, PIECE_BYTES, BufferEvent, ParamikoSocket, Relay
from scheduler.ssh.remote_scripts import RemotePid, control_script, is_ready, new_word, read_reply, shown

NOISE_BYTES: Final = 8192  # of a line that is no answer
PID_DIGITS: Final = len(str(MOST_PID))
SWEEP_S: Final = 1.0  # from the end of an agent to a search for what has left its group
MOST_SHOWN: Final = 10
SWEEP_REST: Final = 20  # times as long as a search took: until the next, so that it uses a twentieth of a processor
SWEEP_REST_S: Final = 10.0  # no longer than that: what dies slowly was waited for
NO_COMMANDS: Final = "it runs no commands for us"

OnAnswer = Callable[[], object]


def start_control_session(transport: paramiko.Transport, settings: SshSettings) -> tuple[paramiko.Channel, str]:
    """Return the channel of a control session that runs, and its word; blocks. Errors: WorldError."""
    word, account = new_word(), who(settings)
    trouble = "no session"
    try:
        channel = transport.open_session(timeout=settings.connect_s)
        trouble = "no commands"
        script = control_script(word, settings.lease_s)
        channel.exec_command(script.command)
        await_reply(channel, LoginOutput(word, read_reply), settings)
        channel.sendall(script.line)
        await_reply(channel, LoginOutput(word, is_ready), settings)
    except BROKEN as error:
        is_lost = not transport.is_active() or transport.saved_exception is not None  # that comes first
        trouble = "cut off" if is_lost else trouble
        raise WorldError(f"{NO_COMMANDS}: {told(trouble, why=text_of(error), who=account)}") from error
    except WorldError as error:
        raise WorldError(f"{NO_COMMANDS}: {error}") from error
    return channel, word


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
        self, relay: Relay, sock: ParamikoSocket, channel: paramiko.Channel, word: str, on_lost: Callable[[str], object]
    ) -> None:
        self._relay, self._sock, self._channel, self._on_lost = relay, sock, channel, on_lost
        self._word = f"{word} ".encode()
        self.confirmed_at = relay.loop.now
        self._beats: deque[float] = deque()
        self._pending: dict[int, deque[Answer]] = defaultdict(deque)  # by pid, in the order of the requests
        self._is_sweeping = self._is_sweep_due = False  # one that is planned is under way
        self._swept_from = self._rest_until = 0.0
        self._on_left: Callable[[str], object] = lambda _why: None
        self._received = b""
        channel.settimeout(0.0)
        event = BufferEvent(relay.calls, self._receive)
        channel.in_buffer.set_event(event)
        event.set()

    def beat(self) -> None:
        """Renew the lease."""
        self._beats.append(self._relay.loop.now)
        self._send("beat")

    def add(self, process: RemotePid, on_answer: OnAnswer) -> Answer:
        """Have a process group killed when the lease or the connection ends.

        The answer is "added"; "gone"; or "stranger", for a process that is not the shim with this word.
        """
        return self._ask(f"add {process.pid} {process.word}", process.pid, on_answer)

    def signal(self, pid: int, name: str, on_answer: OnAnswer = lambda: None) -> Answer:
        """Send a signal to a process group that was added.

        The answer is "alive", which zombies are too; "gone"; or "refused", as it runs as another user. It is guarded no
        longer when it is gone, or KILL was refused.
        """
        return self._ask(f"kill {pid} {name}", pid, on_answer)

    def sweep(self, on_left: Callable[[str], object]) -> None:
        """Have what has left the groups of ended agents killed soon; `on_left` is called if it is there after that."""
        self._on_left, self._is_sweep_due = on_left, True
        if not self._is_sweeping:
            self._is_sweeping = True
            self._relay.loop.at(max(self._relay.loop.now + SWEEP_S, self._rest_until), self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._is_sweep_due, self._swept_from = False, self._relay.loop.now
        self._send("sweep")

    def _swept(self, left: list[str]) -> None:
        now = self._relay.loop.now
        self._is_sweeping = False
        self._rest_until = now + min(SWEEP_REST * (now - self._swept_from), SWEEP_REST_S)
        if pids := [each for each in left if each.isdecimal()]:
            self._on_left(f"killed as left by ended agents, and still there: process {', '.join(pids[:MOST_SHOWN])}")
        if self._is_sweep_due:
            self.sweep(self._on_left)

    def fail(self, why: str) -> None:
        """Give the host up, which answers what cannot be."""
        self._on_lost(why)

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
            _, is_reply, reply = line.rpartition(self._word)  # else, and before it, it is another process's output
            if is_reply:
                self._handle(reply.decode("ascii", "replace").split())
        if len(self._received) > NOISE_BYTES:
            self._on_lost(f"its control session printed {shown(self._received)} and more, without an end of line")
        if self._channel.eof_received:  # closed without that is the end of the connection, which its socket reports
            self._on_lost("its control session has ended")

    def _handle(self, words: list[str]) -> None:
        match words:
            case ["beat"] if self._beats:
                self.confirmed_at = self._beats.popleft()
            case ["swept", *left] if self._is_sweeping:
                self._swept(left)
            case [pid, text] if pid.isdecimal() and len(pid) <= PID_DIGITS and (pending := self._pending.get(int(pid))):
                answer = pending.popleft()
                if not pending:
                    del self._pending[int(pid)]
                answer.come(text)
