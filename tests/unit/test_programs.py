"""Claims about the trial of a new program of an agent type, on a core whose agents behave as their program says."""

from collections import deque
from heapq import heappop, heappush
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.states import KEEP, ProgramEvent, ProgramState
from scheduler.policy.canary_verdict import Canary
from tests.core_tools import TABLES, answer_to, claim, make_core, spawned, turn, turned

OLD, NEW, NEWER = "old", "new", "newer"
COPIES = (OLD, NEW, NEWER)
SOON = 10.0  # no idle agent is ended by then


class Site:
    """A core, and agents that do an item in the seconds of their program, fail it, die of it or do not start."""

    def __init__(self, *, slots: int = 3, canary: int = 4, hosts: dict[str, Host] | None = None, **keys: Any) -> None:
        self.core = make_core({"sha": AgentType(command=("agent",), slots=slots, canary=canary, **keys)}, hosts=hosts)
        self.now, self.waiting = 0.0, deque[r.Claim]()
        self.programs: dict[int, str] = {}  # of living processes, by slot
        self.started: list[tuple[int, str]] = []
        self.worked: list[tuple[int, str]] = []  # jobs, and by which program
        self.lines: list[str] = []  # of the daemon's log
        self.warnings: list[str] = []  # of these, what an operator is warned of
        self.seconds = {OLD: 1.0, NEW: 1.0, NEWER: 1.0, "": 1.0}
        self.fails: set[str] = set()
        self.dies: set[str] = set()
        self.unstartable: set[str] = set()
        self.saved: dict[int, r.SaveRow] = {}
        self._replies: list[tuple[float, int, int]] = []  # a heap: when, slot, job
        self.find(OLD)

    @property
    def canary(self) -> Canary:
        canary = self.core.state.pools["sha"].canary
        assert canary is not None
        return canary

    def find(self, program: str, copies: tuple[str, ...] = COPIES) -> None:
        """The file has this program now."""
        self.core.handle(e.ProgramFound("sha", program, copies), self.now)
        self.carry_out()

    def work(self, *pks: int) -> None:
        """Queue jobs and let all be worked that can be, in time."""
        self.begin(*pks)
        while self.step():
            pass

    def begin(self, *pks: int) -> None:
        self.waiting += [claim(pk, max_interruptions=3, failures=0) for pk in pks]
        self.core.handle(e.Woken(), self.now)
        self.carry_out()

    def step(self) -> bool:
        """One reply of one agent, or what is due before it; False when nothing is left to happen soon."""
        due = self.core.next_deadline()
        if due < min([self.now + SOON, *(when for when, *_ in self._replies[:1])]):
            self.now = max(self.now, due)
            self.core.tick(self.now)
            self.carry_out()
            return True
        if not self._replies:
            return False
        when, number, pk = heappop(self._replies)
        self.now, program = max(self.now, when), self.programs[number]
        self.worked.append((pk, program))
        if program in self.dies:
            self._end(number, code=1)
        else:
            said = b"FAIL cannot\nOK\n" if program in self.fails else b"OK\n"
            self._give(number, self.core.agent_output(number, said, self.now) or b"")
        self.carry_out()
        return True

    def carry_out(self) -> None:
        self._turn()
        while self.core.has_work:
            for effect in self.core.take_effects(self.now):
                self._act(effect)
            self._turn()

    def _turn(self) -> None:
        """Let the database answer all that is asked of it."""
        while (request := self.core.next_request(self.now)) is not None:
            if isinstance(request, r.EndAndClaim):
                asked = next(each for each in request.wanted if not each.host) if request.wanted else None
                most = 0 if asked is None else min(asked.most, len(self.waiting))
                rows = [self.waiting.popleft()._replace(request=asked) for _ in range(most)]
                self.core.handle(turned(*rows), self.now)
                continue
            if isinstance(request, r.Save):
                self._save(request.rows)
            self.core.handle(answer_to(request), self.now)

    def _save(self, rows: Any) -> None:
        for row in rows:
            self.saved[row.pk] = row
            if row.outcome == "given back":
                self.waiting.append(claim(row.pk, attempt=row.attempt + 1))
                self.core.handle(e.Woken(), self.now)

    def _act(self, effect: e.Effect) -> None:
        match effect:
            case e.Spawn(number):
                self._start(effect)
            case e.Send(number, data):
                self._give(number, data)
            case e.Kill(number):
                self._end(number, signal="SIGHUP")
            case e.LogMessage(level, text):
                self.lines.append(text)
                self.warnings += [text] * (level == "warning")

    def _start(self, spawn: e.Spawn) -> None:
        self.started.append((spawn.slot, spawn.program))
        if spawn.program in self.unstartable and spawn.argv is not None:
            self.core.handle(e.NotCreated(spawn.slot, "no such program", code=127), self.now)
            return
        self.programs[spawn.slot] = spawn.program
        self.core.handle(e.Created(spawn.slot, 100 + spawn.slot), self.now)
        if spawn.program in self.unstartable:
            self._end(spawn.slot, code=2)
        elif spawn.argv is None:
            self.core.agent_output(spawn.slot, b"OK\n", self.now)
        else:
            self._give(spawn.slot, spawn.stdin or b"")

    def _give(self, number: int, data: bytes) -> None:
        for line in data.splitlines():
            when = self.now + self.seconds[self.programs[number]]
            heappush(self._replies, (when, number, int(line.split()[-1])))

    def _end(self, number: int, **how: Any) -> None:
        if self.programs.pop(number, None) is not None:
            self._replies = sorted(each for each in self._replies if each[1] != number)
            self.core.handle(e.Gone(number, **how), self.now)

    def by(self, program: str) -> list[int]:
        """Return the jobs that a program worked."""
        return [pk for pk, which in self.worked if which == program]

    def told(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
def site() -> Site:
    """Return a site whose three agents have done ten items each with the old program."""
    site = Site()
    site.work(*range(1, 31))
    return site


# ---- the trial


def test_first_program_is_in_use_without_a_trial(site: Site) -> None:
    assert (site.canary.state, set(site.programs.values())) == (ProgramState.STEADY, {OLD})
    assert site.canary.used.tried == 30


def test_new_program_gets_one_slot_and_the_others_keep_the_one_in_use(site: Site) -> None:
    site.find(NEW)
    assert sorted(site.programs.values()) == [NEW, OLD, OLD]
    assert site.told("program new is tried in one slot with 4 items, all others stay with old")


def test_new_program_that_is_not_worse_follows_in_all_slots(site: Site) -> None:
    site.find(NEW)
    site.work(*range(31, 61))
    assert (site.canary.state, site.canary.used.program) == (ProgramState.STEADY, NEW)
    assert set(site.programs.values()) == {NEW}
    assert site.told("the new program new passed its trial, 0 of 4 failed, of the program in use 0 of")
    assert {row.state for row in site.saved.values()} <= {"done"}


def test_trial_ends_with_its_last_item(site: Site) -> None:
    site.find(NEW)
    site.begin(*range(31, 61))
    while site.canary.is_on_trial:
        assert len(site.by(NEW)) < 4
        site.step()
    assert len(site.by(NEW)) == 4


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_program_that_fails_an_item_is_stopped_and_the_item_is_done_by_the_one_in_use(site: Site, how: str) -> None:
    getattr(site, how).add(NEW)
    site.find(NEW)
    site.work(*range(31, 61))
    assert (site.canary.state, site.canary.why) == (
        ProgramState.HELD_BACK, "1 of 1 failed, of the program in use 0 of 30",
    )  # fmt: skip
    (lost,) = site.by(NEW)
    assert lost in site.by(OLD)
    assert site.saved[lost].outcome == "given back"
    assert set(site.programs.values()) == {OLD}
    assert [pk for pk in range(31, 61) if pk not in site.by(OLD)] == []
    assert site.told("the new program new failed its trial: 1 of 1 failed")


def test_program_that_is_slower_is_stopped_after_its_trial(site: Site) -> None:
    site.seconds[NEW] = 2.0
    site.find(NEW)
    site.work(*range(31, 91))
    assert site.canary.state is ProgramState.HELD_BACK
    assert site.canary.why.startswith("it is slower: 0 of 4 failed")
    assert site.canary.why.endswith("an item takes 2 s, there 1 s")
    assert (len(site.by(NEW)), set(site.programs.values())) == (4, {OLD})


def test_program_that_does_not_start_is_held_back_at_once(site: Site) -> None:
    site.unstartable.add(NEW)
    site.find(NEW)
    site.work(*range(31, 41))
    assert (site.canary.state, site.by(NEW)) == (ProgramState.HELD_BACK, [])
    assert [program for _, program in site.started].count(NEW) == 1
    assert site.told("failed its trial: agent terminated prematurely, with exit status 2")


def test_agent_that_ends_while_idle_fails_its_trial(site: Site) -> None:
    site.find(NEW)
    (number,) = [slot for slot, program in site.programs.items() if program == NEW]
    site._end(number, code=0)
    site.carry_out()
    assert site.canary.state is ProgramState.HELD_BACK


def test_lost_and_blocked_items_say_nothing_of_a_program(site: Site) -> None:
    site.find(NEW)
    (number,) = [slot for slot, program in site.programs.items() if program == NEW]
    site.begin(31, 32, 33)
    site.core.agent_output(number, b"BLOCKED tape away\nOK\n", site.now)
    assert (site.canary.is_on_trial, site.canary.new and site.canary.new.tried) == (True, 0)


def test_without_agents_the_first_that_work_needs_is_that_of_the_trial() -> None:
    site = Site()
    site.find(NEW)
    assert site.started == []
    site.work(1, 2, 3)
    assert [program for _, program in site.started] == [NEW, OLD, OLD]


def test_process_of_the_trial_is_replaced_when_it_was_ended_for_room(site: Site) -> None:
    site.find(NEW)
    (number,) = [slot for slot, program in site.programs.items() if program == NEW]
    site.core.state.slots.all[number].kill("room for another", site.now)
    site.carry_out()
    assert sorted(site.programs.values()) == [NEW, OLD, OLD]
    assert site.canary.is_on_trial


def test_process_of_the_trial_has_no_lines_ahead(site: Site) -> None:
    site = Site(window=8)
    site.work(*range(1, 31))
    site.find(NEW)
    (slot,) = [each for each in site.core.state.slots.all if each.program == NEW]
    assert slot.prefetched is None
    site.work(*range(31, 71))
    assert site.canary.used.program == NEW


def test_only_slot_of_a_type_is_that_of_the_trial() -> None:
    site = Site(slots=1)
    site.work(1, 2, 3, 4, 5)
    site.find(NEW)
    site.fails.add(NEW)
    site.work(6, 7, 8)
    assert (site.by(NEW), site.by(OLD)[-3:]) == ([6], [7, 8, 6])


def test_deaths_of_the_program_in_use_during_a_trial_are_followed_by_itself(site: Site) -> None:
    site.find(NEW)
    site.dies.add(OLD)
    site.begin(*range(31, 35))
    while site.canary.is_on_trial and site._replies:
        site.step()
    assert [program for _, program in site.started].count(NEW) == 1


# ---- exec agents


def test_commands_of_the_new_program_are_one_at_a_time() -> None:
    site = Site(kind="exec")
    site.work(*range(1, 21))
    site.find(NEW)
    site.begin(*range(21, 41))
    while site.canary.is_on_trial:
        assert list(site.programs.values()).count(NEW) <= 1
        number = next(iter(site.programs))
        site.worked.append((0, site.programs[number]))
        site._end(number, code=0)
        site.carry_out()
    assert site.canary.used.program == NEW
    assert site.by(NEW) == [0, 0, 0, 0]


def test_command_that_cannot_be_started_is_held_back_and_its_job_is_done_by_the_one_in_use() -> None:
    site = Site(kind="exec", slots=1)
    site.find(NEW)
    site.unstartable.add(NEW)
    site.begin(1)
    assert site.canary.state is ProgramState.HELD_BACK
    assert [program for _, program in site.started] == [NEW, OLD]


# ---- another file, people, and another configuration


def test_third_program_goes_on_trial_in_place_of_the_second(site: Site) -> None:
    site.find(NEW)
    site.work(31, 32, 33)
    site.find(NEWER)
    assert sorted(site.programs.values()) == [NEWER, OLD, OLD]
    assert site.canary.new is not None
    assert site.canary.new.tried == 0


def test_file_that_has_the_program_in_use_again_ends_the_trial(site: Site) -> None:
    site.find(NEW)
    site.find(OLD)
    assert site.canary.state is ProgramState.STEADY
    assert NEW not in site.programs.values()


def test_program_that_comes_back_after_that_in_use_goes_on_trial_again(site: Site) -> None:
    for program in (NEW, OLD, NEW):
        site.find(program)
    assert site.canary.is_on_trial
    site.work(*range(31, 51))
    assert site.canary.used.program == NEW


def test_trial_that_people_begin_anew_counts_items_from_then_on(site: Site) -> None:
    site.find(NEW)
    site.work(31, 32, 33)
    before = site.canary.new
    site.core.set_program("sha", ProgramEvent.CANARY, site.now)
    site.carry_out()
    assert (before is not None and before.tried > 0, site.canary.new is not None and site.canary.new.tried) == (True, 0)
    site.work(*range(40, 60))
    assert site.canary.used.program == NEW


def test_jobs_that_take_too_long_are_failures_of_their_program(site: Site) -> None:
    site.seconds[NEW] = 60.0
    site.find(NEW)
    site.waiting += [claim(pk, timeout=5.0) for pk in range(31, 36)]
    site.work()
    assert (site.canary.is_held_back, set(site.programs.values())) == (True, {OLD})


def test_operators_are_warned_of_a_program_that_failed_and_not_of_what_they_did(site: Site) -> None:
    site.find(NEW)
    site.core.set_program("sha", ProgramEvent.ROLLBACK, site.now)
    site.carry_out()
    assert (site.told("new is rolled back; the one in use, old, stays"), site.warnings) == (True, [])
    site.core.set_program("sha", ProgramEvent.PROMOTE, site.now)
    site.carry_out()
    assert (site.told("the new program new is promoted: all agents get it"), site.warnings) == (True, [])
    site.fails.add(NEWER)
    site.find(NEWER)
    site.work(*range(31, 41))
    assert ["the new program newer failed its trial: 1 of 1 failed" in text for text in site.warnings] == [True]


def test_agents_of_other_machines_may_end_during_a_trial() -> None:
    hosts = {"alpha": Host(), "far": Host(transport="command", command=("ssh", "far"))}
    site = Site(slots=2, hosts=hosts)
    site.work(*range(1, 31))
    site.find(NEW)
    far = [slot.number for slot in site.core.state.slots.all if slot.host.name == "far"]
    site._end(far[0], code=1)
    site.carry_out()
    assert site.canary.is_on_trial
    assert (site.canary.used.tried, site.canary.new is not None and site.canary.new.tried) == (16, 0)


@pytest.mark.parametrize(("kind", "dismissed"), [("line", 3), ("exec", 0)])
def test_replaced_program_of_a_type_without_trials_ends_its_agents_but_no_command(kind: Any, dismissed: int) -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=4, kind=kind)})
    turn(core, *map(claim, (1, 2, 3)))
    numbers = spawned(core)
    for number in numbers:
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n" * (kind == "line"), 0.0)
    core.schedule(0.0)
    core.handle(e.Replaced("sha"), 1.0)
    assert sum(slot.wanted is not KEEP for slot in core.state.slots.all) == dismissed
    assert {slot.wanted for slot in core.state.slots.all if slot.number not in numbers} == {KEEP}


