"""What the pages show: each function reads by a session and returns a template and its values."""

from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request

from scheduler.cli.database_session import NOTHING, Session
from scheduler.cli.health import CRITICAL, headline, read_group
from scheduler.cli.job_lists import find, reading
from scheduler.cli.job_totals import IN_WORDS, WAITING, Counts, totals
from scheduler.cli.output import Table
from scheduler.cli.show import ATTEMPTS, EDGES, ITEMS, LOG_LINES, Description, describe
from scheduler.cli.top import LETTERS
from scheduler.model.counters import STARTED, quantile
from scheduler.model.list_bounds import LISTED
from scheduler.model.states import CANCELLED, DONE, IN_HAND, JOB_STATES, QUEUED, TERMINAL
from scheduler.model.verbs import LARGEST_PK
from scheduler.web import job_filter, slot_cells, trouble
from scheduler.web.dependency_graph import draw, draw_narrow
from scheduler.web.templating import clock

ROWS: Final = 50
LOG_ROWS: Final = 200
LEAST_MINUTES: Final = 5  # of plots, beside the last one: the axis of a single minute would show days
PLOT_AGE_S: Final = 5.0
COUNT_AGE_S: Final = 0.5
MOST_SLOTS: Final = 1000
SHOWN_TROUBLES: Final = 5  # beside all that are critical; the others are one click away
OUTPUT_BYTES: Final = 65_536
DEEP: Final = 12  # steps to relatives in the picture of dependencies
MOST_RELATIVES: Final = 40  # above the job, and below it
PLOTTED: Final = (0.5, 0.95)  # of times
STREAMS: Final = ("out", "err")
HEADLINE: Final = 400  # characters of a reason above a job; a longer text has its own part
BEING_WORKED: Final = "in progress"  # the text of a row in hand
ENDS_OF_PARENT: Final = {
    "success": "is done", "failure": "has failed", "end": "has ended", "errors": "has ended with tolerated errors",
}  # fmt: skip


class Page(NamedTuple):
    """A template and its values; `job` is the number that its changes are announced by, `poll_s` what else changes."""

    template: str
    values: dict[str, Any]
    job: int | None = None
    poll_s: float = 0.0
    is_live: bool = True


Draw = Callable[[Request, Session], Page]


def overview(request: Request, session: Session) -> Page:
    """Show what is wrong, who schedules, how many jobs there are, how fast they end, queues, types, hosts and slots."""
    group: str = request.app.state.group
    cached = request.state.login.cached
    with session.connection.transaction():
        facts = read_group(session, group)
        warnings = trouble.warnings_of(request.state.login, session, group)
        counts = cached("counts", COUNT_AGE_S, lambda: session.rows("waiting_counts"))
        agents, queues, hosts = (session.first(LISTED, "", f"list_{name}") for name in ("agent", "queue", "host"))
        slots = slots_of(session, group)
        of_slots = slots.records()
        troubles = trouble.as_shown(trouble.found(facts, warnings, of_slots))
        types, others = split(types_of(counts), {agent["type"] for agent in agents.records()})
        values = {
            "headline": headline(facts) if facts["active"] else "",
            "troubles": troubles,
            "shown": max(SHOWN_TROUBLES, sum(each.level == CRITICAL for each in troubles)),
            "notes_of_role": [*session.restrictions("jobqueue", "scheduler_status"), *trouble.hidden(warnings)],
            "states": jobs_in_states(counts),
            "queued": queued_in_words(counts),
            "types": dict(types),
            "others": others[:LISTED],
            "agents": agents.records(),
            "history": cached("history", PLOT_AGE_S, lambda: history(session)),
            "backlog": {row["queue"]: row for row in session.records("backlog")},
            "queues": queues.records(),
            "hosts": hosts.records(),
            "slots": slot_cells.by_host(of_slots),
            "letters": LETTERS,
            "state_words": slot_cells.STATE_WORDS,
            "left": {
                "queues": queues.left, "hosts": hosts.left, "slots": slots.left,
                "agents": agents.left + len(others[LISTED:]),
            },
            "zone_offset_s": int(zone_offset().total_seconds()),
        }  # fmt: skip
    return Page("overview.html", values, poll_s=15.0)


def slots_of(session: Session, group: str) -> Table:
    """Return the slots of a group, as far as the role may see them."""
    if session.access["scheduler_status"] == NOTHING:
        return Table("", (), ())
    return session.first(MOST_SLOTS, "", "slots", group=group)


def jobs_in_states(counts: Counts) -> dict[str, int]:
    """Return how many jobs each state has."""
    jobs = totals(counts)
    return {state: sum(jobs[kind] for kind in WAITING) if state == QUEUED else jobs[state] for state in JOB_STATES}


