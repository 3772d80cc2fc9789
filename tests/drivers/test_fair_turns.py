"""Submitters of a fair type take turns (man/decisions/0021), on a real Postgres."""

import json
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from scheduler.model.queue_requests import PLAIN
from tests.connection_tools import OWNER, QUERIES, ask, rows_of
from tests.queue_tools import WANT, Desk

ENDED = "jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"


@pytest.fixture
def queue(database: str) -> Iterator[psycopg.Connection]:
    """Yield a queue in which type a is fair, and b is not."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            """insert into drover.agent (agent_group, agent_type, agent_fair, agent_fair_file)
               values ('default', 'a', true, true), ('default', 'b', false, false)"""
        )
        yield connection


def submit(queue: psycopg.Connection, who: str, count: int = 1, columns: str = "", values: str = "") -> list[int]:
    """Queue jobs of type a in one statement, in somebody's name; return their numbers."""
    rows = queue.execute(
        f"""insert into drover.jobqueue (jq_type, jq_args, jq_submitter {columns})
            select 'a', %s || i, %s {values} from generate_series(1, %s) i returning jq_pk""".encode(),
        (who, who, count),
    )
    return [pk for (pk,) in rows]


def claimed(desk: Desk, most: int) -> list[str]:
    """Claim, one row after the other; return the parameters."""
    return [claim.args.decode() for _ in range(most) for claim in desk.claim_and_mark(WANT._replace(most=1))]


def give_back(queue: psycopg.Connection, pks: list[int], more: str = "") -> None:
    """Let jobs that were claimed wait again."""
    queue.execute(
        f"""update drover.jobqueue set jq_state = 'queued', jq_owner = null, jq_starttime = null {more}
             where jq_pk = any (%s)""".encode(),
        (pks,),
    )


def whose(args: list[str]) -> Counter[str]:
    return Counter(arg.rstrip("0123456789") for arg in args)


def test_a_few_late_jobs_do_not_wait_for_many_of_another_submitter(queue: psycopg.Connection, desk: Desk) -> None:
    submit(queue, "anna", 1000)
    assert len(desk.claim(WANT._replace(most=300))) == 300
    submit(queue, "bert", 10)
    assert whose(claimed(desk, 21)) == {"anna": 11, "bert": 10}


def test_submitters_get_equal_shares_while_all_have_waiting_jobs(queue: psycopg.Connection, desk: Desk) -> None:
    for who, count in (("anna", 500), ("bert", 100), ("carl", 50), ("carl", 50)):
        submit(queue, who, count)
    assert whose([claim.args.decode() for claim in desk.claim(WANT._replace(most=30))]) == {
        "anna": 10,
        "bert": 10,
        "carl": 10,
    }


def test_one_submitters_jobs_keep_their_order(queue: psycopg.Connection, desk: Desk) -> None:
    annas = submit(queue, "anna", 12)
    berts = [pk for _ in range(12) for pk in submit(queue, "bert")]
    found = [claim.pk for claim in desk.claim_and_mark()]
    assert [pk for pk in found if pk in annas] == annas
    assert [pk for pk in found if pk in berts] == berts


def test_urgent_jobs_and_priority_letters_still_go_first_j47(queue: psycopg.Connection, desk: Desk) -> None:
    submit(queue, "anna", 3)
    submit(queue, "long", 1, ", jq_priority", ", 'n0'")
    submit(queue, "bert", 2, ", jq_priority", ", 'a'")
    submit(queue, "carl", 2, ", jq_priority, jq_urgent", ", 'z', true")
    assert claimed(desk, 8) == ["carl1", "carl2", "bert1", "bert2", "anna1", "anna2", "anna3", "long1"]


def test_the_daemon_sees_the_rank_without_the_round_and_the_submitter(queue: psycopg.Connection, desk: Desk) -> None:
    submit(queue, 'an"na', 1, ", jq_priority", ", 'abcdefgh12345678'")
    event = desk.turn(WANT)
    (claim,) = event.claims
    assert (claim.rank, claim.rules.submitter, claim.rules.msq) == (b"1abcdefgh12345678", 'an"na', False)
    assert event.reached[WANT].rank == "1abcdefgh12345678.000000000000000"


