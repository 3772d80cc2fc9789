"""What the daemon does at signals, and what can be seen of it from outside."""

import os
import re
from itertools import pairwise
from pathlib import Path
from random import Random
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2

import pytest

from scheduler.policy.rows_in_hand import MOST_ROWS
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec, start

HOST = "[hosts.alpha]\n"
SUMMARY = re.compile(r"^jobs in hand: (\d+); slots: .*ST_READY=(\d+) ST_RUNNING=(\d+)", re.MULTILINE)


@pytest.fixture
def daemon(launch: Launch, record: Path) -> Daemon:
    """Return a daemon with three agents of a type."""
    return launch(HOST + agent("a", rec(record), slots=3))


def working(daemon: Daemon, gate: Path) -> int:
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.wait(pk, "running")
    return pk


# ---- endings


def test_an_interrupted_daemon_lets_agents_finish_and_ends_idle_ones_f51_f52_j124(
    daemon: Daemon, record: Path, gate: Path
) -> None:
    pk = working(daemon, gate)
    other = daemon.insert(jq_type="a", jq_args="x")
    daemon.wait(other)
    daemon.signal(SIGINT)
    daemon.until(lambda: len(daemon.agent_pids()) == 1, what="the idle agent lives on")
    late = daemon.insert(jq_type="a", jq_args="late")
    gate.touch()
    daemon.wait(pk)
    assert daemon.wait_exit() == 0
    assert daemon.row(late)["jq_state"] == "queued"
    assert "late" not in lines(record)


@pytest.mark.parametrize("number", [SIGQUIT, SIGTERM])
def test_quit_and_term_kill_all_and_give_the_rows_back_f53_f54_j124(daemon: Daemon, gate: Path, number: int) -> None:
    pks = [working(daemon, gate) for _ in range(3)]
    assert daemon.stop(number) == 0
    assert [(daemon.row(pk)["jq_state"], daemon.row(pk)["jq_starttime"]) for pk in pks] == [("queued", None)] * 3


# ---- what they print


@pytest.mark.parametrize("number", [SIGHUP, SIGUSR1])
def test_a_summary_has_the_true_counts_and_the_daemon_goes_on_f55_f57(daemon: Daemon, gate: Path, number: int) -> None:
    pks = [working(daemon, gate), working(daemon, gate)]
    daemon.signal(number)
    (jobs, ready, running) = daemon.until(lambda: SUMMARY.findall(daemon.stderr()))[0]
    assert (jobs, ready, running) == ("2", "0", "2")
    assert len(re.findall(r"^slot=\d+ ST_RUNNING agent=a host=alpha pid=\d+", daemon.stderr(), re.MULTILINE)) == 2
    gate.touch()
    daemon.wait_all(pks)


def test_every_query_in_hand_is_printed_f56(launch: Launch, record: Path, gate: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)) + agent("b", rec(record)))  # or one job has all agents
    query = f"select i as id, 'gate:{gate}' as act from generate_series(1, 4) i"
    pks = [daemon.insert(jq_type=kind, jq_args=query, jq_msq=True) for kind in "ab"]
    daemon.wait_all(pks, "running")
    daemon.signal(SIGUSR2)
    shown = re.compile(r"^job=(\d+) agent=[ab] total=4 fetched=4", re.MULTILINE)
    daemon.until(lambda: sorted(map(int, shown.findall(daemon.stderr()))) == pks, what="a query is not printed")
    gate.touch()
    assert [row["jq_itemsprocessed"] for row in daemon.wait_all(pks)] == [4, 4]


def test_each_row_of_a_query_in_hand_is_printed_with_who_has_it_f56(launch: Launch, record: Path, gate: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record), slots=2))
    query = f"select 10 + i as id, 'gate:{gate}' as act from generate_series(1, 4) i"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True, jq_key="id")
    daemon.until(lambda: len(lines(record)) == 2)
    daemon.signal(SIGUSR2)
    row = re.compile(rf"^row (\d) key '(\d+)': (\w+).*\bjob={pk}$", re.MULTILINE)
    daemon.until(lambda: len(row.findall(daemon.stderr())) == 4, what="a row is not printed")
    found = row.findall(daemon.stderr())
    assert found == [("0", "11", "ST_RUNNING"), ("1", "12", "ST_RUNNING"), ("2", "13", "waits"), ("3", "14", "waits")]
    pids = re.findall(r"^row .* slot=\d agent=a host=alpha pid=(\d+) job=", daemon.stderr(), re.MULTILINE)
    assert sorted(map(int, pids)) == sorted(daemon.agent_pids())
    gate.touch()
    assert daemon.wait(pk)["jq_itemsprocessed"] == 4


