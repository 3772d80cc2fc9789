"""The supervisor's side of one SSH host: starts its bridge, asks it, hears its reports; knows nothing of SSH.

An agent on the host is three pipes and a few reports (model/ssh_protocol.py), told in order: Started or NotStarted,
then Ended or Lost. They may come before the end of its output. Nothing here blocks: what the socket does not take is
kept until it does. A bridge that dies takes the connections with it, so its agents die; it is started anew, later
each time.
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

from scheduler.drivers.local_process import TRACED_S
from scheduler.drivers.loop import Loop, Timer
from scheduler.model.ssh_protocol import (
    PACKET_BYTES,
    TOO_LONG,
    Close,
    Ended,
    LinkDown,
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
)

KEPT = frozenset({"HOME", "USER", "LOGNAME", "LANG", "PATH", "SSH_AUTH_SOCK", "LD_LIBRARY_PATH"})
MOST = 64  # reports heard in one turn
PING_S = 5.0  # between two questions whether it is there
SOON_S = 0.1
PATIENCE = 4  # questions that it may leave unanswered
LONG_LIFE_S = 60.0  # after it a death is the first again
LAST_WAIT_MS = 1000

Tell = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends of the pipes of an agent, which never block; whoever starts it closes them."""

    stdin: int
    stdout: int
    stderr: int


