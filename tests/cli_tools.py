"""For tests of the commands: what a daemon would do to rows, along legal moves only. No daemon runs."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from tests import warm

CONFIG = """
[hosts.local]
[agents.noop]
command = ["drover-agent-noop"]
"""
DROVER = [sys.executable, "-m", "scheduler.cli.main"]
OWNER = "11111111-1111-1111-1111-111111111111"
ACTIVE = f"""
insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id,
                              scheduler_pid_space, scheduler_pid_start, scheduler_version)
  values ('{OWNER}', 'default', 'alpha', 77, 'boot', 'space', 1, '0.1.0');
insert into drover.scheduler_group (group_name, group_owner, group_lease_until)
  values ('default', '{OWNER}', now() + interval '1 hour');
insert into drover.agent (agent_group, agent_type) values ('default', 'noop'), ('default', 'sha256')
"""
CLAIM = """
update drover.jobqueue set jq_state = 'claimed', jq_attempt = jq_attempt + 1, jq_owner = %s, jq_starttime = now()
 where jq_pk = %s
"""
END = """
update drover.jobqueue
   set jq_state = (%s::text)::drover.job_state, jq_owner = null, jq_endtime = now(), jq_end_bits = %s, jq_endtext = %s
 where jq_pk = %s
"""
ANNOUNCE = "select drover.announce(array[%s::bigint], array[%s::text])"


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str


Drover = Callable[..., Done]


def environment(database: str, config: Path) -> dict[str, str]:
    return os.environ | {"DROVER_DATABASE_URL": database, "DROVER_CONFIG": str(config)}


def insert(connection: psycopg.Connection, kind: str = "noop", args: str = "x") -> int:
    query = "insert into drover.jobqueue (jq_type, jq_args) values (%s, %s) returning jq_pk"
    return int(one(connection.execute(query, (kind, args)))[0])


def one(cursor: psycopg.Cursor[TupleRow]) -> TupleRow:
    row = cursor.fetchone()
    assert row
    return row


def finish(connection: psycopg.Connection, job: int, state: str = "done", bits: int = 1, text: str = "fine") -> None:
    connection.execute(CLAIM, (OWNER, job))
    connection.execute(END, (state, bits, text, job))


def write_log(connection: psycopg.Connection, job: int | None, message: str, kind: str = "LOG") -> None:
    query = """
        insert into drover.log (log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
        values (%s, %s, 'alpha', 'noop', 12, %s)
    """
    connection.execute(query, (job, kind, message))


def run_as(database: str, config: Path, role: str, words: str) -> Done:
    """Run the real command as a role of the schema."""
    variables = environment(make_conninfo(database, user=f"drover_{role}"), config)
    done = warm.run([*DROVER, *words.split()], env=variables)
    return Done(done.returncode, done.stdout, done.stderr)
