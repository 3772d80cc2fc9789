"""Events and subscriptions on a real Postgres: what is recorded, who may ask for it, what it costs.

Of the requirements, T93 to T97, T99 and T100 are about events, T113 about who may subscribe, T117 about lengths, T118
about times.
"""

from typing import Any

import psycopg
import pytest

from scheduler.model.queue_requests import EndAndClaim, LogRow, Save, SaveRow, WriteLog
from tests.connection_tools import fetch, rows_of
from tests.event_tools import EVENTS, HOOK, subscribe
from tests.queue_tools import Desk, end, insert, many, mark
from tests.role_tools import PLAIN, Login
from tests.schema_tools import Connection, fetch_all, fetch_one

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


def test_expired_subscriptions_do_not_count_against_the_limit(tenants: list[Connection]) -> None:
    owner, _ = tenants
    for _ in range(10):
        fetch_one(owner, "select subscription from drover.subscribe(ttl => '1 us')")
    assert fetch_one(owner, "select subscription from drover.subscribe()")
    assert fetch_one(owner, "select count(*) from drover.my_subscription") == 1


def test_expired_subscription_with_something_to_deliver_counts(login: Login, tenants: list[Connection]) -> None:
    owner, _ = tenants
    for _ in range(10):
        fetch_one(
            owner, "select subscription from drover.subscribe(targets => '{http://example.org}', ttl => '1 hour')"
        )
    owner.execute("insert into drover.jobqueue (jq_type) values ('noop')")
    fetch_one(owner, "select drover.job_event((select max(jq_pk) from drover.my_jobs), 'hello')")
    login("").execute("update drover.subscription set sub_expires = now()")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        fetch_one(owner, "select subscription from drover.subscribe()")
    assert fetch_one(owner, "select count(*) from drover.my_subscription") == 10


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


def test_events_go_with_their_job_t97(watch: Any, database: str) -> None:
    many(database, 2)
    subscribe(database, kind="user", targets=[HOOK], job=1)
    fetch(database, "select drover.job_event(n, 'a') from generate_series(1, 2) n")
    fetch(database, "update drover.delivery set del_state = 'done', del_ended = now()")
    fetch(database, "delete from drover.jobqueue where jq_pk = 1")
    for query in ("forget_events", "forget_subscriptions"):
        rows_of(watch(query, beyond=0, most=1))
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
    with psycopg.connect(database) as connection:
        query = "explain (verbose) select drover.record_ends('') where drover.has_subscriptions()"
        plan = str(connection.execute(query).fetchall())
    assert ("pg_relation_size" in plan, "Scan" in plan, expects(database)) == (True, False, False)


def test_first_subscription_of_a_front_end_keeps_no_other_waiting(tenants: list[Connection]) -> None:
    first, second = tenants
    with first.transaction():
        first.execute("select drover.subscribe()")
        second.execute("set lock_timeout = '2s'")  # instead of for ever
        assert fetch_one(second, "select subscription from drover.subscribe()") == 2


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


def test_first_subscription_that_is_rolled_back_leaves_nothing_t93(desk: Desk, watch: Any, database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select drover.subscribe(kind => 'status')")
        other.rollback()
    end_one(desk, database)
    rows_of(watch("forget_events", beyond=0, most=1))
    assert (expects(database), fetch(database, EVENTS)) == (False, [])


def test_two_subscribe_first_at_once_t96(database: str) -> None:
    with psycopg.connect(database) as one:
        one.execute("select drover.subscribe()")
        subscribe(database)
        one.commit()
    assert (expects(database), fetch(database, "select count(*) from drover.subscription")) == (True, [(2,)])


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
