"""Claims about sign-ins by the key: for how long, how many, and whose forms are taken. No database is asked."""

import pytest

from scheduler.errors import ConfigError
from scheduler.web.sign_in import IDLE_S, LONGEST, MOST_OF_ROLE, People, Person

KEY = "a long key of this run"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def people(clock: Clock) -> People:
    return People("", KEY, clock)


def test_each_sign_in_gets_a_secret_and_a_token_of_its_own(people: People) -> None:
    one, other = (people.find(people.sign_in("", KEY)) for _ in range(2))
    assert one
    assert other
    assert one.owns(one.token)
    assert not one.owns(other.token)
    assert not one.owns("")
    assert (one.name, one.login) == ("key", other.login)


@pytest.mark.parametrize("password", ["", KEY[:-1], f"{KEY}x", KEY.upper(), "\u00e4"])
def test_another_key_is_wrong(people: People, password: str) -> None:
    with pytest.raises(ConfigError, match="the key is wrong"):
        people.sign_in("", password)


@pytest.mark.parametrize("password", ["", "x"])
def test_without_a_key_only_roles_sign_in(password: str) -> None:
    people = People("", "")
    assert not people.has_key
    with pytest.raises(ConfigError, match="a role is required"):
        people.sign_in("", password)


@pytest.mark.parametrize(
    ("role", "password", "why"),
    [
        ("ann", "", "a password is required"),
        ("a" * (LONGEST + 1), "x", "role or password is wrong"),
        ("ann", "x" * (LONGEST + 1), "role or password is wrong"),
        ("a\x1b", "x", "role or password is wrong"),
        ("ann", "a\0b", "role or password is wrong"),
    ],
)
def test_a_role_and_a_password_that_cannot_be_are_refused_and_cost_no_pause(
    people: People, role: str, password: str, why: str
) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=why):
            people.sign_in(role, password, "here")


def test_nobody_is_found_by_another_secret_or_none(people: People) -> None:
    people.sign_in("", KEY)
    assert (people.find(None), people.find(""), people.find("x")) == (None, None, None)


def test_who_was_away_for_hours_is_signed_out_and_a_visit_counts(people: People, clock: Clock) -> None:
    idle, visiting = people.sign_in("", KEY), people.sign_in("", KEY)
    clock.now = IDLE_S
    people.close_idle()
    assert people.find(visiting)
    clock.now = IDLE_S + 1
    people.close_idle()
    assert (people.find(idle), people.find(visiting) is None) == (None, False)


def test_of_too_many_sign_ins_of_one_role_the_longest_idle_goes(people: People, clock: Clock) -> None:
    secrets = []
    for _ in range(MOST_OF_ROLE):
        clock.now += 1
        secrets.append(people.sign_in("", KEY))
    clock.now += 1
    people.find(secrets[0])
    secrets.append(people.sign_in("", KEY))
    assert [secret for secret in secrets if people.find(secret) is None] == [secrets[1]]


def test_who_signed_out_is_known_no_more_and_a_visitor_always_is(people: People) -> None:
    secret = people.sign_in("", KEY)
    person = people.find(secret)
    assert people.knows(person)
    people.sign_out(secret)
    people.sign_out(secret)
    assert not people.knows(person)
    assert people.knows(None)


def test_all_are_signed_out_at_the_end(people: People) -> None:
    secrets = [people.sign_in("", KEY) for _ in range(3)]
    people.close()
    assert [people.find(secret) for secret in secrets] == [None] * 3


def test_notes_are_shown_once(people: People) -> None:
    person = people.find(people.sign_in("", KEY))
    assert isinstance(person, Person)
    person.note("bad", "a")
    person.note("good", "b")
    assert (person.take_notes(), person.take_notes()) == ([("bad", "a"), ("good", "b")], [])
