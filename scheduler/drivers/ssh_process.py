"""Start the SSH process of one host, send it requests and receive its reports; nothing here knows SSH.

An agent on the host is three pipes and a few reports (model/ssh_protocol.py), in order: Started or NotStarted, then
Ended or Lost. They may come before the end of its output. Nothing here blocks: what the socket does not take is kept
until it does. A process that dies takes the connections with it, so its agents die; it is started again, later each
time. What the process and its link are is one state of the table HOST_LINK (model/states.py), which `_fire` moves.
"""

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from select import EPOLLIN, EPOLLOUT
from typing import Final

from scheduler.drivers.local_process import TRACED_S
from scheduler.drivers.loop import Loop, Timer
from scheduler.model.ssh_protocol import (
    PACKET_BYTES,
    TOO_LONG,
    Close,
    Ended,
    LinkDown,
    LinkUp,
    Lost,
    NotStarted,
    Ping,
    Pong,
    Report,
    Request,
    Signal,
    SshSettings,
    Start,
    Started,
    pack,
    unpack_report,
)  # fmt: skip
from scheduler.model.states import HOST_LINK, LinkEvent, LinkState

ENVIRONMENT: Final = frozenset({"HOME", "USER", "LOGNAME", "LANG", "PATH", "SSH_AUTH_SOCK", "LD_LIBRARY_PATH"})
MAX_REPORTS: Final = 64  # received in one iteration of the loop
PING_S: Final = 5.0
MAX_PINGS: Final = 4  # that may stay unanswered
RESEND_S: Final = 0.1
LONG_LIFE_S: Final = 60.0  # after it a death is the first again
MAX_DOUBLINGS: Final = 30
LAST_WAIT_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends of the pipes of an agent, which never block; the caller who starts it closes them."""

    stdin: int
    stdout: int
    stderr: int


class SshProcess:
    """The process of one host, and the agents there; `report` is called from the loop only."""

    def __init__(
        self,
        loop: Loop,
        settings: SshSettings,
        report: Callable[[Report], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._loop, self._settings, self._report = loop, settings, report
        self._environment = {name: text for name, text in environment.items() if name in ENVIRONMENT}
        self._is_started: dict[int, bool] = {}  # by id, of all agents whose end was not reported
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._state, self._timer = LinkState.WAITING, Timer(lambda: None)
        self._popen: subprocess.Popen[bytes] | None = None
        self._pidfd: int
        self._sock: socket.socket
        self._deaths, self._started_at = 0, loop.now
        self._pings = 0  # since the last report
        self._start_process()

    @property
    def pid(self) -> int | None:
        """The pid of the process, while there is one."""
        return self._popen.pid if self._popen is not None else None

    @property
    def _is_listening(self) -> bool:
        return self._popen is not None and self._sock.fileno() >= 0

    def start(self, start: Start) -> Ends:
        """Start an agent. Errors: OSError when we can open no more files."""
        ours, theirs = _pipes()
        self._is_started[start.id] = False
        packet = pack(start)
        if not self._is_listening or len(packet) > PACKET_BYTES:
            _close(theirs)
            is_long = len(packet) > PACKET_BYTES
            why = TOO_LONG if is_long else "its SSH process is not running"
            refusal = NotStarted(start.id, why, is_items_fault=is_long, is_lost=not is_long)
            self._loop.at(self._loop.now, lambda: self._end(refusal))
        else:
            self._enqueue(packet, theirs)
        return Ends(*ours)

    def signal(self, id: int, name: str) -> None:
        """Send a signal to the process group of an agent; harmless when it is gone."""
        if id in self._is_started:
            self._request(Signal(id, name))

    def finish(self) -> None:
        """Kill all agents and let the process exit once their ends are reported; it is not started again."""
        self._fire(LinkEvent.CLOSE)
        self._request(Close())

    def kill(self) -> None:
        """Kill the process; its agents are lost, and another is started."""
        if self._popen is not None:
            self._popen.kill()
        self._fire(LinkEvent.KILLED)

    def close(self) -> None:
        """End the process, with it all agents, and report nothing; at the very end."""
        self._fire(LinkEvent.CLOSE)
        if self._popen is None:
            return
        self._close_socket()
        self._loop.unregister(self._pidfd)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(LAST_WAIT_MS):
            self._popen.kill()
        self._reap()
        self._fire(LinkEvent.REAPED)

    # ---- its life

    def _fire(self, event: LinkEvent, seconds: float = 0.0, then: Callable[[], None] | None = None) -> bool:
        """Move the link, and set what is done after so many seconds, or leave that; False if the event is ignored."""
        state = HOST_LINK.after(self._state, event)
        if state is None:
            return False
        self._state = state
        if then is not None or state is LinkState.CLOSED:
            self._timer.cancel()
        if then is not None and state is not LinkState.CLOSED:
            self._timer = self._loop.at(self._loop.now + seconds, then)
        return True

    def _start_process(self) -> None:
        self._started_at, self._pings = self._loop.now, 0
        try:
            self._spawn()
        except OSError as error:
            self._fell(LinkEvent.NOT_STARTED, f"its SSH process cannot be started: {error.strerror}")
            return
        self._loop.register(self._sock.fileno(), EPOLLIN, self._ready)
        self._loop.register(self._pidfd, EPOLLIN, lambda _mask: self._ended())
        self._fire(LinkEvent.STARTED, 0.0, self._ping)

    def _spawn(self) -> None:
        program = [sys.executable, "-P", "-m", "scheduler.ssh", json.dumps(asdict(self._settings))]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
            ours.setblocking(False)
            try:
                popen = subprocess.Popen(program, stdin=theirs.fileno(), env=self._environment, process_group=0)
            except OSError:
                ours.close()
                raise
        try:
            self._pidfd = os.pidfd_open(popen.pid)
        except OSError:  # its end would not be seen
            ours.close()
            popen.kill()
            popen.wait()
            raise
        self._popen, self._sock = popen, ours

    def _ping(self) -> None:
        """Ask whether it runs, and kill it when it hangs. Pings are counted: we may be the one who was stopped."""
        self._fire(LinkEvent.PINGED, PING_S, self._ping)
        self._pings += 1
        if self._pings > MAX_PINGS:
            self.kill()
        else:
            self._request(Ping())

    def _ended(self) -> None:
        """Receive its last reports, and reap it; its agents die with its connections."""
        while self._receive_one():
            pass
        self._close_socket()
        self._loop.unregister(self._pidfd)
        self._reap_if_possible()

    def _reap_if_possible(self) -> None:
        """Reap it, or try again soon: a debugger may hold up that its end is learnt."""
        self._fire(LinkEvent.ENDED, TRACED_S, self._reap_if_possible)
        if self._popen is not None and self._popen.poll() is not None:
            self._fell(LinkEvent.REAPED, f"its SSH process {_how_it_ended(self._reap())}")

    def _reap(self) -> int:
        assert self._popen is not None
        popen, self._popen = self._popen, None
        status = popen.wait()
        os.close(self._pidfd)
        return status

    def _close_socket(self) -> None:
        for _, fds in self._unsent:
            _close(fds)
        self._unsent.clear()
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()

    def _fell(self, event: LinkEvent, why: str) -> None:
        """Lose all agents, and start another process after a back-off, unless it was to close."""
        if self._loop.now - self._started_at > LONG_LIFE_S:
            self._deaths = 0
        delay = min(self._settings.retry_base_s * 2.0**self._deaths, self._settings.retry_max_s)
        self._deaths = min(self._deaths + 1, MAX_DOUBLINGS)
        self._fire(event, delay, self._start_process)
        for id, is_started in list(self._is_started.items()):
            self._end(Lost(id, why) if is_started else NotStarted(id, why, is_lost=True))
        if self._state is LinkState.WAITING:  # else the end of the last agent has closed it
            self._report(LinkDown(why, delay))

    # ---- requests and reports

    def _request(self, request: Request) -> None:
        if self._is_listening:
            self._enqueue(pack(request), ())

    def _enqueue(self, packet: bytes, fds: tuple[int, ...]) -> None:
        self._unsent.append((packet, fds))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        if not self._is_listening:
            return
        try:
            while self._unsent:
                packet, fds = self._unsent[0]
                socket.send_fds(self._sock, [packet], fds)
                self._unsent.popleft()
                _close(fds)
        except BlockingIOError:
            self._loop.modify(self._sock.fileno(), EPOLLIN | EPOLLOUT)
            return
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # more files in sockets than we may have
                self._loop.at(self._loop.now + RESEND_S, self._send)
            return  # else it is dead, and its pidfd becomes readable
        self._loop.modify(self._sock.fileno(), EPOLLIN)

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            for _ in range(MAX_REPORTS):
                if not self._receive_one():
                    return

    def _receive_one(self) -> bool:
        """Receive one report; False when there is none."""
        try:
            packet = self._sock.recv(PACKET_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # requests that it never read
            packet = b""
        if not packet:  # it dies, and its pidfd becomes readable
            self._loop.unregister(self._sock.fileno())
            return False
        self._handle(unpack_report(packet))
        return True

    def _handle(self, report: Report) -> None:
        self._pings = 0
        match report:
            case Pong():
                return
            case NotStarted() | Ended() | Lost():
                self._end(report)
                return
            case Started():
                self._is_started[report.id] = True
            case LinkUp() if not self._fire(LinkEvent.CONNECTED):
                return
            case LinkDown() if not self._fire(LinkEvent.DISCONNECTED):
                return
        self._report(report)

    def _end(self, report: NotStarted | Ended | Lost) -> None:
        if self._is_started.pop(report.id, None) is not None:
            self._report(report)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"has exited with {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the ends of three new pipes, ours and theirs, each in the order of 0, 1, 2."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        _close(tuple(made))
        raise
    stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = made
    for fd in (to_stdin, from_stdout, from_stderr):
        os.set_blocking(fd, False)
    return (to_stdin, from_stdout, from_stderr), (stdin, stdout, stderr)


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
