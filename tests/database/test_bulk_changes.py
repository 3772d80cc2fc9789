"""drover.change_jobs: a batch of a command about all jobs that a filter finds, without a daemon.

What it changes, what it leaves for the next batch, and that nobody waits for it nor it for anybody.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.bulk_tools import FAIL, HOLD, MANY, QUEUE, batch, differences, give, queue_of_hundred, states
from tests.connection_tools import OTHER, OWNER, take_group
from tests.counts.meters import buffers
from tests.queue_tools import Desk


@pytest.fixture
def queue(database: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with queue_of_hundred(database) as connection:
        yield connection


@pytest.mark.parametrize(
    ("before", "words", "then"),
    [
        ("", "cancel no more", {"cancelled": 100}),
        ("", "ice", {"skipped": 100}),
        ("", "hold", {"held": 100}),
        (HOLD, "release", {"queued": 100}),
        (FAIL, "retry", {"queued": 100}),
        ("", "priority a", {"queued": 100}),
        (QUEUE, "move q", {"queued": 100}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) and value else None,
)
def test_each_verb_changes_all_jobs_of_a_filter_and_their_tokens(
    queue: psycopg.Connection[Any], before: str, words: str, then: dict[str, int]
) -> None:
    if before:
        queue.execute(before.encode())
    done = batch(queue, give(queue, words, type="a"))
    assert (done["is_over"], done["done"], done["refused"]) == (True, 100, 0)
    assert states(queue) == then
    assert differences(queue) == []
    assert queue.execute("select drover.recount(0, 1)").fetchone() == {"recount": 0}


def test_batches_go_on_where_the_last_one_ended(queue: psycopg.Connection[Any]) -> None:
    command = give(queue, "cancel", type="a")
    rows = [batch(queue, command, 30) for _ in range(4)]
    assert [row["done"] for row in rows] == [30, 60, 90, 100]
    assert [row["is_over"] for row in rows] == [False, False, False, True]
    assert states(queue, "b") == {"queued": 1}


def test_batch_that_is_not_committed_is_done_once_more_and_counted_once(queue: psycopg.Connection[Any]) -> None:
    command = give(queue, "cancel", type="a")
    with queue.transaction(force_rollback=True):
        batch(queue, command, 60)
    assert batch(queue, command)["done"] == 100
    assert batch(queue, command)["done"] == 100  # as a daemon does that could not end the command


@pytest.mark.slow
def test_batch_reads_only_where_such_jobs_are(queue: psycopg.Connection[Any]) -> None:
    many = MANY.replace("100", "100000").replace("'a'", "'c'")
    queue.execute(many.encode())
    queue.execute("insert into drover.jobqueue (jq_type) values ('d')")
    queue.execute("select drover.add_up_changes(10000)")
    queue.execute("vacuum analyze drover.jobqueue, drover.job_zone, drover.job_change")
    command = give(queue, "cancel", type="d")
    explain = f"explain (analyze, buffers, format json) select * from drover.change_jobs({command}, '{OWNER}', 1000)"
    plan = queue.execute(explain.encode()).fetchone()
    assert plan
    assert buffers(plan["QUERY PLAN"][0]["Plan"]) < 2500  # all rows: 10,000
    assert states(queue, "d") == {"cancelled": 1}


def test_jobs_that_were_inserted_after_the_command_are_left(queue: psycopg.Connection[Any]) -> None:
    command = give(queue, "cancel", type="a")
    queue.execute(MANY.encode())
    assert batch(queue, command)["is_over"]
    assert states(queue) == {"cancelled": 100, "queued": 100}


def test_job_that_is_locked_is_left_for_the_next_batch_and_holds_up_no_other(
    queue: psycopg.Connection[Any], database: str
) -> None:
    command = give(queue, "cancel", type="a")
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue where jq_pk = 50 for update")
        first, second = batch(queue, command), batch(queue, command)
        assert (first["is_over"], first["done"]) == (False, 99)
        assert (second["is_over"], second["has_moved"]) == (False, False)
        assert differences(queue) == []
    assert (batch(queue, command)["is_over"], states(queue)) == (True, {"cancelled": 100})


def test_claim_waits_for_no_batch_and_a_batch_for_no_claim(queue: psycopg.Connection[Any], database: str) -> None:
    for _ in range(2):
        queue.execute(MANY.encode())
    command = give(queue, "cancel", type="a")
    with queue.transaction(), Desk(database) as desk:
        assert batch(queue, command, 100)["done"] == 100
        claimed = [claim.pk for claim in desk.claim()]
    assert claimed
    assert min(claimed) > 100
    with psycopg.connect(database) as other:
        other.execute("select from drover.claimable where claim_type = 'a' for update")
        first, second = batch(queue, command), batch(queue, command)
        assert sorted(first["ours"]) == sorted(claimed)
        assert (second["is_over"], second["has_moved"]) == (False, False)
    assert batch(queue, command)["is_over"]
    assert states(queue) == {"cancelled": 300 - len(claimed), "claimed": len(claimed)}


def run(queue: psycopg.Connection[Any], owner: str, state: str = "running") -> None:
    """Let an owner have the jobs of type b in hand."""
    queue.execute("delete from drover.claimable where claim_type = 'b'")
    hand = "insert into drover.in_hand select %s, array_agg(jq_pk) from drover.jobqueue where jq_type = 'b'"
    queue.execute(hand.encode(), (owner,))
    if state == "running":
        queue.execute("update drover.jobqueue set jq_state = 'running', jq_attempt = 1, jq_owner = %s,"
                      " jq_starttime = now() where jq_type = 'b'", (owner,))  # fmt: skip


def test_job_in_hand_elsewhere_gets_a_command_of_its_own_and_is_not_counted(queue: psycopg.Connection[Any]) -> None:
    run(queue, OTHER, "queued")
    command = give(queue, "cancel no more", type="b")
    done = batch(queue, command)
    assert (done["is_over"], done["done"], done["ours"], done["given"]) == (True, 0, [], {"default": 1})
    row = queue.execute("select jq_args from drover.jobqueue where jq_pk > %s", (command,)).fetchone()
    assert row == {"jq_args": "cancel 101 no more"}


def test_row_of_a_command_counts_the_jobs_in_hand_whose_end_it_has_told(queue: psycopg.Connection[Any]) -> None:
    run(queue, OWNER)
    command = give(queue, "cancel no more", type=["a", "b"])
    assert batch(queue, command)["ours"] == [101]
    batch(queue, command)  # of a daemon that goes on after a crash
    row = "select jq_endtext, jq_result ->> 'told' as told from drover.jobqueue where jq_pk = %s"
    assert queue.execute(row, [command]).fetchone() == {"jq_endtext": "101 jobs so far", "told": "1"}


def test_command_that_is_passed_on_has_as_long_as_that_of_the_batch(queue: psycopg.Connection[Any]) -> None:
    run(queue, OTHER)
    row = queue.execute("""select drover.command('cancel', '{"type": "b"}', '1 minute') as pk""").fetchone()
    assert row
    queue.execute("update drover.jobqueue set jq_queued = jq_queued - interval '1 h',"
                  " jq_not_after = jq_not_after - interval '1 h' where jq_pk = %s", (row["pk"],))  # fmt: skip
    assert batch(queue, row["pk"])["given"] == {"default": 1}
    ask = "select jq_not_after - jq_queued = '1 minute' as is_whole from drover.jobqueue where jq_pk > %s"
    assert queue.execute(ask, (row["pk"],)).fetchone() == {"is_whole": True}


@pytest.mark.parametrize("verb", ["cancel", "killjob"])
@pytest.mark.parametrize(
    ("shown", "asked", "ended"),
    [
        ("running", ["running"], [101]), ("running", ["claimed"], []),
        ("queued", ["claimed"], [101]), ("queued", ["running"], []), ("queued", ["claimed", "running"], [101]),
    ],
)  # fmt: skip
def test_states_of_jobs_in_hand_are_those_that_lists_show(
    queue: psycopg.Connection[Any], verb: str, shown: str, asked: list[str], ended: list[int]
) -> None:
    run(queue, OWNER, shown)
    done = batch(queue, give(queue, verb, type="b", state=asked))
    assert (done["is_over"], done["ours"] or []) == (True, ended)


def test_jobs_that_wait_for_an_instant_are_found_where_no_others_are(queue: psycopg.Connection[Any]) -> None:
    queue.execute("insert into drover.jobqueue (jq_type, jq_not_before) values ('e', now() + interval '1 h')")
    queue.execute("select drover.add_up_changes(10000)")
    assert batch(queue, give(queue, "cancel", type="e"))["done"] == 1


@pytest.mark.parametrize("state", ["running", "queued"])
def test_filter_by_time_finds_jobs_in_hand_that_were_started_since(queue: psycopg.Connection[Any], state: str) -> None:
    queue.execute("update drover.jobqueue set jq_queued = now() - interval '1 h'")
    run(queue, OWNER, state)
    row = queue.execute("select (now() - interval '1 minute')::text as at").fetchone()
    assert row
    command = give(queue, "cancel", since=row["at"])
    queue.execute("select drover.add_up_changes(10000)")
    queue.execute("update drover.job_zone set zone_latest = now() - interval '1 h'")  # as if it had begun only now
    assert batch(queue, command)["ours"] == [101]


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_filter_up_to_an_instant_leaves_jobs_in_hand_that_were_started_later(
    queue: psycopg.Connection[Any], state: str
) -> None:
    queue.execute("update drover.jobqueue set jq_queued = now() - interval '1 h'")
    run(queue, OWNER, state)
    row = queue.execute("select (now() - interval '1 minute')::text as at").fetchone()
    assert row
    done = batch(queue, give(queue, "cancel", until=row["at"]))
    assert (done["done"], done["ours"]) == (100, None)


def test_more_than_a_thousand_locked_jobs_hold_up_no_other(queue: psycopg.Connection[Any], database: str) -> None:
    many = MANY.replace("100", "2300")
    queue.execute(many.encode())
    command = give(queue, "cancel", type="a")
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue where jq_type = 'a' and jq_pk <= 2200 for update")
        rows = [batch(queue, command) for _ in range(6)]
        assert (rows[-1]["done"], rows[-1]["is_over"], rows[-1]["has_moved"]) == (201, False, False)
        left = queue.execute("select jsonb_array_length(jq_result -> 'left') as n from drover.jobqueue"
                             " where jq_pk = %s", (command,)).fetchone()  # fmt: skip
        assert left == {"n": 1000}
    rows = [batch(queue, command) for _ in range(6)]
    assert (rows[-1]["is_over"], rows[-1]["done"], states(queue)) == (True, 2400, {"cancelled": 2400})
    assert differences(queue) == []


def test_job_that_the_database_refuses_to_change_is_passed_over_with_the_reason(
    queue: psycopg.Connection[Any],
) -> None:
    queue.execute(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$begin raise exception 'job % is mine', old.jq_pk; end$$"
    )
    queue.execute(
        "create trigger theirs before update on drover.jobqueue for each row when (old.jq_args = '7')"
        " execute function public.refuse()"
    )
    command = give(queue, "cancel", type="a")
    with pytest.raises(psycopg.errors.RaiseException):
        batch(queue, command)
    rows = [batch(queue, command, 1) for _ in range(100)]
    assert (rows[6]["refused"], rows[6]["reasons"]) == (1, {"7": "job 7 is mine"})
    assert (batch(queue, command, 1)["is_over"], states(queue)) == (True, {"cancelled": 99, "queued": 1})


def test_of_two_failed_jobs_of_one_key_one_is_retried(queue: psycopg.Connection[Any]) -> None:
    for _ in range(2):
        queue.execute("insert into drover.jobqueue (jq_type, jq_unique_key) values ('k', 'x')")
        queue.execute(FAIL.replace("jq_pk <= 100", "jq_type = 'k'").encode())
    done = batch(queue, give(queue, "retry", type="k"))
    assert (done["is_over"], done["done"], done["refused"]) == (True, 1, 1)
    assert list(done["reasons"].values()) == ["another job with its jq_unique_key has not ended"]


def test_job_that_failed_after_the_command_is_not_retried(queue: psycopg.Connection[Any]) -> None:
    command = give(queue, "retry", type="a")
    queue.execute(FAIL.replace("now() - interval '1 s'", "now() + interval '1 s'").encode())
    assert batch(queue, command)["done"] == 0
    assert states(queue) == {"failed": 100}


@pytest.mark.parametrize(
    ("chosen", "jobs"),
    [
        ({"type": "b"}, 1), ({"type": ["a", "b"]}, 101), ({"state": "queued"}, 101), ({"state": "held"}, 0),
        ({"queue": "default"}, 101), ({"queue": "q"}, 0), ({"host": "h"}, 0), ({"group": 1}, 0),
        ({"by": "postgres"}, 101), ({"since": "2001-01-01"}, 101), ({"queued_since": "9999-01-01"}, 0),
        ({"text": "99"}, 1), ({"hidden": False}, 101), ({"until": "2001-01-01"}, 0), ({"until": "9999-01-01"}, 101),
        ({"ran_on": "beta"}, 1), ({"ran_on": ["beta", "h"]}, 1), ({"code": "7"}, 1),
        ({"code": ["exit_status", "7"]}, 1), ({"code": "timeout"}, 0),
    ],
)  # fmt: skip
def test_filter_finds_what_its_words_say(queue: psycopg.Connection[Any], chosen: dict[str, Any], jobs: int) -> None:
    queue.execute("update drover.jobqueue set jq_done_host = 'beta', jq_exitcode = 7 where jq_pk = 7")
    assert batch(queue, give(queue, "hold", **chosen))["done"] == jobs


@pytest.mark.parametrize(
    ("words", "chosen", "why"),
    [
        ("cancel", "{}", "a filter is a JSON object with one or more of type, queue, host"),
        ("cancel", "[]", "a filter is a JSON object"),
        ("cancel", '{"typ": "a"}', "a filter has no 'typ': it has type, queue"),
        ("cancel", '{"type": 1}', "type of a filter is a string, or a list of strings"),
        ("cancel", '{"type": []}', "type of a filter is a string"),
        ("cancel", '{"group": "x"}', "group of a filter is a number"),
        ("cancel", '{"state": "lost"}', "there is no state 'lost'"),
        ("cancel", '{"since": "soon"}', "a time or a number in the filter cannot be read: invalid input syntax"),
        ("cancel", '{"until": ""}', "until of a filter is a time, as a string"),
        ("cancel", '{"group": 1.5}', "a time or a number in the filter cannot be read: invalid input syntax"),
        ("cancel", '{"text": ""}', "text of a filter is a string, not an empty one"),
        ("cancel", '{"hidden": true}', "a filter is a JSON object with one or more of type, queue, host"),
        ("cancel", '{"code": 7}', "code of a filter is a string, or a list of strings"),
        ("cancel", '{"ran_on": [null]}', "ran_on of a filter is a string, or a list of strings"),
        ("cancel", '{"hidden": "no"}', "hidden of a filter is true or false"),
        ("signal TERM", '{"type": "a"}', "no command for many jobs: 'signal'; there are release, hold, ice"),
        ("frobnicate", '{"type": "a"}', "no command for many jobs: 'frobnicate'"),
        ("hold all nonsense", '{"type": "a"}', "hold takes no words"),
        ("retry 5", '{"type": "a"}', "retry takes no words"),
        ("priority", '{"type": "a"}', "priority needs letters"),
        ("priority a b", '{"type": "a"}', "priority needs letters"),
        ("move", '{"type": "a"}', "move needs the name of one queue"),
        ("cancel " + "x" * 1000, '{"type": "a"}', "a command for many jobs has at most 990"),
    ],
)
def test_command_with_a_wrong_filter_is_refused(
    queue: psycopg.Connection[Any], words: str, chosen: str, why: str
) -> None:
    with pytest.raises(InvalidParameterValue) as refused:
        queue.execute("select drover.command(%s, %s)", (words, Jsonb(json.loads(chosen))))
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize("key", ["since", "until", "queued_since"])
def test_time_of_a_filter_is_one_of_the_session_that_gives_the_command(
    queue: psycopg.Connection[Any], key: str
) -> None:
    """The scheduler's session has another time zone, and reads days and months in another order."""
    row = queue.execute("select now() - interval '1 hour' as ago").fetchone()
    assert row
    queue.execute("set timezone = 'Asia/Tokyo'")
    queue.execute("set datestyle = 'sql, dmy'")
    local = queue.execute(
        "select to_char(%s::timestamptz, 'DD/MM/YYYY HH24:MI:SS.US') as local", [row["ago"]]
    ).fetchone()
    assert local
    command = give(queue, "hold", **{key: local["local"]})
    queue.execute("set timezone = 'UTC'")
    queue.execute("set datestyle = 'iso, mdy'")
    kept = queue.execute("select jq_variables ->> %s as time from drover.jobqueue where jq_pk = %s", (key, command))
    assert [datetime.fromisoformat(each["time"]) for each in kept] == [row["ago"]]
    assert batch(queue, command)["done"] == (0 if key == "until" else 101)


