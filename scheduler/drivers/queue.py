"""The queue connection: carries out each request of the core by a named query, and reports one event in answer.

Knows which query carries out a request, its parameters, and how to read its rows. What to send next, and what a failure
means for the rows of a request, is decided in policy/outbox.py; the SQL is in schema/queries.sql.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, Protocol, assert_never

from scheduler.drivers.loop import Loop
from scheduler.drivers.statement_runner import RefusedStatements, cause_of
from scheduler.drivers.statements import OURS, Answer, Done, Query, Rows, Table, encode, setting, to_json
from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.counters import BIN_BOUNDS, STARTED, WAITED, Counted, Times, add
from scheduler.model.queue_requests import CLAIM_COLUMNS, SUSPECT_AFTER, ClaimPosition, ClaimRequest, read_claim

END_AND_CLAIM: Final = "end_and_claim"
ONLY_END: Final = "only_end"
ONLY_CLAIM: Final = "only_claim"
EVENT: Final = "EVENT"  # the type of a log line that is an event too
FEW: Final = 4  # claims that are read at once
SAMPLE: Final = 100  # claims that tell how long the arguments of an answer are
UNCOUNTED: Final = 100  # answers at most whose jobs are not counted yet
REQUEST_LIMIT_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 5.0

WAITS: Final = (1, 2, 7)  # the columns of query `end_and_claim` that say how long a job has waited

Arrays = dict[str, Any]
Column = list[bytes | None]
WANTS: Final = (
    "want_types", "want_queues", "want_hosts", "want_below", "want_ranks", "want_queued", "want_pks", "want_counts",
)  # fmt: skip

# A site may have set remote_apply, so that an end is on its replicas before it is reported: that is more than on.
DURABLE: Final = """
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') <> 'remote_apply'
"""


def settings(lock_limit: float) -> list[str]:
    """Return what the queue connection sets; seconds. Claims and ends are durable before anything follows from them."""
    lock_timeout = f"set lock_timeout = {round(lock_limit * 1000)}"
    return [setting(OURS), lock_timeout, "set plan_cache_mode = force_generic_plan", DURABLE]


class Asked(Protocol):
    """The methods of Connection that QueueConnection uses; a test passes its own class with them."""

    def ask(self, query: Query, values: Mapping[str, object], done: Done, *, limit_s: float) -> None: ...


class QueueConnection:
    """Carries out requests, one event each.

    A failure that leaves the connection up and is the world's (read-only, disk full), or that of a claim, is reported
    after a pause that doubles to 5 s, so that the core may send the request again at once.
    """

    def __init__(
        self, loop: Loop, connection: Asked, queries: Mapping[str, Query], owner: str, group: str,
        schedinfo: str, report: Callable[[e.Event], None], refused: RefusedStatements, *,
        limit: float = REQUEST_LIMIT_S,
    ) -> None:  # fmt: skip
        self.owner = owner  # another after a loss of the lease
        self._loop, self._connection = loop, connection
        forms = {name: queries[name]._replace(name=END_AND_CLAIM) for name in (ONLY_END, ONLY_CLAIM)}
        self._queries = {**queries, **forms}  # logs and statistics name the whole
        self._group, self._schedinfo, self._report, self._limit = group, schedinfo, report, limit
        self._refused = refused
        self._pause = FIRST_PAUSE_S
        self._waited: dict[str, Times] = {}  # from jq_queued to the first claim, by type
        self._started: Counted = {}  # by type, and bin of that time
        self._uncounted: list[tuple[r.EndAndClaim, Column, Column, Column]] = []  # answers: to count can wait

    def take_counted(self) -> Counted:
        """Return how long the jobs waited that were claimed since the last call, for drover metrics and stats."""
        self._count_all()
        started, self._started = self._started, {}
        waits = {key: value for type, waited in self._waited.items() for key, value in waited.take(WAITED, type)}
        return waits | started

    def send(self, request: r.Request) -> None:
        """Carry out a request; its event is reported later."""
        name, values = self._statement(request)
        query = self._queries[name]
        done = partial(self._answered, request, query.name)
        self._connection.ask(query, values, done, limit_s=self._limit)

    def prepare(self) -> None:
        """Let the server plan claims and ends, which takes it 10 ms, before the first job comes; changes nothing."""
        nothing = {"group": self._group, "owner": self.owner, "schedinfo": self._schedinfo, "unread": SUSPECT_AFTER}
        nothing |= _ends(()) | _wants(())
        for name in (ONLY_CLAIM, ONLY_END, END_AND_CLAIM):
            self._connection.ask(self._queries[name], nothing, lambda _: None, limit_s=self._limit)

    def _statement(self, request: r.Request) -> tuple[str, Arrays]:
        ours: Arrays = {"group": self._group, "owner": self.owner}
        match request:
            case r.EndAndClaim(ends, wanted, unread):
                values = {**ours, "schedinfo": self._schedinfo, "unread": 0 if unread else SUSPECT_AFTER}
                if ends or not wanted:
                    values |= _ends(ends)
                if wanted:
                    values |= _wants(tuple(wanted))
                return END_AND_CLAIM if ends and wanted else ONLY_CLAIM if wanted else ONLY_END, values
            case r.Save(rows, failures):
                texts = to_json([row.as_dict() for row in rows]), to_json([asdict(each) for each in failures])
                return "save", {**ours, "rows": texts[0], "failures": texts[1]}
            case r.Mark(rows):
                columns = _columns(rows, "pks", "attempts", "states", "ages", "hosts", "pids", "spools")
                values = {**ours, "schedinfo": self._schedinfo, **columns}
                if any(row.spool for row in rows):
                    return "mark_detached", values
                del values["spools"]
                return "mark", values
            case r.ReadContents(rows):
                return "read_claimed", {**ours, **_columns(rows, "pks", "attempts")}
            case r.FindLocked(about):
                return "find_locked", {"pks": about.pks}
            case r.Settle(parents, beyond):
                return "settle", {"parents": parents, "beyond": beyond}
            case r.RecordInHand(pks):
                return "record_in_hand", {**ours, "pks": pks}
            case r.WriteLog(rows):
                names = ("jobs", "types", "hosts", "agents", "pids", "messages")
                has_events = any(row.type == EVENT for row in rows)
                return "write_events" if has_events else "write_log", _columns(rows, *names)
            case r.WriteOutput(rows, followed):
                columns = _columns(rows, "jobs", "attempts", "parts", "streams", "texts")
                return "write_output", {"followed": followed, **columns}
            case _:
                assert_never(request)

    def _answered(self, request: r.Request, name: str, answer: Answer) -> None:
        if isinstance(answer, Rows):
            self._pause = FIRST_PAUSE_S
            self._refused.accepted(name)
            self._report(_event(request, answer.rows))
            if isinstance(request, r.EndAndClaim) and len(answer.rows) > 1:
                attempts, numbers, queued = map(answer.rows.column, WAITS)
                self._uncounted.append((request, attempts, numbers, queued))
                if len(answer.rows) > 1 + FEW:  # while the next is on its way
                    self._count_all()
                    self._report(e.Claimed(_claims(request, answer.rows)))
                elif len(self._uncounted) >= UNCOUNTED:
                    self._count_all()
            return
        event = e.NotSaved(cause_of(answer), answer.sentence)
        if event.why == "again" and not answer.lost:
            self._refused.refused(name, answer)
        is_claim = isinstance(request, r.EndAndClaim) and not request.ends  # no rows to halve: the core claims again
        if answer.lost or (event.why != "again" and not is_claim):
            self._report(event)
            return
        self._loop.at(self._loop.now + self._pause, partial(self._report, event))
        self._pause = min(self._pause * 2, LAST_PAUSE_S)

    def _count_all(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for answer in uncounted:
            self._count_waits(*answer)

    def _count_waits(self, request: r.EndAndClaim, attempts: Column, numbers: Column, queued: Column) -> None:
        """Count how long jobs waited that are claimed for the first time; those of one insert are counted at once."""
        now = _instant(queued[0])
        for (attempt, number, cell), count in Counter(zip(attempts, numbers, queued, strict=True)).items():
            if number is None or attempt != b"1":
                continue
            type = request.wanted[int(number) - 1].type
            waited = self._waited.setdefault(type, Times())
            seconds = max(now - _instant(cell), 0.0)
            waited.add(seconds, count)
            add(self._started, (STARTED, type, "", str(bisect_left(BIN_BOUNDS, seconds))), count)


def _instant(cell: bytes | None) -> float:
    """Return a time as the database writes it, in seconds; an infinite one as long ago as there are clocks."""
    try:
        return datetime.fromisoformat((cell or b"").decode()).timestamp()
    except ValueError:
        return 0.0


def _columns(rows: Sequence[tuple[Any, ...]], *names: str) -> Arrays:
    """Return one sequence a column."""
    if not rows:
        return dict.fromkeys(names, ())
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _ends(ends: Sequence[r.End]) -> Arrays:
    """Return the columns of ends as query `end_and_claim` takes them: what is the same in all rows stands once."""
    columns = _columns(ends, "pks", "attempts", "ages", "micros", "hosts", "pids", "codes")
    shortened = {name: _shortened(columns[name]) for name in ("attempts", "hosts", "pids", "codes")}
    places = {host: place for place, host in enumerate(dict.fromkeys(shortened["hosts"]), 1)}
    shortened["places"] = tuple(map(places.__getitem__, shortened["hosts"]))
    return columns | shortened | {"hosts": tuple(places)}


def _shortened(column: tuple[Any, ...]) -> tuple[Any, ...]:
    return column[:1] if column and column.count(column[0]) == len(column) else column


@lru_cache
def _wants(wanted: tuple[ClaimRequest, ...]) -> Arrays:
    """Return the encoded columns of claim requests: whenever a daemon is idle it asks for the same."""
    rows = [(each.type, each.queue, each.host, each.below, *each.after, each.most) for each in wanted]
    columns = _columns(rows, *WANTS) | {"guarded": [each.type for each in wanted if each.guarded or each.detailed]}
    return {name: encode(column) for name, column in columns.items()}


def _event(request: r.Request, rows: Table) -> e.Event:
    match request:
        case r.EndAndClaim():
            return _ended_and_claimed(request, rows)
        case r.Save() | r.Mark():
            return e.Saved(
                frozenset(_number(row[0]) for row in rows), tuple(_number(row[0]) for row in rows if row[1:] == (b"t",))
            )
        case r.ReadContents():
            return e.ContentsRead({_number(pk): (args or b"", more or b"{}") for pk, args, more in rows})
        case r.FindLocked():
            return e.LockedFound(frozenset(_numbers(rows[0][0])))
        case r.Settle():
            released, parents, beyond, locked = rows[0]
            left = r.Settle(_numbers(parents), _number(beyond)) if parents else None
            return e.Settled(_number(released), left, _numbers(locked))
        case r.RecordInHand() | r.WriteLog() | r.WriteOutput():
            return e.Written()
        case _:
            assert_never(request)


def _ended_and_claimed(request: r.EndAndClaim, rows: Table) -> e.EndedAndClaimed:
    """Return the event in the rows of query `end_and_claim`: the first is about ends and wants, each other a claim.

    The claims are in it if they are few.
    """
    _, _, _, parents, lapsed, kept, _, _ = rows[0]
    fenced = () if kept is None else tuple(sorted({end.pk for end in request.ends} - set(_numbers(kept))))
    if len(rows) == 1:
        return e.EndedAndClaimed((), _numbers(parents), fenced, {}, {}, 0, lapsed is not None)
    claims = _claims(request, rows) if len(rows) <= 1 + FEW else ()
    reached: dict[ClaimRequest, ClaimPosition] = {}
    found: dict[ClaimRequest, int] = {}
    count = len(rows) - 1
    backwards: list[bytes | None] = [b"1"] * count  # the numbers of the requests, the last claim first
    if len(request.wanted) > 1:
        backwards = rows.column(2)[:0:-1]
    for number in set(backwards):
        pk, _, _, _, rank, _, _, queued = rows[-1 - backwards.index(number)]
        each = request.wanted[_number(number) - 1]
        reached[each] = ClaimPosition((rank or b"").decode(), (queued or b"").decode(), _number(pk))
        found[each] = backwards.count(number)
    sizes = [len(args or b"") for args in rows.column(3, 1 + count // SAMPLE)[1:]]
    size = sum(sizes) * count // len(sizes)
    return e.EndedAndClaimed(claims, _numbers(parents), fenced, reached, found, size, lapsed is not None)


def _claims(request: r.EndAndClaim, rows: Table) -> list[r.Claim]:
    wanted = request.wanted
    return [read_claim(row, wanted) for row in rows.below(1, CLAIM_COLUMNS)]


def _numbers(cell: bytes | None) -> tuple[int, ...]:
    return tuple(map(int, cell.split(b","))) if cell else ()


def _number(cell: bytes | None) -> int:
    return int(cell or 0)
