"""The commands that look, on a real database, and how each of them ends."""

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from scheduler.database.embedded import default_directory, join
from scheduler.package_data import schema_dir
from tests.cli_tools import (
    ACTIVE,
    ANNOUNCE,
    CONFIG,
    DROVER,
    OWNER,
    Done,
    Drover,
    environment,
    finish,
    insert,
    one,
    write_log,
)
from tests.needs import need

# How commands end


def test_every_mistake_of_the_configuration_is_reported_with_its_line(drover: Drover, config: Path) -> None:
    config.write_text("[hosts.a]\nmax = 0\n[agents.b]\ncommand = 7\n")
    done = drover("ls")
    assert (done.status, done.out) == (2, "")
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [
        [f"{config}:2", "hosts.a.max"],
        [f"{config}:4", "agents.b.command"],
        ["drover ls", "needs only the database"],
    ]


@pytest.mark.parametrize("command", ["status", "ls", "init", "check"])
def test_missing_database_exits_with_3(drover: Drover, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", "host=/nonexistent dbname=x")
    done = drover(command)
    assert done.status == 3
    assert [line for line in (done.out + done.err).splitlines() if "not reachable" in line]


def test_missing_schema_exits_with_3(drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    done = drover("ls")
    assert (done.status, len(done.err.splitlines())) == (3, 1)
    assert "run drover init" in done.err


@pytest.mark.parametrize("command", ["why", "log", "out"])
def test_missing_job_exits_with_1(drover: Drover, connection: psycopg.Connection, command: str) -> None:
    done = drover(command, "4711")
    assert (done.status, done.out, done.err) == (1, "", "drover: no job 4711; drover ls --all lists all jobs\n")


@pytest.mark.parametrize("words", ["submit --force noop x", "setup --force noop.1", "log", "out 1", "wait --json 1"])
def test_role_without_rights_gets_an_error_that_says_so(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, words: str
) -> None:
    insert(active_for_roles)
    done = _as(database_with_roles, config, "readonly", words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("permission denied for ")
    assert done.err.endswith(": connect as a role that has the right; see drover-jobqueue(7)\n")


def test_role_without_rights_on_the_queue_gets_an_error_that_says_so(database_with_roles: str, config: Path) -> None:
    refused = "permission denied for schema drover: connect as a role that has the right; see drover-jobqueue(7)\n"
    assert _as(database_with_roles, config, "msq", "ls").err.endswith(refused)


def test_where_the_database_is_named_no_configuration_is_read(
    drover: Drover, active: psycopg.Connection, config: Path
) -> None:
    config.write_text("nonsense")
    assert drover("submit", "noop", "x") == Done(0, "1\n", "")
    assert [drover(*words.split()).status for words in ("ls", "why 1", "queue", "status default")] == [0] * 4
    told = drover("status")
    assert (told.status, told.out) == (2, "")
    assert told.err.splitlines()[-1].startswith("drover status: needs only database and group: ")
    assert [drover(command).status for command in ("check", "agent-check")] == [2] * 2


# What a role or a database sets for its sessions


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("DateStyle", "SQL, DMY"),
        ("DateStyle", "German"),
        ("DateStyle", "Postgres, MDY"),
        ("IntervalStyle", "iso_8601"),
        ("IntervalStyle", "postgres_verbose"),
        ("IntervalStyle", "sql_standard"),
        ("bytea_output", "escape"),
        ("search_path", "nowhere"),
        ("TimeZone", "Asia/Kathmandu"),
    ],
)
def test_commands_work_whatever_the_database_sets_for_its_sessions(
    drover: Drover, active: psycopg.Connection, setting: str, value: str
) -> None:
    job = insert(active)
    finish(active, job, "failed", 2, "no")
    write_log(active, job, "said")
    _set_for_sessions(active, setting, value)
    words = ("status", "status --json", "ls --all --json", f"why {job}", f"log {job}", "log --json", f"out {job}")
    told = [drover(*each.split()) for each in words]
    assert [(each.status, each.err) for each in told] == [(0, "")] * len(words)


@pytest.mark.parametrize(
    ("command", "table"),
    [("ls", "jobqueue"), ("status", "scheduler_group"), *((each, "migration") for each in ("ls", "init", "check"))],
)
def test_a_statement_timeout_is_not_reported_as_a_missing_database(
    drover: Drover, active: psycopg.Connection, command: str, table: str
) -> None:
    _set_for_sessions(active, "statement_timeout", "0.5s")
    with active.transaction():
        active.execute(sql.SQL("lock table drover.{}").format(sql.Identifier(table)))
        done = drover(command)
    reason = "a statement was cancelled: canceling statement due to statement timeout"
    advice = "try again, or raise statement_timeout of the role or the database"
    assert (done.status, (done.out + done.err).count(f"{reason}; {advice}\n")) == (3, 1)
    assert "not reachable" not in done.out + done.err


def _set_for_sessions(connection: psycopg.Connection, setting: str, value: str) -> None:
    """Set it for those who connect to this database from now on."""
    names = map(sql.Identifier, (connection.info.dbname, setting))
    connection.execute(sql.SQL("alter database {} set {} = {}").format(*names, sql.Literal(value)))


# What is seen by those who may not see everything


def _as(database: str, config: Path, role: str, words: str) -> Done:
    variables = environment(make_conninfo(database, user=f"drover_{role}"), config)
    done = subprocess.run(
        [*DROVER, *words.split()], capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def active_for_roles(database_with_roles: str) -> Iterator[psycopg.Connection]:
    """Connect to a database with all grants, and with a scheduler that serves noop and sha256."""
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        connection.execute(ACTIVE.encode())
        yield connection


def test_watcher_sees_states_but_no_arguments_of_jobs(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    job, other = (insert(active_for_roles, args="secret") for _ in range(2))
    finish(active_for_roles, job, "failed", 2, "the secret is out")
    seen = {
        words: _as(database_with_roles, config, "readonly", words)
        for words in ("ls --json", "ls", "queue --json", "host", "agent", f"why {other}", f"wait {job}", f"exit {job}")
    }
    assert {words: done.err for words, done in seen.items() if done.err} == {}
    listed = [json.loads(line) for line in seen["ls --json"].out.splitlines()]
    assert [(each["job"], each["state"], each["text"], each["args"]) for each in listed] == [
        (job, "failed", None, None),
        (other, "queued", None, None),
    ]
    assert json.loads(seen["queue --json"].out)["queued"] == 1
    assert (seen[f"wait {job}"].status, seen[f"wait {job}"].out) == (1, f"{job} noop failed \n")
    assert seen[f"exit {job}"].out == "1\n"
    assert "secret" not in str(seen)


def test_watcher_may_refer_to_a_job_by_name(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    active_for_roles.execute(
        "insert into drover.jobqueue (jq_type, jq_name, jq_state) values ('noop', 'noop.a', 'held')"
    )
    assert _as(database_with_roles, config, "readonly", "why noop.a") == Done(0, "held: waits for release\n", "")


def test_status_shows_a_front_end_no_numbers_of_slots_and_agents(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    done = _as(database_with_roles, config, "frontend", "agent --json")
    assert {(each["slots"], each["agents"]) for each in map(json.loads, done.out.splitlines())} == {(None, None)}
    assert "role drover_frontend does not see slots and agents" in done.err
    watched = _as(database_with_roles, config, "readonly", "agent --json").out.splitlines()
    assert {(each["slots"], each["agents"]) for each in map(json.loads, watched)} == {(0, 0)}


def test_front_end_lists_and_counts_its_own_jobs_with_a_note(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    insert(active_for_roles)
    mine = int(_as(database_with_roles, config, "frontend", "submit noop mine").out)
    (listed,) = _as(database_with_roles, config, "frontend", "ls --json").out.splitlines()
    assert (json.loads(listed)["job"], json.loads(listed)["args"]) == (mine, "mine")
    queues = _as(database_with_roles, config, "frontend", "queue --json")
    assert json.loads(queues.out)["queued"] == 1
    assert queues.err == "drover: role drover_frontend sees its own jobs alone: no others are listed or counted\n"


@pytest.mark.parametrize(
    ("role", "count", "hidden"), [("readonly", 2, ["statements"]), ("frontend", 1, ["slots", "statements"])]
)
def test_status_names_what_the_role_may_not_see_and_shows_the_rest(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, role: str, count: int,
    hidden: list[str],
) -> None:  # fmt: skip
    insert(active_for_roles)
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_frontend"), autocommit=True) as ui:
        ui.execute("insert into drover.jobqueue (jq_type) values ('noop')")
    done = _as(database_with_roles, config, role, "status --json")
    told = json.loads(done.out)
    assert (done.status, done.err) == (0, "")
    assert [part for part in told if told[part] is None] == hidden
    assert told["jobs"] == [{"type": "noop", "queued": count}]
    assert told["group"]["active"]
    shown = _as(database_with_roles, config, role, "status")
    assert (shown.status, shown.err) == (0, "")
    assert [line for line in shown.out.splitlines() if line.startswith("note: role ")] == [
        f"note: {each}" for each in told["unseen"]
    ]


def test_check_by_a_front_end_runs_to_its_end(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    done = _as(database_with_roles, config, "frontend", "check")
    assert (done.status, done.err) == (0, "")
    queue, watch, *others = [line for line in done.out.splitlines() if not line.startswith("ok ")]
    assert all(
        "WARN log-in" in line and "DROVER_DATABASE_URL is not a daemon's login" in line for line in (queue, watch)
    )
    assert others == ["WARN clean-ups: role drover_frontend sees its own jobs alone: no others are listed or counted"]


def test_version_needs_no_configuration(drover: Drover, config: Path) -> None:
    config.unlink()
    done = drover("version")
    assert (done.status, done.out.split()[0]) == (0, "drover")


def test_closed_standard_output_causes_no_traceback(
    database: str, config: Path, connection: psycopg.Connection
) -> None:
    connection.execute("insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, 5000)")
    reader, writer = os.pipe()
    os.close(reader)
    argv, variables = [*DROVER, "ls", "-n", "0"], environment(database, config)
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, env=variables, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


# init


def test_init_twice_does_nothing_the_second_time(
    drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    assert "applied 0001_create_drover.sql" in drover("init").out
    assert drover("init") == Done(0, "nothing to do\n", "")
    assert drover("init", "--roles") == Done(0, "nothing to do\napplied roles\n", "")


@pytest.mark.usefixtures("migrated_with_roles")
def test_init_that_extends_a_schema_with_grants_says_that_grants_must_follow(
    drover: Drover, empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    (first := tmp_path / "first").mkdir()
    shutil.copy(schema_dir() / "migrations" / "0001_create_drover.sql", first)
    migrate.apply(empty_database, first)
    with psycopg.connect(empty_database) as connection:
        connection.execute("grant usage on schema drover to drover_scheduler")
    *added, advice = drover("init").out.splitlines()
    assert added[0] == "applied 0002_harden_queue.sql"
    assert advice == "the roles have no rights yet on the new tables and functions; run drover init --roles"


def test_init_changes_no_tables_of_the_site_t105(
    drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    query = """
        select relname, relkind, relnatts, relacl, relowner, relhastriggers,
               (select array_agg(j) from public.jobqueue j)
          from pg_class where relnamespace = 'public'::regnamespace
    """
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("create table public.jobqueue (x int primary key, y text)")
        connection.execute("insert into public.jobqueue values (1, 'theirs')")
        before = connection.execute(query).fetchall()
        assert drover("init", "--roles").status == 0
        assert connection.execute(query).fetchall() == before


# ls


@pytest.fixture
def many(active: psycopg.Connection) -> psycopg.Connection:
    """Jobs 1 to 4: done, failed, queued, queued for sha256."""
    jobs = [insert(active, kind) for kind in ("noop", "noop", "noop", "sha256")]
    finish(active, jobs[0])
    finish(active, jobs[1], "failed", 2, "no")
    return active


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ("", [2, 3, 4]),
        ("-s done", [1, 2, 3, 4]),
        ("-S done", [1]),
        ("-S done -S failed", [1, 2]),
        ("--all", [1, 2, 3, 4]),
        ("-t sha256", [4]),
        ("-t sha256 -t noop", [2, 3, 4]),
        ("-t nosuch", []),
        ("-n 2", [3, 4]),
        ("-n 0 --all", [1, 2, 3, 4]),
    ],
)
def test_ls_lists_the_selected_jobs_r59_r60_r61(
    drover: Drover, many: psycopg.Connection, words: str, listed: list[int]
) -> None:
    done = drover("ls", "--json", *words.split())
    assert [json.loads(line)["job"] for line in done.out.splitlines()] == listed


def test_ls_says_that_there_are_more(drover: Drover, many: psycopg.Connection) -> None:
    assert drover("ls", "-n", "2").err == "drover: only the newest 2 are listed; -n 0 lists all\n"
    assert drover("ls", "-n", "3").err == ""


def test_priority_is_printed_r76(drover: Drover, active: psycopg.Connection) -> None:
    drover("submit", "noop", "--priority", "c3", "--urgent")
    head, row = drover("ls").out.splitlines()
    assert head.split()[:4] == ["JOB", "TYPE", "STATE", "PRIORITY"]
    assert row.split()[:4] == ["1", "noop", "queued", "!c3"]


def test_ls_shows_names_of_jobs_r59(drover: Drover, active: psycopg.Connection) -> None:
    drover("submit", "noop", "x")
    assert "NAME" not in drover("ls").out
    drover("submit", "noop", "x", "--name", "noop.a")
    head, *rows = (line.split() for line in drover("ls").out.splitlines())
    assert (head[:3], [row[:3] for row in rows]) == (
        ["JOB", "NAME", "TYPE"],
        [["1", "-", "noop"], ["2", "noop.a", "noop"]],
    )


def test_columns_of_the_site_break_no_command_j35(drover: Drover, many: psycopg.Connection) -> None:
    many.execute("alter table drover.job add column job_extra text not null default 'x'")
    many.execute("alter table drover.jobqueue add column jq_extra text not null default 'x'")
    commands = (["submit", "noop"], ["ls"], ["status"], ["why", "3"], ["out", "1"], ["log"])
    assert [drover(*words).status for words in commands] == [0] * 6


def test_ls_omits_ended_commands_unless_asked(drover: Drover, active: psycopg.Connection) -> None:
    ended, waiting = insert(active, "command", "poll"), insert(active, "command", "reload")
    finish(active, ended, "failed", 2, "no")
    told = {words: drover("ls", "--json", *words.split()).out for words in ("", "--all", "-t command")}
    listed = {words: [json.loads(line)["job"] for line in out.splitlines()] for words, out in told.items()}
    assert listed == {"": [waiting], "--all": [ended, waiting], "-t command": [ended, waiting]}


# why, log, out


def test_why_says_that_no_agent_has_the_type_f43(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active, "nosuch")
    assert drover("why", str(job)).out == "no agent type 'nosuch' is configured in group default\n"
    assert one(active.execute("select jq_state, jq_starttime from drover.jobqueue")) == ("queued", None)


@pytest.mark.parametrize(
    ("state", "next_"),
    [
        ("failed", "has failed: retry it, or cancel or ice this one"),
        ("cancelled", "is cancelled for good: cancel or ice this one"),
    ],
)
def test_why_names_a_failed_parent_and_says_what_next_r6(
    drover: Drover, active: psycopg.Connection, state: str, next_: str
) -> None:
    parent, other, child = (insert(active) for _ in range(3))
    edges = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s), (%s, %s)"
    active.execute(edges, (child, parent, child, other))
    before = f"waits for 2 dependencies: jobs {parent}, {other}"
    assert drover("why", str(child)).out == f"{before}\n"
    finish(active, parent, state, 2)
    assert drover("why", str(child)).out == f"{before}; job {parent} {next_}\n"


def test_why_prints_one_line_without_control_characters(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    finish(active, job, "failed", 2, "a\n\x1b[31mb")
    assert drover("why", str(job)).out == "failed: a\\n\\x1b[31mb\n"


def test_log_shows_line_job_agent_host_and_time_f92(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    write_log(active, job, "half\r\nway \x9b2J")
    write_log(active, None, "not of this job")
    (date,) = one(active.execute("select log_date from drover.log where log_jq_fk = %s", (job,)))
    line = rf"{date.astimezone():%Y-%m-%d %H:%M:%S} LOG job={job} host=alpha agent=noop pid=12: half\r\nway \x9b2J"
    assert drover("log", str(job)).out == line + "\n"


@pytest.mark.parametrize(("words", "messages"), [("", "1 2 3"), ("-n 2", "2 3"), ("1", "1 3"), ("1 -n 1", "3")])
def test_log_shows_the_last_rows(drover: Drover, active: psycopg.Connection, words: str, messages: str) -> None:
    insert(active)
    for job, message in ((1, "1"), (None, "2"), (1, "3")):
        write_log(active, job, message)
    done = drover("log", "--json", *words.split())
    assert [json.loads(line)["message"] for line in done.out.splitlines()] == messages.split()


def test_log_of_a_silent_job_is_empty(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("log", str(insert(active))) == Done(0, "", "")


def test_log_follows_a_job_to_its_end(database: str, config: Path, active: psycopg.Connection) -> None:
    job = insert(active)
    write_log(active, job, "first")
    argv = [*DROVER, "log", str(job), "-f", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(database, config)) as follower:
        assert follower.stdout
        first = follower.stdout.readline()
        write_log(active, job, "last")
        finish(active, job)
        active.execute(ANNOUNCE, (job, "done"))
        rest = follower.stdout.read().splitlines()
    assert [json.loads(line)["message"] for line in (first, *rest)] == ["first", "last"]
    assert follower.returncode == 0


@pytest.mark.parametrize(("flag", "text"), [((), "ä\x1b[1m\nb"), (("-e",), "oops\n")])
def test_out_prints_exactly_what_the_last_attempt_wrote_r68(
    drover: Drover, active: psycopg.Connection, flag: tuple[str, ...], text: str
) -> None:
    job = insert(active)
    finish(active, job)
    active.execute("update drover.jobqueue set jq_attempt = 2")
    rows = [(1, 1, "out", "old"), (2, 1, "out", "ä\x1b[1m\n"), (2, 2, "err", "oops\n"), (2, 3, "out", "b")]
    query = """
        insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) values (%s, %s, %s, %s, %s)
    """
    active.cursor().executemany(query, [(job, *row) for row in rows])
    assert drover("out", str(job), *flag) == Done(0, text, "")


@pytest.mark.parametrize("words", ["out -t", "wait", "exit -w"])
def test_waiting_commands_say_at_once_that_no_scheduler_is_active(
    database: str, config: Path, connection: psycopg.Connection, words: str
) -> None:
    job = insert(connection)
    argv = [*DROVER, *words.split(), str(job)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment(database, config)) as waiter:
        assert waiter.stderr
        told = waiter.stderr.readline()
        waiter.kill()
    assert told.startswith("drover: no scheduler is active for group default: the job waits until one is")


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["out", "1"], "a\\x1b[2J\r\nb"), (["ls"], "a\\x1b[2J\\nb"), (["log"], "a\\x1b[2J\\nb")],
)
def test_text_of_a_job_is_escaped_on_a_terminal(
    database: str, config: Path, active: psycopg.Connection, words: list[str], shown: str
) -> None:
    job = insert(active, args="a\x1b[2J\nb")
    write_log(active, job, "a\x1b[2J\nb")
    finish(active, job, "failed", 2)
    columns = "out_jq_fk, out_attempt, out_part, out_stream, out_data"
    active.execute(f"insert into drover.output ({columns}) values (%s, 1, 1, 'out', %s)", (job, "a\x1b[2J\nb"))
    ours, theirs = pty.openpty()
    variables = environment(database, config) | {"COLUMNS": "200"}
    done = subprocess.run([*DROVER, *words], stdout=theirs, env=variables, check=False)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert (done.returncode, shown in text, "\x1b[2J" in text) == (0, True, False)


# status


def test_status_of_an_unknown_group_is_refused(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("status", "nosuch") == Done(2, "", "no group nosuch: there are default\n")
    assert drover("status", "default").status == 0


def test_status_of_a_group_without_scheduler(drover: Drover, connection: psycopg.Connection) -> None:
    assert drover("status").out.splitlines()[0] == ("group default: no scheduler is active; start one with drover run")


def test_status_shows_owner_slots_jobs_and_queues(drover: Drover, many: psycopg.Connection) -> None:
    many.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since, status_jq_fk)
           values (%s, -1, null, null, 0, 'active', now(), null),
                  (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now(), 3)""",
        (OWNER, OWNER),
    )
    text = drover("status").out
    assert text.startswith("group default: alpha.77 is active since ")
    assert "   1  alpha  noop   ST_RUNNING" in text
    assert "Types that no scheduler serves" not in text


def test_status_shows_a_draining_owner_and_its_slots_only(drover: Drover, many: psycopg.Connection) -> None:
    dead = "0a0a0a0a-0000-4000-8000-00000000dead"
    many.execute(
        """insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,
                                         scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)
           values (%s, 'default', 'alpha', 78, '', '', 1, '')""",
        (dead,),
    )
    many.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since)
           values (%s, -1, null, null, 0, 'draining', now()),
                  (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now()), (%s, 2, 'alpha', 'noop', 6, 'ST_RUNNING', now())""",
        (OWNER, OWNER, dead),
    )
    status = json.loads(drover("status", "--json").out)
    assert [scheduler["role"] for scheduler in status["schedulers"]] == ["draining", "standby"]
    assert [slot["slot"] for slot in status["slots"]] == [1]


def test_status_marks_a_scheduler_unseen_for_its_lease_and_later_omits_it_j74(
    drover: Drover, active: psycopg.Connection
) -> None:
    active.execute(
        """insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent,
                                                status_state, status_state_name, status_since)
           values (%s, 1, 'alpha', 'noop', 6, 'ST_RUNNING', now())""",
        (OWNER,),
    )
    roles = []
    for unseen in (0, 31, 61):
        age = "update drover.scheduler set scheduler_seen = now() - make_interval(secs => %s)"
        active.execute(age, (unseen,))
        active.execute(
            "update drover.scheduler_group set group_lease_until = now() - interval '1 s' where %s > 0", (unseen,)
        )
        status = json.loads(drover("status", "--json").out)
        roles.append(([scheduler["role"] for scheduler in status["schedulers"]], len(status["slots"])))
    assert roles == [(["owner"], 1), (["gone?"], 0), ([], 0)]


def test_status_notes_a_missing_standby_and_succeeds_c1(drover: Drover, active: psycopg.Connection) -> None:
    alone = drover("status")
    assert (alone.status, alone.out.splitlines()[1]) == (
        0,
        "note: the group has no standby, which would take over if this scheduler ended",
    )
    active.execute(
        """insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,
                                         scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)
           values (gen_random_uuid(), 'default', 'beta', 78, '', '', 1, '')"""
    )
    assert "note:" not in drover("status").out
    assert json.loads(drover("status", "--json").out)["group"]["standbys"] == 1


def test_status_as_json_has_everything_j71(drover: Drover, many: psycopg.Connection) -> None:
    status = json.loads(drover("status", "--json").out)
    assert (status["group"]["active"], status["group"]["host"]) == (True, "alpha")
    assert [scheduler["role"] for scheduler in status["schedulers"]] == ["owner"]
    assert status["jobs"] == [
        {"type": "noop", "queued": 1, "done": 1, "failed": 1},
        {"type": "sha256", "queued": 1, "done": 0, "failed": 0},
    ]
    assert status["queues"] == [{"queue": "default", "concurrency": None, "paused": False, "in_hand": 0, "queued": 2}]


def test_status_lists_unserved_types_with_their_counts(drover: Drover, active: psycopg.Connection) -> None:
    for kind in ("nosuch", "nosuch", "off", "noop", "command"):
        insert(active, kind)
    active.execute("insert into drover.agent (agent_group, agent_type, agent_enabled) values ('default', 'off', false)")
    unserved = json.loads(drover("status", "--json").out)["unserved"]
    assert unserved == [
        {"type": "nosuch", "group": "default", "jobs": 2, "reason": "not configured"},
        {"type": "off", "group": "default", "jobs": 1, "reason": "disabled"},
    ]


def test_status_lists_jobs_in_a_missing_queue_and_of_unserved_types(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('noop', 'defualt'), ('sha256', 'defualt')")
    told = json.loads(drover("status", "--json").out)
    assert told["unserved"] == []
    assert told["unknown_queues"] == [{"queue": "defualt", "jobs": 2, "types": "noop, sha256"}]


# check

STATEMENTS = """
db = "statements"
[agents.noop.statements]
good = "update site.pfile set size = :size where pfile_pk = :pk"
wrong = "update site.pfile set nosuch = :size"
secret = "select * from site.secret where pk = :pk"
"""
SITE = """
create schema site;
create table site.pfile (pfile_pk int, size bigint);
create table site.secret (pk int);
grant usage on schema site to drover_agentdb;
grant select, update on site.pfile to drover_agentdb
"""


def test_check_prepares_every_statement_as_the_role_that_runs_it(
    drover: Drover, config: Path, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    config.write_text(CONFIG + STATEMENTS)
    config.chmod(0o600)  # one is called secret
    with psycopg.connect(database_with_roles) as connection:
        connection.execute(SITE)
    done = drover("check")
    assert done.status == 1
    assert [line[:4] for line in done.out.splitlines()] == ["ok  "] * 9 + ["FAIL"] * 2
    assert 'agents.noop.statements.wrong: column "nosuch" of relation "pfile" does not exist' in done.out
    assert "agents.noop.statements.secret: permission denied for table secret" in done.out


def test_check_of_a_good_installation_finds_no_fault(
    drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    done = drover("check")
    assert (done.status, {line.split()[0] for line in done.out.splitlines()}) == (0, {"ok"})


def test_check_warns_if_every_role_may_create_in_schema_public(
    drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        connection.execute("grant create on schema public to public")
    migrate.apply_roles(database_with_roles)
    (warning,) = [line for line in drover("check").out.splitlines() if "schema public" in line]
    assert warning.startswith("WARN schema public: every role may create tables and functions there")


def test_check_warns_of_unserved_and_failed_clean_ups(drover: Drover, active: psycopg.Connection) -> None:
    query = (
        "insert into drover.jobqueue (jq_type, jq_name) select 'cleanup', 'cleanup.' || n from generate_series(1, 3) n"
    )
    active.execute(query)
    finish(active, 3, "failed", 2)
    done = drover("check")
    why = (
        "clean-ups: no agent can do 2 that wait, such as job 1: no agent type 'cleanup' is configured in group default"
    )
    vain = "clean-ups: 1 have failed; drover ls -S failed -t cleanup, and drover retry"
    assert (done.status, [line for line in done.out.splitlines() if "clean-ups" in line]) == (
        0,
        [f"WARN {why}", f"WARN {vain}"],
    )
    active.execute("insert into drover.agent (agent_group, agent_type) values ('default', 'cleanup')")
    assert [line for line in drover("check").out.splitlines() if "clean-ups" in line] == [f"WARN {vain}"]


def test_check_fails_for_a_missing_program_unless_it_is_switched_off(
    drover: Drover, config: Path, connection: psycopg.Connection
) -> None:
    config.write_text(
        CONFIG
        + """
[agents.lost]
command = ["no-such-program"]
[agents.idle]
command = ["no-such-program"]
enabled = false
[agents.far]
command = ["no-such-program"]
hosts = ["remote"]
[hosts.remote]
transport = "ssh"
address = "remote"
"""
    )
    done = drover("check")
    assert done.status == 1
    told = dict(line.split(": ")[0].split(" agent ")[::-1] for line in done.out.splitlines() if " agent " in line)
    assert {name: severity.strip() for name, severity in told.items()} == {
        "noop": "ok",
        "lost": "FAIL",
        "idle": "WARN",
        "far": "ok",
    }


@pytest.mark.parametrize(("word", "place"), [("/no/such", "there"), ("no-such", "in agents/ or on PATH")])
def test_check_says_where_a_missing_program_was_looked_for(
    drover: Drover, config: Path, connection: psycopg.Connection, word: str, place: str
) -> None:
    config.write_text(f'{CONFIG}[agents.lost]\ncommand = ["{word}"]\n')
    assert f"FAIL agent lost: no program {word} is {place}; install it or correct" in drover("check").out


def test_missing_role_is_reported_with_who_may_create_it(drover: Drover, connection: psycopg.Connection) -> None:
    conninfo = make_conninfo(connection.info.dsn, user="drover_nobody")
    assert "; run drover init --roles by a login that may create roles" in drover("ls", "-d", conninfo).err


@pytest.mark.parametrize(
    ("mode", "head", "complaint"),
    [
        (0o644, "#!/bin/sh", "is not executable; chmod +x "),
        (0o755, "#!/no/such/interpreter -x", "its interpreter /no/such/interpreter is not there or not executable"),
        (0o755, "#!/usr/bin/env -S A=b no-such-python -u", "its interpreter no-such-python is not on PATH"),
        (0o755, "#! ", "its first line names no interpreter"),
    ],
)
def test_check_says_why_an_existing_program_cannot_start(
    drover: Drover, config: Path, connection: psycopg.Connection, tmp_path: Path, mode: int, head: str, complaint: str
) -> None:
    program = tmp_path / "agent"
    program.write_text(f"{head}\n")
    program.chmod(mode)
    config.write_text(f'{CONFIG}[agents.mine]\ncommand = ["{program}"]\n')
    done = drover("check")
    (told,) = (line for line in done.out.splitlines() if "agent mine" in line)
    assert told.startswith("FAIL agent mine: ")
    assert complaint in told
    assert str(program) in told


@pytest.mark.parametrize("head", ["#!/bin/sh", "#!/usr/bin/env sh", "#! /usr/bin/env -S sh -u", "\x7fELF"])
def test_check_accepts_a_program_whose_interpreter_exists(
    drover: Drover, config: Path, connection: psycopg.Connection, tmp_path: Path, head: str
) -> None:
    (tmp_path / "agent").write_text(f"{head}\n")
    (tmp_path / "agent").chmod(0o755)
    config.write_text(f'{CONFIG}[agents.mine]\ncommand = ["{tmp_path / "agent"}"]\n')
    assert f"ok   agent mine: {tmp_path / 'agent'}\n" in drover("check").out


def test_a_database_that_is_read_only_is_not_called_a_replica(drover: Drover, connection: psycopg.Connection) -> None:
    connection.execute(f"alter database {connection.info.dbname} set default_transaction_read_only = on".encode())
    done = drover("check")
    assert (
        "a scheduler must write: default_transaction_read_only is on: reset it for the database or the role" in done.out
    )
    (told,) = (line for line in done.out.splitlines() if " log-in queue " in line)
    assert told.endswith("if this is a replica, else reset default_transaction_read_only")
    done = drover("submit", "--force", "noop", "x")
    assert done.status == 2
    assert "if this is a replica, else look at default_transaction_read_only" in done.err


# The embedded database


def test_two_commands_share_the_embedded_database_and_the_last_one_stops_it(tmp_path: Path, config: Path) -> None:
    need("postgres")
    need("setpriv")
    variables = {name: value for name, value in os.environ.items() if name != "DROVER_DATABASE_URL"}
    variables |= {"STATE_DIRECTORY": str(tmp_path), "DROVER_CONFIG": str(config)}
    waiting = [*DROVER, "submit", "--force", "--wait", "noop", "x"]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as first:
        assert first.stdout
        job = int(first.stdout.readline())
        second = subprocess.run([*DROVER, "why", str(job)], capture_output=True, text=True, env=variables, check=False)
        with (
            join(default_directory(variables), durable=True) as conninfo,
            psycopg.connect(conninfo, autocommit=True) as connection,
        ):
            finish(connection, job)
            connection.execute(ANNOUNCE, (job, "done"))
        assert first.stdout.read() == f"{job} noop done fine\n"
    assert (second.stdout, first.returncode) == ("no agent type 'noop' is configured in group default\n", 0)
    assert not (tmp_path / "pg/data/postmaster.pid").exists()
