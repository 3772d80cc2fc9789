"""The rules that the schema keeps by itself, whoever writes: states, names, edges, defaults, the index of a claim."""

import json
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, ForeignKeyViolation, UniqueViolation

from scheduler.database import migrate
from scheduler.drivers.sql import load
from scheduler.errors import WorldError
from scheduler.model.jobs import SUSPECT_AFTER
from scheduler.model.states import INSERTABLE, JOB_STATES
from scheduler.package_data import schema_dir

Connection = psycopg.Connection[Any]

BEGUN = "jq_owner = gen_random_uuid(), jq_starttime = now()"
ENDED = "jq_owner = null, jq_starttime = now(), jq_endtime = now()"
OWNER = "00000000-0000-0000-0000-000000000001"
END_AND_CLAIM = load((schema_dir() / "queries.sql").read_text())["end_and_claim"]


@pytest.fixture
def queue(database: str) -> Iterator[Connection]:
    """Give a connection of the owner that commits each statement."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def _all(queue: Connection, query: str, *values: object) -> list[Any]:
    return queue.execute(query.encode(), values or None).fetchall()


def _one(queue: Connection, query: str, *values: object) -> Any:
    return _all(queue, query, *values)[0][0]


def _job(queue: Connection, **columns: object) -> int:
    """Insert a job and give its number."""
    given = {"jq_type": "noop", **columns}
    marks = ", ".join("%s" for _ in given)
    job: int = _one(
        queue,
        f"insert into drover.jobqueue ({', '.join(given)}) values ({marks}) returning jq_pk",
        *given.values(),
    )
    return job


def _column(queue: Connection, job: int, column: str) -> Any:
    return _one(queue, f"select {column} from drover.jobqueue where jq_pk = %s", job)


def _set(queue: Connection, job: int, assignment: str) -> None:
    queue.execute(f"update drover.jobqueue set {assignment} where jq_pk = %s".encode(), (job,))


def _claim(queue: Connection, job: int) -> None:
    _set(queue, job, f"jq_state = 'claimed', {BEGUN}")


def _end(queue: Connection, job: int, state: str = "done", bits: int = 1) -> None:
    _claim(queue, job)
    _set(queue, job, f"jq_state = '{state}', {ENDED}, jq_end_bits = {bits}")


def _edge(queue: Connection, child: int, parent: int, mask: int = 1, on_unmet: str = "wait") -> None:
    queue.execute("insert into drover.jobdepends values (%s, %s, %s, %s)", (child, parent, mask, on_unmet))


def _settle(queue: Connection, *parents: int) -> int:
    """Settle what is little enough for one statement; give how many children got nearer."""
    released: int = _one(
        queue, "select released from drover.settle(%s::bigint[], 0, 1000, waits => true)", list(parents)
    )
    return released


def _heard(queue: Connection, channel: str) -> list[str]:
    """Give what a listening connection has heard on a channel; a last word of our own ends the wait."""
    queue.execute(f"notify {channel}, 'end'".encode())
    notes = takewhile(lambda note: note.payload != "end", queue.notifies(timeout=30))
    return [note.payload for note in notes if note.channel == channel]


# ---- what a state means


def test_job_without_start_may_run_f30(queue: Connection) -> None:
    job = _job(queue)
    assert _column(queue, job, "(jq_state::text, jq_starttime, jq_endtime)") == ("queued", None, None)


@pytest.mark.parametrize("wrong", ["jq_starttime = now()", "jq_owner = gen_random_uuid()", "jq_end_bits = 1"])
@pytest.mark.parametrize("state", ["held", "queued"])
def test_waiting_job_has_no_start_no_owner_and_no_end_f30(queue: Connection, state: str, wrong: str) -> None:
    job = _job(queue, jq_state=state)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        _set(queue, job, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "jq_starttime = now()",
        "jq_owner = gen_random_uuid()",
        f"{BEGUN}, jq_endtime = now()",
        f"{BEGUN}, jq_end_bits = 1",
    ],
)
def test_job_in_hand_has_an_owner_a_start_and_no_end_f31(queue: Connection, wrong: str) -> None:
    job = _job(queue)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        _set(queue, job, f"jq_state = 'claimed', {wrong}")


@pytest.mark.parametrize(
    ("state", "bits"),
    [
        *[("done", 0), ("done", 2), ("done", 3), ("done", 4)],
        *[("failed", 0), ("failed", 1), ("failed", 3), ("cancelled", 1), ("cancelled", 4)],
    ],
)
def test_ended_job_has_the_bits_of_its_state_f32(queue: Connection, state: str, bits: int) -> None:
    job = _job(queue)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        _end(queue, job, state, bits)


@pytest.mark.parametrize(
    "wrong", ["jq_owner = null", "jq_owner = null, jq_starttime = null, jq_endtime = now()", "jq_endtime = now()"]
)
def test_ended_job_has_a_start_an_end_and_no_owner_f32(queue: Connection, wrong: str) -> None:
    job = _job(queue)
    _claim(queue, job)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        _set(queue, job, f"jq_state = 'done', jq_end_bits = 1, {wrong}")


@pytest.mark.parametrize("state", sorted(set(JOB_STATES) - INSERTABLE))
def test_job_is_inserted_held_or_queued_j25(queue: Connection, state: str) -> None:
    with pytest.raises(CheckViolation, match=f"inserted held or queued, not {state}"):
        _job(queue, jq_state=state)


def test_states_of_code_and_database_agree_f143(database: str) -> None:
    migrate.check(database)  # raises when they do not
    with psycopg.connect(database) as connection:
        states = connection.execute("select unnest(enum_range(null::drover.job_state))::text").fetchall()
    assert [state for (state,) in states] == list(JOB_STATES)


def test_database_with_another_state_is_refused_f143(database: str, queue: Connection) -> None:
    queue.execute("alter type drover.job_state add value 'frozen'")
    with pytest.raises(WorldError, match="job state frozen: install the drover that made the database"):
        migrate.check(database)


def test_database_that_lacks_a_state_is_refused_f143(database: str, queue: Connection) -> None:
    queue.execute("alter type drover.job_state rename value 'skipped' to 'iced'")
    with pytest.raises(WorldError, match="job state iced, skipped"):
        migrate.check(database)


# ---- names, numbers, what never changes


def test_database_numbers_the_jobs_in_order_j20(queue: Connection) -> None:
    numbers = [_job(queue), _job(queue), _job(queue)]
    assert numbers == sorted(set(numbers))


def test_job_number_cannot_be_chosen_j20(queue: Connection) -> None:
    with pytest.raises(psycopg.errors.GeneratedAlways):
        _job(queue, jq_pk=7)


@pytest.mark.parametrize(
    ("job_type", "name"), [("a", "a.b"), ("billing", "billing.simpsons-8761230871234")], ids=["r22", "r23"]
)
def test_name_is_type_dot_nonce_r22_r23(queue: Connection, job_type: str, name: str) -> None:
    assert _column(queue, _job(queue, jq_type=job_type, jq_name=name), "jq_name") == name


@pytest.mark.parametrize("name", ["a.b.c", "a", "a.", ".b", "b.a", "a.b c", ""])
def test_other_name_is_refused_r22(queue: Connection, name: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_name_is_type_dot_nonce"):
        _job(queue, jq_type="a", jq_name=name)


@pytest.mark.parametrize(
    "change",
    ["jq_type = 'shell'", "jq_args = 'x'", "jq_name = 'noop.x'", "jq_msq = true", "jq_submitter = 'eve'"],
)
def test_what_a_job_asks_for_never_changes_r71(queue: Connection, change: str) -> None:
    job = _job(queue)
    with pytest.raises(CheckViolation, match=f"what job {job} asks for never changes"):
        _set(queue, job, change)


def test_priority_is_stored_and_read_r76(queue: Connection) -> None:
    assert _column(queue, _job(queue, jq_priority="b"), "jq_priority") == "b"


@pytest.mark.parametrize("priority", ["", "a b", "ä", "x" * 17])
def test_odd_priority_is_refused_r76(queue: Connection, priority: str) -> None:
    with pytest.raises(CheckViolation):
        _job(queue, jq_priority=priority)


def test_job_is_visible_at_once_and_may_be_cancelled_before_it_starts_t66(database: str, queue: Connection) -> None:
    job = _job(queue)
    with psycopg.connect(database, autocommit=True) as other:
        _set(other, job, f"jq_state = 'cancelled', {ENDED}, jq_end_bits = 2")
    assert _all(queue, "select claim_jq_fk from drover.claimable") == []
    with pytest.raises(CheckViolation):
        _claim(queue, job)
    with pytest.raises(CheckViolation, match=f"job {job} may not move from cancelled to claimed"):
        _set(queue, job, f"jq_state = 'claimed', {BEGUN}, jq_endtime = null, jq_end_bits = 0")


# ---- what an insert fills in


@pytest.mark.parametrize(("priority", "urgent"), [(99, False), (100, True)])
def test_urgency_is_copied_from_the_group(queue: Connection, priority: int, urgent: bool) -> None:
    group = _one(queue, "insert into drover.job (job_priority) values (%s) returning job_pk", priority)
    assert _column(queue, _job(queue, jq_job_fk=group), "jq_urgent") is urgent


def test_urgent_job_stays_urgent_in_any_group(queue: Connection) -> None:
    group = _one(queue, "insert into drover.job default values returning job_pk")
    assert _column(queue, _job(queue, jq_job_fk=group, jq_urgent=True), "jq_urgent")


def test_manual_job_is_held(queue: Connection) -> None:
    assert _column(queue, _job(queue, jq_mode="manual"), "jq_state") == "held"


def test_naming_a_host_column_says_that_args_is_sql_f20(queue: Connection) -> None:
    assert _column(queue, _job(queue, jq_runonpfile="host"), "jq_msq")


def test_neither_key_nor_repeat_without_sql_f36(queue: Connection) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_key_needs_sql"):
        _job(queue, jq_key="pfile_pk")
    with pytest.raises(CheckViolation, match="jobqueue_repeat_needs_sql"):
        _job(queue, jq_repeat=True)


def test_job_for_a_host_goes_to_the_queue_of_its_group(queue: Connection) -> None:
    queue.execute("insert into drover.queue (queue_name, queue_group) values ('east', 'east')")
    queue.execute("insert into drover.host (host_name, host_group) values ('alpha', 'east')")
    assert _column(queue, _job(queue, jq_host="alpha"), "jq_queue") == "east"
    assert _column(queue, _job(queue, jq_host="unheard-of"), "jq_queue") == "default"


def test_named_queue_of_a_job_is_kept(queue: Connection) -> None:
    assert _column(queue, _job(queue, jq_queue="heavy", jq_host="alpha"), "jq_queue") == "heavy"
    assert _column(queue, _job(queue, jq_queue=None), "jq_queue") == "default"


def test_job_with_a_later_start_time_waits(queue: Connection) -> None:
    job = _job(queue, jq_not_before="2999-01-01")
    assert _column(queue, job, "jq_wait_until = jq_not_before")
    assert _column(queue, _job(queue, jq_not_before="1999-01-01"), "jq_wait_until") is None


def test_only_one_live_row_has_a_unique_key(queue: Connection) -> None:
    first = _job(queue, jq_unique_key="k")
    with pytest.raises(UniqueViolation):
        _job(queue, jq_unique_key="k", jq_state="held")
    _end(queue, first)
    assert _job(queue, jq_unique_key="k") > first


# ---- clean-ups


def _clean_up(queue: Connection, job: int) -> list[Any]:
    return _all(queue, "select * from drover.cleanup where jq_pk = %s", job)[0][1:]


def _files(queue: Connection, job: int) -> Any:
    return json.loads(_one(queue, "select jq_args from drover.jobqueue where jq_name = %s", f"cleanup.{job}"))


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_job_without_success_is_followed_by_no_clean_up_r44(queue: Connection, state: str) -> None:
    job = _job(queue, jq_delete=["/a"])
    _end(queue, job, state, 2)
    assert _clean_up(queue, job) == (None, "none", None, None)


def test_job_that_was_skipped_is_followed_by_no_clean_up_r44(queue: Connection) -> None:
    job = _job(queue, jq_delete=["/a"], jq_state="held")
    _set(queue, job, f"jq_state = 'skipped', {ENDED}, jq_end_bits = 1")
    assert _all(queue, "select count(*) from drover.jobqueue") == [(1,)]


@pytest.mark.parametrize("files", [None, []])
def test_job_without_files_is_followed_by_no_clean_up_r43(queue: Connection, files: list[str] | None) -> None:
    job = _job(queue, jq_delete=files)
    _end(queue, job)
    assert _all(queue, "select count(*) from drover.jobqueue") == [(1,)]


def test_clean_up_keeps_file_names_unchanged_r43(queue: Connection) -> None:
    names = ["/a b", '/q"', "/back\\slash", "/new\nline", "/é", "/$(id)", "/,{}"]
    job = _job(queue, jq_delete=names)
    _end(queue, job)
    assert _files(queue, job) == {"folder": "", "names": names}
    assert "\n" not in _one(queue, "select jq_args from drover.jobqueue where jq_type = 'cleanup'")


def test_relative_names_are_below_the_directory_of_the_agent_type_r45(queue: Connection) -> None:
    queue.execute("insert into drover.agent (agent_group, agent_type, agent_cwd) values ('default', 'here', '/srv')")
    queue.execute("insert into drover.agent (agent_group, agent_type) values ('default', 'anywhere')")
    here, anywhere = (_job(queue, jq_type=kind, jq_delete=["a", "/b"]) for kind in ("here", "anywhere"))
    _end(queue, here)
    _end(queue, anywhere)
    assert _files(queue, here) == {"folder": "/srv", "names": ["a", "/b"]}
    assert _files(queue, anywhere) == {"folder": "", "names": ["a", "/b"]}


def test_clean_up_is_for_the_host_of_the_attempt_that_succeeded_r47(queue: Connection) -> None:
    job = _job(queue, jq_delete=["/a"])
    attempt = """insert into drover.attempt_kept (att_jq_fk, att_attempt, att_host, att_start, att_outcome)
                 values (%s, %s, %s, now(), %s)"""
    queue.execute(attempt.encode(), (job, 0, "alpha", "done"))
    queue.execute(attempt.encode(), (job, 7, "beta", "failed"))
    _end(queue, job)
    assert _clean_up(queue, job)[2] == "alpha"


def test_state_of_a_clean_up_is_shown_with_its_job_r75(queue: Connection) -> None:
    job = _job(queue, jq_delete=["/a"])
    told = [_clean_up(queue, job)[1]]
    _end(queue, job)
    pk = _clean_up(queue, job)[0]
    told.append(_clean_up(queue, job)[1])
    _claim(queue, pk)
    told.append(_clean_up(queue, job)[1])
    _set(queue, pk, f"jq_state = 'done', {ENDED}, jq_end_bits = 1")
    assert [*told, _clean_up(queue, job)[1]] == ["none", "pending", "removing", "removed"]


def test_failed_or_cancelled_clean_up_is_shown_r75(queue: Connection) -> None:
    for state in ("failed", "cancelled"):
        job = _job(queue, jq_delete=["/a"])
        _end(queue, job)
        _end(queue, _clean_up(queue, job)[0], state, 2)
        assert _clean_up(queue, job)[1] == "failed"


@pytest.mark.parametrize(("state", "bits"), [("cancelled", 2), ("skipped", 1), ("skipped", 2), ("ignored", 2)])
def test_clean_up_that_was_not_queued_says_why_r75(queue: Connection, state: str, bits: int) -> None:
    job = _job(queue, jq_delete=["/a"])
    _end(queue, job)
    clean_up = _clean_up(queue, job)[0]
    _set(queue, clean_up, "jq_state = 'held'")
    _set(queue, clean_up, f"jq_state = '{state}', {ENDED}, jq_end_bits = {bits}, jq_endtext = 'so'")
    assert _clean_up(queue, job)[1:] == ("failed", None, "so")


def test_clean_up_that_exists_already_is_no_error_r46(queue: Connection) -> None:
    job = _job(queue, jq_delete=["/a"])
    other = _job(queue, jq_type="cleanup", jq_name=f"cleanup.{job}")
    _end(queue, job)
    assert _clean_up(queue, job)[0] == other


@pytest.mark.parametrize("names", ["{null}", "{/a,null}", '{""}', "{{a,b},{c,d}}"])
def test_malformed_list_of_files_is_refused(queue: Connection, names: str) -> None:
    with pytest.raises(CheckViolation, match="jq_delete is a list of names"):
        _job(queue, jq_delete=names)


def test_list_of_files_too_long_for_a_line_is_refused(queue: Connection) -> None:
    with pytest.raises(CheckViolation, match="too long"):
        _job(queue, jq_delete=["\x01" * 100_000])


@pytest.mark.parametrize("columns", [{"jq_msq": True}, {"jq_runonpfile": "host"}])
def test_query_with_files_needs_a_host_r47(queue: Connection, columns: dict[str, Any]) -> None:
    with pytest.raises(CheckViolation, match="needs jq_host"):
        _job(queue, jq_delete=["/a"], **columns)
    assert _job(queue, jq_delete=["/a"], jq_host="alpha", **columns)


def test_empty_host_column_name_is_null_f160(queue: Connection) -> None:
    job = _job(queue, jq_args="a parameter", jq_runonpfile="")
    assert (_column(queue, job, "jq_msq"), _column(queue, job, "jq_runonpfile")) == (False, None)


def test_empty_host_column_name_leaves_jq_msq_unchanged_f160(queue: Connection) -> None:
    job = _job(queue, jq_args="select 1 as n", jq_msq=True, jq_runonpfile="")
    assert (_column(queue, job, "jq_msq"), _column(queue, job, "jq_runonpfile")) == (True, None)


def test_files_of_a_job_never_change_r71(queue: Connection) -> None:
    job = _job(queue, jq_delete=["/a"])
    with pytest.raises(CheckViolation, match="never changes"):
        _set(queue, job, "jq_delete = '{/b}'")


def test_command_removes_no_files(queue: Connection) -> None:
    assert _column(queue, _job(queue, jq_type="command", jq_args="poll", jq_delete=["/a"]), "jq_delete") is None


# ---- edges


def test_edge_to_a_live_parent_is_counted(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    assert _column(queue, child, "jq_unmet") == 1
    assert _column(queue, parent, "jq_has_children")


@pytest.mark.parametrize("mask", [1, 2, 3, 5])
@pytest.mark.parametrize(("state", "bits"), [("done", 1), ("done", 5), ("failed", 2), ("failed", 6)])
def test_edge_to_an_ended_parent_is_met_according_to_its_mask_f160(
    queue: Connection, state: str, bits: int, mask: int
) -> None:
    parent, child = _job(queue), _job(queue)
    _end(queue, parent, state, bits)
    _edge(queue, child, parent, mask)
    assert _column(queue, child, "jq_unmet = 0") is bool(bits & mask)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_cycle_is_refused(queue: Connection, length: int) -> None:
    jobs = [_job(queue) for _ in range(length)]
    queue.cursor().executemany(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)",
        list(pairwise(jobs)),
    )
    with pytest.raises(CheckViolation):
        _edge(queue, jobs[-1], jobs[0])


@pytest.mark.parametrize(
    ("state", "move"),
    [("claimed", BEGUN), ("running", "jq_state = 'running'"), ("done", f"jq_state = 'done', {ENDED}, jq_end_bits = 1")],
)
def test_job_in_hand_or_ended_takes_no_edge(queue: Connection, state: str, move: str) -> None:
    parent, child = _job(queue), _job(queue)
    _claim(queue, child)
    _set(queue, child, move)
    with pytest.raises(CheckViolation, match=f"job {child} is {state} already"):
        _edge(queue, child, parent)


def test_edge_to_a_missing_job_is_refused_r37(queue: Connection) -> None:
    child = _job(queue)
    with pytest.raises(ForeignKeyViolation, match=r"\(jdep_jq_depends_fk\)=\(999\) is not present in table"):
        _edge(queue, child, 999)


def test_repeated_edge_is_refused_or_ignored_and_never_counted_twice(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    with pytest.raises(UniqueViolation):
        _edge(queue, child, parent)
    again = "insert into drover.jobdepends values (%s, %s), (%s, %s) on conflict do nothing"
    queue.execute(again.encode(), (child, parent, child, parent))
    assert _column(queue, child, "jq_unmet") == 1


def test_settling_releases_a_child_and_wakes_every_scheduler(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    _end(queue, parent)
    queue.execute("listen drover_queue")
    assert _settle(queue, parent) == 1
    assert _column(queue, child, "jq_unmet") == 0
    assert _heard(queue, "drover_queue") == [""]


def test_edge_is_met_once(queue: Connection) -> None:
    first, second, child = _job(queue), _job(queue), _job(queue)
    _edge(queue, child, first)
    _edge(queue, child, second)
    _end(queue, first)
    assert [_settle(queue, first), _settle(queue, first)] == [1, 0]
    assert _column(queue, child, "jq_unmet") == 1


def test_failure_skips_the_whole_chain_below_and_notifies(queue: Connection) -> None:
    jobs = [_job(queue) for _ in range(4)]
    _edge(queue, jobs[1], jobs[0], 1, "skip")
    _edge(queue, jobs[2], jobs[1], 1, "skip")
    _edge(queue, jobs[3], jobs[2], 2)
    _end(queue, jobs[0], "failed", 2)
    queue.execute("listen drover_event")
    _settle(queue, jobs[0])
    states = _all(queue, "select jq_state, jq_unmet from drover.jobqueue order by jq_pk")[1:]
    assert states == [("skipped", 1), ("skipped", 1), ("queued", 0)]
    told = [event for text in _heard(queue, "drover_event") for event in json.loads(text)]
    assert [(event["jq_pk"], event["state"]) for event in told] == [(jobs[1], "skipped"), (jobs[2], "skipped")]


def test_a_skipped_job_has_no_waiting_time(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue, jq_not_before="9999-01-01")
    _edge(queue, child, parent, 1, "skip")
    _end(queue, parent, "failed", 2)
    _settle(queue, parent)
    assert _column(queue, child, "(jq_state::text, jq_wait_until)") == ("skipped", None)


def test_child_with_on_unmet_wait_stays_queued_after_a_failure(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    _end(queue, parent, "failed", 2)
    _settle(queue, parent)
    assert _column(queue, child, "(jq_state::text, jq_unmet)") == ("queued", "1")


def test_child_of_two_failures_is_skipped_and_the_insert_goes_on(queue: Connection) -> None:
    first, second = _job(queue), _job(queue)
    _end(queue, first, "failed", 2)
    with queue.transaction():
        child, grandchild = _job(queue), _job(queue)
        _edge(queue, grandchild, child, 2)
        _edge(queue, child, first, 1, "skip")
        _edge(queue, child, second)
    assert _column(queue, child, "jq_state") == "skipped"
    assert _column(queue, grandchild, "(jq_state::text, jq_unmet)") == ("queued", "0")


def test_removing_an_edge_releases_its_child(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    queue.execute("delete from drover.jobdepends")
    assert _column(queue, child, "jq_unmet") == 0


# ---- telling


def test_transaction_wakes_schedulers_once(queue: Connection) -> None:
    queue.execute("listen drover_queue")
    with queue.transaction():
        _job(queue)
        _job(queue)
    assert _heard(queue, "drover_queue") == [""]


def test_notifications_fit_the_channel_however_large_the_numbers(queue: Connection) -> None:
    queue.execute("listen drover_event")
    queue.execute("insert into drover.job (job_pk) overriding system value values (9223372036854775807)")
    queue.execute("""
        insert into drover.jobqueue (jq_pk, jq_type, jq_job_fk) overriding system value
        select 9223372036854775807 - n, 'noop', 9223372036854775807 from generate_series(0, 249) n""")
    queue.execute("select drover.announce(array_agg(jq_pk), array_agg('cancelled'::text)) from drover.jobqueue")
    heard = _heard(queue, "drover_event")
    assert sum(len(json.loads(text)) for text in heard) == 250
    assert max(map(len, heard)) < 8000


# ---- the index of a claim


def _claims(queue: Connection, mode: str, beyond: int = 0) -> dict[str, Any]:
    """Claim 100 jobs of a number `beyond`, as the daemon does, take it back, and give the plan that was run."""
    values = {
        "group": "default", "owner": OWNER, "schedinfo": "here.1", "want_types": ["noop"], "want_queues": ["default"],
        "want_hosts": [""], "want_below": ["2"], "want_ranks": ["1n" if beyond else ""],
        "want_queued": [_column(queue, beyond, "jq_queued::text") if beyond else "-infinity"], "want_pks": [beyond],
        "want_counts": [100], "unread": SUSPECT_AFTER,
    }  # fmt: skip
    cursor = psycopg.ClientCursor(queue)
    with queue.transaction(force_rollback=True):
        cursor.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
        cursor.execute(f"prepare end_and_claim as {END_AND_CLAIM.sql}".encode())
        marks = ", ".join("%s" for _ in END_AND_CLAIM.names)
        given = [values.get(name, []) for name in END_AND_CLAIM.names]
        cursor.execute(f"explain (analyze, buffers, format json) execute end_and_claim ({marks})".encode(), given)
        plan: dict[str, Any] = cursor.fetchall()[0][0][0]["Plan"]
        cursor.execute("deallocate end_and_claim")
    return plan


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Give index, rows and pages of every index scan in a plan."""
    if "Index Name" in plan:
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        yield plan["Index Name"], plan["Actual Rows"] * plan["Actual Loops"], pages
    for part in plan.get("Plans", []):
        yield from _scans(part)


