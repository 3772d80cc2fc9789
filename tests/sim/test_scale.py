"""Scale on paper, small: what the page on it says holds in the model, and what must not grow with a site does not."""

import pytest

from scheduler.model.config_reader import parse
from scheduler.policy.core import Core
from tests.sim import scale
from tests.sim.scale import ACTS, a_day, reached
from tests.sim.site import COSTS, Load, Shape, Site

FEW, MANY = Shape(2, 4, 2, 5), Shape(20, 4, 20, 5)  # slots: 40, 400
TYPES = Shape(2, 40, 2, 5)
MARGIN = 1.2


@pytest.mark.parametrize(("hosts", "slots"), [(100, 50), (64, 64)])
def test_the_simulated_site_has_as_many_hosts_and_agents_as_the_original_f153(hosts: int, slots: int) -> None:
    text = "".join(f"[hosts.h{n}]\nmax = {slots}\n" for n in range(hosts))
    config = parse([("drover.toml", f'{text}[agents.a]\ncommand = ["agent"]\nslots = {slots}\n')])
    core = Core(config)
    assert (len(core.state.hosts), len(core.state.slots.all)) == (hosts, hosts * slots)


def test_500_agents_work_at_once_under_one_daemon_t49() -> None:
    site = Site(Shape(1, 1, 1, 500), Load("jobs", 1000.0))
    site.warm()
    assert site.at_work == 500


def test_throughput_doubles_with_the_number_of_hosts_t10() -> None:
    one, two = (reached(Shape(hosts, 1, hosts, 8), Load("jobs", 1.0), 200) for hosts in (1, 2))
    assert two.rate >= 1.7 * one.rate


@pytest.mark.parametrize("what", ["rows", "jobs"])
def test_a_billion_items_a_day_leave_the_daemon_idle_most_of_the_time_c46(what: str) -> None:
    found = reached(Shape(4, 4, 4, 8), Load(what, 0.01), 3000)
    assert found.rate * scale.DAY_S >= scale.GOAL
    assert found.loop < 0.25
    assert found.queue < 0.5


def test_at_ten_thousand_agents_the_thread_is_the_bottleneck_not_the_database_c46() -> None:
    found = reached(Shape(10, 2, 10, 100), Load("rows", 0.01), 5000)
    assert found.loop > 0.95
    assert found.queue < 0.05


def test_a_row_of_a_query_writes_a_thousandth_of_what_a_job_writes_c46() -> None:
    assert 1000 * a_day("rows")["wal"] < a_day("jobs")["wal"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "most"),
    [
        ("job", 1.0),
        ("start of an agent", 5.0),
        ("turn, all agents at work", 10.0),
        ("row shown as running", 1.0),
        ("wake-up that finds nothing", 10.0),
        ("look while types have no room", 10.0),
        ("all slots and types shown", 10.0),
    ],
)
def test_no_cost_grows_faster_than_the_number_of_hosts_f153(act: str, most: float) -> None:
    assert ACTS[act](MANY) <= most * MARGIN * ACTS[act](FEW)


def test_types_without_capacity_visit_their_hosts_only_f119() -> None:
    act = ACTS["look while types have no room"]
    assert act(TYPES) <= 10 * MARGIN * act(FEW)


def test_jobs_within_their_time_limit_cost_nothing() -> None:
    assert ACTS["the same, jobs with a time limit"](MANY) == ACTS["turn, all agents at work"](MANY)


def test_every_cost_names_its_measurement_c46() -> None:
    assert all(cost.value > 0 and cost.source for cost in COSTS.values())


def test_the_report_begins_with_the_costs_c46() -> None:
    assert next(scale.tables()) == "what things take"
