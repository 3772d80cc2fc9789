"""Deliveries of events on a real Postgres (T98, T101 to T104): what is due when, who waits for whom, what is dead."""

import base64
import hashlib
import hmac
import json
from datetime import datetime
from typing import Any, Final

import psycopg
import pytest

from scheduler.model.queue_requests import Save, SaveRow
from tests.connection_tools import fetch, rows_of
from tests.event_tools import HOOK, NOTIFY, OPEN, OVER, TRIES, deliver, end_try, ready, subscribe
from tests.patience import PATIENCE_S
from tests.queue_tools import Desk, insert, many
from tests.role_tools import Login
from tests.schema_tools import Connection, fetch_all, fetch_one

# ---- what is due


def test_deliveries_of_a_job_follow_each_other_and_those_of_others_do_not_wait_t98(watch: Any, database: str) -> None:
    ready(database)
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK])
    for job, text in ((1, "a"), (1, "b"), (2, "c")):
        fetch(database, "select drover.job_event(%s, %s)", job, text)
    assert deliver(watch) == (0, 2)
    assert fetch(database, OPEN) == [(1, "sent"), (2, "waiting"), (3, "sent")]
    (first, *_) = fetch(database, TRIES)
    end_try(database, first[0])
    assert deliver(watch) == (0, 1)
    assert fetch(database, OPEN) == [(2, "sent"), (3, "sent")]


@pytest.mark.parametrize("column", ["agent_enabled", "agent_present"])
def test_deliveries_are_looked_at_when_their_agent_type_is_enabled(database: str, column: str) -> None:
    ready(database)
    fetch(database, f"update drover.agent set {column} = false")
    with psycopg.connect(database, autocommit=True) as daemon:
        daemon.execute("listen drover_delivery")
        daemon.execute("update drover.agent set agent_reason = 'none of its business'")
        assert list(daemon.notifies(timeout=0)) == []
        daemon.execute(f"update drover.agent set {column} = true".encode())
        assert [each.channel for each in daemon.notifies(timeout=PATIENCE_S, stop_after=1)] == ["drover_delivery"]


def test_failed_try_comes_again_after_20_s_twice_then_after_10_minutes_until_dead_t98(
    watch: Any, database: str
) -> None:
    ready(database)
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, 'a')")
    waits = []
    for _ in range(4):
        assert deliver(watch) == (0, 1)
        ((job, _),) = fetch(database, TRIES)
        end_try(database, job, "status 500")
        assert deliver(watch) == (0, 0)
        waits += fetch(database, "select round(extract(epoch from del_next - now()), -1)::integer from drover.delivery")
        fetch(database, "update drover.delivery set del_next = now()")
    assert waits == [(20,), (20,), (600,), (600,)]
    fetch(database, "update drover.delivery set del_tries = 152")
    assert deliver(watch) == (0, 1)
    ((job, _),) = fetch(database, TRIES)
    end_try(database, job, "status 500")
    assert deliver(watch) == (1, 0)
    assert fetch(database, "select del_state, del_tries, del_text from drover.delivery") == [
        ("dead", 153, "status 500")
    ]
    assert fetch(database, "select dead_reason, dead_jq_fk, dead_text from drover.dead_letter") == [
        ("not delivered", 1, "status 500")
    ]
    assert fetch(database, "select log_type, log_jq_fk from drover.log") == [("DEAD", None)]
    assert fetch(database, TRIES) == []


def test_policy_for_notify_says_when_a_delivery_is_tried_again_t98(watch: Any, database: str) -> None:
    rules = json.dumps({"steps": [[1, 1], [0, 7]], "max_tries": 3})
    fetch(database, "insert into drover.recovery_policy values ('default', 'notify', 'notify', '{}', %s)", rules)
    query = "select array(select drover.delivery_wait('default', n) from generate_series(1, 4) n)"
    assert fetch(database, query) == [([1, 7, 7, None],)]


