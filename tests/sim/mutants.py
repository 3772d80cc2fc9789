"""Planted faults: each is a small change of one or two sources, made while they are imported; the product has no hooks.

`python -m tests.sim.mutants NAME` runs seeds with that fault until an invariant breaks and prints the invariant's name
(or the exception's, if the core fell over itself) and the seed; nothing if the fault went unseen. The seed that stands
in seeds.toml is tried first, then all others: so the file saves time and decides nothing. `--write` writes it anew.
"""

import importlib.abc
import importlib.machinery
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

FIRST: Final = Path(__file__).with_name("seeds.toml")
SEEDS: Final = 250
STEPS: Final = 1500


class Patch(NamedTuple):
    """In this module, this text becomes that one."""

    module: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A fault by name, and the invariants of which one must catch it."""

    name: str
    caught_by: tuple[str, ...]
    patches: tuple[Patch, ...]
    often: tuple[str, ...] = ()  # acts of the front-end that bring it out
    is_of_swarm: bool = False  # worlds of the swarm are tried


def _one(name: str, caught_by: str, module: str, old: str, new: str, *often: str) -> Mutant:
    return Mutant(name, tuple(caught_by.split()), (Patch(module, old, new),), often)


def _swarm(name: str, caught_by: str, module: str, old: str, new: str) -> Mutant:
    return Mutant(name, tuple(caught_by.split()), (Patch(module, old, new),), is_of_swarm=True)


_POLICY: Final = "scheduler.policy."

MUTANTS: Final = (
    _one("no_throttle_wake_up", "everything_ends reload_frees_what_failed", _POLICY + "state",
         "            pool.unblock()\n", "            pass\n"),
    _one("throttle_never_closes", "respawns_are_limited", _POLICY + "slots",
         "[self] if len(self.starts) > timers.respawn_count else []", "[]"),
    _one("cleared_condition_keeps_its_jobs", "everything_ends", _POLICY + "conditions",
         "    return Release(policy.at_once or None, seen.tries + 1, _next_wait(seen, seen.tries + 1), is_new=False)\n",
         "    return Wait(seen.tries, wait_before(policy, seen.tries))\n"),
    _one("condition_forgotten_with_its_jobs", "blocked_jobs_are_listed", _POLICY + "conditions",
         "    if not seen.has_jobs:\n", "    if seen.tries > 1:\n"),
    _one("policy_never_ends", "conditions_end", _POLICY + "conditions",
         "if policy.max_tries and seen.tries >= policy.max_tries:", "if policy.max_tries < 0:"),
    _one("jobs_stay_blocked_on_a_host_that_is_back", "jobs_return_with_their_host", _POLICY + "unstartable_jobs",
         "if _answer(state, name) is Answer.CLEARED}", "if name == \"\"}", "insert_some"),
    _one("condition_of_before_a_crash_is_not_known", "jobs_return_with_their_host", _POLICY + "core",
         "        self.state.start_conditions.update(names)\n", "        pass\n", "insert_some"),
    _one("jobs_never_return_to_a_host", "everything_ends jobs_return_with_their_host", _POLICY + "unstartable_jobs",
         "Answer.CLEARED if host is None or host.is_up else", "Answer.STILL_THERE if True else", "insert_some"),
    _one("finish_before_claim", "done_means_worked only_ready_agents_get_lines", _POLICY + "agent_replies",
         "elif answer is None:", "elif True:"),
    _one("what_is_locked_is_forgotten", "rows_are_memory exit_leaves_nothing has_future done_means_worked",
         _POLICY + "outbox",
         "            self.wait_for_lock(about.part(pks), now)\n", "            pass\n", "lock_row"),
    _one("what_is_not_locked_is_forgotten", "rows_are_memory exit_leaves_nothing has_future done_means_worked",
         _POLICY + "outbox", "            self.repeats.append(about.part(free))\n", "            pass\n", "lock_row"),
    Mutant("overlapping_saves", ("rows_are_memory", "has_future", "AssertionError"), (
        Patch(_POLICY + "core", "        if state.outbox.in_flight is not None:\n            return None\n", ""),
        Patch(_POLICY + "outbox", "        assert self.in_flight is None\n", ""),
    )),
    _one("killed_job_works_on", "commands_are_kept", _POLICY + "completion",
         "    kill_job(state, job, Verdict(how, ", "    stop_job(state, job, Verdict(how, ",
         "command_job"),
    _one("kill_forgotten_by_a_stop", "commands_are_kept", _POLICY + "completion",
         "if which(job) and job.verdict is None]", "if which(job)]", "command_job", "stop_daemon"),
    _one("lost_wake_up", "no_wake_up_is_lost", _POLICY + "claims", "        self.empty.clear()\n", "        pass\n"),
    _one("wake_up_lost_in_flight", "no_wake_up_is_lost", _POLICY + "claims", "sent.ends or self._woken", "sent.ends",
         "cut_queue"),
    _one("batch_forgotten_with_its_connection", "rows_are_memory has_future everything_ends output_comes_in_order",
         _POLICY + "outbox",
         "            self.repeats.appendleft(request)\n", "            pass\n"),
    _one("end_before_its_output", "output_comes_in_order", _POLICY + "outbox",
         "if unwritten := {row.job for row in rows}:", "if unwritten := set():"),
    _one("idle_not_cleared_on_kill", "books_are_right nothing_impossible_happens ValueError", _POLICY + "agent_pool",
         "            self.remove_idle(slot)\n", "            pass\n"),
    _one("still_fetching_is_no_more", "done_means_worked counts_are_right", _POLICY + "job",
         "return query.state is QueryState.EXHAUSTED", "return query.has_run"),
    _one("busy_types_keep_their_connections", "idle_agents_have_connections", _POLICY + "expansions",
         "(is_needed and _take_connection(state))", "False"),
    _one("types_with_idle_agents_have_none_kept", "idle_agents_have_connections", _POLICY + "expansions",
         "(is_held_back or not is_needed) < every", "1 < every"),
    _one("second_try_skipped", "failures_were_tried_twice", _POLICY + "completion",
         "elif final or not _is_spared(slot, job.query, item):", "elif True:"),
    _one("urgent_place_for_plain_work", "urgent_places_are_for_urgent_work everything_ends IndexError",
         _POLICY + "capacity", "(self.urgent if urgent else 0)", "self.urgent"),
    _one("drain_starts_work", "drain_starts_nothing", _POLICY + "intake",
         "if not state.is_assigning or state.draining:", "if not state.is_assigning:", "drain_daemon"),
    _one("watermark_beyond_undone_items", "done_means_worked", _POLICY + "query_progress",
         "if first == self._next:", "if first >= self._next:"),
    _one("room_costs_work", "room_costs_no_work", _POLICY + "dispatch",
         "room.victim.kill(f",
         "next((s for s in state.slots.all if s.host is room.victim.host and s.job), room.victim).kill(f"),
    _one("freeing_without_deadline", "deadlines_are_set", _POLICY + "slots",
         "timeouts[s.ST_FREEING] = timers.kill_grace", "timeouts[s.ST_FREEING] = s.NEVER"),
    _one("feeding_past_the_lease", "only_under_the_lease no_wake_up_is_lost", _POLICY + "group_lease",
         "    if state.is_assigning and now >= state.serving_until:\n        state.set_assigning(False)\n",
         "    if state.is_assigning and now >= state.serving_until:\n        state.set_lease(NEVER)\n"),
    _one("row_says_running_and_not_where", "rows_say_where_they_run", _POLICY + "report",
         "job.mark(RUNNING, now, slot.where)", "job.mark(RUNNING, now)"),
    _one("row_that_was_marked_before_says_never_where", "rows_say_where_they_run", _POLICY + "report",
         "and slot.where != job.where:", "and not job.marked:"),
    _one("row_of_a_slow_start_says_no_pid", "rows_say_where_they_run", _POLICY + "report",
         "if is_here and slot.state == ST_PREP:", "if False:"),
    _one("rescued_row_not_marked_first", "rescued_rows_are_marked", _POLICY + "intake",
         "elif job.rules.rescued:\n", "elif False:\n"),
    _one("claim_that_fails_on_data_is_made_as_before", "everything_ends", _POLICY + "outbox",
         "unread=bool(self.claims_failed and wanted)", "unread=False"),
    _one("suspects_are_tried_together", "suspects_are_tried_alone has_future", _POLICY + "intake",
         "if state.suspect is None and pool.unread:", "if pool.unread:"),
    _one("checkpoint_lost_with_what_was_not_read", "no_item_is_done_too_often done_means_worked",
         _POLICY + "completion", "        return None, None, None, None\n", "        return 0, 0, None, {}\n"),
    _one("doomed_agent_is_heard", "nothing_impossible_happens", _POLICY + "agent_replies",
         "not slot.output.partial_line and slot.wanted is not DIE", "not slot.output.partial_line",
         "command_job", "insert_crowd"),
    _one("quota_admits_one_more", "quotas_keep_their_limits", _POLICY + "quotas",
         "return max(0, self.most[key] - self._used(key))", "return max(0, self.most[key] + 1 - self._used(key))"),
    _one("quota_never_has_room_again", "quotas_keep_their_limits", _POLICY + "quotas",
         "            self.in_hand[key] -= 1\n", "            pass\n"),
    _one("claimed_jobs_do_not_count_for_rates", "rates_are_kept", _POLICY + "rates",
         "self._whole.set_unstarted(in_hand - len(self._begun))", "self._whole.set_unstarted(0)"),
    _one("admitted_jobs_do_not_count_for_their_value", "rates_are_kept admitted_jobs_are_counted_once",
         _POLICY + "rates",
         "        window.admitted()\n        self._values[pk] = value\n", "        self._values[pk] = value\n"),
    _one("half_an_interval_is_looked_at", "rates_are_kept", _POLICY + "rates",
         "        while self.starts and self.starts[0] + interval <= now:",
         "        while self.starts and self.starts[0] + interval / 2 <= now:"),
    _one("queue_room_given_to_each", "queues_keep_their_limits rates_are_kept", _POLICY + "claims",
         "            left[request.queue] = room - most\n", ""),
    _one("host_room_without_limit", "hosts_keep_their_limits urgent_places_are_for_urgent_work everything_ends",
         _POLICY + "capacity", "self.spare(urgent) > 0", "self.spare(urgent) >= 0"),
    _one("host_that_is_down_has_room", "lost_hosts_are_left_alone", _POLICY + "capacity",
         "return self.enabled and self.is_up", "return self.enabled", "cut_link"),
    _one("lost_work_is_not_given_back", "done_means_worked", _POLICY + "completion",
         "        job.set_verdict(Verdict(GIVEN_BACK, why))\n", "        pass\n", "cut_link"),
    _one("host_that_is_back_is_forgotten", "everything_ends lost_hosts_are_left_alone", _POLICY + "capacity",
         "        self.is_up, self.reason = is_up, None\n", "        self.reason = None\n", "cut_link"),
    _one("job_forgets_what_is_in_flight", "books_are_right KeyError", _POLICY + "completion",
         "    if job.in_flight:\n        return\n    if job.verdict", "    if job.verdict"),
    _one("old_program_gets_more", "old_programs_get_nothing work_begins_where_it_is_configured IndexError",
         _POLICY + "slots", "        self.any_queue = self.host_queue = RunQueue()\n", "", "reload"),
    _one("dismissed_agent_stays", "slots_are_as_configured", _POLICY + "agent_replies",
         "    if slot.wanted is FINISH:\n", "    if False:\n", "reload"),
    _one("number_of_a_gone_slot_is_lost", "books_are_right", _POLICY + "slots",
         "new == s.ST_FREE and slot.is_removed:\n            self.vacant.append(slot.number)",
         "new == s.ST_FREE and slot.is_removed:\n            pass", "reload"),
    _one("number_is_given_away_at_work", "books_are_right", _POLICY + "slots",
         "        slot.remove(now)\n",
         "        slot.remove(now)\n        self.vacant += [slot.number] * (slot.state > s.ST_FREE)\n", "reload"),
    _one("removed_type_keeps_its_queries", "has_future lanes_are_right", _POLICY + "reload",
         "(query is not None or completion.is_untouched(job))", "completion.is_untouched(job)", "reload"),
    _one("late_claim_is_taken", "has_future KeyError filters_hold", _POLICY + "intake",
         "(is_bound and not pool.queues.has_place(job))", "False", "reload"),
    _one("placed_rows_are_forgotten", "done_means_worked counts_are_right has_future", _POLICY + "reload",
         "        if moved:\n", "        if False:\n", "reload"),
    _one("failed_slots_rest_on", "reload_frees_what_failed", _POLICY + "reload",
         "        state.reset_failed_slots(pool, now)\n", "        pass\n", "reload"),
    _one("old_limits_hold", "slots_are_as_configured", _POLICY + "reload",
         "        slot.set_timeouts(timeouts_of(slot.pool.kind, state.timers))\n", "        pass\n", "reload"),
    _one("lanes_are_lost_when_a_type_becomes_fair", "lanes_are_right", _POLICY + "run_queue",
         "                run_queue.add(lane, lane.ticket)\n", "                pass\n", "reload"),
    _one("submitter_who_has_nothing_keeps_a_turn", "lanes_are_right IndexError KeyError", _POLICY + "run_queue",
         "        if not lines[submitter]:\n", "        if False:\n"),
    _one("second_try_waits_for_a_gone_host", "lanes_are_right KeyError", _POLICY + "reload",
         "    pool.unbind_second_tries()\n", "", "leave_host", "insert_placed"),
    _one("second_try_goes_to_a_gone_host", "lanes_are_right KeyError", _POLICY + "reload",
         "slot.unbind()", "pass", "leave_host", "insert_placed"),
    _one("lines_ahead_are_lost", "done_means_worked counts_are_right lanes_are_right has_future",
         _POLICY + "dispatch",
         "            put_back(state, job, item, host if is_bound and job.pool.queues.takes(job, host) else None)\n",
         "            job.returned()\n"),
    _one("window_without_frame", "only_ready_agents_get_lines", _POLICY + "dispatch",
         "min(most, _share(slot)) - len(prefetched)", "min(most, _share(slot)) + 1 - len(prefetched)"),
    _one("agent_is_taken_to_be_fast", "lines_ahead_are_of_fast_agents", _POLICY + "prefetch_window",
         "self.seconds = NEVER  # an item", "self.seconds = 0.0", "insert_long"),
    _one("slow_item_does_not_count", "lines_ahead_are_of_fast_agents", _POLICY + "prefetch_window",
         "(now - self._at) / done", "min((now - self._at) / done, FAST_S)", "insert_long"),
    _one("slow_item_of_another_is_not_seen", "lines_ahead_are_of_fast_agents", _POLICY + "dispatch",
         "slot.job is not None and slot.assigned_at < now - SLOW_S", "False", "insert_long"),
    _one("tail_is_not_spread", "lines_ahead_are_of_fast_agents", _POLICY + "dispatch",
         "// len(pool.slots)", "// 1", "insert_long"),
    _one("killed_job_is_worked_when_its_line_comes", "commands_are_kept", _POLICY + "dispatch",
         "job.verdict is not None and job.verdict.kills", "False", "command_job", "insert_crowd"),
    _one("second_try_in_a_crowd", "second_tries_are_alone", _POLICY + "dispatch", " and not slot.is_second_try", ""),
    _one("job_ahead_begins_twice", "nothing_begins_twice", _POLICY + "dispatch",
         "elif job.verdict is None and job.query is not None:", "elif job.verdict is None:"),
    _one("group_given_up_for_good", "everything_ends", _POLICY + "group_lease",
         "now + self._timers.lease if is_stepping_down", "NEVER if is_stepping_down",
         "step_down"),
    _one("stepping_down_never_ends", "everything_ends", _POLICY + "state",
         "            self.steps_down = self.stopping = False\n", "            pass\n", "step_down"),
    _one("group_given_up_with_work_in_hand", "exit_leaves_nothing", _POLICY + "core",
         "if not is_at_work and state.outbox.is_empty:", "if True:",
         "step_down"),
    _one("agents_take_from_every_door", "filters_hold", _POLICY + "run_queue",
         "*(self.by_host[name] for name in hosts)", "*self.by_host.values()"),
    _one("priorities_are_not_looked_at", "filters_hold", _POLICY + "run_queue",
         "any(first <= start < end for first, end in self._ranges[name])", "True"),
    _one("only_first_characters_are_looked_at", "filters_hold", _POLICY + "run_queue",
         "bisect_right(self._bounds, priority)", "bisect_right(self._bounds, priority[:1])"),
    _one("doors_of_before_a_reload", "lanes_are_right has_future", _POLICY + "reload",
         "        _sort_lanes(state, pool)\n", "        pass\n", "reload"),
    _one("worse_program_is_followed", "worse_programs_are_not_followed", _POLICY + "canary_verdict",
         "    if new.failed > failures_allowed(old, most):\n        return Judgement.FAILS\n", ""),
    _one("failures_of_a_new_program_do_not_count", "worse_programs_are_not_followed", _POLICY + "program_rollout",
         "    if not slot.is_second_try:\n        record.item_failed()\n", ""),
    _one("new_program_in_all_slots", "new_programs_have_one_slot", _POLICY + "program_rollout",
         "if canary.is_on_trial and canary.slot is None and canary.new is not None:",
         "if canary.is_on_trial and canary.new is not None:"),
    _one("lost_attachment_is_an_interruption", "everything_ends commands_are_alone ends_are_those_of_commands",
         _POLICY + "detached_jobs",
         "elif event.keeper_said or event.lost:", "elif not (event.keeper_said or event.lost):", "cut_link"),
    _one("detached_command_begins_before_its_row", "rows_are_memory rescued_rows_are_marked commands_are_alone",
         _POLICY + "detached_jobs",
         "    state.attachments.begin(slot, replace(spawn, keeper=_keeper(state, slot, \"start\", spool, 0)))\n",
         "    _spawn(state, slot, replace(spawn, keeper=_keeper(state, slot, \"start\", spool, 0)))\n", "kill_daemon"),
    _one("adopted_jobs_stay_unattached", "everything_ends", _POLICY + "core",
         "                    detached_jobs.attach(state, pool, now)", "                    pass"),
    _one("reservation_is_not_kept", "claims_leave_what_is_reserved", _POLICY + "claims",
         "        if not others:\n", "        if True:\n", "change_queue"),
    _swarm("slot_with_an_old_number_is_not_shown", "status_is_true", _POLICY + "slots",
           "        self.changed.add(slot)  # else the one that had its number is still shown\n", ""),
    _swarm("host_that_came_up_is_not_shown", "status_is_true", _POLICY + "processes",
           "    state.show_hosts(host)\n", ""),
    _swarm("children_of_ended_jobs_are_forgotten", "every_wait_has_a_wake_up everything_ends",
           _POLICY + "queue_answers",
           "    if event.parents:\n        state.outbox.settle(event.parents)\n    request = state.outbox.answered()\n"
           "    if request is None:\n        return\n    assert isinstance(request, r.EndAndClaim)\n",
           "    request = state.outbox.answered()\n    if request is None:\n        return\n"
           "    assert isinstance(request, r.EndAndClaim)\n"),
    _swarm("item_costs_half_a_token", "item_rates_are_kept", _POLICY + "item_rate",
           "        self._tokens -= 1.0\n", "        self._tokens -= 0.5\n"),
    _swarm("nothing_wakes_who_waits_for_a_token", "types_wait_for_what_is_so", _POLICY + "state",
           "        if not pool.look_for_token(now):\n"
           "            self.deadlines.bring_forward(ITEM_RATES, pool.bucket.next_at())\n",
           "        pool.look_for_token(now)\n"),
    _swarm("place_is_kept_for_who_has_begun", "hosts_wait_for_what_is_so", _POLICY + "dispatch",
           "        if host.yields_to is pool:\n            host.yield_to(None)\n", ""),
    _swarm("ended_job_is_still_about_to_start", "admitted_jobs_are_counted_once", _POLICY + "rates",
           "        elif window is not None:\n            window.left()\n", ""),
    _swarm("begun_job_counts_for_ever", "admitted_jobs_are_counted_once rates_are_kept", _POLICY + "rates",
           "        if pk in self._begun:\n            self._begun.remove(pk)\n        elif window",
           "        if window"),
    _swarm("start_before_its_time", "starts_are_made_once", _POLICY + "schedules",
           "while at is not None and _due(schedule, at) <= now and",
           "while at is not None and _due(schedule, at) <= now + timedelta(seconds=60) and"),
    _swarm("starts_are_made_again", "starts_are_made_once", _POLICY + "schedules",
           "    return Plan(starts, is_late, at, due,", "    return Plan(starts, is_late, (starts or [at])[-1], due,"),
    _swarm("lease_is_taken_by_who_leaves", "who_leaves_takes_no_lease", "scheduler.model.states",
           '    "LEAVING": {OTHERWISE: IGNORE},\n}  # fmt: skip\nLEASE',
           '    "LEAVING": {"CONNECTED": "UNREGISTERED", OTHERWISE: IGNORE},\n}  # fmt: skip\nLEASE'),
)  # fmt: skip


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its patched source, past any cached bytecode."""

    def __init__(self, name: str, path: str, patches: Sequence[Patch]) -> None:
        super().__init__(name, path)
        self._patches = patches

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("no cached bytecode")

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path).decode()
        for patch in self._patches:
            if source.count(patch.old) != 1:
                raise SystemExit(f"{patch.module} has {patch.old!r} {source.count(patch.old)} times")
            source = source.replace(patch.old, patch.new)
        return source.encode()


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of a mutant before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = [patch for patch in self._mutant.patches if patch.module == fullname]
        if not patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, patches)
        return spec


