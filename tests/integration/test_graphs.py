"""Graphs of jobs with the real daemon: random and wide ones, races, graphs that jobs make, dummies, variables."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.agent_tools import AGENTS
from tests.cli_tools import Drover
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec, start
from tests.patience import LONG_PATIENCE_S

NOOP = [str(AGENTS / "noop/drover-agent-noop")]
SHOW = 'printf "%s|%s|%s|%s" "$1" "$DROVER_VAR_invoice" "$DROVER_VARIABLES" "$DROVER_VAR_nothing"'
EDGE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
EDGES = """
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select c.jq_pk, p.jq_pk from unnest(%s::text[], %s::text[]) as e(child, parent)
  join drover.jobqueue c on c.jq_name = child join drover.jobqueue p on p.jq_name = parent
"""
# Each statement that settles edges takes a while.
SLOWLY = """
create function public.slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(0.4); return null; end $$;
create trigger slowly before update on drover.jobdepends for each statement execute function public.slowly()
"""
TOO_EARLY = """
select count(*) from drover.jobdepends join drover.jobqueue c on c.jq_pk = jdep_jq_fk
  join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk where c.jq_starttime < p.jq_endtime
"""
MAKE_GRAPH = """
import json, psycopg, sys
setup = "select drover.job_setup(%s, %s)"
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute(setup, ("rec.made-1", json.dumps({"jq_args": "made 1"})))
    for n in (2, 3):
        connection.execute(setup, (f"rec.made-{n}", json.dumps({"jq_args": f"made {n}", "depends": "rec.made-1"})))
    connection.execute("select drover.command('release ' || jq_pk) from drover.my_jobs where jq_name = 'rec.made-1'")
"""
LEASE = "select group_lease_until from drover.scheduler_group"
AT_REST = """
select exists (select from pg_stat_activity where datname = current_database() and application_name = 'drover queue'
                  and state = 'idle' and state_change < now() - interval '1 s')
