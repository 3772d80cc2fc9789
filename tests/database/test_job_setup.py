"""Set-up of jobs and graphs in SQL, the same once more, and the views for people who know other queues; no daemon."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import (
    CheckViolation,
    ForeignKeyViolation,
    InsufficientPrivilege,
    InvalidName,
    NoDataFound,
    UndefinedParameter,
    UniqueViolation,
)

from scheduler.model.protocol import line_maker
from scheduler.model.states import JOB_STATES
from tests.conftest import _database
from tests.role_tools import Login
from tests.schema_tools import Connection

ENDS = {"done": 1, "failed": 2, "cancelled": 2, "ignored": 2, "skipped": 2}


@pytest.fixture
def owner(login: Login) -> Connection:
    return login("")


@pytest.fixture
def ui(login: Login) -> Connection:
    return login("drover_frontend")


def _one(connection: Connection, query: str, *values: object) -> Any:
    (value,) = _row(connection, query, *values)
    return value


def _row(connection: Connection, query: str, *values: object) -> tuple[Any, ...]:
    (row,) = connection.execute(query.encode(), values or None).fetchall()
    return tuple(row)


def _setup(connection: Connection, name: str | None, **settings: object) -> tuple[int, bool]:
    pk, existed = _row(connection, "select * from drover.job_setup(%s, %s)", name, json.dumps(settings))
    return pk, existed


def _column(connection: Connection, pk: int, column: str) -> Any:
    return _one(connection, f"select {column} from drover.my_jobs where jq_pk = %s", pk)


def _edges(connection: Connection) -> list[tuple[str, str]]:
    return connection.execute("""
        select c.jq_name, p.jq_name from drover.jobdepends
          join drover.jobqueue c on c.jq_pk = jdep_jq_fk join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
         order by c.jq_pk, p.jq_pk""").fetchall()


def _move(owner: Connection, pk: int, state: str) -> None:
    """Bring a held or queued job to a state, as a scheduler or an operator would."""
    busy = "jq_owner = gen_random_uuid(), jq_starttime = now()"
    over = f"jq_state = '{state}', jq_starttime = now(), jq_endtime = now(), jq_end_bits = {ENDS.get(state)}"
    steps = {
        "claimed": [f"jq_state = 'claimed', jq_attempt = 1, {busy}"],
        "running": [f"jq_state = 'claimed', jq_attempt = 1, {busy}", "jq_state = 'running'"],
        "blocked": ["jq_state = 'blocked'"],
        "held": ["jq_state = 'held'"],
        "done": [f"jq_state = 'claimed', jq_attempt = 1, {busy}", f"jq_owner = null, {over}"],
        "failed": [f"jq_state = 'claimed', jq_attempt = 1, {busy}", f"jq_owner = null, {over}"],
        "ignored": ["jq_state = 'held'", over],
    }
    for step in steps.get(state, [over]):
        owner.execute(f"update drover.jobqueue set {step} where jq_pk = %s".encode(), (pk,))


# ---- set-up


def test_the_same_set_up_twice_is_one_job_and_says_so_r10(ui: Connection) -> None:
    first = _setup(ui, "billing.simpsons-1", userid="5")
    assert _setup(ui, "billing.simpsons-1", userid="6") == (first[0], True)
    assert first[1] is False
    assert _column(ui, first[0], "jq_args") == 'userid="5"'


def test_an_interrupted_set_up_leaves_nothing_and_can_be_repeated_r10(ui: Connection) -> None:
    with pytest.raises(RuntimeError), ui.transaction():  # noqa: PT012
        _setup(ui, "billing.simpsons-1")
        raise RuntimeError("the front-end crashed")
    assert _setup(ui, "billing.simpsons-1")[1] is False
    assert _one(ui, "select count(*) from drover.my_jobs") == 1


def test_a_set_up_by_many_at_once_is_one_job_r10(login: Login) -> None:
    sessions = [login("drover_frontend") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda session: _setup(session, "billing.1"), sessions))
    assert len({pk for pk, _ in told}) == 1
    assert sorted(existed for _, existed in told) == [False, True, True, True]


def test_a_name_from_the_seed_is_taken_r22_r23(ui: Connection) -> None:
    pk, _ = _setup(ui, "billing.simpsons-8761230871234")
    assert _column(ui, pk, "jq_type") == "billing"


@pytest.mark.parametrize("name", ["a.b.c", "ab", "a b.c", "a.b\n", ".b", "a.", "", None])
def test_a_name_that_is_not_type_dot_nonce_is_refused_r22(ui: Connection, name: str | None) -> None:
    with pytest.raises(CheckViolation, match="it is the type, a dot, and something without a dot or a blank"):
        _setup(ui, name)


def test_a_job_that_is_set_up_is_held_r28(ui: Connection) -> None:
    pk, _ = _setup(ui, "noop.1")
    assert _column(ui, pk, "jq_state") == "held"
    assert _one(ui, "select reason from drover.my_why where jq_pk = %s", pk) == "held: waits for release"


def test_variables_form_the_line_of_the_job_and_are_stored_with_it_r24_r25(ui: Connection) -> None:
    settings = {"userid": "5", "n": 7, "yes": True, "nothing": None, "files": ["a b", "c"]}
    pk, _ = _setup(ui, "billing.1", **settings)
    assert _column(ui, pk, "jq_variables") == settings
    line = _column(ui, pk, "jq_args") + " "
    assert set(line.split('" ')) == {'n="7', 'yes="true', r'files="[\"a b\", \"c\"]', 'userid="5', ""}


@pytest.mark.parametrize(
    "value",
    ['a "b" $c', "$(touch x) `y`", "it's", "back\\slash", "\ttab\nline\rend", "\x01\x1f\x7f", "é 漢 \U0001f600", ""],
)
def test_a_value_is_quoted_as_in_the_line_of_a_query_r27(ui: Connection, value: str) -> None:
    pk, _ = _setup(ui, "billing.1", invoice=value)
    expected = line_maker([b"invoice"])((value.encode(),))
    assert _column(ui, pk, "jq_args").encode() + b"\n" == expected


@pytest.mark.parametrize(
    "name", ["rjm_x", "rjm_wd", "jq_state", "jq_pk", "jq_submitter", "jq_x", "jq_name", "jq_variables"]
)
def test_a_reserved_name_that_is_unknown_is_refused_r26(ui: Connection, name: str) -> None:
    with pytest.raises(UndefinedParameter, match=f"{name} is no setting"):
        _setup(ui, "billing.1", **{name: 1})


@pytest.mark.parametrize("name", ["a b", "1x", "x-y", "", "é"])
def test_a_variable_is_named_as_a_column_may_be_r26(ui: Connection, name: str) -> None:
    with pytest.raises(InvalidName, match="a name is of letters, digits and _"):
        _setup(ui, "billing.1", **{name: 1})


def test_settings_are_columns_of_the_job_r24(ui: Connection) -> None:
    pk, _ = _setup(
        ui, "billing.1", jq_args="/etc/hosts", jq_priority="a", jq_queue="heavy", jq_host="alpha", jq_retries=3,
        jq_timeout="5 s", jq_urgent=True, rjm_delete=["/tmp/x", "y"], path="z",
    )  # fmt: skip
    columns = "(jq_args, jq_priority, jq_queue, jq_host, jq_retries, jq_timeout::text, jq_urgent)"
    assert _column(ui, pk, columns) == ("/etc/hosts", "a", "heavy", "alpha", "3", "00:00:05", "t")
    assert _column(ui, pk, "jq_delete") == ["/tmp/x", "y"]


def test_a_set_up_job_belongs_to_the_login_and_sql_needs_its_right_r21(login: Login, ui: Connection) -> None:
    with pytest.raises(InsufficientPrivilege):
        _setup(ui, "billing.1", jq_msq=True, jq_args="select 1")
    other = login("drover_frontend_sql")
    pk, _ = _setup(other, "billing.1", jq_msq=True, jq_args="select 1")
    assert _column(other, pk, "(jq_msq, jq_submitter)") == ("t", "drover_frontend_sql")


def test_a_command_is_not_set_up(login: Login) -> None:
    with pytest.raises(CheckViolation, match="a command is not set up"):
        _setup(login("drover_operator"), "command.1", jq_args="shutdown")


# ---- graphs


def test_blocks_names_existing_children_r36(ui: Connection, owner: Connection) -> None:
    _setup(ui, "shipping.1")
    _setup(ui, "notify.1")
    _setup(ui, "billing.1", rjm_blocks=["shipping.1", "notify.1"])
    assert _edges(owner) == [("shipping.1", "billing.1"), ("notify.1", "billing.1")]


def test_depends_names_parents_by_name_or_number_r35(ui: Connection, owner: Connection) -> None:
    first, _ = _setup(ui, "a.1")
    _setup(ui, "a.2", depends="a.1")
    _setup(ui, "a.3", depends=[str(first), "a.2"])
    assert _edges(owner) == [("a.2", "a.1"), ("a.3", "a.1"), ("a.3", "a.2")]


def test_a_graph_is_the_same_from_the_roots_down_or_from_the_leaves_up_r35(ui: Connection, owner: Connection) -> None:
    _setup(ui, "down.1")
    _setup(ui, "down.2", depends="down.1")
    _setup(ui, "down.3", depends="down.1")
    _setup(ui, "down.4", depends=["down.2", "down.3"])
    _setup(ui, "up.4")
    _setup(ui, "up.3", rjm_blocks="up.4")
    _setup(ui, "up.2", rjm_blocks="up.4")
    _setup(ui, "up.1", rjm_blocks=["up.2", "up.3"])
    edges = _edges(owner)
    assert {edge for edge in edges if edge[0].startswith("up")} == {
        (child.replace("down", "up"), parent.replace("down", "up"))
        for child, parent in edges
        if child.startswith("down")
    }


@pytest.mark.parametrize("settings", [{"rjm_blocks": ["nosuch.1"]}, {"depends": "nosuch.1"}, {"depends": [None]}])
def test_a_missing_parent_or_child_is_an_error_and_nothing_is_set_up_r37(
    ui: Connection, settings: dict[str, object]
) -> None:
    with pytest.raises(ForeignKeyViolation, match=r"no job ('nosuch.1'|<NULL>)"):
        _setup(ui, "billing.1", **settings)
    assert _one(ui, "select count(*) from drover.my_jobs") == 0


def test_a_job_of_another_user_cannot_be_made_a_child_r36(login: Login, ui: Connection) -> None:
    _setup(login("drover_operator"), "theirs.1")
    with pytest.raises(InsufficientPrivilege, match="is not yours"):
        _setup(ui, "billing.1", rjm_blocks="theirs.1")


def test_the_graph_view_shows_edges_and_marks_roots_and_leaves_r32_r34(ui: Connection) -> None:
    first, _ = _setup(ui, "a.1")
    second, _ = _setup(ui, "a.2", depends="a.1")
    third, _ = _setup(ui, "a.3", depends="a.2")
    graph = ui.execute(
        "select jq_pk, parents, children, is_root, is_leaf from drover.my_graph order by jq_pk"
    ).fetchall()
    assert graph == [
        (first, [], [second], True, False), (second, [first], [third], False, False), (third, [second], [], False, True)
    ]  # fmt: skip


def test_a_graph_of_one_transaction_is_never_partly_visible_r40(login: Login, ui: Connection) -> None:
    watcher = login("drover_operator")
    with ui.transaction():
        _setup(ui, "a.1")
        _setup(ui, "a.2", depends="a.1")
        assert _one(watcher, "select count(*) from drover.jobqueue") == 0
    assert (
        _one(watcher, "select (select count(*) from drover.jobqueue) + (select count(*) from drover.jobdepends)") == 3
    )


def test_an_edge_is_a_row_and_the_same_one_again_is_refused_r89(ui: Connection, owner: Connection) -> None:
    first, _ = _setup(ui, "a.1")
    second, _ = _setup(ui, "a.2")
    third, _ = _setup(ui, "a.3", depends=["a.1", "a.2", "a.1"])
    assert _one(owner, "select count(*) from drover.jobdepends where jdep_jq_fk = %s", third) == 2
    with pytest.raises(UniqueViolation):
        ui.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (third, first))
    assert _column(ui, third, "jq_unmet") == 2
    assert second > first


# ---- what is refused, and that it changes nothing

RECORD = """
select jsonb_build_array(
  (select jsonb_agg(jsonb_build_array(j.xmin::text, j) order by jq_pk) from drover.jobqueue j),
  (select jsonb_agg(jsonb_build_array(d.xmin::text, d) order by d) from drover.jobdepends d),
  (select jsonb_agg(jsonb_build_array(g.xmin::text, g) order by job_pk) from drover.job g),
  (select jsonb_agg(c order by c) from drover.claimable c))
