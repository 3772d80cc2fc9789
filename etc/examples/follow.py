#!/usr/bin/env python3
"""Queue a job, show how far it is until it ends, and cancel it at Ctrl-C: follow.py [--sql] TYPE ARGUMENT

With --sql the argument is a query, each of whose rows is a work item. The database is that of PGSERVICE, PGHOST,
PGDATABASE, PGUSER and the like; the user is a member of drover_frontend, or of drover_frontend_sql. The exit status is
0 if the job is done. Needs psycopg 3. See drover-jobqueue(7).
"""

import json
import signal
import sys

import psycopg

QUEUE = "insert into drover.jobqueue (jq_type, jq_args) values (%s, %s) returning jq_pk"
QUEUE_SQL = "insert into drover.jobqueue (jq_type, jq_args, jq_msq) values (%s, %s, true) returning jq_pk"
LOOK = """
select jq_state, jq_itemsprocessed, jq_itemstotal, jq_endtext from drover.my_jobs where jq_pk = %s
"""
ENDS = ("done", "failed", "cancelled", "ignored", "skipped")


def main() -> int:
    is_sql = sys.argv[1:2] == ["--sql"]
    kind, argument = sys.argv[2 if is_sql else 1 :]
    with psycopg.connect(autocommit=True) as queue:
        queue.execute("listen drover_event")  # before the insert, or the end of a short job is missed
        (job,) = queue.execute(QUEUE_SQL if is_sql else QUEUE, (kind, argument)).fetchone()
        print(f"job {job} queued", flush=True)
        return follow(queue, job)


def follow(queue: psycopg.Connection, job: int) -> int:
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    shown = ""
    while True:
        state, items, total, text = queue.execute(LOOK, (job,)).fetchone()
        progress = f"{items} of {total} items" if state == "running" and total else text or ""
        line = f"job {job} {state}: {progress}".rstrip(": ")
        if line != shown and state != "queued":
            print(line, flush=True)
        shown = line
        if state in ENDS:
            return 0 if state == "done" else 1
        if interrupted:
            queue.execute("select drover.command(%s)", (f"cancel {job}",))
            interrupted.clear()
        wait(queue, job)


def wait(queue: psycopg.Connection, job: int) -> None:
    """Wait for a new state of the job, or for a second: progress is no event, but saved about once a second."""
    for note in queue.notifies(timeout=1):
        if any(event["jq_pk"] == job for event in json.loads(note.payload)):
            return


if __name__ == "__main__":
    sys.exit(main())
