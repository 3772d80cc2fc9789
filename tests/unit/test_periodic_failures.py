"""What periodic tasks are for is done and counted, though their statements fail or find rows locked."""

from typing import Any

import pytest

from scheduler.daemon.periodic_tasks import DAY_S
from scheduler.model import events_and_effects as e
from scheduler.model.config import Host, Scheduler
from tests.core_tools import claim, make_core, ready
from tests.fakes import LOST, Answer, Site, refused

FAILURES = [refused(), refused("55P03"), LOST]
EVERY: dict[str, str] = {  # a statement, and the one that follows it in its task
    "read_commands": "close_commands", "close_runs": "close_commands", "read_shared_settings": "install_routes",
    "due": "due", "read_start_conditions": "read_recovery", "read_recovery": "read_recovery",
    "queue_deliveries": "queue_deliveries", "rescan": "find_alerts", "find_unserved": "find_alerts",
    "find_alerts": "find_alerts", "rescue": "rescue", "remove_dead": "remove_dead", "read_site": "read_kept",
    "read_kept": "read_kept", "show_status": "show_agents", "show_agents": "show_agents", "count": "add_up_changes",
    "add_up_changes": "add_up_changes", "fold_tally": "fold_tally", "find_suspects": "find_suspects",
}  # fmt: skip


def site_of(**timers: Any) -> Site:
    return Site(make_core(**timers))


