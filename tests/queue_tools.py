"""For the tests of the queue's statements: a courier with all it needs, and rows to put into the queue beside it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from scheduler.drivers import queue
from scheduler.drivers.loop import Loop
from scheduler.drivers.queue import QueueConnection
from scheduler.drivers.statement_runner import RefusedStatements
from scheduler.model.events_and_effects import EndedAndClaimed, Event
from scheduler.model.queue_requests import Claim, ClaimRequest, End, EndAndClaim, Mark, MarkRow, Request
from tests.connection_tools import OWNER, QUERIES, fetch, opened
from tests.loop_tools import turn_until

WANT = ClaimRequest("a", "default", "", False, 100)


def quiet() -> RefusedStatements:
    """Make one that tells nobody."""
    return RefusedStatements(lambda level, text: None, lambda text: None)


class Desk:
    """A courier with all it needs, and the events it told."""

    def __init__(self, conninfo: str, owner: str = OWNER, lock_limit: float = 0.2) -> None:
        self.loop = Loop()
        self.connection = opened(self.loop, conninfo, settings=queue.settings(lock_limit))
        self.events: list[Event] = []
        self.courier = QueueConnection(
            self.loop, self.connection, QUERIES, owner, "default", "here.7", self.events.append, quiet()
        )

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.loop.close()

    def ask(self, request: Request) -> Event:
        """Send a request and give its event, with a list of its claims."""
        self.events.clear()
        self.courier.send(request)
        turn_until(self.loop, lambda: self.events)
        event, *rows = self.events
        if not isinstance(event, EndedAndClaimed):
            return event
        return replace(event, claims=[claim for each in (event, *rows) for claim in each.claims])

    def turn(self, *wants: ClaimRequest) -> EndedAndClaimed:
        """Claim and give the answer."""
        event = self.ask(EndAndClaim((), wants or (WANT,)))
        assert isinstance(event, EndedAndClaimed), event
        return event

    def claim(self, *wants: ClaimRequest) -> list[Claim]:
        """Claim and return the claims."""
        return list(self.turn(*wants).claims)

    def claim_and_mark(self, *wants: ClaimRequest) -> list[Claim]:
        """Do the same, and let their rows say claimed."""
        claims = self.claim(*wants)
        self.ask(mark(claims, "claimed"))
        return claims


def insert(conninfo: str, values: str = "('a', 'x')", columns: str = "jq_type, jq_args") -> list[int]:
    """Queue jobs; return their numbers."""
    return [pk for (pk,) in fetch(conninfo, f"insert into drover.jobqueue ({columns}) values {values} returning jq_pk")]


def many(conninfo: str, count: int) -> None:
    """Queue plain jobs of type `a`; their parameters count from 1."""
    fetch(
        conninfo,
        "insert into drover.jobqueue (jq_type, jq_args) select 'a', i::text from generate_series(1, %s) i",
        count,
    )


def states(conninfo: str) -> list[str]:
    """Return the states of all jobs as people see them, the oldest first."""
    return [state for (state,) in fetch(conninfo, "select jq_state from drover.jobs order by jq_pk")]


def user(conninfo: str) -> str:
    """Return who queues what these functions queue."""
    ((name,),) = fetch(conninfo, "select current_user::text")
    return str(name)


def end(claim: Claim) -> End:
    """Return the plain success of a claim, after 1.5 s."""
    return End(claim.pk, claim.attempt, 2_000_000, 1_500_000, "alpha", 42, None)


def mark(claims: Iterable[Claim], state: str = "running") -> Mark:
    """Return the request to show claims in their rows, made a second ago."""
    return Mark([MarkRow(claim.pk, claim.attempt, state, 1_000_000) for claim in claims])


@contextmanager
def locked(conninfo: str, pk: int) -> Iterator[None]:
    """Keep a job locked by somebody else."""
    with psycopg.connect(conninfo) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (pk,))
        yield
