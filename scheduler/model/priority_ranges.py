"""Turns the pattern of priorities that a host takes into ranges, since an index cannot be searched by a pattern.

A pattern is matched from the beginning of a priority. It becomes a machine over the characters of priorities, and what
it matches is followed character by character until every longer priority is decided. A pattern that leaves too many
ranges, such as `.*1$`, is refused: a claim would have to read past all other rows.

Imports nothing slow, as host_filters.py.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

# The characters of priorities, in order.
LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LONGEST: Final = 16  # characters of a priority
MOST_RANGES: Final = 62  # each costs two looks of a claim
MOST_STATES: Final = 2000  # of a machine
MOST_PREFIXES: Final = 20_000  # that are followed

Range = tuple[str, str]  # from this priority to before that one, which may be none itself
States = frozenset[int]

EVERY: Final[tuple[Range, ...]] = ((LETTERS[0], chr(ord(LETTERS[-1]) + 1)),)
_ALL: Final = frozenset(LETTERS)
_NEXT: Final = dict(zip(LETTERS, [*LETTERS[1:], EVERY[0][1]], strict=True))
_CATEGORIES: Final = {  # what is in them of letters and digits
    "CATEGORY_DIGIT": frozenset("0123456789"), "CATEGORY_NOT_DIGIT": _ALL - frozenset("0123456789"),
    "CATEGORY_WORD": _ALL, "CATEGORY_NOT_WORD": frozenset[str](),
    "CATEGORY_SPACE": frozenset[str](), "CATEGORY_NOT_SPACE": _ALL,
}  # fmt: skip
_ENDS: Final = {  # zero-width parts of a pattern, by the kind of their state
    "AT_BEGINNING": "begin", "AT_BEGINNING_STRING": "begin", "AT_END": "end", "AT_END_STRING": "end",
}  # fmt: skip


class TooComplexError(ValueError):
    """A pattern matches more than MOST_RANGES ranges, or uses what no automaton can do, such as look-ahead."""


@lru_cache(maxsize=256)
def ranges_matching(pattern: str) -> tuple[Range, ...]:
    """Return the priorities that match a pattern from their beginning. Errors: TooComplexError."""
    machine = _Machine(pattern)
    every, nothing = machine.decided()
    found: list[Range] = []
    for start, end in _follow(machine, every, nothing):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
        if len(found) > MOST_RANGES:
            raise TooComplexError
    return tuple(found)


def _follow(machine: "_Machine", every: set[States], nothing: set[States]) -> Iterator[Range]:
    """Yield what matches, in order: prefixes of which all that begins so does, and single priorities."""
    waiting, followed = [("", machine.start)], 0
    while waiting:
        prefix, at = waiting.pop()
        followed += 1
        if followed > MOST_PREFIXES:
            raise TooComplexError
        if at in every:
            yield prefix or LETTERS[0], _behind(prefix)
            continue
        if prefix and machine.is_match(at):
            yield prefix, prefix + LETTERS[0]
        if len(prefix) < LONGEST:
            longer = [(prefix + letter, then) for letter, then in zip(LETTERS, machine.moves[at], strict=True)]
            waiting += [each for each in reversed(longer) if each[1] not in nothing]


def _behind(prefix: str) -> str:
    """Return what comes behind all priorities that begin so."""
    rest = prefix.rstrip(LETTERS[-1])
    return rest[:-1] + _NEXT[rest[-1]] if rest else EVERY[0][1]


class _Machine:
    """A pattern as states: `moves` has for each set of states that may be reached the one after each character."""

    def __init__(self, pattern: str) -> None:
        self._states: list[tuple[str, Any, list[int]]] = [("match", None, [])]  # kind, characters, what comes then
        tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
        if tree.state.flags & ~re.UNICODE:
            raise TooComplexError
        self.start = self._reached([self._sequence(tree, 0)], "begin")
        self.moves: dict[States, list[States]] = {}
        self._find_moves()

    def is_match(self, at: States) -> bool:
        """Return whether a priority that ends in these states matches."""
        return 0 in at or 0 in self._reached(at, "end")

    def decided(self) -> tuple[set[States], set[States]]:
        """Return the sets of states behind which everything matches, and those behind which nothing does."""
        every = {at for at in self.moves if self.is_match(at)}
        nothing = self.moves.keys() - every
        for some in (every, nothing):
            while left := [at for at in some if any(then not in some for then in self.moves[at])]:
                some.difference_update(left)
        return every, nothing

    def _find_moves(self) -> None:
        waiting = [self.start]
        while waiting:
            at = waiting.pop()
            if at in self.moves:
                continue
            self.moves[at] = [self._after(at, letter) for letter in LETTERS]
            if len(self.moves) > MOST_STATES:
                raise TooComplexError
            waiting += self.moves[at]

    def _after(self, at: States, letter: str) -> States:
        if 0 in at:
            return frozenset((0,))  # whatever comes
        then = [self._states[state][2] for state in at if letter in (self._states[state][1] or ())]
        return self._reached([state for each in then for state in each], "")

    def _reached(self, states: Iterable[int], place: str) -> States:
        """Return these states and all that are reached without a character, at the begin or end of a priority."""
        reached: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in reached:
                reached.add(state)
                kind, _, then = self._states[state]
                waiting += then if kind in ("either", place) else ()
        return frozenset(reached)

    # ---- from the parts of a pattern

    def _add(self, kind: str, letters: frozenset[str] | None, then: list[int]) -> int:
        self._states.append((kind, letters, then))
        if len(self._states) > MOST_STATES:
            raise TooComplexError
        return len(self._states) - 1

    def _sequence(self, parts: Any, then: int) -> int:
        """Add the states of parts that follow each other; return the first."""
        backwards: list[tuple[Any, Any]] = list(parts)[::-1]
        for kind, value in backwards:
            then = self._part(str(kind), value, then)
        return then

    def _part(self, kind: str, value: Any, then: int) -> int:
        match kind, value:
            case (("LITERAL" | "NOT_LITERAL" | "ANY" | "IN"), _):
                return self._add("one", _characters(kind, value), [then])
            case "BRANCH", (_, branches):
                return self._add("either", None, [self._sequence(branch, then) for branch in branches])
            case "SUBPATTERN", (_, 0, 0, parts):
                return self._sequence(parts, then)
            case (("MAX_REPEAT" | "MIN_REPEAT"), (least, most, parts)):
                return self._repeated(least, most, parts, then)
            case "AT", place if str(place) in _ENDS:
                return self._add(_ENDS[str(place)], None, [then])
        raise TooComplexError

    def _repeated(self, least: int, most: int, parts: Any, then: int) -> int:
        """Add the states of what is repeated; more often than a priority has characters makes no difference."""
        if most > LONGEST:
            turn: list[int] = [then]
            then = self._add("either", None, turn)
            turn.append(self._sequence(parts, then))
        else:
            for _ in range(most - least):
                then = self._add("either", None, [self._sequence(parts, then), then])
        for _ in range(min(least, LONGEST + 1)):
            then = self._sequence(parts, then)
        return then


def _characters(kind: str, value: Any) -> frozenset[str]:
    """Return the letters and digits that one part of a pattern matches."""
    match kind:
        case "LITERAL":
            return _ALL & {chr(value)}
        case "NOT_LITERAL":
            return _ALL - {chr(value)}
        case "ANY":
            return _ALL
        case "RANGE":
            return frozenset(letter for letter in LETTERS if value[0] <= ord(letter) <= value[1])
        case "CATEGORY":
            return _CATEGORIES[str(value)]
    parts = [(str(kind), value) for kind, value in value]
    found = frozenset[str]().union(*(_characters(*part) for part in parts if part[0] != "NEGATE"))
    return _ALL - found if ("NEGATE", None) in parts else found
