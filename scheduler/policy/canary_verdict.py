"""Decides whether a new program of an agent type does worse than the one in use, by the items that both have tried.

It knows no slots and no jobs: program_rollout.py runs the trial.

A record has one entry for each item that a program tried: the seconds of one that was done, or that it failed. The
record of the program in use goes back HISTORY times as far as a trial lasts.

The rule. The share of items that failed in the record of the program in use gives how many failures to expect in a
whole trial; twice the square root of that many more are chance. A new program that has failed more than that is worse,
and the trial is over at once: where the program in use fails nothing, one failure is enough. After a whole trial it is
worse too if the median of its times is more than SLOWER times that of the program in use, and more than SLACK_S longer;
times are compared only if the program in use has done as many items as a trial has. All else passes. One that cannot
be started, or ends before its first OK, is worse without a count.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import isqrt
from statistics import median
from typing import Any, Final

from scheduler.model.states import PROGRAM, ProgramEvent, ProgramState

BY_COMMAND: Final = "was rolled back by command"
HISTORY: Final = 10
SLOWER: Final = 1.5
SLACK_S: Final = 0.01  # less is lost in the noise of a busy machine
_FAILED: Final = -1.0  # in the place of seconds


class Record:
    """What a program did with its last items."""

    __slots__ = ("_tries", "program")

    def __init__(self, program: str, most: int, tries: Iterable[float] = ()) -> None:
        self.program = program
        self._tries: deque[float] = deque(tries, most)

    def snapshot(self) -> dict[str, Any]:
        """Return all of it: JSON."""
        return {"program": self.program, "tries": list(self._tries)}

    def item_done(self, seconds: float) -> None:
        self._tries.append(max(seconds, 0.0))

    def item_failed(self) -> None:
        self._tries.append(_FAILED)

    def keep(self, most: int) -> None:
        """Keep so many of the last items from now on."""
        self._tries = deque(self._tries, maxlen=most)

    @property
    def tried(self) -> int:
        """The number of items that it tried."""
        return len(self._tries)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return self._tries.count(_FAILED)

    @property
    def done(self) -> int:
        """How many of them were done."""
        return self.tried - self.failed

    @property
    def usual_s(self) -> float:
        """The median of the seconds of items that were done, one at least."""
        return float(median(seconds for seconds in self._tries if seconds != _FAILED))


class Judgement(Enum):
    """What is known of a new program."""

    OPEN = "too few items were tried"
    PASSES = "it is not worse"
    FAILS = "it fails more items"
    SLOW = "it is slower"


def failures_allowed(old: Record, most: int) -> int:
    """Return how many of `most` items may fail by chance, by the record of the program in use."""
    if not old.failed:
        return 0
    # expected + 2 * sqrt(expected), in whole numbers: expected = failed * most / tried
    return (old.failed * most + isqrt(4 * old.failed * most * old.tried)) // old.tried


def judge(new: Record, old: Record, most: int) -> Judgement:
    """Judge a new program after some of the `most` items of its trial."""
    if new.failed > failures_allowed(old, most):
        return Judgement.FAILS
    if new.tried < most:
        return Judgement.OPEN
    if old.done < most or not new.done:
        return Judgement.PASSES
    usual, before = new.usual_s, old.usual_s
    return Judgement.SLOW if usual > SLOWER * before and usual > before + SLACK_S else Judgement.PASSES


def compared(new: Record, old: Record) -> str:
    """Say what both did: `3 of 20 failed, of the program in use 0 of 200; an item takes 1.2 s, there 0.4 s`."""
    text = f"{new.failed} of {new.tried} failed, of the program in use {old.failed} of {old.tried}"
    if new.done and old.done:
        text += f"; an item takes {new.usual_s:.3g} s, there {old.usual_s:.3g} s"
    return text


class Canary:
    """The programs of a type: that in use, and a new one on trial or held back."""

    __slots__ = ("copies", "is_known", "most", "new", "slot", "state", "used", "why")

    def __init__(self, most: int, program: str, copies: Sequence[str] = (), *, is_known: bool) -> None:
        self.most = most  # items of a trial
        self.state = ProgramState.STEADY
        self.used = Record(program, HISTORY * most)
        self.copies = copies  # programs of which there are some to start
        self.new: Record | None = None  # on trial, or held back
        self.slot: Any = None  # of class Slot: the one whose process is the trial's, until that has ended
        self.why = ""  # it is held back
        self.is_known = is_known  # what an earlier daemon knew is taken into account

    def snapshot(self) -> dict[str, Any]:
        """Return all of it but its slot: JSON."""
        return {
            "state": self.state.name, "used": self.used.snapshot(), "why": self.why, "is_known": self.is_known,
            "new": None if self.new is None else self.new.snapshot(), "copies": list(self.copies),
        }  # fmt: skip

    @classmethod
    def restored(cls, most: int, snapshot: Mapping[str, Any]) -> "Canary":
        """Return the one of a snapshot, without its slot; a trial has `most` items."""
        used, copies = snapshot["used"], tuple(snapshot.get("copies", ()))
        canary = cls(most, used["program"], copies, is_known=bool(snapshot["is_known"]))
        canary._restore(snapshot)
        return canary

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self.state, self.why = ProgramState[snapshot["state"]], snapshot["why"]
        self.used = Record(self.used.program, HISTORY * self.most, snapshot["used"]["tries"])
        if (new := snapshot["new"]) is not None:
            self.new = Record(new["program"], self.most, new["tries"])

    def record_of(self, program: str) -> Record:
        """Return the record of a program that an agent runs; of one that is neither in use nor new, a record alone."""
        for record in (self.used, self.new):
            if record is not None and record.program == program:
                return record
        return Record(program, self.most)

    def fire(self, event: ProgramEvent) -> bool:
        """Move the machine; False when the event is ignored. Errors: BugError when it is impossible."""
        state = PROGRAM.after(self.state, event)
        if state is None:
            return False
        self.state = state
        return True

    @property
    def is_on_trial(self) -> bool:
        """Return whether a new program is on trial."""
        return self.state is ProgramState.TRIAL

    @property
    def is_held_back(self) -> bool:
        """Return whether the file has a program that is not used."""
        return self.state is ProgramState.HELD_BACK

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs of which agents may run now."""
        if self.is_on_trial and self.new is not None:
            return (self.used.program, self.new.program)
        return (self.used.program,)

    @property
    def in_file(self) -> str:
        """The program that the file of the type has, as far as we were told."""
        return self.used.program if self.new is None else self.new.program

    def set_copies(self, copies: Sequence[str]) -> None:
        """Note of which programs there are copies."""
        self.copies = copies

    def begin(self, program: str) -> None:
        """Begin the trial of a program, from its first item on."""
        self.new, self.why = Record(program, self.most), ""

    def promote(self) -> None:
        """Use the new program from now on."""
        if self.new is not None:
            self.used, self.new, self.why, self.slot = self.new, None, "", None
            self.used.keep(HISTORY * self.most)

    def restore(self) -> None:
        """Forget the new program: the file has that in use again."""
        self.new, self.why = None, ""

    def hold_back(self, why: str) -> None:
        """Note why the new program is not used."""
        self.why = why

    def set_most(self, most: int) -> None:
        """Let a trial have so many items."""
        self.most = most
        self.used.keep(HISTORY * most)
        if self.new is not None:
            self.new.keep(most)

    def set_known(self, is_known: bool) -> None:
        """Note whether what an earlier daemon knew is taken into account."""
        self.is_known = is_known

    def set_slot(self, slot: Any) -> None:
        """Note which slot runs the new program."""
        self.slot = slot

    @property
    def judgement(self) -> Judgement:
        """What is known of the program on trial."""
        return Judgement.OPEN if self.new is None else judge(self.new, self.used, self.most)

    @property
    def figures(self) -> str:
        """What the new program and that in use did."""
        return "" if self.new is None else compared(self.new, self.used)

    # ---- what is shown

    @property
    def text(self) -> str | None:
        """What is known of the new program, in words; None if there is none."""
        if self.new is None:
            return None
        new, used = self.new.program, self.used.program
        if self.is_held_back:
            what = self.why if self.why == BY_COMMAND else f"failed its trial: {self.why}"
            return f"the new program {new} {what}; the one in use, {used}, stays"
        where = f"in slot {self.slot.number}" if self.slot is not None else "and waits for work"
        return f"the new program {new} is on trial {where}: {self.new.tried} of {self.most} items, {self.figures}"

    def shown(self, command: Sequence[str]) -> dict[str, Any]:
        """Return what the next daemon has to know, and what people see, of a type with this command."""
        new = self.new
        return {
            "command": list(command), "state": self.state.name, "used": self.used.program,
            "new": None if new is None else new.program, "is_worse": self.is_held_back and self.why != BY_COMMAND,
            "why": self.why, "items": self.most, "slot": None if self.slot is None else self.slot.number,
            "tried": 0 if new is None else new.tried, "failed": 0 if new is None else new.failed,
            "used_tried": self.used.tried if new is not None else None,
            "used_failed": self.used.failed if new is not None else None, "text": self.text,
        }  # fmt: skip
