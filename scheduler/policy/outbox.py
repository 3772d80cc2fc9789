"""Decides which request goes to the queue next: ends, saves, logs and output wait here until the database has them.

A request that fails on its data is halved until the culprit is found, which then ends failed with the reason. A claim
that does so is made again without what the rows hold, which is read afterwards, in halves where it fails again. What
waits for a lock goes on without the rows that are locked; these are tried again now and then. While there are some,
nothing is sent about rows before the locked ones among them are found, so that no job waits for a lock on another. A
request whose connection was lost is sent again: every statement names the attempt and the owner, so the second time
changes nothing.

However long the database refuses everything, memory is bounded: of logs so much is kept, counted until it is saved; of
output and failed items, which are results, all is kept, and no work is assigned while there is too much of them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from scheduler.model import queue_requests as r
from scheduler.model.events_and_effects import NotSaved
from scheduler.model.queue_requests import ClaimRequest, End, ItemFailure, LogRow, MarkRow, OutputRow, SaveRow
from scheduler.model.states import BIT_FAILURE, FAILED, NEVER
from scheduler.policy.deadlines import GATHER, LOCKS, Deadlines

BATCH: Final = 1000  # rows of one request
LOG_BACKLOG: Final = 20_000  # log rows kept while the database does not take them; more are counted and dropped
LOG_SIZE: Final = 8 << 20  # characters of them, likewise: about what one second of a server takes
RESULT_SIZE: Final = 32 << 20  # characters of output and failed items, from which on no agent is given work
CHUNK: Final = 1 << 20  # characters of output in one request, unless its first row has more
GATHER_S: Final = 0.005  # that ends wait for others, while nothing is wanted and more is in hand
GATHER_MANY_S: Final = 0.02  # the same, if so many went together the last time
MANY: Final = 4
LOCK_PAUSE: Final = 1.0  # seconds until what waits for a lock has had another try


class Outbox:
    """Everything that waits to be saved."""

    def __init__(self, deadlines: Deadlines, former: "Outbox | None" = None) -> None:
        """Begin with nothing but the logs of a former owner; an answer to its request is still to come."""
        self._deadlines = deadlines
        self.ends: list[End] = []
        self.saves: dict[int, SaveRow] = {}
        self.failures: dict[int, list[ItemFailure]] = {}
        self.marks: dict[int, MarkRow] = {}  # rows to show as claimed or running
        self.reads: dict[int, int] = {}  # attempts of rows that were claimed without what they hold
        self.claims_failed = 0  # on their data, since the last one that did not
        self.parents: list[int] = []
        self.unsettled: deque[r.Settle] = deque()  # what was left of parents with many children
        self._late: set[int] = set()  # parents that a rescan found, and nothing else
        self.gather_until = 0.0  # ends that come before go together
        self.is_record_due = False  # what is in hand is to be said anew
        self.logs: list[LogRow] = [] if former is None else former.all_logs()
        self.log_rows = len(self.logs)  # not saved yet, those on their way included
        self.log_size = sum(len(row.message) for row in self.logs)  # characters of them
        self.lost_logs: int = 0 if former is None else former.lost_logs
        self.outputs: list[OutputRow] = []
        self.followed: set[int] = set()  # jobs of them whose output a session may follow
        self.result_size = 0  # characters of output and of failed items, likewise
        self.is_full = False  # so many that no agent is given work, until half of them are saved
        self.repeats: deque[r.Request] = deque()
        self.in_flight: r.Request | None = None if former is None else former.in_flight
        self._is_foreign = self.in_flight is not None  # the one in flight was sent in the name of a former owner
        self.resent = False  # the one in flight may have been carried out before
        self._logged_last = self._wrote_last = self._settled_last = self._rest_last = False
        self._logs_sent = 0  # rows, all in all
        self._after_logs: dict[int, int] = {}  # jobs whose end or save goes after log rows: after how many were sent
        self._given_up: list[int] = []  # rows in hand that the database refused: in the records, for `rescue`
        self.locked: deque[r.Request] = deque()  # what met a lock, one of each kind, but for parts of a Settle
        self.locked_until = 0.0  # when the first of them may be tried again
        deadlines.set(GATHER, NEVER)
        deadlines.set(LOCKS, NEVER)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits and nothing is on its way."""
        return not (
            self.ends or self.saves or self.marks or self.reads or self.parents or self.unsettled or self.logs
            or self.outputs or self.repeats or self.locked or self.in_flight or self.is_record_due
        )  # fmt: skip

    def pending(self) -> list[int]:
        """Return the rows whose end waits or is on its way."""
        requests = [*self.repeats, *self.locked, *([self.in_flight] if self.in_flight is not None else [])]
        sent = [
            pk for about in map(r.about_rows, requests) if isinstance(about, r.EndAndClaim | r.Save) for pk in about.pks
        ]
        return [*(end.pk for end in self.ends), *self.saves, *sent]

    # ---- what is to be written

    def end(self, row: End) -> None:
        """Save the plain success of a job, with others that end soon."""
        self.ends.append(row)
        if self.logs:
            self._after_logs[row.pk] = self._logs_sent + len(self.logs)

    def save(self, row: SaveRow, failures: Sequence[ItemFailure] = ()) -> None:
        """Save a row; a newer save of the same row replaces an older one that still waits."""
        self.saves[row.pk] = row
        if self.logs:
            self._after_logs[row.pk] = self._logs_sent + len(self.logs)
        if failures:
            self.failures.setdefault(row.pk, []).extend(failures)
            self._weigh(_weight_of(failures))
        if row.outcome is not None:
            self.marks.pop(row.pk, None)

    def mark(self, row: MarkRow) -> None:
        if row.spool is None and (before := self.marks.get(row.pk)) is not None:
            row = row._replace(spool=before.spool)
        self.marks[row.pk] = row

    def read(self, pk: int, attempt: int) -> None:
        self.reads[pk] = attempt

    def settle(self, parents: Iterable[int], rest: r.Settle | None = None) -> None:
        """Settle the dependencies on ended rows, and what was left of one with many children."""
        self.parents.extend(parents)
        if rest is not None:
            self.unsettled.append(rest)

    def settle_late(self, parents: Iterable[int]) -> None:
        """Settle the dependencies on rows that a rescan found; those that are not on their way are late."""
        sent = [self.in_flight, *self.repeats, *self.locked, *self.unsettled]
        under_way = {pk for request in sent if isinstance(request, r.Settle) for pk in request.parents}
        found = list(parents)
        self._late.update(set(found) - under_way - {*self.parents, *self.pending()})
        self.settle(found)

    def take_late(self, request: r.Settle) -> int:
        """Return how many parents of a request only a rescan found; forget that."""
        late = self._late.intersection(request.parents)
        self._late -= late
        return len(late)

    def want_record(self) -> None:
        self.is_record_due = True

    def log(self, row: LogRow) -> None:
        """Write to drover.log; dropped and counted when too much waits."""
        if self.log_rows >= LOG_BACKLOG or self.log_size >= LOG_SIZE:
            self.lost_logs += 1
            return
        self.logs.append(row)
        self.log_rows += 1
        self.log_size += len(row.message)

    def all_logs(self) -> list[LogRow]:
        """Return the log rows that wait, for the first time or to be sent again."""
        again = [request for request in [*self.repeats, *self.locked] if isinstance(request, r.WriteLog)]
        return [*(row for request in again for row in request.rows), *self.logs]

    def output(self, row: OutputRow, *, is_followed: bool = False) -> None:
        """Write to drover.output; if it may be followed, tell that there is more."""
        self.outputs.append(row)
        if is_followed:
            self.followed.add(row.job)
        self._weigh(len(row.text))

    def _weigh(self, more: int) -> None:
        self.result_size += more
        self.is_full = self.result_size > (RESULT_SIZE // 2 if self.is_full else RESULT_SIZE)

    # ---- the next request

    def gathers(self, now: float) -> bool:
        """Return whether nothing but ends waits, and they wait for others: until the deadline that is set."""
        others = (
            self.is_record_due, self.saves, self.marks, self.reads, self.parents, self.unsettled, self.logs,
            self.outputs, self.repeats,
        )  # fmt: skip
        if now >= self.gather_until or len(self.ends) >= BATCH or any(others):
            return False
        if self.ends and self._deadlines.at[GATHER] != self.gather_until:
            self._deadlines.set(GATHER, self.gather_until)
        return True

    def record_in_hand(self, rows: Sequence[int]) -> r.Request:
        """Return the request that records anew which rows are in hand; nothing else is in flight."""
        self.is_record_due = False
        self.in_flight = r.RecordInHand([*rows, *self._given_up])
        return self.in_flight

    def next_request(self, wanted: Sequence[ClaimRequest], now: float) -> r.Request | None:
        """Return what to send now, if anything; it is in flight until `answered`, `found_locked` or `failed`."""
        assert self.in_flight is None
        self.resent = True
        if self.repeats:
            self.in_flight = self.repeats.popleft()
        elif self.locked and now >= self.locked_until:
            self.in_flight = r.careful(self.locked.popleft())
        else:
            self.resent, self.in_flight = False, self._choose(wanted)
            if self.locked:
                self.in_flight = self._beside_locks(self.in_flight)
        has_many = isinstance(self.in_flight, r.EndAndClaim) and len(self.in_flight.ends) >= MANY
        self.gather_until = now + (GATHER_MANY_S if has_many else GATHER_S)
        if self._deadlines.at[GATHER] < NEVER:
            self._deadlines.set(GATHER, NEVER)
        return self.in_flight

    def _beside_locks(self, request: r.Request | None) -> r.Request | None:
        """Send nothing about rows while some are locked before it is known which others are: claims go at once."""
        if request is None or not any(map(r.about_rows, self.locked)):
            return request
        if isinstance(request, r.EndAndClaim) and request.ends and request.wanted:
            self.repeats.append(r.FindLocked(request))
            return replace(request, ends=())
        return r.careful(request)

    def _choose(self, wanted: Sequence[ClaimRequest]) -> r.Request | None:
        """Choose the next request; logs, output or children not twice in a row."""
        if self.reads:
            reads, self.reads = list(self.reads.items()), {}
            return r.ReadContents(reads)
        is_plain = not (self.saves or self.marks or self.logs or self.outputs or self.repeats or self.locked)
        saves, marks, ends = ([], [], self.ends) if is_plain else self._ready()
        family, others = self.parents or self.unsettled, saves or marks or ends or wanted
        is_held = bool([request for request in self.locked if isinstance(request, r.WriteOutput)])
        if self.outputs and not is_held and not (self._wrote_last and (family or others or self.logs)):
            self._wrote_last = True
            return self._write_output()
        self._wrote_last = False
        if self.logs and not (self._logged_last and (family or others)):
            self._logged_last = True
            return self._write_log()
        self._logged_last = False
        if family and not (self._settled_last and others):
            self._settled_last = True
            return self._settle()
        self._settled_last = False
        return self._rows(saves, marks, ends, wanted)

    def _rows(
        self, saves: list[int], marks: list[int], ends: list[End], wanted: Sequence[ClaimRequest]
    ) -> r.Request | None:
        """Return the request about rows that goes first: saves, marks, or ends and claims together."""
        if saves:
            rows = [self.saves.pop(pk) for pk in saves[:BATCH]]
            return r.Save(rows, [failure for row in rows for failure in self.failures.pop(row.pk, ())])
        if marks:
            return r.Mark([self.marks.pop(pk) for pk in marks])
        if not (ends or wanted):
            return None
        if len(ends) == len(self.ends):
            self.ends = []
        else:
            sent = {end.pk for end in ends}
            self.ends = [end for end in self.ends if end.pk not in sent]
        if self.claims_failed > 1:  # without contents too: for one row of one place
            wanted = [request._replace(most=1) for request in wanted[:1]]
        return r.EndAndClaim(ends, wanted, unread=bool(self.claims_failed and wanted))

    def _ready(self) -> tuple[list[int], list[int], list[End]]:
        """Return the rows to save, to mark and to end that wait for nothing: logs and output of an end go before it.

        Logs that met a lock do not: a job does not stay in hand for them.
        """
        again = [*self.repeats, *self.locked]
        held = {pk for about in map(r.about_rows, again) if isinstance(about, r.Save | r.Mark) for pk in about.pks}
        saves = [pk for pk in self.saves if pk not in held]  # words on one row keep their order
        marks = [pk for pk in self.marks if pk not in held and pk not in self.saves]
        ends = self.ends
        if self._after_logs:
            saves = [pk for pk in saves if pk not in self._after_logs]
            ends = [end for end in ends if end.pk not in self._after_logs]
        rows = list(self.outputs)
        for request in again:
            rows += request.rows if isinstance(request, r.WriteOutput) else ()
        if unwritten := {row.job for row in rows}:
            saves = [pk for pk in saves if pk not in unwritten]
            ends = [end for end in ends if end.pk not in unwritten]
        return saves, marks, ends

    def _write_log(self) -> r.WriteLog:
        logs, self.logs = self.logs[:BATCH], self.logs[BATCH:]
        self._logs_sent += len(logs)
        self._after_logs = {pk: count for pk, count in self._after_logs.items() if count > self._logs_sent}
        return r.WriteLog(logs)

    def _write_output(self) -> r.WriteOutput:
        count = _chunk(len(row.text) for row in self.outputs)
        rows, self.outputs = self.outputs[:count], self.outputs[count:]
        followed = sorted(self.followed.intersection(row.job for row in rows))
        if not self.outputs:
            self.followed.clear()
        return r.WriteOutput(rows, followed)

    def _settle(self) -> r.Settle:
        """Settle what was left of earlier parents every other time: newer parents do not wait for all of it."""
        self._rest_last = bool(self.unsettled) and not (self.parents and self._rest_last)
        if self._rest_last:
            return self.unsettled.popleft()
        parents, self.parents = self.parents, []
        return r.Settle(parents)

    # ---- its answer

    def drop_foreign(self, *, is_done: bool = True) -> bool:
        """Forget the request in flight if it is foreign, but keep log rows that it failed to write; return whether."""
        if not self._is_foreign:
            return False
        if not is_done and isinstance(self.in_flight, r.WriteLog):
            for row in self.in_flight.rows:
                self.log(row)
        self._is_foreign, self.in_flight = False, None
        return True

    def answered(self) -> r.Request | None:
        """Forget the request in flight, which is carried out, and return it; None if it was foreign."""
        if self.drop_foreign():
            return None
        request = self._landed()
        self._forget(request)
        if isinstance(request, r.EndAndClaim) and request.wanted:
            self.claims_failed = 0
        return request

    def _landed(self) -> r.Request:
        request, self.in_flight = self.in_flight, None
        assert request is not None
        return request

    def _forget(self, request: r.Request) -> None:
        """Free the memory that the rows of a request are counted for."""
        match request:
            case r.WriteLog(rows):
                self.log_rows -= len(rows)
                self.log_size -= sum(len(row.message) for row in rows)
                if self.lost_logs and not self.log_rows:
                    text = f"{self.lost_logs} log lines were dropped: the database took none"
                    self.lost_logs = 0
                    self.log(LogRow(None, "WARNING", None, None, None, text))
            case r.WriteOutput(rows, _):
                self._weigh(-sum(len(row.text) for row in rows))
            case r.Save(_, failures):
                self._weigh(-_weight_of(failures))

    def found_locked(self, pks: frozenset[int], now: float) -> None:
        """Postpone the locked rows of the request in flight, and send the others."""
        about = r.about_rows(self._landed())
        assert about is not None
        if free := set(about.pks) - pks:
            self.repeats.append(about.part(free))
        if pks:
            self.wait_for_lock(about.part(pks), now)

    def wait_for_lock(self, request: r.Request, now: float) -> None:
        """Send a request again when the lock that it met may be gone."""
        request = r.about_rows(request) or request
        for place, other in enumerate(self.locked):
            if (both := r.joined(other, request)) is not None:
                self.locked[place] = both
                break
        else:
            self.locked.append(request)
        self.locked_until = now + LOCK_PAUSE / len(self.locked)
        self._deadlines.set(LOCKS, self.locked_until)

    def failed(self, why: NotSaved, now: float) -> str | None:
        """Send the request that failed again, in parts or later; return a complaint when something is given up."""
        request = self._landed()
        complaint = None
        if isinstance(request, r.EndAndClaim):
            if request.wanted and why.why == "data":
                complaint = self._claim_failed(why.reason)
            if not request.ends:
                return complaint
            request = replace(request, wanted=(), unread=False)  # what is wanted may be something else by now
        if isinstance(request, r.RecordInHand):
            return None  # the next one will do
        if why.why == "again" or complaint is not None:  # it may have failed of the claim alone
            self.repeats.appendleft(request)
            return complaint
        if why.why == "lock" or isinstance(request, r.FindLocked):
            question = r.careful(request)  # which rows are locked, unless that was asked: the others go on at once
            if self.resent or question is request:
                self.wait_for_lock(request, now)
            else:
                self.repeats.append(question)
            return None
        if halves := r.halves_of(request):
            self.repeats.extendleft(reversed(halves))
            return None
        return self._give_up(request, why.reason)

    def _claim_failed(self, reason: str) -> str:
        """Count a claim that failed on data; return what to log."""
        self.claims_failed += 1
        next_step = "rows are claimed first and read one by one" if self.claims_failed == 1 else "other rows are tried"
        return f"a claim failed on the data of a row: {reason}: {next_step}"

    def _give_up(self, request: r.Request, reason: str) -> str:
        """Give up one row that the database refuses: a job ends failed with the reason, a log line is dropped."""
        what = f"the database refuses {r.in_words(request)}: {reason}"
        self._forget(request)
        match request:
            case r.Save(rows, _) if rows[0].text == what:
                self._given_up.append(rows[0].pk)
            case r.Save(rows, _):
                self.saves.setdefault(rows[0].pk, _without_data(rows[0], what))
            case r.EndAndClaim(ends, _):
                end = ends[0]
                self.saves[end.pk] = SaveRow(end.pk, end.attempt, FAILED, BIT_FAILURE, what, "failed")
        return what


def _chunk(sizes: Iterable[int]) -> int:
    """Return how many rows of these sizes go into one request: at least one, if there is one."""
    count = total = 0
    for size in islice(sizes, BATCH):
        total += size
        if count and total > CHUNK:
            break
        count += 1
    return count


def _weight_of(failures: Iterable[ItemFailure]) -> int:
    return sum(len(failure.line) + len(failure.reason) for failure in failures)


def _without_data(row: SaveRow, reason: str) -> SaveRow:
    """Return a row, refused with its data, without them."""
    if row.outcome is None:
        return replace(row, text=reason, result=None, checkpoint=None)
    return SaveRow(
        pk=row.pk, attempt=row.attempt, state=FAILED, bits=BIT_FAILURE, text=reason, outcome="failed",
        processed=row.processed, failed=row.failed, host=row.host, agent=row.agent, pid=row.pid,
    )  # fmt: skip