def test_agent_that_is_coming_up_is_not_ended_for_a_replaced_program() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Replaced("sha"), 1.0)
    assert core.state.slots.all[number].wanted is KEEP


@pytest.mark.parametrize(
    ("wanted", "state", "used"),
    [
        (ProgramEvent.PROMOTE, ProgramState.STEADY, NEW),
        (ProgramEvent.ROLLBACK, ProgramState.HELD_BACK, OLD),
        (ProgramEvent.CANARY, ProgramState.TRIAL, OLD),
    ],
)
def test_people_decide_about_a_program_on_trial(
    site: Site, wanted: ProgramEvent, state: ProgramState, used: str
) -> None:
    site.find(NEW)
    site.work(31, 32, 33)
    ok, _ = site.core.set_program("sha", wanted, site.now)
    site.carry_out()
    assert (ok, site.canary.state, site.canary.used.program) == (True, state, used)
    site.work(*range(34, 40))
    allowed = {used, NEW} if state is ProgramState.TRIAL else {used}
    assert set(site.programs.values()) <= allowed


@pytest.mark.parametrize("wanted", [ProgramEvent.PROMOTE, ProgramEvent.CANARY])
def test_people_overrule_what_was_held_back(site: Site, wanted: ProgramEvent) -> None:
    site.fails.add(NEW)
    site.find(NEW)
    site.work(*range(31, 41))
    site.fails.clear()
    assert site.core.set_program("sha", wanted, site.now)[0]
    site.work(*range(41, 61))
    assert site.canary.used.program == NEW
    assert set(site.programs.values()) == {NEW}


