"""Which waiting jobs are blocked or failed since they cannot start, and when their conditions are over."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.policy.conditions import Answer, Condition, Policy, Release, Wait, decide
from scheduler.policy.core import Core
from scheduler.policy.unstartable_jobs import answered
from tests.core_tools import claim, make_core, saved, settle, spawned, turn

FAR = Host(transport="ssh", address="far")


def lost(core: Core, host: str = "far") -> None:
    core.handle(e.HostDown(host, "refused", 60.0), 1.0)


def make(policy: str, **hosts: Host) -> Core:
    """Return a core with one type of this policy on these hosts, or on one that is reached over SSH."""
    kind: dict[str, Any] = {"on_start_failure": policy}
    return make_core({"sha": AgentType(command=("agent",), **kind)}, hosts=hosts or {"far": FAR})


def stopped(core: Core) -> list[tuple[str, str, str]]:
    return [(each.host, each.state, each.text) for each in core.start_failures(2.0)]


def condition(name: str, **values: Any) -> Condition:
    return Condition(name, Policy(), values.pop("tries", 0), values.pop("came", 1), 0.0, has_jobs=True, **values)


def test_jobs_wait_where_their_type_says_nothing_else_c26() -> None:
    core = make("wait")
    lost(core)
    assert (stopped(core), core.has_start_policies) == ([], False)


def test_jobs_wait_while_a_host_is_reached_for_the_first_time_c26() -> None:
    assert stopped(make("fail")) == []


def test_the_policy_of_a_type_decides_what_becomes_of_jobs_of_a_lost_host_c25_c26() -> None:
    block, fail = make("block", far=FAR, here=Host()), make("fail", far=FAR, here=Host())
    lost(block)
    lost(fail)
    why = "host far cannot be reached: refused"
    assert stopped(block) == [("far", "blocked", f"blocked: host:far {why}")]
    assert stopped(fail) == [("far", "failed", f"agent 'sha': cannot start 'agent': {why}")]


def test_jobs_for_any_host_are_blocked_when_none_is_left_c26() -> None:
    core = make("block")
    lost(core)
    why = "host far cannot be reached: refused"
    assert stopped(core) == [
        ("", "blocked", f"blocked: agent:sha {why}"),
        ("far", "blocked", f"blocked: host:far {why}"),
    ]
    assert core.cleared_conditions() == []
    core.handle(e.HostUp("far"), 3.0)
    assert core.cleared_conditions() == ["agent:sha", "host:far"]
    assert core.cleared_conditions() == []


def test_the_waiting_jobs_of_a_type_that_cannot_start_go_back_and_no_others_c26() -> None:
    kinds = {
        "sha": AgentType(command=("agent",), slots=1, hosts=("far",), on_start_failure="block"),
        "md5": AgentType(command=("agent",), slots=1, hosts=("here",), on_start_failure="block"),
    }
    core = make_core(kinds, hosts={"far": FAR, "here": Host()})
    core.handle(e.HostUp("far"), 0.0)
    turn(core, claim(1), claim(2), claim(3, "md5"), claim(4, "md5"))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    lost(core)
    assert {(each.type, each.host) for each in core.start_failures(2.0)} == {("sha", ""), ("sha", "far")}
    back = {(row.pk, row.state, row.text) for row in saved(settle(core, 2.0)) if row.outcome}
    assert back == {(2, "queued", "no agent of its type can be started")}
    assert sorted(core.state.jobs) == [1, 3, 4]


def test_hosts_that_are_disabled_do_not_say_why_a_type_cannot_start_c26() -> None:
    core = make("block", far=FAR, near=FAR, off=FAR)
    for host in ("far", "near", "off"):
        lost(core, host)
    core.state.hosts["off"].configure(enabled=False)
    far, near = (f"host {name} cannot be reached: refused" for name in ("far", "near"))
    assert stopped(core) == [
        ("", "blocked", f"blocked: agent:sha {far}; {near}"),
        ("far", "blocked", f"blocked: host:far {far}"),
        ("near", "blocked", f"blocked: host:near {near}"),
    ]


def test_a_type_that_is_disabled_says_nothing_of_its_jobs_c26() -> None:
    core = make("block")
    lost(core)
    core.state.pools["sha"].set_may_begin(enabled=False)
    assert stopped(core) == []


def test_a_type_without_enabled_hosts_is_not_one_that_cannot_start_c26() -> None:
    core = make("fail")
    lost(core)
    core.state.hosts["far"].configure(enabled=False)
    assert stopped(core) == []


def test_jobs_of_a_failed_type_are_blocked_wherever_they_ask_for_c26() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1, on_start_failure="block")}, respawn_count=0)
    turn(core, claim(1))
    core.handle(e.NotCreated(*spawned(core), "no such program"), 1.0)
    assert [(host, text.split()[1]) for host, _, text in stopped(core)] == [("", "agent:sha"), ("alpha", "agent:sha")]
    assert core.cleared_conditions() == []


def test_no_rows_are_claimed_for_a_type_that_is_cut_off_c26() -> None:
    core = make("block")
    assert core.next_request(0.0) is None


@pytest.mark.parametrize(
    ("name", "is_down", "answer"),
    [
        ("host:far", True, Answer.STILL_THERE),
        ("host:far", False, Answer.CLEARED),
        ("host:gone", True, Answer.CLEARED),
        ("agent:sha", True, Answer.STILL_THERE),
        ("agent:gone", True, Answer.CLEARED),
        ("tape", True, Answer.NOT_ASKED),
    ],
)
def test_the_core_knows_whether_a_condition_of_starts_is_over_c26_t75(name: str, is_down: bool, answer: Answer) -> None:
    core = make("block")
    core.handle(e.HostUp("far"), 0.0)
    if is_down:
        lost(core)
    assert answered(core.state, condition(name)).answer is answer


def test_the_tester_of_a_policy_is_asked_in_place_of_the_core_c26_t80() -> None:
    seen = condition("host:far")
    seen = replace(seen, policy=Policy(tester="probe"))
    assert answered(make("block").state, seen) == seen


@pytest.mark.parametrize(
    "seen",
    [
        replace(condition("host:far"), policy=Policy(until="host other")),
        condition("host:far:disk"),
        condition("quota:few"),
    ],
)
def test_the_core_answers_for_no_condition_of_others_c26(seen: Condition) -> None:
    core = make("block")
    lost(core)
    assert answered(core.state, seen) == seen
    assert not core.state.start_conditions


def test_a_condition_that_was_checked_is_watched_until_no_job_waits_for_it_c26() -> None:
    core = make("wait")
    lost(core)
    assert not core.has_start_policies
    answered(core.state, condition("host:far"))
    assert core.has_start_policies
    answered(core.state, condition("host:far"))
    core.handle(e.HostUp("far"), 3.0)
    assert core.cleared_conditions() == ["host:far"]
    answered(core.state, condition("host:far"))
    over = replace(condition("host:far"), has_jobs=False)
    assert (answered(core.state, over), core.cleared_conditions()) == (over, [])


def test_a_policy_that_blocks_no_jobs_any_more_lets_all_go_c26() -> None:
    core = make("fail")
    lost(core)
    assert answered(core.state, condition("agent:sha")).answer is Answer.CLEARED


@pytest.mark.parametrize(("says", "answer"), [(b"", Answer.NOT_ASKED), (b"OK\n", Answer.CLEARED)])
def test_a_type_starts_again_once_one_of_its_agents_has_come_up_c26(says: bytes, answer: Answer) -> None:
    core = make("block", here=Host())
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, says, 0.0)
    core.state.pools["sha"].set_reason("an agent on another host did not start")
    assert answered(core.state, condition("agent:sha")).answer is answer


def test_one_job_tries_whether_agents_come_up_and_the_others_follow_c26_t85() -> None:
    core = make("block", here=Host())
    core.state.pools["sha"].set_reason("no such program")
    first = decide(answered(core.state, condition("agent:sha")))
    again = decide(answered(core.state, condition("agent:sha", tries=1, came=1)))
    after = decide(answered(core.state, condition("agent:sha", tries=1, came=0)))
    assert [step.most for step in (first, again, after) if isinstance(step, Release)] == [1, 1, None]


def test_a_check_while_the_host_is_away_is_in_vain_c26_t90() -> None:
    core = make("block")
    lost(core)
    assert decide(answered(core.state, condition("host:far"))) == Wait(1, 60.0)


def test_the_reason_of_a_type_that_does_not_start_names_it_once() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1, on_start_failure="fail")}, respawn_count=0)
    turn(core, claim(1))
    why = "agent 'sha': cannot start '/bin/agent': No such file or directory (errno 2)"
    core.handle(e.NotCreated(*spawned(core), why), 1.0)
    assert {text for _, _, text in stopped(core)} == {why}


def test_a_status_of_a_program_that_did_not_run_is_explained_behind_it() -> None:
    core = make_core({"run": AgentType(command=("run",), kind="exec")})
    turn(core, claim(1, "run"))
    (number,) = spawned(core)
    core.handle(e.Created(number, 101), 1.0)
    core.handle(e.Gone(number, code=127, why="/bin/run: its lines end in CR LF"), 2.0)
    (row,) = saved(settle(core, 2.0))
    assert (row.text, row.code) == ("exit status 127: /bin/run: its lines end in CR LF", 127)
