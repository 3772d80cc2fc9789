"""Log-ins that fail: told at once where people look, at no cost to the jobs that wait for them; all others go on."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_checks import try_logins
from scheduler.model.config import Config
from tests.cli_tools import Done, Drover
from tests.connection_tools import end_backends, fetch, let_in, limited, member, shut_out
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec

SETTINGS = "[scheduler]\nreconnect_max = 0.2\n[hosts.alpha]\n"
DENIED = "permission denied for database"
ONES = "select 1 as a"


@pytest.fixture
def shut(database_with_roles: str) -> str:
    """Let the daemon log in for itself alone: not for SQL jobs, not for DB: lines."""
    shut_out(database_with_roles)
    for role in ("drover_scheduler", "drover_frontend_sql", "drover_operator", "drover_readonly"):
        let_in(database_with_roles, role)
    return database_with_roles


def told(daemon: Daemon, words: str) -> list[str]:
    """Return the lines of the daemon's log that have these words."""
    return [line for line in daemon.stderr().splitlines() if words in line]


def warned(ask: Ask) -> dict[str, str]:
    """Return what `drover status` warns of: who and what."""
    warnings = json.loads(ask("status --json").out)["warnings"]
    return {each["who"]: each["what"] for each in warnings if each["warning"] == "connection"}


@pytest.mark.slow
def test_sql_job_waits_without_a_counted_attempt_and_shows_the_reason(
    launch: Launch, ask: Ask, shut: str, record: Path
) -> None:
    daemon = launch(SETTINGS + agent("a", rec(record)))
    job = daemon.insert(jq_type="a", jq_args=ONES, jq_msq=True, jq_max_interruptions=0)
    row = daemon.until(lambda: (row := daemon.row(job))["jq_attempt"] >= 3 and row["jq_state"] == "queued" and row)
    assert row["jq_endtext"].startswith("no connection as drover_msq: ")
    assert DENIED in row["jq_endtext"]
    assert (row["jq_interruptions"], row["jq_failures"], row["jq_rescued"]) == (0, 0, 0)
    assert daemon.attempts(job) == []
    daemon.until(lambda: DENIED in daemon.why(job))
    assert DENIED in daemon.until(lambda: warned(ask).get("expansion connection as drover_msq"))
    assert len(told(daemon, DENIED)) == 1
    daemon.wait(daemon.insert(jq_type="a", jq_args="plain"))
    let_in(shut)
    daemon.wait(job)
    assert lines(record) == ["plain", 'a="1"']
    assert len(told(daemon, "expansion connection as drover_msq: up again after")) == 1
    daemon.until(lambda: not warned(ask))


@pytest.mark.slow
def test_jobs_of_a_type_that_may_ask_the_database_wait_and_others_go_on(
    launch: Launch, ask: Ask, shut: str, record: Path
) -> None:
    daemon = launch(SETTINGS + agent("asks", rec(record), db="sql") + agent("other", rec(record)))
    daemon.until(lambda: told(daemon, DENIED))
    job = daemon.insert(jq_type="asks", jq_args="first")
    daemon.wait(daemon.insert(jq_type="other", jq_args="second"))
    daemon.until(lambda: "no connection as drover_agentdb" in daemon.why(job))
    assert DENIED in daemon.until(lambda: warned(ask).get("agent-database connection as drover_agentdb"))
    assert (daemon.row(job)["jq_state"], daemon.attempts(job)) == ("queued", [])
    let_in(shut)
    daemon.wait(job)
    assert lines(record) == ["second", "first"]
    assert len(told(daemon, DENIED)) == 1
    daemon.until(lambda: not warned(ask))


@pytest.mark.slow
def test_daemon_whose_login_lacks_a_right_says_so_once_and_serves_when_granted(
    launch: Launch, database_with_roles: str, record: Path
) -> None:
    fetch(database_with_roles, "revoke insert on drover.scheduler from drover_scheduler")
    daemon = launch(SETTINGS + agent("a", rec(record)), wait=False)
    (line,) = daemon.until(lambda: told(daemon, "refuses register: permission denied"))
    assert line.endswith("drover check tells whether the login of the daemon is right")
    fetch(database_with_roles, "grant insert on drover.scheduler to drover_scheduler")
    daemon.until(lambda: told(daemon, "takes register again"))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    assert len(told(daemon, "refuses register")) == 1


@pytest.mark.slow
def test_refused_queue_connection_is_logged_once_and_at_recovery(
    launch: Launch, ask: Ask, database_with_roles: str, record: Path
) -> None:
    daemon = launch(SETTINGS + agent("a", rec(record)))
    with limited(database_with_roles, "drover_scheduler", 0):
        end_backends(database_with_roles, "drover queue")
        reason = daemon.until(lambda: "too many connections" in (said := warned(ask)["queue connection"]) and said)
    assert 'too many connections for role "drover_scheduler"' in reason
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    assert len(told(daemon, "too many connections")) == 1
    assert len(told(daemon, "queue connection: up again after")) == 1


