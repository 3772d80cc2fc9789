"""Going on with another configuration: what the core keeps, gives back and forgets; the daemon's part is elsewhere."""

from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Config, Database, Host, Scheduler
from scheduler.model.states import DIE, NEVER, ST_FAIL, ST_FREE, ST_FREEING, ST_RUNNING
from scheduler.policy.core import Core
from scheduler.policy.reload import FIXED, changes, within_reach
from tests.core_tools import TABLES, claim, make_core, ready, saved, sent, settle, spawned, turn, turned

SHA = AgentType(command=("agent",))
ALPHA = {"alpha": Host()}
BOTH = {"alpha": Host(), "beta": Host()}


def config(agents: dict[str, AgentType] | None = None, hosts: dict[str, Host] | None = None, **timers: Any) -> Config:
    """Return a configuration; type sha on host alpha unless told otherwise."""
    agents = {"sha": SHA} if agents is None else agents
    return Config(scheduler=Scheduler(**timers), hosts=hosts or ALPHA, agents=agents)


def reload(core: Core, new: Config, now: float = 0.0) -> None:
    core.handle(e.Reloaded(new), now)


def outcomes(core: Core) -> list[tuple[int, str | None]]:
    """Return what was saved of jobs."""
    return [(row.pk, row.outcome) for row in saved(settle(core))]


# ---- what is told


def test_every_key_that_waits_for_a_restart_is_a_setting() -> None:
    assert set(FIXED) <= {each.name for each in attrs.fields(Scheduler)}


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (config(), "nothing has changed"),
        (config(max_idle=1000), "scheduler(max_idle)"),
        (config({"md5": SHA}), "agents: +md5 -sha"),
        (config({"sha": attrs.evolve(SHA, slots=2, db="sql")}, BOTH), "hosts: +beta; agents: sha(slots, db)"),
        (config(group="x", hold=1.0), "scheduler(hold); not before a restart: scheduler.group"),
        (attrs.evolve(config(), database=Database("x")), "nothing has changed; not before a restart: database.url"),
    ],
)
def test_changes_of_a_reload_are_reported_in_one_line(new: Config, text: str) -> None:
    assert changes(config(), new) == text


def test_settings_that_need_a_restart_are_unchanged_by_a_reload() -> None:
    wanted = attrs.evolve(config(group="x", lease=99.0, hold=1.0), database=Database("y"))
    assert within_reach(config(), wanted) == config(hold=1.0)


def test_a_host_may_be_removed_during_its_last_row_and_a_claim() -> None:
    core = make_core({"sha": SHA}, hosts={"alpha": Host(priorities="^[a-m]"), "beta": Host()})
    turn(core, claim(1, host="beta", msq=True))
    core.handle(e.Opened(1, (b"a",), 2), 0.0)
    core.handle(e.Fetched(1, [(b"x",)], True), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    assert sent(core) == [b'a="x"\n']
    reload(core, config(hosts={"alpha": Host(priorities="^[a-m]")}))
    assert outcomes(core) == []
    core.agent_output(number, b"OK\n", 1.0)
    assert outcomes(core) == [(1, "given back")]


# ---- claims that were asked for before


def flight(core: Core) -> r.EndAndClaim:
    """Let the core ask; the answer is still to come."""
    request = core.next_request(0.0)
    assert isinstance(request, r.EndAndClaim)
    return request


@pytest.mark.parametrize(
    ("host", "new"),
    [
        ("", config({"md5": SHA})),
        ("beta", config()),
        ("", config({"sha": attrs.evolve(SHA, submitters=("me",))})),
    ],
    ids=["type gone", "host gone", "not for everybody any more"],
)
def test_a_late_claim_for_a_removed_type_or_host_is_given_back(host: str, new: Config) -> None:
    core = make_core(hosts=BOTH)
    flight(core)
    reload(core, new)
    core.handle(turned(claim(7, host=host)), 0.0)
    assert spawned(core) == []
    assert outcomes(core) == [(7, "given back")]


def test_a_late_claim_for_a_type_that_stays_is_processed() -> None:
    core = make_core(hosts=BOTH)
    flight(core)
    reload(core, config())
    core.handle(turned(claim(7)), 0.0)
    assert len(spawned(core)) == 1


# ---- slots


def test_the_number_of_a_slot_is_free_only_when_its_process_is_dead() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    reload(core, config({"md5": SHA}))
    assert [other.number for other in core.state.pools["md5"].slots] == [1]
    core.agent_output(slot.number, b"OK\n", 0.0)
    core.take_effects(0.0)
    assert slot.state == ST_FREEING
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 0.0)
    reload(core, config({"md5": attrs.evolve(SHA, slots=2)}))
    assert [other.number for other in core.state.pools["md5"].slots] == [1, 0]


