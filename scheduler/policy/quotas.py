"""Quotas: how many jobs of a tenant, a user, a queue or a host may be in hand at once.

A quota counts the jobs in hand that fit all that it names; with user `*` each submitter has a count of its own. A
tenant is a role, and its jobs are those whose submitter is a member of it. The host is the one that a job asks for.

A claimed job that does not fit is blocked on the condition `quota:NAME`, so it waits in drover.blocked, where it costs
no claim anything. When others end, as many go back to their old places as there is room for. A quota that is lowered
below its use ends nothing: what has not begun is blocked, and nothing more begins.

Of a job that was claimed while there was no quota the submitter is not known, or not the roles it is a member of: as
long as it is worked on, it counts for every submitter, or for every tenant.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.policy.conditions import QUOTA, Condition, Forget, Release, Step, Wait
from scheduler.policy.job import Job

CONDITION: Final = QUOTA  # begins the name of the condition of jobs over a quota
BLOCKED_BY: Final = f"blocked: {CONDITION}"  # begins their end text
EACH: Final = "*"  # in place of a user
EVERY: Final = ""  # begins every key
CHECK_S: Final = 60.0  # until jobs over a quota are looked at again if nothing said that there is room


@dataclass(frozen=True, slots=True)
class Quota:
    """How many jobs may be in hand of those that fit; an empty text fits all."""

    name: str
    most: int
    tenant: str
    user: str
    queue: str
    host: str

    def key_of(self, job: Job) -> str | None:
        """Return the name under which it counts this job; None, it does not."""
        who = job.rules.submitter
        if self.queue not in ("", job.queue) or self.host not in ("", job.host):
            return None
        roles = job.rules.roles  # of a submitter that is known there is one at least, itself
        is_of_another = self.tenant != "" and bool(roles) and self.tenant not in roles
        if who and (is_of_another or self.user not in ("", EACH, who)):
            return None
        return re.sub(r"\s", "_", f"{self.name}:{who}") if self.user == EACH else self.name


def read_quota(row: Mapping[str, Any]) -> Quota:
    """Return a quota as the table has it."""
    return Quota(
        row["name"], row["most"], row["tenant"] or "", row["user"] or "", row["queue"] or "", row["host"] or ""
    )


class Quotas:
    """The quotas of the group and what is in hand of each."""

    __slots__ = ("all", "full", "has_room", "in_hand", "most")

    def __init__(self) -> None:
        self.all: tuple[Quota, ...] = ()
        self.in_hand: Counter[str] = Counter()  # by key
        self.most: dict[str, int] = {}  # by key, of those that were seen
        self.full: set[str] = set()  # keys that jobs are blocked on, as far as we know
        self.has_room: set[str] = set()  # of these, the ones with room since they were looked at; or EVERY

    def set(self, rows: Iterable[Mapping[str, Any]], jobs: Iterable[Job]) -> list[tuple[Job, str | None]]:
        """Go by these quotas; return the jobs that have not begun and do not fit, each with the text of `admit`.

        These are the youngest of those over a quota, and, without a text, those whose submitter is not known.
        """
        quotas = tuple(read_quota(row) for row in rows)
        is_new, self.all = quotas != self.all, quotas
        self.in_hand.clear()
        self.most.clear()
        over: list[tuple[Job, str | None]] = []
        for job in sorted(jobs, key=lambda job: (not job.started, job.pk)):
            job.set_quotas(())
            if job.started or job.verdict is not None:
                self._count(job, self._keys(job))
            elif not job.rules.submitter:
                over.append((job, None))
            elif (text := self.admit(job)) is not None:
                over.append((job, text))
        if is_new:
            self.has_room.add(EVERY)  # jobs may be blocked since the time of the daemon before
        return over

    def admit(self, job: Job) -> str | None:
        """Count a job that comes in hand, or return which quota it is over, as its end text says it."""
        keys = self._keys(job)
        for key in keys:
            if self.room(key) == 0:
                self.full.add(key)
                return f"{BLOCKED_BY}{key} {self._used(key)} of {self.most[key]} jobs are in hand"
        self._count(job, keys)
        return None

    def _used(self, key: str) -> int:
        name, colon, who = key.partition(":")
        return self.in_hand[key] + (self.in_hand[name + colon] if who else 0)

    def _keys(self, job: Job) -> list[str]:
        keys = []
        for quota in self.all:
            if (key := quota.key_of(job)) is not None:
                self.most[key] = quota.most
                keys.append(key)
        return keys

    def _count(self, job: Job, keys: Iterable[str]) -> None:
        job.set_quotas(keys)
        self.in_hand.update(job.quotas)

    def ended(self, job: Job) -> None:
        """Count a job that is in hand no more."""
        for key in job.quotas:
            self.in_hand[key] -= 1
            ended = self.full if key.endswith(":") else self.full.intersection((key,))
            self.has_room.update(key for key in ended if self.room(key) != 0)

    def room(self, key: str) -> int | None:
        """Return how many more may come in hand; None, there is no such quota any more."""
        if key in self.most:
            return max(0, self.most[key] - self._used(key))
        quota = next((quota for quota in self.all if key == quota.name or self._is_of_each(quota, key)), None)
        return None if quota is None else quota.most

    @staticmethod
    def _is_of_each(quota: Quota, key: str) -> bool:
        return quota.user == EACH and key.startswith(quota.name + ":")

    def take_with_room(self) -> list[str]:
        """Return the keys with room for jobs that are blocked on them, or what begins these; nothing is new then."""
        found = {EVERY} if EVERY in self.has_room else {key for key in self.full if self.room(key) != 0}
        self.has_room = set()
        return sorted(found)

    def step(self, seen: Condition) -> Step:
        """Return what to do about jobs that are blocked on a quota, when they are looked at."""
        key = seen.name.removeprefix(CONDITION)
        if not seen.has_jobs:
            self.full.discard(key)
            return Forget()
        self.full.add(key)
        room = self.room(key)
        return Wait(seen.tries, CHECK_S) if room == 0 else Release(room, 0, CHECK_S, is_new=True)
