"""Supervises the SSH process of one host: starts it, sends it requests, and starts it again with back-off when it dies.

Its reports (ssh_protocol.py) are passed on. A process that dies takes the connections with it, so its agents die. What
the process and its link are is one state of the table HOST_LINK (model/states.py).
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from select import EPOLLIN
from typing import Any, Final

from scheduler.drivers import ssh_protocol as ssh
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.os_calls import (
    TRACED_S,
    Ends,
    close_all,
    is_pidfd_of,
    is_readable,
    pidfd_of,
    pipes,
    signal_name,
    spawn,
)
from scheduler.drivers.ssh_protocol import PacketSocket
from scheduler.errors import BugError
from scheduler.model.states import HOST_LINK, LinkEvent, LinkState

NOT_FOR_SSH: Final = ("PG", "DROVER_")  # beginnings of variables; ssh(1) and its Match exec have all others
LONG_LIFE_S: Final = 60.0  # after it a death is the first again
MAX_DOUBLINGS: Final = 30
LAST_WAIT_S: Final = 1.0


class LinkProcess:
    """The process of a host: a child of ours, or of a program before us."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid, self._pidfd = pid, pidfd
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it has not."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end, and return how it ended."""
        return self._wait(0) or 0

    def kill(self) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # another process is its parent, or has reaped it
                self._status = 0 if is_readable(self._pidfd, 0.0 if options else LAST_WAIT_S) else None
            else:
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