def test_an_answer_for_the_former_process_of_a_slot_is_dropped() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.agent_output(slot.number, b"DB: select 1\nOK\n", 0.0)
    (ask,) = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.RunStatement)]
    reload(core, config({"md5": SHA}))
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 0.0)
    reload(core, config({"md5": attrs.evolve(SHA, slots=2)}))
    turn(core, claim(2, "md5"), claim(3, "md5"))
    spawned(core)
    assert core.state.slots.all[0].pool.name == "md5"
    core.handle(e.Created(0, 200), 0.0)
    core.handle(e.StatementAnswered(0, ask.serial, b"OK\n"), 0.0)
    assert sent(core) == []


def test_a_removed_slot_is_not_throttled_when_its_agent_dies() -> None:
    core = make_core(respawn_count=0)
    slot = ready(core, claim(1))
    reload(core, config({"md5": SHA}, respawn_count=0))
    core.handle(e.Gone(slot.number, code=1), 0.0)
    assert (slot.state, core.state.slots.vacant) == (ST_FREE, [slot.number])


def test_a_throttled_slot_that_was_removed_is_free() -> None:
    core = make_core(respawn_count=0)
    slot = ready(core, claim(1))
    core.handle(e.Gone(slot.number, code=1), 0.0)
    assert slot.state == ST_FAIL
    look(core, "alpha", types="^md5")
    assert (slot.state, core.state.slots.vacant) == (ST_FREE, [slot.number])


def test_a_type_whose_failed_slots_were_removed_with_their_host_works_when_it_is_back() -> None:
    core = make_core(respawn_count=0)
    slot = ready(core, claim(1))
    core.handle(e.Gone(slot.number, code=1), 0.0)
    look(core, "alpha", types="^md5")
    look(core, "alpha", types="")
    assert turn(core, claim(2)).wanted
    assert len(spawned(core)) == 1


