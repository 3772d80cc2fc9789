"""Tools for tests of lists of jobs: queues to list, and the statement that lists read all jobs by before."""

import random
from typing import Any, Final

from psycopg import RawCursor

from scheduler.cli.database_session import Session
from scheduler.cli.job_lists import Found, find, reading
from scheduler.model.sql_text import bind
from scheduler.model.states import JOB_STATES

# Rows as after a day's work: inserting them at once, in all states, is faster without triggers.
FILL: Final = """
insert into drover.jobqueue (jq_pk, jq_type, jq_queue, jq_host, jq_submitter, jq_job_fk, jq_state, jq_unmet,
                             jq_wait_until, jq_queued, jq_starttime, jq_endtime, jq_end_bits, jq_urgent, jq_priority,
                             jq_args)
overriding system value
select pk, type, queue, host, submitter, group_, state::drover.job_state,
       case when state = 'queued' and pk %% 5 = 0 then 1 else 0 end,
       case when state = 'queued' and pk %% 7 = 0 then now() + interval '1 h' end,
       queued, case when ends then queued + waited end, case when ends then queued + waited + ran end,
       case when not ends then 0 when state in ('done', 'skipped') then 1 else 2 end, urgent, priority, 'file ' || pk
  from jsonb_to_recordset(%s) as r (pk bigint, type text, queue text, host text, submitter name, group_ bigint,
       state text, queued timestamptz, waited interval, ran interval, urgent boolean, priority text)
 cross join lateral (select state not in ('held', 'queued', 'blocked') as ends) e
"""
NO_TRIGGERS: Final = "alter table drover.jobqueue disable trigger user"
TRIGGERS: Final = "alter table drover.jobqueue enable trigger user"
# What lists did before they read zones: the model of what they show. Most urgent ones come first.
MODEL: Final = """
select jq_pk
  from drover.jobs
 where jq_state = any (:states::drover.job_state[]) and (:types::text[] is null or jq_type = any (:types))
   and (:queues::text[] is null or jq_queue = any (:queues)) and (:hosts::text[] is null or jq_host = any (:hosts))
   and (:submitters::text[] is null or jq_submitter = any (:submitters))
   and (:groups::bigint[] is null or jq_job_fk = any (:groups))
   and (:since::timestamptz is null or greatest(jq_queued, jq_starttime, jq_endtime) >= :since)
   and (:before::bigint is null or jq_pk < :before)
   and (:text::text is null or jq_pk::text = :text or jq_args like '%' || :text || '%')
   and (:with_ended_commands or jq_type <> 'command' or jq_endtime is null)
   and (:with_hidden or not (exists (select from drover.job where job_pk = jq_job_fk and job_hidden)
                             or exists (select from drover.hidden where hidden_jq_fk = jq_pk)))
 order by case :sort::text when 'queued' then jq_queued when 'start' then jq_starttime when 'end' then jq_endtime end
            desc nulls last,
          case :sort when 'waited' then coalesce(jq_starttime, jq_endtime, now()) - jq_queued
                     when 'ran' then coalesce(jq_endtime, now()) - jq_starttime end desc nulls last,
          case :sort when 'type' then jq_type when 'state' then jq_state::text when 'queue' then jq_queue
                     when 'by' then jq_submitter::text end desc nulls last,
          case :sort when 'priority' then case when jq_urgent then '0' else '1' end || jq_priority end,
          jq_pk desc limit :limit
"""
SORTS: Final = ("job", "queued", "start", "end", "waited", "ran", "type", "state", "queue", "by", "priority")
NO_FILTER: Final = dict.fromkeys(
    ("types", "queues", "hosts", "submitters", "groups", "since", "queued_within", "before", "text")
) | {"states": list(JOB_STATES), "with_ended_commands": True, "with_hidden": True, "sort": "job"}


def page(session: Session, limit: int | None = None, **wanted: Any) -> tuple[list[int], Found]:
    """Return the numbers that a page lists, and what was found for it."""
    with reading(session):
        return _page(session, limit, NO_FILTER | wanted)


def page_and_model(session: Session, limit: int | None, **wanted: Any) -> tuple[list[int], list[int]]:
    """Return what a page lists, and what it would list if it read all jobs, both at one moment."""
    with reading(session):
        return _page(session, limit, NO_FILTER | wanted)[0], _model(session, limit, NO_FILTER | wanted)


def all_jobs(session: Session, **wanted: Any) -> list[int]:
    """Return all jobs, as a list has them that reads all."""
    return _model(session, None, NO_FILTER | wanted)


def _page(session: Session, limit: int | None, asked: dict[str, Any]) -> tuple[list[int], Found]:
    found = find(session, asked, limit)
    rows = session.rows("list_jobs", jobs=found.jobs, sort=asked["sort"], limit=limit)
    return [row[0] for row in rows], found


def _model(session: Session, limit: int | None, asked: dict[str, Any]) -> list[int]:
    text, names = bind(MODEL)
    values = asked | {"limit": limit}
    rows = RawCursor(session.connection).execute(text.encode(), [values[name] for name in names])
    return [pk for (pk,) in rows]


def any_jobs(seed: int, numbers: list[int]) -> list[dict[str, Any]]:
    """Return jobs of any kind, as FILL takes them."""
    chance = random.Random(seed)
    states = [state for state in JOB_STATES if state not in ("claimed", "running")]
    return [
        {
            "pk": number, "type": chance.choice("abcd") if number % 40 else "command",
            "queue": chance.choice(["default", "other", None]), "host": chance.choice([None, "alpha", "beta"]),
            "submitter": chance.choice(["postgres", "web", "Web"]), "group_": chance.choice([None, None, 1, 2]),
            "state": chance.choice(states),
            "queued": f"2026-01-{chance.randint(1, 28)} 12:00:00.{chance.randint(0, 999)}",
            "waited": f"{chance.randint(0, 9) * chance.randint(0, 99999)} s",
            "ran": f"{chance.randint(0, 9) * chance.random():.6f} s", "urgent": chance.random() < 0.1,
            "priority": chance.choice(["n", "a", "Z9", "b12", "n"]),
        }
        for number in numbers
    ]  # fmt: skip


def rows_read(session: Session) -> int:
    """Return how many rows of the queue the session has read, counted from some time before this transaction."""
    text = "select pg_stat_get_xact_tuples_returned(t) + pg_stat_get_xact_tuples_fetched(t) + coalesce(sum("
    text += "pg_stat_get_xact_tuples_fetched(indexrelid)), 0) from pg_index, (select 'drover.jobqueue'::regclass t) x"
    ((rows,),) = session.connection.execute(f"{text} where indrelid = t group by t".encode()).fetchall()
    return int(rows)
