"""How many jobs and slots there are of each kind, as a line and as tables; for `drover status` and `drover top`.

Jobs that could start are counted apart from those that wait for a time or for other jobs. Slots that are idle or
disabled are a number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scheduler.cli.output import Table
from scheduler.model.states import JOB_STATES, QUEUED, STATE_NAMES, TERMINAL

COULD_START, FOR_TIME, FOR_JOBS = "could_start", "for_time", "for_jobs"  # of queued jobs, see waiting_counts
WAITING: Final = (COULD_START, FOR_TIME, FOR_JOBS)
KINDS: Final = tuple(kind for state in JOB_STATES for kind in (WAITING if state == QUEUED else (state,)))
IN_WORDS: Final = {  # other kinds have the names of their states
    COULD_START: "could start", FOR_TIME: "wait for a time", FOR_JOBS: "wait for other jobs"
}  # fmt: skip
ENDED: Final = [state for state in JOB_STATES if state in TERMINAL]
SLOTS_IN_WORDS: Final = {  # the most urgent first; other states are idle
    "ST_FAIL": "failed", "ST_FREEING": "ending", "ST_PREP": "starting", "ST_SPAWNED": "starting",
    "ST_RUNNING": "working",
}  # fmt: skip
IDLE, DISABLED = "idle", "disabled"
Counts = Sequence[tuple[str, str, int]]  # a type, a kind of its jobs, and how many they are


def totals(counts: Counts) -> dict[str, int]:
    """Return how many jobs there are of each kind."""
    jobs = Counter[str]()
    for _, kind, count in counts:
        jobs[kind] += count
    return {kind: jobs[kind] for kind in KINDS}


def jobs_line(jobs: Mapping[str, int]) -> str:
    """Return `jobs: 20 could start, 50,000 wait for a time, 2 running; 300 done, 1 failed`; what is 0 is left out."""
    told = {kind: f"{jobs[kind]:,} {IN_WORDS.get(kind, kind)}" for kind in KINDS if jobs.get(kind)}
    live = ", ".join(text for kind, text in told.items() if kind not in ENDED)
    ended = ", ".join(text for kind, text in told.items() if kind in ENDED)
    return f"jobs: {'; '.join(filter(None, (live, ended))) or 'none'}"


def slots_line(slots: Iterable[Mapping[str, Any]]) -> str:
    """Return `slots: 1 failed, 3 working, 38 idle, 4 disabled`; empty if there are none."""
    found = Counter(_word(slot) for slot in slots)
    words = dict.fromkeys((*SLOTS_IN_WORDS.values(), IDLE, DISABLED))
    told = ", ".join(f"{found[word]:,} {word}" for word in words if found[word])
    return f"slots: {told}" if told else ""


def _word(slot: Mapping[str, Any]) -> str:
    return SLOTS_IN_WORDS.get(slot["state"]) or (IDLE if slot["enabled"] else DISABLED)


def is_idle(slot: Mapping[str, Any]) -> bool:
    """Return whether nothing happens in a slot: it has no agent, or one that waits."""
    return slot["state"] not in SLOTS_IN_WORDS


def jobs_by_type(counts: Counts) -> Table:
    """Return how many jobs each type has of each kind that occurs; queued ones also in all."""
    queued = [(kind, QUEUED, count) for kind, what, count in counts if what in WAITING]
    return pivot("Jobs", ("type",), [((kind,), what, n) for kind, what, n in (*counts, *queued)], (QUEUED, *KINDS))


def live_jobs(jobs: Table) -> Table:
    """Return the types of such a table that have jobs which have not ended; those with the most to do come first."""
    live = [place for place, name in enumerate(jobs.columns) if name in KINDS and name not in ENDED]
    now = [place for place in live if jobs.columns[place] not in (FOR_TIME, FOR_JOBS)]
    kept = [row for row in jobs.rows if any(row[place] for place in live)]
    kept.sort(key=lambda row: -sum(row[place] for place in now))
    left = jobs.left + len(jobs.rows) - len(kept)
    return replace(jobs, rows=kept, left=left).only([name for name in jobs.columns if name != QUEUED])


def busy_agents(slots: Iterable[Mapping[str, Any]]) -> Table:
    """Return how many slots of each type on each host are in each state, those with failed agents first.

    Types that are idle on a host are left out.
    """
    slots = list(slots)
    busy = {(slot["host"], slot["agent"]) for slot in slots if not is_idle(slot)}
    failed = {(slot["host"], slot["agent"]) for slot in slots if slot["state"] == "ST_FAIL"}
    shown = [slot for slot in slots if (slot["host"], slot["agent"]) in busy]
    shown.sort(key=lambda slot: (slot["host"], slot["agent"]) not in failed)
    counts = [((slot["host"], slot["agent"]), slot["state"], 1) for slot in shown]
    return pivot("Agents", ("host", "agent"), counts, STATE_NAMES)


def pivot(
    title: str, keys: tuple[str, ...], counts: Sequence[tuple[tuple[str, ...], str, int]], order: Sequence[str]
) -> Table:
    """Return counts, each of a key in a state, as a row for a key and a column for every state that occurs."""
    found = Counter[tuple[tuple[str, ...], str]]()
    for key, state, count in counts:
        found[key, state] += count
    states = [state for state in order if any(state == other for _, other in found)]
    rows = [(*key, *(found[key, state] for state in states)) for key in dict.fromkeys(key for key, _, _ in counts)]
    return Table(title, (*keys, *states), rows)