"""
JOBS = "insert into drover.jobqueue (jq_type, {}) values ('a', {}), ('a', {})"
EDGES = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (1, 3), "
LONG = "(select string_agg(sha256(n::text::bytea)::text, '') from generate_series(1, 99) n)"  # 6 kB; shorter it is not
# Jobs: 1 a.1; 2 a.2, which waits for it; 3 a.3; 4 a.4, claimed; 5 a.5, ended; 6 of somebody else.
REFUSED = {
    # dots in names
    "select drover.job_setup('a.b.c')": "it is the type, a dot, and something without a dot or a blank",
    JOBS.format("jq_name", "'a.8'", "'a.b.c'"): "jobqueue_name_is_type_dot_nonce",
    # what is not there
    """select drover.job_setup('a.9', '{"rjm_blocks": ["a.2", "a.nosuch"]}')""": "no job 'a.nosuch'",
    """select drover.job_setup('a.9', '{"depends": ["1", "999999"]}')""": "no job '999999'",
    """select drover.job_setup('a.9', '{"depends": "1000000000000000000000"}')""": "no job '1000000000000000000000'",
    EDGES + "(3, 999999)": "is not present in table",
    "select drover.job_resubmit(999999)": "no job 999999 of yours",
    "select drover.job_hide(999999)": "no job group 999999 of yours",
    # cycles
    """select drover.job_setup('a.9', '{"depends": "a.9"}')""": "jobdepends_not_on_itself",
    """select drover.job_setup('a.9', '{"depends": "a.2", "rjm_blocks": "a.1"}')""": "that would be a cycle",
    EDGES + "(1, 2)": "that would be a cycle",
    EDGES + "(3, 3)": "jobdepends_not_on_itself",
    # wrong states
    JOBS.format("jq_state", "'queued'", "'running'"): "a job is inserted held or queued, not running",
    """select drover.job_setup('a.9', '{"rjm_blocks": ["a.2", "a.4"]}')""": "job 4 is claimed already",
    EDGES + "(4, 3)": "job 4 is claimed already: it takes no new dependency",
    EDGES + "(5, 3)": "job 5 is done already: it takes no new dependency",
    "select drover.job_resubmit(1)": "job 1 has not ended: it is held",
    "select drover.job_resubmit(4)": "job 4 has not ended: it is claimed",
    # numbers, and what is none
    """select drover.job_setup('a.9', '{"jq_retries": "x"}')""": "invalid input syntax for type integer",
    """select drover.job_setup('a.9', '{"jq_retries": -2}')""": "jobqueue_jq_retries_check",
    """select drover.job_setup('a.9', '{"jq_timeout": "0 s"}')""": "jobqueue_jq_timeout_check",
    """select drover.job_setup('a.9', '{"jq_not_before": "soon"}')""": "invalid input syntax for type timestamp",
    """select drover.job_setup('a.9', '{"jq_priority": "a!"}')""": "jobqueue_jq_priority_check",
    """select drover.job_setup('a.9', '{"jq_mode": "sometimes"}')""": "invalid input value for enum",
    "select drover.job_setup('a.9', '[]')": "the settings of a job are one JSON object",
    JOBS.format("jq_tolerate", "1", "-1"): "jobqueue_jq_tolerate_check",
    "insert into drover.jobdepends values (1, 3, 1), (3, 2, 8)": "jobdepends_jdep_depends_bits_check",
    # the same twice
    JOBS.format("jq_name", "'a.8'", "'a.8'"): "jobqueue_jq_name_key",
    JOBS.format("jq_name", "'a.8'", "'a.1'"): "jobqueue_jq_name_key",
    JOBS.format("jq_unique_key", "'k'", "'k'"): "jobqueue_one_live_row_per_key",
    EDGES + "(2, 1)": "jobdepends_pkey",
    # too long
    JOBS.format("jq_priority", "'a'", f"'{'a' * 17}'"): "jobqueue_jq_priority_check",
    JOBS.format("jq_name", "'a.8'", "'a.' || " + LONG): "jq_name has 6536 bytes, and 2000 are let in: choose a shorter",
    JOBS.format("jq_unique_key", "'k'", LONG): "jq_unique_key has 6534 bytes, and 2000 are let in",
    JOBS.format("jq_queue", "'default'", LONG): "are too long: 2,000 bytes",
    f"""with child as (insert into drover.jobqueue (jq_type) values ({LONG}) returning jq_pk)
        insert into drover.jobdepends select jq_pk, 1 from child""": "are too long: 2,000 bytes",
    JOBS.format("jq_state, jq_queue", "'held', 'default'", f"'held', {LONG}"): "are too long: 2,000 bytes",
    JOBS.format("jq_not_before, jq_host", "null, null", f"'2100-01-01', {LONG}"): "2,000 bytes at most, together",
    JOBS.format("jq_delete", "'{x}'", "array[repeat('x', 500000)]"): "jq_delete is too long: 500,000 bytes at most",
    # what is not permitted
    JOBS.format("jq_delete", "'{x}'", "'{\"\"}'"): "jq_delete is a list of names: none of them NULL or empty",
    EDGES + "(3, 6)": "job 3 or 6 is not yours: a dependency needs both",
    """select drover.job_setup('a.9', '{"depends": "6"}')""": "is not yours: a dependency needs both",
    "select drover.command('cancel 6')": "job 6 is not yours",
    "select drover.command('run 1 6')": "job 6 is not yours",
    "select drover.command('cancel')": "cancel of which job: a number or a jq_name is missing",
    "select drover.command(' signal ')": "signal of which job: a number or a jq_name is missing",
    "select drover.command('pause')": "only drover_operator may command pause",
    "insert into drover.jobqueue (jq_type) values ('a'), ('command')": "only drover_operator may insert commands",
}  # fmt: skip


@pytest.fixture(scope="module")
def crowd(postgres: str, migrated_with_roles: str) -> Iterator[tuple[Connection, Connection]]:
    """Yield the owner of a queue of six jobs and a front-end whose first five are; nothing in it ever changes."""
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        owner = psycopg.connect(conninfo, autocommit=True)
        ui = psycopg.connect(make_conninfo(conninfo, user="drover_frontend"), autocommit=True)
        with owner, ui:
            for n in range(1, 6):
                _setup(ui, f"a.{n}", **({"depends": "a.1"} if n == 2 else {}))
            owner.execute("insert into drover.jobqueue (jq_type) values ('a')")
            owner.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk in (4, 5)")
            _move(owner, 4, "claimed")
            _move(owner, 5, "done")
            yield owner, ui


@pytest.mark.parametrize("statement", REFUSED, ids=REFUSED.values())
def test_a_refused_statement_says_why_and_changes_no_row_r22_r26_r31_r37_r89_j25_t26_t27(
    crowd: tuple[Connection, Connection], statement: str
) -> None:
    owner, ui = crowd
    before = _one(owner, RECORD)
    with pytest.raises(psycopg.Error) as refusal:
        ui.execute(statement.encode())
    assert REFUSED[statement] in str(refusal.value)
    assert _one(owner, RECORD) == before


# ---- once more


@pytest.mark.parametrize("state", ENDS)
def test_an_ended_job_is_resubmitted_as_a_new_job_t26_t21(ui: Connection, owner: Connection, state: str) -> None:
    pk, _ = _setup(ui, "a.1", jq_priority="c", jq_retries=2, jq_timeout="3 s", userid="5", jq_urgent=True)
    owner.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", (pk,))
    _move(owner, pk, state)
    again = _one(ui, "select drover.job_resubmit(%s)", pk)
    definition = "(jq_type, jq_args, jq_variables, jq_priority, jq_retries, jq_timeout, jq_urgent)"
    assert _column(ui, again, definition) == _column(ui, pk, definition)
    assert _column(ui, again, "(jq_state, jq_resubmit_of, jq_name)") == ("queued", str(pk), None)
    assert _column(ui, pk, "jq_state") == state


def test_an_sql_job_is_resubmitted_only_with_the_right_to_queue_sql_t26(login: Login, owner: Connection) -> None:
    ui = login("drover_frontend_sql")
    values = "('a', true, 'n', 'select 1 as n')"
    pk = _one(ui, f"insert into drover.jobqueue (jq_type, jq_msq, jq_key, jq_args) values {values} returning jq_pk")
    _move(owner, pk, "done")
    again = _one(ui, "select drover.job_resubmit(%s)", pk)
    assert _column(ui, again, "(jq_msq, jq_key, jq_args)") == ("t", "n", "select 1 as n")


ALL_OF_A_JOB = {
    "jq_type": "a", "jq_args": "select 1 as n", "jq_variables": '{"userid": 5}', "jq_msq": True, "jq_runonpfile": "n",
    "jq_host": "alpha", "jq_key": "n", "jq_tolerate": 2, "jq_repeat": True, "jq_queue": "slow", "jq_urgent": True,
    "jq_priority": "c", "jq_max_interruptions": 7, "jq_retries": 2, "jq_timeout": "3 s", "jq_unique_key": "k",
    "jq_delete": ["x"], "jq_mode": "manual",
}  # fmt: skip
OF_ONE_JOB_ONLY = {"jq_name", "jq_not_before", "jq_not_after", "jq_state", "jq_resubmit_of"}
GIVEN = """
select column_name from information_schema.columns
 where table_schema = 'drover' and table_name = 'jobqueue'
   and has_column_privilege('drover_frontend_sql', 'drover.jobqueue', column_name, 'insert')
