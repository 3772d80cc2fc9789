"""What can be read of a job and of the daemon: attempts, times, texts, status, and how little an idle daemon asks."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, await_lines, lines, python, rec, records
from tests.integration.puppets import Meeting, rows
from tests.patience import PATIENCE_S

HOST = "[hosts.alpha]\nmax = 4\n"
# Counts every INSERT into the queue by who did it.
COUNT_INSERTS = """
create table inserted (by_whom name);
create function note_insert() returns trigger language plpgsql security definer as $$
begin insert into public.inserted values (session_user); return null; end $$;
create trigger note_insert after insert on drover.jobqueue for each row execute function note_insert();
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


# ---- jobs of no known type


@pytest.mark.slow
def test_a_job_of_an_unknown_type_stays_queued_until_the_type_is_configured_f43_j67(
    launch: Launch, record: Path
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    pk = daemon.insert(jq_type="later", jq_args="x")
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_starttime"]) == ("queued", None)
    assert daemon.why(pk) == "no agent type 'later' is configured in group default"
    daemon.stop()
    launch(HOST + agent("later", rec(record))).wait(pk)


# ---- attempts and times


@pytest.mark.slow
def test_every_attempt_is_stored_with_its_times_f45_f47(launch: Launch, record: Path, tmp_path: Path) -> None:
    text, gate = HOST + agent("a", rec(record)), tmp_path / "gate"
    first = launch(text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    first.stop()
    second = launch(text)
    second.wait(pk, "running")
    second.kill()
    gate.touch()
    daemon = launch(text)
    row = daemon.wait(pk)
    attempts = daemon.attempts(pk)
    assert [(a["att_attempt"], a["att_outcome"]) for a in attempts] == [(1, "given back"), (2, "rescued"), (3, "done")]
    assert all(a["att_start"] <= a["att_end"] for a in attempts)
    assert attempts[2]["att_end"] == row["jq_endtime"]
    assert (row["jq_rescued"], row["jq_interruptions"]) == (1, 1)
    assert len({a["att_scheduler"] for a in attempts}) == 3


@pytest.mark.slow
def test_where_a_job_runs_is_seen_from_the_start_and_kept_when_its_daemon_is_killed_f45(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    text, gate = HOST + agent("a", rec(record)), tmp_path / "gate"
    first = launch(text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    row = first.wait(pk, "running")
    await_lines(first, record, 1)
    (note,) = (note for note in records(record) if note["event"] == "line")
    (attempt,) = first.attempts(pk)
    assert (row["jq_done_host"], row["jq_done_pid"]) == ("alpha", note["pid"])
    assert (attempt["att_host"], attempt["att_pid"], attempt["att_end"]) == ("alpha", note["pid"], None)
    assert first.why(pk).startswith(f"running on host alpha, pid {note['pid']}, in hand since ")
    scheduler, log = row["jq_schedinfo"], first.log_rows(pk)
    first.kill()
    gate.touch()
    second = launch(text)
    second.wait(pk)
    attempt, _ = second.attempts(pk)
    assert (attempt["att_host"], attempt["att_agent"], attempt["att_pid"]) == ("alpha", "a", note["pid"])
    told = f"interrupted: its scheduler {scheduler} is gone; queued again, interruption 1 of 3"
    assert (log, [row["log_message"] for row in second.log_rows(pk)]) == ([], [told])


def test_an_orderly_stop_tells_of_no_interruption_f46(launch: Launch, record: Path, tmp_path: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{tmp_path / 'gate'}")
    daemon.wait(pk, "running")
    daemon.stop()
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_done_host"], daemon.log_rows(pk)) == ("queued", None, [])


@pytest.mark.slow
def test_three_jobs_of_a_killed_daemon_run_again_without_manual_sql_f45_t71(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    text, gate = HOST + agent("a", rec(record), slots=3), tmp_path / "gate"
    daemon = launch(text)
    ended = daemon.insert(jq_type="a", jq_args="ended")
    daemon.wait(ended)
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 3)
    daemon.wait_all(pks, "running")
    await_lines(daemon, record, 4)
    daemon.kill()
    gate.touch()
    launch(text).wait_all(pks)
    assert lines(record).count("ended") == 1
    assert len(lines(record)) == 7


@pytest.mark.parametrize("number", [15, 3])
def test_an_orderly_stop_gives_rows_back_with_their_start_removed_f46_f161(
    launch: Launch, record: Path, tmp_path: Path, number: int
) -> None:
    daemon = launch(HOST + agent("a", rec(record), slots=3))
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{tmp_path / 'gate'}"}] * 3)
    daemon.wait_all(pks, "running")
    assert daemon.stop(number) == 0
    rows = [daemon.row(pk) for pk in pks]
    assert [(row["jq_state"], row["jq_starttime"], row["jq_owner"]) for row in rows] == [("queued", None, None)] * 3
    assert {row["jq_endtext"] for row in rows} == {"released for restart"}
    assert {(row["jq_interruptions"], row["jq_rescued"]) for row in rows} == {(0, 0)}
    assert daemon.value("select group_owner from drover.scheduler_group") is None


def test_a_drain_finishes_running_jobs_and_gives_back_the_others_f46(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    daemon = launch(HOST + agent("a", rec(record)))
    running = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.wait(running, "running")
    waiting = daemon.insert(jq_type="a", jq_args="x")
    daemon.wait(waiting, "claimed")
    daemon.signal(2)
    daemon.wait(waiting, "queued")
    gate.touch()
    assert daemon.wait_exit() == 0
    assert daemon.row(running)["jq_state"] == "done"
    assert lines(record) == [f"gate:{gate}"]


def test_a_job_in_hand_is_claimed_until_its_agent_has_a_line_f48(launch: Launch, record: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    daemon = launch(HOST + agent("a", rec(record)))
    busy = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    waiting = daemon.insert(jq_type="a", jq_args=f"select 'gate:{gate}2' as act", jq_msq=True)
    assert daemon.wait(waiting, "claimed")["jq_starttime"] is not None
    assert daemon.until(lambda: daemon.why(waiting).startswith("claimed, waits for"))  # its query has begun by then
    gate.touch()
    daemon.wait(busy)
    daemon.wait(waiting, "running")
    assert daemon.why(waiting).startswith("running, in hand since")
    (tmp_path / "gate2").touch()
    daemon.wait(waiting)


STATES = "select status, result from drover.my_jobd where target = 'q'"
# It looks at its own row until that says running, and logs each state that it saw.
LOOKS = python("""
import sys, time
print("OK")
for line in sys.stdin:
    state = ""
    while state != "running":
        time.sleep(0.02)
        print('DB: state {"args": "%s"}' % line.strip())
        state = sys.stdin.readline().split('"')[1]
        print("LOG " + state)
        assert sys.stdin.readline() == "OK\\n"
    print("OK")
""")
OWN_STATE = {"state": "select jq_state from drover.jobqueue where jq_args = :args"}


@pytest.mark.slow
def test_a_front_end_reads_states_of_its_jobs_in_jobd_words_j26_j29(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    daemon = launch("[scheduler]\nhold = 10\n" + HOST + "[queues.q]\nconcurrency = 4\n" + agent("a", rec(record)))
    daemon.wait_all(daemon.insert_all([{"jq_type": "a", "jq_args": "x"}] * 50))  # now it knows that they are quick
    acts = [f"gate:{tmp_path / 'gate'}", "fine", "say:FAIL no", "die:1", "fine", "fine"]
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": act, "jq_queue": "q"} for act in acts])

    def told() -> list[tuple[str, str | None]]:
        rows = daemon.execute(f"{STATES} order by id", role="drover_frontend_sql")
        return [(row["status"], row["result"]) for row in rows]

    held = [("running", None), *[("accepted", None)] * 3, *[("waiting", None)] * 2]
    daemon.until(lambda: told() == held, what="a full queue of held work is not shown")
    states = ["running", *["claimed"] * 3, *["queued"] * 2]
    daemon.until(lambda: [daemon.row(pk)["jq_state"] for pk in pks] == states, what="the rows never say so")
    (tmp_path / "gate").touch()
    daemon.wait_all(pks, {"done", "failed"})
    ok, fail = ("done", "ok"), ("done", "fail")
    assert told() == [ok, ok, fail, fail, ok, ok]
    assert [daemon.row(pk)["jq_state"] for pk in pks[:4]] == ["done", "done", "failed", "failed"]


def test_an_agent_sees_its_own_row_running_j28(launch: Launch) -> None:
    daemon = launch(HOST + agent("looks", LOOKS, db="statements", statements=OWN_STATE))
    daemon.execute("grant usage on schema drover to drover_agentdb")
    daemon.execute("grant select (jq_args, jq_state) on drover.jobqueue to drover_agentdb")
    pk = daemon.insert(jq_type="looks", jq_args="mine")
    daemon.wait(pk)
    states = [row["log_message"] for row in daemon.log_rows(pk)]
    assert states[-1] == "running"
    assert set(states) <= {"queued", "claimed", "running"}


def test_the_time_of_a_slow_job_is_that_of_its_agent_f47_f159(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    row = daemon.wait(daemon.insert(jq_type="a", jq_args="nap:0.3"))
    assert row["jq_processedtime"].total_seconds() >= 0.3
    assert row["jq_elapsedtime"] >= row["jq_processedtime"]
    assert row["jq_elapsedtime"] == row["jq_endtime"] - row["jq_starttime"]


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("nothing", 1),
        ("say:ItemsProcessed 5", 5),
        ("say:ItemsProcessed 5;say:ItemsProcessed 7", 12),
        ("say:ItemsProcessed 0", 0),
        ("say:ItemsProcessed many", 1),
        ("say:Success;say:Heartbeat", 1),
    ],
)
def test_an_agent_may_count_more_than_one_per_item_f158(launch: Launch, record: Path, said: str, count: int) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    assert daemon.wait(daemon.insert(jq_type="a", jq_args=said))["jq_itemsprocessed"] == count


@pytest.mark.parametrize("is_query", [False, True])
def test_items_counted_by_an_agent_show_live_and_are_counted_once_f158(
    launch: Launch, meeting: Meeting, is_query: bool
) -> None:
    daemon = launch(HOST + rows("a", 'eval "$act"'))
    act = f"echo ItemsProcessed 500; {meeting.wait}; echo ItemsProcessed 20"
    args = f"select '{act}' as act" if is_query else f'act="{act}"'
    pk = daemon.insert(jq_type="a", jq_args=args, jq_msq=is_query)
    daemon.until(lambda: daemon.row(pk)["jq_itemsprocessed"] == 500, what="the count is not live")
    assert daemon.row(pk)["jq_state"] == "running"
    meeting.let_go()
    assert daemon.wait(pk)["jq_itemsprocessed"] == 520


@pytest.mark.slow
@pytest.mark.parametrize("columns", [{}, {"jq_retries": 1}])
@pytest.mark.parametrize("query", ["", "select '{}' as act, 1 as k"])
def test_items_counted_before_a_crash_are_not_counted_twice_f158_t70(
    launch: Launch, meeting: Meeting, query: str, columns: dict[str, Any]
) -> None:
    text, act = HOST + rows("a", 'eval "$act"'), f"echo ItemsProcessed 500; {meeting.wait}"
    more = columns | ({"jq_msq": True, "jq_key": "k", "jq_args": query.format(act)} if query else {})
    daemon = launch(text)
    pk = daemon.insert(**{"jq_type": "a", "jq_args": f'act="{act}"'} | more)
    daemon.until(lambda: daemon.row(pk)["jq_itemsprocessed"] == 500, what="the count is not live")
    daemon.kill()
    meeting.let_go()
    row = launch(text).wait(pk)
    assert (row["jq_itemsprocessed"], row["jq_rescued"]) == (500, 1)


@pytest.mark.parametrize(
    ("act", "state", "text", "bits"),
    [
        ("fine", "done", "all data processed", 1),
        ("say:ERROR a little wrong", "done", "all data processed", 5),
        ("say:FAIL no such file", "failed", "no such file", 2),
        ("die:9", "failed", "agent terminated prematurely, with exit status 9", 2),
        ("kill:11", "failed", "agent terminated prematurely, by SIGSEGV", 2),
        ("say:ERROR first;die:1", "failed", "agent terminated prematurely, with exit status 1", 6),
    ],
)
def test_the_end_says_why_in_text_and_bits_f160_f161(
    launch: Launch, record: Path, act: str, state: str, text: str, bits: int
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    row = daemon.wait(daemon.insert(jq_type="a", jq_args=act), state)
    assert (row["jq_endtext"], row["jq_end_bits"]) == (text, bits)


@pytest.mark.slow
def test_a_job_past_its_time_limit_fails_and_says_so_f161(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    pk = daemon.insert(jq_type="a", jq_args="mute", jq_timeout="0.3 s")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "timeout: ran longer than 0.3 s"
    daemon.wait(daemon.insert(jq_type="a", jq_args="next"))


# ---- the status tables


def status(daemon: Daemon) -> dict[int, dict[str, Any]]:
    rows = daemon.execute("select * from drover.scheduler_status order by status_slot")
    return {row["status_slot"]: row for row in rows}


@pytest.mark.slow
def test_every_slot_and_the_scheduler_have_a_row_of_status_f163_r54(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    daemon = launch(HOST + agent("a", rec(record), slots=2))
    daemon.until(lambda: set(status(daemon)) == {-1, 0, 1})
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.until(lambda: status(daemon)[0]["status_state_name"] == "ST_RUNNING")
    row = status(daemon)[0]
    assert (row["status_host"], row["status_agent"], row["status_state"], row["status_jq_fk"]) == ("alpha", "a", 6, pk)
    assert (row["status_parameter"], row["status_spawns"]) == (f"gate:{gate}", 1)
    assert row["status_pid"] == records(record)[0]["pid"]
    assert status(daemon)[1]["status_state_name"] == "ST_FREE"
    assert (status(daemon)[-1]["status_state_name"], status(daemon)[-1]["status_pid"]) == ("serving", daemon.pid)
    gate.touch()
    daemon.until(lambda: status(daemon)[0]["status_state_name"] == "ST_READY")
    assert status(daemon)[0]["status_items"] == 1


def test_status_is_refreshed_while_idle_f163(launch: Launch, record: Path) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.2\n" + HOST + agent("a", rec(record)))
    daemon.until(lambda: status(daemon))
    first = status(daemon)
    assert daemon.until(
        lambda: all(row["status_updated"] > first[n]["status_updated"] for n, row in status(daemon).items())
    )


@pytest.mark.slow
def test_status_rows_of_a_killed_daemon_are_removed_by_the_next_f163(launch: Launch, record: Path) -> None:
    text = "[scheduler]\nlease = 1\nlease_renewal = 0.3\nrescan = 1\n" + HOST + agent("a", rec(record))
    daemon = launch(text)
    daemon.until(lambda: status(daemon))
    daemon.kill()
    other = launch(text)
    owners = "select distinct status_scheduler from drover.scheduler_status"
    daemons = "select scheduler_uuid as status_scheduler from drover.scheduler where scheduler_pid = %s"
    other.until(lambda: other.execute(owners) == other.execute(daemons, other.pid))
    assert other.value("select count(*) from drover.scheduler") == 1


def test_a_daemon_that_ends_in_order_leaves_no_status_f163(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    daemon.until(lambda: status(daemon))
    daemon.stop()
    assert status(daemon) == {}
    assert daemon.value("select count(*) from drover.scheduler") == 0


def test_agent_types_are_registered_once_with_their_revision_f166(launch: Launch, record: Path) -> None:
    text = HOST + agent("a", rec(record)) + agent("b", ["true"], kind="exec", submitters=["drover_operator"])
    launch(text).stop()
    daemon = launch(text)
    rows = daemon.execute("select * from drover.agent order by agent_type")
    assert [(row["agent_type"], row["agent_kind"], row["agent_submitters"]) for row in rows] == [
        ("a", "line", ["*"]),
        ("b", "exec", ["drover_operator"]),
    ]
    assert rows[0]["agent_revision"].endswith(str(record))


def test_a_type_that_is_no_longer_configured_stays_as_absent_f166(launch: Launch, record: Path) -> None:
    launch(HOST + agent("a", rec(record)) + agent("b", rec(record))).stop()
    daemon = launch(HOST + agent("a", rec(record)))
    rows = daemon.execute("select agent_type, agent_present from drover.agent order by agent_type")
    assert [tuple(row.values()) for row in rows] == [("a", True), ("b", False)]
    pk = daemon.insert(jq_type="b")
    assert daemon.why(pk) == "agent type b is no longer configured"


# ---- what the daemon asks of the database


def test_the_daemon_adds_no_row_to_the_queue_j37(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    daemon.execute(COUNT_INSERTS)
    pks = [daemon.insert(jq_type="a", jq_args=text) for text in ("x", "die:1", "say:FAIL y")]
    query = "select n from generate_series(1, 20) n"
    pks.append(daemon.insert(jq_type="a", jq_args=query, jq_msq=True, jq_key="n"))
    daemon.wait_all(pks, {"done", "failed"})
    assert daemon.execute("select by_whom, count(*) from inserted group by 1") == [
        {"by_whom": "drover_frontend_sql", "count": 4}
    ]


def test_claims_use_an_index_among_many_waiting_rows_j36(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    daemon.execute("insert into drover.jobqueue (jq_type) select 'nobody' from generate_series(1, 20000)")
    daemon.execute("analyze drover.jobqueue, drover.claimable")
    plan = daemon.execute(
        """explain select jq_pk from drover.claimable join drover.jobqueue on jq_pk = claim_first
            where claim_type = 'a' and claim_queue = 'default' and claim_host = ''
            order by claim_rank, claim_queued, claim_first limit 10
              for no key update of jobqueue skip locked"""
    )
    assert "claimable_order" in " ".join(row["QUERY PLAN"] for row in plan)
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))


@pytest.mark.slow
def test_an_idle_daemon_sends_lease_statements_only_t1(launch: Launch, record: Path) -> None:
    timers = "[scheduler]\nlease = 30\nlease_renewal = 0.2\nstatus_interval = 3600\n"
    daemon = launch(timers + HOST + agent("a", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))

    def others() -> list[object]:
        """Return what was asked during thirty renewals, six seconds: counters are saved again after five."""
        before = statements(daemon)
        watch = [query for query in renew(daemon, 30) if "renew" not in query and "group_lease_until" not in query]
        return watch + [asked for asked in statements(daemon) if asked not in before]

    daemon.until(lambda: not others())  # the job is counted, and a probe of LISTEN came between two renewals
    assert others() == []


def statements(daemon: Daemon) -> list[dict[str, Any]]:
    """Return when each connection but the lease's was asked something last."""
    return daemon.execute(
        """select application_name, query_start, query from pg_stat_activity
            where datname = current_database() and usename like 'drover%%' and application_name <> 'drover lease'
            order by 1, 2"""
    )


def renew(daemon: Daemon, count: int) -> set[str]:
    """Wait for so many renewals of the lease; what the lease connection was seen to ask meanwhile."""
    query = """select query from pg_stat_activity
                where datname = current_database() and application_name = 'drover lease'"""
    leases: set[object] = set()
    queries: set[str] = set()

    def look() -> bool:
        leases.add(daemon.value("select group_lease_until from drover.scheduler_group"))
        queries.add(daemon.value(query))
        return len(leases) > count

    daemon.until(look)
    return queries


def test_a_claim_takes_at_most_the_configured_number_of_rows_f169(launch: Launch, record: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    daemon = launch("[scheduler]\nfetch_limit = 3\n" + HOST + agent("a", rec(record), slots=4))
    jobs = [{"jq_type": "a", "jq_args": f"gate:{gate}", "jq_unique_key": str(n)} for n in range(20)]
    pks = daemon.insert_all(jobs)  # with a key, so that the claim itself writes when it was
    daemon.until(lambda: len(lines(record)) == 4)
    starts = daemon.execute("select count(*) from drover.jobqueue where jq_starttime is not null group by jq_starttime")
    assert max(row["count"] for row in starts) <= 3
    gate.touch()
    daemon.wait_all(pks)


@pytest.mark.slow
def test_statements_are_counted_by_name_t4(launch: Launch, record: Path) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.2\n" + HOST + agent("a", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    daemon.until(lambda: "renew_lease" in counted(daemon))
    assert counted(daemon)["end_and_claim"]["count"] >= 1
    assert counted(daemon)["end_and_claim"]["max_ms"] > 0


def counted(daemon: Daemon) -> dict[str, dict[str, float]]:
    told: dict[str, dict[str, float]] = daemon.vitals()["statements"]
    return told


# ---- lost connections


@pytest.mark.parametrize("name", ["queue", "watch"])
def test_a_job_inserted_while_a_connection_is_lost_runs_after_reconnect_t5(
    launch: Launch, record: Path, name: str
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="before"))
    cut(daemon, name)
    daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
    assert lines(record) == ["before", "after"]
    assert f"{name} connection" in daemon.stderr()


def test_work_in_hand_survives_the_loss_of_every_connection_t5(launch: Launch, record: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    daemon = launch(HOST + agent("a", rec(record)))
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    query = f"select n, 'gate:{gate}' as act from generate_series(1, 20) n"
    other = daemon.insert(jq_type="a", jq_args=query, jq_msq=True)
    daemon.wait(pk, "running")
    cut(daemon, "%")
    gate.touch()
    rows = daemon.wait_all([pk, other])
    assert [row["jq_itemsprocessed"] for row in rows] == [1, 20]
    assert lines(record).count(f"gate:{gate}") == 1


def cut(daemon: Daemon, name: str) -> None:
    """End the daemon's connection(s) of this name, as a broken network would."""
    with psycopg.connect(daemon.database, autocommit=True) as connection:
        connection.execute(
            """select pg_terminate_backend(pid, 5000) from pg_stat_activity
                where datname = current_database() and application_name like %s""",
            [f"drover {name}"],
        )


# ---- a program that waits


@pytest.mark.slow
def test_the_example_of_the_manual_queues_a_job_and_gets_its_end_j130(launch: Launch) -> None:
    daemon = launch(HOST + agent("sha256", ["drover-agent-sha256"]))
    manual = (Path(__file__).parents[2] / "man" / "drover-jobqueue.7").read_text()
    _, _, after = manual.partition(".Ss A program that waits\n")
    _, _, block = after.partition(".Bd -literal -offset Ds\n")
    program = block.partition("\n.Ed")[0]
    front = make_conninfo(daemon.database, user="drover_frontend")
    assert "service=drover" in program
    code = program.replace("service=drover", front)
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    assert told.startswith("done all data processed")
