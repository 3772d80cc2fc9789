"""The lease of a group as one daemon sees it: what it asks next, and when, after what it was told."""

import pytest

from scheduler.model.config import Scheduler
from scheduler.model.states import LeaseState
from scheduler.policy.group_lease import YIELD_LOOK_S, Lease, LeaseStatement, Owner

TIMERS = Scheduler(lease=30.0, lease_renewal=10.0)
TAKEN = "when it was taken"
NOBODY = Owner(None, True, False, TAKEN)
OTHER = Owner("other", False, False)


def standing_by(now: float = 0.0, timers: Scheduler = TIMERS) -> Lease:
    """Return a daemon that has registered, and is about to look."""
    lease = Lease(timers)
    lease.connected(now)
    assert lease.step(now) is LeaseStatement.REGISTER
    lease.registered(now)
    return lease


def serving(now: float = 0.0, timers: Scheduler = TIMERS) -> Lease:
    """Return a daemon that owns its group."""
    lease = standing_by(now, timers)
    look(lease, NOBODY, now)
    assert lease.step(now) is LeaseStatement.TAKE
    lease.taken(TAKEN, now)
    assert lease.step(now) is LeaseStatement.RESCUE
    lease.rescued(now)
    return lease


def yielding(now: float = 0.0) -> Lease:
    """Return a daemon that has given its group up, and stands by again."""
    lease = serving(now)
    lease.step_down(now)
    assert lease.step(now) is LeaseStatement.LEAVE
    lease.renewed(False, now)
    assert lease.step(now) is LeaseStatement.REGISTER
    lease.registered(now)
    return lease


def look(lease: Lease, owner: Owner, now: float) -> None:
    """It looks who owns the group, and is told."""
    assert lease.step(now) is LeaseStatement.LOOK
    lease.looked(owner, now)


@pytest.mark.parametrize(("lease", "renewal"), [(30.0, 10.0), (4.0, 1.0), (600.0, 7.0)])
def test_the_lease_lasts_and_is_renewed_as_the_settings_say_j113(lease: float, renewal: float) -> None:
    held = serving(timers=Scheduler(lease=lease, lease_renewal=renewal))
    assert (held.until, held.next_deadline()) == (lease, renewal)
    assert held.step(renewal) is LeaseStatement.RENEW
    held.renewed(True, renewal)
    assert (held.until, held.next_deadline()) == (lease + renewal, 2 * renewal)


def test_a_lease_that_was_taken_counts_from_before_the_request_c14() -> None:
    lease = standing_by()
    look(lease, NOBODY, 0.0)
    assert lease.step(1.0) is LeaseStatement.TAKE
    lease.taken(TAKEN, 5.0)
    assert lease.until == 31.0


def test_a_lease_that_was_renewed_counts_from_before_the_request_c14() -> None:
    lease = serving()
    assert lease.step(10.0) is LeaseStatement.RENEW
    lease.renewed(True, 17.0)
    assert (lease.until, lease.next_deadline()) == (40.0, 20.0)


def test_a_group_without_owner_is_taken_at_once() -> None:
    lease = standing_by()
    look(lease, NOBODY, 0.0)
    assert lease.step(0.0) is LeaseStatement.TAKE


def test_a_group_that_was_given_up_is_left_to_others_for_one_lease_c9() -> None:
    lease = yielding()
    for now in (0.0, 10.0, 29.9):
        look(lease, NOBODY, now)
        assert lease.next_deadline() == now + YIELD_LOOK_S


def test_a_released_group_that_no_standby_takes_is_taken_again_after_one_lease_c9() -> None:
    lease = yielding()
    look(lease, NOBODY, 30.0)
    assert lease.step(30.0) is LeaseStatement.TAKE


def test_a_group_is_taken_at_once_when_its_next_owner_leaves_c9() -> None:
    lease = yielding()
    look(lease, OTHER, 1.0)
    assert lease.next_deadline() == 11.0
    lease.owner_changed(2.0)
    look(lease, NOBODY, 2.0)
    assert lease.step(2.0) is LeaseStatement.TAKE


def test_a_group_is_given_up_as_soon_as_the_renewal_is_answered_c9() -> None:
    lease = serving()
    assert lease.step(10.0) is LeaseStatement.RENEW
    lease.step_down(10.0)
    assert lease.step(10.0) is None
    lease.renewed(True, 10.1)
    assert lease.step(10.1) is LeaseStatement.LEAVE