def test_signature_is_that_of_the_standard_t98(watch: Any, database: str) -> None:
    ready(database)
    insert(database)
    secret = base64.b64encode(b"k" * 70).decode()
    subscribe(database, kind="user", targets=[HOOK], secret=f"whsec_{secret}")
    fetch(database, "select drover.job_event(1, 'half \"way\"\nü')")
    deliver(watch)
    ((_, args),) = fetch(database, TRIES)
    assert "\n" not in args
    told = json.loads(args)
    headers = told["headers"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{told['body']}".encode()
    expected = base64.b64encode(hmac.digest(b"k" * 70, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    body = json.loads(told["body"])
    assert (body["type"], body["data"]["job"], body["data"]["text"]) == ("job.user", 1, 'half "way"\nü')
    assert body["timestamp"].endswith("Z")


def test_time_of_an_event_is_told_in_utc_whatever_the_session_has_t118(database: str) -> None:
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, 'a')")
    ((at,),) = fetch(database, "select extract(epoch from ev_date)::float8 from drover.event")
    bodies = set()
    for zone in ("UTC", "Asia/Tokyo"):
        with psycopg.connect(database, options=f"-c timezone={zone}") as connection:
            told = json.loads(fetch_one(connection, "select drover.notification(1)"))
        bodies.add(json.loads(told["body"])["timestamp"])
    (told_at,) = bodies
    assert datetime.fromisoformat(told_at).timestamp() == pytest.approx(at, abs=1e-5)


def test_nothing_is_queued_before_the_group_has_an_agent_for_it_t101(watch: Any, database: str) -> None:
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, 'a')")
    assert deliver(watch) == (0, 0)
    assert fetch(database, OPEN) == [(1, "waiting")]


def test_dead_receiver_has_at_most_20_jobs_and_does_not_hold_up_others_t98(watch: Any, database: str) -> None:
    ready(database)
    many(database, 30)
    subscribe(database, kind="user", targets=[HOOK, "https://example.net/"])
    fetch(database, "select drover.job_event(n, 'a') from generate_series(1, 30) n")
    assert deliver(watch) == (0, 40)
    assert deliver(watch) == (0, 0)


def test_full_subscription_makes_dead_letters_that_are_logged_t39_t102_t103(watch: Any, database: str) -> None:
    insert(database)
    subscribe(database, kind="user", targets=[HOOK], most=2)
    site = subscribe(database, kind="dead", is_site=True, targets=["mailto:support@example.org"])
    for text in ("a", "b", "c"):
        fetch(database, "select drover.job_event(1, %s)", text)
    assert fetch(database, "select dead_reason, dead_delivery from drover.dead_letter") == [("overflow", 3)]
    assert fetch(database, "select log_type, log_message from drover.log") == [("DEAD", OVER)]
    told = fetch(
        database,
        "select ev_kind, ev_text from drover.delivery join drover.event on ev_pk = del_event where del_sub = %s",
        site,
    )
    assert told == [("dead", OVER)]


def test_what_an_expired_subscription_had_to_deliver_is_a_dead_letter_t102(watch: Any, database: str) -> None:
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, 'a')")
    fetch(database, "update drover.subscription set sub_expires = now()")
    assert deliver(watch) == (1, 0)
    assert fetch(database, "select dead_reason from drover.dead_letter") == [("expired",)]


def test_a_job_that_was_not_started_in_time_is_a_dead_letter_t102_t103(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_not_after) values ('a', now() - interval '1 s')")
    rows_of(watch("due"))
    assert fetch(database, "select dead_kind, dead_reason, dead_jq_fk from drover.dead_letter") == [
        ("dead", "expired", 1)
    ]


def test_an_ignored_job_is_a_dead_letter_t102(database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_state) values ('a', 'held')")
    fetch(
        database,
        "update drover.jobqueue set jq_state = 'ignored', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2",
    )
    fetch(database, "select drover.announce('{1}', '{ignored}')")
    assert fetch(database, "select dead_kind, dead_reason from drover.dead_letter") == [("dead", "no consumer")]


def test_a_job_without_tries_left_is_a_dead_letter_t102(desk: Desk, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_retries) values ('a', 1)")
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(claim.pk, 1, "failed", bits=2, text="no", outcome="failed", failures=2)]))
    assert fetch(database, "select dead_reason from drover.dead_letter") == [("attempts exhausted",)]


def test_a_job_that_nobody_takes_is_an_alternate_once_and_stays_t38_t101_t32(watch: Any, database: str) -> None:
    many(database, 2)
    fetch(database, "insert into drover.jobqueue (jq_type, jq_queue) values ('a', 'nowhere')")
    fetch(database, "update drover.jobqueue set jq_queued = now() - interval '1 hour' where jq_pk <> 2")
    for expected in (2, 0):
        ((found, *_),) = rows_of(watch("find_unserved", places=10, most=10, type="", queue=""))
        assert int(found) == expected
    assert fetch(database, "select dead_kind, dead_jq_fk, dead_text from drover.dead_letter order by 2") == [
        ("alternate", 1, "no scheduler serves type 'a'"),
        ("alternate", 3, "no queue 'nowhere'"),
    ]
    assert fetch(database, "select log_type, log_message from drover.log order by 2") == [
        ("ALTERNATE", "job 1: no scheduler serves type 'a'"),
        ("ALTERNATE", "job 3: no queue 'nowhere'"),
    ]
    assert fetch(database, "select distinct jq_state::text from drover.jobqueue") == [("queued",)]


# ---- one against the others


