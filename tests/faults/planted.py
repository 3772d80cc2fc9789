"""Faults that no test saw when they were first planted, and for each the tests that were written to see it.

A fault is a text of the product that becomes another, in a copy of the project: the product has no hooks for it.
`python -m tests.faults.planted NAME...` plants these faults (all, if none is named) and prints which tests fail.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.conftest import SERVER, in_memory

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("scheduler", "schema", "agents", "etc", "man", "tests", "pyproject.toml", "README.md", "CHANGELOG.md")
QUERIES: Final = "schema/queries.sql"
MIGRATIONS: Final = "schema/migrations/*.sql"  # the last one that has the text: a later one replaces a function
LIMIT_S: Final = 30  # of one test: some faults make it wait for ever
_YEARS: Final = count(1_000_000_000, 100)


class Planted(NamedTuple):
    """A fault: in the paragraph of `file` that has the text `near`, `old` becomes `new`; `tests` must fail."""

    name: str
    file: str
    near: str
    old: str
    new: str
    tests: tuple[str, ...]
    needs: tuple[str, ...]  # what its tests need of the machine: see tests/needs.py


def _fault(name: str, file: str, old: str, new: str, *tests: str, near: str = "", needs: str = "") -> Planted:
    return Planted(name, file, near, old, new, tuple(f"tests/{test}" for test in tests), tuple(needs.split()))


FAULTS: Final = (
    _fault(
        "shutdown_waits_for_no_answer",
        "scheduler/daemon/acknowledgements.py",
        "self._is_missing()) and self.obeys_shutdown",
        "self._is_missing()) and not self.obeys_shutdown",
        "models/test_commands_model.py::test_the_last_daemon_exits_when_its_shutdown_has_ended_f137",
    ),
    _fault(
        "dead_process_is_waited_for",
        "scheduler/daemon/acknowledgements.py",
        "row[3] is not None and",
        "row[3] is None and",
        "models/test_commands_model.py::test_command_ends_at_once_when_the_other_daemon_is_known_to_be_dead_f137",
    ),
    _fault(
        "number_of_a_daemon_that_registers_anew_is_new",
        QUERIES,
        "coalesce((select min(scheduler_number) from former), pg",
        "coalesce(pg",
        "models/test_commands_model.py::test_shutdown_reaches_a_daemon_that_has_just_lost_its_group_f137",
    ),
    _fault(
        "lease_taken_counts_from_the_answer",
        "scheduler/policy/group_lease.py",
        "            self._taken = at\n            self.until = self._asked_at",
        "            self._taken = at\n            self.until = now",
        "unit/test_lease.py::test_a_lease_that_was_taken_counts_from_before_the_request_c14",
    ),
    _fault(
        "lease_renewed_counts_from_the_answer",
        "scheduler/policy/group_lease.py",
        "self._timers.lease_renewal):\n            self.until = self._asked_at",
        "self._timers.lease_renewal):\n            self.until = now",
        "unit/test_lease.py::test_a_lease_that_was_renewed_counts_from_before_the_request_c14",
    ),
    _fault(
        "owner_check_of_the_first_pair_only",
        MIGRATIONS,
        "% nullif(entry.verb_job_every, 0) = 0)",
        "% nullif(entry.verb_job_every, 0) = 0 and entry.verb_job_every <> 2)",
        "database/test_role_front_ends.py::test_a_command_about_several_jobs_needs_ownership_of_all",
    ),
    _fault(
        "owner_check_of_the_first_run_only",
        MIGRATIONS,
        "% nullif(entry.verb_job_every, 0) = 0)",
        "% nullif(entry.verb_job_every, 0) = 0 and entry.verb_job_every <> 1)",
        "database/test_role_front_ends.py::test_a_command_about_several_jobs_needs_ownership_of_all",
    ),
    *(
        _fault(
            f"resubmit_drops_{column}",
            MIGRATIONS,
            f"{column},",
            "",
            "database/test_job_setup.py::test_a_resubmitted_job_has_all_settings_of_the_first_t26",
            near="value not in ('null', 'false')",
        )
        for column in ("jq_host", "jq_queue", "jq_unique_key", "jq_delete", "jq_max_interruptions")
    ),
    _fault(
        "locked_rows_that_expire_are_waited_for",
        QUERIES,
        "order by jq_expires_at\n       limit 5000\n         for no key update skip locked) j",
        "order by jq_expires_at\n       limit 5000\n         for no key update) j",
        "drivers/test_watch_statements.py::test_a_locked_expired_row_does_not_block_others_c23",
    ),
    _fault(
        "retry_keeps_used_interruptions",
        QUERIES,
        "jq_interruptions = 0, ",
        "",
        "database/test_command_statements.py::test_a_job_that_is_retried_has_used_up_none_of_its_allowances",
    ),
    _fault(
        "retry_keeps_used_rescues",
        QUERIES,
        "jq_rescued = 0, ",
        "",
        "database/test_command_statements.py::test_a_job_that_is_retried_has_used_up_none_of_its_allowances",
    ),
    _fault(
        "retries_without_jitter",
        QUERIES,
        "0.5 + random() / 2",
        "0.75",
        "drivers/test_queue_saves.py::test_jobs_that_fail_together_do_not_all_come_back_together",
    ),
    _fault(
        "retries_ask_for_no_jitter",
        "scheduler/policy/completion.py",
        "jitter=kind.retry_jitter",
        "jitter=False",
        "unit/test_outcome.py::test_retry_delay_grows_with_jitter",
    ),
    _fault(
        "unblock_takes_conditions_that_begin_alike",
        QUERIES,
        "|| :condition::text || ' ')",
        "|| :condition::text)",
        "database/test_command_statements.py::test_unblock_releases_only_jobs_of_its_condition_t85",
    ),
    _fault(
        "daemon_never_goes_on_after_a_test",
        "scheduler/cli/run.py",
        "if options.test or failed:",
        "if True:",
        "integration/test_agent_check.py::test_a_daemon_that_tests_its_agents_first_serves_if_none_failed_f146",
    ),
    _fault(
        "back_off_of_a_host_is_never_reset",
        "scheduler/ssh/host_connections.py",
        "            self._failures = 0\n",
        "            pass\n",
        "ssh/test_connections.py::test_the_back_off_of_a_host_begins_anew_after_a_connection_that_lasted",
        needs="sshd",
    ),
    _fault(
        "back_off_of_a_host_is_always_reset",
        "scheduler/ssh/host_connections.py",
        "if self._loop.now - connection.up_at > self._settings.retry_max_s:",
        "if True:",
        "ssh/test_connections.py::test_the_back_off_of_a_host_begins_anew_after_a_connection_that_lasted",
        needs="sshd",
    ),
    _fault(
        "deaths_of_an_ssh_process_are_never_reset",
        "scheduler/drivers/ssh_supervisor.py",
        "            self._deaths = 0\n",
        "            pass\n",
        "ssh/test_connections.py::test_back_off_of_the_ssh_process_doubles_until_one_has_lasted",
        needs="sshd",
    ),
    _fault(
        "each_connection_of_a_host_reads_ssh_config",
        "scheduler/ssh/host_connections.py",
        "hops = next((each.hops for each in self._connections), [])",
        "hops: list[Hop] = []",
        "ssh/test_ssh_config.py::test_all_connections_lead_to_one_machine_though_the_file_changes",
        needs="sshd",
    ),
    _fault(
        "words_of_ssh_config_are_never_refused",
        "scheduler/ssh/config_words.py",
        'yield advices.get(word, Refusal(word, "it is no word that Drover knows; leave it out for this host"))',
        "if False:\n                yield advices[word]",
        "ssh/test_ssh_config.py::test_a_word_that_cannot_be_followed_is_named_before_the_first_job",
        needs="sshd",
    ),
    _fault(
        "capitals_do_not_count_in_a_host_line",
        "scheduler/ssh/own_config.py",
        r'r"\?", "."), name)',
        r'r"\?", "."), name, re.IGNORECASE)',
        "ssh/test_config_readers.py::test_both_readers_lead_to_the_same_hosts_or_ours_names_the_line",
        needs="sshd",
    ),
    _fault(
        "all_keys_of_an_agent_are_offered",
        "scheduler/ssh/keyring.py",
        "if not hop.only_named and public not in named",
        "if public not in named",
        "ssh/test_log_in.py::test_no_other_key_of_an_agent_is_offered_with_identitiesonly",
        needs="sshd",
    ),
    _fault(
        "dot_of_known_hosts_is_any_character",
        "scheduler/ssh/known_hosts.py",
        r'wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")',
        'wild = pattern.replace("*", ".*").replace("?", ".")',
        "ssh/test_known_hosts.py::test_a_host_matched_by_no_pattern_is_refused_f8",
    ),
    _fault(
        "upper_end_of_a_range_is_outside",
        "scheduler/policy/run_queue.py",
        "first <= value <= last",
        "first <= value < last",
        "unit/test_placement.py::test_a_placement_value_maps_to_a_host_f15",
    ),
    _fault(
        "lower_end_of_a_range_is_outside",
        "scheduler/policy/run_queue.py",
        "first <= value <= last",
        "first < value <= last",
        "unit/test_placement.py::test_a_placement_value_maps_to_a_host_f15",
    ),
    _fault(
        "retention_removes_failed_jobs",
        "scheduler/model/config.py",
        '"failed": self.retention_failed',
        '"failed": -1',
        "integration/test_retention.py::test_retention_keeps_jobs_that_failed_r52",
    ),
    _fault(
        "wait_for_an_unknown_name_exits_0",
        "scheduler/cli/wait.py",
        "return 1 if missing else status",
        "return status",
        "integration/test_cli_submit.py::test_wait_for_an_unknown_name_fails_j57",
    ),
    _fault(
        "no_warning_of_an_expired_lease",
        "schema/cli.sql",
        " or g.group_lease_until < now()",
        "",
        "integration/test_cli_submit.py::test_wait_says_at_once_that_no_scheduler_is_active",
    ),
    _fault(
        "last_line_on_stderr_is_lost",
        "scheduler/policy/processes.py",
        "    if slot.output.partial_stderr:\n",
        "    if False:\n",
        "unit/test_stderr.py::test_each_line_on_stderr_is_logged_the_last_one_without_its_end_too_f80",
    ),
    _fault(
        "host_yields_again_at_once",
        "scheduler/policy/dispatch.py",
        "max(pool.starving_since, host.yielded_at)",
        "pool.starving_since",
        "unit/test_deadlines.py::test_a_busy_host_yields_to_a_waiting_type_once_per_interval_f120",
        "unit/test_deadlines.py::test_an_idle_agent_yields_to_a_waiting_type_once_per_interval_f120",
    ),
    _fault(
        "busy_host_that_yields_is_not_noted",
        "scheduler/policy/dispatch.py",
        "        host.keep_for(host.yields_to, now)\n",
        "        host.kept_for = host.yields_to\n",
        "unit/test_deadlines.py::test_a_busy_host_yields_to_a_waiting_type_once_per_interval_f120",
    ),
    _fault(
        "idle_host_that_yields_is_not_noted",
        "scheduler/policy/dispatch.py",
        "        room.victim.host.keep_for(pool, now)\n",
        "        room.victim.host.kept_for = pool\n",
        "unit/test_deadlines.py::test_an_idle_agent_yields_to_a_waiting_type_once_per_interval_f120",
    ),
    _fault(
        "slice_keeps_its_place",
        QUERIES,
        "jq_queued = case when u.back then now() else j.jq_queued end",
        "jq_queued = j.jq_queued",
        "drivers/test_queue_saves.py::test_row_given_back_keeps_its_position_unless_it_did_a_slice",
        near="-- name: save",
    ),
    _fault(
        "every_save_moves_to_the_end",
        QUERIES,
        "jq_queued = case when u.back then now() else j.jq_queued end",
        "jq_queued = now()",
        "drivers/test_queue_saves.py::test_row_given_back_keeps_its_position_unless_it_did_a_slice",
        near="-- name: save",
    ),
    _fault(
        "rescue_keeps_what_was_wanted",
        QUERIES,
        "jq_owner = null, jq_wanted = null,",
        "jq_owner = null,",
        "drivers/test_in_hand.py::test_rescue_ends_jobs_being_killed_or_interrupted_too_often_f126",
        near="-- name: rescue",
    ),
    _fault(
        "rescue_of_a_claimed_row_costs_an_interruption",
        QUERIES,
        "j.jq_interruptions + (j.jq_state = 'running')::integer",
        "j.jq_interruptions + 1",
        "drivers/test_in_hand.py::test_rescue_ends_jobs_being_killed_or_interrupted_too_often_f126",
        near="-- name: rescue",
    ),
    _fault(
        "one_interruption_too_many",
        QUERIES,
        "jq_interruptions >= jq_max_interruptions then 'failed' end as ends",
        "jq_interruptions > jq_max_interruptions then 'failed' end as ends",
        "drivers/test_in_hand.py::test_rescue_ends_jobs_being_killed_or_interrupted_too_often_f126",
        near="-- name: rescue",
    ),
    _fault(
        "host_that_is_configured_again_stays_away",
        QUERIES,
        "host_transport = excluded.host_transport, host_present = true",
        "host_transport = excluded.host_transport",
        "database/test_register.py::test_a_removed_queue_or_host_is_marked_until_configured_again",
        near="-- name: register",
    ),
    _fault(
        "type_that_is_configured_again_stays_away",
        QUERIES,
        "agent_revision = excluded.agent_revision, agent_present = true",
        "agent_revision = excluded.agent_revision",
        "database/test_register.py::test_a_removed_queue_or_host_is_marked_until_configured_again",
        near="-- name: register",
    ),
    _fault(
        "reservation_of_the_file_is_not_remembered",
        QUERIES,
        "        queue_reserved_file = excluded.queue_reserved_file,\n",
        "",
        "database/test_register.py::test_a_value_of_the_file_wins_only_when_it_has_changed",
        near="-- name: register",
    ),
    _fault(
        "file_wins_over_a_command_at_every_start",
        QUERIES,
        "case when t.host_max_file is distinct from excluded.host_max_file\n"
        "                        then excluded.host_max else t.host_max end",
        "excluded.host_max",
        "database/test_register.py::test_a_value_of_the_file_wins_only_when_it_has_changed",
        near="-- name: register",
    ),
    _fault(
        "living_standby_is_forgotten",
        QUERIES,
        "scheduler_seen < now() - make_interval(secs => :age::float8)",
        "scheduler_seen > now() - make_interval(secs => :age::float8)",
        "database/test_command_statements.py::test_daemons_are_forgotten_when_they_are_dead_and_not_before_j74",
        near="-- name: remove_dead",
    ),
    _fault(
        "dead_daemons_are_never_forgotten",
        QUERIES,
        "scheduler_seen < now() - make_interval(secs => :age::float8)",
        "false",
        "database/test_command_statements.py::test_daemons_are_forgotten_when_they_are_dead_and_not_before_j74",
        near="-- name: remove_dead",
    ),
    _fault(
        "retry_forgets_the_start_window",
        QUERIES,
        "jq_wait_until = case when a.jq_not_before > now() then a.jq_not_before end",
        "jq_wait_until = null",
        "database/test_command_statements.py::test_a_job_that_is_retried_still_waits_for_its_start",
        near="-- name: retry_job",
    ),
    _fault(
        "retry_keeps_the_old_result",
        QUERIES,
        "jq_exitcode = null, jq_signal = null, jq_result = null,",
        "",
        "database/test_command_statements.py::test_a_job_that_is_retried_shows_nothing_of_its_last_end",
        near="-- name: retry_job",
    ),
    _fault(
        "unblock_forgets_the_start_window",
        QUERIES,
        "jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end",
        "jq_wait_until = null",
        "database/test_command_statements.py::test_a_job_that_is_unblocked_still_waits_for_its_start_t85",
        near="-- name: unblock",
    ),
    _fault(
        "unblock_leaves_the_time_of_the_retry",
        QUERIES,
        "jq_retry_at = null,\n         ",
        "",
        "database/test_command_statements.py::test_a_job_that_is_unblocked_still_waits_for_its_start_t85",
        near="-- name: unblock",
    ),
    _fault(
        "some_of_the_queues_are_paused",
        QUERIES,
        " and (select names is null from missing)",
        "",
        "database/test_command_statements.py::test_queues_are_paused_all_or_none",
        near="-- name: pause_queues",
    ),
    _fault(
        "row_of_another_attempt_is_ours",
        QUERIES,
        "{{is_in_hand}} and",
        "(j.jq_owner = :owner::uuid and j.jq_state in ('claimed', 'running')) and",
        "database/test_command_statements.py::test_a_row_of_another_attempt_is_not_reported_as_ours",
        near="-- name: find_lost",
    ),
    _fault(
        "type_that_has_recovered_is_shown_as_failed",
        QUERIES,
        "\n        or u.seconds is not null or a.agent_blocked_until is not null\n",
        "\n",
        "database/test_command_statements.py::test_a_type_that_has_recovered_is_not_shown_as_failed",
        near="-- name: show_agents",
    ),
    _fault(
        "urgency_of_others_is_lost",
        QUERIES,
        "host_urgent = coalesce(:urgent::integer, host_urgent)",
        "host_urgent = :urgent::integer",
        "database/test_command_statements.py::test_a_host_command_leaves_other_settings_of_the_host",
        near="-- name: set_host",
    ),
    _fault(
        "held_job_is_taken_by_a_disowned_daemon",
        QUERIES,
        "{{holds_lease}}",
        "exists (select from drover.scheduler_group where group_name = :group::text)",
        "database/test_command_statements.py::test_a_command_is_carried_out_by_the_owner_of_the_group_only_c7[late-hold_job]",
        near="-- name: hold_job",
    ),
    _fault(
        "refused_command_is_read_again_at_once",
        "scheduler/daemon/command_rows.py",
        "            self._pass_over(row.pk, REFUSED_S)\n",
        "",
        "unit/test_command_reading.py::test_command_that_fails_now_is_skipped_for_a_while",
        near="def carry_out_next(self)",
    ),
    _fault(
        "deaths_of_exec_agents_count",
        "scheduler/policy/processes.py",
        "    slot.blame(False)\n",
        "",
        "unit/test_throttle.py::test_the_exit_of_an_exec_agent_belongs_to_its_item_and_does_not_count",
        near="def _exec_ended",
    ),
    _fault(
        "items_of_dead_agents_are_not_counted",
        "scheduler/policy/completion.py",
        "    slot.lose_item()\n",
        "",
        "unit/test_throttle.py::test_an_item_whose_agent_died_counts_as_an_item_of_its_slot",
        near="def lose_item(",
    ),
    _fault(
        "any_process_of_a_host_is_guarded",
        "scheduler/ssh/remote_scripts.py",
        'is_shim "$1" "$2" || {',
        "true || {",
        "ssh/test_strangers.py::test_host_that_says_the_pid_of_another_process_is_down_and_that_process_lives",
        needs="sshd",
    ),
    _fault(
        "what_is_found_is_killed_without_its_word",
        "scheduler/ssh/remote_scripts.py",
        'have_words -qs -f - "/proc/$1/environ" && look "$1"',
        'look "$1"',
        "ssh/test_left_groups.py::test_process_that_is_found_and_not_of_the_agent_is_not_killed_but_noted",
        needs="sshd",
    ),
    _fault(
        "what_has_left_the_group_of_an_agent_is_not_looked_for",
        "scheduler/ssh/remote_processes.py",
        "                control.sweep(lambda why: self._report(Note(why)))\n",
        "",
        "ssh/test_left_groups.py::test_what_has_left_the_group_of_an_agent_is_killed_when_that_exits",
        needs="sshd",
    ),
    _fault(
        "keeper_has_the_word_of_its_attach_script",
        "scheduler/drivers/keeper_scripts.py",
        "unset DROVER_WORD\n",
        "",
        "integration/test_detached.py::test_job_on_another_host_outlives_the_daemon_c41",
        needs="sshd",
    ),
    _fault(
        "script_is_sent_before_sh_reads",
        "scheduler/ssh/control_session.py",
        "        await_reply(channel, LoginOutput(word, read_reply), settings)\n        channel.sendall(script.line)\n",
        "        channel.sendall(script.line)\n        await_reply(channel, LoginOutput(word, read_reply), settings)\n",
        "ssh/test_login_shells.py::test_agents_start_behind_login_scripts_that_do_this[reads-input]",
        needs="sshd",
    ),
    _fault(
        "newlines_of_arguments_end_the_line_of_the_script",
        "scheduler/ssh/remote_scripts.py",
        """.replace("\\n", "'\\"$2\\"'")""",
        "",
        "ssh/test_login_shells.py::test_awkward_arguments_arrive_unchanged_through_each_login_shell[sh]",
        needs="sshd",
    ),
    _fault(
        "pid_of_an_agent_is_signalled_whoever_has_it",
        "scheduler/ssh/remote_scripts.py",
        'then [ "$began" = "$start" ]; return; fi',
        "then return 0; fi",
        "ssh/test_remote_scripts.py::test_process_that_got_the_pid_of_an_agent_is_not_killed",
    ),
    _fault(
        "a_process_starts_with_signals_ignored",
        "scheduler/drivers/os_calls.py",
        "setsigmask=(), setsigdef=RESET",
        "setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)",
        "integration/test_what_agents_inherit.py::test_ssh_processes_start_as_after_a_login_whoever_started_the_daemon",
        needs="sshd",
    ),
    _fault(
        "a_new_program_takes_its_own_limit_for_that_of_agents",
        "scheduler/drivers/processes.py",
        'tuple(snapshot.get("files") or own)',
        "own",
        "integration/test_what_agents_inherit.py::"
        "test_agents_of_a_program_that_took_over_have_the_limit_of_the_first_start",
    ),
    _fault(
        "a_program_that_is_being_written_is_the_items_fault",
        "scheduler/drivers/processes.py",
        "is_busy=number == errno.ETXTBSY",
        "is_busy=False",
        "integration/test_busy_programs.py::test_a_job_whose_program_is_being_written_waits_and_is_done",
    ),
    _fault(
        "a_later_line_hides_what_was_meant_as_ok",
        "scheduler/policy/output_buffers.py",
        "if lookalike(self.in_place_of_ok) != OK.decode():",
        "if True:",
        "unit/test_wrong_answers.py::test_the_log_says_what_an_agent_without_a_first_ok_has_printed",
    ),
    _fault(
        "senders_wait_for_an_exchange_of_keys",
        "scheduler/ssh/transport.py",
        "        with self.clear_to_send_lock:\n            if len(",
        "        self.clear_to_send.wait(30.0)\n        with self.clear_to_send_lock:\n            if len(",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
        "ssh/test_exchanges.py::test_channel_that_the_server_closes_amid_an_exchange_is_closed",
        "ssh/test_rekeying.py::test_bulk_both_ways_survives_exchanges_of_keys[we_after_4_MB]",
        needs="sshd",
    ),
    _fault(
        "packets_sent_during_an_exchange_of_keys_are_lost",
        "scheduler/ssh/transport.py",
        "            if self.active:",
        "            if self.active and self.clear_to_send.is_set():",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
        "ssh/test_rekeying.py::test_agents_that_start_and_end_all_the_time_survive_exchanges_of_keys[sshd_after_1_MB]",
        needs="sshd",
    ),
    _fault(
        "senders_wait_for_an_exchange_of_keys_that_is_corked",
        "scheduler/ssh/transport.py",
        "        with self.clear_to_send_lock:\n            if len(",
        "        with self.sock._lock:\n            self.clear_to_send.wait(30.0)\n"
        "        with self.clear_to_send_lock:\n            if len(",
        "ssh/test_rekeying.py::test_nothing_is_lost_when_sshd_exchanges_keys_each_second",
        "ssh/test_rekeying.py::test_bulk_both_ways_survives_exchanges_of_keys[sshd_after_1_MB]",
        needs="sshd",
    ),
    _fault(
        "packets_that_waited_for_new_keys_are_lost",
        "scheduler/ssh/transport.py",
        "self.packetizer.send_message(self._queued.popleft())",
        "self.packetizer.send_message(self._queued.popleft())\n            self._queued.clear()",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
        "ssh/test_rekeying.py::test_agents_that_start_and_end_all_the_time_survive_exchanges_of_keys",
        needs="sshd",
    ),
    _fault(
        "packets_that_waited_for_new_keys_are_reversed",
        "scheduler/ssh/transport.py",
        "self._queued.popleft()",
        "self._queued.pop()",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
    ),
    _fault(
        "packets_overtake_those_that_waited_for_new_keys",
        "scheduler/ssh/transport.py",
        "                self._queued.append(message)",
        "                self._queued.appendleft(message)",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
    ),
    _fault(
        "nothing_is_sent_when_new_keys_are_in_force",
        "scheduler/ssh/transport.py",
        "super()._parse_newkeys(message)\n        with self.clear_to_send_lock:\n            self._send_queued()",
        "super()._parse_newkeys(message)",
        "ssh/test_exchanges.py::test_packets_sent_during_an_exchange_follow_it_in_order",
    ),
    _fault(
        "an_exchange_of_keys_waits_in_a_corked_socket",
        "scheduler/ssh/transport.py",
        "            self.sock.uncork()\n",
        "",
        "ssh/test_exchanges.py::test_exchange_does_not_wait_for_a_corked_socket",
    ),
    _fault(
        "replies_are_sent_amid_an_exchange_of_keys",
        "scheduler/ssh/transport.py",
        "if kind > LAST_OF_TRANSPORT or kind in SERVICES:",
        "if kind in SERVICES:",
        "ssh/test_exchanges.py::test_request_of_the_server_amid_an_exchange_is_answered_after_it",
    ),
    _fault(
        "what_waits_for_new_keys_has_no_bound",
        "scheduler/ssh/transport.py",
        "len(self._queued) >= MAX_QUEUED",
        "len(self._queued) > 10 * MAX_QUEUED",
        "ssh/test_exchanges.py::test_connection_that_never_ends_an_exchange_keeps_a_bounded_number_of_packets",
    ),
    _fault(
        "requests_of_the_supervisor_stay_on_standard_input",
        "scheduler/ssh/__main__.py",
        "((null, 0), (writer, 1), (writer, STDERR))",
        "((writer, 1), (writer, STDERR))",
        "ssh/test_descriptors.py::test_descriptors_of_the_ssh_process_are_neither_its_requests_nor_the_daemons",
        needs="sshd",
    ),
    _fault(
        "key_that_is_not_enough_counts_as_refused",
        "scheduler/ssh/authentication.py",
        "        self._accepted.append(key.name)\n",
        "        self._refused.append(key.name)\n",
        "ssh/test_descriptors.py::test_host_that_wants_a_second_factor_answers_every_request",
        needs="sshd",
    ),
    _fault(
        "login_output_counts_as_noise_after_a_few_kilobytes",
        "scheduler/ssh/login_output.py",
        "self.count > MOST_BYTES",
        "self.count > KEPT_BYTES",
        "ssh/test_server_options.py::test_what_a_login_script_prints_is_passed_over_up_to_a_megabyte",
        needs="sshd",
    ),
    _fault(
        "parents_that_ended_plainly_are_not_settled",
        "scheduler/policy/queue_answers.py",
        'forget the ends that are saved."""\n    if event.parents:',
        'forget the ends that are saved."""\n    if False:',
        "unit/test_own_wakeups.py::test_children_of_a_job_that_ended_plainly_are_settled_at_once",
    ),
    _fault(
        "parents_that_failed_are_not_settled",
        "scheduler/policy/queue_answers.py",
        'those that are no longer ours."""\n    if event.parents:',
        'those that are no longer ours."""\n    if False:',
        "unit/test_own_wakeups.py::test_children_of_a_job_that_failed_are_settled_at_once",
    ),
    _fault(
        "jobs_given_back_wake_no_claim",
        "scheduler/policy/queue_answers.py",
        "claimed again at once\n        state.claims.wake()",
        "claimed again at once\n        pass",
        "unit/test_own_wakeups.py::test_a_job_that_was_given_back_is_claimed_again_at_once",
    ),
    _fault(
        "wait_of_a_retry_sets_no_timer",
        "scheduler/policy/queue_answers.py",
        "state.emit(e.FindNextDue())",
        "pass",
        "unit/test_own_wakeups.py::test_the_wait_of_a_job_that_is_tried_again_later_is_looked_for_at_once",
    ),
    _fault(
        "released_children_wake_no_claim",
        "scheduler/policy/queue_answers.py",
        "if event.released:\n        state.claims.wake()",
        "if event.released:\n        pass",
        "unit/test_own_wakeups.py::test_children_that_were_released_are_claimed_at_once",
    ),
    _fault(
        "rest_of_many_children_is_forgotten",
        "scheduler/policy/queue_answers.py",
        "if event.left is not None:",
        "if False:",
        "unit/test_own_wakeups.py::test_the_children_that_one_statement_did_not_reach_are_settled_next",
    ),
    _fault(
        "locked_children_are_forgotten",
        "scheduler/policy/queue_answers.py",
        "if event.locked:",
        "if False:",
        "unit/test_own_wakeups.py::test_children_that_were_locked_are_settled_when_the_lock_may_be_gone",
    ),
    _fault(
        "ends_that_gather_have_no_timer",
        "scheduler/policy/outbox.py",
        "self._deadlines.set(GATHER, self.gather_until)",
        "pass",
        "unit/test_own_wakeups.py::test_ends_that_wait_for_others_have_a_deadline",
    ),
    _fault(
        "claims_are_not_recorded_in_time",
        "scheduler/policy/queue_answers.py",
        "state.deadlines.bring_forward(RECORD, now + RECORD_AFTER)\n        _count",
        "_count",
        "unit/test_own_wakeups.py::test_what_was_claimed_is_recorded_and_its_progress_shown_in_time",
    ),
    _fault(
        "what_is_in_hand_is_recorded_once",
        "scheduler/policy/queue_answers.py",
        "    if recorded:\n        state.deadlines",
        "    if False:\n        state.deadlines",
        "unit/test_own_wakeups.py::test_what_is_in_hand_is_recorded_again_as_long_as_it_is",
    ),
    _fault(
        "tables_wake_no_claim",
        "scheduler/policy/state.py",
        "self.claims.ask_again()",
        "pass",
        "unit/test_own_wakeups.py::test_a_change_of_the_tables_has_every_place_asked",
    ),
    _fault(
        "reached_host_wakes_no_claim",
        "scheduler/policy/processes.py",
        "state.claims.wake()",
        "pass",
        "unit/test_own_wakeups.py::test_a_host_that_is_reached_has_its_places_asked",
    ),
    _fault(
        "rescan_wakes_no_claim",
        "scheduler/policy/queue_answers.py",
        "state.claims.look_again()",
        "pass",
        "unit/test_own_wakeups.py::test_a_notification_and_a_rescan_have_every_place_asked",
    ),
    _fault(
        "notified_job_counts_as_late",
        "scheduler/policy/claims.py",
        "self._late.clear()\n        self.ask_again()",
        "self.ask_again()",
        "unit/test_late_jobs.py::test_a_job_whose_notification_comes_after_it_was_found_is_not_counted",
    ),
    _fault(
        "children_on_their_way_count_as_late",
        "scheduler/policy/outbox.py",
        " - under_way - {*self.parents, *self.pending()}",
        "",
        "unit/test_late_jobs.py::test_children_whose_release_was_on_its_way_when_a_rescan_found_them_are_not_counted",
    ),
    _fault(
        "late_finds_do_not_wait_for_notifications",
        "scheduler/daemon/late_finds.py",
        "if at <= self.until}",
        "}",
        "unit/test_late_finds.py::test_nothing_is_late_before_its_notification_can_have_come",
    ),
    _fault(
        "timers_do_not_explain_late_finds",
        "scheduler/daemon/late_finds.py",
        "self._looking.pop(task, 0.0) > self._now() and count",
        "self._looking.pop(task, 0.0) and count",
        "unit/test_late_finds.py::test_what_a_timer_would_have_found_by_now_is_not_late",
    ),
    _fault(
        "host_in_trouble_is_not_asked_again",
        "scheduler/daemon/detached_jobs.py",
        "return bool(wanted)",
        "return False",
        "unit/test_detached_hosts.py::test_a_host_in_trouble_is_asked_again_until_it_has_removed_what_no_job_is_for",
    ),
    _fault(
        "host_that_was_not_reached_has_removed_all",
        "scheduler/daemon/detached_jobs.py",
        "if code not in (0, 1):",
        "if code not in (0, 1, None):",
        "unit/test_detached_hosts.py::test_a_host_in_trouble_is_asked_again_until_it_has_removed_what_no_job_is_for",
    ),
    _fault(
        "host_that_removed_nothing_has_answered",
        "scheduler/daemon/detached_jobs.py",
        "if code == 0:",
        "if code in (0, 1):",
        "unit/test_detached_hosts.py::test_what_the_database_knows_nothing_of_is_removed_after_the_trouble_of_its_host",
    ),
    _fault(
        "what_a_refused_statement_was_about_is_not_asked_again",
        "scheduler/daemon/detached_jobs.py",
        "self._asked -= dealt_with",
        "pass",
        "unit/test_detached_hosts.py::test_a_statement_that_fails_holds_up_the_removal_for_a_minute_at_most",
    ),
    _fault(
        "mark_forgets_the_spool_of_the_one_before",
        "scheduler/policy/outbox.py",
        "row = row._replace(spool=before.spool)",
        "row = row._replace()",
        "unit/test_detached.py::test_mark_that_replaces_one_not_yet_sent_keeps_where_the_job_is_kept_c41",
    ),
    _fault(
        "adopted_job_without_a_slot_waits_for_its_end",
        "scheduler/policy/detached_jobs.py",
        " or adoption.host not in job.pool.free:",
        ":",
        "unit/test_detached_hosts.py::test_an_adopted_job_is_ended_at_once_if_no_slot_of_its_type_is_on_its_host",
    ),
    _fault(
        "rescue_spares_a_job_of_which_a_host_keeps_any_attempt",
        QUERIES,
        "where det_jq_fk = jq_pk and det_attempt = jq_attempt)",
        "where det_jq_fk = jq_pk)",
        "drivers/test_in_hand.py::test_a_running_job_is_given_back_unless_a_host_keeps_this_attempt_of_it",
    ),
    _fault(
        "check_counts_no_job_blocked_since_it_was_read",
        QUERIES,
        "recovery_came = r.recovery_came - :came::integer",
        "recovery_came = 0",
        "drivers/test_watch_statements.py::test_jobs_blocked_since_a_check_was_read_count_for_the_next_one",
    ),
    _fault(
        "condition_with_a_new_job_is_forgotten",
        QUERIES,
        " and recovery_came = :came::integer",
        "",
        "drivers/test_watch_statements.py::test_a_condition_on_which_a_job_was_blocked_since_it_was_read_is_not_forgotten",
    ),
    _fault(
        "locked_jobs_of_a_condition_are_left",
        "scheduler/daemon/condition_checks.py",
        "AGAIN_S: Final = 1.0",
        "AGAIN_S: Final = 1e6",
        "unit/test_condition_checks.py::test_a_check_that_finds_jobs_locked_is_made_again_until_they_are_released",
    ),
    _fault(
        "conditions_that_are_over_are_forgotten_when_refused",
        "scheduler/daemon/periodic_tasks.py",
        'yield from self._ask("check_now", names=sorted(self._cleared))',
        'names, self._cleared = sorted(self._cleared), set()\n        yield from self._ask("check_now", names=names)',
        "unit/test_condition_checks.py::test_jobs_blocked_since_their_host_was_down_are_looked_at_though_a_statement_fails",
    ),
    _fault(
        "start_with_jitter_counts_as_missed",
        "scheduler/policy/schedules.py",
        "elif _due(schedule, at) <= now and _due(schedule, at) < since:",
        "elif at < since:",
        "unit/test_schedules.py::test_a_start_whose_jitter_is_not_over_was_not_missed",
    ),
    _fault(
        "locked_schedule_waits_for_a_rescan",
        "scheduler/daemon/schedule_starts.py",
        "waits.append(LOCKED_S)",
        "pass",
        "unit/test_schedule_starts.py::test_a_schedule_that_is_locked_is_tried_again_each_second_and_holds_up_no_other",
    ),
    _fault(
        "start_from_a_copy_is_no_use",
        "scheduler/drivers/program_files.py",
        "os.utime(copy)",
        "pass",
        "drivers/test_program_files.py::test_a_start_from_a_copy_counts_as_use_of_the_copy",
    ),
    _fault(
        "held_daemon_stays_held_after_a_failed_upgrade",
        "scheduler/daemon/upgrade.py",
        "if was_held:",
        "if not was_held:",
        "unit/test_upgrade.py::test_the_old_program_goes_on_if_something_does_not_end_in_time",
    ),
    _fault(
        "late_program_is_not_tried_again",
        "scheduler/daemon/upgrade.py",
        "if event is not UpgradeEvent.REFUSED:",
        "if event is UpgradeEvent.REFUSED:",
        "unit/test_upgrade.py::test_a_program_that_is_late_is_killed_and_tried_again_after_its_interval",
    ),
    _fault(
        "refused_program_is_tried_though_it_is_the_same",
        "scheduler/daemon/upgrade.py",
        "is_new = self._seen_files != self._tried_files or",
        "is_new = self._seen_files != self._own_files or",
        "unit/test_upgrade.py::test_a_program_that_was_refused_is_tried_again_when_its_files_change_and_not_before",
    ),
    _fault(
        "trial_of_a_late_program_goes_on",
        "scheduler/daemon/upgrade.py",
        "            self._trial.stop()\n            self._trial = None\n        self._fire(event)",
        "            self._trial = None\n        self._fire(event)",
        "unit/test_upgrade.py::test_a_program_that_is_late_is_killed_and_tried_again_after_its_interval",
    ),
    _fault(
        "shutdown_is_obeyed_at_each_try",
        "scheduler/daemon/command_rows.py",
        "is_new = row.pk not in self._obeyed",
        "is_new = True",
        "unit/test_commands_cut_off.py::test_a_shutdown_is_obeyed_once_though_a_statement_fails",
    ),
    _fault(
        "refused_end_of_a_command_waits_for_a_rescan",
        "scheduler/daemon/command_rows.py",
        "            self._read_in(REFUSED_S)\n            self._go_on()\n\n",
        "            self._go_on()\n\n",
        "unit/test_commands_cut_off.py::test_what_all_schedulers_have_acknowledged_ends_soon_though_a_statement_fails",
    ),
    _fault(
        "refused_end_of_runs_waits_for_a_rescan",
        "scheduler/daemon/command_rows.py",
        "            self._read_in(REFUSED_S)\n            self._go_on()\n            return False",
        "            self._go_on()\n            return False",
        "unit/test_commands_cut_off.py::test_runs_that_are_over_are_ended_soon_though_that_was_refused",
    ),
    _fault(
        "command_that_took_effect_is_tried_again",
        "scheduler/daemon/command_actions.py",
        'elif row.state == "skipped" and row.took_effect:',
        'elif row.state == "skipped" and not row.took_effect:',
        "unit/test_command_actions.py::test_a_command_that_took_effect_before_its_row_ended_has_no_second_effect",
    ),
    _fault(
        "batch_with_a_bad_row_is_given_up",
        "scheduler/daemon/bulk_changes.py",
        "batches.most = max(1, batches.most // 10)",
        "batches.most = batches.most",
        "unit/test_command_actions.py::test_a_batch_with_a_row_that_is_refused_shrinks_until_that_row_is_alone",
    ),
    _fault(
        "refused_counts_are_lost",
        "scheduler/daemon/periodic_tasks.py",
        "            self._uncounted = counted\n",
        "",
        "unit/test_periodic_failures.py::test_what_was_counted_is_written_down_though_the_statement_fails",
    ),
    _fault(
        "locked_page_is_passed_over",
        "scheduler/daemon/put_off_jobs.py",
        "if freed != found:",
        "if freed is None:",
        "unit/test_periodic_failures.py::test_a_page_with_locked_rows_is_read_again_before_the_next_one",
    ),
    _fault(
        "queue_is_done_before_all_is_saved",
        "scheduler/daemon/put_off_jobs.py",
        "if each.freed or each.began < each.known_at + SAVED_S:",
        "if each.freed:",
        "unit/test_periodic_failures.py::test_a_queue_is_done_when_a_pass_found_none_that_began_after_all_was_saved",
    ),
    _fault(
        "locked_row_is_not_rescued_again",
        "scheduler/daemon/periodic_tasks.py",
        'self._due["rescue"] = self._loop.now + again_s',
        "pass",
        "unit/test_periodic_failures.py::test_rows_given_back_late_since_they_were_locked_are_given_back_a_moment_later",
    ),
    _fault(
        "pass_over_parents_begins_anew",
        "scheduler/daemon/upkeep.py",
        "self._beyond = dict.fromkeys(_NUMBERED, 0) | self._beyond",
        "self._beyond = dict.fromkeys(_NUMBERED, 0)",
        "unit/test_periodic_failures.py::test_a_pass_over_parents_goes_on_where_it_was_though_a_statement_fails",
    ),
    _fault(
        "refused_counts_hold_up_no_upgrade",
        "scheduler/daemon/watch_connection.py",
        """        yield from self.periodic.save_counts()
        self._is_written_down = self._is_paused
""",
        """        self._is_written_down = self._is_paused
        yield from self.periodic.save_counts()
""",
        "drivers/test_written_down.py::test_counts_that_the_database_refuses_hold_up_the_next_program",
    ),
    _fault(
        "keys_that_were_to_be_repeated_are_forgotten",
        QUERIES,
        "keys || coalesce(a.jq_checkpoint -> 'again', '[]') as keys",
        "keys",
        "database/test_command_statements.py"
        "::test_a_job_killed_while_it_repeats_failed_items_repeats_those_it_had_not_reached",
    ),
    _fault(
        "each_line_put_back_is_one_more_start",
        "scheduler/policy/rates.py",
        "        if pk in self._begun:\n            self._begun.remove(pk)\n            if (value",
        "        if True:\n            self._begun.discard(pk)\n            if (value",
        "unit/test_rates.py::test_a_line_that_is_put_back_before_it_starts_counts_once",
    ),
    _fault(
        "jobs_count_for_values_of_another_attribute",
        "scheduler/policy/rates.py",
        "            self._values.clear()\n        if limit",
        "        if limit",
        "unit/test_rates.py::test_a_job_counts_for_no_value_of_the_attribute_that_a_reload_brings",
    ),
    _fault(
        "starts_count_for_values_of_another_attribute",
        "scheduler/policy/rates.py",
        "self.limit.by:\n            self._each.clear()\n",
        "self.limit.by:\n",
        "unit/test_rates.py::test_starts_for_another_attribute_leave_all_room_after_a_reload",
    ),
    _fault(
        "full_rate_has_no_timer",
        "scheduler/policy/state.py",
        "self.deadlines.set(RATES, min([rates.next_at(now) for rates in self.rated.values()]))",
        "pass",
        "unit/test_rates.py::test_each_start_leaves_room_when_it_is_over_and_not_when_the_next_one_is",
        "unit/test_rates.py::test_a_core_that_takes_over_claims_when_the_starts_of_the_former_owner_are_over_r57",
    ),
    _fault(
        "bytes_of_the_last_fetch_count",
        "scheduler/policy/state.py",
        "self.kept[job.pk] += size",
        "self.kept[job.pk] = size",
        "unit/test_expansions.py::test_rows_of_all_fetches_of_a_query_count_for_the_room_of_files_f49",
    ),
    _fault(
        "run_time_is_that_of_the_last_slice",
        "scheduler/policy/completion.py",
        "job.rules.elapsed + now - job.since\n    pool.ran",
        "now - job.since\n    pool.ran",
        "unit/test_counters.py::test_run_time_of_a_job_in_slices_is_that_of_all_slices",
    ),
    _fault(
        "failed_type_stays_failed_when_its_pause_is_over",
        "scheduler/policy/processes.py",
        "        state.unblock(slot.pool)\n",
        "",
        "unit/test_throttle.py::test_jobs_of_a_failed_type_are_claimed_again_as_soon_as_it_may_start",
    ),
    _fault(
        "nothing_is_assigned_after_a_save",
        "scheduler/policy/queue_answers.py",
        "    assign_again(state, now)\n    for row",
        "    for row",
        "unit/test_outbox.py::test_agents_are_given_work_again_when_failed_items_are_saved",
    ),
    _fault(
        "nothing_is_assigned_after_a_refusal",
        "scheduler/policy/queue_answers.py",
        "    assign_again(state, now)  # what was given up has left room\n",
        "",
        "unit/test_outbox.py::test_agents_are_given_work_again_when_the_database_has_refused_failed_items",
    ),
    *(
        _fault(
            f"health_tells_of_{what}_of_other_groups",
            "schema/cli.sql",
            old,
            new,
            "integration/test_cli_health.py::test_health_tells_what_is_wrong_in_its_own_group_only",
        )
        for what, old, new in (
            ("unserved_types", "(:group::text is null or queue_group = :group) and not", "not"),
            ("failed_types", "where a.agent_group = :group and a.agent_present and", "where a.agent_present and"),
            ("programs", "where agent_group = :group and agent_present and", "where agent_present and"),
            ("hosts", "where h.host_group = :group and", "where"),
            (
                "statements",
                "where scheduler_group = :group and status_slot = -1 and status_reason",
                "where status_reason",
            ),
        )
    ),
    _fault(
        "group_that_has_ended_is_killed_at_the_end_of_the_lease",
        "scheduler/ssh/remote_scripts.py",
        """is_ours "${one%%/*}" && kill_group KILL""",
        "kill_group KILL",
        "ssh/test_remote_scripts.py::test_process_that_got_the_pid_of_an_agent_is_not_killed",
    ),
    _fault(
        "pass_over_put_off_jobs_ends_before_its_instant",
        "scheduler/daemon/put_off_jobs.py",
        "each.began = each.next_at = max(",
        "each.began = max(",
        "unit/test_put_off_jobs.py::test_a_job_that_is_put_off_after_the_change_was_read_is_freed_too",
    ),
    *(
        _fault(
            name,
            file,
            old,
            new,
            f"integration/test_changes_in_the_database.py::{test}",
            near=near,
        )
        for name, file, near, old, new, test in (
            (
                "changed_wait_is_not_notified",
                MIGRATIONS,
                "begin",
                "where new.jq_wait_until is not null;",
                "where false;",
                "test_a_job_begins_as_soon_as_sql_lets_it",
            ),
            (
                "changed_end_of_the_start_window_does_not_count",
                MIGRATIONS,
                "",
                "of jq_not_before, jq_not_after on",
                "of jq_not_before on",
                "test_a_job_whose_start_window_sql_ends_fails_at_once",
            ),
            (
                "changed_check_is_not_notified",
                MIGRATIONS,
                "recovery_sooner",
                "(new.recovery_next < old.recovery_next)",
                "(false)",
                "test_a_blocked_job_is_tried_again_as_soon_as_sql_says_so",
            ),
            (
                "children_of_unblocked_jobs_that_fail_are_not_settled",
                "scheduler/daemon/condition_checks.py",
                "_released",
                "context.settle_listed(parents)",
                "pass",
                "test_children_of_a_job_that_fails_when_it_is_unblocked_begin_at_once",
            ),
            (
                "children_of_blocked_jobs_that_fail_are_not_settled",
                "scheduler/daemon/condition_checks.py",
                "def _failed",
                "context.settle_listed(parents)",
                "pass",
                "test_children_of_a_job_whose_condition_lasts_too_long_begin_at_once",
            ),
            (
                "children_of_jobs_released_too_late_are_not_settled",
                "scheduler/daemon/periodic_tasks.py",
                "_release_due",
                "self.context.settle_listed(failed_parents)",
                "pass",
                "test_children_of_a_job_that_is_too_late_when_it_is_released_begin_at_once",
            ),
            (
                "children_of_ignored_jobs_are_not_settled",
                "scheduler/daemon/command_actions.py",
                "begin_run",
                "context.settle_listed(parents)",
                "pass",
                "test_children_of_a_job_that_no_scheduler_runs_begin_at_once",
            ),
            (
                "children_of_many_cancelled_jobs_are_not_settled",
                "scheduler/daemon/bulk_changes.py",
                "change_jobs",
                "context.settle_listed(parents)",
                "pass",
                "test_children_of_jobs_that_one_command_cancels_begin_at_once",
            ),
        )
    ),
    _fault(
        "status_of_a_daemon_wakes_daemons",
        MIGRATIONS,
        "after update of agent_group, agent_present, agent_enabled on",
        "after update of agent_group, agent_present, agent_enabled, agent_trial on",
        "database/test_register.py::test_what_a_daemon_shows_of_its_types_and_hosts_wakes_no_daemon",
    ),
)


