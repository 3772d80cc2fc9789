"""A queue in memory for a daemon in lockstep: it takes every end and has what was put into it."""

from collections import Counter
from typing import Any

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.protocol import Row
from scheduler.model.queue_requests import Claim, ClaimPosition, ClaimRequest
from tests.core_tools import answer_to, claim
from tests.counts.lockstep import TYPE


class Memory:
    """One-parameter jobs, and one query at a time; what is asked is counted."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._waiting: list[Claim] = []
        self._rows = self._given = 0
        self._last = 0  # jq_pk

    def put(self, jobs: int) -> None:
        """Queue one-parameter jobs."""
        self._waiting += [self._claim() for _ in range(jobs)]

    def put_query(self, rows: int) -> None:
        """Queue one job whose query gives rows."""
        self._rows, self._given = rows, 0
        self._waiting.append(self._claim(msq=True))

    def _claim(self, **rules: Any) -> Claim:
        self._last += 1
        return claim(self._last, TYPE, **rules)

    def send(self, request: r.Request) -> e.Event:
        """Carry out a request of the core."""
        self.asked[type(request).__name__] += 1
        if not isinstance(request, r.EndAndClaim):
            return answer_to(request)
        given: list[Claim] = []
        reached: dict[ClaimRequest, ClaimPosition] = {}
        for want in request.wanted:
            found = [] if want.host else [claim._replace(request=want) for claim in self._waiting[: want.most]]
            del self._waiting[: len(found)]
            given += found
            if found:
                reached[want] = ClaimPosition("1n", "now", found[-1].pk)
        return e.EndedAndClaimed(given, reached=reached, found=Counter(claim.request for claim in given))

    def expand(self, job: int, query: str) -> e.Event:
        """Run the query of a job."""
        self.asked["expand"] += 1
        return e.Opened(job, (b"id", b"path"), self._rows)

    def fetch(self, job: int, count: int) -> e.Event:
        """Return more rows of it."""
        self.asked["fetch"] += 1
        first, self._given = self._given, min(self._given + count, self._rows)
        rows: list[Row] = [(b"%d" % n, b"some/path/of/file_%d" % n) for n in range(first, self._given)]
        return e.Fetched(job, rows, self._given < self._rows)

    def close(self, job: int) -> None:
        """Forget them."""