def test_a_type_without_fair_turns_has_plain_ranks(queue: psycopg.Connection, desk: Desk) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) values ('b'), ('a'), ('b')")
    assert queue.execute("select claim_rank from drover.claimable where claim_line is null").fetchall() == [("1n",)] * 2
    assert [claim.rules for claim in desk.claim(WANT._replace(type="b"))] == [PLAIN, PLAIN]


def test_a_continued_claim_finds_submitters_that_queued_meanwhile_j46_r76(
    queue: psycopg.Connection, desk: Desk
) -> None:
    submit(queue, "anna", 100)
    want = WANT._replace(most=50)
    event = desk.turn(want)
    submit(queue, "bert", 2)
    beyond = want._replace(after=event.reached[want], most=4)
    assert whose([claim.args.decode() for claim in desk.claim(beyond)]) == {"anna": 2, "bert": 2}


def test_each_place_and_rank_has_rounds_of_its_own(queue: psycopg.Connection) -> None:
    queue.execute("insert into drover.host (host_name, host_group) values ('h', 'default'), ('i', 'default')")
    for more in (("", ""), (", jq_host", ", 'h'"), (", jq_host", ", 'i'"), (", jq_urgent", ", true")):
        submit(queue, "anna", 2, *more)
    rounds = queue.execute(
        "select right(claim_rank, 2), count(*) from drover.claimable group by 1 order by 1"
    ).fetchall()
    assert rounds == [("00", 4), ("01", 4)]


def test_a_job_given_back_does_not_wait_for_later_jobs_of_its_submitter(queue: psycopg.Connection, desk: Desk) -> None:
    first, second = submit(queue, "anna", 2)
    desk.claim_and_mark()
    submit(queue, "anna", 50)
    submit(queue, "bert", 50)
    give_back(queue, [first, second])
    assert {first, second} <= {claim.pk for claim in desk.claim_and_mark(WANT._replace(most=6))}


def test_other_submitters_do_not_wait_for_jobs_given_back(queue: psycopg.Connection, desk: Desk) -> None:
    submit(queue, "anna", 100)
    back = [claim.pk for claim in desk.claim_and_mark(WANT._replace(most=100))]
    give_back(queue, back)
    submit(queue, "bert", 5)
    assert whose(claimed(desk, 10)) == {"anna": 5, "bert": 5}


def test_a_slice_goes_behind_queued_jobs_of_its_submitter_f35(queue: psycopg.Connection, desk: Desk) -> None:
    submit(queue, "anna", 1)
    (claim,) = desk.claim_and_mark()
    submit(queue, "anna", 3)
    give_back(queue, [claim.pk], ", jq_queued = now()")
    assert claimed(desk, 4)[-1] == "anna1"


@pytest.mark.parametrize("was_fair", [True, False])
@pytest.mark.parametrize(
    "moves",
    [
        pytest.param(["update drover.jobqueue set jq_state = 'held' where jq_pk = 1"], id="held"),
        pytest.param(
            [
                "update drover.jobqueue set jq_state = 'held' where jq_pk = 1",
                "update drover.jobqueue set jq_state = 'queued' where jq_pk = 1",
            ],
            id="released",
        ),
        pytest.param(["update drover.jobqueue set jq_wait_until = now() where jq_pk = 1"], id="put off"),
        pytest.param([f"update drover.jobqueue set jq_state = 'cancelled', {ENDED} where jq_pk = 1"], id="cancelled"),
        pytest.param(["update drover.jobqueue set jq_priority = 'a' where jq_pk = 1"], id="moved up"),
        pytest.param(["update drover.jobqueue set jq_urgent = true"], id="urgent"),
        pytest.param(["update drover.jobqueue set jq_host = 'h' where jq_pk = 1"], id="sent elsewhere"),
        pytest.param(["update drover.jobqueue set jq_queued = now() where jq_pk = 1"], id="queued anew"),
        pytest.param(["delete from drover.jobqueue where jq_pk = 1"], id="deleted"),
        pytest.param(["insert into drover.jobdepends values (1, 2)"], id="waits for another"),
    ],
)
def test_claimable_stays_exact_under_random_changes(
    queue: psycopg.Connection, moves: list[str], was_fair: bool
) -> None:
    queue.execute("update drover.agent set agent_fair = %s where agent_type = 'a'", (was_fair,))
    submit(queue, "anna", 2)
    queue.execute("update drover.agent set agent_fair = not agent_fair where agent_type = 'a'")
    for move in moves:
        queue.execute(move.encode())
    waiting = queue.execute(
        """select jq_pk from drover.jobqueue where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null"""
    )
    named = queue.execute("select claim_jq_fk from drover.claimable")
    assert sorted(named.fetchall()) == sorted(waiting.fetchall())


