"""Events, subscriptions and deliveries on a real Postgres: what is recorded, who may ask for it, what is due when.

Of the requirements, T93 to T97, T99 and T100 are about events, T98 and T101 to T104 about their delivery, T113 about
who may subscribe, T117 about lengths, T118 about times.
"""

import base64
import hashlib
import hmac
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import psycopg
import pytest

from scheduler.model.queue_requests import EndAndClaim, LogRow, Save, SaveRow, WriteLog
from tests.connection_tools import fetch, rows_of
from tests.patience import PATIENCE_S
from tests.queue_tools import Desk, end, insert, many, mark
from tests.role_tools import PLAIN, Login
from tests.schema_tools import Connection, fetch_all, fetch_one

EVENTS: Final = "select ev_jq_fk, ev_kind, ev_old, ev_new, ev_is_final from drover.event order by ev_pk"
OPEN: Final = "select del_event, del_state from drover.delivery where del_state <> 'done' order by del_pk"
HOOK: Final = "https://example.org/hook"
NOTIFY: Final = """
insert into drover.agent (agent_group, agent_type, agent_present, agent_enabled, agent_enabled_file, agent_kind,
                          agent_submitters, agent_cwd, agent_revision)
values ('default', 'notify', true, true, true, 'line', '{*}', '', '')
"""
OVER: Final = "delivery 3: overflow: too many wait"
TRIES: Final = "select jq_pk, jq_args from drover.jobqueue where jq_type = 'notify' order by jq_pk"


def subscribe(database: str, **values: Any) -> int:
    """Subscribe as the superuser; return the number of the subscription."""
    names = ", ".join(f"{name} => %s" for name in values)
    ((number,),) = fetch(database, f"select subscription from drover.subscribe({names})", *values.values())
    return int(number)


def ready(database: str) -> None:
    """Let the group have an agent for deliveries."""
    fetch(database, NOTIFY)


def deliver(watch: Any, most: int = 100) -> tuple[int, int]:
    """Go on with deliveries; return how many are dead and how many were queued."""
    ((dead, queued, _),) = rows_of(watch("queue_deliveries", most=most))
    return int(dead), int(queued)


def end_try(database: str, job: int, text: str = "") -> None:
    """End a job that delivers: well, or with a text."""
    state, bits = ("failed", 2) if text else ("done", 1)
    fetch(
        database,
        "update drover.jobqueue set jq_state = 'claimed', jq_starttime = now(), jq_owner = gen_random_uuid()"
        " where jq_pk = %s",
        job,
    )
    fetch(
        database,
        "update drover.jobqueue set jq_state = %s, jq_endtime = now(), jq_end_bits = %s, jq_endtext = %s,"
        " jq_owner = null where jq_pk = %s",
        state, bits, text, job,
    )  # fmt: skip


# ---- what is recorded


def test_without_a_subscription_nothing_is_recorded_t93(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    assert fetch(database, "select count(*) from drover.event, drover.delivery") == [(0,)]


def test_each_new_state_is_an_event_and_the_last_one_is_final_t93_t94_t100(desk: Desk, database: str) -> None:
    subscribe(database, kind="status")
    many(database, 2)
    first, second = desk.claim()
    desk.ask(mark([first, second]))
    desk.ask(EndAndClaim([end(first)], ()))
    desk.ask(Save([SaveRow(second.pk, 1, "failed", bits=2, text="it broke", outcome="failed", failures=1)]))
    assert fetch(database, EVENTS) == [
        (first.pk, "status", "queued", "running", False),
        (second.pk, "status", "queued", "running", False),
        (first.pk, "status", "running", "done", True),
        (second.pk, "status", "running", "failed", True),
    ]


def test_an_event_is_rolled_back_with_its_change_t93(database: str) -> None:
    subscribe(database)
    insert(database)
    with psycopg.connect(database) as connection:
        connection.execute("select drover.announce(array_agg(jq_pk), '{held}') from drover.jobqueue")
        assert connection.execute(EVENTS).fetchall() == [(1, "status", "queued", "held", False)]
        connection.rollback()
    assert fetch(database, EVENTS) == []


@pytest.mark.parametrize("kind", ["status", "error", "user", "subscription", "all"])
def test_subscription_to_a_kind_gets_only_that_kind_t94(desk: Desk, database: str, kind: str) -> None:
    insert(database)
    number = subscribe(database, kind=kind, job=1, targets=[HOOK])
    fetch(database, "select drover.job_event(1, 'half way')")
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(claim.pk, 1, "failed", bits=2, text="it broke", outcome="failed", failures=1)]))
    query = "select ev_kind from drover.delivery join drover.event on ev_pk = del_event where del_sub = %s order by 1"
    every = ["error", "status", "subscription", "user"]
    assert [found for (found,) in fetch(database, query, number)] == (every if kind == "all" else [kind])