def test_verbs_about_no_program_are_refused(site: Site) -> None:
    answers = [site.core.set_program(name, ProgramEvent.PROMOTE, 0.0) for name in ("none", "sha")]
    assert answers[0] == (False, "no agent type none")
    assert answers[1] == (False, "agent type sha: no other program is known than that in use, old")
    plain = make_core().set_program("sha", ProgramEvent.CANARY, 0.0)
    assert plain == (False, "agent type sha has no trials of new programs; set canary of [agents.sha]")


def test_without_a_copy_of_the_program_in_use_there_is_no_trial(site: Site) -> None:
    site.find(NEW, (NEW,))
    site.work(31, 32, 33, 34)
    assert (site.canary.state, set(site.programs.values())) == (ProgramState.STEADY, {NEW})
    assert site.told("no trial of its new program: there is no copy of that in use")


def test_agents_on_other_machines_are_no_part_of_a_trial() -> None:
    hosts = {"alpha": Host(), "far": Host(transport="command", command=("ssh", "far"))}
    site = Site(slots=2, hosts=hosts)
    site.work(*range(1, 31))
    far = {slot.number for slot in site.core.state.slots.all if slot.host.name == "far"}
    assert {program for slot, program in site.started if slot in far} == {""}
    site.find(NEW)
    assert sorted(site.programs.values()) == ["", "", NEW, OLD]


