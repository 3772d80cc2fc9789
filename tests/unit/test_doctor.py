"""What `drover doctor` makes of the numbers of a machine and of a server."""

from resource import RLIM_INFINITY

import pytest

from scheduler.cli.database_checks import clock, room
from scheduler.cli.machine_checks import GIB, REACH_LIMIT_S, agents_at_once, memory, open_files, processes
from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.model.config import AgentType, Config, Host, Limits


@pytest.mark.parametrize(
    ("ahead_s", "doubt_s", "words"),
    [(0.0, 0.0, "ok"), (2.5, 1.0, "ok"), (-5.0, 0.1, "5.0 s behind"), (5.0, 0.1, "5.0 s ahead")],
)
def test_doctor_compares_clocks_as_exactly_as_the_answer_lets_it_t118(
    ahead_s: float, doubt_s: float, words: str
) -> None:
    assert words in " ".join(clock(ahead_s, doubt_s))


@pytest.mark.parametrize(("free", "severity"), [(12, "ok"), (11, "WARN")])
def test_doctor_counts_the_sessions_that_a_daemon_may_open(free: int, severity: str) -> None:
    assert room(12, free, 97)[0] == severity


@pytest.mark.parametrize(("limit", "severity"), [(104, "ok"), (103, "FAIL"), (RLIM_INFINITY, "ok")])
def test_doctor_counts_the_files_of_all_agents(limit: int, severity: str) -> None:
    assert open_files(10, limit)[0] == severity


@pytest.mark.parametrize(("limit", "severity"), [(11, "ok"), (10, "WARN"), (RLIM_INFINITY, "ok")])
def test_doctor_compares_agents_with_the_limit_of_processes(limit: int, severity: str) -> None:
    assert processes(10, limit)[0] == severity


@pytest.mark.parametrize(
    ("limits", "severity", "words"),
    [
        ([GIB, GIB], "ok", "2 agents at once may take 2.0 GiB by their limits"),
        ([GIB, None], "ok", "1 of them have none"),
        ([None, None], "ok", "GiB; 2 agents at once, none of them has a limit"),
        ([GIB, GIB, 1], "WARN", "lower limits.memory"),
    ],
)
def test_doctor_compares_limits_of_agents_with_the_memory(limits: list[int | None], severity: str, words: str) -> None:
    found = memory(limits, 2 * GIB)
    assert found[0] == severity
    assert words in found[1]


def test_full_host_is_taken_to_run_the_agents_that_may_take_most_memory() -> None:
    hosts = {"here": Host(max=1, urgent=1), "far": Host(transport="ssh"), "off": Host(enabled=False)}
    large = AgentType(command=("large",), slots=2, limits=Limits(memory=GIB))
    agents = {
        "small": AgentType(command=("small",), slots=9),
        "large": large,
        "gone": AgentType(command=("gone",), enabled=False, limits=Limits(memory=9 * GIB)),
    }
    assert agents_at_once(Config(hosts=hosts, agents=agents)) == [large, large]


def test_check_waits_for_a_host_as_long_as_an_attempt_of_the_daemon_may_take() -> None:
    assert SshSettings("far").attempt_s < REACH_LIMIT_S
