"""Multi-SQL-queries: one row of the queue, a query whose every row is one work item; real daemon, real database."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agent_tools import module
from tests.agent_tools import record as as_line
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec, records, start

LIBRARY = module("lib/drover_agent.py")
TWO_HOSTS = "[hosts.alpha]\n[hosts.beta]\n"
PENDING = """
create table pending (id integer primary key, done_by text);
insert into pending select generate_series(1, 12);
grant select on pending to drover_msq;
grant select, update on pending to drover_agentdb;
"""
# An agent that works through table pending: each item is marked done, which takes it out of the next slice.
MARKS = python("""
import sys
print("OK")
for line in sys.stdin:
    number = line.split('id="')[1].split('"')[0]
    print('DB: done {"id": "%s"}' % number)
    while sys.stdin.readline() != "OK\\n":
        pass
    print("OK")
""")
A_SECOND = timedelta(seconds=1)
DONE = {"done": "update pending set done_by = current_user where id = :id::integer"}
# Every change of a job, written down as it happens.
AUDIT = """
create table history (at bigserial, jq_pk bigint, state text, started boolean, ended boolean, start timestamptz,
                      seen timestamptz default now());
create function note() returns trigger language plpgsql security definer as $$
begin
  insert into public.history (jq_pk, state, started, ended, start)
    values (new.jq_pk, new.jq_state, new.jq_starttime is not null, new.jq_endtime is not null, new.jq_starttime);
  return null;
