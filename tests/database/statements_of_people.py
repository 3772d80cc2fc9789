"""How each statement that is offered to people is run by tests of what it reads, and which ones are not looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from scheduler.cli.health import Limits
from scheduler.model.states import JOB_STATES

LOGINS: Final = ("owner", "masked", "own")  # who sees all, all but what jobs work on, or own jobs alone
SEES_ALL, SEES_OWN = LOGINS[:2], LOGINS[2:]
OF_JOB: Final = ("waiting", "unmet", "recorded", "marked", "ended", "blocked")  # the jobs that are asked about
SOME: Final = ("unmet", "recorded", "ended")


@dataclass(frozen=True, slots=True)
class Case:
    """A statement with its parameters; `jobs` are the kinds of jobs that it is asked about, one by one.

    `logins` are those that ask; `expecting_many` is whether it runs where many jobs are expected; `dear` says why it
    reads more beside more rows.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    jobs: Sequence[str] = ("",)
    logins: Sequence[str] = LOGINS
    expecting_many: bool = False
    dear: str = ""
    said: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.said}".strip()


USUAL: Final[Mapping[str, Any]] = {
    "limit": 50, "most": 50, "group": "default", "attempt": 0, "part": 0, "until_attempt": 2**31 - 1, "stream": "out",
    "deep": 12, "failure": 2, "offset": 0, "after": 0, "sort": "job", "with_hidden": True, "with_ended_commands": True,
    "with_commands": False, "states": list(JOB_STATES), "roles": ["drover_operator"], "name": "drover wait",
    "since": datetime.now(UTC) - timedelta(hours=1), "names": ["type1.none"], **asdict(Limits()),
}  # fmt: skip
READS_ALL: Final = "reads all jobs"
READS_WAITING: Final = "reads all jobs that wait"
READS_LOG: Final = "reads the log until a page is full"
READS_BLOCKED: Final = "reads all blocked jobs"

