"""Every view of a tenant shows its rows, and none of them to a stranger, who has a job of its own."""

from typing import Final

from tests.role_tools import PLAIN, Login, add_edge
from tests.schema_tools import Connection, claim_job, end_job, fetch_all, fetch_one, set_columns

OWN: Final = (
    "attempt", "backlog", "beside_zones", "blocked", "cleanup", "delivery", "event", "graph", "item_failure",
    "job_counts", "job_groups", "job_states", "job_zones", "jobd", "jobdepends", "jobs", "jobs_in_hand", "log",
    "output", "phases", "stages", "subscription", "why", "zone_parts",
)  # fmt: skip
OF_A_TENANT: Final = (
    "beside_zones", "detached", "job_counts", "job_states", "job_zones", "jobs", "log", "output", "tally", "why",
    "zone_parts",
)  # fmt: skip
VIEWS: Final = [f"my_{name}" for name in OWN] + [f"our_{name}" for name in OF_A_TENANT]
GROUP: Final = "insert into drover.job (job_name) values ('scan') returning job_pk"
CLEANS_UP: Final = """
insert into drover.jobqueue (jq_type, jq_delete) values ('noop', '{/srv/scratch}') returning jq_pk
"""
SUBSCRIBE: Final = "select subscription from drover.subscribe(job => %s)"
# Of a job: what agents wrote, what a host keeps, what its claim recorded.
OF_A_JOB: Final = (
    "insert into drover.log (log_jq_fk, log_type, log_message) values (%(job)s, 'LOG', 'm')",
    "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)"
    " values (%(job)s, 1, 1, 'out', 'd')",
    "insert into drover.attempt_kept (att_jq_fk, att_attempt, att_start, att_outcome)"
    " values (%(job)s, 1, now(), 'failed')",
    "insert into drover.item_failure (item_jq_fk, item_attempt, item_line, item_reason) values (%(job)s, 1, 'l', 'r')",
    "insert into drover.detached values (%(job)s, 1, 'default', 'far', '/spool')",
    "insert into drover.in_hand values (gen_random_uuid(), array[%(job)s])",
    "insert into drover.delivery (del_sub, del_target, del_event, del_jq_fk)"
    " select sub_pk, 1, ev_pk, %(job)s from drover.subscription, drover.event limit 1",
)


def fill(owner: Connection, admin: Connection) -> None:
    """Queue jobs of an owner that are in hand, wait, are blocked and have ended, with all that is kept of them."""
    fetch_one(owner, GROUP)
    in_hand, child, blocked = (fetch_one(owner, PLAIN) for _ in range(3))
    ended = fetch_one(owner, CLEANS_UP)
    fetch_one(owner, PLAIN)
    add_edge(owner, child, in_hand)
    fetch_one(owner, SUBSCRIBE, in_hand)
    claim_job(admin, in_hand)
    end_job(admin, ended)
    set_columns(admin, blocked, "jq_state = 'blocked', jq_endtext = 'blocked: tape'")
    for statement in OF_A_JOB:
        admin.execute(statement.encode(), {"job": in_hand})


def test_each_view_of_a_tenant_is_tried(login: Login) -> None:
    every = fetch_all(
        login(""),
        "select relname from pg_class where relnamespace = 'drover'::regnamespace and relname ~ '^(my|our)_'"
        " and relkind = 'v'",
    )
    assert {name for (name,) in every} == set(VIEWS)


def test_each_view_of_a_tenant_shows_its_rows_and_none_to_a_stranger_t113(
    login: Login, tenants: list[Connection]
) -> None:
    stranger, owner = tenants
    fill(owner, login(""))
    fetch_one(stranger, PLAIN)
    queries = {view: f"select * from drover.{view}" for view in VIEWS}
    shown = {view: fetch_all(owner, query) for view, query in queries.items()}
    assert [view for view, rows in shown.items() if not rows] == []
    seen = {view: [row for row in fetch_all(stranger, queries[view]) if row in rows] for view, rows in shown.items()}
    assert {view: rows for view, rows in seen.items() if rows} == {}