end $$;
create trigger note after update on drover.jobqueue for each row execute function note();
"""

# ---- one daemon that many tests share


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    types = agent("rec", rec(record), slots=2) + agent("other", rec(record)) + agent("one", rec(record), hosts=["beta"])
    with start(TWO_HOSTS + types, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Daemon:
    """Return the shared daemon, with an empty record and an empty placement table."""
    record.write_text("")
    shared.execute("truncate drover.placement")
    return shared


def numbers(record: Path, name: str | None = None) -> list[int]:
    """Return the values of column n that agents were given, in order."""
    return [int(LIBRARY.parse(line)["n"]) for line in lines(record, name)]


def at(record: Path) -> dict[str, str]:
    """Return the host that each value of column n was worked on."""
    notes = [note for note in records(record) if note["event"] == "line"]
    return {LIBRARY.parse(note["line"])["n"]: note["host"] for note in notes}


# ---- every row once


def test_every_row_reaches_one_agent_once_f17(daemon: Daemon, record: Path) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="select n from generate_series(1, 100) n;", jq_msq=True)
    row = daemon.wait(pk)
    assert Counter(numbers(record)) == Counter(range(1, 101))
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_itemstotal"]) == (100, 0, 100)
    assert (row["jq_end_bits"], row["jq_endtext"]) == (1, "all data processed")


def test_a_query_is_one_row_of_the_queue_however_many_it_gives_f18(daemon: Daemon, record: Path) -> None:
    before = daemon.value("select count(*) from drover.jobqueue")
    pk = daemon.insert(jq_type="rec", jq_args="select n from generate_series(1, 5000) n", jq_msq=True)
    assert daemon.wait(pk)["jq_itemsprocessed"] == 5000
    assert Counter(numbers(record)) == Counter(range(1, 5001))
    assert daemon.value("select count(*) from drover.jobqueue") == before + 1


def test_rows_keep_their_order_for_one_agent(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(jq_type="one", jq_args="select n from generate_series(50, 1, -1) n", jq_msq=True))
    assert numbers(record) == list(range(50, 0, -1))


@pytest.mark.slow
def test_a_large_query_does_not_starve_another_type_f2(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    query = f"select n, case n when 10000 then 'gate:{tmp_path / 'gate'}' end as act from generate_series(1, 10000) n"
    large = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True)
    daemon.wait(large, "running")
    daemon.wait(daemon.insert(jq_type="other", jq_args="x"))
    assert daemon.row(large)["jq_state"] == "running"
    (tmp_path / "gate").touch()
    assert daemon.wait(large)["jq_itemsprocessed"] == 10_000


def test_a_large_query_does_not_starve_jobs_of_its_own_type_f2(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    query = f"select n, case n when 10000 then 'gate:{tmp_path / 'gate'}' end as act from generate_series(1, 10000) n"
    large = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True)
    daemon.wait(large, "running")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="small"))
    assert daemon.row(large)["jq_state"] == "running"
    (tmp_path / "gate").touch()
    daemon.wait(large)


def test_progress_is_shown_while_a_query_runs_f48_f159(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    query = f"select n, case when n > 7 then 'gate:{tmp_path / 'gate'}' end as act from generate_series(1, 10) n"
    pk = daemon.insert(jq_type="one", jq_args=query, jq_msq=True)
    daemon.until(lambda: daemon.row(pk)["jq_itemsprocessed"] == 7)
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_itemstotal"], row["jq_endtext"]) == ("running", 10, "in progress")
    (tmp_path / "gate").touch()
    assert daemon.wait(pk)["jq_itemsprocessed"] == 10


def test_query_in_hand_goes_on_before_an_older_job_which_then_has_its_turn_f38(
    daemon: Daemon, record: Path, tmp_path: Path
) -> None:
    """The original fed all of a claimed query first; here jobs take turns, so that none locks out others (F2)."""
    query = f"select n, case n when 10 then 'gate:{tmp_path / 'gate'}' end as act from generate_series(1, 40) n"
    large = daemon.insert(jq_type="one", jq_args=query, jq_msq=True)
    daemon.until(lambda: len(lines(record)) == 10)
    older = (
        "insert into drover.jobqueue (jq_type, jq_args, jq_queued) values ('one', 'older', now() - interval '1 hour')"
    )
    pk = daemon.value(f"{older} returning jq_pk")
    daemon.wait(pk, "claimed")
    (tmp_path / "gate").touch()
    daemon.wait_all([large, pk])
    given = ["older" if line == "older" else int(LIBRARY.parse(line)["n"]) for line in lines(record)]
    assert given[:11] == list(range(1, 12))
    assert given.index("older") < 40
    assert [n for n in given if n != "older"] == list(range(1, 41))


def test_query_ends_only_after_its_last_row_f68(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    query = f"select n, case n when 5 then 'gate:{tmp_path / 'gate'}' end as act from generate_series(1, 5) n"
    pk = daemon.insert(jq_type="one", jq_args=query, jq_msq=True)
    daemon.until(lambda: daemon.row(pk)["jq_itemsprocessed"] == 4)
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_endtime"], numbers(record)) == ("running", None, [1, 2, 3, 4, 5])
    (tmp_path / "gate").touch()
    assert daemon.wait(pk)["jq_itemsprocessed"] == 5


# ---- where rows are worked


def test_a_column_names_the_host_of_each_row_f14_f20_f24(daemon: Daemon, record: Path) -> None:
    query = "select n, case n % 2 when 0 then 'alpha' else 'beta' end as host from generate_series(1, 40) n"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_runonpfile="host"))
    assert at(record) == {str(n): ("beta", "alpha")[n % 2 == 0] for n in range(1, 41)}


def test_a_value_is_looked_up_in_the_placement_table_f14_f15(daemon: Daemon, record: Path) -> None:
    place(daemon, "('p1', null, 'alpha'), ('p2', null, 'beta'), ('q0', 'q9', 'beta')")
    query = "select n, (array['p1', 'p2', 'q5'])[n] as pfile from generate_series(1, 3) n"
    daemon.until(lambda: hosts_of(daemon, record, query) == {"1": "alpha", "2": "beta", "3": "beta"})
    assert hosts_of(daemon, record, query) == {"1": "alpha", "2": "beta", "3": "beta"}


def test_a_change_of_the_placement_table_applies_to_later_queries_f15(daemon: Daemon, record: Path) -> None:
    query = "select n, 'p1' as pfile from generate_series(1, 4) n"
    place(daemon, "('p1', null, 'alpha')")
    daemon.until(lambda: set(hosts_of(daemon, record, query).values()) == {"alpha"})
    place(daemon, "('p1', null, 'beta')")
    daemon.until(lambda: set(hosts_of(daemon, record, query).values()) == {"beta"})
    assert set(hosts_of(daemon, record, query).values()) == {"beta"}


def hosts_of(daemon: Daemon, record: Path, query: str) -> dict[str, str]:
    """Run a query as a job and give the host of each row; a change of the placement table takes a moment to be seen."""
    record.write_text("")
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_runonpfile="pfile"))
    return at(record)


def place(daemon: Daemon, rules: str) -> None:
    """Change the placement table."""
    daemon.execute("truncate drover.placement")
    daemon.execute(f"insert into drover.placement (placement_from, placement_to, placement_host) values {rules}")


@pytest.mark.parametrize("value", ["'unmapped'", "null"])
def test_rows_without_a_place_run_on_any_host_f15(daemon: Daemon, record: Path, value: str) -> None:
    query = f"select n, {value}::text as pfile, 'nap:0.2' as act from generate_series(1, 30) n"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_runonpfile="pfile"))
    assert set(at(record).values()) == {"alpha", "beta"}


def test_a_query_for_any_host_is_spread_over_all_f22_f26(daemon: Daemon, record: Path) -> None:
    query = "select n, 'nap:0.2' as act from generate_series(1, 30) n"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True))
    assert set(at(record).values()) == {"alpha", "beta"}


def test_a_query_bound_to_a_host_runs_only_there_f21_f22(daemon: Daemon, record: Path) -> None:
    query = "select n, 'alpha' as pfile, 'nap:0.01' as act from generate_series(1, 20) n"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_runonpfile="pfile", jq_host="beta"))
    assert set(at(record).values()) == {"beta"}


def test_a_query_of_one_record_behaves_like_a_bound_parameter_f25(daemon: Daemon, record: Path) -> None:
    query = "select 7 as pfile, 9 as ufile, 'beta' as host"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_runonpfile="host"))
    daemon.wait(daemon.insert(jq_type="rec", jq_args='pfile="7" ufile="9" host="beta"', jq_host="beta"))
    notes = [note for note in records(record) if note["event"] == "line"]
    assert [(note["host"], note["line"]) for note in notes] == [("beta", 'pfile="7" ufile="9" host="beta"')] * 2


# ---- rows as lines


def test_a_record_is_one_line_of_pairs_in_select_order_f85(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select 'x y' as b, 1 as a, true as c", jq_msq=True))
    assert lines(record) == ['b="x y" a="1" c="t"']


def test_null_is_left_out_and_empty_is_not_f87(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select null as a, '' as b, null as c", jq_msq=True))
    assert lines(record) == ['b=""']


VALUES = [
    "plain",
    "quotes \" and ' and ` and $HOME and $(touch x)",
    "back\\slash \\n \\",
    "line\nfeed\r\nand\ttab",
    "Zürich 東京 🐂",
    "\x01\x1b[31m\x7f",
    'a="b" c="d',
]


@pytest.mark.parametrize("value", VALUES)
def test_any_value_is_read_unchanged_from_its_line_f86(daemon: Daemon, record: Path, value: str) -> None:
    daemon.execute("drop table if exists odd; create table odd (value text); grant select on odd to drover_msq")
    daemon.execute("insert into odd values (%s)", value)
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select value from odd", jq_msq=True))
    assert lines(record) == [as_line({"value": value.encode()}).decode()]
    assert LIBRARY.parse(lines(record)[0]) == {"value": value}


# ---- ends


def test_a_query_without_rows_is_done_and_starts_no_agent_f34_f161(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(TWO_HOSTS + agent("rec", rec(tmp_path / "record")))
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args="select 1 as n where false", jq_msq=True))
    assert (row["jq_endtext"], row["jq_end_bits"], row["jq_itemstotal"]) == ("no data", 1, 0)
    assert records(tmp_path / "record") == []
    assert daemon.agent_pids() == []


def test_a_query_with_broken_sql_fails_with_the_error_and_delays_nobody_f29(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="select * from nowhere", jq_msq=True)
    row = daemon.wait(pk, "failed")
    assert 'relation "nowhere" does not exist (SQLSTATE 42P01' in row["jq_endtext"]
    daemon.until(lambda: "nowhere" in daemon.log_text(pk))
    daemon.wait(daemon.insert(jq_type="rec", jq_args="x"))


def test_wall_time_and_agent_time_are_both_kept_f159(daemon: Daemon) -> None:
    query = "select n, 'nap:1.5' as act from generate_series(1, 4) n"
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True))
    elapsed, processed = row["jq_elapsedtime"].total_seconds(), row["jq_processedtime"].total_seconds()
    assert 1.5 <= elapsed < processed
    assert processed >= 6


@pytest.mark.parametrize(("tolerate", "state", "bits"), [(0, "failed", 2), (1, "failed", 2), (2, "done", 5)])
def test_items_that_fail_are_recorded_and_fail_the_job_past_its_tolerance(
    daemon: Daemon, record: Path, tolerate: int, state: str, bits: int
) -> None:
    query = "select n, case when n in (3, 5) then 'say:FAIL no good' end as act from generate_series(1, 10) n"
    pk = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True, jq_key="n", jq_tolerate=tolerate)
    row = daemon.wait(pk, state)
    failures = daemon.execute("select item_key, item_reason from drover.item_failure where item_jq_fk = %s", pk)
    assert sorted((f["item_key"], f["item_reason"]) for f in failures) == [("3", "no good"), ("5", "no good")]
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], row["jq_end_bits"]) == (8, 2, bits)
    assert len(numbers(record)) == 10


def test_an_item_whose_agent_dies_is_tried_once_more_alone_in_a_fresh_process(daemon: Daemon, record: Path) -> None:
    query = "select n, case n when 2 then 'die:3' end as act from generate_series(1, 5) n"
    pk = daemon.insert(jq_type="one", jq_args=query, jq_msq=True, jq_tolerate=1)
    row = daemon.wait(pk)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"]) == (4, 1)
    assert Counter(numbers(record)) == Counter([1, 2, 2, 3, 4, 5])
    (failure,) = daemon.execute("select * from drover.item_failure where item_jq_fk = %s", pk)
    assert failure["item_reason"] == "agent terminated prematurely, with exit status 3"
    assert failure["item_line"] == 'n="2" act="die:3"'


# ---- slices


@pytest.fixture
def marking(launch: Launch) -> Daemon:
    """Return a daemon whose agents work through table pending, with every change of a job in table history."""
    text = TWO_HOSTS + agent("marks", MARKS, db="statements", statements=DONE)
    daemon = launch(text)
    daemon.execute(PENDING)
    daemon.execute(AUDIT)
    return daemon


SLICE = "select id from pending where done_by is null order by id limit 5"


def test_a_repeating_query_goes_back_to_the_queue_until_it_gives_no_rows_f33(marking: Daemon) -> None:
    pk = marking.insert(jq_type="marks", jq_args=SLICE, jq_msq=True, jq_repeat=True)
    row = marking.wait(pk)
    assert [a["att_outcome"] for a in marking.attempts(pk)] == ["slice", "slice", "slice", "done"]
    assert (row["jq_itemsprocessed"], row["jq_attempt"]) == (12, 4)
    history = marking.execute("select state, started, ended from history order by at")
    assert [step for step in history if step["state"] == "queued"] == [
        {"state": "queued", "started": False, "ended": False}
    ] * 3
    assert history[-1] == {"state": "done", "started": True, "ended": True}
    assert marking.execute("select distinct done_by from pending") == [{"done_by": "drover_agentdb"}]


@pytest.mark.parametrize("columns", [{}, {"jq_key": "id"}])
def test_start_and_times_of_a_repeating_query_are_those_of_all_its_slices_f159(
    marking: Daemon, columns: dict[str, Any]
) -> None:
    pk = marking.insert(jq_type="marks", jq_args=SLICE, jq_msq=True, jq_repeat=True, **columns)
    row, slices = marking.wait(pk), marking.attempts(pk)
    took = sum((each["att_end"] - each["att_start"]).total_seconds() for each in slices)
    assert abs(row["jq_elapsedtime"].total_seconds() - took) < 0.001
    assert row["jq_processedtime"].total_seconds() > 0
    assert row["jq_starttime"] < slices[1]["att_start"]
    starts = marking.execute("select distinct start from history where start is not null")
    assert starts == [{"start": row["jq_starttime"]}]


# The same, and it writes down from when to when it worked; the seventh item waits for the gate.
TIMED = """
import os, sys, time
print("OK")
for line in sys.stdin:
    number = line.split('id="')[1].split('"')[0]
    begin = time.time()
    while number == "7" and not os.path.exists({gate!r}):
        time.sleep(0.005)
    time.sleep(0.05)
    with open({notes!r}, "a") as file:
        print(begin, time.time(), file=file)
    print('DB: done {{"id": "%s"}}' % number)
    while sys.stdin.readline() != "OK\\n":
        pass
    print("OK")
