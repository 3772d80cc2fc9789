"""Claims about detached jobs that a core adopts, and about commands that end one: none is lost, none has two agents."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model import states as s
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import Adoption
from scheduler.policy import detached_jobs
from scheduler.policy.attachments import REMOTE_SPOOL
from scheduler.policy.core import Core
from scheduler.policy.deadlines import RECORD
from scheduler.policy.detached_jobs import LATER_S, RECORD_S, SOON_S
from tests.core_tools import answer_to, claim, logged, make_core, saved, settle, turn

KIND = AgentType(command=("tool", "{args}"), kind="exec", detached=True, slots=2)
FAR = {"beta": Host(transport="ssh", address="beta")}


def core_of(*adoptions: Adoption, hosts: dict[str, Host] | None = None, kind: AgentType = KIND) -> Core:
    """Return a core that has adopted these jobs."""
    core = make_core({"long": kind}, hosts=hosts)
    for name, host in (hosts or {}).items():
        if host.is_remote:
            core.handle(e.HostUp(name), 0.0)
    core.handle(e.Adopted("site", "/spool", list(adoptions)), 0.0)
    return core


def adoption(pk: int, *, wanted: str = "", age: float = 0.0, host: str = "alpha", **rules: Any) -> Adoption:
    return Adoption(claim(pk, "long", **rules), host, "/spool", 1, wanted, age)


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def attached(core: Core) -> int:
    """Let the one process that is to be attached begin; return its slot."""
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    return int(spawn.slot)


def to_begin(core: Core, pk: int = 1) -> r.Mark:
    """Claim a job; return the request that marks its row, which is not answered yet."""
    turn(core, claim(pk, "long"))
    while not isinstance(request := core.next_request(0.0), r.Mark):
        assert request is not None
        core.handle(answer_to(request), 0.0)
    return request


# ---- adopting
def test_a_job_in_hand_is_not_adopted_again() -> None:
    core = core_of(adoption(1))
    attached(core)
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 1.0)
    assert effects(core, e.Spawn, 1.0) == []
    assert core.state.queues["default"].in_hand == 1


def test_a_job_of_a_type_that_is_not_configured_is_left_alone_and_the_others_adopted() -> None:
    other = Adoption(claim(1, "gone"), "alpha", "/spool", 1, "", 0.0)
    core = core_of(other, adoption(2))
    assert list(core.state.jobs) == [2]


def test_a_core_that_is_held_for_another_program_adopts_nothing() -> None:
    core = core_of()
    core.hold(0.0)
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 0.0)
    assert core.state.jobs == {}


def test_the_time_limit_of_an_adopted_job_runs_since_it_began() -> None:
    core = core_of(adoption(1, age=50.0, timeout=60.0))
    slot = attached(core)
    core.tick(9.0)
    assert effects(core, e.Kill, 9.0) == []
    core.tick(10.0)
    assert [kill.slot for kill in effects(core, e.Kill, 10.0)] == [slot]


def test_what_is_in_hand_is_recorded_soon_after_an_adoption() -> None:
    core = core_of()
    assert core.state.deadlines.at[RECORD] == s.NEVER
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 3.0)
    assert core.state.deadlines.at[RECORD] == 3.0 + RECORD_S


def test_an_adopted_job_that_was_cancelled_ends_with_the_text_of_the_command() -> None:
    core = core_of(adoption(1, wanted="cancel no longer needed"))
    slot = attached(core)
    core.handle(e.Gone(slot, signal="SIGHUP"), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.text) == ("cancelled", "no longer needed")


@pytest.mark.parametrize(("wanted", "told"), [("", ""), ("kill", "HUP")])
def test_the_command_of_an_adopted_job_is_told_to_end_only_if_its_job_was_killed(wanted: str, told: str) -> None:
    (spawn,) = effects(core_of(adoption(1, wanted=wanted)), e.Spawn)
    assert spawn.keeper.told == told


def test_jobs_of_one_type_are_not_attached_on_another_host_than_theirs() -> None:
    core = core_of(adoption(1, host="beta"), hosts={"alpha": Host(), **FAR})
    assert [spawn.host for spawn in effects(core, e.Spawn)] == ["beta"]


def test_an_adopted_job_waits_for_its_host() -> None:
    core = core_of(adoption(1, host="beta"), hosts=FAR)
    core.handle(e.Gone(attached(core), lost=True), 1.0)
    core.handle(e.HostDown("beta", "no route", 8.0), 1.0)
    core.handle(e.Adopted("site", "/spool", [adoption(1, host="beta")]), 2.0)
    assert effects(core, e.Spawn, 2.0) == []
    core.handle(e.HostUp("beta"), 3.0)
    assert [spawn.job for spawn in effects(core, e.Spawn, 3.0)] == [1]


# ---- commands
def test_a_killed_job_whose_host_cannot_be_reached_ends_at_once() -> None:
    core = core_of(hosts=FAR)
    core.handle(e.HostDown("beta", "no route", 8.0), 0.0)
    core.handle(e.Adopted("site", "/spool", [adoption(1, host="beta")]), 0.0)
    assert core.kill(1, "killed by a", 1.0)
    told = "killed while its host beta cannot be reached: its command is ended when it can"
    assert (1, "WARNING", told) in logged(core)
    assert [(row.state, row.text) for row in saved(settle(core, 1.0))] == [("failed", "killed by a")]
    core.handle(e.HostUp("beta"), 2.0)
    assert effects(core, e.Spawn, 2.0) == []


def test_a_killed_job_that_waits_for_a_slot_of_its_host_ends_with_its_command() -> None:
    core = core_of(adoption(1), adoption(2), adoption(3))
    slots = {spawn.job: spawn.slot for spawn in effects(core, e.Spawn)}
    for slot in slots.values():
        core.handle(e.Created(slot, 100), 0.0)
    assert core.kill(3, "killed by a", 1.0)
    assert saved(settle(core, 1.0)) == []
    core.handle(e.Gone(slots[1], 0), 2.0)
    settle(core, 2.0)
    assert [(spawn.job, spawn.keeper.told) for spawn in effects(core, e.Spawn, 2.0)] == [(3, "HUP")]


def test_a_job_that_is_killed_while_its_process_is_made_is_killed_once_it_is() -> None:
    core = core_of(adoption(1))
    (spawn,) = effects(core, e.Spawn)
    core.kill(1, "killed by a", 0.0)
    core.handle(e.Created(spawn.slot, 100), 0.0)
    assert [kill.slot for kill in effects(core, e.ForceKill)] == [spawn.slot]


def test_a_job_that_is_killed_before_its_row_says_where_it_runs_is_not_started() -> None:
    core = core_of()
    request = to_begin(core)
    core.kill(1, "killed by a", 0.0)
    core.handle(answer_to(request), 0.0)
    assert effects(core, e.Spawn) == []
    assert [(row.state, row.text) for row in saved(settle(core))] == [("failed", "killed by a")]
    assert [slot.starts for slot in core.state.slots.all] == [[], []]  # it counts against no slot


# ---- the process is gone
@pytest.mark.parametrize(
    ("gone", "seconds"),
    [
        ({"lost": True, "why": "cut"}, [SOON_S, SOON_S]),
        ({"code": 1, "keeper_said": "could not keep"}, [SOON_S, LATER_S]),
    ],
)
def test_a_job_whose_process_is_gone_is_looked_for_again(gone: dict[str, Any], seconds: list[float]) -> None:
    core = core_of(adoption(1))
    core.handle(e.Gone(attached(core), **gone), 1.0)
    assert (core.state.jobs, saved(settle(core, 1.0))) == ({}, [])
    assert [effect.seconds for effect in effects(core, e.FindDetached, 1.0)] == seconds


def test_what_has_ended_is_released_on_its_host_soon_after_its_process_has_exited() -> None:
    core = core_of(adoption(1))
    core.handle(e.Gone(attached(core), 0), 1.0)
    assert [effect.seconds for effect in effects(core, e.FindDetached, 1.0)] == [SOON_S]


def test_a_job_that_its_host_could_not_keep_at_its_start_fails_with_the_reason() -> None:
    core = core_of()
    core.handle(answer_to(to_begin(core)), 0.0)
    core.handle(e.Gone(attached(core), code=1, keeper_said="could not keep"), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.text) == ("failed", "host alpha could not keep it: its error output says why")


@pytest.mark.parametrize("fault", ["is_items_fault", "is_machines_fault", "is_busy"])
def test_an_adopted_job_to_which_no_process_could_be_attached_may_run_all_the_same(fault: str) -> None:
    core = core_of(adoption(1))
    (spawn,) = effects(core, e.Spawn)
    core.handle(e.NotCreated(spawn.slot, "no process", **{fault: True}), 1.0)
    assert (core.state.jobs, saved(settle(core, 1.0))) == ({}, [])
    assert [effect.seconds for effect in effects(core, e.FindDetached, 1.0)] == [LATER_S]


def test_attachments_that_fail_count_against_no_slot() -> None:
    core = core_of(adoption(1))
    for _ in range(7):
        (spawn,) = effects(core, e.Spawn)
        core.handle(e.NotCreated(spawn.slot, "no process"), 1.0)
        core.handle(e.Adopted("site", "/spool", [adoption(1)]), 1.0)
    assert len(effects(core, e.Spawn)) == 1


def test_the_pid_line_may_be_the_largest_pid() -> None:
    core = core_of(adoption(1))
    slot = core.state.slots.all[attached(core)]
    core.exec_output(slot.number, "out", b"%d\n" % detached_jobs.MOST_PID, 0.0)
    assert slot.pid == detached_jobs.MOST_PID


# ---- where it is kept
@pytest.mark.parametrize(
    ("hosts", "spool"),
    [
        ({"alpha": Host()}, "/spool"),
        ({"alpha": Host(spool="/own")}, "/own"),
        (FAR, REMOTE_SPOOL),
        ({"beta": Host(transport="ssh", address="beta", spool="/own")}, "/own"),
    ],
)
def test_a_job_is_kept_in_the_spool_of_its_host(hosts: dict[str, Host], spool: str) -> None:
    core = core_of(hosts=hosts)
    request = to_begin(core)
    assert [row.spool for row in request.rows] == [spool]
    core.handle(answer_to(request), 0.0)
    (spawn,) = effects(core, e.Spawn)
    assert spawn.keeper.spool == spool


@pytest.mark.parametrize(("kill_grace", "grace"), [(0.2, 1), (2.4, 2), (30.0, 30)])
def test_the_grace_of_a_keeper_is_that_of_the_daemon_in_whole_seconds(kill_grace: float, grace: int) -> None:
    core = make_core({"long": KIND}, kill_grace=kill_grace)
    core.handle(e.Adopted("site", "/spool", [adoption(1)]), 0.0)
    (spawn,) = effects(core, e.Spawn)
    assert (spawn.keeper.limit, spawn.keeper.grace) == (KIND.output_limit, grace)


def test_the_time_of_an_adopted_job_counts_since_it_began() -> None:
    core = core_of(adoption(1, age=50.0))
    core.handle(e.Gone(attached(core), code=3), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.elapsed) == ("failed", 51.0)
