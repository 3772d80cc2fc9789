"""JSON that programs could not read back is refused when it is inserted, in every column that people write."""

import psycopg
import pytest

from tests.role_tools import Login
from tests.schema_tools import fetch_one

PLACES = {
    "jq_variables": "insert into drover.jobqueue (jq_type, jq_variables) values ('noop', {})",
    "job_data": "insert into drover.job (job_data) values ({})",
    "schedule_job": "insert into drover.schedule (schedule_name, schedule_every, schedule_job)"
    """ values ('daily', '1 day', '{{"jq_type": "noop"}}'::jsonb || {})""",
}
SETUP = "select drover.job_setup('noop.1', {})"
DEEP = """('{{"jq_variables": ' || repeat('[', {0}) || repeat(']', {0}) || '}}')::jsonb"""
NUMBER = """'{{"jq_variables": {0}}}'::jsonb"""
TOO_DEEP, TOO_LONG = "is nested too deep: 100 levels are let in", "has a number that no double holds"
REFUSED = {
    "3,000 levels": (DEEP.format(3000), TOO_DEEP),
    "101 levels": (DEEP.format(101), TOO_DEEP),
    "5,000 digits": (NUMBER.format("1e4999"), TOO_LONG),
    "5,000 digits below zero": (NUMBER.format("[{{}}, -1e4999]".format()), TOO_LONG),
}
TAKEN = {
    "100 levels": DEEP.format(100),
    "the greatest double": NUMBER.format("1.7976931348623157e308"),
    "digits of a string": NUMBER.format('"' + "7" * 5000 + '"'),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("value", "reason"), REFUSED.values(), ids=REFUSED)
def test_json_that_programs_could_not_read_is_refused(login: Login, place: str, value: str, reason: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=f"{place} {reason}"):
        login("drover_operator").execute(PLACES[place].format(value).encode())


@pytest.mark.parametrize("place", ["jq_variables", "job_data"])
@pytest.mark.parametrize("value", TAKEN.values(), ids=TAKEN)
def test_json_within_the_limits_is_kept_as_it_is(login: Login, place: str, value: str) -> None:
    connection = login("drover_operator")
    connection.execute(PLACES[place].format(value).encode())
    table = "drover.jobqueue" if place == "jq_variables" else "drover.job"
    assert fetch_one(connection, f"select {place} = {value} from {table}") is True


def test_setup_of_a_job_with_variables_that_are_too_deep_is_refused(login: Login) -> None:
    value = DEEP.format(3000).replace("jq_variables", "paths")
    with pytest.raises(psycopg.errors.CheckViolation, match=f"jq_variables {TOO_DEEP}"):
        login("drover_frontend").execute(SETUP.format(value).encode())