"""


@pytest.mark.slow
def test_attempts_tell_how_long_a_job_took_though_its_start_is_reset_f47(launch: Launch, tmp_path: Path) -> None:
    gate, notes = tmp_path / "gate", tmp_path / "notes"
    script = python(TIMED.format(gate=str(gate), notes=str(notes)))
    text = "[hosts.alpha]\n" + agent("timed", script, db="statements", statements=DONE)
    first = launch(text)
    first.execute(PENDING)
    first.execute(AUDIT)
    pk = first.insert(jq_type="timed", jq_args=SLICE, jq_msq=True, jq_repeat=True)
    first.until(lambda: first.value("select count(done_by) from pending") == 6)
    first.stop()
    assert first.row(pk)["jq_starttime"] is None
    gate.touch()
    second = launch(text)
    end = second.wait(pk)["jq_endtime"]
    attempts = [(each["att_start"], each["att_end"]) for each in second.attempts(pk)]
    outcomes = [each["att_outcome"] for each in second.attempts(pk)]
    assert outcomes == ["slice", "given back", "slice", "slice", "done"]  # the last finds no row
    changes = "select state, seen, lag(state, 1, 'queued') over (order by at) as before from history order by at"
    moves = [step for step in second.execute(changes) if step["state"] != step["before"]]
    starts = [step["seen"] for step in moves if step["before"] == "queued"]
    ends = [step["seen"] for step in moves if step["state"] in ("queued", "done")]
    assert attempts == sorted(attempts)
    assert max(abs(seen - told) for seen, (told, _) in zip(starts, attempts, strict=True)) < A_SECOND
    assert max(abs(seen - told) for seen, (_, told) in zip(ends, attempts, strict=True)) < A_SECOND
    assert attempts[-1][1] == end
    took = sum(map(_length, attempts), timedelta())
    assert abs(took - sum(map(_length, zip(starts, ends, strict=True)), timedelta())) < A_SECOND
    worked = [tuple(map(float, line.split())) for line in notes.read_text().splitlines()]
    assert len(worked) == 12
    assert took + A_SECOND > timedelta(seconds=sum(map(_length, worked)))


def _length(span: tuple[Any, ...]) -> Any:
    begin, end = span
    return end - begin


@pytest.mark.parametrize("order", ["id", "id desc", "id % 3"])
def test_slices_with_a_key_work_every_row_in_whatever_order_they_come_f33(marking: Daemon, order: str) -> None:
    query = f"select id from pending where done_by is null order by {order} limit 5"
    row = marking.wait(marking.insert(jq_type="marks", jq_args=query, jq_repeat=True, jq_msq=True, jq_key="id"))
    assert (row["jq_state"], row["jq_itemsprocessed"]) == ("done", 12)
    assert marking.value("select count(*) from pending where done_by is null") == 0


def test_a_query_that_does_not_repeat_ends_after_its_slice_f36(marking: Daemon) -> None:
    pk = marking.insert(jq_type="marks", jq_args=SLICE, jq_msq=True)
    assert marking.wait(pk)["jq_itemsprocessed"] == 5
    assert marking.value("select count(*) from pending where done_by is null") == 7


def test_a_repeating_query_that_makes_no_progress_fails(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(TWO_HOSTS + agent("rec", rec(tmp_path / "record")))
    query = "select 1 as n, 'say:FAIL no' as act"
    pk = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True, jq_repeat=True, jq_tolerate=100)
    assert daemon.wait(pk, "failed")["jq_endtext"].startswith("no progress")
    assert len(lines(tmp_path / "record")) == 1


def test_other_jobs_run_between_slices_f35(marking: Daemon) -> None:
    other = {"jq_type": "marks", "jq_args": "select 0 as id", "jq_msq": True}
    sliced = {"jq_type": "marks", "jq_args": SLICE, "jq_msq": True, "jq_repeat": True}
    pks = marking.insert_all([sliced, other])
    marking.wait_all(pks)
    ends = marking.execute("select jq_pk from history where ended order by at")
    assert [end["jq_pk"] for end in ends] == [pks[1], pks[0]]


# ---- expansions


def test_queries_that_cannot_be_dispatched_do_not_delay_others_f49(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch(TWO_HOSTS + agent("a", rec(record), hosts=["alpha"]) + agent("b", rec(record), hosts=["beta"]))
    query = f"select n, 'gate:{gate}' as act from generate_series(1, 3) n"
    waiting = daemon.insert_all([{"jq_type": "a", "jq_args": query, "jq_msq": True}] * 10)
    daemon.until(lambda: lines(record, "a"))
    daemon.wait(daemon.insert(jq_type="b", jq_args="select 7 as n", jq_msq=True))
    assert numbers(record, "b") == [7]
    assert len(numbers(record, "a")) == 1
    gate.touch()
    assert [row["jq_itemsprocessed"] for row in daemon.wait_all(waiting)] == [3] * 10


def test_one_connection_is_enough_for_many_queries_f49(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch("[scheduler]\nexpansions = 1\n" + TWO_HOSTS + agent("a", rec(record)) + agent("b", rec(record)))
    rows = [{"jq_type": kind, "jq_args": f"select {n} as n", "jq_msq": True} for n in range(10) for kind in "ab"]
    daemon.wait_all(daemon.insert_all(rows))
    assert Counter(numbers(record)) == Counter([*range(10), *range(10)])


@pytest.mark.slow
def test_busy_types_leave_their_rows_to_files_and_work_all_of_them_f49(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    limits = "[scheduler]\nexpansions = 2\nfetch_bytes = 10000\n"
    daemon = launch(limits + TWO_HOSTS + "".join(agent(name, rec(record), hosts=["alpha"]) for name in "abcd"))
    query = f"select n, repeat('x', 1000) as x, case when n = 1 then 'gate:{gate}' end as act "
    query += "from generate_series(1, 1000) n"
    busy = daemon.insert_all([{"jq_type": name, "jq_args": query, "jq_msq": True} for name in "abc"])
    daemon.until(lambda: all(lines(record, name) for name in "abc"), what="a busy type keeps another from beginning")
    daemon.wait(daemon.insert(jq_type="d", jq_args="select 7 as n", jq_msq=True))
    assert [numbers(record, name) for name in "abc"] == [[1]] * 3
    gate.touch()
    assert [row["jq_itemsprocessed"] for row in daemon.wait_all(busy)] == [1000] * 3
    assert [numbers(record, name) for name in "abc"] == [[*range(1, 1001)]] * 3


@pytest.mark.slow
def test_rows_are_worked_once_where_no_file_can_be_made_f49(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    record, gate = tmp_path / "record", tmp_path / "gate"
    limits = "[scheduler]\nexpansions = 2\nfetch_bytes = 10000\n"
    daemon = launch(limits + TWO_HOSTS + "".join(agent(name, rec(record), hosts=["alpha"]) for name in "abc"))
    query = f"select n, repeat('x', 1000) as x, case when n = 1 then 'gate:{gate}' end as act "
    query += "from generate_series(1, 100) n"
    busy = daemon.insert_all([{"jq_type": name, "jq_args": query, "jq_msq": True} for name in "abc"])
    daemon.until(lambda: "no file for the rows of its query" in daemon.stderr(), what="the log does not say it")
    gate.touch()
    daemon.wait_all(busy)
    assert [numbers(record, name) for name in "abc"] == [[*range(1, 101)]] * 3


def test_rows_are_fetched_in_parts_and_all_processed(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch("[scheduler]\nfetch_rows = 3\n" + TWO_HOSTS + agent("a", rec(record), slots=2))
    row = daemon.wait(daemon.insert(jq_type="a", jq_args="select n from generate_series(1, 200) n", jq_msq=True))
    assert Counter(numbers(record)) == Counter(range(1, 201))
    assert row["jq_itemstotal"] == 200


# ---- what a query may do


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select 1 as n from drover.jobqueue", "permission denied for schema drover"),
        ("select 1 as n; commit; delete from pfile", "syntax error"),
        ("delete from pfile returning id as n", "syntax error"),
        ("with gone as (delete from pfile returning 1 as n) select * from gone", "top level|read-only|data-modifying"),
        ("select pg_read_file('/etc/passwd') as n", "permission denied"),
    ],
)
def test_a_query_reads_its_own_tables_and_changes_nothing(daemon: Daemon, query: str, reason: str) -> None:
    daemon.execute("create table if not exists pfile (id int); grant all on pfile to drover_msq")
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True), "failed")
    assert re.search(reason, row["jq_endtext"])


# ---- after a crash


def killed_at_60(launch: Launch, record: Path, gate: Path, **columns: Any) -> tuple[str, int]:
    """Kill a daemon when 60 of 100 items are saved and two more in hand; return its configuration and its job."""
    text = TWO_HOSTS + agent("a", rec(record), window=1)
    daemon = launch(text)
    query = f"select n, case when n > 60 then 'gate:{gate}' end as act from generate_series(1, 100) n"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True, **columns)
    daemon.until(lambda: daemon.row(pk)["jq_itemsprocessed"] == 60 and len(lines(record)) == 62)
    daemon.kill()
    assert daemon.row(pk)["jq_state"] == "running"
    gate.touch()
    return text, pk


@pytest.mark.slow
def test_after_a_kill_only_the_unfinished_items_of_a_keyed_query_are_sent_again_t65_t68_t69(
    launch: Launch, tmp_path: Path
) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    text, pk = killed_at_60(launch, record, gate, jq_key="n")
    row = launch(text).wait(pk)
    counts = Counter(numbers(record))
    assert {n for n, count in counts.items() if count > 1} == {61, 62}
    assert sorted(counts) == list(range(1, 101))
    assert (row["jq_itemsprocessed"], row["jq_itemstotal"]) == (100, 100)
    assert (row["jq_rescued"], row["jq_interruptions"], row["jq_attempt"]) == (1, 1, 2)


def test_after_a_kill_a_query_without_a_key_begins_its_slice_again_t68(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    text, pk = killed_at_60(launch, record, gate)
    daemon = launch(text)
    row = daemon.wait(pk)
    assert Counter(numbers(record)) == Counter([*range(1, 63), *range(1, 101)])
    assert (row["jq_itemsprocessed"], row["jq_itemstotal"]) == (100, 100)
    assert [a["att_outcome"] for a in daemon.attempts(pk)] == ["rescued", "done"]


@pytest.mark.slow
def test_a_keyed_query_given_back_at_a_drain_resumes_at_its_checkpoint_f46(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    text = TWO_HOSTS + agent("a", rec(record))
    daemon = launch(text)
    query = f"select n, case when n > 5 then 'gate:{gate}' end as act from generate_series(1, 10) n"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True, jq_key="n")
    daemon.until(lambda: len(lines(record)) == 7)
    daemon.signal(2)
    daemon.until(lambda: "draining" in daemon.stderr())
    gate.touch()
    assert daemon.wait_exit() == 0
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_starttime"], row["jq_itemsprocessed"]) == ("queued", None, 7)
    launch(text).wait(pk)
    assert Counter(numbers(record)) == Counter(range(1, 11))
