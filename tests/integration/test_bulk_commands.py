"""Commands about all jobs that a filter finds, by the real daemon and the real command: one row, batch by batch."""

import subprocess
from pathlib import Path
from signal import SIGINT, default_int_handler, signal

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from tests.cli_tools import DROVER, Done, environment
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.integration.puppets import puppet
from tests.patience import LONG_PATIENCE_S
from tests.terminal_tools import on_terminal

MANY = """
insert into drover.jobqueue (jq_type, jq_args) select 'other', i::text from generate_series(1, %s) as i
"""
COMMANDS = "select count(*) from drover.jobqueue where jq_type = 'command'"
EVENTS = """
select min(events) as least, max(events) as most, count(*) as jobs
  from (select count(ev_pk) as events from drover.jobqueue left join drover.event on ev_jq_fk = jq_pk
         where jq_type = 'other' group by jq_pk) e
"""


def give(daemon: Daemon, words: str, role: str = "drover_operator", **chosen: object) -> int:
    (row,) = daemon.execute("select drover.command(%s, %s) as pk", words, Jsonb(chosen), role=role)
    return int(row["pk"])


def states(daemon: Daemon, kind: str) -> dict[str, int]:
    query = "select jq_state::text as state, count(*) as jobs from drover.jobqueue where jq_type = %s group by 1"
    return {row["state"]: row["jobs"] for row in daemon.execute(query, kind)}


def test_one_command_cancels_all_queued_jobs_of_a_type(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet())
    daemon.execute(MANY, 3000)
    held = daemon.insert(jq_type="other", jq_state="held")
    done = ask("cancel --type other --state queued --reason because --yes")
    assert done == Done(0, "cancel: 3,000 of 3,000 jobs\n", "")
    assert states(daemon, "other") == {"cancelled": 3000, "held": 1}
    assert daemon.value(COMMANDS) == 1
    assert daemon.row(held - 1)["jq_endtext"] == "cancelled by drover_operator: because"
    assert daemon.value("select count(*) from drover.claimable") == 0


def test_daemon_that_follows_a_killed_one_goes_on_and_cancels_each_job_once(launch: Launch) -> None:
    daemon = launch("[hosts.local]\n" + puppet())
    daemon.execute("select drover.subscribe(kind => 'status', is_site => true)", role="drover_operator")
    daemon.execute(MANY, 5000)
    command = give(daemon, "cancel", type="other")
    daemon.until(lambda: daemon.row(command)["jq_itemsprocessed"] > 0)
    daemon.kill()
    done = daemon.row(command)["jq_itemsprocessed"]
    assert 0 < done < 5000
    assert states(daemon, "other") == {"cancelled": done, "queued": 5000 - done}
    second = launch("[hosts.local]\n" + puppet())
    row = second.wait(command)
    assert (row["jq_itemsprocessed"], row["jq_endtext"]) == (5000, "cancel: 5000 jobs")
    assert states(second, "other") == {"cancelled": 5000}
    assert second.execute(EVENTS) == [{"least": 1, "most": 1, "jobs": 5000}]


def test_jobs_in_hand_are_ended_with_the_others(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet(slots=2))
    jobs = daemon.insert_all([{"jq_type": "puppet", "jq_args": "sleep 600"} for _ in range(8)])
    daemon.until(lambda: states(daemon, "puppet").get("running") == 2)
    assert ask("cancel --type puppet --yes").out == "cancel: 8 of 8 jobs\n"
    daemon.wait_all(jobs, "cancelled")


def test_jobs_in_hand_are_killed_by_one_command(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet(slots=2))
    jobs = daemon.insert_all([{"jq_type": "puppet", "jq_args": "sleep 600"} for _ in range(2)])
    daemon.until(lambda: states(daemon, "puppet").get("running") == 2)
    assert ask("kill --type puppet --yes").out == "kill: 2 of 2 jobs\n"
    assert [row["jq_endtext"] for row in daemon.wait_all(jobs, "failed")] == [
        "killed by command of drover_operator"
    ] * 2


def test_jobs_in_hand_of_another_group_are_ended_by_its_daemon(launch: Launch) -> None:
    launch("[hosts.local]\n" + puppet())
    far = launch("[scheduler]\ngroup = 'far'\n[hosts.beta]\n" + puppet())
    job = far.insert(jq_type="puppet", jq_args="sleep 600", jq_queue="far")
    far.wait(job, "running")
    give(far, "cancel enough", queue="far")
    assert far.wait(job, "cancelled")["jq_endtext"] == "cancelled by drover_operator: enough"


def test_answer_counts_apart_what_was_given_to_another_group(launch: Launch, ask: Ask) -> None:
    launch("[hosts.local]\n" + puppet())
    far = launch("[scheduler]\ngroup = 'far'\n[hosts.beta]\n" + puppet())
    job = far.insert(jq_type="puppet", jq_args="sleep 600", jq_queue="far")
    far.wait(job, "running")
    far.insert(jq_type="puppet", jq_state="held")
    done = ask("cancel --type puppet --yes")
    assert done == Done(0, "cancel: 1 of 2 jobs\n1 given to the scheduler of group far, by a command about each\n", "")
    far.wait(job, "cancelled")