@pytest.mark.parametrize(
    "change", ["update drover.subscription set sub_expires = now()", "select drover.subscription_enable(1, false)"]
)
def test_nothing_is_recorded_for_an_expired_or_disabled_subscription_t96(
    desk: Desk, database: str, change: str
) -> None:
    subscribe(database, kind="status", targets=[HOOK])
    fetch(database, change)
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    assert fetch(database, "select count(*) from drover.event") == [(0,)]


def test_history_of_a_job_is_read_by_pieces_t97(desk: Desk, database: str) -> None:
    insert(database)
    subscribe(database, job=1)
    for text in ("a", "b", "c"):
        fetch(database, "select drover.job_event(1, %s)", text)
    query = "select ev_text from drover.event where ev_jq_fk = 1 and ev_kind = 'user' order by ev_pk limit 2 offset 1"
    assert fetch(database, query) == [("b",), ("c",)]


def test_an_agent_posts_events_until_its_job_has_ended_t95_t100(desk: Desk, database: str) -> None:
    many(database, 2)
    first, _ = desk.claim()
    desk.ask(EndAndClaim([end(first)], ()))
    lines = [(first.pk, "EVENT", "late"), (2, "LOG", "no event"), (2, "EVENT", "a"), (2, "EVENT", "b")]
    desk.ask(WriteLog([LogRow(job, kind, "alpha", "a", 9, text) for job, kind, text in lines]))
    assert fetch(database, "select ev_jq_fk, ev_kind, ev_text from drover.event order by ev_pk") == [
        (2, "user", "a"), (2, "user", "b"),
    ]  # fmt: skip
    assert fetch(database, "select count(*) from drover.log") == [(4,)]


def test_long_text_is_cut_and_says_so_t117(database: str) -> None:
    insert(database)
    fetch(database, "select drover.job_event(1, repeat('x', 20000))")
    ((text,),) = fetch(database, "select ev_text from drover.event")
    assert len(text) <= 16384
    assert text.endswith(" [cut: 20000 characters]")


def test_no_user_event_follows_the_last_event_of_a_job_t100(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="job 1 has ended"):
        fetch(database, "select drover.job_event(1, 'too late')")


# ---- who may