"""


def test_a_resubmitted_job_has_all_settings_of_the_first_t26(login: Login, owner: Connection) -> None:
    ui = login("drover_frontend_sql")
    asked = ALL_OF_A_JOB | {"jq_job_fk": _one(ui, "insert into drover.job (job_name) values ('g') returning job_pk")}
    assert set(asked) | OF_ONE_JOB_ONLY == {name for (name,) in owner.execute(GIVEN)}
    columns, places = ", ".join(asked), ", ".join(["%s"] * len(asked))
    pk = _one(ui, f"insert into drover.jobqueue ({columns}) values ({places}) returning jq_pk", *asked.values())
    _move(owner, pk, "cancelled")
    again = _one(ui, "select drover.job_resubmit(%s)", pk)
    assert _row(ui, f"select {columns} from drover.my_jobs where jq_pk = %s", again) == _row(
        ui, f"select {columns} from drover.my_jobs where jq_pk = %s", pk
    )
    assert _column(ui, again, "jq_queue || jq_host || jq_mode || jq_delete[1]") == "slowalphamanualx"


@pytest.mark.parametrize("state", ["queued", "claimed", "running", "blocked"])
def test_a_live_job_is_not_resubmitted_t26(ui: Connection, owner: Connection, state: str) -> None:
    pk, _ = _setup(ui, "a.1")
    owner.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", (pk,))
    _move(owner, pk, state) if state != "queued" else None
    with pytest.raises(CheckViolation, match=f"job {pk} has not ended: it is {state}"):
        _one(ui, "select drover.job_resubmit(%s)", pk)


def test_a_job_of_another_user_is_resubmitted_by_operators_only_t26(
    login: Login, ui: Connection, owner: Connection
) -> None:
    pk = _one(login("drover_frontend_sql"), "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    _move(owner, pk, "failed")
    with pytest.raises(NoDataFound, match=f"no job {pk} of yours"):
        _one(ui, "select drover.job_resubmit(%s)", pk)
    operator = login("drover_operator")
    again = _one(operator, "select drover.job_resubmit(%s)", pk)
    assert _column(operator, again, "jq_submitter") == "drover_operator"


def test_a_group_is_hidden_and_shown_by_its_user_t27(login: Login, ui: Connection, owner: Connection) -> None:
    group = _one(ui, "insert into drover.job (job_name) values ('x') returning job_pk")
    is_hidden = "select job_hidden from drover.job where job_pk = %s"
    ui.execute("select drover.job_hide(%s)", (group,))
    assert _one(owner, is_hidden, group) is True
    ui.execute("select drover.job_hide(%s, false)", (group,))
    assert _one(owner, is_hidden, group) is False
    with pytest.raises(NoDataFound, match=f"no job group {group} of yours"):
        login("drover_frontend_sql").execute("select drover.job_hide(%s)", (group,))


def test_columns_added_by_a_site_break_nothing_j35(ui: Connection, owner: Connection) -> None:
    owner.execute("alter table drover.jobqueue add column site_name text default 'x', add column site_data jsonb")
    owner.execute("alter table drover.job add column site_name text")
    pk, _ = _setup(ui, "a.1", depends=[])
    _setup(ui, "a.2", depends="a.1")
    owner.execute("update drover.jobqueue set jq_state = 'queued'")
    _move(owner, pk, "done")
    assert _one(owner, "select released from drover.settle(%s::bigint[], 0, 1000, waits => true)", [pk]) == 1
    assert _one(ui, "select drover.job_resubmit(%s)", pk) > pk


# ---- jobd's words


def _jobd(connection: Connection, pk: int, columns: str) -> tuple[Any, ...]:
    return _row(connection, f"select {columns} from drover.my_jobd where id = %s", pk)


WORDS = {
    "queued": ("waiting", None, None), "held": ("manual", None, None), "claimed": ("accepted", None, None),
    "running": ("running", None, None), "blocked": ("waiting", None, None), "done": ("done", "ok", 0),
    "failed": ("done", "fail", 1), "cancelled": ("done", "fail", None), "ignored": ("ignored", "fail", None),
    "skipped": ("ignored", "fail", None),
}  # fmt: skip


@pytest.mark.parametrize("state", JOB_STATES)
def test_every_state_maps_to_its_jobd_word_j24_j26_j28_j29_j30(ui: Connection, owner: Connection, state: str) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    assert _jobd(ui, pk, "status, target, result, return_code") == ("waiting", "default", None, None)
    _move(owner, pk, state) if state != "queued" else None
    assert _column(ui, pk, "jq_state") == state
    assert _jobd(ui, pk, "status, result, return_code") == WORDS[state]


def test_a_job_that_is_set_up_is_manual_until_it_is_released_j24(ui: Connection) -> None:
    pk, _ = _setup(ui, "a.1")
    assert _jobd(ui, pk, "status, target") == ("manual", "default")


def test_times_are_whole_seconds_and_0_means_not_yet_j21_j22(ui: Connection, owner: Connection) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    now = _one(owner, "select extract(epoch from now())::bigint")
    created, started, finished = _jobd(ui, pk, "time_created, time_started, time_finished")
    assert (abs(created - now) <= 60, started, finished) == (True, 0, 0)
    _move(owner, pk, "running")
    assert _jobd(ui, pk, "time_started >= time_created, time_finished") == (True, 0)
    owner.execute("update drover.jobqueue set jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1")
    assert _jobd(ui, pk, "time_created <= time_started, time_started <= time_finished") == (True, True)


@pytest.mark.parametrize("state", ["cancelled", "ignored", "skipped"])
def test_a_job_that_never_ran_has_no_start_and_no_return_code_j22_j31(
    ui: Connection, owner: Connection, state: str
) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    _move(owner, pk, state)
    assert _jobd(ui, pk, "time_started, time_finished > 0, return_code, result") == (0, True, None, "fail")


def test_the_time_of_creation_may_be_given_j23(ui: Connection) -> None:
    insert = "insert into drover.job (job_name, job_queued) values ('x', '2001-02-03 04:05:06Z') returning job_pk"
    group = _one(ui, insert)
    pk = _one(ui, "insert into drover.jobqueue (jq_type, jq_job_fk) values ('a', %s) returning jq_pk", group)
    assert _jobd(ui, pk, "time_created") == (981173106,)


@pytest.mark.parametrize(("code", "result"), [(0, "ok"), (1, "fail"), (255, "fail")])
def test_the_status_of_a_command_is_its_return_code_j30_j31(
    ui: Connection, owner: Connection, code: int, result: str
) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    _move(owner, pk, {"ok": "done", "fail": "failed"}[result])
    owner.execute("update drover.jobqueue set jq_exitcode = %s where jq_pk = %s", (code, pk))
    assert _jobd(ui, pk, "result, return_code") == (result, code)


def test_a_signal_is_shown_under_its_jobd_name_without_a_return_code_j32(ui: Connection, owner: Connection) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    assert _jobd(ui, pk, "sig, signal, return_code") == (None, None, None)
    _move(owner, pk, "failed")
    owner.execute("update drover.jobqueue set jq_signal = 'SIGTERM' where jq_pk = %s", (pk,))
    assert _jobd(ui, pk, "sig, signal, return_code, result") == ("SIGTERM", "SIGTERM", None, "fail")


def test_a_cancelled_job_whose_program_exited_with_0_has_no_return_code_of_0_j30(
    ui: Connection, owner: Connection
) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    _move(owner, pk, "cancelled")
    owner.execute("update drover.jobqueue set jq_attempt = 1, jq_exitcode = 0 where jq_pk = %s", (pk,))
    assert _jobd(ui, pk, "result, return_code") == ("fail", 1)


def test_output_of_the_last_attempt_is_shown_with_its_job_j33(ui: Connection, owner: Connection) -> None:
    pk = _one(ui, "insert into drover.jobqueue (jq_type) values ('a') returning jq_pk")
    owner.execute("update drover.jobqueue set jq_attempt = 2 where jq_pk = %s", (pk,))
    owner.execute(
        """insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)
           values (%(pk)s, 1, 1, 'out', 'old'), (%(pk)s, 2, 1, 'out', 'one '), (%(pk)s, 2, 2, 'out', 'two'),
                  (%(pk)s, 2, 3, 'err', 'oh')""",
        {"pk": pk},
    )
    assert _jobd(ui, pk, "stdout, stderr") == ("one two", "oh")
