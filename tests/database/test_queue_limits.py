"""Queues with a maximum length: inserts beyond it are refused, whoever inserts at once; the scheduler's own are not."""

import threading

import psycopg
import pytest
from psycopg.errors import CheckViolation, LockNotAvailable

from tests.event_tools import HOOK, NOTIFY
from tests.role_tools import Login
from tests.schema_tools import Connection, add_job, fetch_all, fetch_one, read_column, set_columns

LIMITED = "insert into drover.queue (queue_name, queue_group, queue_max_length) values ('q', 'default', 2)"
PUT = "insert into drover.jobqueue (jq_type, jq_queue, jq_state) select 'a', %s, %s from generate_series(1, %s)"
IS_ON = "select tgenabled::text from pg_trigger where tgname = 'jobqueue_queue_limit'"
TESTER = "drover.tester.1"
TYPES = "select jq_type, jq_submitter from drover.jobqueue where jq_queue = 'q' and jq_state = 'queued' order by jq_pk"
WAITING = "select count(*) from drover.jobqueue where jq_queue = 'q'"


@pytest.fixture
def limited(queue: Connection) -> Connection:
    """Return a connection to a database whose queue q lets two jobs wait."""
    queue.execute(LIMITED.encode())
    assert fetch_one(queue, "select drover.install_routes()") is None
    return queue


def put(connection: Connection, jobs: int, queue: str = "q", state: str = "queued") -> None:
    connection.execute(PUT.encode(), (queue, state, jobs))


def test_jobs_beyond_the_length_of_a_queue_are_refused_with_the_reason_t103(limited: Connection) -> None:
    put(limited, 2)
    with pytest.raises(CheckViolation, match="queue q is full: at most 2 jobs may wait in it") as refused:
        put(limited, 1)
    assert str(refused.value.diag.message_hint).startswith("Try again when some have started")
    with pytest.raises(CheckViolation):
        put(limited, 3, "q")
    put(limited, 5, "default")
    assert fetch_one(limited, WAITING) == 2


def test_one_statement_with_more_jobs_than_fit_is_refused_whole_t103(limited: Connection) -> None:
    with pytest.raises(CheckViolation):
        put(limited, 3)
    assert fetch_one(limited, WAITING) == 0


def test_a_job_that_left_the_queue_makes_room_and_held_ones_take_none_t103(limited: Connection) -> None:
    put(limited, 2)
    put(limited, 3, state="held")
    limited.execute(
        "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
        " where jq_pk = 1"
    )
    put(limited, 1)
    with pytest.raises(CheckViolation):
        put(limited, 1)


def test_what_the_scheduler_queues_itself_is_let_in_t103(limited: Connection) -> None:
    put(limited, 2)
    limited.execute(
        "insert into drover.jobqueue (jq_type, jq_queue, jq_unique_key) values ('notify', 'q', null), "
        "('a', 'q', 'drover.tester.1')"
    )
    assert fetch_one(limited, WAITING) == 4


@pytest.fixture
def full(login: Login) -> Connection:
    """Return the owner's connection to a database with all roles, whose queue q is full."""
    owner = login("")
    owner.execute(LIMITED.encode())
    assert fetch_one(owner, "select drover.install_routes()") is None
    put(owner, 2)
    return owner


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "tenant", "operator"])
@pytest.mark.parametrize("columns", [{"jq_type": "notify"}, {"jq_unique_key": TESTER}], ids=["notify", "tester"])
def test_jobs_that_others_call_as_the_scheduler_does_are_refused(
    full: Connection, login: Login, role: str, columns: dict[str, str]
) -> None:
    with pytest.raises(CheckViolation, match="queue q is full"):
        add_job(login(f"drover_{role}"), jq_queue="q", **columns)
    assert fetch_one(full, WAITING) == 2


def test_testers_and_deliveries_of_a_scheduler_are_let_in(full: Connection, login: Login) -> None:
    full.execute(NOTIFY.replace("'default'", "'q'").encode())
    full.execute("select drover.subscribe(kind => 'user', targets => array[%s])", (HOOK,))
    full.execute("select drover.job_event(min(jq_pk), 'x') from drover.jobqueue")
    daemon = login("drover_scheduler")
    add_job(daemon, jq_queue="q", jq_unique_key=TESTER)
    assert fetch_one(daemon, "select queued from drover.queue_deliveries('q', 10)") == 1
    assert fetch_all(full, TYPES)[2:] == [("noop", "drover_scheduler"), ("notify", "drover_scheduler")]


@pytest.mark.parametrize(
    ("role", "state"), [("frontend", "blocked"), ("operator", "blocked"), ("scheduler", "cancelled")]
)
def test_a_blocked_job_is_cancelled_only_if_it_is_a_tester_of_a_scheduler(login: Login, role: str, state: str) -> None:
    owner = login("")
    job = add_job(login(f"drover_{role}"), jq_unique_key=TESTER)
    set_columns(owner, job, "jq_state = 'blocked', jq_endtext = 'blocked: tape'")
    assert read_column(owner, job, "jq_state::text") == state


def test_a_front_end_that_leaves_its_transaction_open_is_named_to_others_as_the_reason(full: Connection) -> None:
    full.execute("update drover.queue set queue_max_length = 9")
    with psycopg.connect(full.info.dsn) as first, psycopg.connect(full.info.dsn) as second:
        put(first, 1)
        second.execute("set lock_timeout = '50ms'")
        with pytest.raises(LockNotAvailable, match="queue q: another transaction that inserts into it has not ended"):
            put(second, 1)


def test_two_front_ends_at_once_do_not_pass_the_length_t103(limited: Connection) -> None:
    put(limited, 1)
    refused: list[str] = []
    with psycopg.connect(limited.info.dsn) as first:
        put(first, 1)

        def second() -> None:
            with psycopg.connect(limited.info.dsn) as other:
                try:
                    put(other, 1)
                except CheckViolation as error:
                    refused.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        first.commit()
        thread.join()
    assert len(refused) == 1
    assert fetch_one(limited, WAITING) == 2


def test_without_a_limit_inserts_call_nothing_for_it_t103(limited: Connection) -> None:
    seen = [fetch_one(limited, IS_ON)]
    limited.execute("update drover.queue set queue_max_length = null")
    stale = fetch_one(limited, "select drover.is_route_stale()")
    limited.execute("select drover.install_routes()")
    seen += [stale, fetch_one(limited, IS_ON), fetch_one(limited, "select drover.is_route_stale()")]
    assert seen == ["O", True, "D", False]
    put(limited, 5)


def test_no_queue_has_a_length_and_no_job_an_end_by_default_t103(queue: Connection) -> None:
    queue.execute("insert into drover.queue (queue_name, queue_group) values ('q', 'default')")
    put(queue, 1)
    found = fetch_all(queue, "select queue_max_length, jq_not_after from drover.queue, drover.jobqueue limit 1")
    assert found == [(None, None)]