def test_agents_on_other_machines_alone_are_replaced_as_without_a_trial() -> None:
    site = Site(hosts={"far": Host(transport="command", command=("ssh", "far"))})
    site.work(1, 2, 3)
    site.find(NEW)
    assert (site.canary.used.program, site.programs) == (NEW, {})


def test_without_canary_items_all_agents_get_what_the_file_has(site: Site) -> None:
    site.fails.add(NEW)
    site.find(NEW)
    site.work(*range(31, 41))
    reload(site, canary=0)
    assert (site.core.state.pools["sha"].canary, site.programs) == (None, {})
    site.work(*range(41, 44))
    assert {program for _, program in site.started[-3:]} == {""}


def test_trial_outlasts_a_reload(site: Site) -> None:
    site.find(NEW)
    reload(site, canary=9)
    assert (site.canary.is_on_trial, site.canary.most) == (True, 9)
    assert sorted(site.programs.values()) == [NEW, OLD, OLD]


@pytest.mark.parametrize("items", [2, 9])
def test_trial_ends_after_the_items_of_another_configuration(site: Site, items: int) -> None:
    site.find(NEW)
    site.work(31, 32, 33)
    reload(site, canary=items)
    site.work(*range(34, 80))
    assert (site.canary.state, site.canary.used.program) == (ProgramState.STEADY, NEW)