def _pages(plan: dict[str, Any]) -> int:
    return sum(pages for index, _, pages in _scans(plan) if index == "claimable_order")


def _fill(queue: Connection, rows: int, unmet: int = 0) -> None:
    queue.execute(
        """insert into drover.jobqueue (jq_type, jq_args, jq_unmet, jq_queued)
           select 'noop', n::text, %s, now() - %s * interval '1 day' from generate_series(1, %s) n""",
        (unmet, unmet, rows),
    )
    queue.execute("vacuum analyze drover.jobqueue")


@pytest.fixture
def active(queue: Connection) -> Connection:
    """Give the queue of a group that has an active daemon."""
    queue.execute(
        "insert into drover.scheduler_group values ('default', %s, now() + interval '1 hour', now())", (OWNER,)
    )
    return queue


@pytest.mark.parametrize("beyond", [0, 50_000])
@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_claim_reads_what_it_takes_from_the_index_j36_t3(active: Connection, mode: str, beyond: int) -> None:
    _fill(active, 100_000)
    plan = _claims(active, mode, beyond)
    assert [rows for index, rows, _ in _scans(plan) if index == "claimable_order"] == [100]
    assert _pages(plan) < 20


def test_claim_costs_the_same_with_many_waiting_jobs_j36(active: Connection) -> None:
    _fill(active, 1000)
    before = _pages(_claims(active, "custom"))
    _fill(active, 100_000, unmet=1)
    assert _pages(_claims(active, "custom")) <= before + 8