class SshProcess:
    """The process of one host, and the agents there; `report` is called from the loop only."""

    def __init__(
        self, loop: Loop, settings: ssh.SshSettings, report: Callable[[ssh.Report], None],
        environment: Mapping[str, str] = os.environ, snapshot: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._loop, self._settings, self._report = loop, settings, report
        self._environment = {name: text for name, text in environment.items() if not name.startswith(NOT_FOR_SSH)}
        self._is_started: dict[int, bool] = {}  # by id, of all agents whose end was not reported
        self._state, self._timer = LinkState.WAITING, Timer(lambda: None)
        self._process: LinkProcess | None = None
        self._pidfd: int
        self._socket: PacketSocket
        self._deaths, self._started_at = 0, loop.now
        self._pings = 0  # since the last report
        self._rereads = True  # that of a program before us may not know the request
        self._restart_at = 0.0  # while it waits
        if snapshot is None:
            self._start_process()
        else:
            self._restore(snapshot)

    # ---- another program that takes over

    def obstacle(self) -> str:
        """Return what is under way that cannot be handed over yet."""
        if self._state in (LinkState.DYING, LinkState.CLOSING):
            return "its SSH process ends"
        return "requests to its SSH process wait" if self._is_listening and self._socket.has_unsent else ""

    @property
    def fds(self) -> list[int]:
        """Return the descriptors that `snapshot` names."""
        return [] if self._process is None else [self._pidfd, self._socket.fileno()]

    def freeze(self) -> None:
        """Send and receive nothing, nor notice the end of the process, until `thaw`."""
        self._timer.cancel()
        if self._process is not None:
            self._loop.unregister(self._pidfd)
            self._socket.freeze()

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        if self._process is not None:
            self._loop.register(self._pidfd, EPOLLIN, lambda _mask: self._ended())
            self._socket.thaw()
            self._fire(LinkEvent.PINGED, 0.0, self._ping)
        elif self._state is LinkState.WAITING:
            self._timer = self._loop.at(self._restart_at, self._start_process)

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it: JSON, with the numbers of descriptors."""
        process = None if self._process is None else [self._process.pid, *self.fds]
        return {
            "state": self._state.name, "process": process, "rereads": self._rereads, "deaths": self._deaths,
            "started_at": self._started_at, "restart_at": self._restart_at,
            "agents": [[id, is_on] for id, is_on in self._is_started.items()],
        }  # fmt: skip

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue with the process of a snapshot, frozen."""
        self._state, self._deaths = LinkState[snapshot["state"]], int(snapshot["deaths"])
        self._started_at, self._restart_at = float(snapshot["started_at"]), float(snapshot["restart_at"])
        self._rereads = bool(snapshot.get("rereads"))
        self._is_started = {int(id): bool(is_started) for id, is_started in snapshot["agents"]}
        if snapshot["process"] is not None:
            pid, self._pidfd, fd = snapshot["process"]
            if not is_pidfd_of(pid, self._pidfd):
                raise BugError(f"the state of the program before names SSH process {pid}, its descriptor another")
            self._process = LinkProcess(pid, self._pidfd)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
            self._socket = PacketSocket(self._loop, sock, self._receive, lambda: None)
            self._socket.freeze()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, start: ssh.Start) -> Ends:
        """Start an agent and return our ends of its pipes, which never block. Errors: OSError."""
        ours, theirs = pipes()
        for fd in ours:
            os.set_blocking(fd, False)
        self._is_started[start.id] = False
        packet = ssh.pack(start)
        is_long = len(packet) > ssh.PACKET_BYTES
        if is_long or not self._is_listening:
            close_all(theirs)
            why = ssh.TOO_LONG if is_long else "its SSH process is not running"
            refusal = ssh.NotStarted(start.id, why, is_items_fault=is_long, is_lost=not is_long)
            self._loop.at(self._loop.now, lambda: self._end(refusal))
        else:
            self._socket.send(packet, theirs)
        return ours

    def signal(self, id: int, name: str) -> None:
        """Send a signal to the process group of an agent; harmless when it is gone."""
        if id in self._is_started:
            self._request(ssh.Signal(id, name))

    def reread(self) -> None:
        """Read OpenSSH's configuration again."""
        if self._rereads:
            self._request(ssh.Reread())

    def finish(self) -> None:
        """Kill all agents and let the process exit once their ends are reported; it is not started again."""
        self._fire(LinkEvent.CLOSE)
        self._request(ssh.Close())

    def kill(self) -> None:
        """Kill the process; its agents are lost, and another is started."""
        if self._process is not None:
            self._process.kill()
        self._fire(LinkEvent.KILLED)

    def close(self) -> None:
        """End the process, with it all agents, and report nothing; at the very end."""
        self._fire(LinkEvent.CLOSE)
        if self._process is None:
            return
        self._socket.close()
        self._loop.unregister(self._pidfd)
        if not is_readable(self._pidfd, LAST_WAIT_S):
            self._process.kill()
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
            self._restart_later(LinkEvent.NOT_STARTED, f"its SSH process cannot be started: {error.strerror}")
            return
        self._loop.register(self._pidfd, EPOLLIN, lambda _mask: self._ended())
        self._fire(LinkEvent.STARTED, 0.0, self._ping)

    def _spawn(self) -> None:
        program = (sys.executable, "-P", "-m", "scheduler.ssh", json.dumps(asdict(self._settings)))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = spawn(program, self._environment, [theirs.fileno()])
            self._pidfd = pidfd_of(pid)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self._rereads = LinkProcess(pid, self._pidfd), True
        # The end of the socket is the death of the process, which makes the pidfd readable.
        self._socket = PacketSocket(self._loop, ours, self._receive, lambda: None)

    def _ping(self) -> None:
        """Ask whether it runs, and kill it when it hangs. Pings are counted: we may be the one who was stopped."""
        self._fire(LinkEvent.PINGED, self._settings.ping_s, self._ping)
        self._pings += 1
        if self._pings > self._settings.max_pings:
            self.kill()
        else:
            self._request(ssh.Ping())

    def _ended(self) -> None:
        """Receive its last reports, and reap it; its agents die with its connections."""
        self._socket.receive_all()
        self._socket.close()
        self._loop.unregister(self._pidfd)
        self._reap_if_possible()

    def _reap_if_possible(self) -> None:
        """Reap it, or try again soon: a debugger may hold up that its end is learnt."""
        self._fire(LinkEvent.ENDED, TRACED_S, self._reap_if_possible)
        if self._process is not None and self._process.poll() is not None:
            status = self._reap()
            how = f"has exited with {status}" if status >= 0 else f"died of {signal_name(-status)}"
            self._restart_later(LinkEvent.REAPED, f"its SSH process {how}")

    def _reap(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        status = process.wait()
        os.close(self._pidfd)
        return status

    def _restart_later(self, event: LinkEvent, why: str) -> None:
        """Lose all agents, and start another process after a back-off, unless it was to close."""
        if self._loop.now - self._started_at > LONG_LIFE_S:
            self._deaths = 0
        delay = min(self._settings.retry_base_s * 2.0**self._deaths, self._settings.retry_max_s)
        self._deaths = min(self._deaths + 1, MAX_DOUBLINGS)
        self._restart_at = self._loop.now + delay
        self._fire(event, delay, self._start_process)
        if self._state is LinkState.WAITING:
            self._report(ssh.LinkDown(why, delay))  # first: a start that fails on a host that is up counts as a death
        for id, is_started in list(self._is_started.items()):
            self._end(ssh.Lost(id, why) if is_started else ssh.NotStarted(id, why, is_lost=True))

    # ---- requests and reports

    @property
    def _is_listening(self) -> bool:
        return self._process is not None and self._socket.is_open

    def _request(self, request: ssh.Request) -> None:
        if self._is_listening:
            self._socket.send(ssh.pack(request))

    def _receive(self, packet: bytes, _fds: tuple[int, ...]) -> None:
        self._pings = 0
        match report := ssh.unpack(packet, ssh.REPORTS):
            case ssh.Pong():
                return
            case ssh.NotStarted() | ssh.Ended() | ssh.Lost() | ssh.Left():
                self._end(report)
                return
            case ssh.Started():
                self._is_started[report.id] = True
            case ssh.LinkUp() if not self._fire(LinkEvent.CONNECTED):
                return
            case ssh.LinkDown() if not self._fire(LinkEvent.DISCONNECTED):
                return
        self._report(report)

    def _end(self, report: ssh.NotStarted | ssh.Ended | ssh.Lost | ssh.Left) -> None:
        if self._is_started.pop(report.id, None) is not None:
            self._report(report)
