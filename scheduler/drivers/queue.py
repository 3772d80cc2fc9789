"""The queue connection's side of each request: the right statement with the right arrays, and one event in answer.

Knows which named query carries a request out and how its rows read. What to send next, and what a failure means for
the rows of a request, is decided in policy/outbox.py; the SQL is in schema/queries.sql.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, assert_never

from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import OURS, Answer, Failure, Query, Rows, Table, setting, to_json
from scheduler.drivers.statements import RefusedStatements, cause_of
from scheduler.model.events import (
    ContentsRead,
    EndAndClaim,
    EndedAndClaimed,
    Event,
    FindLocked,
    LockedFound,
    Mark,
    NotSaved,
    ReadContents,
    RecordInHand,
    Request,
    Save,
    Saved,
    Settle,
    Settled,
    WriteLog,
    WriteOutput,
    Written,
)
from scheduler.model.jobs import SUSPECT_AFTER, Cells, ClaimPosition, ClaimRequest, read_claim

REQUEST_LIMIT_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 5.0

Arrays = dict[str, object]
WANTS: Final = (
    "want_types", "want_queues", "want_hosts", "want_below", "want_ranks", "want_queued", "want_pks", "want_counts",
)  # fmt: skip

# What a site says to have an end on its replicas as soon as it is told, remote_apply, is more than on: it stays.
DURABLE: Final = """
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') <> 'remote_apply'
"""


def settings(lock_limit: float) -> list[str]:
    """Give what the queue connection sets; seconds. Claims and ends are durable before anything follows from them."""
    return [
        setting(OURS),
        f"set lock_timeout = {round(lock_limit * 1000)}",
        "set plan_cache_mode = force_generic_plan",
        DURABLE,
    ]


class QueueConnection:
    """Carries requests to the queue and tells one event for each.

    A failure that leaves the connection up but is the world's (read-only, disk full), or that of a claim, is told
    after a pause that doubles to 5 s, so that whoever sends it again at once does no harm.
    """

    def __init__(
        self,
        loop: Loop,
        link: Connection,
        queries: Mapping[str, Query],
        owner: str,
        group: str,
        schedinfo: str,
        tell: Callable[[Event], None],
        refusals: RefusedStatements,
        *,
        limit: float = REQUEST_LIMIT_S,
    ) -> None:
        self.owner = owner  # another one after the lease was lost
        self._loop, self._link, self._queries = loop, link, queries
        self._group, self._schedinfo, self._tell, self._limit = group, schedinfo, tell, limit
        self._refusals = refusals
        self._pause = FIRST_PAUSE_S

    def send(self, request: Request) -> None:
        """Carry out a request; its event comes later."""
        name, values = self._put(request)
        done = partial(self._answered, request, name)
        self._link.ask(self._queries[name], values, done, deadline=self._limit)

    # ---- there

    def _put(self, request: Request) -> tuple[str, Arrays]:
        match request:
            case EndAndClaim():
                return "end_and_claim", self._turn(request)
            case Save(rows, failures):
                texts = to_json([row.as_dict() for row in rows]), to_json([asdict(each) for each in failures])
                return "save", {"owner": self.owner, "rows": texts[0], "failures": texts[1]}
            case Mark(rows):
                return "mark_running", {"owner": self.owner, **_columns(rows, "pks", "attempts")}
            case ReadContents(rows):
                return "read_claimed", {"owner": self.owner, **_columns(rows, "pks", "attempts")}
            case FindLocked(about):
                return "find_locked", {"pks": about.pks}
            case Settle(parents, beyond):
                return "settle", {"parents": parents, "beyond": beyond}
            case RecordInHand(pks):
                return "record_in_hand", {"owner": self.owner, "pks": pks}
            case WriteLog(rows):
                names = ("jobs", "types", "hosts", "agents", "pids", "messages")
                return "write_log", _columns(rows, *names)
            case WriteOutput(rows, followed):
                columns = _columns(rows, "jobs", "attempts", "parts", "streams", "texts")
                return "write_output", {"followed": followed, **columns}
            case _:
                assert_never(request)

    def _turn(self, turn: EndAndClaim) -> Arrays:
        return {
            "group": self._group,
            "owner": self.owner,
            "schedinfo": self._schedinfo,
            "unread": 0 if turn.unread else SUSPECT_AFTER,
            "guarded": [want.type for want in turn.wanted if want.guarded],
            **_columns(turn.ends, "pks", "attempts", "micros", "hosts", "pids", "codes"),
            **_columns([_asked(want) for want in turn.wanted], *WANTS),
        }

    # ---- and back

    def _answered(self, request: Request, name: str, answer: Answer) -> None:
        if isinstance(answer, Failure):
            return self._failed(request, name, answer)
        self._pause = FIRST_PAUSE_S
        self._refusals.accepted(name)
        return self._tell(_event(request, answer))

    def _failed(self, request: Request, name: str, failure: Failure) -> None:
        event = NotSaved(cause_of(failure), failure.sentence)
        if event.why == "lost" and not failure.lost:
            self._refusals.refused(name, failure)
        is_claim = isinstance(request, EndAndClaim) and not request.ends  # nothing of ours to halve: it will come again
        if failure.lost or (event.why != "lost" and not is_claim):
            return self._tell(event)
        self._loop.at(self._loop.now + self._pause, partial(self._tell, event))
        self._pause = min(self._pause * 2, LAST_PAUSE_S)
        return None


def _asked(want: ClaimRequest) -> tuple[str | int, ...]:
    """Give what query `end_and_claim` wants to know of a want."""
    return want.type, want.queue, want.host, want.below, *want.after, want.most


def _columns(rows: Sequence[tuple[Any, ...]], *names: str) -> Arrays:
    """Turn rows into one list a column."""
    if not rows:
        return dict.fromkeys(names, ())
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _event(request: Request, answer: Rows) -> Event:
    match request:
        case EndAndClaim():
            return _turned(request, answer.rows)
        case Save() | Mark():
            return _saved(answer.rows)
        case ReadContents():
            return ContentsRead({_number(pk): (args or b"", more or b"{}") for pk, args, more in answer.rows})
        case FindLocked():
            return LockedFound(frozenset(_numbers(answer.rows[0][0])))
        case Settle():
            released, parents, beyond, locked = answer.rows[0]
            left = Settle(_numbers(parents), _number(beyond)) if parents else None
            return Settled(_number(released), left, _numbers(locked))
        case RecordInHand() | WriteLog() | WriteOutput():
            return Written()
        case _:
            assert_never(request)


def _turned(turn: EndAndClaim, rows: Table) -> EndedAndClaimed:
    """Return the event in the rows of query `end_and_claim`: first about ends and wants, then a claim each."""
    _, _, reached, parents, lapsed, kept = rows[0]
    fenced = () if kept is None else tuple(sorted({end.pk for end in turn.ends} - set(_numbers(kept))))
    places = {turn.wanted[number - 1]: ClaimPosition(*place) for number, *place in json.loads(reached or b"[]")}
    claims = map(read_claim, islice(rows, 1, None), repeat(turn.wanted))
    found = {turn.wanted[int(number or 0) - 1]: count for number, count in Counter(rows.column(2)[1:]).items()}
    size = sum(map(len, filter(None, rows.column(3)[1:])))
    return EndedAndClaimed(claims, _numbers(parents), fenced, places, found, size, lapsed is not None)


def _saved(rows: Sequence[Cells]) -> Saved:
    parents = tuple(_number(row[0]) for row in rows if row[1:] == (b"t",))
    return Saved(frozenset(_number(row[0]) for row in rows), parents)


def _numbers(cell: bytes | None) -> tuple[int, ...]:
    """Read comma-separated numbers."""
    return tuple(map(int, cell.split(b","))) if cell else ()


def _number(cell: bytes | None) -> int:
    return int(cell or 0)