def queued_in_words(counts: Counts) -> str:
    """Return how many of the queued jobs could start, and what the others wait for."""
    jobs = totals(counts)
    return ", ".join(f"{jobs[kind]:,} {IN_WORDS[kind]}" for kind in WAITING if jobs[kind])


def history(session: Session) -> dict[str, Any]:
    """Return the plots of the last hour."""
    return plots(minutes_of(session.records("history")), session.value("now"))


def zone_offset() -> timedelta:
    """Return how far the clock of the server, whose times the pages show, is before UTC."""
    return datetime.now().astimezone().utcoffset() or timedelta()


def types_of(counts: Counts) -> list[tuple[str, dict[str, int]]]:
    """Return for each type how many jobs each state has, those with the longest queue first."""
    kinds: dict[str, dict[str, int]] = {}
    for kind, waits, count in counts:
        state = QUEUED if waits in WAITING else waits
        kinds.setdefault(kind, dict.fromkeys(JOB_STATES, 0))[state] += count
    return sorted(kinds.items(), key=lambda each: (-each[1][QUEUED], each[0]))


def split(
    types: list[tuple[str, dict[str, int]]], known: Collection[str]
) -> tuple[list[tuple[str, dict[str, int]]], list[tuple[str, dict[str, int]]]]:
    """Return the types that are configured, and the others."""
    return [each for each in types if each[0] in known], [each for each in types if each[0] not in known]