def test_a_row_claimed_again_while_in_hand_begins_anew() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert sent(core) == [b"item 1\n"]
    turn(core, claim(1)._replace(attempt=2))
    assert slot.state == ST_FREEING
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 0.0)
    core.schedule(0.0)
    core.handle(e.Created(slot.number, 101), 0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert sent(core) == [b"item 1\n"]
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert [(end.pk, end.attempt) for end in core.state.outbox.ends] == [(1, 2)]


def test_tables_read_before_a_reload_restore_no_removed_type_or_host() -> None:
    core = make_core({"sha": SHA, "md5": SHA}, hosts=BOTH)
    reload(core, config())
    hosts = [{"name": name, "max": 5, "urgent": 1, "enabled": True} | Host().filters for name in BOTH]
    core.handle(e.TablesRead([], hosts, [{"type": name, "enabled": True} for name in ("sha", "md5")], []), 0.0)
    pools, books = core.state.pools, core.state.hosts
    assert (pools["sha"].enabled, pools["md5"].enabled) == (True, False)
    assert (books["alpha"].max, books["beta"].enabled) == (5, False)


def test_a_type_that_a_command_disabled_stays_disabled_by_another_kind() -> None:
    core = make_core()
    core.handle(e.TablesRead([], [], [{"type": "sha", "enabled": False}], []), 0.0)
    reload(core, config({"sha": attrs.evolve(SHA, kind="exec")}))
    assert not core.state.pools["sha"].enabled


# ---- filters that commands have set


def look(core: Core, host: str, **filters: Any) -> None:
    """Let the core see the tables after a command about a host."""
    rows = [
        {"name": name, "max": -1, "urgent": 1, "enabled": True} | each.filters | (filters if name == host else {})
        for name, each in core.state.config.hosts.items()
    ]
    core.handle(e.TablesRead(TABLES["queues"], rows, [{"type": "sha", "enabled": True}], []), 0.0)


def test_a_filter_applies_at_once_and_is_undone_when_cleared() -> None:
    core = make_core(hosts=BOTH)
    look(core, "alpha", queues=["other"])
    assert ready(core, claim(1)).host.name == "beta"
    look(core, "alpha", queues=None)
    assert core.state.config.hosts == BOTH


def test_a_filter_set_by_command_survives_an_unrelated_reload() -> None:
    core = make_core(hosts=BOTH)
    look(core, "alpha", queues=["other"], priorities="^a")
    reload(core, config(hosts={**BOTH, "alpha": Host(priorities="^b")}))
    assert core.state.config.hosts["alpha"].filters == {"types": "", "queues": ("other",), "priorities": "^b"}


def test_a_type_that_no_host_takes_gives_its_jobs_back_and_claims_none() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    assert slot.state == ST_RUNNING
    look(core, "alpha", types="^md5")
    assert outcomes(core) == [(2, "given back")]
    assert core.state.pools["sha"].slots == []
    core.handle(e.Woken(), 0.0)
    request = core.next_request(0.0)
    assert not (isinstance(request, r.EndAndClaim) and request.wanted)
    look(core, "alpha", types="")
    assert turn(core).wanted


def test_reading_unchanged_filters_keeps_the_configuration() -> None:
    core = make_core(hosts=BOTH)
    before = core.state.config
    look(core, "alpha")
    assert core.state.config is before


# ---- time


def test_a_busy_agent_is_subject_to_the_new_limits() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert (slot.state, slot.deadline) == (ST_RUNNING, NEVER)
    reload(core, config({"sha": attrs.evolve(SHA, item_timeout=5.0)}), 3.0)
    core.tick(5.0)
    assert slot.reason == "item took longer than 5 s"


def test_a_starting_agent_keeps_its_hint_and_gets_the_shorter_limit() -> None:
    core = make_core(start_hint=5.0, start_limit=60.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    slot = core.state.slots.all[number]
    reload(core, config(start_limit=30.0), 1.0)
    assert slot.deadline == 5.0
    core.tick(5.0)
    core.tick(30.0)
    assert slot.wanted is DIE


# ---- slices


def test_late_rows_of_a_slice_given_back_do_not_affect_the_next() -> None:
    core = make_core()
    checkpoint = {"watermark": "3", "beyond": []}
    turn(core, claim(1, msq=True, repeat=True, key="id", checkpoint=checkpoint))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"id",), 0), 0.0)
    (row,) = saved(settle(core))
    assert (row.state, row.outcome, row.checkpoint["watermark"]) == ("queued", "slice", None)


# ---- what is shown, and what commands are filled in with


def test_status_shows_at_once_which_slots_a_reload_takes_away_and_adds() -> None:
    core = make_core({"sha": attrs.evolve(SHA, slots=2)})
    core.report.take_changed_slots(0.0)
    reload(core, config())
    assert core.report.take_changed_slots(0.0) == ([], [1])
    reload(core, config({"sha": SHA, "md5": SHA}))
    rows, gone = core.report.take_changed_slots(0.0)
    assert ([(row["slot"], row["agent"]) for row in rows], gone) == ([(1, "md5")], [])


def test_job_without_a_column_that_the_command_names_since_a_reload_fails() -> None:
    kind = AgentType(command=("tool", "{args}"), kind="exec")
    core = make_core({"sha": kind})
    turn(core, claim(1), claim(2))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    reload(core, config({"sha": attrs.evolve(kind, command=("tool", "{tape}"))}))
    core.handle(e.Gone(number, 0), 1.0)
    (spawn,) = [effect for effect in core.take_effects(1.0) if isinstance(effect, e.Spawn)]
    assert (spawn.job, spawn.argv) == (2, (b"",))
