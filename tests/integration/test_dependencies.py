"""Jobs that wait for other jobs, with the real daemon."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, await_lines, lines, rec, start

HOST = "[hosts.alpha]\n"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    types = agent("rec", rec(record), slots=4) + agent("sh", ["sh", "-c", "{args}"], kind="exec", slots=2)
    with start(HOST + types, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Daemon:
    record.write_text("")
    return shared


def child_of(daemon: Daemon, parents: list[int], *, args: str = "child", **edge: object) -> int:
    """Insert a child with edges to its parents, in one transaction, as a front-end does; return its number."""
    role = "drover_frontend"
    columns = ["jdep_jq_fk", "jdep_jq_depends_fk", *edge]
    query = sql.SQL("insert into drover.jobdepends ({}) values ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(sql.Placeholder() * len(columns))
    )
    connection = daemon.login(role)
    with connection.transaction():
        pk = daemon.insert(role=role, jq_type="rec", jq_args=args)
        with connection.cursor() as cursor:
            cursor.executemany(query, [(pk, parent, *edge.values()) for parent in parents])
    return pk


def parent(daemon: Daemon, args: str, **columns: object) -> int:
    return daemon.insert(role="drover_frontend", jq_type="rec", jq_args=args, **columns)


def after(daemon: Daemon, args: str) -> None:
    """Let the daemon have had every chance to start what may start: a job that came last has run."""
    daemon.wait(daemon.insert(jq_type="rec", jq_args=args, jq_priority="z"))


def test_why_names_the_parents_that_have_names_r36(daemon: Daemon) -> None:
    named = daemon.insert(role="drover_frontend", jq_type="rec", jq_name="rec.1", jq_host="nowhere")
    other = daemon.insert(role="drover_frontend", jq_type="rec", jq_host="nowhere")
    child = child_of(daemon, [named, other])
    assert daemon.why(child) == f"waits for 2 dependencies: jobs {named} (rec.1), {other}"


def test_a_child_starts_only_after_its_parent_has_succeeded_f44_r5(
    daemon: Daemon, record: Path, tmp_path: Path
) -> None:
    first = parent(daemon, f"gate:{tmp_path / 'gate'}")
    second = child_of(daemon, [first])
    daemon.wait(first, "running")
    after(daemon, "other")
    row = daemon.row(second)
    assert (row["jq_state"], row["jq_unmet"], row["jq_starttime"]) == ("queued", 1, None)
    assert daemon.why(second) == f"waits for 1 dependency: job {first}"
    (tmp_path / "gate").touch()
    ended = daemon.wait(first)
    assert daemon.wait(second)["jq_starttime"] >= ended["jq_endtime"]
    assert lines(record)[-1] == "child"


def test_a_child_waits_for_all_of_its_parents_r6(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    gates = [tmp_path / f"gate{n}" for n in range(3)]
    parents = [parent(daemon, f"gate:{gate}") for gate in gates]
    pk = child_of(daemon, parents)
    gates[0].touch()
    gates[1].touch()
    daemon.wait_all(parents[:2])
    daemon.until(lambda: daemon.row(pk)["jq_unmet"] == 1)
    assert daemon.row(pk)["jq_state"] == "queued"
    gates[2].touch()
    daemon.wait(pk)


def test_a_child_of_a_failed_parent_waits_for_ever_r6_c35(daemon: Daemon, record: Path) -> None:
    good, bad = parent(daemon, "good"), parent(daemon, "die:1")
    pk = child_of(daemon, [good, bad])
    daemon.wait(good)
    daemon.wait(bad, "failed")
    daemon.until(lambda: daemon.row(pk)["jq_unmet"] == 1)
    after(daemon, "other")
    assert daemon.row(pk)["jq_state"] == "queued"
    in_vain = f"job {bad} has failed: retry it, or cancel or ice this one"
    assert daemon.why(pk) == f"waits for 1 dependency: job {bad}; {in_vain}"
    assert "child" not in lines(record)


@pytest.mark.parametrize(
    ("mask", "ends", "runs"),
    [
        (1, "fine", True),
        (1, "die:1", False),
        (2, "fine", False),
        (2, "die:1", True),
        (3, "fine", True),
        (3, "die:1", True),
    ],
)
def test_end_bits_of_the_parent_decide_whether_a_child_runs_f160_c32(
    daemon: Daemon, record: Path, mask: int, ends: str, runs: bool
) -> None:
    first = parent(daemon, f"nap:0.05;{ends}")
    pk = child_of(daemon, [first], jdep_depends_bits=mask)
    daemon.wait(first, {"done", "failed"})
    after(daemon, "other")
    daemon.until(lambda: daemon.row(pk)["jq_state"] == ("done" if runs else "queued"))
    assert daemon.row(pk)["jq_unmet"] == (not runs)


@pytest.mark.parametrize(("ends", "state"), [("fine", "done"), ("die:1", "skipped")])
def test_a_child_of_a_failed_parent_is_skipped_with_on_unmet_skip_f160_c35(
    daemon: Daemon, record: Path, ends: str, state: str
) -> None:
    first = parent(daemon, f"nap:0.05;{ends}")
    second = child_of(daemon, [first], jdep_on_unmet="skip")
    third = child_of(daemon, [second], jdep_on_unmet="skip")
    rows = daemon.wait_all([second, third], state)
    assert {row["jq_end_bits"] for row in rows} == {1 if state == "done" else 2}


def test_an_edge_to_a_parent_that_has_ended_is_settled_at_once_r5(daemon: Daemon, record: Path) -> None:
    first = parent(daemon, "x")
    daemon.wait(first)
    assert daemon.wait(child_of(daemon, [first]))["jq_unmet"] == 0


def test_an_edge_below_a_job_that_fails_before_any_agent_is_settled_r5(daemon: Daemon, record: Path) -> None:
    first = parent(daemon, "a\nb", jq_not_before=daemon.value("select now() + interval '0.3 s'"))
    pk = child_of(daemon, [first], jdep_depends_bits=2)
    daemon.wait(first, "failed")
    assert daemon.wait(pk)["jq_unmet"] == 0


def test_an_edge_below_a_job_whose_time_has_passed_is_settled_r5(daemon: Daemon, record: Path) -> None:
    first = parent(daemon, "x", jq_host="nowhere", jq_not_after=daemon.value("select now() + interval '0.3 s'"))
    pk = child_of(daemon, [first], jdep_depends_bits=2)
    assert daemon.wait(first, "failed")["jq_endtext"].startswith("not started by ")
    daemon.wait(pk)


def test_stages_run_one_after_the_other_and_clean_up_even_after_a_failure_t67(
    daemon: Daemon, record: Path, tmp_path: Path
) -> None:
    area = tmp_path / "area"
    commands = [f"mkdir {area}", f"echo in > {area}/file; exit 3", f"cp {area}/file {tmp_path}/out", f"rm -r {area}"]
    stage_in = daemon.insert(jq_type="sh", jq_args=commands[0], jq_state="held")
    work = daemon.insert(jq_type="sh", jq_args=commands[1], jq_state="held")
    stage_out = daemon.insert(jq_type="sh", jq_args=commands[2], jq_state="held")
    clean = daemon.insert(jq_type="sh", jq_args=commands[3], jq_state="held")
    edges = [(work, stage_in, 1, "skip"), (stage_out, work, 1, "skip"), (clean, work, 3, "wait")]
    insert = """insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)
                values (%s, %s, %s, %s)"""
    assert [daemon.execute(insert, *edge) for edge in edges] == [[]] * 3
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_type = 'sh'")
    daemon.execute("notify drover_queue")
    daemon.wait(stage_in)
    assert daemon.wait(work, "failed")["jq_exitcode"] == 3
    daemon.wait(stage_out, "skipped")
    daemon.wait(clean)
    assert not area.exists()
    assert not (tmp_path / "out").exists()


def test_a_wide_fan_out_and_fan_in_runs_in_order_r5(daemon: Daemon, record: Path) -> None:
    first = parent(daemon, "nap:0.05;first")
    fan = [child_of(daemon, [first], args=f"fan {n}") for n in range(30)]
    last = child_of(daemon, fan, args="last")
    daemon.wait(last)
    order = lines(record)
    assert order[0] == "nap:0.05;first"
    assert order[-1] == "last"
    assert sorted(order[1:-1]) == sorted(f"fan {n}" for n in range(30))


def test_a_chain_runs_in_order_r5(daemon: Daemon, record: Path) -> None:
    links = [parent(daemon, "link 0", jq_not_before=daemon.value("select now() + interval '0.3 s'"))]
    list(map(links.append, (child_of(daemon, [links[-1]], args=f"link {n}") for n in range(1, 20))))
    daemon.wait(links[-1])
    assert lines(record) == [f"link {n}" for n in range(20)]


def test_a_cycle_is_refused_r5(daemon: Daemon) -> None:
    first = parent(daemon, "x", jq_state="held")
    second = child_of(daemon, [first])
    with pytest.raises(psycopg.errors.CheckViolation, match="would be a cycle"):
        daemon.execute(
            "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)",
            first,
            second,
            role="drover_frontend",
        )


@pytest.mark.slow
def test_waiting_children_survive_the_daemon_f44_t68_j1(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    text = HOST + agent("rec", rec(record), slots=2)
    daemon = launch(text)
    first = parent(daemon, f"gate:{gate}")
    pk = child_of(daemon, [first])
    daemon.wait(first, "running")
    await_lines(daemon, record, 1)
    daemon.kill()
    gate.touch()
    other = launch(text)
    other.wait_all([first, pk])
    assert lines(record) == [f"gate:{gate}"] * 2 + ["child"]