"""
CLAIMED = "jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now()"
DONE = "jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    script = record.with_name("maker.py")
    script.write_text(MAKE_GRAPH)
    maker = [sys.executable, str(script), make_conninfo(module_database, user="drover_frontend")]
    types = [
        agent("rec", rec(record), slots=4), agent("maker", maker, kind="exec"),
        agent("noop", NOOP, slots=4, empty="send"),
        agent("show", ["sh", "-c", SHOW, "sh", "{userid}"], kind="exec"),
        agent("bare", ["printf", "%s", "{args}"], kind="exec"),
        agent("mend", ["sh", "-c", 'echo look; exec cat "$1"', "sh", "{args}"], kind="exec"),
    ]  # fmt: skip
    with start("[hosts.alpha]\n" + "".join(types), module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Daemon:
    record.write_text("")
    return shared


def setup(daemon: Daemon, name: str, **settings: object) -> int:
    """Set a job up as a front-end does; its number."""
    query = "select jq_pk from drover.job_setup(%s, %s)"
    (row,) = daemon.execute(query, name, json.dumps(settings), role="drover_frontend")
    return int(row["jq_pk"])


def order(daemon: Daemon, words: str) -> None:
    """Command something as an operator, and wait until it is done."""
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args=words))


def graph(daemon: Daemon, name: str, nodes: int, edges: list[tuple[int, int]], kind: str = "noop") -> list[int]:
    """Insert a graph in one transaction; edges are (child, parent). The numbers of its jobs."""
    with daemon.login("drover_frontend").transaction():
        jobs = [daemon.insert(role="drover_frontend", jq_type=kind, jq_name=f"{kind}.{name}-{n}") for n in range(nodes)]
        children, parents = ([f"{kind}.{name}-{edge[at]}" for edge in edges] for at in (0, 1))
        daemon.execute(EDGES, children, parents, role="drover_frontend")
    return jobs


def too_early(daemon: Daemon) -> Any:
    return daemon.value(TOO_EARLY)


# ---- shapes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_graph_of_500_jobs_ends_in_a_valid_order_r31(daemon: Daemon, seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(range(500), 500)  # parents are before and behind their children
    edges = [(names[n], names[chance.randrange(n)]) for n in range(1, 500) for _ in range(3)]
    jobs = graph(daemon, f"random{seed}", 500, sorted(set(edges), key=lambda _: chance.random()))
    daemon.wait_all(jobs, timeout=LONG_PATIENCE_S)
    assert too_early(daemon) == 0


def test_a_diamond_ends_in_a_valid_order_r31(daemon: Daemon) -> None:
    daemon.wait_all(graph(daemon, "diamond", 4, [(1, 0), (2, 0), (3, 1), (3, 2)]))
    assert too_early(daemon) == 0


def test_one_parent_with_100_children_and_one_child_with_100_parents_r33_c31(daemon: Daemon) -> None:
    edges = [(n, 0) for n in range(1, 101)] + [(101, n) for n in range(1, 101)]
    jobs = graph(daemon, "fan", 102, edges)
    last = daemon.wait(jobs[-1], timeout=LONG_PATIENCE_S)
    assert (too_early(daemon), last["jq_unmet"]) == (0, 0)


@pytest.mark.slow
def test_claims_go_on_while_a_fan_is_settled_r33(launch: Launch) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("noop", NOOP))
    daemon.execute(SLOWLY)
    with daemon.login("drover_frontend").transaction():
        first, second, third = (daemon.insert(role="drover_frontend", jq_type="noop") for _ in range(3))
        fan = """
            with fan as (
              insert into drover.jobqueue (jq_type) select 'nobody' from generate_series(1, 20000) returning jq_pk)
            insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select jq_pk, %s from fan"""
        daemon.execute(EDGE, second, first, role="drover_frontend")
        daemon.execute(EDGE, third, second, role="drover_frontend")
        daemon.execute(fan, first, role="drover_frontend")
    chain = daemon.wait_all([second, third], timeout=LONG_PATIENCE_S)
    left = "select count(*) from drover.jobdepends where jdep_jq_depends_fk = %s and jdep_met_at is null"
    daemon.until(lambda: daemon.value(left, first) == 0, timeout=LONG_PATIENCE_S)
    last = daemon.value("select max(jdep_met_at) from drover.jobdepends where jdep_jq_depends_fk = %s", first)
    assert max(row["jq_starttime"] for row in chain) < last


def test_a_cycle_among_jobs_of_one_statement_is_refused_r31(daemon: Daemon) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=r"may not depend on \d+: that would be a cycle"):
        graph(daemon, "cycle", 6, [(1, 0), (2, 1), (3, 2), (1, 3), (4, 3), (5, 4)])


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_graph_runs_in_the_same_order_from_the_roots_down_or_the_leaves_up_r35_r39(
    daemon: Daemon, record: Path, way: str
) -> None:
    parents = {1: [], 2: [1], 3: [2], 4: [3]}
    children = {1: [2], 2: [3], 3: [4], 4: []}
    names = {n: f"rec.{way}-{n}" for n in parents}
    ways = {"down": ("depends", parents, [1, 2, 3, 4]), "up": ("rjm_blocks", children, [4, 3, 2, 1])}
    key, others, turn = ways[way]
    jobs = {n: setup(daemon, names[n], jq_args=f"{n}", **{key: [names[each] for each in others[n]]}) for n in turn}
    order(daemon, f"release {names[1]}")
    daemon.wait_all(list(jobs.values()))
    assert lines(record) == ["1", "2", "3", "4"]


# ---- conditions


@pytest.mark.parametrize(
    ("ends", "runs"), [(["x", "die:1", "die:1"], True), (["x", "x", "x"], False), (["die:1", "die:1", "x"], False)]
)
def test_a_child_of_mixed_conditions_starts_when_all_hold_c34(daemon: Daemon, ends: list[str], runs: bool) -> None:
    masks = [1, 2, 3]  # success, failure, either
    with daemon.login("drover_frontend").transaction():
        parents = [daemon.insert(role="drover_frontend", jq_type="rec", jq_args=args) for args in ends]
        child = daemon.insert(role="drover_frontend", jq_type="noop")
        for parent, mask in zip(parents, masks, strict=True):
            daemon.execute(
                "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits) values (%s, %s, %s)",
                child, parent, mask, role="drover_frontend",
            )  # fmt: skip
    daemon.wait_all(parents, {"done", "failed"})
    met = sum(mask & (1 if end == "x" else 2) != 0 for end, mask in zip(ends, masks, strict=True))
    daemon.until(lambda: daemon.row(child)["jq_unmet"] == 3 - met)
    if runs:
        daemon.wait(child)
    daemon.wait(daemon.insert(role="drover_frontend", jq_type="noop"))  # queued later: it would overtake no free child
    row = daemon.row(child)
    assert (row["jq_state"], row["jq_attempt"]) == (("done", 1) if runs else ("queued", 0))


def test_the_edges_of_a_parent_are_met_at_its_end_and_no_others_r90(daemon: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with daemon.login("drover_frontend").transaction():
        slow = daemon.insert(role="drover_frontend", jq_type="rec", jq_args=f"gate:{gate}")
        quick = daemon.insert(role="drover_frontend", jq_type="noop")
        children = [daemon.insert(role="drover_frontend", jq_type="noop") for _ in range(2)]
        for child, parent in ((children[0], quick), (children[1], quick), (children[1], slow)):
            daemon.execute(EDGE, child, parent, role="drover_frontend")
    daemon.wait(children[0])
    met = "select jdep_jq_depends_fk from drover.jobdepends where jdep_met_at is not null and jdep_jq_fk = any (%s)"
    assert [row["jdep_jq_depends_fk"] for row in daemon.execute(met, children)] == [quick, quick]
    gate.touch()
    daemon.wait(children[1])
    assert len(daemon.execute(met, children)) == 3


def test_a_failed_job_is_diagnosed_and_retried_and_its_child_runs_r6_r7(daemon: Daemon, tmp_path: Path) -> None:
    part = tmp_path / "part"
    with daemon.login("drover_frontend").transaction():
        job = daemon.insert(role="drover_frontend", jq_type="mend", jq_args=str(part))
        child = daemon.insert(role="drover_frontend", jq_type="noop")
        daemon.execute(EDGE, child, job, role="drover_frontend")
    assert daemon.wait(job, "failed")["jq_exitcode"] == 1
    part.write_text("whole")
    order(daemon, f"retry {job}")
    assert daemon.wait(job)["jq_attempt"] == 2
    daemon.wait(child)
    printed = """select out_attempt, string_agg(out_data, '' order by out_pk) as text from drover.output
                  where out_jq_fk = %s and out_stream = 'out' group by 1 order by 1"""
    assert [row["text"] for row in daemon.execute(printed, job)] == ["look\n", "look\nwhole"]


# ---- races


@pytest.mark.slow
def test_of_200_edges_that_race_with_a_claim_each_holds_or_is_refused_r38_r91(daemon: Daemon) -> None:
    held = daemon.insert(role="drover_frontend", jq_type="noop", jq_state="held")
    holds, refused = [], []
    for _ in range(200):
        child = daemon.insert(role="drover_frontend", jq_type="noop")
        try:
            daemon.execute(EDGE, child, held, role="drover_frontend")
            holds.append(child)
        except psycopg.errors.CheckViolation as error:
            assert "already: it takes no new dependency" in str(error)  # noqa: PT017
            refused.append(child)
    daemon.wait_all(refused)
    daemon.wait(daemon.insert(jq_type="noop", jq_priority="z"))
    rows = daemon.execute(
        "select jq_state::text, jq_unmet, jq_attempt from drover.jobqueue where jq_pk = any (%s)", holds
    )
    assert {tuple(row.values()) for row in rows} <= {("queued", 1, 0)}
    order(daemon, f"release {held}")
    daemon.wait_all(holds)


@pytest.mark.slow
def test_no_child_is_claimed_when_one_of_its_parents_fails_r91(daemon: Daemon) -> None:
    with daemon.login("drover_frontend").transaction():
        kinds = [("rec", "x"), ("rec", "say:FAIL no"), ("noop", ""), ("noop", "free")] * 100
        jobs = [daemon.insert(role="drover_frontend", jq_type=kind, jq_args=args) for kind, args in kinds]
        good, bad, children, free = (jobs[n::4] for n in range(4))
        for parent in good, bad:
            pairs = list(zip(children, parent, strict=True))
            daemon.login("drover_frontend").cursor().executemany(EDGE, pairs)
    daemon.wait_all([*good, *free])
    daemon.wait_all(bad, "failed")
    order(daemon, f"cancel {children[0]}")
    waiting = "select jq_unmet, jq_attempt from drover.jobqueue where jq_pk = any (%s)"
    daemon.until(lambda: {tuple(row.values()) for row in daemon.execute(waiting, children[1:])} == {(1, 0)})
    assert daemon.value("select count(*) from drover.attempt where att_jq_fk = any (%s)", children) == 0


@pytest.mark.slow
def test_a_child_starts_if_its_scheduler_died_before_settling_c28(launch: Launch) -> None:
    types = "[hosts.alpha]\n" + agent("noop", NOOP)
    daemon = launch(types)
    daemon.stop()
    parent, child = (daemon.insert(role="drover_frontend", jq_type="noop") for _ in range(2))
    daemon.execute(EDGE, child, parent, role="drover_frontend")
    for change in (CLAIMED, DONE):
        daemon.execute(f"update drover.jobqueue set {change} where jq_pk = %s", parent)
    assert daemon.row(child)["jq_unmet"] == 1
    launch(types)
    assert daemon.wait(child)["jq_unmet"] == 0


# ---- jobs that make graphs, dummies


def test_a_job_can_insert_a_graph_that_runs_r42(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(role="drover_frontend", jq_type="maker"))
    made = daemon.execute("select jq_pk from drover.jobqueue where jq_name like 'rec.made-%%'")
    daemon.wait_all([row["jq_pk"] for row in made])
    assert (lines(record)[0], sorted(lines(record))) == ("made 1", ["made 1", "made 2", "made 3"])


def test_a_dummy_is_given_a_real_parent_later_r41(daemon: Daemon, record: Path) -> None:
    dummy = setup(daemon, "noop.dummy")
    child = setup(daemon, "rec.child", jq_args="child", depends="noop.dummy")
    real = setup(daemon, "rec.real", jq_args="real", rjm_blocks="noop.dummy")
    order(daemon, "release rec.real")
    daemon.wait_all([real, dummy, child])
    assert lines(record) == ["real", "child"]


def test_a_held_job_is_not_run_until_it_is_released_r28(daemon: Daemon, record: Path) -> None:
    job = setup(daemon, "rec.held", jq_args="held")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="other", jq_priority="z"))
    assert lines(record) == ["other"]
    order(daemon, "release rec.held")
    daemon.wait(job)
    assert lines(record) == ["other", "held"]


# ---- variables


def test_variables_are_arguments_and_environment_of_a_command_r25_r20(daemon: Daemon, tmp_path: Path) -> None:
    settings = {"userid": "5", "invoice": f'a "b" $(touch {tmp_path}/x) é', "files": ["a", 1], "nothing": None}
    job = setup(daemon, "show.variables", **settings)
    order(daemon, f"release {job}")
    daemon.wait(job)
    printed = daemon.value(
        "select string_agg(out_data, '' order by out_pk) from drover.output where out_jq_fk = %s", job
    )
    userid, invoice, variables, nothing = printed.split("|")
    assert (userid, invoice, nothing) == ("5", settings["invoice"], "")
    assert json.loads(variables) == settings
    assert not (tmp_path / "x").exists()


def test_variables_of_the_site_reach_commands_and_give_way_to_those_of_the_job_c57(daemon: Daemon) -> None:
    given = [("", "userid", "site"), ("", "invoice", "site"), ("show", "invoice", "type"), ("other", "nothing", "x")]
    for row in given:
        daemon.execute("insert into drover.variable values (%s, %s, %s)", *row, role="drover_operator")
    job = setup(daemon, "show.given", userid="job")
    daemon.execute("delete from drover.variable", role="drover_operator")
    order(daemon, f"release {job}")
    daemon.wait(job)
    printed = daemon.value(
        "select string_agg(out_data, '' order by out_pk) from drover.output where out_jq_fk = %s", job
    )
    userid, invoice, _, nothing = printed.split("|")
    assert (userid, invoice, nothing) == ("job", "type", "")


def test_a_command_that_names_a_variable_the_job_lacks_fails_before_its_start_r25(daemon: Daemon) -> None:
    job = setup(daemon, "show.lacking", invoice="x")
    order(daemon, f"release {job}")
    assert "the command names {userid}, and the job has no such column" in daemon.wait(job, "failed")["jq_endtext"]


def test_variables_are_the_line_of_an_agent_r25_r27(daemon: Daemon, record: Path) -> None:
    job = setup(daemon, "rec.variables", userid="5", invoice='a "b" $c')
    order(daemon, f"release {job}")
    daemon.wait(job)
    assert lines(record) == [r'userid="5" invoice="a \"b\" \$c"']


def test_a_resubmitted_job_has_its_variables_t26(daemon: Daemon) -> None:
    job = setup(daemon, "bare.once", userid="5")
    order(daemon, f"release {job}")
    daemon.wait(job)
    (row,) = daemon.execute("select drover.job_resubmit(%s) as pk", job, role="drover_frontend")
    daemon.wait(row["pk"])
    printed = "select out_data from drover.output where out_jq_fk = %s"
    assert daemon.value(printed, row["pk"]) == daemon.value(printed, job) == 'userid="5"'


# ---- visibility


def test_jobs_of_a_hidden_group_run_but_are_not_listed_until_it_is_shown_t27(
    daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_operator"))
    insert = "insert into drover.job (job_name) values ('quiet') returning job_pk"
    (group,) = daemon.execute(insert, role="drover_frontend")
    hide = "select drover.job_hide(%s, %s)"
    daemon.execute(hide, group["job_pk"], True, role="drover_frontend")
    columns = {"jq_type": "noop", "jq_job_fk": group["job_pk"]}
    daemon.wait(daemon.insert(role="drover_frontend", **columns))
    daemon.insert(role="drover_frontend", **columns, jq_state="held", jq_args="quiet")
    assert "quiet" not in drover("ls", "-t", "noop").out
    assert "quiet" in drover("ls", "-t", "noop", "--all", "-n", "0").out
    daemon.execute(hide, group["job_pk"], False, role="drover_frontend")
    assert "quiet" in drover("ls", "-t", "noop").out


def test_hidden_job_runs_but_is_not_listed_until_it_is_shown_t21_t27(
    daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_frontend"))
    job = daemon.insert(role="drover_frontend", jq_type="noop", jq_state="held", jq_args="silent")
    assert drover("hide", str(job)).out == f"job {job}: hidden\n"
    assert "silent" not in drover("ls", "-t", "noop").out
    assert "silent" in drover("ls", "-t", "noop", "--all", "-n", "0").out
    daemon.execute("select drover.command(%s)", f"release {job}", role="drover_frontend")
    daemon.wait(job)
    assert "silent" not in drover("ls", "-t", "noop", "-s", "done").out
    assert drover("unhide", str(job), "--json").out == f'{{"job": {job}, "hidden": false}}\n'
    assert "silent" in drover("ls", "-t", "noop", "-s", "done").out


def test_job_of_another_is_not_hidden_t27(daemon: Daemon, drover: Drover, monkeypatch: pytest.MonkeyPatch) -> None:
    job = daemon.insert(role="drover_frontend_sql", jq_type="noop", jq_state="held")
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_frontend"))
    done = drover("hide", str(job))
    assert (done.status, f"no job {job} of yours" in done.err) == (1, True)


# ---- locks


@pytest.mark.slow
def test_a_locked_job_skipped_by_a_claim_runs_after_the_commit_j51(launch: Launch, record: Path) -> None:
    paused = "[hosts.alpha]\n[queues.default]\npaused = true\n"
    daemon = launch(paused + agent("rec", rec(record)))
    parent, child = daemon.insert(jq_type="rec"), daemon.insert(jq_type="rec", jq_state="held")
    with daemon.login("drover_frontend_sql").transaction():
        daemon.execute(EDGE, child, parent, role="drover_frontend_sql")
        behind = daemon.insert(role="drover_operator", jq_type="rec")
        daemon.execute("update drover.queue set queue_paused = false")
        daemon.wait(behind)
        daemon.until(lambda: daemon.value(AT_REST))
        assert daemon.row(parent)["jq_attempt"] == 0
    daemon.wait(parent)


@pytest.mark.slow
def test_a_locked_run_command_whose_jobs_have_ended_ends_after_the_commit_j52(
    launch: Launch, record: Path, gate: Path
) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("rec", rec(record)))
    manual = daemon.insert(role="drover_operator", jq_type="rec", jq_mode="manual", jq_args=f"gate:{gate}")
    child = daemon.insert(role="drover_operator", jq_type="rec", jq_state="held")
    command = daemon.insert(role="drover_operator", jq_type="command", jq_args=f"run {manual}")
    daemon.wait(manual, {"claimed", "running"})
    with daemon.login("drover_operator").transaction():
        daemon.execute(EDGE, child, command, role="drover_operator")
        gate.touch()
        daemon.wait(manual)
        for _ in range(3):  # whoever renews the lease has looked at what was to be done before
            lease = daemon.value(LEASE)
            daemon.until(lambda lease=lease: daemon.value(LEASE) > lease)
    assert daemon.wait(command)


@pytest.mark.slow
def test_a_job_locked_during_a_takeover_is_given_back_after_the_lock_t69(
    launch: Launch, record: Path, gate: Path
) -> None:
    text = "[hosts.alpha]\n" + agent("rec", rec(record))
    first = launch(text)
    parent = first.insert(jq_type="rec", jq_args=f"gate:{gate}")
    child = first.insert(jq_type="rec", jq_state="held")
    first.wait(parent, {"claimed", "running"})
    with first.login("drover_frontend_sql").transaction():
        first.execute(EDGE, child, parent, role="drover_frontend_sql")
        first.kill()
        gate.touch()
        second = launch(text)
        for _ in range(4):
            lease = second.value(LEASE)
            second.until(lambda lease=lease: second.value(LEASE) > lease)
    assert second.wait(parent)
