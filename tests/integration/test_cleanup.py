"""Files that a job names in jq_delete: gone after its success, on its host, below permitted roots, whoever dies.

What a name may lead to is tests/unit/test_removal.py's, what the agent says tests/agents/test_bundled_agents.py's.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from scheduler.model.protocol import LINE_LIMIT
from tests.agent_tools import AGENTS
from tests.integration.conftest import Launch
from tests.integration.daemon import PYTHON, Daemon, Row, agent, rec, start
from tests.integration.ssh_tools import table
from tests.integration.test_command_hosts import behind
from tests.needs import need
from tests.ssh.sshd import Server

PROGRAM = str(AGENTS / "cleanup/drover-agent-cleanup")
LOCAL = "[hosts.local]\n"
# The agent as it is, but that it waits after each file until a gate is there.
SLOW = """
import os, runpy, sys, time
unlink = os.unlink
def slowly(*words, **keys):
    unlink(*words, **keys)
    while not os.path.exists(gate): time.sleep(0.005)
os.unlink = slowly
program, gate, *options = sys.argv[1:]
sys.argv = [program, *options]
sys.path.insert(0, os.path.dirname(program))
runpy.run_path(program)
"""


def cleanup(*roots: Path, **keys: object) -> str:
    """Return the table of the clean-up agent."""
    return agent("cleanup", [PROGRAM, *(word for root in roots for word in ("--root", str(root)))], **keys)


def slow(gate: Path, root: Path) -> str:
    """Return the table of one that stops after its first file."""
    return agent("cleanup", [*PYTHON, "-c", SLOW, PROGRAM, str(gate), "--root", str(root)])


def state(daemon: Daemon, pk: int) -> str:
    return str(daemon.value("select cleanup_state from drover.cleanup where jq_pk = %s", pk))


def after(daemon: Daemon, pk: int, wanted: str = "removed") -> Row:
    """Wait until the clean-up of a job is so, and return its row."""
    daemon.until(lambda: state(daemon, pk) == wanted, what=f"the clean-up of {pk} is not {wanted}")
    (row,) = daemon.execute("select * from drover.jobqueue where jq_name = %s", f"cleanup.{pk}")
    return row


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a directory with two files; clean-ups may remove what is in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("data")
    (folder / "b").write_text("data")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- after a success, and only then


def test_files_are_gone_after_a_success_and_no_others_r43(launch: Launch, work: Path, record: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work))
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a")])
    daemon.wait(pk)
    assert after(daemon, pk)["jq_result"] == {"removed": 1, "gone": 0}
    assert left(work) == ["b"]


@pytest.mark.parametrize(
    "args",
    ["say:RESULT 1", "say:LOG x", "say:ERROR x", "say:ItemsProcessed 3"],
    ids=["result", "log", "error", "count"],
)
def test_files_are_gone_after_every_kind_of_success_r43(launch: Launch, work: Path, record: Path, args: str) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work))
    pk = daemon.insert(jq_type="rec", jq_args=args, jq_delete=[str(work / "a")])
    assert after(daemon, pk)["jq_host"] == "local"
    assert left(work) == ["b"]


def test_files_are_gone_after_a_command_and_after_a_query_r43(launch: Launch, work: Path, record: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + agent("true", ["true"], kind="exec") + cleanup(work))
    query = {"jq_msq": True, "jq_host": "local", "jq_args": "select n from generate_series(1, 9) n"}
    pks = [
        daemon.insert(jq_type="true", jq_args="x", jq_delete=[str(work / "a")]),
        daemon.insert(jq_type="rec", **query, jq_delete=[str(work / "b")]),
    ]
    assert [after(daemon, pk)["jq_host"] for pk in pks] == ["local", "local"]
    assert left(work) == []


@pytest.mark.slow
def test_files_of_a_failed_job_stay_until_it_has_succeeded_r44_r62(launch: Launch, work: Path, tmp_path: Path) -> None:
    script = f"echo out; cat {work}/a; [ $DROVER_ATTEMPT -gt 2 ] || exit 1"
    types = agent("once", ["sh", "-c", "echo out; exit 1"], kind="exec") + agent(
        "third", ["sh", "-c", script], kind="exec"
    )
    daemon = launch(LOCAL + types + cleanup(work))
    failed = daemon.insert(jq_type="once", jq_args="x", jq_delete=[str(work / "b")])
    retried = daemon.insert(jq_type="third", jq_args="x", jq_delete=[str(work / "a")], jq_retries=2)
    daemon.wait(failed, "failed")
    after(daemon, retried)
    assert state(daemon, failed) == "none"
    assert left(work) == ["b"]
    output = "select string_agg(out_data, '' order by out_pk) as text from drover.output where out_jq_fk = %s"
    assert daemon.value(output, failed) == "out\n"
    assert daemon.value(output, retried) == "out\ndata" * 3
    assert daemon.row(failed)["jq_delete"] == [str(work / "b")]


def test_files_of_a_cancelled_job_stay_r44(launch: Launch, work: Path, record: Path, gate: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work))
    pk = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}", jq_delete=[str(work / "a")])
    daemon.wait(pk, "running")
    daemon.insert(jq_type="command", jq_args=f"cancel {pk}", role="drover_operator")
    daemon.wait(pk, "cancelled")
    assert (state(daemon, pk), left(work)) == ("none", ["a", "b"])


@pytest.mark.slow
def test_relative_names_are_resolved_in_the_directory_of_the_job_r45(launch: Launch, work: Path, record: Path) -> None:
    types = agent("touch", ["touch", "{args}"], kind="exec", cwd=str(work)) + agent("rec", rec(record))
    daemon = launch(LOCAL + types + cleanup(work))
    pk = daemon.insert(jq_type="touch", jq_args="new", jq_delete=["new", "./a"])
    after(daemon, pk)
    assert left(work) == ["b"]
    homeless = daemon.insert(jq_type="rec", jq_args="x", jq_delete=["b"])
    assert "is relative" in after(daemon, homeless, "failed")["jq_endtext"]
    assert left(work) == ["b"]


@pytest.mark.slow
def test_the_longest_list_of_relative_names_is_removed_r45(launch: Launch, work: Path, record: Path) -> None:
    """As many names as an insert takes: with the directory in front of each, they would be more than an item holds."""
    daemon = launch(LOCAL + agent("rec", rec(record), cwd=str(work)) + cleanup(work))
    names = ["a", *(f"f{number:05}" for number in range(55_550))]
    assert 499_900 < len(json.dumps(names, separators=(",", ":"))) <= 500_000
    assert len(names) * len(str(work)) > LINE_LIMIT
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=names)
    assert after(daemon, pk)["jq_result"] == {"removed": 1, "gone": len(names) - 1}
    assert left(work) == ["b"]


def test_a_missing_file_is_no_error_of_a_clean_up_r46(launch: Launch, work: Path, record: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work))
    (work / "a").unlink()
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a"), str(work / "b")])
    assert after(daemon, pk)["jq_result"] == {"removed": 1, "gone": 1}


# ---- shared between jobs


@pytest.mark.slow
@pytest.mark.parametrize("share", ["ln", "cp", "cp --reflink=auto"])
def test_a_hard_link_for_each_child_keeps_the_data_until_the_last_r48_r49(
    launch: Launch, work: Path, record: Path, tmp_path: Path, share: str
) -> None:
    """A parent shares its output under two names; each child removes its own, and the data goes with the last."""
    gates = [tmp_path / "gate1", tmp_path / "gate2"]
    script = f"{share} a x && {share} a y"
    types = agent("share", ["sh", "-c", script], kind="exec", cwd=str(work)) + agent("rec", rec(record), slots=2)
    daemon = launch(LOCAL + types + cleanup(work))
    with daemon.login("drover_frontend").transaction():
        parent = daemon.insert(role="drover_frontend", jq_type="share", jq_args="x", jq_delete=[str(work / "a")])
        children = [
            daemon.insert(role="drover_frontend", jq_type="rec", jq_args=f"gate:{gate}", jq_delete=[str(work / name)])
            for gate, name in zip(gates, "xy", strict=True)
        ]
        for child in children:
            edge = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
            daemon.execute(edge, child, parent, role="drover_frontend")
    after(daemon, parent)
    daemon.wait_all(children, "running")
    assert (left(work), (work / "x").read_text()) == (["b", "x", "y"], "data")
    gates[0].touch()
    after(daemon, children[0])
    assert (left(work), (work / "y").read_text()) == (["b", "y"], "data")
    gates[1].touch()
    after(daemon, children[1])
    assert left(work) == ["b"]


# ---- within permitted roots


@pytest.mark.slow
def test_a_path_outside_is_refused_and_logged_and_fails_the_clean_up_r50(
    launch: Launch, work: Path, record: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    (work / "link").symlink_to(tmp_path)
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work))
    names = [str(outside), f"{work}/../outside", f"{work}/link/outside"]
    pks = daemon.insert_all([{"jq_type": "rec", "jq_args": "x", "jq_delete": [name]} for name in names])
    rows = [after(daemon, pk, "failed") for pk in pks]
    assert [row["jq_endtext"].rpartition(": ")[2] for row in rows] == [
        "not below a permitted root",
        "has .. in it",
        "link is a symbolic link, or no directory",
    ]
    logged = [
        f"ERROR not removed: {name}: " in daemon.log_text(row["jq_pk"]) for name, row in zip(names, rows, strict=True)
    ]
    assert logged == [True] * 3
    assert outside.exists()
    assert [daemon.row(pk)["jq_state"] for pk in pks] == ["done"] * 3


@pytest.mark.slow
def test_only_jobs_of_the_submitters_of_clean_ups_remove_files_r50(launch: Launch, work: Path, record: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + cleanup(work, submitters=["drover_operator"]))
    refused = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a")])
    done = daemon.insert(role="drover_operator", jq_type="rec", jq_args="x", jq_delete=[str(work / "b")])
    assert "may not queue agent type cleanup" in after(daemon, refused, "failed")["jq_endtext"]
    after(daemon, done)
    assert left(work) == ["a"]


@pytest.mark.slow
def test_the_shipped_configuration_removes_nothing_and_clean_ups_wait_r50_r85(
    launch: Launch, work: Path, record: Path
) -> None:
    """The shipped type is disabled; where there is none they wait too, until there is one."""
    daemon = launch(LOCAL + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a")])
    clean_up = after(daemon, pk, "pending")["jq_pk"]
    assert "no agent type 'cleanup' is configured" in daemon.why(clean_up)
    config = daemon.folder / "conf.d" / "test.toml"
    for text, wanted in ((cleanup(work, enabled=False), "pending"), (cleanup(work), "removed")):
        config.write_text(LOCAL + agent("rec", rec(record)) + text)
        daemon.wait(daemon.insert(jq_type="command", jq_args="reload", role="drover_operator"))
        after(daemon, pk, wanted)
    assert left(work) == ["b"]


# ---- how far it is


@pytest.mark.slow
def test_children_start_at_the_end_of_the_job_not_of_its_clean_up_r75(
    launch: Launch, work: Path, record: Path, gate: Path
) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + slow(gate, work))
    with daemon.login("drover_frontend").transaction():
        parent, child = (
            daemon.insert(role="drover_frontend", jq_type="rec", jq_args=name, jq_delete=[str(work / name)])
            for name in "ab"
        )
        edge = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
        daemon.execute(edge, child, parent, role="drover_frontend")
    daemon.wait(child)
    after(daemon, parent, "removing")
    assert (state(daemon, child) in ("pending", "removing"), "b" in left(work)) == (True, True)
    gate.touch()
    after(daemon, parent)
    after(daemon, child)
    mine = daemon.execute("select cleanup_state from drover.my_cleanup where jq_pk = %s", child, role="drover_frontend")
    assert mine == [{"cleanup_state": "removed"}]


# ---- whoever dies


@pytest.mark.slow
def test_a_clean_up_is_repeated_if_its_daemon_was_killed_during_it_r80_r85(
    database_with_roles: str, work: Path, record: Path, gate: Path
) -> None:
    names = [str(work / "a"), str(work / "b")]
    with start(LOCAL + agent("rec", rec(record)) + slow(gate, work), database_with_roles) as daemon:
        pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=names)
        daemon.until(lambda: left(work) == ["b"], what="it does not begin")
        assert state(daemon, pk) == "removing"
        daemon.kill()
        assert left(work) == ["b"]
    with start(LOCAL + agent("rec", rec(record)) + cleanup(work), database_with_roles) as daemon:
        row = after(daemon, pk)
        assert (row["jq_result"], row["jq_rescued"], left(work)) == ({"removed": 1, "gone": 1}, 1, [])
        assert daemon.row(pk)["jq_attempt"] == 1  # the job itself is not done again


@pytest.mark.slow
def test_a_clean_up_that_four_daemons_died_with_fails_and_can_be_retried_r46_r80(
    launch: Launch, work: Path, record: Path
) -> None:
    text = LOCAL + agent("rec", rec(record))
    daemon = launch(text)
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a")])
    daemon.wait(pk)
    daemon.stop()
    daemon.execute("update drover.jobqueue set jq_rescued = 3 where jq_type = 'cleanup'")
    assert launch(text + cleanup(work), points="read_claimed:after=kill").wait_exit() == -SIGKILL
    last = launch(text + cleanup(work))
    row = after(last, pk, "failed")
    reason = "its scheduler died 4 times with this job in hand, the last time as it was tried alone"
    assert (row["jq_endtext"], left(work)) == (reason, ["a", "b"])
    last.insert(jq_type="command", jq_args=f"retry {row['jq_pk']}", role="drover_operator")
    after(last, pk)
    assert left(work) == ["b"]


@pytest.mark.slow
def test_a_clean_up_is_repeated_if_its_agent_died_during_it_r46(
    launch: Launch, work: Path, record: Path, gate: Path
) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + slow(gate, work))
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_delete=[str(work / "a"), str(work / "b")])
    daemon.until(lambda: left(work) == ["b"], what="it does not begin")
    query = "select status_pid from drover.scheduler_status where status_agent = 'cleanup'"
    pid = daemon.until(lambda: daemon.value(query), what="the agent is not shown")
    gate.touch()
    os.kill(pid, 9)
    after(daemon, pk)
    assert left(work) == []


@pytest.mark.slow
def test_left_over_clean_ups_are_done_by_the_next_daemon_r85(
    database_with_roles: str, work: Path, record: Path
) -> None:
    for number in range(50):
        (work / f"f{number}").touch()
    with start(LOCAL + agent("rec", rec(record), slots=2), database_with_roles) as daemon:
        pks = daemon.insert_all(
            [{"jq_type": "rec", "jq_args": "x", "jq_delete": [str(work / f"f{n}")]} for n in range(50)]
        )
        daemon.wait_all(pks)
        daemon.kill()
    assert len(left(work)) == 52
    with start(LOCAL + agent("rec", rec(record)) + cleanup(work), database_with_roles) as daemon:
        daemon.until(lambda: left(work) == ["a", "b"], what="they are not worked off")
        for pk in pks:
            after(daemon, pk)


# ---- on the right host


@contextmanager
def disk_of_its_own(folder: Path) -> Iterator[list[str]]:
    """Yield the words that lead to where `folder` is another, empty directory, as if it were another machine."""
    need("mount")
    script = f"mount -t tmpfs tmpfs {folder} && echo ready && exec sleep infinity"
    holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    try:
        yield ["nsenter", "-t", str(holder.pid), "-m", "--"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def there(way: list[str], *words: str) -> str:
    return subprocess.run([*way, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_file_is_removed_on_the_host_that_ran_the_job_r47(launch: Launch, work: Path) -> None:
    """Both have a file of that name, and one is not the job's."""
    touch = agent("touch", ["touch", "{args}"], kind="exec", cwd=str(work))
    with disk_of_its_own(work) as way:
        daemon = launch(LOCAL + behind("h2", way) + touch + cleanup(work))
        there(way, "touch", str(work / "a"), str(work / "kept"))
        pk = daemon.insert(jq_type="touch", jq_args=f"{work}/new", jq_host="h2", jq_delete=["new", "a"])
        row = after(daemon, pk)
        assert (row["jq_host"], row["jq_result"]) == ("h2", {"removed": 2, "gone": 0})
        assert (left(work), there(way, "ls", str(work))) == (["a", "b"], "kept\n")