def test_rows_of_a_long_query_are_printed_up_to_a_number_and_the_rest_is_counted_f56(
    launch: Launch, record: Path, gate: Path
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    query = f"select i as id, 'gate:{gate}' as act, 'pass''word' as more from generate_series(1, 500) i"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True)
    block = re.compile(
        rf"^job={pk} agent=a .* waiting=(\d+) in_flight=(\d+) .*\n((?:row \d+: .*\n)*)job={pk}: and (\d+) more rows\n",
        re.MULTILINE,
    )
    # not all rows are fetched at once
    found = daemon.until(lambda: daemon.signal(SIGUSR2) or block.search(daemon.stderr()))
    assert len(found[3].splitlines()) == MOST_ROWS
    assert int(found[4]) == int(found[1]) + int(found[2]) - MOST_ROWS
    assert "word" not in found[3]
    gate.touch()
    daemon.stop()


@pytest.mark.slow
def test_two_hundred_signals_in_a_burst_lose_no_job_f59(daemon: Daemon) -> None:
    dice = Random(59)
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": str(n)} for n in range(300)])
    for _ in range(200):
        daemon.signal(dice.choice((SIGHUP, SIGUSR1, SIGUSR2)))
    daemon.wait_all(pks)
    assert daemon.value("select count(*) from drover.attempt") == 300
    assert SUMMARY.search(daemon.stderr())


# ---- what can be seen


def test_columns_of_the_end_are_empty_until_the_job_has_ended_j128(daemon: Daemon, gate: Path) -> None:
    pk = working(daemon, gate)

    def seen(columns: str, relation: str, key: str = "jq_pk") -> list[object]:
        query = f"select {columns} from {relation} where {key} = %s"
        return list(daemon.execute(query, pk, role="drover_frontend_sql")[0].values())

    row = daemon.row(pk)
    ends = "jq_end_bits", "jq_endtime", "jq_exitcode", "jq_signal", "jq_result"
    assert [row[name] for name in ends] == [0, None, None, None, None]
    assert seen(", ".join(ends), "drover.my_jobs") == [0, None, None, None, None]
    assert seen("result, return_code, time_finished", "drover.my_jobd", "id") == [None, None, 0]
    (attempt,) = daemon.attempts(pk)
    ends = "att_end", "att_outcome", "att_exitcode", "att_signal", "att_reason"
    assert [attempt[name] for name in ends] == [None] * 5
    gate.touch()
    assert daemon.wait(pk)["jq_end_bits"] == 1
    assert seen("result, return_code", "drover.my_jobd", "id") == ["ok", 0]


def test_killing_an_idle_agent_changes_no_job_f112(launch: Launch, record: Path) -> None:
    daemon = launch("[scheduler]\nmax_idle = 0.3\n" + HOST + agent("a", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    before = daemon.execute("select xmin::text, * from drover.jobqueue")
    daemon.until(lambda: daemon.agent_pids() == [], what="the idle agent lives on")
    assert daemon.execute("select xmin::text, * from drover.jobqueue") == before


def test_jobs_run_as_the_user_of_the_daemon_j121(launch: Launch) -> None:
    daemon = launch(HOST + agent("id", ["id", "-u"], kind="exec"))
    pk = daemon.insert(jq_type="id")
    daemon.wait(pk)
    assert daemon.value("select out_data from drover.output where out_jq_fk = %s", pk) == f"{os.getuid()}\n"


@pytest.mark.slow
def test_the_last_seen_time_of_a_daemon_is_updated_r86_r56(launch: Launch, record: Path) -> None:
    daemon = launch("[scheduler]\nlease = 20\nlease_renewal = 0.2\n" + HOST + agent("a", rec(record)))
    seen = [daemon.value("select scheduler_seen from drover.scheduler")]

    def is_seen_often() -> bool:
        last = daemon.value("select scheduler_seen from drover.scheduler")
        seen.extend([last] * (last > seen[-1]))
        return len(seen) > 5

    daemon.until(is_seen_often)
    assert max(later - earlier for earlier, later in pairwise(seen)).total_seconds() < 20  # its lease


def test_a_daemon_connects_to_its_database_only_t109(daemon: Daemon) -> None:
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    links = [os.readlink(path) for path in Path(f"/proc/{daemon.pid}/fd").iterdir()]
    mine = {link[8:-1] for link in links if link.startswith("socket:[")}
    over_tcp = [line.split()[9] for name in ("tcp", "tcp6", "udp", "udp6") for line in _table(name)]
    assert not mine & set(over_tcp)  # the database of this test is on a socket of this machine


def _table(name: str) -> list[str]:
    return Path("/proc/net", name).read_text().splitlines()[1:]


@pytest.mark.parametrize(("text", "state"), [("! a | urgent\na|plain\n", "done")])
def test_a_line_on_stdin_may_be_urgent_f168(database_with_roles: str, record: Path, text: str, state: str) -> None:
    config = HOST + agent("a", rec(record))
    with start(config, database_with_roles, options=["-I"], stdin=text.encode()) as daemon:
        assert daemon.wait_exit() == 0
        rows = daemon.execute("select jq_urgent, jq_state::text as state from drover.jobqueue order by jq_pk")
    assert rows == [{"jq_urgent": True, "state": state}, {"jq_urgent": False, "state": state}]
