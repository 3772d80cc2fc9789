"""A batch of a command about many jobs counts them and makes their tokens itself, without the row trigger.

That is right for jobs about which the trigger has more to do, beside triggers of the site that change what the batch
changes, and whatever a login sets.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.bulk_tools import FAIL, HOLD, QUEUE, batch, differences, give, queue_of_hundred, states
from tests.database.test_claimable import DIFFERENCE
from tests.job_count_tools import jobs_out_of_bounds, wrong_counts

VERBS = {"cancel": "", "ice": "", "hold": "", "release": HOLD, "retry": FAIL, "priority a": "", "move q": QUEUE}
ODD = """
insert into drover.jobqueue (jq_type, jq_unique_key, jq_not_before, jq_not_after, jq_submitter)
values ('a', 'k1', null, null, 'x'), ('a', null, now() + interval '1 h', null, 'y'),
       ('a', null, null, now() + interval '1 h', 'x'), ('a', 'k2', now() + interval '1 h', now() + interval '2 h', 'y');
insert into drover.jobdepends select jq_pk, 101 from drover.jobqueue where jq_submitter = 'y'
"""


@pytest.fixture
def queue(database: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with queue_of_hundred(database) as connection:
        yield connection


def give_site(queue: psycopg.Connection[Any], when: str, body: str) -> None:
    """Create a row trigger of the site on jobs, which is for job 7 only."""
    queue.execute(f"create function public.site() returns trigger language plpgsql as $$begin {body} end$$".encode())
    queue.execute(
        f"create trigger site {when} update on drover.jobqueue for each row when (new.jq_args = '7')"
        " execute function public.site()".encode()
    )


def wrong(queue: psycopg.Connection[Any]) -> list[Any]:
    """Return wrong tokens and wrong counts."""
    return [*differences(queue), *wrong_counts(queue)]


@pytest.mark.parametrize("words", VERBS)
def test_jobs_with_keys_times_and_dependencies_are_counted_and_offered_as_others(
    database: str, queue: psycopg.Connection[Any], words: str
) -> None:
    queue.execute(ODD.encode())
    if VERBS[words]:
        queue.execute(VERBS[words].encode())
    done = batch(queue, give(queue, words, type="a"))
    assert (done["is_over"], done["done"]) == (True, 100 if words == "retry" else 104)
    assert wrong(queue) == []
    with psycopg.connect(database) as plain:
        assert jobs_out_of_bounds(plain) == []


@pytest.mark.parametrize("words", VERBS)
@pytest.mark.parametrize(
    "body",
    [
        "update drover.jobqueue set jq_endtext = 'seen' where jq_pk = new.jq_pk and jq_endtext <> 'seen';",
        "update drover.jobqueue set jq_priority = 'z' where jq_pk = new.jq_pk and jq_priority <> 'z';",
        "update drover.jobqueue set jq_state = 'held' where jq_pk = new.jq_pk and jq_state = 'queued';",
        "update drover.jobqueue set jq_state = 'held' where jq_args = '8' and jq_state = 'queued';",
        "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
        " where jq_args = '8' and jq_state in ('held', 'queued');",
    ],
    ids=["endtext", "priority", "hold", "hold_other", "cancel_other"],
)
def test_what_a_trigger_of_the_site_changes_after_a_batch_is_counted_and_offered(
    queue: psycopg.Connection[Any], words: str, body: str
) -> None:
    if VERBS[words]:
        queue.execute(VERBS[words].encode())
    give_site(queue, "after", body + " return null;")
    assert batch(queue, give(queue, words, type="a"))["is_over"]
    assert wrong(queue) == []


@pytest.mark.parametrize("words", VERBS)
@pytest.mark.parametrize(
    "body", ["new.jq_batch := old.jq_batch;", "new.jq_batch := '1';", "new.jq_priority := 'z';", "new.jq_queue := 'x';"]
)
def test_what_a_trigger_of_the_site_changes_before_a_batch_is_counted_once(
    queue: psycopg.Connection[Any], words: str, body: str
) -> None:
    if VERBS[words]:
        queue.execute(VERBS[words].encode())
    give_site(queue, "before", body + " return new;")
    assert batch(queue, give(queue, words, type="a"))["done"] == 100
    assert wrong(queue) == []


def test_job_that_a_trigger_of_the_site_gives_another_state_is_refused(queue: psycopg.Connection[Any]) -> None:
    queue.execute(HOLD.encode())
    give_site(queue, "before", "new.jq_state := 'held'; return new;")
    command = give(queue, "release", type="a")
    with pytest.raises(psycopg.errors.CheckViolation, match="job 7 may not move from held to held"):
        batch(queue, command)
    rows = [batch(queue, command, 1) for _ in range(100)]
    assert (rows[-1]["done"], rows[-1]["refused"]) == (99, 1)
    assert rows[-1]["reasons"] == {"7": "job 7 may not move from held to held"}
    assert wrong(queue) == []


@pytest.mark.parametrize("words", ["cancel", "hold", "ice", "priority a"])
def test_job_that_a_trigger_of_the_site_keeps_is_refused_and_may_be_claimed(
    queue: psycopg.Connection[Any], words: str
) -> None:
    give_site(queue, "before", "return null;")
    done = batch(queue, give(queue, words, type="a"))
    assert (done["is_over"], done["done"], done["refused"]) == (True, 99, 1)
    assert done["reasons"] == {"7": "a trigger of the database keeps it as it is"}
    assert wrong(queue) == []


def test_two_batches_of_one_transaction_count_each_job_twice(queue: psycopg.Connection[Any]) -> None:
    with queue.transaction():
        batch(queue, give(queue, "hold", type="a"))
        batch(queue, give(queue, "release", type="a"))
    assert (states(queue), wrong(queue)) == ({"queued": 100}, [])


def test_no_setting_of_a_session_keeps_a_change_from_being_counted(database_with_roles: str) -> None:
    with (
        psycopg.connect(database_with_roles, autocommit=True, row_factory=dict_row) as queue,
        psycopg.connect(database_with_roles, user="drover_frontend", autocommit=True, row_factory=dict_row) as mine,
    ):
        mine.execute("set drover.in_bulk = 'on'")
        job = mine.execute("insert into drover.jobqueue (jq_type) values ('a') returning jq_pk").fetchone()
        assert job
        command = mine.execute("select drover.command('hold ' || %s) as pk", (job["jq_pk"],)).fetchone()
        assert command
        mine.execute("select drover.withdraw_commands(%s, 'x')", ([command["pk"]],))
        assert (wrong_counts(queue), queue.execute(DIFFERENCE.encode()).fetchall()) == ([], [])


def test_no_login_may_write_that_a_batch_counts_a_job(database_with_roles: str) -> None:
    with psycopg.connect(database_with_roles) as queue:
        found = queue.execute(
            "select rolname, what from pg_roles, unnest(array['insert', 'update']) as what"
            " where not rolsuper and rolname !~ '^pg_'"
            " and has_column_privilege(oid, 'drover.jobqueue', 'jq_batch', what)"
            " and oid <> (select relowner from pg_class where oid = 'drover.jobqueue'::regclass)"
        )
        assert found.fetchall() == []