class SshProcess:
    """The agents of one host; `tell` is called from the loop only."""

    def __init__(
        self, loop: Loop, settings: SshSettings, tell: Tell, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._loop, self._settings, self._tell = loop, settings, tell
        self._environment = {name: text for name, text in environment.items() if name in KEPT}
        self._is_started: dict[int, bool] = {}  # by id, of all agents whose end was not told
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._popen: subprocess.Popen[bytes] | None = None
        self._deaths, self._begun_at = 0, loop.now
        self._is_ending = False
        self._sock: socket.socket
        self._pidfd: int
        self._again: Timer | None = None
        self._pings = 0  # since it was heard last
        self._begin()
        self._ping()

    @property
    def pid(self) -> int | None:
        """The pid of the bridge process, while there is one."""
        return self._popen.pid if self._popen is not None else None

    def start(self, start: Start) -> Ends:
        """Start an agent; errors: OSError when we can open no more files."""
        ours, theirs = _pipes()
        self._is_started[start.id] = False
        packet = pack(start)
        if self._popen is None or len(packet) > PACKET_BYTES:
            _close(theirs)
            is_long = len(packet) > PACKET_BYTES
            why = TOO_LONG if is_long else "its bridge is not running"
            refusal = NotStarted(start.id, why, is_items_fault=is_long, is_lost=not is_long)
            self._loop.at(self._loop.now, lambda: self._end(refusal))
        else:
            self._ask(packet, theirs)
        return Ends(*ours)

    def signal(self, id: int, name: str) -> None:
        """Send a signal to the group of an agent; harmless when it is gone."""
        if id in self._is_started:
            self._request(Signal(id, name))

    def end(self) -> None:
        """Kill all agents and let the bridge end once their ends are told; it is not started again."""
        self._is_ending = True
        if self._again is not None:
            self._again.cancel()
        self._request(Close())

    def _ping(self) -> None:
        """Ask whether it is there; one that hangs is killed. Counted, for it may be us who were stopped for a while."""
        if self._is_ending and self._popen is None:
            return
        self._pings += 1
        if self._pings > PATIENCE:
            self.break_down()
        else:
            self._request(Ping())
        self._loop.at(self._loop.now + PING_S, self._ping)

    def break_down(self) -> None:
        """Kill its process; its agents are lost, and another is started."""
        if self._popen is not None:
            self._popen.kill()

    def close(self) -> None:
        """End the bridge, with it all agents, and tell nobody; at the very end."""
        if self._again is not None:
            self._again.cancel()
        if self._popen is None:
            return
        self._hang_up()
        self._loop.unregister(self._pidfd)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(LAST_WAIT_MS):
            self._popen.kill()
        self._reap()

    # ---- its process

    def _begin(self) -> None:
        self._again, self._pings, self._begun_at = None, 0, self._loop.now
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._fell(f"its bridge cannot be started: {error.strerror}")
            return
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        ours.setblocking(False)
        try:
            self._popen, self._pidfd = self._start_process(theirs)
        except OSError as error:
            ours.close()
            self._fell(f"its bridge cannot be started: {error.strerror}")
            return
        finally:
            theirs.close()
        self._sock = ours
        self._loop.register(ours.fileno(), EPOLLIN, self._ready)
        self._loop.register(self._pidfd, EPOLLIN, lambda _mask: self._died())

    def _start_process(self, theirs: socket.socket) -> "tuple[subprocess.Popen[bytes], int]":
        program = [sys.executable, "-P", "-m", "scheduler.ssh", json.dumps(asdict(self._settings))]
        popen = subprocess.Popen(program, stdin=theirs.fileno(), env=self._environment, process_group=0)
        try:
            return popen, os.pidfd_open(popen.pid)
        except OSError:  # nobody would see its end
            popen.kill()
            popen.wait()
            raise

    def _died(self) -> None:
        """Hear its last reports, then start another; its agents die with its connections."""
        while self._hear_one():
            pass
        self._hang_up()
        self._loop.unregister(self._pidfd)
        self._reap_when_over()

    def _reap_when_over(self) -> None:
        """Start another once the end of this one can be learnt, which a debugger may hold up."""
        if self._popen is None:
            return
        if self._popen.poll() is None:
            self._loop.at(self._loop.now + TRACED_S, self._reap_when_over)
            return
        self._fell(f"its bridge {_how_it_ended(self._reap())}")

    def _reap(self) -> int:
        assert self._popen is not None
        popen, self._popen = self._popen, None
        status = popen.wait()
        os.close(self._pidfd)
        return status

    def _hang_up(self) -> None:
        for _, fds in self._unsent:
            _close(fds)
        self._unsent.clear()
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()

    def _fell(self, why: str) -> None:
        if self._loop.now - self._begun_at > LONG_LIFE_S:
            self._deaths = 0
        delay = min(self._settings.retry_base_s * 2.0**self._deaths, self._settings.retry_max_s)
        self._deaths = min(self._deaths + 1, 30)
        for id, is_started in list(self._is_started.items()):
            self._end(Lost(id, why) if is_started else NotStarted(id, why, is_lost=True))
        if self._is_ending:
            return
        self._tell(LinkDown(why, delay))
        self._again = self._loop.at(self._loop.now + delay, self._begin)

    # ---- what is said

    def _request(self, request: Request) -> None:
        if self._popen is not None:
            self._ask(pack(request), ())

    def _ask(self, packet: bytes, fds: tuple[int, ...]) -> None:
        self._unsent.append((packet, fds))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
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
            if error.errno == errno.ETOOMANYREFS:  # more files on their way than we may have
                self._loop.at(self._loop.now + SOON_S, self._send)
            return  # else it is dead, and its pidfd tells so
        self._loop.modify(self._sock.fileno(), EPOLLIN)

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            self._hear()

    def _hear(self) -> None:
        for _ in range(MOST):
            if not self._hear_one():
                return

    def _hear_one(self) -> bool:
        """Take one report; False when there is none."""
        try:
            packet = self._sock.recv(PACKET_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # requests that it never read
            packet = b""
        if not packet:  # it dies, and its pidfd tells so
            self._loop.unregister(self._sock.fileno())
            return False
        self._take(unpack_report(packet))
        return True

    def _take(self, report: Report) -> None:
        self._pings = 0
        if isinstance(report, Pong):
            return
        if isinstance(report, Started):
            self._is_started[report.id] = True
            self._tell(report)
        elif isinstance(report, (NotStarted, Ended, Lost)):
            self._end(report)
        else:
            self._tell(report)

    def _end(self, report: NotStarted | Ended | Lost) -> None:
        if self._is_started.pop(report.id, None) is not None:
            self._tell(report)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"has exited with {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Make three pipes: our ends, their ends, each in the order of 0, 1, 2."""
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