def plots(rows: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    """Return the columns that uPlot draws: times in seconds, then a list for each line; no job is 0 a minute.

    They end with the last minute that is over: a part of one would look like a fall. It is drawn if it is the only one.
    """
    by_minute = {int(row["minute"].timestamp()): row for row in rows}
    if not by_minute:
        return {}
    first, last = min(by_minute), int(now.timestamp()) // 60 * 60 - 60
    last = max(first, last)
    times = list(range(min(first, last - LEAST_MINUTES * 60), last + 60, 60))

    def column(name: str, place: int | None = None) -> list[Any]:
        values = [by_minute.get(time, {}).get(name) for time in times]
        return [value if place is None or value is None else value[place] for value in values]

    return {
        "rate": [times, *([count or 0 for count in column(name)] for name in ("done", "failed"))],
        "waited": [times, column("waited", 0), column("waited", 1)],
        "ran": [times, column("ran", 0), column("ran", 1)],
    }


def minutes_of(counts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each minute how many jobs ended well and otherwise, and half and 95 % of their times."""
    minutes: dict[datetime, dict[str, Counter[Any]]] = {}
    for row in counts:
        minute = minutes.setdefault(row["minute"], {"jobs": Counter(), "waited": Counter(), "ran": Counter()})
        if row["bin"] is not None:
            minute["waited" if row["state"] == STARTED else "ran"][row["bin"]] += row["jobs"]
        elif row["state"] != STARTED:
            minute["jobs"]["done" if row["state"] == DONE else "failed"] += row["jobs"]
    return [
        {"minute": minute, **of["jobs"]}
        | {what: [quantile(of[what], part) for part in PLOTTED] for what in ("waited", "ran") if of[what]}
        for minute, of in minutes.items()
    ]


def jobs(request: Request, session: Session) -> Page:
    """Show a page of the list of jobs, the newest first."""
    query = job_filter.of_request(request.query_params)
    wanted = job_filter.read(query)
    before = job_filter.number(request.query_params.get("before", ""))
    with reading(session):
        found = find(session.with_fellows(), wanted.wanted(before), ROWS + 1)
        rows = session.records("page_of_jobs", jobs=found.jobs)
        total = None if not wanted.is_of_kinds() else counted(session, wanted)
    place = max(1, job_filter.number(request.query_params.get("page", "")) or 1) if before else 1
    values = {
        "filter": wanted,
        "total": total,
        "page_number": place,
        "pages": None if total is None else max(place, -(-total // ROWS)),
        "first": (place - 1) * ROWS + 1,
        "before": before,
        "rows": rows[:ROWS],
        "older": rows[ROWS - 1]["job"] if len(rows) > ROWS else found.down_to,
        "down_to": found.down_to,
        "known": known_values(request, session),
        "since": job_filter.SINCE,
        "all_states": JOB_STATES,
        "restrictions": session.restrictions("jobqueue"),
    }
    return Page("jobs.html", values, is_live=not before)


def known_values(request: Request, session: Session) -> dict[str, Any]:
    """Return the types, queues and hosts that forms offer."""
    found: dict[str, Any] = request.state.login.cached("known", 10.0, lambda: session.records("known_values")[0])
    return found


def counted(session: Session, wanted: job_filter.Filter) -> int:
    """Return how many jobs a filter of kinds finds; counts of kinds are kept, no job is read for them."""
    return sum(row["jobs"] for row in session.records("count_jobs", **wanted.parameters()))


def job(request: Request, session: Session) -> Page:
    """Show everything about one job."""
    number: int = request.path_params["job"]
    found = describe(session, number) if number <= LARGEST_PK else None
    if found is None:
        raise HTTPException(404, f"no job {number}, or you may not see it")
    state = found.facts["state"]
    has_edges = any(part and part.rows for part in (found.parts["parents"], found.parts["children"]))
    family = session.records("family", job=number, deep=DEEP, most=MOST_RELATIVES) if has_edges else []
    values = {
        "job": found.facts,
        "is_over": state in TERMINAL,
        "reason": found.why.removesuffix(f"; the reason of each: drover items {number}"),
        "is_said": (says_end(found) and len(found.why) <= HEADLINE) or found.facts["text"] == BEING_WORKED,
        "parts": without_repeats(found),
        "most": {"attempts": ATTEMPTS, "edges": EDGES, "items": ITEMS, "log": LOG_LINES},
        "edge_words": edge_words,
        "headline": HEADLINE,
        "unseen": found.unseen,
        "graph": draw(family, number),
        "narrow": draw_narrow(family, number),
        "has_more": len(family) >= MOST_RELATIVES,
        "streams": {} if session.access["output"] == NOTHING else outputs(session, number),
    }
    return Page("job.html", values, job=number, poll_s=2.0 if state in IN_HAND else 0.0)


def without_repeats(found: Description) -> dict[str, list[dict[str, Any]] | None]:
    """Return the parts of a job; its attempts do not repeat what its headline says. The log is shown as it is."""
    parts = {name: None if part is None else part.records() for name, part in found.parts.items()}
    if says_end(found):
        for attempt in parts["attempts"] or ():
            attempt["reason"] = None if attempt["reason"] == found.facts["text"] else attempt["reason"]
    return parts


def says_end(found: Description) -> bool:
    """Return whether the headline of a job that has ended says its text, maybe with a time in it."""
    state, text = found.facts["state"], found.facts["text"]
    return state in TERMINAL and bool(text) and (state == CANCELLED or text.strip() in found.why or is_killed(text))


def is_killed(text: str) -> bool:
    """Return whether a command ended the job: the headline has the time as well."""
    return text == "killed" or text.startswith("killed by command of ")


def edge_words(edge: dict[str, Any], is_parent: bool) -> Markup | str:
    """Return a dependency as a sentence; `is_parent`: the edge leads to the job that is waited for."""
    parent, child = ("it", "this job") if is_parent else ("this job", "it")
    end = ENDS_OF_PARENT[edge["needed"]]
    if edge["met"] is not None:
        return Markup("{} {} at {}").format(parent, end, clock(edge["met"]))
    otherwise = "is skipped" if edge["on_unmet"] == "skip" else "keeps waiting"
    needs = f"{child} starts after {parent} {end}"
    return needs if edge["needed"] == "end" else f"{needs}; if {parent} ends otherwise, {child} {otherwise}"


def outputs(session: Session, job: int) -> dict[str, str]:
    """Return the end of each stream of the latest attempt that printed something."""
    found = {stream: session.value("end_of_output", job=job, stream=stream, most=OUTPUT_BYTES) for stream in STREAMS}
    return {stream: text for stream, text in found.items() if text}


def log(request: Request, session: Session) -> Page:
    """Show a page of the log, the newest first."""
    query = request.query_params
    wanted = {
        "text": query.get("text", "").strip().replace("\0", "")[: job_filter.LONGEST] or None,
        "kind": query.get("kind", "").replace("\0", "") or None,
        "job": job_filter.number(query.get("job", "")),
    }
    before = job_filter.number(query.get("before", ""))
    rows = session.records("page_of_log", **wanted, before=before, limit=LOG_ROWS + 1)
    older = rows[LOG_ROWS - 1]["pk"] if len(rows) > LOG_ROWS else None
    return Page(
        "log.html",
        {"filter": wanted, "rows": rows[:LOG_ROWS], "older": older, "before": before},
        poll_s=0.0 if before else 2.0,
        is_live=not before,
    )


def schedules(_request: Request, session: Session) -> Page:
    """Show what starts when."""
    return Page("schedules.html", {"rows": session.records("list_schedule")}, poll_s=15.0)


def conditions(_request: Request, session: Session) -> Page:
    """Show the conditions that jobs are blocked on, and how they are tested."""
    found = session.first(LISTED, "", "conditions")
    return Page("conditions.html", {"rows": found.records(), "left": found.left}, poll_s=15.0)