def reports(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Return the lines of the log that contain a word."""
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("query", EVERY)
def test_a_task_whose_statement_fails_is_done_at_the_next_rescan(query: str, answer: Exception) -> None:
    site = site_of()
    site.answer(query, *[answer] * 2)
    while len(site.sent(query)) < 2:
        site.run(1.0)
    done = len(site.sent(EVERY[query]))
    site.run(130.0)
    assert len(site.sent(EVERY[query])) > done


@pytest.mark.parametrize("answer", FAILURES)
def test_what_was_counted_is_written_down_though_the_statement_fails(answer: Exception) -> None:
    site = site_of()
    site.run(1.0)
    site.answer("count", answer)
    site.counted = {("jobs", "done"): 3}
    site.run(70.0)
    first, again = [each for each in site.sent("count") if b"3" in each.values["rows"]]
    assert first.values == again.values


@pytest.mark.parametrize("answer", FAILURES)
def test_rows_due_are_released_though_the_statement_fails(answer: Exception) -> None:
    site = site_of()
    site.answer("due", answer, [(3, "1,2", None)])
    site.run(70.0)
    assert [pk for pk in (1, 2) if pk in site.core.state.outbox.parents] == [1, 2]


def test_rows_due_that_are_locked_are_looked_at_every_second() -> None:
    site = site_of()
    site.answer("due", [(0, None, 0.0)], [(0, None, -1.0)], [(2, None, None)])
    site.run(10.0)
    assert [each.at for each in site.sent("due")] == pytest.approx([0.0, 1.0, 2.0])


def test_rows_due_that_are_many_are_released_at_once() -> None:
    site = site_of()
    site.answer("due", [(1000, None, 0.0)], [(1000, None, 0.0)])
    site.run(10.0)
    assert [each.at for each in site.sent("due")] == pytest.approx([0.0, 0.2, 0.4])


def test_rows_given_back_late_since_they_were_locked_are_given_back_a_moment_later() -> None:
    site = site_of()
    site.answer("rescue", [(0, None, True, 0)], [(2, "5", False, 0)])
    site.run(15.0)
    assert [each.at for each in site.sent("rescue")] == [10.0, 11.0]
    assert site.core.state.outbox.parents.count(5) == 1


@pytest.mark.parametrize("answer", FAILURES)
def test_rescue_of_a_rescan_that_failed_is_asked_again_and_goes_on(answer: Exception) -> None:
    site = site_of()
    site.run(100.0)
    site.answer("rescue", answer, [(2, None, False, 0)])
    site.run(200.0)
    assert len(site.sent("rescue")) >= 3


@pytest.mark.parametrize("answer", FAILURES)
def test_deliveries_that_are_due_are_queued_though_the_statement_fails(
    answer: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of()
    site.answer("queue_deliveries", answer, [(2, 1, 30.0)])
    with caplog.at_level("DEBUG"):
        site.run(95.0)
    assert reports(caplog, "deliveries") == [
        "deliveries of events given up: 2; see drover events --dead",
        "deliveries of events queued: 1",
    ]
    assert len(site.sent("queue_deliveries")) >= 3


@pytest.mark.parametrize("answer", FAILURES)
def test_a_host_that_went_down_is_shown_so_though_the_statement_fails(answer: Exception) -> None:
    site = Site(make_core(hosts={"far": Host(transport="ssh", address="far")}))
    site.run(5.0)
    site.answer("show_hosts", answer)
    site.core.handle(e.HostDown("far", "no route", 5.0), site.now)
    site.run(3.0)
    first, again = [each.at for each in site.sent("show_hosts") if b"no route" in each.values["rows"]]
    assert again == pytest.approx(first + 1.0)


@pytest.mark.parametrize("answer", FAILURES)
def test_starts_of_a_queue_with_a_rate_limit_are_shown_though_the_statement_fails(answer: Exception) -> None:
    """The daemon that serves the group next goes by them."""
    site = site_of()
    rate = {"interval": 600.0, "rate": 5}
    queue = {"name": "default", "concurrency": None, "paused": False, "reserved": 0, "rate": rate}
    site.answers["read_shared_settings"] = lambda _: [([queue], [], [{"type": "sha", "enabled": True}], [], [], None)]
    site.run(5.0)
    ready(site.core, claim(1), now=site.now)
    site.answer("show_starts", answer)
    site.run(100.0)
    rows = [each.values["rows"] for each in site.sent("show_starts")]
    assert len(rows) == 2
    assert b'"queue":"default"' in rows[1]


# ---- jobs that a rate limit of before put off


def put_off(site: Site, since: str = "2026-01-01 00:00:00+00") -> None:
    """Let a queue have another rate limit since an instant; a notification tells of it."""
    queue = {"name": "default", "concurrency": None, "paused": False, "reserved": 0, "rate_changed": since}
    site.answers["read_shared_settings"] = lambda _: [([queue], [], [], [], [], None)]
    site.answers["put_off_is_free"] = lambda _: queue.update(rate_changed=None) or []
    site.tasks.bring_forward("tables")


NEXT = "2026-02-01 00:00:00+00"


def pages(site: Site) -> list[str]:
    return [each.values["after"] for each in site.sent("free_put_off")]


@pytest.mark.parametrize("answer", FAILURES)
def test_jobs_put_off_are_freed_from_the_page_on_whose_statement_fails(answer: Exception) -> None:
    site = site_of()
    put_off(site)
    site.answer("free_put_off", [(5, 5, NEXT)], answer, [(5, 5, None)])
    site.run(90.0)
    assert pages(site)[:3] == ["-infinity", NEXT, NEXT]
    assert len(site.sent("put_off_is_free")) == 1


def test_a_page_with_locked_rows_is_read_again_before_the_next_one() -> None:
    site = site_of()
    put_off(site)
    site.answer("free_put_off", [(3, 5, NEXT)], [(2, 2, NEXT)])
    site.run(20.0)
    assert pages(site)[:3] == ["-infinity", "-infinity", NEXT]
    assert site.sent("free_put_off")[1].at == pytest.approx(1.0)


def test_a_queue_is_done_when_a_pass_found_none_that_began_after_all_was_saved() -> None:
    """The queue connection may still save a job that the limit of before put off."""
    site = site_of()
    put_off(site)
    site.answer("free_put_off", [(0, 0, None)], [(1, 1, None)])
    site.run(30.0)
    begun = [each.at for each in site.sent("free_put_off")]
    assert begun[:2] == pytest.approx([0.0, 5.0])
    assert len(begun) == 3
    assert site.sent("put_off_is_free")[0].at == begun[2]


def test_a_limit_that_changes_again_while_a_page_is_read_begins_anew() -> None:
    site = site_of()
    put_off(site)
    site.answer("free_put_off", [(5, 5, NEXT)])
    site.run(0.01)
    put_off(site, "2026-03-01 00:00:00+00")
    site.run(30.0)
    assert pages(site)[:2] == ["-infinity", "-infinity"]
    assert [each.values["changed"] for each in site.sent("put_off_is_free")] == ["2026-03-01 00:00:00+00"]


# ---- what is long over


def piece(removed: int, stage: str | None, kept: int = 0, why: str | None = None) -> Answer:
    return [(removed, stage, 0, kept, "7" if kept else "", why)]


@pytest.mark.parametrize("answer", FAILURES)
def test_what_is_long_over_is_removed_though_a_statement_fails(
    answer: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of(retention_done=9)
    site.answer("flush", piece(1000, "jobs"), answer, piece(10, "groups"), piece(1, "log"), piece(2, None))
    with caplog.at_level("INFO"):
        site.run(70.0)
    line = "older than 9 days: removed 1010 jobs, 1 job groups, 2 log lines about no job"
    assert reports(caplog, "removed") == [line]
    assert [each.values["stage"] for each in site.sent("flush")] == ["jobs", "jobs", "jobs", "groups", "log"]


def test_a_pass_over_what_is_long_over_comes_once_a_day_and_anew_with_another_age() -> None:
    site = site_of(retention_done=9, rescan=3600.0, status_interval=3600.0)
    site.answers["find_suspects"] = lambda _: [(False,)]
    site.run(10.0)
    assert len(site.sent("flush")) == 1
    site.tasks.set_timers(Scheduler(retention_done=1))
    site.run(10.0)
    assert [each.values["days"] for each in site.sent("flush")] == [b'{"done":9}', b'{"done":1}']


def test_rows_that_the_database_refuses_to_remove_are_told_of_once_and_the_others_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = site_of(retention_done=9)
    site.answer("flush", piece(900, "jobs", 1, "a foreign key"), piece(9, "jobs", 2, "another"), piece(5, None))
    with caplog.at_level("INFO"):
        site.run(10.0)
    assert [each.values["most"] for each in site.sent("flush")] == [1000, 100, 100]
    (line,) = reports(caplog, "removed")
    assert line.endswith("; the database refuses to remove 3 jobs, such as 7: a foreign key")


def test_a_pass_that_ended_is_made_again_after_a_day() -> None:
    site = site_of(retention_done=9, rescan=DAY_S, status_interval=DAY_S)
    site.answers["find_suspects"] = lambda _: [(False,)]
    site.run(10.0)
    site.tasks.stop()
    site.tasks.bring_forward("flush")
    site.run(DAY_S + 60.0)
    assert [each.at // DAY_S for each in site.sent("flush")] == [0, 0, 1]


# ---- passes over tables that all groups share


@pytest.mark.parametrize("answer", FAILURES)
def test_a_pass_over_parents_goes_on_where_it_was_though_a_statement_fails(answer: Exception) -> None:
    site = site_of()
    site.answer("rescan", [("1", 400)], answer, [("2", None)])
    site.run(190.0)
    assert [each.values["beyond"] for each in site.sent("rescan")][:3] == [0, 400, 400]
    assert set(site.core.state.outbox.parents) == {1, 2}


def test_a_queue_that_does_not_exist_is_warned_of_once_as_long_as_jobs_wait_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = site_of()
    site.answers["find_unserved"] = lambda _: [(0, {"far": 3}, None, None)]
    site.run(130.0)
    site.answers["find_unserved"] = lambda _: [(0, {}, None, None)]
    site.run(60.0)
    site.answers["find_unserved"] = lambda _: [(2, {"far": 1}, None, None)]
    site.run(60.0)
    assert [line[:54] for line in reports(caplog, "no queue")] == [
        "no queue 'far', in which jobs wait: 3; add it to the c",
        "no queue 'far', in which jobs wait: 1; add it to the c",
    ]
    assert len(reports(caplog, "that no scheduler takes: 2")) == 1


def test_jobs_in_queues_that_do_not_exist_are_added_up_over_the_pieces_of_a_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = site_of()
    site.answer("find_unserved", [(0, {"far": 3}, "a", "far")], refused(), [(0, {"far": 4}, None, None)])
    site.run(190.0)
    assert [each.values["queue"] for each in site.sent("find_unserved")][:3] == ["", "far", "far"]
    assert reports(caplog, "no queue")[0].startswith("no queue 'far', in which jobs wait: 7;")