class UnplantableError(Exception):
    """The text that a fault changes is not in the product any more, or is there more than once."""


def mutated(fault: Planted, root: Path = ROOT) -> tuple[Path, str]:
    """Return the file that has the text of a fault, and its content with the fault. Errors: UnplantableError."""
    found = [
        (path, text, places)
        for path in sorted(root.glob(fault.file))
        if (places := _places(fault, text := path.read_text()))
    ]
    where = f"{fault.file} near {fault.near!r}" if fault.near else fault.file
    if not found:
        raise UnplantableError(f"{fault.name} cannot be planted any more: {where} has no {fault.old!r}")
    path, text, places = found[-1]
    times = sum(text[place].count(fault.old) for place in places)
    if times != 1:
        raise UnplantableError(
            f"{fault.name} cannot be planted any more: {where} has {fault.old!r} {times} times, not once"
        )
    (place,) = places
    return path, text[: place.start] + text[place].replace(fault.old, fault.new) + text[place.stop :]


def _places(fault: Planted, text: str) -> list[slice]:
    """Return the paragraphs that have what a fault changes, and what it is near to."""
    return [place for place in _paragraphs(text) if fault.near in text[place] and fault.old in text[place]]


def _paragraphs(text: str) -> list[slice]:
    """Return where the paragraphs are: what stands between empty lines."""
    ends = [each.end() for each in re.finditer(r"\n\n+", text)]
    return [slice(begin, end) for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]


