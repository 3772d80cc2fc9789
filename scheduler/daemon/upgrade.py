"""Replacing the program of a running daemon: it executes the new one in the same process, with its agents alive.

Notices that the files of the program have changed (`reexec` in the configuration), or is asked to by a command. Then
one state of the table UPGRADE (model/states.py) after the other, each with an end; when one is late the old program
goes on as if nothing had been. First a child of the new program reads the state as it is then, which proves that it can
be imported, has a configuration and a schema that it likes, and understands the state; nothing is held up by that. Then
nothing new is begun, then nothing is read any more, what waits is saved, the state is written again, and the process
executes the new program (exec_handover.py), which has the same pid, arguments and environment. Signals are kept
meanwhile.

A copy of the files that this program was started from is kept aside: should the new program not come up, it goes on.
Its name says whose it is, so that the next daemon removes that of one that was killed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from select import EPOLLIN
from typing import Any, Final

from scheduler.daemon import exec_handover
from scheduler.daemon.handover_document import DaemonState
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Loop, Steps, Task, ready
from scheduler.drivers.os_calls import SIGNALS, Identity, NoPidfdError, identity, is_gone, pidfd_of
from scheduler.model.states import NEVER, UPGRADE, UpgradeEvent, UpgradeState
from scheduler.package_data import PACKAGE, schema_dir, version

LIMITS_S: Final = {
    UpgradeState.RESTING: NEVER, UpgradeState.WAITING: 3600.0, UpgradeState.TRYING: 30.0, UpgradeState.HOLDING: 10.0,
    UpgradeState.FREEZING: 5.0,
}  # fmt: skip
LOOKS_S: Final = {  # between two looks whether a state is over
    UpgradeState.WAITING: 0.2, UpgradeState.HOLDING: 0.005, UpgradeState.FREEZING: 0.001,
}  # fmt: skip
AGAIN_S: Final = 60.0  # until files that changed are tried again, if nothing but time was missing
TOLD_S: Final = 60.0  # between two lines about what is waited for
SAID_BYTES: Final = 2000  # kept of what a new program says that cannot go on
COPY: Final = "drover-program-"
PARTS: Final = ("scheduler", "schema", "agents", "etc")

Mark = frozenset[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class Program:
    """The program that this process is to execute: how it was started, and where its files are."""

    argv: Sequence[str]
    words: Sequence[str]  # of the command line
    environment: Mapping[str, str]
    package: Path
    schema: Path

    def files(self) -> Mark:
        """Return each of its files: path, time of its last change in nanoseconds, size."""
        found = []
        for path in (*self.package.rglob("*.py"), *self.schema.rglob("*.sql")):
            with suppress(FileNotFoundError):  # it has gone since the directory was read
                stat = path.stat()
                found.append((str(path), stat.st_mtime_ns, stat.st_size))
        return frozenset(found)


def started_program(environment: Mapping[str, str], document: Mapping[str, Any] | None = None) -> Program:
    """Return the program as it was started; after a hand-back that is another than the one that runs: its copy."""
    here = Program(sys.orig_argv, sys.argv[1:], environment, PACKAGE, schema_dir())
    if document is None:
        return here
    given = document["program"]
    return replace(here, argv=given["argv"], package=Path(given["package"]), schema=Path(given["schema"]))


def keep_copy(environment: Mapping[str, str]) -> str | None:
    """Copy the files of this program into a private directory and return that; None if there is no room."""
    folder = None
    try:
        place = environment.get("RUNTIME_DIRECTORY", "").split(":")[0] or tempfile.gettempdir()
        ours = identity()
        _remove_abandoned(Path(place), ours)
        folder = tempfile.mkdtemp(prefix=f"{COPY}{_digits(ours.pid_space)}-{ours.pid}-{ours.pid_start}-", dir=place)
        installed = (PACKAGE / "_data").is_dir()
        for part in PARTS[:1] if installed else PARTS:
            shutil.copytree(PACKAGE.parent / part, Path(folder) / part)
        for path in PACKAGE.parent.glob("*__mypyc*.so"):  # what compiled modules share
            shutil.copy2(path, folder)
    except OSError as error:
        log_line("warning", f"no copy of the program can be kept, to go on after a failed upgrade: {error.strerror}")
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def _remove_abandoned(place: Path, ours: Identity) -> None:
    """Remove the copies of daemons of this user that were killed."""
    for path in place.glob(f"{COPY}*"):
        found = re.match(rf"{COPY}{_digits(ours.pid_space)}-(\d+)-(\d+)-", path.name)
        if found and is_gone(replace(ours, pid=int(found[1]), pid_start=int(found[2]))):
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    remove_copy(str(path))


def _digits(text: str) -> str:
    return "".join(re.findall(r"\d", text))


def remove_copy(folder: str | None) -> None:
    """Remove a copy that is not needed any more."""
    if folder and Path(folder).name.startswith(COPY):
        shutil.rmtree(folder, ignore_errors=True)


class Upgrade:
    """The replacement of the program of one daemon.

    `prepare` is called right before the exec, and `recover` if that fails.
    """

    def __init__(
        self, loop: Loop, state: DaemonState, program: Program, prepare: Callable[[], None],
        recover: Callable[[], None], *, follows: bool, limit_s: float, locks: Sequence[int] = (),
        takeover: exec_handover.Takeover | None = None,
    ) -> None:  # fmt: skip
        self._loop, self._daemon, self._program = loop, state, program
        self._prepare, self._recover = prepare, recover
        self._follows, self._limit_s, self._locks = follows, limit_s, locks
        self._state = UpgradeState.RESTING
        self._until = self._look_at = NEVER
        self._own_files = self._seen_files = self._tried_files = program.files()  # fingerprints
        self._again_at = NEVER  # when files that were tried are tried again
        self._commands: set[int] = set()  # that wait for what comes of it
        self._outcomes: dict[int, tuple[bool, str]] = {}  # of commands
        self._since = self._told_at = 0.0
        self._waits_for = ""
        self._trial: Task[None] | None = None
        self._copy: str | None = None
        self._is_to_copy = follows  # once, when nothing is under way
        if takeover is not None:
            self._report_outcome(takeover)
        elif follows:
            self._keep_copy()

    def _report_outcome(self, takeover: exec_handover.Takeover) -> None:
        """Tell those who asked for it that the program was replaced, or why it was not."""
        given = takeover.document["program"]
        if takeover.is_left:
            return
        is_back = takeover.is_back
        text = takeover.reason if is_back else f"version {version()} has taken over from {given['version']}"
        self._outcomes = {int(pk): (not is_back, text) for pk in given.get("commands", ())}
        self._copy = given.get("copy") if is_back else None
        self._is_to_copy &= not is_back  # it runs from that one

    def _keep_copy(self) -> None:
        """Copy the files of this program, to go on from them if the next one cannot."""
        self._is_to_copy, self._copy = False, keep_copy(self._program.environment)
        if self._copy is not None and self._program.files() != self._own_files:  # they were replaced meanwhile
            remove_copy(self._copy)
            self._copy = None

    @property
    def is_resting(self) -> bool:
        """Return whether nothing is under way."""
        return self._state is UpgradeState.RESTING

    def troubles(self) -> list[dict[str, Any]]:
        """Return what is waited for, and for how many seconds, as `drover status` shows it."""
        if not self._waits_for:
            return []
        return [{"what": "reexec", "reason": self._waits_for, "seconds": round(self._loop.now - self._since, 1)}]

    # ---- who wants it

    def check(self) -> None:
        """Compare the files; new ones are tried when they are the same at the next check: a replacement takes time."""
        if not self._follows:
            return
        with suppress(OSError):  # too many open files, most likely; the next check may find it better
            before, self._seen_files = self._seen_files, self._program.files()
            is_ours = self._seen_files == self._own_files
            is_new = self._seen_files != self._tried_files or self._loop.now >= self._again_at
            if self._is_to_copy and self.is_resting and is_ours and not self._daemon.is_frozen:
                self._keep_copy()
            if self.is_resting and self._seen_files == before and not is_ours and is_new:
                self._begin("the program was replaced")

    def ask(self, command: int) -> tuple[bool, str] | None:
        """Execute the program that is there now, for a command; return what came of it, when that is known."""
        if command not in self._outcomes and command not in self._commands:
            self._commands.add(command)
            self._begin("an operator wants it")
        return self._outcomes.get(command)

    def drop(self, why: str) -> None:
        """Go on as this program, if another was to take over."""
        if not self.is_resting:
            self._fail(UpgradeEvent.DROPPED, why)

    def _begin(self, why: str) -> None:
        if not self.is_resting:
            return
        log_line("info", f"reexec: {why}: the new program is tried before it takes over")
        self._tried_files, self._again_at = self._seen_files, NEVER
        self._since = self._told_at = self._loop.now
        if self._copy is None and self._own_files == self._program.files():
            self._keep_copy()
        self._fire(UpgradeEvent.ASKED)

    # ---- one state after the other

    def _fire(self, event: UpgradeEvent) -> None:
        state = UPGRADE.after(self._state, event)
        if state is not None:
            self._state, self._until = state, self._loop.now + LIMITS_S[state]

    def _fail(self, event: UpgradeEvent, why: str) -> None:
        """Go on as the old program, and tell why."""
        log_line("warning" if event is UpgradeEvent.DROPPED else "error", f"reexec: {why}: the old program goes on")
        was_held = self._state in (UpgradeState.HOLDING, UpgradeState.FREEZING)
        if self._trial is not None:
            self._trial.stop()
            self._trial = None
        self._fire(event)
        self._waits_for = ""
        self._outcomes |= dict.fromkeys(self._commands, (False, why))
        self._commands.clear()
        if event is not UpgradeEvent.REFUSED:
            self._again_at = self._loop.now + AGAIN_S
        if was_held:
            self._daemon.release()

    def step(self) -> float:
        """Go on if something has come; return when to look again."""
        now, state = self._loop.now, self._state
        if state is UpgradeState.RESTING:
            return NEVER
        if now >= self._until:
            what = self._waits_for or "the new program has not read the state"
            self._fail(UpgradeEvent.LATE, f"{what}, after {LIMITS_S[state]:g} s of {state.name}")
            return NEVER
        _STEPS[state](self)
        if self._state is not state:
            return now
        return min(self._until, now + LOOKS_S.get(state, NEVER))

    def _wait_for_rows(self) -> None:
        """Go on when no query has more rows left than can travel; meanwhile all is as usual."""
        job = self._daemon.unfinished_query()
        if job is None:
            self._waits_for = ""
            self._fire(UpgradeEvent.CAN_TRAVEL)
            self._trial = Task(self._loop, self._try())
            self._trial.start()
            return
        self._waits_for = f"job {job} has a query without a key, and more rows left than can travel"
        if self._loop.now >= self._told_at:
            waited = self._loop.now - self._since
            self._told_at = self._loop.now + TOLD_S
            log_line("info", f"reexec: {self._waits_for}: waiting for it, since {waited:.0f} s")

    def _hold(self) -> None:
        """Begin nothing new, and freeze all when nothing is under way."""
        self._daemon.hold()
        self._waits_for = self._daemon.obstacle()
        if not self._waits_for:
            self._daemon.freeze()
            self._fire(UpgradeEvent.QUIET)

    def _save(self) -> None:
        """Execute the new program when all is saved."""
        self._waits_for = self._daemon.unsaved()
        if self._waits_for:
            return
        try:
            self._execute()
        except OSError as error:
            self._recover()
            self._fail(UpgradeEvent.FAILED, f"the new program is not executed: {error.strerror}")

    def _document(self) -> dict[str, Any]:
        program = self._program
        given = {
            "argv": list(program.argv), "words": list(program.words), "package": str(program.package),
            "schema": str(program.schema), "copy": self._copy, "version": version(),
            "commands": sorted(self._commands),
        }  # fmt: skip
        document = {**self._daemon.document(), "program": given, "limit": self._limit_s, "locks": list(self._locks)}
        if (keeping := self._daemon.kept_agents) is not None:
            document |= {"keeping": keeping.snapshot(), "fds": [*document["fds"], *keeping.fds]}
        return document | {"fds": [*document["fds"], *self._locks]}

    def _execute(self) -> None:
        """Execute the new program; returns only by an error. Errors: OSError."""
        document = self._document()
        fd = exec_handover.write(document)
        try:
            self._prepare()
            hold_signals()
            exec_handover.execute(
                list(self._program.argv), self._program.environment, exec_handover.GO, fd, document["fds"]
            )
        finally:
            os.close(fd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    # ---- the trial

    def _try(self) -> Steps[None]:
        """Let a child of the new program read the state as it is now."""
        try:
            said = os.memfd_create("drover-said")
            try:
                trial, pidfd = self._start_trial(said)
            except OSError:
                os.close(said)
                raise
        except OSError as error:
            self._trial = None
            self._fail(UpgradeEvent.FAILED, f"the state is not written: {error.strerror}")
            return
        try:
            yield from ready(pidfd, EPOLLIN)
        finally:
            trial.kill()  # it is dead already, or this task was stopped
            status = trial.wait()
            os.close(pidfd)
            text = os.pread(said, 1 << 20, 0)[-SAID_BYTES:].decode(errors="replace")
            os.close(said)
        self._trial = None
        if status == 0:
            self._fire(UpgradeEvent.READ)
        else:
            self._fail(UpgradeEvent.REFUSED, f"the new program cannot go on: {last_line(text) or status}")

    def _start_trial(self, said: int) -> tuple["subprocess.Popen[bytes]", int]:
        """Return the trial, which writes its errors there, and its pidfd. Errors: OSError."""
        fd = exec_handover.write(self._document())
        environment = {**self._program.environment, exec_handover.VARIABLE: f"{exec_handover.TRY} {fd}"}
        try:
            trial = subprocess.Popen(
                self._program.argv, executable=sys.executable, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=said, env=environment, pass_fds=(fd,),
            )  # fmt: skip
            return trial, pidfd_of(trial.pid)
        except NoPidfdError:
            trial.wait()  # it is reaped, and Popen has to know it
            raise
        finally:
            os.close(fd)

    # ---- the end

    def close(self) -> None:
        """End it: the daemon ends."""
        if self._trial is not None:
            self._trial.stop()
        remove_copy(self._copy)


_STEPS: Final[dict[UpgradeState, Callable[[Upgrade], None]]] = {
    UpgradeState.WAITING: Upgrade._wait_for_rows,
    UpgradeState.TRYING: lambda upgrade: None,
    UpgradeState.HOLDING: Upgrade._hold,
    UpgradeState.FREEZING: Upgrade._save,
}


def last_line(text: str) -> str:
    """Return the last line of what a program has said, of a traceback that is the error."""
    return " ".join((text.strip().splitlines() or [""])[-1].split())


def hold_signals() -> None:
    """Block signals: they stay pending for the program that is executed next, whose Signals unblocks them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