def test_a_group_is_given_up_though_the_connection_was_lost_c9() -> None:
    lease = serving()
    lease.step_down(5.0)
    assert lease.step(5.0) is LeaseStatement.LEAVE
    lease.disconnected()
    lease.connected(7.0)
    assert lease.step(7.0) is LeaseStatement.LEAVE


@pytest.mark.parametrize("lease", [standing_by(), yielding()])
def test_only_the_active_daemon_steps_down_c9(lease: Lease) -> None:
    lease.step_down(0.0)
    assert lease.state is LeaseState.STANDBY


def test_the_active_daemon_ignores_owner_notifications() -> None:
    lease = serving()
    lease.owner_changed(1.0)
    assert lease.next_deadline() == 10.0


def test_a_daemon_that_stepped_down_may_take_the_group_again_after_another_owner() -> None:
    lease = serving(0.0)
    lease.step_down(1.0)
    assert lease.step(1.0) is LeaseStatement.LEAVE
    lease.renewed(False, 1.0)
    assert lease.step(1.0) is LeaseStatement.REGISTER
    lease.registered(1.0)
    assert lease.step(1.0) is LeaseStatement.LOOK
    lease.looked(NOBODY, 1.0)
    assert lease.next_deadline() == 2.0
    lease.owner_changed(1.5)
    assert lease.step(1.5) is LeaseStatement.LOOK
    lease.looked(Owner(None, True, False, "since then"), 1.5)
    assert lease.step(1.5) is LeaseStatement.TAKE


LAPSED = Owner("other", True, False)


def test_a_hurried_daemon_takes_a_lapsed_lease_at_once_f127() -> None:
    lease = standing_by()
    lease.hurry()
    look(lease, LAPSED, 0.0)
    assert (lease.step(0.0), lease.has_waited_a_lease) == (LeaseStatement.TAKE, True)


def test_a_hurried_daemon_waits_while_a_lease_runs_f128() -> None:
    lease = standing_by()
    lease.hurry()
    look(lease, OTHER, 0.0)
    assert (lease.step(0.0), lease.next_deadline()) == (None, 10.0)


def test_a_hurried_daemon_that_lost_its_connection_waits_a_lease_as_others_do() -> None:
    lease = standing_by()
    lease.hurry()
    lease.disconnected()
    lease.connected(5.0)
    assert lease.step(5.0) is LeaseStatement.REGISTER
    lease.registered(5.0)
    look(lease, LAPSED, 5.0)
    assert (lease.step(5.0), lease.has_waited_a_lease) == (None, False)


def test_a_daemon_that_waits_for_its_first_connection_hurries_then_f127() -> None:
    lease = Lease(TIMERS)
    lease.hurry()
    lease.disconnected()
    lease.connected(5.0)
    assert lease.step(5.0) is LeaseStatement.REGISTER
    lease.registered(5.0)
    look(lease, LAPSED, 5.0)
    assert lease.step(5.0) is LeaseStatement.TAKE


def test_refused_registration_is_retried_with_back_off() -> None:
    lease = Lease(Scheduler())
    lease.connected(0.0)
    now, waits = 0.0, []
    for _ in range(7):
        assert lease.step(now) is LeaseStatement.REGISTER
        lease.refused(now)
        waits.append(lease.next_deadline() - now)
        now = lease.next_deadline()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_refused_registration_is_retried_at_once_over_a_new_connection() -> None:
    lease = Lease(Scheduler())
    lease.connected(0.0)
    lease.step(0.0)
    lease.refused(0.0)
    lease.connected(0.5)
    assert lease.next_deadline() == 0.5


@pytest.mark.parametrize(
    ("owner", "is_served"),
    [
        (OTHER, True),
        (Owner("other", True, False), False),
        (Owner("other", False, True), False),
        (NOBODY, False),
    ],
)
def test_a_group_is_served_elsewhere_while_another_daemon_lives_and_has_the_lease_r51(
    owner: Owner, is_served: bool
) -> None:
    lease = standing_by()
    assert not lease.is_served_elsewhere
    look(lease, owner, 0.0)
    assert lease.is_served_elsewhere is is_served


def test_a_daemon_that_serves_is_not_served_elsewhere_r51() -> None:
    assert not serving().is_served_elsewhere