def test_another_command_is_no_trial(site: Site) -> None:
    site.find(NEW)
    reload(site, canary=4, command=("agent", "--fast"))
    assert (site.core.state.pools["sha"].canary, site.programs) == (None, {})
    site.find(NEW)
    assert (site.canary.state, site.canary.used.program) == (ProgramState.STEADY, NEW)


def reload(site: Site, **keys: Any) -> None:
    kind = AgentType(**({"command": ("agent",), "slots": 3} | keys))
    site.core.handle(e.Reloaded(Config(hosts={"alpha": Host()}, agents={"sha": kind})), site.now)
    site.carry_out()


def test_draining_daemon_begins_no_trial(site: Site) -> None:
    site.core.handle(e.Drain(), site.now)
    site.find(NEW)
    assert NEW not in site.programs.values()


# ---- a daemon that goes on where another ended


def shown(site: Site) -> Any:
    """Return what is written down of the type."""
    (row,) = site.core.report.agent_rows(site.now)
    return row["trial"] if row["knows"] else None


def after_restart(trial: Any, program: str, copies: tuple[str, ...] = COPIES, **keys: Any) -> Site:
    """Return the site of another daemon, which finds this program in the file and reads what was written down."""
    site = Site(**keys)
    site.core.handle(e.LeaseLost(), 0.0)
    site.core.state.pools["sha"].set_canary(None)
    site.find(program, copies)
    assert shown(site) is None
    types = [{"type": "sha", "enabled": True, "trial": trial}]
    site.core.handle(e.TablesRead(TABLES["queues"], [], types, []), 0.0)
    site.core.handle(e.Serve(10_000.0), 0.0)
    site.carry_out()
    return site


