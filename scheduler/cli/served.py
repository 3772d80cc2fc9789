"""Whether a job may be queued as it is asked for: a type, queue or host that is not there is most often misspelt."""

import psycopg

COMMAND, CLEANUP = "command", "cleanup"
KNOWN = """
select (select count(*) from drover.agent),
       (select coalesce(array_agg(distinct agent_type order by agent_type), '{}')
          from drover.agent where agent_present and agent_enabled),
       %(queue)s::text is null or exists (select from drover.queue where queue_name = %(queue)s and queue_present),
       %(host)s::text is null or exists (select from drover.host where host_name = %(host)s and host_present)
"""
ANYWAY = "--force queues it all the same"


def refusal(
    connection: psycopg.Connection, kind: str, queue: str | None = None, host: str | None = None, *, force: bool
) -> str:
    """Why such a job is not queued, and what next; empty if it is. Clean-ups are queued by Drover alone."""
    if kind == CLEANUP:
        return "a clean-up comes from the files that a job was to delete, after it is done: it is not queued"
    if force or kind == COMMAND:
        return ""
    ((agents, served, has_queue, has_host),) = connection.execute(KNOWN, {"queue": queue, "host": host}).fetchall()
    if not agents:
        return f"nobody serves type {kind}: no scheduler has been here yet, start one with drover run; {ANYWAY}"
    if kind not in served:
        return f"nobody serves type {kind} (served: {', '.join(served) or 'none'}); {ANYWAY}"
    if not has_queue:
        return f"no queue {queue}; {ANYWAY}"
    return "" if has_host else f"no host {host}; {ANYWAY}"
