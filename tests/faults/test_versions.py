"""The previous version and this one on one database: upgrade, roll back, in both orders and under load, nothing lost.

The previous version is the wheel in tests/versions. Its database is made by its own `drover init`, and migrated by
ours while its daemon serves. What agents were given is in the record of the site, and audit.sql looks at both.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests import warm
from tests.faults.site import AUDIT, ENDED, Site, Tally
from tests.faults.versions import Version
from tests.integration.daemon import Daemon
from tests.patience import LONG_PATIENCE_S
from tests.schema_tools import walk_suspects

pytestmark = [pytest.mark.slow, pytest.mark.fault("two versions side by side: upgrade and roll back")]
# The view is younger than the previous version.
IMPOSSIBLE = "  select 'I1 cannot be: ' || rule, jq_pk, null, what from drover.impossible\nunion all\n"
STANDS = "standing by: group default is served by"
LOAD = 40
NEW_QUEUE = "select count(*) from drover.jobqueue where jq_queue = 'rated'"
BLOCKED = "select count(*) from drover.blocked_jobs where condition like 'quota:%'"
COMMANDS = (
    "status", "ls", "why 1", "queue", "host", "log", "schedule list", "submit --wait=60 line x", "out 1",
)  # fmt: skip
NEW_COMMANDS = ("status -v", "show 1", "why --all", "stats")
FRONT_END = """
insert into drover.job (job_name, job_priority) values ('upload', 100);
insert into drover.jobqueue (jq_job_fk, jq_type, jq_args) select max(job_pk), 'line', 'one' from drover.job;
insert into drover.jobqueue (jq_type, jq_args, jq_name) values ('line', 'x', 'line.1') on conflict (jq_name) do nothing;
insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key)
values ('line', 'select n, ''row'' || n as token from generate_series(1, 20) n', true, 'n');
with child as (
  insert into drover.jobqueue (jq_type, jq_args, jq_unique_key) values ('exec', 'two', 'u') returning jq_pk)
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select child.jq_pk, drover.job_named('line.1') from child;
select jq_state, jq_end_bits from drover.my_jobs;
select * from drover.my_log;
select * from drover.my_output;
"""
ALL_DONE = "select count(*) from drover.jobqueue where jq_state <> 'done' or jq_attempt > 1"


@pytest.fixture(scope="session")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Return the previous version."""
    return Version(tmp_path_factory.mktemp("version"))


@pytest.fixture
def former(version: Version, empty_database: str, tmp_path: Path, tally: Tally) -> Iterator[Site]:
    """Yield a database that the previous version has made."""
    done = version.run("init", "--roles", database=empty_database)
    assert done.returncode == 0, done.stderr
    with Site(empty_database, tmp_path, tally, AUDIT.read_text().replace(IMPOSSIBLE, "")) as made:
        yield made


@pytest.fixture
def upgraded(former: Site, version: Version) -> Site:
    """Return such a database with the schema of this version, in which the previous version may start again."""
    upgrade(former)
    allow(former, version)
    return former


def upgrade(site: Site) -> None:
    """Do what `drover init --roles` of this version does."""
    migrate.update(site.database)


def allow(site: Site, version: Version) -> None:
    """Let the previous version write the commands in its order, without which it does not start."""
    done = version.run("init", database=site.database)
    assert (done.returncode, done.stdout) == (0, "applied commands\n"), done.stderr


def put(site: Site, times: int = 3) -> None:
    """Queue some hundred jobs."""
    for _ in range(times):
        site.submit(plain=LOAD)


def stand_by(site: Site, *, version: Version | None = None) -> Daemon:
    """Start a daemon beside the one that serves."""
    daemon = site.start(version=version, metered=False)
    site.until(lambda: STANDS in daemon.stderr(), "it does not stand by")
    return daemon


def hand_over(site: Site, heir: Daemon) -> None:
    """Let the daemon that serves step down, in the middle of its work."""
    put(site)
    site.step_down()
    site.until(lambda: site.owner == site.name(heir), "the other does not serve")
    put(site)