# ---- times


@pytest.mark.parametrize("column", ["jq_not_before", "jq_not_after"])
@pytest.mark.parametrize(
    "time", ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "10000-01-01", "0001-01-01 BC"]
)
def test_a_start_window_outside_the_readable_range_is_refused(queue: Connection, column: str, time: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_start_window_is_of_dates"):
        queue.execute(f"insert into drover.jobqueue (jq_type, {column}) values ('a', %s)".encode(), (time,))


@pytest.mark.parametrize("time", ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "10000-01-01"])
def test_a_time_of_a_job_group_outside_the_readable_range_is_refused(queue: Connection, time: str) -> None:
    with pytest.raises(CheckViolation, match="job_queued_is_a_date"):
        queue.execute("insert into drover.job (job_queued) values (%s)", (time,))


@pytest.mark.parametrize("length", ["178000000 years", "101 years", "0", "-1 s"])
def test_an_invalid_time_limit_is_refused(queue: Connection, length: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_jq_timeout_check"):
        queue.execute("insert into drover.jobqueue (jq_type, jq_timeout) values ('a', %s)", (length,))


def test_times_of_all_readable_years_are_accepted(queue: Connection) -> None:
    queue.execute("insert into drover.job (job_queued) values ('0001-01-02 UTC'), ('9999-12-31 09:59:59 UTC')")
    insert = "insert into drover.jobqueue (jq_type, jq_not_before, jq_not_after, jq_timeout) values"
    queue.execute(f"{insert} ('a', '0001-01-02 UTC', '9999-12-31', '100 years')".encode())
    assert len(_all(queue, "select job_queued from drover.job")) == 2
