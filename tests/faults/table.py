"""Which test shows which row of the fault table, where it is not one of this package, and the table printed."""

from collections.abc import Mapping
from typing import Final

from tests.faults.launcher import BUCKETS
from tests.faults.site import Tally

HEADING: Final = f"{'fault':<58} {'runs':>5} {'violations':>10} {'p99.9 ms':>9} {'longest ms':>10}"
I = "tests/integration/"  # noqa: E741
D = "tests/drivers/"

# Row name -> counts, filled while the tests run. Here and not in a conftest: pytest must be the first to import
# Hypothesis, which the conftests need, and `python -m tests.faults` reads this before it calls pytest.
TALLIES: Final[dict[str, Tally]] = {}

# Faults that other tests bring about with real daemons, real processes and a real Postgres.
ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "kill -9 agents: six spawns, then a pause": (
        f"{I}test_agent_life.py::test_an_agent_that_dies_at_once_is_failed_after_six_spawns_f70_f72_t15",
        f"{I}test_agent_life.py::test_the_throttle_scales_and_lets_a_slot_try_again_f71_f73_t15",
    ),
    "SIGSTOP agent: hang-up is ignored, SIGKILL works": (
        f"{D}test_processes.py::test_a_stopped_process_gets_sigkill_f113",
    ),
    "lock wait": (f"{I}test_breakage.py::test_a_locked_table_delays_jobs_and_loses_none",),
    "read-only database": (f"{I}test_breakage.py::test_a_read_only_database_delays_jobs_and_loses_none",),
    "endless queries, and a daemon that dies": (
        f"{I}test_breakage.py::test_an_endless_query_does_not_outlive_a_daemon_that_was_killed",
        f"{I}test_breakage.py::test_a_query_that_ends_its_own_connection_is_not_retried_for_ever",
    ),
    "floods, lines without end, agents that never read": (
        f"{I}test_bad_input.py::test_a_flood_on_stderr_delays_no_job",
        f"{I}test_agent_protocol.py::test_an_agent_that_floods_its_output_delays_no_other_f75",
        f"{I}test_agent_protocol.py::test_an_agent_that_does_not_read_its_line_is_killed_without_delaying_others",
        f"{I}test_agent_protocol.py::test_an_endless_line_fails_the_item_and_kills_the_agent_f102",
    ),
    "garbage rows": (
        f"{I}test_bad_input.py::test_why_shows_the_reason_of_a_job_of_an_unknown_type_f43",
        f"{I}test_bad_input.py::test_a_query_is_processed_or_fails_with_its_reason",
        f"{I}test_bad_input.py::test_bytes_that_are_not_utf_8_reach_the_agent_unchanged",
        f"{I}test_breakage.py::test_a_query_with_parameters_fails_at_once",
        f"{I}test_breakage.py::test_a_row_with_a_very_distant_start_does_not_delay_others",
    ),
    "bad configuration at a reload": (f"{I}test_reload.py::test_a_broken_configuration_changes_nothing_r84",),
    "sshd killed, refused, or of another key": (
        f"{I}test_ssh_hosts.py::test_jobs_of_a_lost_host_run_elsewhere_or_wait_and_run_once_r2_r3_c56",
        f"{I}test_ssh_hosts.py::test_items_of_a_query_survive_the_loss_of_a_host",
        f"{I}test_ssh_hosts.py::test_an_unreachable_host_delays_no_other_and_why_says_so_f10_c53_c25",
    ),
    "blackhole: the network of a host falls silent": (
        f"{I}test_ssh_hosts.py::test_a_host_that_becomes_silent_is_lost_and_reconnected_c56_j73",
    ),
    "EMFILE at a start": (f"{D}test_spawn.py",),
    "kill -9 daemon or agent in the middle of a clean-up": (
        f"{I}test_cleanup.py::test_a_clean_up_is_repeated_if_its_daemon_was_killed_during_it_r80_r85",
        f"{I}test_cleanup.py::test_a_clean_up_is_repeated_if_its_agent_died_during_it_r46",
    ),
    "detached jobs: daemon, guardian, link, host and disk are lost": (
        f"{I}test_detached.py::test_job_goes_on_when_its_daemon_is_killed_and_is_adopted_c41",
        f"{I}test_detached.py::test_job_goes_on_when_guardian_and_daemon_are_killed_c41",
        f"{I}test_detached.py::test_job_goes_on_when_its_connection_is_cut_c41",
        f"{I}test_detached.py::test_start_whose_connection_is_lost_on_its_way_runs_once_c41",
        f"{I}test_detached.py::test_reboot_of_the_host_is_an_interruption_c41",
        f"{D}test_keeper.py::test_disk_that_is_full_later_costs_output_and_not_the_exit_status_c41",
    ),
    "nobody outlives a daemon": (f"{I}test_guardian.py::test_no_process_survives_a_killed_daemon_f115",),
}


def line(name: str, tally: Tally) -> str:
    """One row of the table; the gaps are those of the daemons' loops, if any was measured."""
    violations = "meant" if tally.is_planted else str(tally.violations)
    measured = sum(tally.gaps[:BUCKETS]) > 0
    often = f"{tally.gap_within_ms(0.999):.1f}" if measured else "-"
    longest = f"{tally.gaps[BUCKETS] / 1e6:.1f}" if measured else "-"
    return "\n".join([f"{name:<58} {tally.runs:>5} {violations:>10} {often:>9} {longest:>10}",
                      *(f"    {note}" for note in tally.notes)])  # fmt: skip