def test_owner_may_post_an_event_and_a_stranger_may_not_t95(tenants: list[Connection]) -> None:
    owner, stranger = tenants
    job = fetch_one(owner, PLAIN)
    fetch_one(owner, "select drover.job_event(%s, 'half way')", job)
    assert fetch_all(owner, "select ev_text from drover.my_event") == [("half way",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fetch_one(stranger, "select drover.job_event(%s, 'mine')", job)
    assert fetch_all(stranger, "select ev_text from drover.my_event") == []


def test_front_end_subscribes_to_its_own_jobs_only_t96_t113(tenants: list[Connection]) -> None:
    owner, stranger = tenants
    job = fetch_one(owner, PLAIN)
    for wanted in ("job => %s", "owner => (select session_user from (select %s) x)"):
        fetch_one(owner, f"select subscription from drover.subscribe({wanted})", job)
    owner_name = fetch_one(owner, "select session_user")
    for refused in (f"job => {job}", f"owner => '{owner_name}'", f"tenant => '{owner_name}'", "is_site => true"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not subscribe"):
            fetch_one(stranger, f"select subscription from drover.subscribe({refused})")
    assert fetch_all(stranger, "select sub_pk from drover.my_subscription") == []
    assert (
        fetch_one(stranger, "select drover.unsubscribe(sub) from (select max(s) as sub from generate_series(1,2) s) x")
        is False
    )
    assert len(fetch_all(owner, "select sub_pk from drover.my_subscription")) == 2


@pytest.mark.parametrize("tenant", [None, "the group's"])
def test_member_subscribes_to_the_jobs_of_all_members_of_its_tenant_t96_t113(
    login: Login, tenants: list[Connection], tenant: str | None
) -> None:
    boss, fellow = tenants
    name, fellow_name = (fetch_one(each, "select session_user") for each in tenants)
    login("").execute(f"grant {name} to {fellow_name}".encode())
    if not tenant:
        login("").execute("insert into drover.tenant values (%s)", (name,))
    fetch_one(boss, "select subscription from drover.subscribe(tenant => session_user)")
    insert_group = "insert into drover.job (job_name, job_tenant) values ('g', %s) returning job_pk"
    group = fetch_one(fellow, f"with g as ({insert_group}) select job_pk from g", tenant and name)
    job = fetch_one(fellow, f"insert into drover.jobqueue (jq_type, jq_job_fk) values ('a', {group}) returning jq_pk")
    other = fetch_one(login(""), "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    login("").execute("select drover.announce(%s::bigint[], '{held,held}')", ([job, other],))
    assert fetch_all(login(""), EVENTS) == [(job, "status", "queued", "held", False)]
    login("").execute("delete from drover.tenant")


def test_stranger_does_not_subscribe_to_a_tenant_t113(tenants: list[Connection]) -> None:
    other, stranger = tenants
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not subscribe to tenant"):
        stranger.execute("select drover.subscribe(tenant => %s)", (fetch_one(other, "select session_user"),))


def test_sharing_a_job_is_an_event_until_it_has_ended_t94_t100(desk: Desk, database: str) -> None:
    insert(database)
    subscribe(database, kind="share", job=1)
    for shared in (True, True, False):
        fetch(database, "select drover.job_share(1, 'drover_operator', %s)", shared)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    fetch(database, "select drover.job_share(1, 'drover_operator')")
    texts = [text for (text,) in fetch(database, "select ev_text from drover.event order by ev_pk")]
    assert texts == ["shared with drover_operator", "not shared any more with drover_operator"]


def test_front_end_makes_10_subscriptions_about_the_same_t96(tenants: list[Connection]) -> None:
    owner, _ = tenants
    for _ in range(10):
        fetch_one(owner, "select subscription from drover.subscribe()")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="10 about the same"):
        fetch_one(owner, "select subscription from drover.subscribe()")


@pytest.mark.parametrize("role", ["operator", "scheduler", "readonly", "frontend"])
def test_no_role_reads_secrets_of_subscriptions_c53(login: Login, role: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login(f"drover_{role}").execute("select * from drover.subscription_key")


@pytest.mark.parametrize("table", ["dead_letter", "event", "subscription", "delivery"])
def test_front_end_sees_nothing_of_the_tables_of_the_site_t104(login: Login, table: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login("drover_frontend").execute(f"select * from drover.{table}".encode())


@pytest.mark.parametrize(
    "target",
    ["ftp://a/b", "http://", "http:///x", "https://me:pw@example.org/", "http://a b/", "mailto:me", "file:///etc/x",
     "mailto:a@b,c@d", "https://example.org/\n", "http://a\\@b/", "https://" + "x" * 2000, None],
)  # fmt: skip
def test_target_that_makes_no_sense_is_refused_t96(database: str, target: str | None) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="a target is"):
        subscribe(database, targets=[target])


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
        ((found,),) = rows_of(watch("find_alternates", most=10))
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


def test_events_go_with_their_job_t97(watch: Any, database: str) -> None:
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK], job=1)
    fetch(database, "select drover.job_event(n, 'a') from generate_series(1, 2) n")
    fetch(database, "update drover.delivery set del_state = 'done', del_ended = now()")
    fetch(database, "delete from drover.jobqueue where jq_pk = 1")
    rows_of(watch("forget_events", beyond=0, most=1))
    assert fetch(database, "select ev_jq_fk from drover.event") == [(2,)]
    assert fetch(database, "select count(*) from drover.subscription, drover.delivery") == [(0,)]


def test_an_end_of_a_job_does_not_wait_for_who_unsubscribes_just_now_t99(desk: Desk, database: str) -> None:
    number = subscribe(database, targets=[HOOK])
    insert(database)
    (claim,) = desk.claim()
    with psycopg.connect(database) as other:
        other.execute("select drover.unsubscribe(%s)", (number,))
        desk.ask(EndAndClaim([end(claim)], ()))
        assert fetch(database, "select jq_state::text from drover.jobqueue") == [("done",)]


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


def test_who_left_a_tenant_is_told_no_more_of_it_t94_t113(login: Login, tenants: list[Connection]) -> None:
    leaver, fellow = tenants
    admin = login("")
    tenant = f"left_{leaver.info.user}"[:63]
    admin.execute(f"create role {tenant}; grant {tenant} to {leaver.info.user}, {fellow.info.user}".encode())
    try:
        admin.execute("insert into drover.tenant values (%s)", (tenant,))
        leaver.execute("select drover.subscribe(tenant => %s, targets => %s)", (tenant, [HOOK]))
        job = fetch_one(fellow, PLAIN)
        fellow.execute("select drover.job_event(%s, 'before')", (job,))
        admin.execute(f"revoke {tenant} from {leaver.info.user}".encode())
        fellow.execute("select drover.job_event(%s, 'after')", (job,))
        told = "select ev_text from drover.delivery join drover.event on ev_pk = del_event"
        assert fetch_all(admin, told) == [("before",)]
    finally:
        admin.execute("delete from drover.tenant")
        admin.execute(f"drop role {tenant}".encode())


def test_deliveries_that_wait_are_counted_once_for_all_targets_of_an_event_t103(database: str) -> None:
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK] * 10, most=15)
    fetch(database, "select drover.job_event(1, 'a'), drover.job_event(2, 'b')")
    counted = "select del_event, del_state, count(*) from drover.delivery group by 1, 2 order by 1, 2"
    assert fetch(database, counted) == [
        (1, "waiting", 10), (2, "dead", 5), (2, "waiting", 5),
    ]  # fmt: skip