JOB: Final = [
    Case("job_reason", jobs=OF_JOB),
    *(Case(name, jobs=SOME) for name in (
        "job_facts", "job_attempts", "job_keepers", "job_parents", "job_children", "failed_items", "failure_reasons",
        "job_log", "job_exit", "job_attempt", "job_output", "job_has_ended", "job_outcome", "list_events",
        "list_deliveries", "list_dead_letters", "family", "end_of_output", "page_of_log", "log_rows",
    )),
]  # fmt: skip
JOBS: Final = [
    Case("jobs_by_number", jobs=SOME),
    Case("ended_or_blocked_jobs", jobs=SOME),
    Case("inactive_groups", jobs=SOME),
    Case("jobs_by_name"),
    Case("ended_in_vain", jobs=SOME),
    Case("jobs_in_hand"),
    Case("work_in_hand"),
    Case("top_jobs", logins=SEES_ALL),
    Case("top_jobs", logins=SEES_OWN, said="of one's own jobs", dear=READS_BLOCKED),
    Case("choose_jobs", dear=READS_ALL),
    Case("count_chosen", dear=READS_ALL),
    Case("count_by_kind"),
    Case("command_waits"),
    Case("waiting_counts"),
    Case("jobs_that_could_start"),
    Case("queue_in_short"),
    Case("count_jobs", {"since": None, "group": None}),
    Case(
        "count_jobs", {"since": None, "group": None, "text": "nothing is like this"}, said="with a text", dear=READS_ALL
    ),
    Case("reasons", dear=READS_WAITING),
]
LISTS: Final = [Case("list_jobs", jobs=SOME, expecting_many=True), Case("page_of_jobs", jobs=SOME, expecting_many=True)]
LOGS: Final = [
    Case("page_of_log", logins=SEES_ALL),
    Case("page_of_log", logins=SEES_OWN, said="of one's own jobs", dear=READS_LOG),
    Case("page_of_log", {"text": "nothing is like this"}, said="with a text", dear=READS_LOG),
    Case("log_rows", logins=SEES_ALL),
    Case("log_rows", logins=SEES_OWN, said="of one's own jobs", dear=READS_LOG),
    Case("list_events"),
    Case("list_deliveries"),
    Case("list_dead_letters"),
    Case("error_stats", logins=SEES_ALL),
    Case("error_stats", logins=SEES_OWN, said="of one's own jobs", dear=READS_LOG),
]
OVERVIEW: Final = [
    *(
        Case(name)
        for name in (
            "list_host", "list_agent", "list_schedule", "next_schedules", "list_subscriptions", "group_names", "group",
            "active_daemon", "schedulers", "slots", "detached_jobs", "statements", "programs_held_back",
            "no_more_agents", "statements_refused", "connections_failed", "processes_left", "server_replaced",
            "known_names", "known_values", "is_any_scheduler_active", "is_notify_served", "waiting_clients",
            "metric_groups", "metric_schedulers", "metric_statements", "metric_queues", "metric_hosts", "metric_types",
            "metric_slots", "metric_counters", "metric_tables", "metric_database", "agents_failed", "hosts_down",
            "dead_rows", "queue_scans", "slow_queries", "blocking_locks", "old_transactions", "prepared_transactions",
            "replicas_behind", "notify_queue_filling", "statistics_hidden", "settings_off", "site_additions",
            "filters_refused", "lost_roles", "site_objects", "site_stops",
            "tables_without_autovacuum", "server_facts", "list_queue",
            "queues", "unserved_types", "unknown_queues", "backlog", "metric_jobs", "failed_clean_ups",
            "stuck_clean_ups",
        )
    ),
    Case("no_scheduler", {"group": "idle"}),
    Case("metric_blocked", logins=SEES_ALL),
    Case("metric_blocked", logins=SEES_OWN, said="of one's own jobs", dear=READS_BLOCKED),
    Case("conditions", dear=READS_BLOCKED),
    Case("list_quota", logins=LOGINS[:1]),
    Case("impossible_rows"),
    Case("impossible_not_looked_for"),
    Case("ended_stats", logins=SEES_ALL),
    Case("ended_stats", logins=SEES_OWN, said="of one's own jobs", dear=READS_ALL),
    Case("recent_rates", logins=SEES_ALL),
    Case("recent_rates", logins=SEES_OWN, said="of one's own jobs", dear=READS_ALL),
    Case("failure_stats", logins=SEES_ALL),
    Case("failure_stats", logins=SEES_OWN, said="of one's own jobs", dear=READS_ALL),
    Case("history", logins=SEES_ALL),
    Case("history", logins=SEES_OWN, said="of one's own jobs"),
]  # fmt: skip
CASES: Final = [*JOB, *JOBS, *LISTS, *LOGS, *OVERVIEW]
# Settings of a session, what is asked of the role and the server alone, and what changes something.
NOT_LOOKED_AT: Final = {
    "access", "role", "allow_idle", "name_session", "read_only", "expect_many_jobs", "now", "use_plpgsql", "one_moment",
    "limit_statement", "missing_roles", "public_is_open", "may_register", "role_connection_limit", "notify_doctor",
    "is_operator", "limit_session", "be_visitor", "may_command", "may_submit", "flush_jobs", "add_dependencies",
    "set_up_job", "read_columns", "resubmit_jobs", "insert_commands", "answers", "add_schedule", "remove_schedule",
    "hide_job", "set_quota", "set_quota_most", "remove_quota", "unknown_of_quota",
    "subscribe", "unsubscribe", "enable_subscription", "disable_subscription", "post_event", "withdraw_commands",
    # parts of a page, which tests/database/test_job_lists.py looks at together
    "jobs_among", "jobs_in_zones", "newest_zone", "numbers_beside_zones", "numbers_in_groups", "words_of_jobs",
    "zones_of_jobs",
}  # fmt: skip