def settled(site: Site) -> list[object]:
    """Wait until all has ended; return what is wrong."""
    wrong = site.settle()
    walk_suspects(site.rows)
    return [*wrong, *site.rows("select rule, jq_pk, what from drover.impossible")]


# ---- the schema


def test_a_new_daemon_waits_for_its_schema_and_then_serves_without_a_restart_f143(former: Site) -> None:
    daemon = former.start(metered=False)
    former.until(lambda: daemon.stderr().count("not applied: run drover init; trying again in") > 1, "it does not wait")
    upgrade(former)
    former.until(lambda: former.owner == "d1", "it does not serve")
    former.submit()
    assert settled(former) == []


def test_a_new_daemon_that_waits_for_its_schema_ends_at_a_signal(former: Site) -> None:
    daemon = former.start(metered=False)
    former.until(lambda: "run drover init; trying again" in daemon.stderr(), "it does not wait")
    os.kill(daemon.process.pid, SIGTERM)
    assert daemon.process.wait(LONG_PATIENCE_S) != 0


def test_a_new_command_on_the_old_schema_says_what_to_run_f143(former: Site) -> None:
    done = ours(former, "status")
    assert done.returncode == 3
    assert "schema out of date: 0007_show_ends.sql" in done.stderr
    assert "run drover init" in done.stderr


# ---- daemons


def test_an_upgrade_under_load_loses_and_repeats_no_job(former: Site, version: Version) -> None:
    old = former.start(version=version, metered=False)
    former.until(lambda: former.owner == former.name(old), "it does not serve")
    put(former)
    new = former.start(metered=False)  # too early
    former.until(lambda: "run drover init; trying again" in new.stderr(), "it does not wait")
    put(former)
    upgrade(former)
    former.until(lambda: STANDS in new.stderr(), "it does not stand by")
    hand_over(former, new)
    assert settled(former) == []
    assert old.stop() == 0
    former.submit()
    assert settled(former) == []


def test_the_old_version_goes_on_with_the_new_schema_after_a_roll_back(upgraded: Site, version: Version) -> None:
    new = upgraded.serving(metered=False)
    old = stand_by(upgraded, version=version)
    hand_over(upgraded, old)
    upgraded.order()
    assert settled(upgraded) == []
    assert new.stop() == 0
    upgraded.submit()
    assert settled(upgraded) == []


def test_a_roll_back_and_a_second_upgrade_lose_no_job(upgraded: Site, version: Version) -> None:
    upgraded.serving(metered=False)
    old = stand_by(upgraded, version=version)
    hand_over(upgraded, old)
    upgrade(upgraded)
    heir = stand_by(upgraded)
    upgraded.daemons[0].stop()
    hand_over(upgraded, heir)
    assert settled(upgraded) == []


@pytest.mark.parametrize("first", ["old", "new"])
def test_a_killed_daemon_is_followed_by_one_of_the_other_version(upgraded: Site, version: Version, first: str) -> None:
    versions = {"old": version, "new": None}
    last = {"old": "new", "new": "old"}
    upgraded.serving(version=versions[first], metered=False)
    for _ in range(3):
        put(upgraded)
        first = last[first]
        heir = stand_by(upgraded, version=versions[first])
        upgraded.daemons[-2].kill()
        upgraded.until(lambda: upgraded.owner == upgraded.name(heir), "nobody takes over")  # noqa: B023
        put(upgraded)
    assert settled(upgraded) == []


def test_a_new_daemon_starts_again_after_init_of_the_old_version(upgraded: Site) -> None:
    new = upgraded.serving(metered=False)  # `upgraded` has the commands in the order of the old version
    upgraded.submit()
    assert settled(upgraded) == []
    assert new.stop() == 0


# ---- what the old version does not know


