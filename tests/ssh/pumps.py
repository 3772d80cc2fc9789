"""Agents on one host that send back what they are fed, with hashes of both, and how long none of it moved."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from random import Random
from select import EPOLLIN, EPOLLOUT
from typing import Final

from scheduler.drivers.loop import Loop
from scheduler.drivers.ssh_protocol import Ended, LinkUp, Lost, NotStarted, Report, SshSettings, Start, Started
from scheduler.drivers.ssh_supervisor import SshProcess
from tests.loop_tools import turn_until
from tests.ssh.sshd import Server

ECHO: Final = (b"sh", b"-c", b"cat; exit 3")
DONE: Final = 3  # the status with which ECHO exits, so that no other end is taken for it
PIECE_BYTES: Final = 65_536

# sshd logs each exchange of keys, and nothing else that it would not say anyway.
LOGGED: Final = {"LogVerbose": "kex.c:kex_send_kexinit():*,kex.c:kex_input_kexinit():*"}
OURS, THEIRS = "received", "sent"  # the first of the two packets that sshd logs for each exchange
EXCHANGE: Final = re.compile(rf"\(pid=(\d+)\): SSH2_MSG_KEXINIT ({OURS}|{THEIRS})")
# Settings for a busy machine; what an agent said last may come after its end, and an exchange of keys holds it up.
PATIENT: Final = {"connect_s": 60.0, "lease_s": 40, "answer_s": 60.0, "ping_s": 30.0, "orphan_s": 60.0}
STALLED_S: Final = 60.0  # without a byte: it will not come


def exchanges(server: Server) -> tuple[int, int]:
    """Return how many exchanges of keys we began, and how many sshd; without the first of each connection."""
    said: dict[str, list[str]] = defaultdict(list)  # by the process that serves a connection
    for line in server.log().splitlines():
        if (found := EXCHANGE.search(line)) and "[preauth]" not in line:
            said[found[1]].append(found[2])
    began = [word for words in said.values() for word in words[::2]]
    return began.count(OURS), began.count(THEIRS)


class Pump:
    """One agent; it ends when the pieces do. `pause` leaves its output in the pipe."""

    def __init__(self, pumps: "Pumps", id: int, pieces: Iterable[bytes]) -> None:
        self.id, self._pumps, self._loop = id, pumps, pumps.loop
        self._pieces, self._unsent = iter(pieces), memoryview(b"")
        self._fed, self._read = sha256(), sha256()
        self.fed_bytes = self.read_bytes = 0
        self.errors = b""
        self.end: Report | None = None
        self._is_paused = False
        self._moved_at = self._loop.now
        self.gap_s = 0.0  # the longest time for which something was under way, and nothing came
        self._stdin, self._stdout, self._stderr = pumps.process.start(Start(id, ECHO))
        self._open = {self._stdin, self._stdout, self._stderr}
        self._loop.register(self._stdin, EPOLLOUT, self._feed)
        self._loop.register(self._stdout, EPOLLIN, self._receive)
        self._loop.register(self._stderr, EPOLLIN, self._complain)

    @property
    def is_over(self) -> bool:
        return self.end is not None and not self._open

    @property
    def is_intact(self) -> bool:
        """Return whether all that was fed came back, and nothing else."""
        is_same = self._fed.digest() == self._read.digest() and not self.errors
        return is_same and self.end == Ended(self.id, code=DONE)

    @property
    def is_stalled(self) -> bool:
        """Return whether it waits for bytes, or for its end, and has got nothing for very long."""
        is_waiting = self.fed_bytes > self.read_bytes or self._stdin not in self._open
        return is_waiting and not self._is_paused and self._loop.now - self._moved_at > STALLED_S

    def began(self) -> None:
        """Count gaps from now on: it runs."""
        self._moved_at = self._loop.now

    def pause(self) -> None:
        """Read nothing until `go_on`."""
        if not self._is_paused and self._stdout in self._open:
            self._is_paused = True
            self._loop.unregister(self._stdout)

    def go_on(self) -> None:
        """Read again."""
        if self._is_paused:
            self._is_paused, self._moved_at = False, self._loop.now
            self._loop.register(self._stdout, EPOLLIN, self._receive)

    def ended(self, report: Report) -> None:
        """Note how it ended; nothing reads what it is fed any more."""
        self.end = report
        self._close(self._stdin)

    def finish(self) -> None:
        """Feed it no more, so that it ends."""
        self._pieces = iter(())
        self.go_on()

    def close(self) -> None:
        """Close what is open; it was lost, or the test is over."""
        for fd in list(self._open):
            self._close(fd)

    def _feed(self, _mask: int) -> None:
        if not self._unsent:
            self._unsent = memoryview(next(self._pieces, b""))
        if not self._unsent:
            self._close(self._stdin)
            return
        with suppress(BlockingIOError, BrokenPipeError):
            self._advance(os.write(self._stdin, self._unsent))

    def _advance(self, count: int) -> None:
        if self.fed_bytes == self.read_bytes:
            self._moved_at = self._loop.now
        self._fed.update(self._unsent[:count])
        self.fed_bytes += count
        self._pumps.through_bytes += count
        self._unsent = self._unsent[count:]

    def _receive(self, _mask: int) -> None:
        data = os.read(self._stdout, PIECE_BYTES)
        if self.end is None:  # else the gap is that of a last word
            self.gap_s = max(self.gap_s, self._loop.now - self._moved_at)
        self._moved_at = self._loop.now
        self._read.update(data)
        self.read_bytes += len(data)
        self._pumps.through_bytes += len(data)
        if not data:
            self._close(self._stdout)

    def _complain(self, _mask: int) -> None:
        data = os.read(self._stderr, PIECE_BYTES)
        self.errors += data
        if not data:
            self._close(self._stderr)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            if not (fd == self._stdout and self._is_paused):
                self._loop.unregister(fd)
            os.close(fd)


class Pumps:
    """The supervisor's side of the SSH process of one host, and its pumps."""

    def __init__(self, settings: SshSettings) -> None:
        self.loop = Loop()
        self.through_bytes = 0  # both ways
        self.running: dict[int, Pump] = {}
        self.others: list[Report] = []  # that no pump should give rise to: of a link that was lost, say
        self._ids = iter(range(1 << 62))
        self.process = SshProcess(self.loop, settings, self._note)
        self.until(lambda: self.others)
        assert self.others == [LinkUp()]
        self.others.clear()

    def start(self, pieces: Iterable[bytes]) -> Pump:
        id = next(self._ids)
        pump = self.running[id] = Pump(self, id, pieces)
        return pump

    def finish(self, pumps: Iterable[Pump]) -> None:
        """Wait until these are over, for as long as anything moves."""
        for pump in pumps:
            while not pump.is_over:
                before = self.through_bytes
                self.until(lambda pump=pump, before=before: pump.is_over or self.through_bytes > before)  # type: ignore[misc]

    def until(self, is_so: Callable[[], object]) -> None:
        """Turn the loop until it is so."""
        turn_until(self.loop, is_so)

    def close(self) -> None:
        """End the process and all agents."""
        self.process.close()
        for pump in self.running.values():
            pump.close()
        self.loop.close()

    def _note(self, report: Report) -> None:
        match report:
            case Started():
                self.running[report.id].began()
            case NotStarted() | Ended() | Lost():
                self.running.pop(report.id).ended(report)
            case _:
                self.others.append(report)


def pieces(random: Random, size: int, longest: int) -> Iterator[bytes]:
    """Yield so many bytes in pieces of random length."""
    while size > 0:
        piece = random.randbytes(min(size, random.randint(1, longest)))
        size -= len(piece)
        yield piece


def lines(random: Random, count: int) -> Iterator[bytes]:
    """Yield so many short lines."""
    return (b"%x\n" % random.getrandbits(8 * random.randint(1, 40)) for _ in range(count))
