"""The server ends idle sessions, or a pooler stands before it: daemons and waiting commands go on."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from select import select

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.cli_tools import ACTIVE, ANNOUNCE, DROVER, environment, finish, insert
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec
from tests.integration.database_door import QUICK, SLOW, cut
from tests.pooler_tools import pooler
from tests.replica_tools import until

HOST = "[hosts.alpha]\n"


# ---- a server that ends sessions which are idle


@pytest.mark.slow
def test_connections_survive_idle_session_timeout(
    launch: Launch, database_with_roles: str, record: Path, gate: Path
) -> None:
    for role in ("scheduler", "msq", "agentdb"):
        _end_idle(database_with_roles, f"drover_{role}")
    daemon = launch(HOST + agent("a", rec(record)))
    query = f"select n, case n when 1 then 'gate:{gate}' end as act from generate_series(1, 200) n"
    job = daemon.insert(jq_type="a", jq_args=query, jq_msq=True)
    daemon.until(lambda: lines(record))
    _wait_for_an_end(make_conninfo(database_with_roles, user="drover_msq"))
    gate.touch()
    row = daemon.wait(job)
    daemon.stop()
    assert (row["jq_itemsprocessed"], row["jq_interruptions"], row["jq_attempt"]) == (200, 0, 1)
    assert "idle" not in daemon.stderr()


@pytest.mark.slow
def test_wait_survives_idle_session_timeout(database_with_roles: str, config: Path) -> None:
    _end_idle(database_with_roles, "drover_operator")
    operator = make_conninfo(database_with_roles, user="drover_operator")
    with psycopg.connect(database_with_roles, autocommit=True) as owner:
        owner.execute(ACTIVE.encode())
        job = insert(owner)
        argv = [*DROVER, "wait", "--timeout=30", str(job)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=environment(operator, config)) as waiting:
            looked = "query like '%%jq_endtime is not null%%'"
            until(database_with_roles, f"select from pg_stat_activity where usename = 'drover_operator' and {looked}")
            _wait_for_an_end(operator)
            finish(owner, job)
            owner.execute(ANNOUNCE, (job, "done"))
            assert waiting.wait() == 0


def _end_idle(database: str, role: str) -> None:
    """Have the server end what a role leaves idle for a while in this database."""
    with psycopg.connect(database, autocommit=True) as owner:
        names = map(sql.Identifier, (role, owner.info.dbname))
        owner.execute(sql.SQL("alter role {} in database {} set idle_session_timeout = '0.5s'").format(*names))


def _wait_for_an_end(conninfo: str) -> None:
    """Until the server has ended a session that was begun now."""
    with psycopg.connect(conninfo, autocommit=True) as idle:
        assert select([idle], [], [], 20.0)[0]


# ---- behind a pooler


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_daemon_works_behind_a_pooler(launch: Launch, database_with_roles: str, record: Path, mode: str) -> None:
    count = 1200
    query = f"select n from generate_series(1, {count}) n"
    with pooler(database_with_roles, mode) as via:
        daemon = launch(QUICK + HOST + agent("a", rec(record), slots=2, db="sql"), via=via)
        plain = daemon.insert_all([{"jq_type": "a", "jq_args": f"plain {n}"} for n in range(40)])
        many = daemon.insert_all([{"jq_type": "a", "jq_args": query, "jq_msq": True} for _ in range(3)])
        asks = daemon.insert(jq_type="a", jq_args="say:DB: select 1")
        rows = daemon.wait_all([*plain, *many, asks])
        late = daemon.wait(daemon.insert(jq_type="a", jq_args="late"))
        daemon.stop()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in [*rows, late]} == {(1, 0)}
    assert [row["jq_itemsprocessed"] for row in rows[40:43]] == [count] * 3
    worked = lines(record)
    assert sorted(line for line in worked if line.startswith("plain")) == sorted(f"plain {n}" for n in range(40))
    assert [worked.count(f'n="{n}"') for n in (1, 777, count)] == [3] * 3
    assert not re.search(r"ERROR|prepared statement|cursor", daemon.stderr())


@pytest.mark.slow
def test_a_daemon_behind_a_transaction_pooler_polls_and_says_so_once(
    launch: Launch, database_with_roles: str, record: Path
) -> None:
    with pooler(database_with_roles, "transaction") as via:
        timers = "[scheduler]\npoll_interval = 0.1\n"
        daemon = launch(timers + HOST + agent("a", rec(record)), via=via)
        daemon.until(lambda: "LISTEN gets nothing" in daemon.stderr())
        for n in range(3):
            daemon.wait(daemon.insert(jq_type="a", jq_args=str(n)))
        assert daemon.stderr().count("LISTEN gets nothing") == 1
        daemon.stop()


@pytest.mark.slow
def test_a_daemon_goes_on_when_its_pooler_restarts(launch: Launch, database_with_roles: str, record: Path) -> None:
    with ExitStack() as poolers:
        via = poolers.enter_context(pooler(database_with_roles, "session"))
        daemon = launch(SLOW + HOST + agent("a", rec(record)), via=via)
        daemon.wait(daemon.insert(jq_type="a", jq_args="before"))
        cut(daemon.database)
        daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
        assert "queue connection: up again" in daemon.stderr()
        daemon.stop()