def test_the_state_before_is_found_among_many_events_t93(database: str) -> None:
    query = """explain select ev_new from drover.event where ev_jq_fk = 1 and ev_kind = 'status'
                order by ev_pk desc limit 1"""
    fetch(database, "insert into drover.event (ev_jq_fk, ev_kind) select 1, 'user' from generate_series(1, 5000)")
    fetch(database, "insert into drover.event (ev_jq_fk, ev_kind, ev_new) values (1, 'status', 'held')")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("analyze drover.event")
        assert "event_of_state" in str(connection.execute(query.encode()).fetchall())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kind": "x"}, "no kind of events: 'x'; there are all, status"),
        ({"kind": None}, "no kind of events: NULL"),
        ({"most": 0}, "from 1 to 10,000 deliveries may wait"),
        ({"most": 10_001}, "from 1 to 10,000 deliveries may wait"),
        ({"targets": [HOOK] * 11}, "10 targets at most"),
        ({"ttl": "-1 month"}, "the time to live"),
        ({"ttl": "1200 months 1 day"}, "the time to live"),
        ({"secret": "short"}, "16 to 200 characters"),
        ({"secret": "whsec_" + "!" * 20}, "base64"),
    ],
)
def test_subscription_that_makes_no_sense_is_refused_with_the_reason_t96(
    database: str, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=told):
        subscribe(database, **values)