def fill_with_targets(owner: Connection, jobs: int, each: int) -> None:
    """Let a front-end subscribe to its jobs, each with so many targets, and have an event of each job wait."""
    owner.execute(
        "insert into drover.jobqueue (jq_type, jq_state) select 'a', 'held' from generate_series(1, %s)", (jobs,)
    )
    owner.execute(
        """select drover.subscribe(kind => 'user', job => jq_pk,
                                   targets => array(select 'http://example.org/' || n from generate_series(1, %s) n))
             from drover.my_jobs""",
        (each,),
    )
    owner.execute("select drover.job_event(jq_pk, 'x') from drover.my_jobs")


def look(admin: Connection) -> int:
    """Go on with deliveries; return how many were queued."""
    return int(fetch_one(admin, "select queued from drover.queue_deliveries('default', 100)"))


SENT_BY: Final = "select count(*) from drover.delivery where del_state = 'sent' and del_owner = %s"
FIRST_TRY: Final = """
select del_owner from drover.jobqueue join drover.delivery on del_notify = jq_pk
 where jq_type = 'notify' order by jq_priority collate "C", jq_queued, jq_pk
"""


def test_one_subscriber_has_at_most_100_deliveries_in_the_queue_and_others_take_turns_t98(
    login: Login, tenants: list[Connection]
) -> None:
    admin, (greedy, modest) = login(""), tenants
    admin.execute(NOTIFY.encode())
    fill_with_targets(greedy, 30, 10)
    assert [look(admin) for _ in range(3)] == [50, 50, 0]
    assert fetch_one(admin, SENT_BY, greedy.info.user) == 100
    fill_with_targets(modest, 3, 1)
    assert look(admin) == 3
    turns = [owner for (owner,) in fetch_all(admin, FIRST_TRY)]
    assert turns[:6].count(modest.info.user) >= 2


@pytest.mark.slow
def test_looks_at_some_of_many_targets_come_to_all_t98(login: Login, tenants: list[Connection]) -> None:
    admin = login("")
    admin.execute(NOTIFY.encode())
    fill_with_targets(tenants[0], 150, 10)
    admin.execute("update drover.delivery set del_next = now() + interval '1 hour' where del_sub <> 1")
    looks = [look(admin) for _ in range(200)]
    assert sum(looks) == 10
    assert fetch_all(admin, "select distinct del_sub from drover.delivery where del_state = 'sent'") == [(1,)]


@pytest.mark.slow
def test_a_line_of_many_events_behind_a_dead_receiver_is_read_once_t98(watch: Any, database: str) -> None:
    ready(database)
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, n::text) from generate_series(1, 150) n")
    while deliver(watch)[1]:
        pass
    for _ in range(4):
        deliver(watch)
    read = "select count(*) from drover.delivery where del_state = 'waiting' and del_next is not null"
    assert fetch(database, read) == [(0,)]
    told = []
    for _ in range(150):
        ((job, args),) = fetch(database, TRIES)
        told.append(int(json.loads(json.loads(args)["body"])["data"]["text"]))
        end_try(database, job)
        deliver(watch)
    assert told == list(range(1, 151))


def test_what_waits_behind_a_delivery_that_was_given_up_goes_on_t98(watch: Any, database: str) -> None:
    ready(database)
    insert(database)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, n::text) from generate_series(1, 2) n")
    deliver(watch)
    deliver(watch)
    ((job, _),) = fetch(database, TRIES)
    end_try(database, job, "agent said: gone: 410")
    assert deliver(watch) == (1, 1)
    assert fetch(database, OPEN) == [(1, "dead"), (2, "sent")]


def test_a_delivery_that_the_queue_refuses_is_dead_and_holds_up_no_other_t98_t102(watch: Any, database: str) -> None:
    ready(database)
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK])
    fetch(database, "select drover.job_event(1, repeat(chr(34), 16384))")
    fetch(database, "select drover.job_event(n, 'a') from generate_series(1, 2) n")
    fetch(database, "insert into drover.size_limit values ('jq_args', 65536) on conflict (limit_column) do update"
                    " set limit_bytes = excluded.limit_bytes")  # fmt: skip
    for _ in range(2):
        deliver(watch)
    assert fetch(database, OPEN) == [(1, "dead"), (2, "sent"), (3, "sent")]
    ((text, reason),) = fetch(database, "select del_text, dead_reason from drover.delivery join drover.dead_letter"
                                        " on dead_delivery = del_pk")  # fmt: skip
    assert (text[:7], reason) == ("jq_args", "not delivered")


def test_deliveries_that_wait_are_counted_once_for_all_targets_of_an_event_t103(database: str) -> None:
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK] * 10, most=15)
    fetch(database, "select drover.job_event(1, 'a'), drover.job_event(2, 'b')")
    counted = "select del_event, del_state, count(*) from drover.delivery group by 1, 2 order by 1, 2"
    assert fetch(database, counted) == [
        (1, "waiting", 10), (2, "dead", 5), (2, "waiting", 5),
    ]  # fmt: skip