def test_command_for_all_without_a_filter_does_nothing(queue: psycopg.Connection[Any]) -> None:
    row = queue.execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'cancel all') returning *")
    command = row.fetchone()
    assert command
    done = batch(queue, command["jq_pk"])
    assert done["is_over"]
    assert done["said"].startswith("a filter is a JSON object with one or more of type, queue, host, by, group")
    assert states(queue) == {"queued": 100}


def test_submitters_change_their_own_jobs_only_and_move_none(database_with_roles: str) -> None:
    take_group(database_with_roles)
    with (
        psycopg.connect(database_with_roles, autocommit=True, row_factory=dict_row) as queue,
        psycopg.connect(database_with_roles, user="drover_frontend", autocommit=True, row_factory=dict_row) as mine,
    ):
        queue.execute(MANY.encode())
        mine.execute("insert into drover.jobqueue (jq_type, jq_args) select 'a', 'x' from generate_series(1, 40)")
        assert batch(queue, give(mine, "cancel", type="a"))["done"] == 40
        assert states(queue) == {"queued": 100, "cancelled": 40}
        with pytest.raises(InsufficientPrivilege):
            give(mine, "move default", type="a")
        with pytest.raises(InsufficientPrivilege):
            batch(mine, 1)


# ---- taken, or withdrawn


