"""Tables [schedules.NAME]: what each queues, and what is refused when it is read."""

import pytest

from tests.config_tools import LEAST, good, mistakes

GRAPH = """
[schedules.s]
cron = "@daily"
[schedules.s.jobs.load]
type = "a"
args = "x"
[schedules.s.jobs.mail]
type = "a"
after = ["load"]
priority = "b"
"""


def test_a_schedule_queues_a_command_a_job_or_a_group() -> None:
    flush = good(LEAST + '[schedules.s]\ncron = "@daily"\ncommand = "flush 30"').schedules["s"]
    assert flush.job("s") == {"jq_type": "command", "jq_args": "flush 30"}
    one = good(LEAST + '[schedules.s]\nevery = 60\njobs.main = { type = "a", args = "x", sql = true }').schedules["s"]
    usual = {"jq_urgent": False, "jq_retries": 0}
    assert one.job("s") == {"jq_type": "a", "jq_args": "x", "jq_priority": "n", "jq_msq": True, **usual}
    found = good(LEAST + GRAPH).schedules["s"].job("s")
    assert found["group"] == {"job_name": "s"}
    assert found["jobs"] == [
        {"name": "load", "after": (), "jq_type": "a", "jq_args": "x", "jq_priority": "n", **usual},
        {"name": "mail", "after": ("load",), "jq_type": "a", "jq_priority": "b", **usual},
    ]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ('command = "poll"', "one of at, every and cron is required (given: none)"),
        ('every = 60\ncron = "@daily"\ncommand = "poll"', "(given: every and cron)"),
        ('cron = "61 * * * *"\ncommand = "poll"', "5: schedules.s.cron: '61 * * * *': wrong minute, which is 0-59"),
        ('cron = "0 0 30 2 *"\ncommand = "poll"', "never comes"),
        ('cron = "@daily"\nzone = "Mars/Base"\ncommand = "poll"', "6: schedules.s.zone: no time zone 'Mars/Base'"),
        ('at = "soon"\ncommand = "poll"', "5: schedules.s.at: no time 'soon'"),
        ('every = 0.5\ncommand = "poll"', "must be at least 1 second"),
        ('every = 60\njitter = 60\ncommand = "poll"', "6: schedules.s.jitter: must be less than every"),
        ("every = 60", "either command or jobs is required"),
        ('every = 60\ncommand = "poll"\njobs.m.type = "a"', "either command or jobs is required"),
        ('every = 60\ncommand = "fly 9"', "unknown command 'fly'"),
        ('every = 60\ncommand = "schedule-run s"', "a schedule runs no other one"),
        ('at = "1800-01-01"\ncommand = "poll"', "write one between the years 1900 and 9000"),
        ('every = 60\njobs.m.args = "x"', "must be the agent type"),
        ('every = 60\njobs.m = { type = "command", args = "poll" }', "must be the agent type"),
        ('every = 60\njobs.m = { type = "a", after = ["n"] }', "is no other job of the schedule"),
        ('every = 60\njobs.m = { type = "a", priority = "?" }', "a priority has letters and digits"),
        ('every = 60\ncatch_up = "some"\ncommand = "poll"', 'must be one of "one", "all", "none"'),
    ],
)
def test_what_could_never_start_is_a_mistake_with_its_line(keys: str, told: str) -> None:
    (mistake,) = mistakes(LEAST + "[schedules.s]\n" + keys)
    assert told in mistake
