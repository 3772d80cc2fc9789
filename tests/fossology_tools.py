"""The statements of the original FOSSology front-end, and what a daemon would do about them."""

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.schema_tools import Connection, end_job, fetch_all, fetch_one

INSERT_JOB = """
INSERT INTO job (job_queued, job_priority, job_email_notify, job_name, job_upload_fk, job_folder_fk, job_user_fk)
VALUES (now(), '0', 'fossy@example.org', '{}', '7', '1', '2');
"""
FIND_JOB = "SELECT job_pk FROM job WHERE job_name = '{}' AND job_upload_fk = '7';"
INSERT_STEP = """
INSERT INTO jobqueue (jq_job_fk, jq_type, jq_args, jq_repeat, jq_runonpfile, jq_starttime, jq_endtime, jq_end_bits)
VALUES ('{}', '{}', '{}', '{}', {}, NULL, NULL, '0');
"""
FIND_STEP = "SELECT jq_pk FROM jobqueue WHERE jq_job_fk = '{}' AND jq_type = '{}' AND jq_args = '{}';"
INSERT_EDGE = "INSERT INTO jobdepends (jdep_jq_fk, jdep_jq_depends_fk) VALUES ('{}', '{}');"
RESET = "UPDATE jobqueue SET jq_starttime = NULL, jq_endtime = NULL, jq_end_bits = '0' WHERE jq_pk = '{}';"
SQL = "SELECT pfile_pk, path, host FROM pfile WHERE sha256 IS NULL;"


class FrontEnd:
    """The statements of the original front-end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def run(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.format(*values).encode())

    def ask(self, statement: str, *values: object) -> int:
        return int(fetch_one(self.connection, statement.format(*values)))

    def job(self, name: str = "scan") -> int:
        self.run(INSERT_JOB, name)
        return self.ask(FIND_JOB, name)

    def step(self, job: int, kind: str, args: str = "5", *, after: tuple[int, ...] = ()) -> int:
        self.run(INSERT_STEP, job, kind, args, "no", "NULL")
        step = self.ask(FIND_STEP, job, kind, args)
        for parent in after:
            self.run(INSERT_EDGE, step, parent)
        return step

    def column(self, step: int, column: str) -> object:
        return fetch_one(self.connection, f"SELECT {column} FROM jobqueue WHERE jq_pk = '{step}';")

    def edges(self) -> list[tuple[int, int]]:
        return fetch_all(self.connection, "SELECT jdep_jq_fk, jdep_jq_depends_fk FROM jobdepends ORDER BY 1, 2;")


def build_views(conninfo: str) -> None:
    """Create the views that these statements are about."""
    with migrate.changing(conninfo) as connection:
        migrate.apply_compat(connection, "fossology")


def connected(conninfo: str, role: str) -> Connection:
    where = {"options": "-c search_path=fossology_compat"}
    return psycopg.connect(make_conninfo(conninfo, user=role, **where), autocommit=True)


def finish(queue: Connection, step: int, state: str = "done") -> None:
    """End the latest job of a step, as a daemon does."""
    job = fetch_one(queue, "select latest_pk from fossology_compat.latest where step_pk = %s", step)
    queue.execute("update drover.jobqueue set jq_wait_until = null where jq_pk = %s", (job,))
    queue.execute(
        "update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_owner = gen_random_uuid(), "
        "jq_starttime = now() where jq_pk = %s",
        (job,),
    )
    end_job(queue, job, state, 1 if state == "done" else 2)
    fetch_all(queue, "select * from drover.settle(array[%s::bigint], 0, 1000, true)", job)


def commands(queue: Connection) -> list[str]:
    return [words for (words,) in fetch_all(queue, "select jq_args from drover.jobqueue where jq_type = 'command'")]


def chain(ui: FrontEnd, *kinds: str) -> tuple[int, list[int]]:
    """Insert a job with steps that follow each other."""
    job = ui.job()
    steps: list[int] = []
    for kind in kinds:
        steps.append(ui.step(job, kind, after=tuple(steps[-1:])))
    return job, steps
