"""The mutants of SQL: which faults are made, and that the server can be given them."""

import pytest

from scheduler.package_data import schema_dir
from tests.mutation import notes
from tests.mutation.sql import mutants, objects
from tests.mutation.sql.__main__ import EQUIVALENT
from tests.mutation.sql.mutants import Mutant
from tests.mutation.sql.objects import Object
from tests.mutation.sql.reach import Order, Texts, Uses

LISTED = notes.equivalent(EQUIVALENT)
EVERY = mutants.all_of_them()


def changes(text: str) -> list[str]:
    """Return the changes in the faults of a statement."""
    found = mutants.of_object(Object("it", "query", text, 0, len(text)))
    return [each.name[each.name.index("[") : each.name.rindex("]") + 1] for each in found]


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("select 1 where a and b", "[and b -> ]"),
        ("select 1 where a and b", "[a and -> ]"),
        ("select 1 where (a and f(b)) order by c", "[and f(b) -> ]"),
        ("select 1 where a and case when b then c end", "[and case when b then c end -> ]"),
        ("select 1 where a is distinct from b and c", "[a is distinct from b and -> ]"),
        ("select 1 where f(a) order by c", "[where f(a) -> where true]"),
        ("select 1 where a < b", "[< -> <=]"),
        ("select 1 where a = b", "[= -> <>]"),
        ("select 1 where a or b", "[or -> and]"),
        ("select a is not null", "[is not -> is]"),
        ("select 1 where not exists (select)", "[not -> ]"),
        ("select 1 where j.jq_endtime < now()", "[j.jq_endtime -> now()]"),
        ("select array_agg(a order by b, c)", "[order by b, c -> ]"),
        ("select 1 order by a limit 5 for update", "[order by a -> ]"),
        ("select coalesce(f(a, b), 0)", "[, 0 -> ]"),
        ("select 1 limit 5", "[5 -> 6]"),
        ("select 1 for no key update skip locked", "[for no key update skip locked -> ]"),
        ("select 1 for no key update skip locked", "[skip locked -> ]"),
        ("begin perform f(a, b); end", "[perform f(a, b) -> null]"),
        ("select 1 from a left join b on c", "[left -> ]"),
    ],
)
def test_a_fault_is_made(text: str, change: str) -> None:
    assert change in changes(text)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("update a set b = c", "[= -> <>]"),
        ("select a between b and c", "[and -> or]"),
        ("select 'a < b'", "[< -> <=]"),
        ("select $$a < b$$", "[< -> <=]"),
        ("select 1 -- a < b\n", "[< -> <=]"),
        ("begin raise exception 'no %', left(a, 64); end", "[64 -> 65]"),
        ("insert into a (jq_endtime) values (1)", "[jq_endtime -> now()]"),
    ],
)
def test_what_is_no_condition_is_left_alone(text: str, change: str) -> None:
    assert change not in changes(text)


def test_every_statement_of_the_schema_is_found() -> None:
    schema = (schema_dir() / "schema.sql").read_text()
    found = objects.of_schema()
    assert sum(each.kind == "function" for each in found) == schema.count("\nCREATE FUNCTION ")
    assert sum(each.kind == "view" for each in found) == schema.count("\nCREATE VIEW ")
    assert sum(each.kind == "trigger" for each in found) == schema.count(" EXECUTE FUNCTION drover.")
    assert sum(" CHECK (" in each.text for each in found if each.kind == "constraint") == schema.count("CHECK (")


def test_mutants_have_names_of_their_own() -> None:
    assert len({each.name for each in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    "name",
    [
        "drover.my_jobs: CREATE VIEW drover.my_jobs[WITH (security_barrier='true') -> ]AS",
        "drover.jobdepends.jobdepends_drop: left out",
        "drover.jobqueue.jobqueue_jq_retries_check: left out",
    ],
)
def test_options_triggers_and_constraints_are_left_out(name: str) -> None:
    assert [each.name for each in EVERY if each.name.replace("create or replace", "CREATE").startswith(name)]


def test_a_grant_gets_one_more_role_and_loses_each() -> None:
    names = {each.name for each in EVERY if each.kind == "grant"}
    assert "drover.job: grant insert on drover.job to drover_readonly" in names
    assert "roles.sql: revoke insert on drover.job from drover_operator" in names


def test_a_view_is_used_with_what_it_names_and_a_function_when_it_is_called() -> None:
    named, used = Texts().used("LOG:  statement: select * from drover.my_jobs", set())
    assert named == {"drover.my_jobs"}
    assert {"drover.jobs", "drover.jobqueue"} < used
    assert "drover.settle" not in used
    assert "drover.settle" in Texts().used("LOG:  statement: select 1", {"drover.settle"})[1]


def test_the_tests_of_a_mutant_are_taken_from_each_file_in_turn() -> None:
    uses = {
        "a.py::wide": Uses(1.0, ["drover.it"], ["drover.it", "drover.other"]),
        "a.py::narrow": Uses(1.0, ["drover.it"], ["drover.it"]),
        "b.py::by_the_way": Uses(1.0, [], ["drover.it"]),
        "c.py::not_at_all": Uses(1.0, [], ["drover.other"]),
    }
    mutant = Mutant("drover.it", "function", "drover.it: left out")
    assert Order(uses, {}).of(mutant, 2.5) == ["a.py::narrow", "b.py::by_the_way"]
    assert Order(uses, {}).of(mutant, 9.0) == ["a.py::narrow", "b.py::by_the_way", "a.py::wide"]


def test_a_test_that_names_the_changed_column_is_run_first() -> None:
    uses = {test: Uses(1.0, [], ["drover.it"]) for test in ("a.py::other", "b.py::key")}
    texts = {"a.py::other": "insert into jobs (jq_type)", "b.py::key": "insert into jobs (jq_type, jq_key)"}
    mutant = Mutant("drover.it", "constraint", "drover.it: jq_key [is not -> is] null or jq_type")
    assert Order(uses, texts).of(mutant, 1.0) == ["b.py::key"]


def test_each_mutant_listed_as_equivalent_is_still_made_and_has_a_reason() -> None:
    made = {(each.object, each.name) for each in EVERY}
    assert [name for object_, name in LISTED if (object_, name) not in made] == []
    assert [name for (_, name), reason in LISTED.items() if len(reason.split()) < 4] == []
