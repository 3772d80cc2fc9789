"""What people look at reads no more beside many jobs than beside few, analysed or not, and whatever they may see.

Counted are the pages that each statement looks at; nothing is timed.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import STATEMENT_FILES, Session, statements
from scheduler.cli.database_session import statement as command_statement
from tests.bench import crowd
from tests.conftest import _database
from tests.counts.meters import buffers
from tests.database.statements_of_people import CASES, NOT_LOOKED_AT, USUAL, Case

ENDED, WAITING, IN_HAND = 400, 200, 40
TIMES = 40  # as many that ended and that wait
SPARE = 150  # pages, of an index that has one level more and of catalogs that a session reads first
ROLES = {"owner": "", "masked": "drover_readonly", "own": "ann"}
FACTS = """
select (select max(jdep_jq_fk) from drover.jobdepends) as unmet,
       (select max(blocked_jq_fk) from drover.blocked) as blocked,
       (select min(pk) from drover.in_hand, unnest(hand_jobs) pk where pk % 2 = 1) as recorded,
       (select min(pk) from drover.in_hand, unnest(hand_jobs) pk where pk % 2 = 0) as marked,
       (select min(log_jq_fk) from drover.log) as ended, (select min(claim_first) from drover.claimable) as waiting
"""


class Sight(NamedTuple):
    """A database as a login sees it, and the numbers of some of its jobs by what they wait for."""

    session: Session
    jobs: Mapping[str, int]


@pytest.fixture(scope="module")
def crowds(postgres: str, migrated_with_roles: str) -> Iterator[dict[str, list[Sight]]]:
    """Yield by login and statistics how a small database is seen, and how one that has much more of everything."""
    with ExitStack() as stack:
        stack.enter_context(_role(postgres))
        few, many = (_filled(stack, postgres, migrated_with_roles, times) for times in (1, TIMES))
        yield {
            f"{login}; {'analysed' if analysed else 'never analysed'}": [
                _sight(stack, each[analysed], role) for each in (few, many)
            ]
            for login, role in ROLES.items()
            for analysed in (False, True)
        }


@contextmanager
def _role(postgres: str) -> Iterator[None]:
    """Have a login that sees its own jobs; roles are of the whole server."""
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute("create role ann login in role drover_frontend")
        yield
        server.execute("drop role ann")


def _filled(stack: ExitStack, postgres: str, template: str, times: int) -> list[str]:
    """Return the conninfo of two databases with the same jobs, of which the second is analysed."""
    raw, conninfo = stack.enter_context(_database(postgres, template))
    with psycopg.connect(conninfo, autocommit=True) as database:
        crowd.fill(database, ENDED * times, WAITING * times, IN_HAND, block=1)
    _, analysed = stack.enter_context(_database(postgres, raw))
    with psycopg.connect(analysed, autocommit=True) as database:
        database.execute("vacuum analyze")
    return [conninfo, analysed]


def _sight(stack: ExitStack, conninfo: str, role: str) -> Sight:
    with psycopg.connect(conninfo) as database:
        cursor = database.execute(FACTS)
        jobs = dict(zip((each.name for each in cursor.description or ()), cursor.fetchone() or (), strict=True))
    login = make_conninfo(conninfo, **({"user": role} if role else {}))
    return Sight(Session(stack.enter_context(psycopg.connect(login, autocommit=True))), jobs)


def test_every_statement_of_people_is_known_to_read_little_or_much() -> None:
    named = {name for file in STATEMENT_FILES for name in statements(file) if "." not in name}
    assert named == {case.name for case in CASES} | NOT_LOOKED_AT


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_statement_reads_no_more_beside_many_jobs(crowds: dict[str, list[Sight]], case: Case) -> None:
    """One that is known to be dear must be so: who mends it takes that mark away."""
    found = next(_those_who_read_more(crowds, case), None)
    assert (found is not None) == bool(case.dear), found or f"it reads little: take its mark away ({case.dear})"


def _those_who_read_more(crowds: dict[str, list[Sight]], case: Case) -> Iterator[tuple[str, str, int, int]]:
    """Yield each login and kind of job where more pages are read, and how many beside few and beside many."""
    for login, (few, many) in crowds.items():
        for kind in case.jobs if login.split(";")[0] in case.logins else ():
            usual, read = _pages(few, case, kind), _pages(many, case, kind)
            if read > 2 * usual + SPARE:
                yield login, kind, usual, read


def _pages(sight: Sight, case: Case, kind: str) -> int:
    """Return how many pages a statement looks at; none where the role may not ask."""
    session, query = sight.session, command_statement(case.name)
    job = sight.jobs.get(kind)
    asked = {"job": job, "jobs": None if job is None else [job]}
    given = dict.fromkeys(query.names) | USUAL | asked | case.values
    text, values = session._permitted(case.name, given)
    explain = b"explain (analyze, buffers, timing off, format json) " + text
    with session.connection.transaction(), suppress(psycopg.errors.InsufficientPrivilege):
        if case.expecting_many:
            session.run("expect_many_jobs")
        ((((plan,)),),) = psycopg.RawCursor(session.connection).execute(explain, values).fetchall()
        return int(buffers(plan["Plan"]))
    return 0
