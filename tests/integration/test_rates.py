"""Rate limits of queues under the real daemon: how many jobs start, what `why` says, and that a restart keeps count."""

import json
import time
from hashlib import sha256
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import LOCAL, puppet, rows
from tests.integration.test_commands import told
from tests.integration.test_reload import reload

LONG_S = 1000


def limited(**keys: object) -> str:
    """Return a configuration with a queue that has these limits."""
    values = {"rate_interval": LONG_S} | keys
    queue = "".join(f"{key} = {value!r}\n" for key, value in values.items())
    return LOCAL + puppet(slots=4) + f"[queues.q]\n{queue}"


def queue(daemon: Daemon, *, role: str = "drover_frontend", **columns: object) -> int:
    """Queue a job that does nothing."""
    return daemon.insert(jq_type="puppet", jq_args="true", role=role, **{"jq_queue": "q", **columns})


def states(daemon: Daemon, *pks: int) -> list[str]:
    return [daemon.value("select jq_state::text from drover.jobqueue where jq_pk = %s", pk) for pk in pks]


def noted(daemon: Daemon, value: str = "") -> bool:
    """Return whether a start is written down, so that another daemon knows of it."""
    query = "select count(*) from drover.queue_start where start_value = %s"
    return bool(daemon.value(query, value))


@pytest.mark.slow
def test_jobs_of_a_queue_start_no_faster_than_its_rate(launch: Launch) -> None:
    daemon = launch(limited(rate=2, rate_interval=1.0))
    began = time.monotonic()
    daemon.wait_all([queue(daemon) for _ in range(6)])
    assert time.monotonic() - began >= 2.0


@pytest.mark.slow
def test_why_says_when_the_next_job_of_a_full_rate_starts_c25(launch: Launch) -> None:
    daemon = launch(limited(rate=1))
    first, second = queue(daemon), queue(daemon)
    daemon.wait_all([first])
    daemon.until(lambda: daemon.why(second).startswith("rate limit of queue q: 1 starts in 1000 s, next at 20"))
    assert states(daemon, second) == ["queued"]


def test_other_queues_go_on_beside_a_full_rate(launch: Launch) -> None:
    daemon = launch(limited(rate=1))
    daemon.wait_all([queue(daemon)])
    late = queue(daemon)
    daemon.wait_all([queue(daemon, jq_queue="default") for _ in range(3)])
    assert states(daemon, late) == ["queued"]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_started_before_a_restart_counts(launch: Launch, is_killed: bool) -> None:
    daemon = launch(limited(rate=1))
    daemon.wait_all([queue(daemon)])
    daemon.until(lambda: noted(daemon))
    daemon.stop(SIGKILL if is_killed else SIGTERM)
    again = launch(limited(rate=1))
    late = queue(again)
    again.wait_all([queue(again, jq_queue="default")])
    assert states(again, late) == ["queued"]


@pytest.mark.parametrize(
    ("by", "full", "other"),
    [
        ("submitter", {}, {"role": "drover_frontend_sql"}),
        ("data.kind", {"jq_variables": '{"kind": "a"}'}, {"jq_variables": '{"kind": "b"}'}),
        ("type", {}, {"jq_queue": "default"}),
    ],
)
def test_each_value_of_an_attribute_has_a_rate_of_its_own_t57(
    launch: Launch, by: str, full: dict[str, object], other: dict[str, object]
) -> None:
    daemon = launch(limited(rate_each=1, rate_by=by))
    daemon.wait_all([queue(daemon, **full)])
    late = queue(daemon, **full)
    daemon.wait_all([queue(daemon, **other)])
    daemon.until(lambda: "rate limit of queue q: 1 starts in 1000 s with" in daemon.why(late))
    daemon.execute(
        "insert into drover.queue_start values ('q', '', '{}', now() + interval '1 h') on conflict do nothing"
    )
    says = daemon.execute("select says from drover.rate_limited where jq_pk = %s", late)
    assert all(f"1 starts in 1000 s with one {by}, next at" in row["says"] for row in says)
    assert daemon.why(late).startswith("waits until 20")
    assert states(daemon, late) == ["queued"]


@pytest.mark.slow
def test_a_value_of_any_length_has_a_rate_and_starts_are_written_down_t57(launch: Launch) -> None:
    daemon = launch(limited(rate_each=1, rate_by="data.kind"))
    words = "".join(sha256(bytes([n])).hexdigest() for n in range(200))  # no index takes that
    full = {"jq_variables": json.dumps({"kind": words})}
    daemon.wait_all([queue(daemon, **full)])
    late = queue(daemon, **full)
    daemon.until(lambda: daemon.value("select count(*) from drover.queue_start where start_value <> ''") == 1)
    daemon.until(lambda: f"1 starts in 1000 s with data.kind '{words[:24]}..." in daemon.why(late))
    assert "refuses" not in daemon.stderr()


@pytest.mark.slow
def test_a_job_over_the_rate_of_its_submitter_starts_when_its_time_has_come(launch: Launch) -> None:
    daemon = launch(limited(rate_each=1, rate_by="submitter", rate_interval=0.5))
    began = time.monotonic()
    pks = [queue(daemon) for _ in range(4)]
    daemon.wait_all(pks)
    assert time.monotonic() - began >= 1.5
    assert daemon.value("select count(*) from drover.attempt where att_jq_fk = any (%s)", pks) == 4


@pytest.mark.slow
def test_a_rate_set_by_command_holds_at_once_and_over_a_restart_until_the_file_changes_it_t36(launch: Launch) -> None:
    text = LOCAL + puppet(slots=4) + "[queues.q]\n"
    daemon = launch(text)
    assert told(daemon, "set-rate q rate=1 rate_interval=1000") == "queue q: 1 starts in 1000 s"
    daemon.wait_all([queue(daemon)])
    late = queue(daemon)
    daemon.until(lambda: daemon.why(late).startswith("rate limit of queue q: 1 starts in 1000 s, next at 20"))
    daemon.stop()
    again = launch(text)
    again.until(lambda: again.why(late).startswith("rate limit of queue q"))
    assert told(again, "set-rate q rate_each=9 rate_by=type") == "queue q: 9 for each type in 60 s"
    again.wait_all([late])
    assert told(again, "set-rate q") == "queue q: no rate limit"
    kept = "select queue_rate from drover.queue where queue_name = 'q'"
    reload(again, limited(rate=3))
    assert again.value(kept) == {"rate": 3, "each": 0, "by": "", "interval": LONG_S}


def test_rows_of_a_query_keep_to_the_rate_of_their_type(launch: Launch, tmp_path: Path) -> None:
    times = tmp_path / "times"
    daemon = launch(LOCAL + rows("api", f"date +%s%N >>{times}", slots=2, item_rate=20))
    job = daemon.insert(jq_type="api", jq_args="select n from generate_series(1, 45) n", jq_msq=True)
    assert daemon.wait(job)["jq_itemsprocessed"] == 45
    at = sorted(int(line) / 1e9 for line in times.read_text().splitlines())
    assert max(sum(start <= each < start + 1 for each in at) for start in at) <= 20 + 2 + 2  # a burst, and two delays