@pytest.mark.parametrize("targets", ["[5:6]={http://a/,http://b/}", "{{http://a/},{http://b/}}"])
def test_targets_are_numbered_from_1_whatever_array_is_given_t96(database: str, targets: str) -> None:
    fetch(database, "select drover.subscribe(targets => %s::text[])", targets)
    assert fetch(database, "select sub_targets from drover.subscription") == [(["http://a/", "http://b/"],)]


# ---- what a site without a subscription pays


def end_one(desk: Desk, database: str) -> None:
    """End a plain job."""
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))


def expects(database: str) -> bool:
    """Return whether the ends of plain jobs are recorded."""
    return bool(fetch(database, "select drover.has_subscriptions()")[0][0])


def test_without_subscriptions_an_end_looks_into_no_table_for_them_t93(database: str) -> None:
    plans = []
    for _ in range(2):
        with psycopg.connect(database) as connection:
            query = "explain (verbose) select drover.record_ends('') where drover.has_subscriptions()"
            plans.append(str(connection.execute(query).fetchall()))
        subscribe(database)
    assert ["One-Time Filter: false" in plan for plan in plans] == [True, False]


def test_first_subscription_changes_statements_that_are_prepared_t93(desk: Desk, database: str) -> None:
    end_one(desk, database)
    subscribe(database, kind="status")
    end_one(desk, database)
    assert [row[0] for row in fetch(database, EVENTS)] == [2]


def test_an_end_does_not_wait_for_who_subscribes_first_just_now_t99(desk: Desk, database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select drover.subscribe(kind => 'status')")
        end_one(desk, database)
        other.commit()
        end_one(desk, database)
    assert [row[0] for row in fetch(database, EVENTS)] == [2]


def test_first_subscription_that_is_rolled_back_leaves_nothing_t93(desk: Desk, database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select drover.subscribe(kind => 'status')")
        other.rollback()
    end_one(desk, database)
    assert (expects(database), fetch(database, EVENTS)) == (False, [])


def test_two_subscribe_first_at_once_t96(database: str) -> None:
    with psycopg.connect(database) as one, ThreadPoolExecutor(1) as pool:
        one.execute("select drover.subscribe()")
        other = pool.submit(subscribe, database)
        _wait_for_lock(database)
        one.commit()
        other.result()
    assert (expects(database), fetch(database, "select count(*) from drover.subscription")) == (True, [(2,)])


def _wait_for_lock(database: str) -> None:
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    deadline = time.monotonic() + PATIENCE_S
    while fetch(database, query) == [(0,)]:
        assert time.monotonic() < deadline, "nobody waits for a lock"


def test_ends_cost_nothing_again_after_the_last_subscription_is_removed_t93(watch: Any, database: str) -> None:
    number = subscribe(database)
    rows_of(watch("forget_events", beyond=0, most=1))
    assert expects(database)
    fetch(database, "select drover.unsubscribe(%s)", number)
    rows_of(watch("forget_events", beyond=0, most=1))
    assert not expects(database)


def test_subscription_that_is_made_meanwhile_is_not_forgotten_t93(watch: Any, database: str) -> None:
    fetch(database, "select drover.unsubscribe(%s)", subscribe(database))
    with psycopg.connect(database) as other:
        other.execute("select drover.subscribe()")
        rows_of(watch("forget_events", beyond=0, most=1))
        other.commit()
    assert expects(database)
