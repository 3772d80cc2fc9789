"""Subscriptions and deliveries, as tests make them and end them."""

from typing import Any, Final

from tests.connection_tools import fetch, rows_of

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
