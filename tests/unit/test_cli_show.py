"""What `drover show` says of a job, from its facts; and what the command line takes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.cli.output import Table
from scheduler.cli.parser import parse
from scheduler.cli.show import fields, shortened, without_empty

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
FACTS: dict[str, Any] = {
    "job": 7, "name": None, "type": "sha256", "state": "done", "code": "normal", "text": "", "args": "/etc/hosts",
    "variables": None, "query": False, "tolerate": 0, "mode": "background", "queue": "default", "urgent": False,
    "priority": "n", "host": None, "run_host": "alpha", "run_pid": 12, "group": None, "group_name": None,
    "submitter": "web", "resubmit_of": None, "unique_key": None, "delete": None, "not_before": None,
    "not_after": None, "timeout": None, "retries": 0, "failures": 0, "max_interruptions": 3, "interruptions": 0,
    "rescued": 0, "queued": NOON, "start": NOON + timedelta(seconds=3), "end": NOON + timedelta(seconds=10),
    "expected_end": None, "waited": timedelta(seconds=3), "ran": timedelta(seconds=7), "waited_for_agent": None,
    "processed": 1, "failed": 0,
    "total": 1, "progress": None, "exit_code": None, "signal": None, "result": None,
}  # fmt: skip


def said(field: str, **changes: Any) -> str | None:
    """Return what is said of a job under this name, or None."""
    return dict(fields(FACTS | changes, "done: all data processed")).get(field)


def test_only_what_applies_is_said() -> None:
    names = [name for name, _ in fields(FACTS, "done")]
    assert names == ["job", "state", "why", "type", "args", "queue", "host", "submitter", "queued", "started", "ended"]


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("job", {"name": "sha256.a"}, "7 (sha256.a)"),
        ("state", {"state": "failed", "code": "exit_status"}, "failed (exit_status)"),
        ("state", {"state": "cancelled", "code": "cancelled"}, "cancelled"),
        ("type", {"query": True, "mode": "manual"}, "sha256, an SQL query, manual"),
        ("args", {"args": "a\nb\x1b[2J"}, r"a\nb\x1b[2J"),
        ("queue", {"urgent": True}, "default, urgent, priority n"),
        ("host", {}, "alpha, pid 12"),
        ("host", {"host": "alpha"}, "alpha, as asked, pid 12"),
        ("host", {"host": "beta", "run_host": None}, "beta, as asked"),
        ("group", {"group": 3, "group_name": "scan"}, "3 (scan)"),
        ("submitter", {"resubmit_of": 2}, "web (resubmit of 2)"),
        ("items", {}, None),
        ("items", {"query": True, "progress": "7 of 9 items, 5 failed"}, "7 of 9 items, 5 failed"),
        ("items", {"query": True, "progress": "7 of 9 items", "tolerate": 9}, "7 of 9 items (9 tolerated)"),
        ("limits", {"retries": 2, "failures": 1, "rescued": 1}, "1 of 2 retries used, rescued 1 times"),
        ("exit", {"exit_code": 0}, "0"),
        ("exit", {"signal": "SIGKILL"}, "- (SIGKILL)"),
        ("result", {"result": {"size": 1}}, '{"size": 1}'),
    ],
)
def test_each_fact_is_said_in_one_line(name: str, changes: dict[str, Any], text: str | None) -> None:
    assert said(name, **changes) == text


def test_times_say_how_long_it_waited_and_ran_c50() -> None:
    assert (said("started") or "").endswith(", waited 0:00:03")
    assert (said("ended") or "").endswith(", ran 0:00:07")


def test_columns_without_values_are_left_out_and_long_texts_are_cut() -> None:
    table = Table("", ("attempt", "signal", "reason"), [(1, None, "x" * 99), (2, "", "")])
    shown = without_empty(shortened(table))
    assert shown.columns == ("attempt", "reason")
    assert shown.rows[0][1] == "x" * 59 + "…"


@pytest.mark.parametrize("line", ["why", "why --json", "why 1 --all", "show", "items", "items 1 -n x"])
def test_show_items_and_why_need_a_job_or_all(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_why_takes_a_job_or_all() -> None:
    assert (parse(["why", "3"]).job, parse(["why", "--all"]).all) == (3, True)