def failed_trial(site: Site) -> Any:
    """Return what is written down when the new program has failed."""
    site.fails.add(NEW)
    site.find(NEW)
    site.work(*range(31, 41))
    return shown(site)


def test_program_that_was_held_back_stays_so_after_a_restart(site: Site) -> None:
    other = after_restart(failed_trial(site), NEW)
    assert (other.canary.state, other.canary.why) == (ProgramState.HELD_BACK, site.canary.why)
    other.work(1, 2, 3, 4)
    assert {program for _, program in other.started} == {OLD}
    assert other.told("as before, the new program new failed its trial: 1 of 1 failed, of the program in use 0 of 30")


def test_trial_begins_again_after_a_restart(site: Site) -> None:
    site.find(NEW)
    site.work(31, 32, 33)
    other = after_restart(shown(site), NEW)
    assert (other.canary.state, other.canary.new and other.canary.new.tried) == (ProgramState.TRIAL, 0)
    other.work(*range(1, 20))
    assert other.canary.used.program == NEW


def test_program_that_was_replaced_while_no_daemon_ran_goes_on_trial(site: Site) -> None:
    other = after_restart(shown(site), NEW)
    assert other.canary.is_on_trial
    other.work(1, 2, 3)
    assert [program for _, program in other.started].count(NEW) == 1


def test_another_program_than_that_held_back_goes_on_trial_after_a_restart(site: Site) -> None:
    assert after_restart(failed_trial(site), NEWER).canary.is_on_trial


def test_program_in_use_that_was_put_back_is_all_there_is_after_a_restart(site: Site) -> None:
    assert after_restart(failed_trial(site), OLD).canary.state is ProgramState.STEADY


def test_without_its_copy_the_program_in_use_is_not_gone_on_with(site: Site) -> None:
    other = after_restart(failed_trial(site), NEW, (NEW,))
    assert (other.canary.state, other.canary.used.program) == (ProgramState.STEADY, NEW)
    assert other.told("no trial of its new program: there is no copy of that in use")


def test_what_was_known_of_another_command_says_nothing(site: Site) -> None:
    other = after_restart(failed_trial(site) | {"command": ["another"]}, NEW)
    assert (other.canary.state, other.canary.used.program) == (ProgramState.STEADY, NEW)


def test_what_is_shown_of_a_type_says_how_its_trial_is(site: Site) -> None:
    steady = shown(site)
    site.find(NEW)
    (slot,) = [number for number, program in site.programs.items() if program == NEW]
    on_trial = shown(site)
    assert (steady["state"], steady["text"]) == ("STEADY", None)
    assert (on_trial["state"], on_trial["slot"], on_trial["items"]) == ("TRIAL", slot, 4)
    assert on_trial["text"].startswith(f"the new program new is on trial in slot {slot}: 0 of 4 items, 0 of 0 failed")
    site.core.set_program("sha", ProgramEvent.ROLLBACK, site.now)
    assert shown(site)["text"] == "the new program new was rolled back by command; the one in use, old, stays"
    assert not shown(site)["is_worse"]


def test_waiting_jobs_are_told_of_a_program_that_is_held_back(site: Site) -> None:
    failed_trial(site)
    (row,) = site.core.report.agent_rows(site.now)
    assert str(row["reason"]).startswith("the new program new failed its trial: 1 of 1 failed")