@pytest.mark.slow
def test_a_file_is_removed_on_the_host_that_was_chosen_r47(launch: Launch, work: Path) -> None:
    """The job may run anywhere; where it was is known at its end only."""
    make = agent("make", ["sh", "-c", f"echo $DROVER_HOST >{work}/made.$DROVER_HOST"], kind="exec")
    with disk_of_its_own(work) as way:
        daemon = launch(LOCAL + behind("h2", way) + make + cleanup(work))
        names = [str(work / "made.local"), str(work / "made.h2")]
        pks = daemon.insert_all([{"jq_type": "make", "jq_args": "x", "jq_delete": names} for _ in range(20)])
        hosts = [after(daemon, pk)["jq_host"] for pk in pks]
        assert [daemon.attempts(pk)[0]["att_host"] for pk in pks] == hosts
        assert set(hosts) == {"local", "h2"}
        assert (left(work), there(way, "ls", str(work))) == (["a", "b"], "")


@pytest.mark.slow
def test_a_clean_up_waits_for_its_host_r47_r85(
    launch: Launch, work: Path, record: Path, beta: Server, gate: Path
) -> None:
    daemon = launch(LOCAL + table("beta", beta) + agent("rec", rec(record)) + slow(gate, work))
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_host="beta", jq_delete=[str(work / "a"), str(work / "b")])
    daemon.until(lambda: left(work) == ["b"], what="it does not begin")
    beta.kill()
    clean_up = after(daemon, pk, "pending")["jq_pk"]
    daemon.until(lambda: "host beta is down" in daemon.why(clean_up), what="why does not say so")
    assert left(work) == ["b"]
    gate.touch()
    beta.begin()
    assert after(daemon, pk)["jq_host"] == "beta"
    assert left(work) == []