def test_what_only_the_new_version_knows_stays_whole_while_the_old_one_serves(upgraded: Site, version: Version) -> None:
    new = upgraded.serving(metered=False)
    upgraded.value("select drover.subscribe('status', is_site => true)")
    old = stand_by(upgraded, version=version)
    upgraded.submit()
    upgraded.limit_jobs()
    upgraded.queue(30, acts="nap:0.2")
    upgraded.until(lambda: upgraded.value(BLOCKED), "no job is blocked by the quota")
    upgraded.step_down()
    upgraded.until(lambda: upgraded.owner == upgraded.name(old), "the other does not serve")
    upgraded.limit_jobs()
    upgraded.order()
    routed = upgraded.value(NEW_QUEUE)
    upgraded.submit()
    assert upgraded.value(NEW_QUEUE) > routed
    refused = "select jq_state::text from drover.jobqueue where jq_args like 'set-rate %'"
    assert settled(upgraded) == []
    assert {state for (state,) in upgraded.rows(refused)} == {"failed"}
    upgraded.step_down()
    upgraded.until(lambda: upgraded.owner == upgraded.name(new), "the new one does not serve again")
    upgraded.order()
    assert settled(upgraded) == []


# ---- commands and statements


TO_THE_LAST = """
insert into drover.jobqueue (jq_type, jq_args, jq_host)
select 'command', 'reexec', scheduler_host || '.' || scheduler_pid
  from drover.scheduler order by scheduler_started desc limit 1 returning jq_pk
"""


def ours(site: Site, words: str) -> "warm.CompletedProcess[str]":
    return warm.run(
        [sys.executable, "-m", "scheduler.cli.main", *words.split()],
        env=os.environ | {"DROVER_DATABASE_URL": site.database},
    )


@pytest.mark.parametrize("active", ["old", "new"])
def test_commands_of_both_versions_work_with_a_daemon_of_either(upgraded: Site, version: Version, active: str) -> None:
    upgraded.serving(version=version if active == "old" else None, metered=False)
    for words in ("submit --wait=60 line first", *COMMANDS):
        theirs = version.run(*words.split(), database=upgraded.database)
        assert (words, theirs.returncode, theirs.stderr) == (words, 0, "")
    for words in (*COMMANDS, *NEW_COMMANDS):
        mine = ours(upgraded, words)
        assert (words, mine.returncode, mine.stderr) == (words, 0, "")


def test_a_command_that_the_old_version_does_not_know_ends_without_it_f143(upgraded: Site, version: Version) -> None:
    patient = "[scheduler]\nlease = 600.0\n"  # else the old one may take over, and refuses the command
    upgraded.serving(config=f"{patient}{upgraded.types('d1')}", metered=False)
    stand_by(upgraded, version=version)
    mine = ours(upgraded, "reexec --wait=60")
    assert mine.returncode == 0, mine.stdout + mine.stderr
    assert "has taken over" in mine.stdout
    result = upgraded.value("select jq_result from drover.jobqueue where jq_args = 'reexec'")
    assert len(result) == 1, result  # that of the new one


def test_a_command_to_the_old_version_alone_fails_if_that_does_not_know_it_f143(
    upgraded: Site, version: Version
) -> None:
    upgraded.serving(metered=False)
    stand_by(upgraded, version=version)
    (pk,) = upgraded.rows(TO_THE_LAST)[0]
    end = "select jq_state::text, jq_endtext from drover.jobqueue where jq_pk = %s and jq_endtime is not null"
    assert upgraded.until(lambda: upgraded.rows(end, pk), "the command does not end") == [
        ("failed", "no scheduler was running that knows it")
    ]


@pytest.mark.parametrize("active", ["old", "new"])
def test_statements_of_front_ends_work_with_either(upgraded: Site, version: Version, active: str) -> None:
    upgraded.serving(version=version if active == "old" else None, metered=False)
    login = make_conninfo(upgraded.database, user="drover_frontend_sql")
    with psycopg.connect(login, autocommit=True) as front:
        for statement in FRONT_END.strip().split(";\n"):
            front.execute(statement.rstrip(";").encode())
    upgraded.until(lambda: upgraded.value(ENDED), "not all has ended")
    assert upgraded.value(ALL_DONE) == 0
    assert settled(upgraded) == []