class Copy:
    """A copy of the project in which faults are planted, one at a time."""

    def __init__(self, root: Path, server: str) -> None:
        self.root = root
        self._environment = _without(os.environ, "PYTHONDONTWRITEBYTECODE") | {
            SERVER: server, "DROVER_TEST_REQUIRE": "all", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of a start
        }  # fmt: skip
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, root / part)
        self._python = _interpreter(root)

    @contextmanager
    def planted(self, fault: Planted) -> Iterator[None]:
        """Plant a fault for a while."""
        path, text = mutated(fault, self.root)
        before = path.read_text()
        self._write(path, text)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write a file, with a time that no compiled module has: two edits in one second look the same."""
        path.write_text(text)
        os.utime(path, (stamp := next(_YEARS), stamp))

    def failures(self, tests: tuple[str, ...]) -> tuple[set[str], str]:
        """Run tests; return which of them failed, an error in their set-up not counted, and what pytest said."""
        words = ["-m", "pytest", "-p", "pytest_timeout", "--tb=short", "-rfE", f"--timeout={LIMIT_S}", *tests]
        done = subprocess.run(
            [str(self._python), *words],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        named = {test for test in tests if any(re.fullmatch(re.escape(test) + r"(\[.*)?", each) for each in failed)}
        return named, done.stdout + done.stderr


def _without(environment: Mapping[str, str], name: str) -> dict[str, str]:
    return {each: text for each, text in environment.items() if each != name}


def _interpreter(root: Path) -> Path:
    """Return a Python that imports the copy, in every process that it starts, and from here what is installed."""
    folder = root / ".venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages / "copy.pth").write_text("\n".join([str(root), *installed]))
    return folder / "bin" / "python"


@contextmanager
def copied() -> Iterator[Copy]:
    """Yield a copy of the project, and a server for its tests."""
    with TemporaryDirectory(prefix="drover-planted-") as folder, in_memory() as server:
        yield Copy(Path(folder), server)


def main(names: list[str]) -> int:
    """Plant faults and print which tests fail; the exit status is how many faults no test saw."""
    survivors = 0
    with copied() as copy:
        for fault in FAULTS:
            if names and fault.name not in names:
                continue
            with copy.planted(fault):
                failed, _ = copy.failures(fault.tests)
            print(f"{fault.name}: {', '.join(sorted(failed)) or 'SURVIVES'}", flush=True)
            survivors += not failed
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
