"""Jobs and items that fail under the real daemon: second tries, tolerance, retries with back-off, time limits."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, Row, start
from tests.integration.puppets import LOCAL, Meeting, puppet, rows, settings, slots

TWENTY = "select i from generate_series(1, 20) i"
POISON = 'echo "$i $$" >>{record}; [ "$i" = 7 ] && exit 9; :'


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    text = (
        settings(retry_base=0.1)
        + LOCAL
        + puppet(slots=2)
        + rows("poisoned", POISON.format(record=record), slots=2)
        + rows("failing", f'echo "$i" >>{record}; [ "$i" -gt "$most" ] && echo FAIL too much')
        + rows("weak", f'echo "$i $$" >>{record}; [ "$i" = 7 ] && [ "$(grep -c ^7 {record})" = 1 ] && exit 9; :')
        + rows("hopeless", "echo FAIL always")
        + rows("sleepy", "sleep 1000")
    )
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Daemon:
    record.write_text("")
    return shared


def query(daemon: Daemon, kind: str, state: str, sql: str = TWENTY, **columns: Any) -> Row:
    return daemon.wait(daemon.insert(jq_type=kind, jq_args=sql, jq_msq=True, **columns), state)


def failures(daemon: Daemon, row: Row) -> list[Row]:
    return daemon.execute("select * from drover.item_failure where item_jq_fk = %s order by item_pk", row["jq_pk"])


def worked(record: Path) -> list[list[str]]:
    """Return what agents noted: the item, and the pid if they gave it."""
    return [line.split() for line in record.read_text().splitlines()]


# ---- items of a query


def test_an_item_that_kills_two_agents_is_recorded_and_all_others_are_done(daemon: Daemon, record: Path) -> None:
    row = query(daemon, "poisoned", "failed")
    (failure,) = failures(daemon, row)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_itemstotal"]) == (19, 1, 20)
    assert (row["jq_endtext"], row["jq_end_bits"]) == ("1 items failed, 0 tolerated", 2)
    why = daemon.value("select reason from drover.why where jq_pk = %s", row["jq_pk"])
    assert why == f"failed (items_failed): 1 items failed, 0 tolerated; the reason of each: drover items {row['jq_pk']}"
    assert (failure["item_line"], failure["item_agent"], failure["item_attempt"]) == ('i="7"', "poisoned", 1)
    assert failure["item_reason"] == "agent terminated prematurely, with exit status 9"
    assert Counter(item for item, _ in worked(record)) == Counter({str(i): 1 for i in range(1, 21)} | {"7": 2})


def test_the_second_try_is_alone_in_a_fresh_process(daemon: Daemon, record: Path) -> None:
    query(daemon, "poisoned", "failed")
    first, second = [pid for item, pid in worked(record) if item == "7"]
    assert first != second
    assert [item for item, pid in worked(record) if pid == second] == ["7"]


def test_a_successful_second_try_is_seen_in_the_log_only(daemon: Daemon) -> None:
    row = query(daemon, "weak", "done")
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_end_bits"]) == (20, 0, 1)
    assert failures(daemon, row) == []
    assert "agent terminated prematurely, with exit status 9" in daemon.log_text(row["jq_pk"])


def test_deaths_in_second_tries_and_after_finished_items_do_not_count(launch: Launch, record: Path) -> None:
    daemon = launch(settings(respawn_count=0) + LOCAL + rows("poisoned", POISON.format(record=record)))
    query(daemon, "poisoned", "failed")
    assert "ST_FAIL" not in daemon.stderr()


def test_fail_is_final_without_a_second_try(daemon: Daemon, record: Path) -> None:
    row = query(daemon, "failing", "failed", "select i, 18 as most from generate_series(1, 20) i")
    assert [failure["item_reason"] for failure in failures(daemon, row)] == ["too much", "too much"]
    assert len(worked(record)) == 20
    assert slots(daemon, "ST_READY", "failing")[0]["status_spawns"] == 1


@pytest.mark.parametrize(
    ("tolerate", "state", "bits"), [(2, "done", 5), (3, "done", 5), (1, "failed", 2), (0, "failed", 2)]
)
def test_as_many_items_may_fail_as_are_tolerated(daemon: Daemon, tolerate: int, state: str, bits: int) -> None:
    sql = "select i, 18 as most from generate_series(1, 20) i"
    row = query(daemon, "failing", state, sql, jq_tolerate=tolerate)
    assert (row["jq_end_bits"], row["jq_itemsprocessed"], row["jq_itemsfailed"]) == (bits, 18, 2)
    assert len(failures(daemon, row)) == 2


def test_a_repeating_job_without_a_success_fails_for_lack_of_progress(daemon: Daemon) -> None:
    row = query(daemon, "hopeless", "failed", "select 1 as i", jq_repeat=True, jq_tolerate=1000)
    assert row["jq_endtext"].startswith("no progress")
    assert row["jq_attempt"] == 1


def test_a_failed_item_of_a_keyed_job_is_recorded_by_its_key(daemon: Daemon) -> None:
    row = query(daemon, "poisoned", "failed", jq_key="i")
    assert [failure["item_key"] for failure in failures(daemon, row)] == ["7"]
    assert row["jq_checkpoint"]["watermark"] == "20"


def test_a_key_that_is_null_or_doubled_fails_the_job(daemon: Daemon) -> None:
    null = query(daemon, "weak", "failed", "select nullif(i, 3) as i from generate_series(1, 5) i", jq_key="i")
    twice = query(daemon, "weak", "failed", "select i / 2 as i from generate_series(2, 5) i", jq_key="i")
    assert null["jq_endtext"] == "the key column is NULL in a row: every row needs a key"
    assert twice["jq_endtext"] == "key '1' comes twice: keys must be unique"


# ---- a job as a whole


def test_a_failed_job_is_tried_again_while_it_has_retries(daemon: Daemon, record: Path) -> None:
    act = f"echo x >>{record}; [ $(wc -l <{record}) -lt 3 ] && echo FAIL not yet"
    row = daemon.wait(daemon.insert(jq_type="puppet", jq_args=act, jq_retries=5))
    assert (row["jq_failures"], row["jq_attempt"], row["jq_end_bits"]) == (2, 3, 1)
    assert [past["att_outcome"] for past in daemon.attempts(row["jq_pk"])] == ["retry", "retry", "done"]
    assert daemon.attempts(row["jq_pk"])[0]["att_reason"] == "not yet"


def test_without_retries_left_it_has_failed(daemon: Daemon) -> None:
    row = daemon.wait(daemon.insert(jq_type="puppet", jq_args="echo FAIL never", jq_retries=2), "failed")
    assert (row["jq_failures"], row["jq_attempt"], row["jq_endtext"]) == (3, 3, "never")
    assert [past["att_outcome"] for past in daemon.attempts(row["jq_pk"])] == ["retry", "retry", "failed"]


def test_a_job_that_fails_for_good_is_not_tried_again(daemon: Daemon, record: Path) -> None:
    act = f"echo x >>{record}; echo 'FAIL! not JSON'"
    row = daemon.wait(daemon.insert(jq_type="puppet", jq_args=act, jq_retries=5), "failed")
    assert (row["jq_failures"], row["jq_attempt"], row["jq_endtext"]) == (1, 1, "not JSON")
    assert worked(record) == [["x"]]


@pytest.mark.parametrize(("act", "gives_way"), [("exit 1", True), ("echo FAIL never", False)])
def test_a_job_that_ends_its_agent_twice_is_tried_again_behind_the_others(
    daemon: Daemon, act: str, gives_way: bool
) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=act, jq_retries=2, jq_mode="manual")
    queued = daemon.value("select jq_queued from drover.jobqueue where jq_pk = %s", job)
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", job)
    row = daemon.wait(job, "failed")
    assert (row["jq_attempt"], row["jq_queued"] > queued) == (3, gives_way)


@pytest.mark.slow
def test_the_delay_before_a_retry_doubles_with_jitter_and_is_shown(launch: Launch) -> None:
    daemon = launch(settings(retry_base=100, retry_max=150) + LOCAL + puppet())
    job = daemon.insert(jq_type="puppet", jq_args="echo FAIL once", jq_retries=3)
    daemon.until(lambda: has_failed(daemon, job, 1))
    first = waits(daemon, job)
    daemon.execute("update drover.jobqueue set jq_wait_until = now() where jq_pk = %s", job)
    daemon.until(lambda: has_failed(daemon, job, 2))
    assert 50 <= first <= 100
    assert 75 <= waits(daemon, job) <= 150
    assert daemon.why(job).startswith("waits until ")
    assert daemon.why(job).endswith(": once")


def has_failed(daemon: Daemon, job: int, times: int) -> bool:
    return [past["att_outcome"] for past in daemon.attempts(job)] == ["retry"] * times


def waits(daemon: Daemon, job: int) -> float:
    """Return the seconds between the end of the last attempt and the next."""
    query = """
        select extract(epoch from jq_retry_at - att_end)
          from drover.jobqueue join drover.attempt on att_jq_fk = jq_pk
         where jq_pk = %s order by att_attempt desc limit 1
    """
    return float(daemon.value(query, job))


def test_a_time_limit_kills_the_agent_and_fails_the_attempt(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; {meeting.wait}", jq_timeout="3 s")
    row = daemon.wait(job, "failed")
    assert (row["jq_endtext"], row["jq_failures"]) == ("timeout: ran longer than 3 s", 1)
    pid = meeting.hear()
    daemon.until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_time_limit_counts_running_time_not_waiting_time(daemon: Daemon, meeting: Meeting) -> None:
    blockers = [daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('up')}; {meeting.wait}") for _ in range(2)]
    meeting.hear_all(2)
    job = daemon.insert(jq_type="puppet", jq_args="sleep 0.1", jq_timeout="3 s")
    age = "select now() - jq_queued > interval '3.1 s' from drover.jobqueue where jq_pk = %s"
    daemon.until(lambda: daemon.value(age, job))
    meeting.let_go(2)
    assert daemon.wait(job)["jq_end_bits"] == 1
    daemon.wait_all(blockers)


def test_a_time_limit_bounds_a_query_too(daemon: Daemon) -> None:
    row = query(daemon, "sleepy", "failed", jq_timeout="0.3 s")
    assert row["jq_endtext"] == "timeout: ran longer than 0.3 s"


def test_a_death_fails_one_job_only(daemon: Daemon) -> None:
    dead = daemon.insert(jq_type="puppet", jq_args="exit 1")
    others = [daemon.insert(jq_type="puppet", jq_args=":") for _ in range(10)]
    assert daemon.wait(dead, "failed")["jq_failures"] == 1
    assert [row["jq_end_bits"] for row in daemon.wait_all(others)] == [1] * 10
