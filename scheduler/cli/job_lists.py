"""Pages of lists of jobs: which jobs a page shows, found without reading the others.

drover.zone_parts says which kinds of jobs each zone of 4,096 numbers has, and what they sort by at most. Zones are read
in the order of these bounds, until no job of another zone can come before those that were found.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final, NamedTuple

from scheduler.cli.database_session import Session
from scheduler.model.states import CLAIMED, QUEUED, RUNNING
from scheduler.model.verbs import LARGEST_PK

ZONE: Final = 4096  # numbers
MOST: Final = 200_000  # rows that are read for a page
MOST_WITH_TEXT: Final = 50_000  # the same, if each is searched for a text
MOST_OF_GROUPS: Final = 20_000  # jobs of groups that are looked up; those of larger ones are found by zones
FIRST_ZONES: Final = 64  # are looked at first; if that is not enough, many times as many
WORDS: Final = ("type", "state", "queue", "by")  # sorts by a word
COUNTED_QUEUED: Final = (QUEUED, "early", "unmet")  # see drover.job_counts
Key = tuple[float, int]


class Found(NamedTuple):
    """The jobs of a page; more than fit say that there is a next one.

    `is_whole`: no other job comes before these. If not, the search ended early; by default at the number `down_to`,
    where it can go on.
    """

    jobs: list[int]
    is_whole: bool = True
    down_to: int | None = None


class _Zone(NamedTuple):
    number: int
    word: str | None
    place: float | None
    urgency: str | None
    jobs: int


@contextmanager
def reading(session: Session) -> Iterator[None]:
    """Have all statements of the block see the same jobs, and compare none with each that is in hand."""
    with session.connection.transaction():
        session.run("one_moment")
        session.run("expect_many_jobs")
        yield


def find(session: Session, wanted: Mapping[str, Any], limit: int | None) -> Found:
    """Return the jobs of a page: at most `limit`, or all. Call it within `reading`.

    `wanted` has parameters of the fragment `asked_for` of schema/cli.sql, and the sort.
    """
    return _Search(session, wanted, limit).found()


class _Search:
    def __init__(self, session: Session, wanted: Mapping[str, Any], limit: int | None) -> None:
        filters = dict.fromkeys(
            (
                "types",
                "queues",
                "submitters",
                "groups",
                "hosts",
                "ran_on",
                "codes",
                "since",
                "until",
                "queued_within",
                "before",
                "text",
            )
        )
        self._session, self._limit = session, limit
        self._wanted: dict[str, Any] = {**filters, "with_hidden": False, "sort": "job", **wanted}
        self._counted = {"counted": _counted(self._wanted["states"]), **self._wanted}
        before = self._wanted["before"]
        self._last: int = (LARGEST_PK if before is None else before) // ZONE  # no zone above it is of interest
        self._found: dict[int, Key] = {}  # by number, what it sorts by
        self._in_zones = 0  # how many were found in zones

    def found(self) -> Found:
        groups, text = self._wanted["groups"], self._wanted["text"]
        if groups:
            numbers = [job for (job,) in self._session.rows("numbers_in_groups", groups=groups, limit=MOST_OF_GROUPS)]
            if len(numbers) < MOST_OF_GROUPS:
                self._add("jobs_among", jobs=numbers)
                return Found(self._best())
        numbers = [job for (job,) in self._session.rows("numbers_beside_zones")]
        if text and text.isascii() and text.isdecimal() and len(text) < 19:
            numbers.append(int(text))
        self._add("jobs_among", jobs=numbers)
        return self._read(self._zones(), MOST_WITH_TEXT if text else MOST)

    def _read(self, zones: Iterator[_Zone], most: float) -> Found:
        """Read zones until the page is full and sure, or too many were read."""
        following, read, least = next(zones, None), 0, 1
        while following is not None and not self._is_sure(following):
            if self._limit is not None and read * ZONE >= most:
                return self._stopped(following)
            part: list[_Zone] = []
            wanted = inf if self._limit is None else self._limit - self._in_zones
            room = FIRST_ZONES if self._limit is None else -(-(most - read * ZONE) // ZONE)
            while following is not None and len(part) < room and (len(part) < least or _jobs(part) < wanted):
                part.append(following)
                following = next(zones, None)
            self._in_zones += self._add(
                "jobs_in_zones", words=[zone.word for zone in part],
                first_jobs=[zone.number * ZONE for zone in part],
                last_jobs=[zone.number * ZONE + ZONE - 1 for zone in part],
            )  # fmt: skip
            read, least = read + len(part), 2 * len(part)
        return Found(self._best())

    def _stopped(self, following: _Zone) -> Found:
        if self._wanted["sort"] != "job":
            return Found(self._best(), is_whole=False)
        down_to = (following.number + 1) * ZONE
        self._found = {
            job: key for job, key in self._found.items() if job >= down_to or str(job) == self._wanted["text"]
        }
        return Found(self._best(), is_whole=False, down_to=down_to)

    def _is_sure(self, following: _Zone) -> bool:
        """Return whether all jobs of this zone, and so of those behind it, come after those of a full page."""
        if self._limit is None or len(self._found) < self._limit:
            return False
        if self._wanted["sort"] in WORDS:
            return self._in_zones >= self._limit
        bound = _key(following.place, following.urgency, following.number * ZONE + ZONE - 1)
        return sum(key > bound for key in self._found.values()) >= self._limit

    def _best(self) -> list[int]:
        """Return what was found, as few as `limit` if the order is known here: words are sorted by the server."""
        if self._wanted["sort"] in WORDS or self._limit is None:
            return list(self._found)
        return sorted(self._found, key=lambda job: self._found[job], reverse=True)[: self._limit]

    def _add(self, name: str, **parameters: Any) -> int:
        """Run a statement that finds jobs; return how many it found."""
        rows = self._session.rows(name, **self._wanted, **parameters, limit=self._limit)
        self._found |= {job: _key(place, urgency, job) for job, place, urgency in rows}
        return len(rows)

    def _zones(self) -> Iterator[_Zone]:
        """Yield the zones that have such jobs, those first whose jobs may come first."""
        match self._wanted["sort"]:
            case "job":
                yield from self._newest_zones()
            case "type" | "state" | "queue" | "by":
                for words in self._words():
                    yield from self._some_zones(words=words)
            case _:
                yield from self._some_zones()

    def _newest_zones(self) -> Iterator[_Zone]:
        newest = self._session.value("newest_zone")
        last = min(-1 if newest is None else newest, self._last)
        zones = FIRST_ZONES
        while last >= 0:
            yield from self._some_zones(first=last - zones + 1, last=last)
            last, zones = last - zones, zones * 8

    def _words(self) -> Iterator[list[str]]:
        """Yield words that jobs are sorted by, the last first, with the jobs of a page; then with twice as many."""
        words: list[str] = []
        jobs, wanted = 0, inf if self._limit is None else self._limit
        for word, count in self._session.rows("words_of_jobs", **self._counted):
            words.append(word)
            jobs += count
            if jobs >= wanted:
                yield words
                words, jobs, wanted = [], 0, 2 * wanted
        if words:
            yield words

    def _some_zones(
        self, words: Sequence[str] | None = None, first: int = 0, last: int | None = None
    ) -> Iterator[_Zone]:
        last = self._last if last is None else last
        rows = self._session.rows("zones_of_jobs", **self._counted, words=words, first=first, last=last)
        return (_Zone(*row) for row in rows)


def _key(place: float | None, urgency: str | None, job: int) -> Key:
    """Return what compares greater for what comes first."""
    if urgency is not None:  # at most 17 letters and digits; the less, the sooner
        return -int.from_bytes(urgency.encode().ljust(17, b"\0")), job
    return -inf if place is None else place, job


def _counted(states: Sequence[str]) -> list[str]:
    """Return the states of zones in which jobs of these states are, but for those in hand."""
    ended = [state for state in states if state not in (QUEUED, CLAIMED, RUNNING)]
    return ended + (list(COUNTED_QUEUED) if QUEUED in states else [])


def _jobs(zones: Sequence[_Zone]) -> int:
    return sum(zone.jobs for zone in zones)
