"""Submitters of a fair type take turns under the real daemon: with their jobs, and with the items of SQL jobs."""

from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.integration.test_reload import reload

ONE_HOST = "[hosts.alpha]\n"
PAUSED = "[queues.default]\npaused = true\n"
SLOTS = 2
ANNA, BERT = "drover_frontend_sql", "drover_frontend"


def queue(daemon: Daemon, role: str, count: int) -> list[int]:
    """Queue jobs in one statement; their parameters begin with who queued them."""
    rows = daemon.execute(
        """insert into drover.jobqueue (jq_type, jq_args)
           select 'rec', session_user || ' ' || i from generate_series(1, %s) i returning jq_pk""",
        count,
        role=role,
    )
    return [row["jq_pk"] for row in rows]


def go_on(daemon: Daemon) -> None:
    daemon.execute("update drover.queue set queue_paused = false")


def whose(record: Path) -> list[str]:
    """Return who queued what was worked, in order."""
    return [line.split()[0] for line in lines(record)]


@pytest.mark.slow
@pytest.mark.parametrize(("fair", "before"), [(True, 10), (False, 1000)])
def test_ten_jobs_wait_behind_a_thousand_of_another_only_without_fair_turns(
    launch: Launch, record: Path, fair: bool, before: int
) -> None:
    daemon = launch(ONE_HOST + PAUSED + agent("rec", rec(record), fair=fair))
    jobs = queue(daemon, ANNA, 1000) + queue(daemon, BERT, 10)
    go_on(daemon)
    daemon.wait_all(jobs)
    order = whose(record)
    last = max(place for place, who in enumerate(order) if who == BERT)
    assert order[:last].count(ANNA) == before


@pytest.mark.slow
def test_a_late_submitter_waits_for_few_running_jobs_of_others(launch: Launch, record: Path) -> None:
    held = 40  # so few that no claim counts as slow, after which the next would go on behind the late ones for a while
    daemon = launch(ONE_HOST + agent("rec", rec(record), fair=True) + f"[scheduler]\nhold_max = {held}\n")
    jobs = queue(daemon, ANNA, 3000)
    daemon.until(lambda: len(lines(record)) > 100)
    jobs += queue(daemon, BERT, 5)
    came = len(lines(record))
    daemon.wait_all(jobs)
    assert whose(record)[: came + 5 * held].count(BERT) == 5


@pytest.mark.slow
def test_sql_jobs_of_one_submitter_share_one_turn(launch: Launch, record: Path) -> None:
    daemon = launch(ONE_HOST + PAUSED + agent("rec", rec(record), fair=True))
    rows = "select {} as who, i from generate_series(1, 200) i"
    jobs = [daemon.insert(role=ANNA, jq_type="rec", jq_msq=True, jq_args=rows.format("'anna'")) for _ in range(3)]
    jobs.append(daemon.insert(role="drover_operator", jq_type="rec", jq_msq=True, jq_args=rows.format("'oper'")))
    go_on(daemon)
    daemon.wait_all(jobs)
    order = [line.split('"')[1] for line in lines(record)]
    last = max(place for place, who in enumerate(order) if who == "oper")
    assert order[:last].count("anna") < 400  # 200, and what went before its query was open; else 600


@pytest.mark.slow
def test_a_type_stops_being_fair_when_no_job_waits_in_a_line(launch: Launch, record: Path) -> None:
    daemon = launch(ONE_HOST + PAUSED + agent("rec", rec(record), fair=True))
    jobs = queue(daemon, ANNA, 50)
    assert "rec(fair)" in reload(daemon, ONE_HOST + PAUSED + agent("rec", rec(record)))
    jobs += queue(daemon, BERT, 2)
    go_on(daemon)
    daemon.wait_all(jobs)
    assert whose(record)[:4] == [ANNA, BERT, ANNA, BERT]
    daemon.until(lambda: not daemon.value("select agent_fair from drover.agent"))
    daemon.wait_all(queue(daemon, ANNA, 1))


def test_fair_turns_apply_among_jobs_of_one_host(launch: Launch, record: Path) -> None:
    daemon = launch(ONE_HOST + PAUSED + agent("rec", rec(record), fair=True))
    many = [{"jq_type": "rec", "jq_args": f"{ANNA} {n}", "jq_host": "alpha"} for n in range(20)]
    jobs = daemon.insert_all(many, role=ANNA)
    jobs.append(daemon.insert(role=BERT, jq_type="rec", jq_args=BERT, jq_host="alpha"))
    go_on(daemon)
    daemon.wait_all(jobs)
    assert whose(record).index(BERT) == 1


@pytest.mark.slow
def test_jobs_of_a_fair_type_that_are_given_back_are_done_by_the_next_scheduler(launch: Launch, record: Path) -> None:
    text = ONE_HOST + agent("rec", rec(record), fair=True, slots=SLOTS)
    daemon = launch(text)
    queue(daemon, ANNA, 2000)
    daemon.until(lambda: lines(record))
    assert daemon.stop() == 0
    queue(daemon, BERT, 10)
    again = launch(text)
    again.until(lambda: again.value("select count(*) from drover.jobqueue where jq_state = 'done'") == 2010)
    assert again.value("select count(*) from drover.claimable") == 0
    assert len(set(lines(record))) == 2010
    assert len(lines(record)) <= 2010 + SLOTS  # what an agent was killed at is done again
