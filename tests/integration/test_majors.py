"""Drover on a real server of every major version of PostgreSQL that it supports."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database.embedded import temporary
from tests import warm
from tests.cli_tools import DROVER, Done, environment
from tests.faults.versions import Version
from tests.integration.daemon import Daemon, Row, agent, await_lines, rec, start
from tests.needs import lack
from tests.postgres_servers import MAJORS, MissingError, binaries_of
from tests.schema_tools import walk_suspects

pytestmark = pytest.mark.slow
ASK = ["sh", "-c", r'echo OK; while IFS= read -r line; do echo "DB: save {\"n\": $line}"; read -r _; echo OK; done']
TABLE = """
create table result (n integer primary key);
grant select, insert on result to drover_agentdb;
create table input as select n, 'row' || n as token, 'alpha' as host from generate_series(1, 20) n;
grant select on input to drover_msq;
"""
QUERY = "select n, token, host from input order by n"
SCHEDULE = """
insert into drover.schedule (schedule_name, schedule_at, schedule_job, schedule_next)
values ('once', now(), '{"jq_type": "line", "jq_args": "scheduled"}', now())
"""
EDGE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
KINDS: list[Row] = [
    {"jq_type": "line", "jq_args": "one", "jq_name": "line.1", "jq_unique_key": "u", "jq_urgent": True},
    {"jq_type": "line", "jq_args": QUERY, "jq_msq": True, "jq_key": "n"},
    {"jq_type": "line", "jq_args": QUERY, "jq_runonpfile": "host"},
    {"jq_type": "shell", "jq_args": "echo printed; exit 0"},
    {"jq_type": "shell", "jq_args": QUERY.replace("token", "'true' as args"), "jq_msq": True},
    {"jq_type": "long", "jq_args": "echo detached"},
    {"jq_type": "ask", "jq_args": "7"},
    {"jq_type": "line license=2", "jq_args": "by attribute"},
]
PEOPLE = (
    "status -v", "health", "queue", "host", "agent", "ls --all", "ls --since 1h --type line --by drover_frontend_sql",
    "why --all", "why line.1", "show line.1", "out line.1", "items line.1", "log", "stats", "schedule list", "check",
    "submit --wait=60 line x",
)  # fmt: skip
STARTED = "select start_jobs[1] as pk from drover.schedule_start where start_jobs[1] is not null"


@pytest.fixture(params=MAJORS)
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the conninfo of an empty database on a server of a major version."""
    try:
        binaries = binaries_of(request.param)
    except MissingError as reason:
        lack(f"PostgreSQL {request.param}", str(reason))
    with temporary(durable=True, binaries=binaries) as conninfo:
        yield conninfo


class Site:
    """A database, its commands and its daemons."""

    def __init__(self, server: str, folder: Path, daemons: ExitStack) -> None:
        self.record = folder / "record"
        self._server, self._daemons = server, daemons
        types = [
            agent("line", rec(self.record), slots=2, attributes={"license": "2"}),
            agent("shell", ["sh", "-c", "{args}"], kind="exec", slots=2),
            agent("long", ["sh", "-c", "{args}"], kind="exec", detached=True),
            agent("ask", ASK, db="statements", statements={"save": "insert into result values (:n)"}),
        ]
        host = f"[hosts.alpha]\nmax = 8\nspool = {json.dumps(str(folder / 'spool'))}\n"
        self._config = folder / "drover.toml"
        self._config.write_text(host + "".join(types))

    def run(self, line: str, **login: str) -> Done:
        """Run a command as the owner, or as a role."""
        around = environment(make_conninfo(self._server, **login), self._config)
        done = warm.run([*DROVER, *line.split()], input="", env=around)
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, **options: Any) -> Daemon:
        return self._daemons.enter_context(start(self._config.read_text(), self._server, **options))


@pytest.fixture
def site(server: str, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as daemons:
        yield Site(server, tmp_path, daemons)


def _is_sound(daemon: Daemon, jobs: list[int]) -> None:
    """Assert that jobs end well, and that no row is as no row may be."""
    rows = [daemon.wait(pk) for pk in jobs]
    assert [(row["jq_pk"], row["jq_end_bits"]) for row in rows] == [(pk, 1) for pk in jobs]
    walk_suspects(daemon.execute)
    assert daemon.execute("select * from drover.impossible") == []


def test_jobs_of_every_kind_a_restart_and_a_takeover_on_every_major_version_j123(site: Site) -> None:
    assert site.run("init --roles").out.startswith("PostgreSQL ")
    first = site.start()
    first.execute(TABLE)
    first.execute(SCHEDULE)
    jobs = first.insert_all(KINDS)
    child = first.insert(jq_type="line", jq_args="child", jq_state="held")
    first.execute(EDGE, child, jobs[0])
    command = first.insert(role="drover_operator", jq_type="command", jq_args=f"release {child}")
    (scheduled,) = first.until(lambda: first.execute(STARTED), what="the schedule does not start")
    _is_sound(first, [*jobs, child, command, scheduled["pk"]])

    heir = site.start(wait=False)
    heir.until(lambda: "standing by" in heir.stderr())
    gate = site.record.with_name("gate")
    given = len(site.record.read_text().splitlines())
    in_hand = first.insert(jq_type="line", jq_args=f"gate:{gate}")
    heir.until(lambda: len(site.record.read_text().splitlines()) > given)
    first.kill()
    heir.until(lambda: "serving group" in heir.stderr())
    gate.touch()
    _is_sound(heir, [in_hand, heir.insert(jq_type="line")])

    assert heir.stop() == 0
    restarted = site.start()
    assert site.run("init").out.endswith("\nnothing to do\n")
    _is_sound(restarted, restarted.insert_all([kind | {"jq_name": None} for kind in KINDS if kind["jq_args"] != "7"]))
    failed = {line: done for line in PEOPLE if (done := site.run(line, user="drover_operator")).status}
    assert failed == {}


def test_database_of_the_last_version_is_upgraded_on_every_major_version_f145(
    site: Site, server: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = Version(tmp_path_factory.mktemp("version")).run("init", "--roles", database=server)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(server, autocommit=True) as queue:
        queue.execute("insert into drover.jobqueue (jq_type, jq_args) values ('line', 'old')")
    done_now = site.run("init --roles")
    assert (done_now.status, done_now.out.splitlines()[-1]) == (0, "applied roles"), done_now.err
    daemon = site.start()
    await_lines(daemon, site.record, 1)
    _is_sound(daemon, [1])