def test_command_is_withdrawn_or_taken_and_never_both(queue: psycopg.Connection[Any], watch: Any) -> None:
    first, second = (give(queue, "cancel", type=kind) for kind in "ab")
    assert watch("begin_command", command=first).rows == [(b"f", None)]
    row = queue.execute("select drover.withdraw_commands(%s, 'withdrawn') as them", ([first, second],)).fetchone()
    assert row == {"them": [second]}
    assert watch("begin_command", command=second).rows == []
    assert queue.execute("select jq_state::text as state, jq_endtext from drover.jobqueue where jq_pk = %s", (second,)
                         ).fetchone() == {"state": "failed", "jq_endtext": "withdrawn"}  # fmt: skip


def test_command_whose_latest_start_has_passed_is_not_taken(queue: psycopg.Connection[Any], watch: Any) -> None:
    row = queue.execute("select drover.command('pause', null, '-1 s') as pk").fetchone()
    assert row
    ((is_late, _),) = watch("begin_command", command=row["pk"]).rows
    assert is_late == b"t"


def test_what_a_command_waits_for_names_the_session_that_locks_its_job(
    queue: psycopg.Connection[Any], database: str
) -> None:
    row = queue.execute("select drover.command('hold 50') as pk").fetchone()
    assert row
    waits = "select * from drover.command_waits(%s, '{hold}', '{}', '{}')"
    with psycopg.connect(database, application_name="site") as other:
        other.execute("select from drover.jobqueue where jq_pk = 50 for update")
        found = queue.execute(waits, ([row["pk"]],)).fetchone()
        assert found
        assert (found["job"], found["in_group"], found["taken_by"]) == (50, "default", None)
        assert found["locked_by"].startswith(f"session {other.info.backend_pid} (postgres, site")
