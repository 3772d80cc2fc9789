"""Pump data through one host whose keys are exchanged all the time: `python -m tests.soak.rekeying --gb 100`.

Some agents get short lines, some bulk, and some start and end all the time; each sends back what it is fed, and both
are hashed. In turns of random length, bulk is pumped, so that we ask for new keys after so many bytes, and is held up
with full pipes both ways, so that sshd asks after so many seconds. Prints a line now and then: what went through, the
exchanges that we and sshd began, the agents that have ended, those that were lost or whose bytes differ, and the
longest time for which an agent that waited for bytes got none; `--no-exchanges` shows that of the machine itself. The
exit status is 1 if anything was lost.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from typing import Final

from scheduler.drivers.ssh_protocol import Note
from tests import guard
from tests.ssh.pumps import LOGGED, PATIENT, Pump, Pumps, exchanges, lines, pieces
from tests.ssh.sshd import Server, serving

MB: Final = 1_000_000
NEVER: Final = 1 << 40
TELL_S: Final = 15.0
BUSY_S, HELD_S = 8.0, 3.0  # at most, of a turn
AT_ONCE: Final = 3  # agents of each kind: nine share a connection
BULK: Final = "bulk"
KINDS: Final[dict[str, Callable[[Random], Iterator[bytes]]]] = {
    "line": lambda random: lines(random, random.randint(1, 40_000)),
    BULK: lambda random: pieces(random, random.randint(1, 200 * MB), 65_536),
    "exec": lambda random: pieces(random, random.randint(0, 100_000), 5000),
}


class Run:
    """The agents of one run, and what came of those that have ended."""

    def __init__(self, server: Server, pumps: Pumps, random: Random) -> None:
        self._server, self._pumps, self._random = server, pumps, random
        self._running: dict[Pump, str] = {}
        self._ended, self._gaps = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0.0)
        self.wrong: list[str] = []
        self._began = self._told = self._turned = time.monotonic()
        self._turn_s, self._is_held = 0.0, False

    def pump(self, most_bytes: float, most_s: float) -> None:
        """Keep all kinds of agents running until so much went through, and then let them end."""
        while not self.wrong and self._pumps.through_bytes < most_bytes and self._passed_s() < most_s:
            for kind, make in KINDS.items():
                while list(self._running.values()).count(kind) < AT_ONCE:
                    self._running[self._pumps.start(make(self._random))] = kind
            self._take_turns()
            self._turn()
        for each in self._running:
            each.finish()
        while self._running and not self.wrong:
            self._turn()

    def tell(self) -> None:
        """Print how far it is."""
        ours, theirs = exchanges(self._server)
        ended = ", ".join(f"{count:,} {kind}" for kind, count in self._ended.items())
        gaps = ", ".join(f"{gap:.2f} s {kind}" for kind, gap in self._gaps.items())
        passed = int(self._passed_s())
        print(
            f"{passed // 60:4}:{passed % 60:02}  {self._pumps.through_bytes / 1e9:.2f} GB  exchanges: {ours:,} ours, "
            f"{theirs:,} sshd's  ended: {ended}  longest gap: {gaps}  wrong: {len(self.wrong)}",
            flush=True,
        )

    def _passed_s(self) -> float:
        return time.monotonic() - self._began

    def _take_turns(self) -> None:
        """Hold bulk up, or pump it again."""
        if self._pumps.loop.now - self._turned < self._turn_s:
            return
        self._turned, self._is_held = self._pumps.loop.now, not self._is_held
        self._turn_s = self._random.uniform(0.0, HELD_S if self._is_held else BUSY_S)
        for each in [each for each, kind in self._running.items() if kind == BULK]:
            (each.pause if self._is_held else each.go_on)()

    def _turn(self) -> None:
        """Wait for what comes next, and look what has ended, or never will."""
        now = self._pumps.loop.now
        self._pumps.loop.turn(now + 0.1)
        for each in [each for each in self._running if each.is_over]:
            kind = self._running.pop(each)
            self._ended[kind] += 1
            self._gaps[kind] = max(self._gaps[kind], each.gap_s)
            if not each.is_intact:
                self.wrong.append(f"{kind} agent {each.id}: {each.end}, {each.fed_bytes}, {each.read_bytes}")
        self.wrong += [f"{kind} agent {each.id} stalls" for each, kind in self._running.items() if each.is_stalled]
        self.wrong += [str(report) for report in self._pumps.others if not isinstance(report, Note)]
        if time.monotonic() - self._told > TELL_S:
            self._told = time.monotonic()
            self.tell()


def main(words: Sequence[str]) -> int:
    """Pump, and return the exit status."""
    options = _options(words)
    print(f"rekeying: seed {options.seed}, {options.gb:g} GB", flush=True)
    limit, ours = {"RekeyLimit": options.sshd}, int(options.ours_mb * MB)
    if options.no_exchanges:
        limit, ours = {"RekeyLimit": "1000G none"}, NEVER
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="drover-rekeying-")))
        server = stack.enter_context(serving(place / "server", **LOGGED, **limit))
        pumps = stack.enter_context(
            closing(Pumps(server.settings(rekey_bytes=ours, **(PATIENT if options.patient else {}))))
        )
        run = Run(server, pumps, Random(options.seed))
        run.pump(options.gb * 1e9, 60 * options.minutes)
        run.tell()
    print(*run.wrong, sep="\n")
    return 1 if run.wrong else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.rekeying", description="exchanges of keys under load")
    parser.add_argument("--gb", type=float, default=100.0, help="to pump, both directions together (default 100)")
    parser.add_argument("--minutes", type=float, default=600.0, help="at most (default 600)")
    parser.add_argument("--ours-mb", type=float, default=10.0, help="after which we ask for new keys (default 10)")
    parser.add_argument("--sshd", default="default 1s", help="its RekeyLimit (default: 'default 1s')")
    parser.add_argument("--no-exchanges", action="store_true", help="exchange keys never, to compare")
    parser.add_argument("--patient", action="store_true", help="with longer time-outs, on a busy machine")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 31), help="(default: any)")
    return parser.parse_args(words)


if __name__ == "__main__":
    guard.begin()
    sys.exit(main(sys.argv[1:]))