def test_jobs_in_hand_are_found_by_the_state_running(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet(slots=2))
    jobs = daemon.insert_all([{"jq_type": "puppet", "jq_args": "sleep 600"} for _ in range(2)])
    daemon.until(lambda: states(daemon, "puppet").get("running") == 2)
    assert ask("cancel --type puppet --state running --yes").out == "cancel: 2 of 2 jobs\n"
    daemon.wait_all(jobs, "cancelled")


def test_ctrl_c_says_which_command_goes_on(launch: Launch, database_with_roles: str, config: Path) -> None:
    daemon = launch("[hosts.local]\n" + puppet())
    jobs = daemon.insert_all([{"jq_type": "other"} for _ in range(3)])
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    words = [*DROVER, "cancel", "--type", "other", "--yes"]
    before = signal(SIGINT, default_int_handler)  # a shell lets what it starts with & ignore it
    waits = "select count(*) from pg_stat_activity where application_name = 'drover-wait'"
    with psycopg.connect(database_with_roles) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (jobs[0],))
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=variables) as process:
            signal(SIGINT, before)
            daemon.until(lambda: states(daemon, "other").get("cancelled") == 2 and daemon.value(waits) == 1)
            process.send_signal(SIGINT)
            _, told = process.communicate(timeout=LONG_PATIENCE_S)
    command = daemon.value("select max(jq_pk) from drover.jobqueue where jq_type = 'command'")
    assert (process.returncode, told.splitlines()[-1]) == (
        130, f"drover: command {command} goes on in the scheduler until it ends; drover wait {command} waits for that"
    )  # fmt: skip
    daemon.wait_all(jobs, "cancelled")


def test_last_line_about_the_progress_is_not_the_first_again(
    launch: Launch, database_with_roles: str, config: Path
) -> None:
    daemon = launch("[hosts.local]\n" + puppet())
    jobs = daemon.insert_all([{"jq_type": "other"} for _ in range(3)])
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with psycopg.connect(database_with_roles) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (jobs[0],))
        words = [*DROVER, "cancel", "--type", "other", "--yes"]
        with on_terminal(words, variables, columns=200) as (shown, _):
            shown.until("2 of 3 jobs")
            begun = len(shown.text)
            other.execute("select pg_sleep(0.4)")  # a line that was just drawn is not drawn again
            other.rollback()
            assert "0 of 3 jobs" not in shown.read_all()[begun:]
    assert shown.text.endswith("cancel: 3 of 3 jobs\n")


def test_held_jobs_are_released_moved_and_worked_each_once(launch: Launch, ask: Ask, record: Path) -> None:
    daemon = launch("[hosts.local]\n" + agent("rec", rec(record), slots=2) + "[queues.night]\n")
    daemon.execute("insert into drover.jobqueue (jq_type, jq_args, jq_state)"
                   " select 'rec', i::text, 'held' from generate_series(1, 200) i")  # fmt: skip
    assert ask("move --type rec --state held night --yes").out == "move: 200 of 200 jobs\n"
    assert ask("priority --type rec a --yes").out == "priority: 200 of 200 jobs\n"
    assert ask("release --queue night --yes").out == "release: 200 of 200 jobs\n"
    daemon.until(lambda: states(daemon, "rec") == {"done": 200})
    assert sorted(map(int, lines(record))) == list(range(1, 201))


def test_other_commands_are_carried_out_beside_a_long_one(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet())
    daemon.execute(MANY, 20_000)
    command = give(daemon, "cancel", type="other")
    daemon.until(lambda: daemon.row(command)["jq_itemsprocessed"] > 0)
    assert ask("poll").status == 0
    assert daemon.row(command)["jq_state"] == "queued"


def test_move_of_one_job_is_refused_without_its_queue(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet() + "[queues.night]\n")
    job = daemon.insert(jq_type="other")
    assert ask(f"move {job} night") == Done(0, f"job {job}: in queue night\n", "")
    assert daemon.row(job)["jq_queue"] == "night"
    assert ask(f"move {job} nosuch") == Done(1, "", "drover: no queue nosuch\n")
    assert ask("move --type other nosuch --yes") == Done(1, "", "drover: no queue nosuch\n")


def test_jobs_say_who_cancelled_or_killed_them_by_one_command_or_by_many_g11(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet(slots=3))
    waiting, bulk = daemon.insert(jq_type="other"), daemon.insert(jq_type="others")
    running, killed, many = (daemon.insert(jq_type="puppet", jq_args="sleep 600") for _ in range(3))
    daemon.wait_all([running, killed, many], "running")
    ask(f"cancel --reason enough {waiting} {running}")
    ask(f"kill {killed}")
    ask("cancel --type others --yes")
    ask("kill --type puppet --yes")
    daemon.wait_all([waiting, running, bulk], "cancelled")
    daemon.wait_all([killed, many], "failed")
    at = "to_char(jq_endtime, 'HH24:MI')"
    times = {row["jq_pk"]: row["at"] for row in daemon.execute(f"select jq_pk, {at} as at from drover.jobqueue")}
    assert {job: daemon.why(job) for job in (waiting, running, bulk, killed, many)} == {
        waiting: f"cancelled by drover_operator at {times[waiting]}: enough",
        running: f"cancelled by drover_operator at {times[running]}: enough",
        bulk: f"cancelled by drover_operator at {times[bulk]}",
        killed: f"failed (killed): killed by command of drover_operator at {times[killed]}",
        many: f"failed (killed): killed by command of drover_operator at {times[many]}",
    }
    assert f"cancelled by drover_operator at {times[bulk]}\n" in ask(f"show {bulk}").out