def read_of_claimable(queue: psycopg.Connection) -> int:
    """Return how many rows of claimable were read, by index or otherwise."""
    queue.execute("select pg_stat_force_next_flush()" if queue.info.server_version >= 150000 else "select 1")
    rows = queue.execute(
        """select (select seq_tup_read from pg_stat_user_tables where relid = 'drover.claimable'::regclass)
                  + (select sum(idx_tup_read) from pg_stat_user_indexes where relid = 'drover.claimable'::regclass)"""
    )
    return int(rows.fetchone()[0])  # type: ignore[index]


def test_a_round_is_computed_without_reading_waiting_jobs_j36(queue: psycopg.Connection) -> None:
    queue.execute("vacuum analyze drover.claimable")
    queue.execute(
        """insert into drover.jobqueue (jq_type, jq_state, jq_submitter)
           select 'a', 'held', 'anna' from generate_series(1, 60)"""
    )
    for pk in range(1, 21):  # so that plans are kept
        submit(queue, "bert", 1)
        queue.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", (pk,))
    submit(queue, "anna", 3000)
    before = read_of_claimable(queue)
    for pk in range(21, 61):
        submit(queue, "bert", 1)
        queue.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", (pk,))
    assert read_of_claimable(queue) - before <= 4 * 2 * 40


# ---- switching


def register(desk: Desk, **fair: bool) -> None:
    """Announce a configuration with these types."""
    agents = [
        {"type": name, "enabled": True, "kind": "line", "submitters": ["*"], "cwd": "", "revision": "", "fair": is_fair}
        for name, is_fair in fair.items()
    ]
    given = {"host": "h", "pid": 1, "boot_id": "", "pid_space": "", "pid_start": 1, "version": "", "lease": 30}
    config = json.dumps(given | {"hosts": [], "queues": [], "agents": agents})
    rows_of(ask(desk.loop, desk.connection, QUERIES["register"], group="default", owner=OWNER, config=config))


def rescan(desk: Desk) -> None:
    rows_of(ask(desk.loop, desk.connection, QUERIES["rescan"], group="default", beyond=0, most=200))


def is_fair(queue: psycopg.Connection) -> bool:
    (row,) = queue.execute("select agent_fair from drover.agent where agent_type = 'a'")
    return bool(row[0])


def test_a_type_becomes_fair_when_configured_and_earlier_jobs_go_first(queue: psycopg.Connection, desk: Desk) -> None:
    register(desk, a=False)
    rescan(desk)
    assert not is_fair(queue)
    submit(queue, "anna", 5)
    register(desk, a=True)
    rescan(desk)
    submit(queue, "anna", 5)
    submit(queue, "bert", 2)
    assert claimed(desk, 9) == [*(f"anna{n}" for n in (1, 2, 3, 4, 5)), "anna1", "bert1", "anna2", "bert2"]


@pytest.mark.parametrize("types", [{"a": False}, {"b": False}], ids=["configured otherwise", "not configured"])
def test_a_type_stays_fair_while_jobs_wait_in_lines_of_submitters(
    queue: psycopg.Connection, desk: Desk, types: dict[str, bool]
) -> None:
    submit(queue, "anna", 2)
    register(desk, **types)
    rescan(desk)
    submit(queue, "bert", 1)
    assert claimed(desk, 2) == ["anna1", "bert1"]
    rescan(desk)
    assert is_fair(queue)
    claimed(desk, 1)
    rescan(desk)
    assert not is_fair(queue)


def test_a_job_inserted_late_makes_its_type_fair_again(queue: psycopg.Connection, desk: Desk) -> None:
    with psycopg.connect(queue.info.dsn, password=queue.info.password or "") as slow:
        submit(slow, "anna", 1)
        register(desk, a=False)
        rescan(desk)
        assert not is_fair(queue)
    rescan(desk)
    assert is_fair(queue)
