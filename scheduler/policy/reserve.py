"""Agents that are kept free for queues: what others may have in hand beside a queue for which some are reserved.

For a queue with `reserved = 2` the jobs of other queues leave two agents of each type, and two places on the hosts in
all. It is a limit of what these have in hand, whether the two are in use or not, so that they are free again at once.
There is no counter to go wrong: what is in hand is what was claimed. Of each type one agent is always left to the
others.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.model.jobs import ClaimRequest
from scheduler.policy.jobs import Job
from scheduler.policy.pools import UNLIMITED, HostBook, Pool


def kept_free(
    wants: Sequence[ClaimRequest],
    reserved: Mapping[str, int],
    pools: Sequence[Pool],
    hosts: Sequence[HostBook],
    jobs: Iterable[Job],
) -> Iterator[ClaimRequest]:
    """Give the wants that leave to each queue what is reserved for it; jobs: all that are in hand."""
    room, total = _Room(reserved, pools, hosts, jobs), sum(reserved.values())
    for want in wants:
        others = total - reserved.get(want.queue, 0)
        if not others:
            yield want
        elif (most := room.beside(want, others)) > 0:
            room.use(want, most)
            yield want._replace(most=most)


class _Room:
    """How many jobs could be worked at once, by type and in all, and how many of the common queues are in hand."""

    __slots__ = ("_common", "_own", "_reserved", "_sizes", "_total")

    def __init__(
        self, reserved: Mapping[str, int], pools: Sequence[Pool], hosts: Sequence[HostBook], jobs: Iterable[Job]
    ) -> None:
        most = {host.name: host.max for host in hosts if host.is_open}
        on_host = dict.fromkeys(most, 0)
        self._sizes: dict[str, int] = {}
        for pool in pools:
            slots = [slot.host.name for slot in pool.slots if slot.host.name in most]
            self._sizes[pool.name] = sum(_at_most(slots.count(name), most[name]) for name in set(slots))
            for name in slots:
                on_host[name] += 1
        self._total = sum(_at_most(on_host[name], limit) for name, limit in most.items())
        self._reserved = reserved
        self._own = {(pool.name, queue): 0 for pool in pools for queue in reserved}
        self._common = dict.fromkeys(self._sizes, 0)
        for (name, queue), count in Counter((job.pool.name, job.queue) for job in jobs).items():
            self._use(name, queue, count)

    def beside(self, want: ClaimRequest, others: int) -> int:
        """Give how many of a want there may be where so much is for other queues."""
        of_type = self._sizes[want.type] - self._common[want.type] - self._own.get((want.type, want.queue), 0)
        of_all = self._total - sum(self._common.values())
        of_all -= sum(count for (_, queue), count in self._own.items() if queue == want.queue)
        return min(
            want.most,
            of_type - min(others, self._sizes[want.type] - 1),
            of_all - min(others, self._total - 1),
        )

    def use(self, want: ClaimRequest, count: int) -> None:
        """So many are going to be claimed."""
        self._use(want.type, want.queue, count)

    def _use(self, name: str, queue: str, count: int) -> None:
        if queue in self._reserved:
            self._own[name, queue] += count
        else:
            self._common[name] += count


def _at_most(count: int, limit: int) -> int:
    return count if limit == UNLIMITED else min(count, limit)
