"""Every metric: its name, what it means, and which columns of which statement of schema/metrics.sql it has.

Gauges say what is now. Counters and histograms of jobs and agents are sums of drover.counter, which outlive the
daemons; those with a label `scheduler` are of one process, and begin anew with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from scheduler.model import counters as c

Records = Sequence[Mapping[str, Any]]
COUNTERS: Final = "metric_counters"


class Column(NamedTuple):
    """A metric that is a column of a statement; other columns are its labels."""

    name: str
    help: str
    statement: str
    value: str
    labels: tuple[str, ...]
    is_counter: bool = False


SCHEDULER: Final = ("scheduler", "group")
COLUMNS: Final = (
    Column("drover_group_active", "Whether a scheduler serves the group.", "metric_groups", "active", ("group",)),
    Column("drover_group_lease_seconds", "Seconds until the lease of the group's scheduler ends.",
           "metric_groups", "lease", ("group",)),
    Column("drover_group_standbys", "Schedulers that would take the group over.",
           "metric_groups", "standbys", ("group",)),
    Column("drover_jobs", "Jobs that wait or are worked, by state: ready (could be claimed), waiting (for a time), "
           "blocked, in_hand.", "metric_jobs", "jobs", ("type", "queue", "state")),
    Column("drover_oldest_job_seconds", "Seconds since the oldest of these jobs was queued.",
           "metric_jobs", "age", ("type", "queue", "state")),
    Column("drover_blocked_jobs", "Jobs blocked on a condition.", "metric_blocked", "jobs", ("condition",)),
    Column("drover_queue_paused", "Whether the queue is paused.", "metric_queues", "paused", ("queue", "group")),
    Column("drover_queue_concurrency", "Jobs of the queue that may be worked at once; none is any number.",
           "metric_queues", "concurrency", ("queue", "group")),
    Column("drover_queue_max_length", "Jobs that may wait in the queue; none is any number.",
           "metric_queues", "length", ("queue", "group")),
    Column("drover_host_enabled", "Whether the host is enabled.", "metric_hosts", "enabled", ("host", "group")),
    Column("drover_host_up", "Whether the host is reached.", "metric_hosts", "up", ("host", "group")),
    Column("drover_host_down_seconds", "Seconds since the host could not be reached; 0 if it is.",
           "metric_hosts", "down_seconds", ("host", "group")),
    Column("drover_agent_type_enabled", "Whether the agent type is enabled.",
           "metric_types", "enabled", ("type", "group")),
    Column("drover_agent_type_failed", "Whether no agent of the type comes up.",
           "metric_types", "failed", ("type", "group")),
    Column("drover_slots", "Slots of the active schedulers, by the state of their agent.",
           "metric_slots", "slots", ("group", "host", "type", "state")),
    Column("drover_scheduler_info", "A scheduler that lives, and its version.",
           "metric_schedulers", "info", (*SCHEDULER, "version")),
    Column("drover_scheduler_start_time_seconds", "When the scheduler registered, in seconds since 1970.",
           "metric_schedulers", "started", SCHEDULER),
    Column("drover_scheduler_status_age_seconds", "Seconds since the scheduler wrote what follows of it.",
           "metric_schedulers", "age", SCHEDULER),
    Column("drover_scheduler_jobs", "Jobs that the scheduler has in hand.", "metric_schedulers", "jobs", SCHEDULER),
    Column("drover_scheduler_queries", "SQL jobs whose query is open.", "metric_schedulers", "expansions", SCHEDULER),
    Column("drover_scheduler_memory_bytes", "Resident memory of the scheduler.",
           "metric_schedulers", "memory", SCHEDULER),
    Column("drover_scheduler_cpu_seconds", "Processor time of the scheduler.",
           "metric_schedulers", "cpu", SCHEDULER, is_counter=True),
    Column("drover_scheduler_slow_turns", "Turns of the loop that took over 0.1 seconds.",
           "metric_schedulers", "slow_turns", SCHEDULER, is_counter=True),
    Column("drover_scheduler_loop_lag_seconds", "The longest turn of the loop in the last status_interval: for so long "
           "an event waits at most.", "metric_schedulers", "recent_turn", SCHEDULER),
    Column("drover_scheduler_longest_turn_seconds", "The longest turn of the loop since the start.",
           "metric_schedulers", "longest_turn", SCHEDULER),
    Column("drover_scheduler_failed_connections", "Connections that the scheduler cannot make.",
           "metric_schedulers", "troubles", SCHEDULER),
    Column("drover_scheduler_refused", "Whether the database refuses statements of the scheduler.",
           "metric_schedulers", "refused", SCHEDULER),
    Column("drover_statement_calls", "Statements of the scheduler that were answered, by name.",
           "metric_statements", "calls", (*SCHEDULER, "statement"), is_counter=True),
    Column("drover_statement_seconds", "Time from a statement to its answer, in all.",
           "metric_statements", "seconds", (*SCHEDULER, "statement"), is_counter=True),
    Column("drover_statement_longest_seconds", "The longest time from a statement to its answer since the start.",
           "metric_statements", "longest", (*SCHEDULER, "statement")),
    Column("drover_table_rows", "Rows of the table, as the server estimates them.",
           "metric_tables", "live", ("table",)),
    Column("drover_table_dead_rows", "Dead rows of the table, as the server estimates them.",
           "metric_tables", "dead", ("table",)),
    Column("drover_database_bytes", "Size of the database on disk.", "metric_database", "bytes", ()),
    Column("drover_notification_queue_usage", "How full the server's queue of notifications is, from 0 to 1.",
           "metric_database", "notifications", ()),
)  # fmt: skip
OF_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    c.ENDED: ("drover_jobs_ended", "Jobs that have ended, by state and end code; see OUTCOMES in drover-jobqueue(7)."),
    c.SPAWNED: ("drover_agent_spawns", "Processes of agents that were started."),
    c.DIED: ("drover_agent_deaths", "Processes of agents that have ended: died by themselves, asked by the scheduler, "
             "exited (commands), lost with their host, not started."),
    c.WORKED: ("drover_agent_seconds", "Time that agents have worked on jobs."),
    c.SENT: ("drover_agent_sent_bytes", "Bytes written to agents."),
    c.RECEIVED: ("drover_agent_received_bytes", "Bytes read from agents."),
}  # fmt: skip
OF_TIMES: Final[Mapping[str, tuple[str, str]]] = {
    c.WAITED: ("drover_job_wait_seconds", "Time from jq_queued to the first claim of a job."),
    c.RAN: ("drover_job_run_seconds", "Time that a job was in hand until it ended, all slices of a query together."),
}
STATEMENTS: Final = (*dict.fromkeys(column.statement for column in COLUMNS), COUNTERS)


def families(read: Mapping[str, Records]) -> Iterator[Metric]:
    """Yield every metric, from what each of STATEMENTS returned."""
    for column in COLUMNS:
        yield _of_column(column, read[column.statement])
    sums: dict[str, dict[tuple[str, ...], float]] = {}
    for row in read[COUNTERS]:
        sums.setdefault(row["counter_name"], {})[tuple(row["counter_labels"])] = row["counter_value"]
    for name, (metric, help) in OF_COUNTERS.items():
        counter = CounterMetricFamily(metric, help, labels=c.LABELS[name])
        for labels, value in sums.get(name, {}).items():
            counter.add_metric(labels, value)
        yield counter
    for name, (metric, help) in OF_TIMES.items():
        yield _of_times(metric, help, sums.get(name, {}), sums.get(f"{name}_seconds", {}))


def _of_column(column: Column, records: Records) -> Metric:
    kind = CounterMetricFamily if column.is_counter else GaugeMetricFamily
    family = kind(column.name, column.help, labels=column.labels)
    for record in records:
        if (value := record[column.value]) is not None:
            family.add_metric([str(record[label]) for label in column.labels], float(value))
    return family


def _of_times(
    name: str, help: str, counts: Mapping[tuple[str, ...], float], sums: Mapping[tuple[str, ...], float]
) -> Metric:
    """Return a histogram; buckets of other versions of the program are added to its next larger ones."""
    family = HistogramMetricFamily(name, help, labels=("type",))
    for type in dict.fromkeys(type for type, _ in counts):
        own = sorted((float(bucket), count) for (other, bucket), count in counts.items() if other == type)
        buckets = [(bucket, sum(count for bound, count in own if bound <= float(bucket))) for bucket in c.BUCKETS]
        family.add_metric((type,), buckets, sums.get((type,), 0.0))
    return family