# ---- drover check


@pytest.fixture
def check(config: Path, drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return what comes before the keys of [database]; `drover check` uses that file."""
    monkeypatch.delenv("DROVER_DATABASE_URL", raising=False)
    url = make_conninfo(database_with_roles, user="drover_scheduler")
    tables = '[hosts.local]\n[agents.noop]\ncommand = ["drover-agent-noop"]\ndb = "sql"\n'
    config.write_text(f'[database]\nurl = "{url}"\n{tables}')
    return url


def log_ins(done: Done) -> dict[str, str]:
    """Return, by connection, what `drover check` says of it."""
    found = re.findall(r"^(\S+) +log-in (\S+) (.*)$", done.out, re.MULTILINE)
    return {connection: f"{severity} {text}" for severity, connection, text in found}


def test_check_logs_in_as_every_role_on_every_connection(check: str, drover: Drover) -> None:
    done = drover("check")
    assert done.status == 0, done.out
    assert log_ins(done) == {
        "queue": "ok (claims and results) as drover_scheduler",
        "watch": "ok (commands and periodic tasks) as drover_scheduler",
        "lease": "ok (its renewals) as drover_scheduler",
        "expansion": "ok (queries of SQL jobs) as drover_msq",
        "agent-database": "ok (DB: lines of noop) as drover_agentdb",
    }


def test_check_says_what_to_do_for_each_refused_log_in(check: str, drover: Drover, shut: str) -> None:
    done = drover("check")
    found = log_ins(done)
    assert (done.status, found["queue"][:2], found["watch"][:2]) == (1, "ok", "ok")
    for connection, role in (("expansion", "drover_msq"), ("agent-database", "drover_agentdb")):
        assert found[connection].startswith("FAIL")
        assert DENIED in found[connection]
        assert found[connection].endswith(f"grant connect on the database to {role}")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        (
            "user=drover_nobody",
            "a login that may create roles, or correct msq_url and msq_password_file in [database]",
        ),
        ("user=drover_owner", "alter role drover_owner login"),
        ("user=drover_msq port=5999", "look into the log of the server, and correct msq_url"),
    ],
)
def test_check_advice_follows_the_error_of_the_server(
    check: str, config: Path, drover: Drover, database_with_roles: str, url: str, advice: str
) -> None:
    conninfo = make_conninfo(database_with_roles, **dict(word.split("=") for word in url.split()))
    config.write_text(config.read_text().replace("[hosts", f'msq_url = "{conninfo}"\n[hosts', 1))
    said = log_ins(drover("check"))["expansion"]
    assert said.startswith("FAIL")
    assert advice in said


def test_check_finds_a_log_in_beyond_the_connection_limit(database_with_roles: str) -> None:
    with member(database_with_roles, "drover_scheduler", 1) as conninfo:
        (queue, watch, lease, *_) = try_logins(Config(), conninfo)
    assert (queue[0], lease[0]) == ("WARN", "FAIL")
    assert watch[0] == "FAIL"
    assert watch[1].endswith("alter role drover_scheduler_1 connection limit -1, or as many as are used")


def test_check_finds_a_login_of_the_daemon_without_the_right(
    check: str, config: Path, drover: Drover, database_with_roles: str
) -> None:
    config.write_text(config.read_text().replace("user=drover_scheduler", "user=drover_operator"))
    found = log_ins(drover("check"))
    assert found["watch"].startswith("FAIL")
    assert found["watch"].endswith("may not register a scheduler; let [database] url name drover_scheduler")


def test_check_warns_of_a_role_that_may_have_fewer_connections_than_are_wanted(
    check: str, config: Path, drover: Drover, database_with_roles: str
) -> None:
    with member(database_with_roles, "drover_msq", 3) as conninfo:
        config.write_text(config.read_text().replace("[hosts", f'msq_url = "{conninfo}"\n[hosts', 1))
        done = drover("check")
    assert done.status == 0
    assert log_ins(done)["expansion"].startswith("WARN")


@pytest.mark.slow
def test_status_shows_a_reader_only_what_it_may_see(launch: Launch, ask: Ask, shut: str, record: Path) -> None:
    daemon = launch(SETTINGS + agent("asks", rec(record), db="sql"))
    daemon.until(lambda: told(daemon, DENIED))
    done = ask("status", DROVER_DATABASE_URL=make_conninfo(shut, user="drover_readonly"))
    assert (done.status, done.err, DENIED in done.out) == (0, "", False)


def test_check_tries_all_log_ins_even_if_the_first_is_refused(check: str, config: Path, drover: Drover) -> None:
    config.write_text(config.read_text().replace("user=drover_scheduler", "user=drover_nobody"))
    done = drover("check")
    assert done.status == 3
    assert {connection: said.split()[0] for connection, said in log_ins(done).items()} == {
        "queue": "FAIL", "watch": "FAIL", "lease": "FAIL", "expansion": "ok", "agent-database": "ok"
    }  # fmt: skip
