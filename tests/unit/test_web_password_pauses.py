"""Claims about the pauses after wrong passwords, and about which addresses count as one."""

import pytest

from scheduler.errors import ConfigError
from scheduler.web.password_pauses import FIRST_S, FORGET_S, LONGEST_S, MOST, Pauses, neighbourhood


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_host_count_as_one(host: str, counted: str) -> None:
    assert neighbourhood(host) == counted


def test_pause_grows_with_each_wrong_password_and_ends_with_a_right_one() -> None:
    clock = [0.0]
    pauses = Pauses(lambda: clock[0])
    pauses.begin("role", "here")
    for seconds in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S):
        clock[0] += seconds - 0.1
        with pytest.raises(ConfigError, match="try again in 1 s"):
            pauses.begin("role", "here")
        clock[0] += 0.1
        pauses.begin("role", "here")
    pauses.forget("role", "here")
    pauses.begin("role", "here")


def test_pause_is_doubled_up_to_the_longest() -> None:
    clock = [0.0]
    pauses = Pauses(lambda: clock[0])
    waited = []
    for _ in range(7):
        pauses.begin("role", "here")
        with pytest.raises(ConfigError) as refused:
            pauses.begin("role", "here")
        waited.append(int(str(refused.value).split()[-2]) - 1)
        clock[0] += waited[-1]
    assert waited == [1, 2, 4, 8, 16, LONGEST_S, LONGEST_S]


def test_pause_is_remembered_after_its_end() -> None:
    clock = [0.0]
    pauses = Pauses(lambda: clock[0])
    pauses.begin("role", "here")
    clock[0] += FIRST_S + FORGET_S - 1
    pauses.begin("role", "here")
    clock[0] += FIRST_S
    with pytest.raises(ConfigError, match="try again in 2 s"):
        pauses.begin("role", "here")


def test_of_too_many_wrong_passwords_the_oldest_is_forgotten() -> None:
    pauses = Pauses(lambda: 0.0)
    for number in range(MOST + 1):
        pauses.begin(str(number), "here")
    pauses.begin("0", "here")
    with pytest.raises(ConfigError):
        pauses.begin(str(MOST), "here")


def test_pause_has_a_longest_and_is_forgotten() -> None:
    clock = [0.0]
    pauses = Pauses(lambda: clock[0])
    for _ in range(2000):
        pauses.begin("role", "here")
        clock[0] += LONGEST_S
    clock[0] += FORGET_S
    pauses.begin("role", "here")
    clock[0] += FIRST_S
    pauses.begin("role", "here")


def test_pause_is_of_one_role_and_address() -> None:
    pauses = Pauses(lambda: 0.0)
    pauses.begin("role", "here")
    pauses.begin("role", "there")
    pauses.begin("other", "here")


def test_wrong_passwords_of_many_roles_take_little_memory() -> None:
    pauses = Pauses(lambda: 0.0)
    for number in range(MOST + 100):
        pauses.begin(str(number), "here")
    assert len(pauses._failures) == MOST
