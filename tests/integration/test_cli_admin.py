"""The commands that set up, command and list, against a real daemon; each ends with 1 if it was refused."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from signal import SIGINT, default_int_handler, signal

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session
from scheduler.cli.wait import REDRAW_S, redraw
from tests.cli_tools import CONFIG, DROVER, Done, environment
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec
from tests.needs import need
from tests.patience import PATIENCE_S

HOST = "[hosts.alpha]\nmax = 8\n"
NAP = python("import sys, time; print('up', flush=True); time.sleep(1000)")
SAY = python("import sys; print('out', *sys.argv[1:]); print('err', file=sys.stderr); sys.exit(len(sys.argv) - 2)")
LONG_S = 100_000.0


@pytest.fixture
def text(record: Path) -> str:
    return HOST + agent("a", rec(record), slots=2) + agent("nap", NAP, kind="exec", slots=2)


@pytest.fixture
def follow(database_with_roles: str, config: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Start the real command as a member of drover_operator, and read what it prints; it is interrupted at the end."""
    before = signal(SIGINT, default_int_handler)  # a shell lets what it starts with & ignore it
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with ExitStack() as started:

        def run(line: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen([*DROVER, *line.split()], stdout=subprocess.PIPE, text=True, env=variables)
            started.enter_context(process)
            started.callback(process.kill)
            return process

        yield run
    signal(SIGINT, before)


def state(daemon: Daemon, pk: int) -> str:
    return str(daemon.row(pk)["jq_state"])


def running(daemon: Daemon) -> int:
    pk = daemon.insert(jq_type="nap")
    daemon.wait(pk, "running")
    return pk


# ---- setup


def test_setup_makes_a_held_job_with_its_variables_r24_r28(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    done = ask("setup a.simpsons-8761230871234", "userid=simpsons\ninvoice='a \"b\" $c'\n")
    assert (done.status, done.err) == (0, "")
    row = daemon.row(int(done.out))
    assert (row["jq_name"], row["jq_type"], row["jq_state"]) == ("a.simpsons-8761230871234", "a", "held")
    assert row["jq_variables"] == {"userid": "simpsons", "invoice": 'a "b" $c'}


def test_setup_with_a_priority_r29(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    assert daemon.row(int(ask("setup -p a1 a.1").out))["jq_priority"] == "a1"
    assert daemon.row(int(ask("setup a.2", "jq_priority=b\njq_retries=3\n").out))["jq_retries"] == 3
    refused = ask("setup -p a! a.3")
    assert (refused.status, refused.out) == (2, "")


def test_setup_twice_gives_the_same_job_and_says_so_r10(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    first, second = ask("setup a.1", "x=1"), ask("setup a.1", "x=2")
    assert (second.status, second.out) == (0, first.out)
    assert second.err == "drover: a.1 exists already; it was left as it is\n"
    assert daemon.row(int(first.out))["jq_variables"] == {"x": "1"}


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        (
            "a.1",
            "x=1\njq_retries=many\n",
            'jq_retries: invalid input syntax for type integer: "many"; nothing was set up',
        ),
        ("a.1", "jq_timeout=soon\njq_retries=1\n", "jq_timeout: invalid input syntax for type interval"),
        ("a.1", "x=1\nnonsense\n", "stdin:2: expected NAME=value or NAME=(a b); nothing was set up"),
        ("a.1", "x=$(touch x)\n", "stdin:1: '$(' must be quoted, since nothing is executed here; nothing was set up"),
        ("a.1", "rjm_frobnicate=1\n", "names that begin with jq_ or rjm_ are reserved"),
        ("a.1", "jq_state=done\n", "names that begin with jq_ or rjm_ are reserved"),
        ("a.1", "rjm_blocks=(a.nosuch)\n", "no job 'a.nosuch'"),
        ("a.b.c", "", "job name 'a.b.c'"),
    ],
)
def test_what_cannot_be_set_up_is_refused_with_the_reason_r20_r22_r26_r37(
    launch: Launch, text: str, ask: Ask, name: str, data: str, reason: str
) -> None:
    daemon = launch(text)
    done = ask(f"setup {name}", data)
    assert (done.status, done.out) == (2, "")
    assert reason in done.err
    assert daemon.value("select count(*) from drover.jobqueue") == 0


def test_setup_refuses_an_unserved_type_but_not_an_existing_job(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    refused = ask("setup nosuch.1", "x=1")
    assert refused == Done(
        1,
        "",
        "drover: no scheduler serves type nosuch (served: a, nap); correct it, or queue it nevertheless with --force\n",
    )
    forced = ask("setup --force nosuch.1", "x=1")
    assert (forced.status, daemon.row(int(forced.out))["jq_state"]) == (0, "held")
    assert ask("setup nosuch.1", "x=1").out == forced.out
    for where in ("queue", "host"):
        assert (
            ask("setup a.1", f"jq_{where}=far").err
            == f"drover: there is no {where} far; correct it, or queue it nevertheless with --force\n"
        )


# ---- one command for each job


def test_release_starts_what_was_held_by_name_or_number_r28_r30(
    launch: Launch, text: str, ask: Ask, record: Path
) -> None:
    daemon = launch(text)
    named, numbered = int(ask("setup a.1", "x=1").out), daemon.insert(jq_type="a", jq_args="x", jq_state="held")
    assert [state(daemon, pk) for pk in (named, numbered)] == ["held", "held"]
    done = ask(f"release a.1 {numbered}")
    assert (done.status, done.err, len(done.out.splitlines())) == (0, "", 2)
    daemon.wait_all([named, numbered])
    assert sorted(lines(record)) == ["x", 'x="1"']
    assert ask("release a.1").status == 0
    for unknown in ("a.nosuch", "4711"):
        refused = ask(f"release {unknown}")
        assert (refused.status, refused.out) == (1, "")
        assert refused.err.startswith(f"drover: no job {unknown}")


@pytest.mark.slow
def test_hold_ice_and_retry_work_from_the_command_line(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text + agent("fail", ["false"], kind="exec"))
    waiting = daemon.insert(jq_type="unknown")
    assert (ask(f"hold {waiting}").status, state(daemon, waiting)) == (0, "held")
    assert (ask(f"ice {waiting}").status, state(daemon, waiting)) == (0, "skipped")
    failing = daemon.insert(jq_type="fail")
    daemon.wait(failing, "failed")
    assert ask(f"retry {failing}").status == 0
    daemon.until(lambda: daemon.row(failing)["jq_attempt"] == 2)
    refused = ask(f"retry {waiting}")
    assert (refused.status, refused.out) == (1, "")


def test_refused_retry_names_resubmit_which_works(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    late = daemon.insert(jq_type="a", jq_args="x", jq_not_after=daemon.value("select timestamptz '2000-01-01'"))
    daemon.wait(late, "failed")
    refused = ask(f"retry {late}")
    assert refused.status == 1
    assert refused.err.endswith(f"; drover resubmit {late} queues it once more, without that\n")
    again = json.loads(ask(f"resubmit --json {late}").out)
    assert again["resubmit_of"] == late
    assert daemon.wait(again["job"])["jq_args"] == "x"
    waiting = daemon.insert(jq_type="unknown")
    assert ask(f"resubmit {waiting}").err == f"drover: job {waiting} has not ended: it is queued; nothing was queued\n"
    assert ask("resubmit 4711").status == 1


def test_cancel_and_kill_end_jobs_and_refusals_exit_with_1_j119(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    first, second = running(daemon), daemon.insert(jq_type="unknown")
    assert ask(f"kill {first}") == Done(0, f"job {first}: is being killed\n", "")
    assert daemon.wait(first, "failed")["jq_endtext"] == "killed by command of drover_operator"
    assert ask(f"cancel {second} --reason obsolete").status == 0
    assert daemon.wait(second, "cancelled")["jq_endtext"] == "cancelled by drover_operator: obsolete"
    third = daemon.insert(jq_type="unknown")
    mixed = ask(f"kill {third} {first}")
    assert (mixed.status, mixed.out, len(mixed.err.splitlines())) == (1, "", 2)


def test_a_job_named_twice_in_one_request_counts_once_j54(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="unknown", jq_name="unknown.1")
    assert ask(f"cancel {pk} unknown.1 {pk}") == Done(0, f"job {pk}: cancelled\n", "")
    assert len(ask(f"resubmit {pk} unknown.1").out.splitlines()) == 1
    assert daemon.value("select count(*) from drover.jobqueue where jq_type = 'command'") == 1
    assert daemon.value("select count(*) from drover.jobqueue where jq_resubmit_of = %s", pk) == 1


def test_signal_reaches_running_jobs_and_reports_the_others_j84_j85_j119(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    one, done = running(daemon), daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_pk"]
    told = ask(f"signal --json {one} {done} 15")
    assert told.status == 1
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert [(answer["words"], answer["ok"]) for answer in answers] == [
        (f"signal {one} 15", True),
        (f"signal {done} 15", False),
    ]
    assert answers[0]["result"] == {str(one): True}
    assert daemon.wait(one, "failed")["jq_signal"] == "SIGTERM"


@pytest.mark.slow
def test_signals_of_their_own_for_several_jobs_by_number_and_name_j84_j85(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    one, two = running(daemon), daemon.insert(jq_type="nap", jq_name="nap.x=1")
    daemon.wait(two, "running")
    told = ask(f"signal {one}=TERM nap.x=1=9")
    assert (told.status, told.out.splitlines()) == (
        0,
        [f"job {one}: SIGTERM to 1 agent", f"job {two}: SIGKILL to 1 agent"],
    )
    assert [daemon.wait(pk, "failed")["jq_signal"] for pk in (one, two)] == ["SIGTERM", "SIGKILL"]
    before = daemon.value("select count(*) from drover.jobqueue")
    for wrong in (f"{one}", f"{one} {two}=9", "=9", "x=9"):
        refused = ask(f"signal {wrong}")
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.endswith("; no command was sent\n")
    assert daemon.value("select count(*) from drover.jobqueue") == before


@pytest.mark.slow
def test_blocked_jobs_are_unblocked_by_number_name_or_condition(launch: Launch, ask: Ask, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"test -e {ready} || {{ echo licence none is free; exit 75; }}"
    daemon = launch(
        "[scheduler]\nblocked_delay = 3600\n" + HOST + agent("b", ["sh", "-c", script], kind="exec", slots=4)
    )
    pks = [daemon.insert(jq_type="b", jq_name=f"b.{n}") for n in range(4)]
    daemon.until(lambda: all("blocked" in daemon.why(pk) for pk in pks))
    ready.touch()
    condition = daemon.why(pks[0]).partition("blocked: ")[2].split()[0]
    told = ask(f"unblock {pks[0]} b.1")
    assert (told.status, told.out) == (0, "".join(f"job {pk}: not blocked any more\n" for pk in pks[:2]))
    daemon.wait_all(pks[:2])
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (pks[2],))
        order = daemon.insert(jq_type="command", jq_args=f"unblock {condition}", role="drover_operator")
        daemon.wait(pks[3])
    assert daemon.wait(order)["jq_endtext"] == f"2 jobs were blocked on {condition}"
    daemon.wait_all(pks)
    assert ask(f"unblock {condition}").out == f"0 jobs were blocked on {condition}\n"
    assert ask(f"unblock {pks[0]}") == Done(1, "", f"drover: job {pks[0]} is not blocked: it is done\n")


def test_invalid_arguments_exit_with_2_and_queue_nothing(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    for line in (
        "queue add q",
        "host max alpha many",
        "queue add q 1 2",
        "host enable",
        f"cancel 1 --reason {'x' * 999}",
    ):
        done = ask(line)
        assert (done.status, done.out) == (2, "")
        assert done.err.endswith("; no command was sent\n")
    assert daemon.value("select count(*) from drover.jobqueue") == 0


def test_an_owner_may_give_commands_about_own_jobs_from_the_command_line(
    launch: Launch, text: str, ask: Ask, database_with_roles: str
) -> None:
    daemon = launch(text)
    other = running(daemon)
    url = make_conninfo(database_with_roles, user="drover_frontend")
    refused = ask(f"kill {other}", DROVER_DATABASE_URL=url)
    assert (refused.status, refused.out) == (2, "")
    assert "is not yours" in refused.err
    assert state(daemon, other) == "running"
    mine = daemon.insert(role="drover_frontend", jq_type="nap")
    daemon.wait(mine, "running")
    assert ask(f"kill {mine}", DROVER_DATABASE_URL=url) == Done(0, f"job {mine}: is being killed\n", "")
    answer = json.loads(ask(f"kill --json {mine}", DROVER_DATABASE_URL=url).out)
    assert (answer["ok"], answer["text"]) == (False, f"job {mine} is not being worked: it is failed")


def test_a_command_without_a_scheduler_says_so_and_waits_as_long_as_asked(database_with_roles: str, ask: Ask) -> None:
    done = ask("poll --wait=0")
    assert (done.status, done.out) == (1, "")
    assert [line.split(";")[0] for line in done.err.splitlines()] == [
        "drover: no scheduler is active: the commands wait until one is",
        "drover: after 0 s, 1 of 1 commands have no answer",
    ]


# ---- queues and hosts


@pytest.mark.slow
def test_paused_queues_start_nothing_until_resumed_j76_j77_j78_j115(
    launch: Launch, text: str, ask: Ask, record: Path
) -> None:
    daemon = launch(text + "[queues.slow]\nconcurrency = 2\nreserved = 1\n")
    for _ in range(2):
        assert ask("pause slow").status == 0
    waiting = daemon.insert(jq_type="a", jq_args="slow", jq_queue="slow")
    daemon.wait(daemon.insert(jq_type="a", jq_args="other"))
    assert state(daemon, waiting) == "queued"
    queues = [json.loads(line) for line in ask("queue --json").out.splitlines()]
    slow = next(queue for queue in queues if queue["queue"] == "slow")
    assert (slow["concurrency"], slow["paused"], slow["queued"], slow["in_hand"]) == (2, True, 1, 0)
    assert [queue["reserved"] for queue in queues] == [0, 1]
    assert slow["scheduler"].endswith(f".{daemon.pid}")
    for _ in range(2):
        assert ask("continue slow").status == 0
    daemon.wait(waiting)
    assert ask("pause nosuch").status == 1


@pytest.mark.slow
def test_pause_without_names_applies_to_every_queue_and_persists_j76_j79(launch: Launch, text: str, ask: Ask) -> None:
    first = launch(text + "[queues.slow]\n")
    assert ask("pause").status == 0
    assert first.value("select bool_and(queue_paused) from drover.queue")
    first.stop()
    second = launch(text + "[queues.slow]\n")
    waiting = second.insert(jq_type="a", jq_args="x")
    assert second.why(waiting) == "queue default is paused"
    assert ask("continue").status == 0
    second.wait(waiting)


def test_poll_is_acknowledged_and_an_unknown_queue_is_reported_j75(launch: Launch, text: str, ask: Ask) -> None:
    launch(text)
    assert ask("poll").status == 0
    assert ask("poll default").status == 0
    assert ask("poll nosuch").status == 1


@pytest.mark.slow
def test_queues_are_added_and_removed_from_the_command_line_j15_j81_j82_j83(
    launch: Launch, text: str, ask: Ask
) -> None:
    daemon = launch(text)
    assert ask("queue add quick 1").status == 0
    assert ask("queue add quick 1").status == 1
    daemon.wait(daemon.insert(jq_type="a", jq_args="x", jq_queue="quick"))
    assert ask("queue set quick 3").status == 0
    assert ask("queue priority quick 5").status == 0
    assert ask("queue list quick").status == 2
    listed = [json.loads(line) for line in ask("queue list --json").out.splitlines()]
    assert [(queue["concurrency"], queue["priority"]) for queue in listed if queue["queue"] == "quick"] == [(3, 5)]
    waiting = daemon.insert(jq_type="unknown", jq_queue="quick")
    assert ask("queue remove quick").status == 1
    assert ask(f"cancel {waiting}").status == 0
    assert ask("queue remove quick").status == 0
    for line in ("queue remove quick", "queue set quick 1"):
        assert ask(line).status == 1
    for number in ("0", "-1", "x"):
        assert ask(f"queue add other {number}").status == 2


@pytest.mark.slow
def test_hosts_are_listed_and_changed_j116(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text + "[queues.slow]\n")
    assert ask("host max alpha 4 2").status == 0
    assert ask("host disable alpha").status == 0
    waiting = daemon.insert(jq_type="a", jq_args="x", jq_host="alpha")
    (host,) = [json.loads(line) for line in ask("host --json").out.splitlines()]
    assert (host["host"], host["max"], host["urgent"], host["enabled"]) == ("alpha", 4, 2, False)
    assert ask("host enable alpha").status == 0
    daemon.wait(waiting)
    assert ask("host filter alpha queues=default,slow priorities=^[a-z]").status == 0
    (host,) = [json.loads(line) for line in ask("host --json").out.splitlines()]
    assert host["filter"] == "queues=default,slow priorities=^[a-z]"
    assert ask("host filter alpha queues=nosuch,slow,none") == Done(1, "", "drover: no such queue: none, nosuch\n")
    assert json.loads(ask("host --json").out)["filter"] == host["filter"]
    assert ask("host filter alpha types=[").status == 2
    assert ask("host enable nosuch") == Done(1, "", "drover: no host nosuch\n")
    assert ask("host").out.split()[:3] == ["HOST", "GROUP", "SCHEDULER"]


@pytest.mark.slow
def test_agent_types_are_listed_enabled_and_disabled(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    assert ask("agent disable a").status == 0
    listed = {each["type"]: each for each in map(json.loads, ask("agent --json").out.splitlines())}
    assert {name: (each["enabled"], each["slots"], each["kind"]) for name, each in listed.items()} == {
        "a": (False, 2, "line"),
        "nap": (True, 2, "exec"),
    }
    assert listed["a"]["scheduler"].endswith(f".{daemon.pid}")
    waiting = daemon.insert(jq_type="a", jq_args="x")
    assert ask(f"why {waiting}").out == "agent type a is disabled\n"
    assert ask("agent enable a") == Done(0, "agent type a: enabled\n", "")
    daemon.wait(waiting)
    assert ask("agent disable nosuch") == Done(1, "", "drover: no agent type nosuch\n")
    assert ask("agent disable").status == 2


@pytest.mark.slow
def test_any_command_given_on_the_command_line_is_answered_j119(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    for words in ("reload", "reset", "verbose 1", "reopen-log", "agent-disable a", "poll default"):
        assert (ask(f"command {words}").status, ask(f"command {words}").err) == (0, "")
    assert json.loads(ask("command status").out)["agents"]["nap"] == {"ST_FREE": 2}
    refused = ask("command step-down")
    assert refused == Done(1, "", "drover: no other scheduler of the group stands by\n")
    before = daemon.value("select count(*) from drover.jobqueue")
    assert ask("command frobnicate").status == 2
    assert ask("command host-max alpha").err.endswith("; no command was sent\n")
    assert daemon.value("select count(*) from drover.jobqueue") == before


@pytest.mark.slow
def test_queues_and_hosts_of_two_daemons_are_listed_with_the_daemon_of_each_j116(
    launch: Launch, text: str, ask: Ask, record: Path
) -> None:
    here = launch(text + "[queues.low]\nconcurrency = 1\n")
    there = launch("[scheduler]\ngroup = 'far'\n[hosts.beta]\nmax = 3\n" + agent("a", rec(record)))
    there.insert_all([{"jq_type": "later", "jq_queue": "far"}] * 2)
    assert ask("pause far").status == 0
    queues, hosts = (
        [json.loads(line) for line in ask(f"{what} --json").out.splitlines()] for what in ("queue", "host")
    )
    pids = {each.get("queue") or each["host"]: each["scheduler"].rpartition(".")[2] for each in [*queues, *hosts]}
    mine, other = str(here.pid), str(there.pid)
    assert pids == {"default": mine, "low": mine, "alpha": mine, "far": other, "beta": other}
    told = {each["queue"]: (each["concurrency"], each["queued"], each["paused"]) for each in queues}
    assert told == {"default": (None, 0, False), "low": (1, 0, False), "far": (None, 2, True)}


# ---- by hand


@pytest.mark.slow
def test_run_executes_manual_jobs_and_prints_results_at_once_j39_j52_j56_j57(launch: Launch, ask: Ask) -> None:
    daemon = launch(HOST + agent("say", [*SAY, "{args}"], kind="exec", slots=2))
    jobs = [daemon.insert(jq_type="say", jq_args="x", jq_mode="manual", jq_name=f"say.{n}") for n in range(2)]
    assert ask("poll").status == 0
    assert [state(daemon, pk) for pk in jobs] == ["held", "held"]
    told = ask(f"run --json say.0 {jobs[1]} 4711")
    assert told.status == 1
    answer = json.loads(told.out)
    good = {"result": "ok", "code": 0, "signal": None, "stdout": "out x\n", "stderr": "err\n"}
    assert answer["jobs"] == {str(pk): good for pk in jobs}
    assert list(answer["errors"]) == ["4711"]


@pytest.mark.slow
def test_run_prints_the_output_of_the_job_j56(launch: Launch, ask: Ask) -> None:
    daemon = launch(
        HOST + agent("say", [*SAY, "{args}"], kind="exec") + agent("no", [*SAY, "a", "b", "c"], kind="exec")
    )
    good, bad = (daemon.insert(jq_type=kind, jq_args="x", jq_mode="manual") for kind in ("say", "no"))
    assert ask(f"run {good}") == Done(0, f"{good} ok 0\nout x\n", "err\n")
    assert ask(f"run {bad}") == Done(1, f"{bad} fail 2\nout a b c\n", "err\n")
    assert ask(f"run {bad}").status == 1


# ---- looking on


@pytest.mark.slow
def test_ls_lists_jobs_not_done_and_more_when_asked_r59_r60_r61_r76(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text + agent("fail", ["false"], kind="exec"))
    done = daemon.insert(jq_type="a", jq_args="x")
    failed = daemon.insert(jq_type="fail")
    held = daemon.insert(jq_type="nap", jq_state="held", jq_priority="b")
    daemon.wait(done)
    daemon.wait(failed, "failed")

    def listed(words: str) -> list[int]:
        return [json.loads(line)["job"] for line in ask(f"ls --json {words}").out.splitlines()]

    assert listed("") == [failed, held]
    assert listed("-s done") == [done, failed, held]
    assert listed("-s done -t a -t nap") == [done, held]
    assert [line.split()[:4] for line in ask("ls -t nap").out.splitlines()[1:]] == [[str(held), "nap", "held", "b"]]


@pytest.mark.slow
def test_ls_watch_shows_ends_as_they_happen(
    launch: Launch, text: str, follow: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    daemon = launch(text)
    watch = follow("ls --watch --all --json")
    assert watch.stdout is not None
    assert watch.stdout.readline() == "\n"
    pk = daemon.insert(jq_type="a", jq_args="x")
    while "done" not in (line := watch.stdout.readline()):
        pass
    assert json.loads(line)["job"] == pk
    watch.send_signal(SIGINT)
    assert watch.wait(PATIENCE_S) == 130


@pytest.mark.slow
def test_status_watch_prints_an_object_each_time(
    launch: Launch, text: str, follow: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    daemon = launch(text)
    watch = follow("status --watch --json")
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline())["jobs"] == []
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    while not (line := watch.stdout.readline()).strip() or not json.loads(line)["jobs"]:
        pass
    watch.send_signal(SIGINT)
    assert watch.wait(PATIENCE_S) == 130


@pytest.mark.slow
@pytest.mark.parametrize("event", ["drover_event", "drover_queue", "drover_change"])
def test_watch_redraws_at_notifications_at_most_twice_a_second(database: str, event: str) -> None:
    drawn: list[float] = []

    def draw() -> None:
        drawn.append(time.monotonic())
        if len(drawn) == 3:
            raise KeyboardInterrupt
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("select pg_notify(%s, n::text) from generate_series(1, 100) n", (event,))

    with psycopg.connect(database, autocommit=True) as connection, pytest.raises(KeyboardInterrupt):
        redraw(Session(connection), draw, poll_s=LONG_S)
    assert all(later - earlier >= REDRAW_S for earlier, later in pairwise(drawn))


# ---- which database


@pytest.mark.slow
def test_option_beats_environment_beats_configuration_j114_j117(
    launch: Launch, text: str, ask: Ask, database_with_roles: str, tmp_path: Path
) -> None:
    launch(text)
    own = tmp_path / "own.toml"
    own.write_text(CONFIG + "[database]\nurl = 'host=/configured dbname=x'\n")
    good = make_conninfo(database_with_roles, user="drover_operator")
    assert "/configured/" in ask(f"-c {own} queue", DROVER_DATABASE_URL="").err
    assert "/environment/" in ask(f"-c {own} queue", DROVER_DATABASE_URL="host=/environment dbname=x").err
    argv, variables = [*DROVER, "-c", str(own), "queue", "-d", good], {"DROVER_DATABASE_URL": "host=/environment"}
    done = subprocess.run(argv, capture_output=True, env=os.environ | variables, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_password_on_the_command_line_is_refused_j117(ask: Ask) -> None:
    done = ask("-d postgresql://me:secret@localhost/x queue")
    assert (done.status, done.out) == (2, "")
    assert "secret" not in done.err
    assert "every user of this machine can read a command line" in done.err


def test_version_and_help_name_every_command_j9_j117(ask: Ask) -> None:
    assert ask("--version") == ask("version")
    told = ask("--help").out
    verbs = """setup submit release hold ice retry resubmit unblock cancel kill signal pause continue poll queue host
               agent command flush run ls status out log why wait exit init check"""
    assert [verb for verb in verbs.split() if f"\n  {verb} " not in told] == []


def test_a_missing_database_and_an_unknown_command_are_failures_j118(ask: Ask) -> None:
    gone = ask("pause", DROVER_DATABASE_URL="host=/nonexistent dbname=x")
    assert (gone.status, gone.out) == (3, "")
    assert "not reachable" in gone.err
    unknown = ask("frobnicate")
    assert (unknown.status, unknown.out) == (2, "")
    assert "frobnicate" in unknown.err


# ---- completion


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["statu"], {"status"}),
        (["-c", "file", "rel"], {"release"}),
        (["ls", "--wa"], {"--watch"}),
        (["queue", "a"], {"add"}),
        (["-d", "url", "host", "ma"], {"max"}),
    ],
)
def test_bash_completes_commands_actions_and_options(ask: Ask, words: list[str], completed: set[str]) -> None:
    need("bash")
    typed = " ".join(shlex.quote(word) for word in ["drover", *words])
    script = (
        f"{ask('completion bash').out}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _drover; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == completed