def hunt(mutant: Mutant) -> str:
    """Run seeds with the fault; return the name of what broke first and the seed, or nothing."""
    sys.meta_path.insert(0, Finder(mutant))
    world, swarm = importlib.import_module("tests.sim.world"), importlib.import_module("tests.sim.swarm")
    for seed in (tomllib.loads(FIRST.read_text()).get(mutant.name, 0), *range(SEEDS)):
        try:
            if mutant.is_of_swarm:
                swarm.world(seed).run(swarm.STEPS)
            else:
                world.Sim(seed, mutant.often).run(STEPS)
        except Exception as error:  # noqa: BLE001  (whatever the fault leads to)
            print(f"seed {seed}: {error}", file=sys.stderr)
            return f"{getattr(error, 'name', None) or type(error).__name__} {seed}"
    return ""


def caught(name: str) -> list[str]:
    """Hunt in a process of its own, whose modules are not loaded yet; return what broke and the seed, or nothing."""
    command = [sys.executable, "-m", "tests.sim.mutants", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        seeds = {mutant.name: (caught(mutant.name) or ["nothing", "0"])[1] for mutant in MUTANTS}
        FIRST.write_text("".join(f"{name} = {seed}\n" for name, seed in seeds.items() if seed != "0"))
    else:
        print(hunt(next(mutant for mutant in MUTANTS if mutant.name == sys.argv[1])))
