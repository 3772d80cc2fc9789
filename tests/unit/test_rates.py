"""Rate limits: no interval has more starts than it may, and what is over goes on when there is room."""

from itertools import islice
from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import events_and_effects as e
from scheduler.model.queue_requests import Claim, ClaimRequest, EndAndClaim, Rules
from scheduler.model.states import NEVER
from scheduler.policy.core import Core
from scheduler.policy.deadlines import RATES
from scheduler.policy.rates import RateLimit, Rates, short_value
from tests.core_tools import make_core

LIMIT = RateLimit(rate=2, interval=10.0)
EACH = RateLimit(each=2, by="submitter", interval=10.0)


def room(rates: Rates, now: float, in_hand: int = 0) -> int:
    found = rates.room(in_hand, now)
    assert found is not None
    return found


def test_no_more_start_in_an_interval_than_the_limit_says() -> None:
    rates = Rates(LIMIT)
    told = []
    for pk, now in enumerate((0.0, 4.0)):
        told.append(room(rates, now))
        rates.began(pk, now)
        rates.ended(pk)
    told += [room(rates, now) for now in (4.0, 9.9, 10.0, 13.9, 14.0)]
    assert told == [2, 1, 0, 0, 1, 1, 2]


def test_what_is_claimed_and_has_not_started_counts_until_it_ends() -> None:
    rates = Rates(LIMIT)
    assert room(rates, 0.0, in_hand=2) == 0
    assert room(rates, 100.0, in_hand=2) == 0
    rates.began(1, 100.0)
    assert room(rates, 109.0, in_hand=2) == 0
    rates.ended(1)
    assert [room(rates, 109.0, in_hand=1), room(rates, 109.0), room(rates, 110.0)] == [0, 1, 2]


def test_next_room_is_when_the_first_start_is_an_interval_old() -> None:
    rates = Rates(LIMIT)
    assert rates.next_at(0.0) == NEVER
    rates.began(1, 1.0)
    rates.began(2, 3.0)
    room(rates, 5.0, in_hand=2)
    assert rates.next_at(5.0) == 11.0


def test_a_job_put_back_before_it_was_worked_starts_once_more() -> None:
    rates = Rates(LIMIT)
    rates.began(1, 0.0)
    rates.put_back(1)
    assert room(rates, 5.0, in_hand=1) == 0
    rates.began(1, 6.0)
    assert [room(rates, 6.0, in_hand=1), room(rates, 10.0, in_hand=1), room(rates, 16.0, in_hand=1)] == [0, 1, 2]


def test_a_start_is_counted_once_while_its_agent_has_it() -> None:
    rates = Rates(LIMIT)
    rates.began(1, 0.0)
    rates.began(1, 0.1)
    assert room(rates, 0.2, in_hand=1) == 1


def test_each_value_has_a_limit_of_its_own_and_the_others_are_told_when() -> None:
    rates = Rates(EACH)
    told = [rates.admit(pk, value, 0.0) for pk, value in enumerate(["anna", "anna", "bert", "anna", "anna", "anna"])]
    assert told == [None, None, None, 10.01, 10.01, 20.02]


def test_a_job_put_back_is_about_to_start_for_its_value_too() -> None:
    rates = Rates(RateLimit(rate=3, each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.began(1, 1.0)
    rates.put_back(1)
    assert rates.admit(2, "anna", 12.0) is not None


def test_a_job_put_back_after_its_interval_counts_for_its_value_though_that_was_forgotten() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.began(1, 0.0)
    values(rates, 20.0)
    rates.put_back(1)
    assert rates.admit(2, "anna", 20.0) == 30.01
    rates.began(1, 21.0)
    assert rates.admit(3, "anna", 30.0) is not None


def test_a_job_put_back_that_had_not_begun_counts_once() -> None:
    rates = Rates(RateLimit(rate=2, each=2, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.put_back(1)
    assert [room(rates, 0.0, in_hand=1), rates.admit(2, "anna", 0.0)] == [1, None]
    rates.put_back(9)
    assert room(rates, 0.0, in_hand=2) == 0


def test_a_job_that_ended_before_it_began_leaves_its_room_to_others() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.ended(1)
    assert rates.admit(2, "anna", 0.0) is None


def test_what_the_program_before_admitted_leaves_its_room_when_it_ends() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    later = Rates.restored(rates.snapshot())
    assert (later.is_known, later.has_changes, later.admit(2, "anna", 0.0)) == (True, True, 10.01)
    later.ended(1)
    assert later.admit(3, "anna", 0.0) is None


def test_nothing_is_left_of_starts_when_another_daemon_serves_the_group() -> None:
    rates, new = Rates(RateLimit(rate=3, each=1, by="submitter", interval=10.0)), Rates(LIMIT)
    rates.took_over({"": [1.0]}, 0.0)
    for pk, name in enumerate(["anna", "bert"]):
        rates.admit(pk, name, 0.0)
    rates.began(1, 1.0)
    rates.forget()
    assert rates.snapshot() == new.snapshot() | {"limit": rates.snapshot()["limit"]}
    assert (rates.is_known, rates.has_changes) == (new.is_known, new.has_changes) == (False, False)


def test_starts_count_for_another_limit_by_the_same_attribute_and_promises_do_not() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    start(rates, 1, "anna", 0.0)
    told = [rates.admit(pk, "anna", 1.0) for pk in (2, 3)]
    rates.set_limit(RateLimit(each=2, by="submitter", interval=10.0))
    told += [rates.admit(pk, "anna", 1.0) for pk in (4, 5)]
    assert told == [10.01, 20.02, None, 10.01]


def test_promises_are_kept_when_limits_are_read_again_unchanged() -> None:
    rates = Rates(EACH)
    told = [rates.admit(pk, "anna", 0.0) for pk in range(3)]
    rates.set_limit(RateLimit(each=2, by="submitter", interval=10.0))
    told += [rates.admit(pk, "anna", 0.0) for pk in range(3, 5)]
    assert told == [None, None, 10.01, 10.01, 20.02]


def test_starts_do_not_count_for_a_limit_by_another_attribute() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.set_limit(RateLimit(each=1, by="type", interval=10.0))
    rates.ended(1)
    assert [rates.admit(pk, "anna", 0.0) is None for pk in (2, 3)] == [True, False]


def test_starts_of_a_former_owner_and_of_ours_are_over_in_their_order_r57() -> None:
    rates = Rates(LIMIT)
    rates.began(1, 95.0)
    rates.took_over({"": [8.0]}, 100.0)
    assert [rates.next_at(100.0), room(rates, 102.0, in_hand=1), rates.next_at(102.0)] == [102.0, 1, NEVER]


def test_a_limit_for_each_value_alone_is_none_in_all() -> None:
    rates = Rates(EACH)
    for pk in range(5):
        rates.began(pk, 0.0)
    assert (rates.room(9, 0.0), rates.next_at(0.0)) == (None, NEVER)


def test_a_line_that_is_put_back_before_it_starts_counts_once() -> None:
    rates = Rates(RateLimit(rate=9, each=1, by="submitter", interval=10.0))
    rates.admit(1, "anna", 0.0)
    rates.put_back(1)
    rates.put_back(1)
    rates.began(1, 1.0)
    rates.ended(1)
    assert rates.admit(2, "anna", 11.1) is None


def test_a_job_counts_for_no_value_of_the_attribute_that_a_reload_brings() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    rates.admit(1, "x", 0.0)
    rates.set_limit(RateLimit(each=1, by="data.x", interval=10.0))
    assert rates.admit(2, "x", 0.0) is None
    rates.ended(1)
    assert rates.admit(3, "x", 0.0) is not None


def test_starts_for_another_attribute_leave_all_room_after_a_reload() -> None:
    rates = Rates(RateLimit(each=1, by="submitter", interval=10.0))
    start(rates, 1, "x", 0.0)
    rates.set_limit(RateLimit(each=1, by="data.x", interval=10.0))
    assert (rates.admit(2, "x", 1.0), values(rates, 1.0)) == (None, [""])


def test_nothing_is_kept_of_a_job_that_ended_but_its_start() -> None:
    rates = Rates(EACH)
    rates.admit(1, "anna", 0.0)
    rates.began(1, 1.0)
    rates.ended(1)
    kept = rates.snapshot()
    assert (kept["values"], kept["begun"], kept["each"]["anna"]["starts"]) == ([], [], [1.0])


def test_starts_of_a_former_owner_count_r57() -> None:
    rates = Rates(RateLimit(rate=2, each=1, by="submitter", interval=10.0))
    rates.took_over({"": [8.0, 1.0], "=anna": [1.0]}, 100.0)
    assert room(rates, 100.0) == 0
    assert [rates.next_at(100.0), room(rates, 102.0)] == [102.0, 1]
    assert [rates.admit(1, "anna", 102.0), rates.admit(2, "bert", 102.0)] == [109.01, None]


def test_what_was_started_is_written_down_and_read_again() -> None:
    rates, later = Rates(RateLimit(rate=1, each=1, by="type", interval=10.0)), Rates(LIMIT)
    rates.admit(1, "a", 0.0)
    rates.began(1, 1.0)
    rows = list(rates.shown(4.0))
    assert rows == [{"value": "", "ages": [3.0], "next": 7.0}, {"value": "=a", "ages": [3.0], "next": 7.0}]
    later.took_over({row["value"]: row["ages"] for row in rows}, 4.0)
    assert room(later, 4.0) == 1
    assert not rates.has_changes


def start(rates: Rates, pk: int, value: str, now: float) -> None:
    rates.admit(pk, value, now)
    rates.began(pk, now)
    rates.ended(pk)


def values(rates: Rates, now: float) -> list[str]:
    return sorted(row["value"] for row in rates.shown(now))


def test_values_that_did_not_start_meanwhile_are_not_written_again_t57() -> None:
    rates = Rates(RateLimit(each=5, by="data.x", interval=100.0))
    for pk in range(3):
        start(rates, pk, "abc"[pk], 0.0)
    first = values(rates, 1.0)
    start(rates, 9, "b", 2.0)
    assert (first, values(rates, 3.0)) == (["", "=a", "=b", "=c"], ["", "=b"])
    rates.show_again()
    assert values(rates, 4.0) == ["", "=a", "=b", "=c"]


def test_values_whose_starts_are_over_are_removed_and_forgotten_t57() -> None:
    rates = Rates(RateLimit(each=5, by="data.x", interval=10.0))
    for pk, at in enumerate((0.0, 1.0, 8.0)):
        start(rates, pk, "abc"[pk], at)
    values(rates, 9.0)
    start(rates, 9, "d", 12.0)
    rows = list(rates.shown(12.0))
    assert [row["value"] for row in rows if not row["ages"]] == ["=a", "=b"]
    assert values(rates, 12.0) == [""]


def test_a_long_value_is_counted_by_its_beginning_and_its_hash_t57() -> None:
    long = "x" * 100_000
    assert short_value("x" * 64) == "x" * 64
    assert len(short_value(long)) <= 64
    assert len({short_value(long), short_value(long + "y"), short_value("\ud800" * 65)}) == 3


GO_ON, PUT_BACK, END = "go on", "put back", "end"
WAITS = st.sampled_from((0.0, 0.5, 3.0, 9.5))
ACTS = st.lists(st.tuples(st.sampled_from((GO_ON, GO_ON, PUT_BACK, END)), st.integers(0, 3), WAITS), max_size=60)


@given(ACTS, st.integers(1, 6), st.integers(1, 3))
def test_no_interval_has_too_many_starts_and_all_room_comes_back(
    acts: list[tuple[str, int, float]], rate: int, each: int
) -> None:
    rates, now, hand = Rates(RateLimit(rate=rate, each=each, by="type", interval=10.0)), 0.0, dict[int, str]()
    begun: list[tuple[int, float]] = []  # starts, without those put back: a line behind another was not worked
    for act, pk, wait in acts:
        now += wait
        if act == GO_ON and pk not in hand:
            if room(rates, now, len(hand)) > 0 and rates.admit(pk, str(pk % 2), now) is None:
                hand[pk] = "claimed"
        elif act == GO_ON and hand[pk] == "claimed":
            hand[pk] = "begun"
            rates.began(pk, now)
            begun.append((pk, now))
        elif act == PUT_BACK and hand.get(pk) == "begun" and max(at for job, at in begun if job == pk) > now - 10.0:
            hand[pk] = "claimed"
            begun.remove([start for start in begun if start[0] == pk][-1])
            rates.put_back(pk)
        elif act == END and pk in hand:
            del hand[pk]
            rates.ended(pk)
    for most, parities in ((rate, {0, 1}), (each, {0}), (each, {1})):
        starts = [at for pk, at in begun if pk % 2 in parities]
        assert all(later - first >= 10.0 for first, later in zip(starts, islice(starts, most, None), strict=False))
    for pk in hand:
        rates.ended(pk)
    now += 10.1
    assert room(rates, now) == rate
    assert [rates.admit(pk, str(pk % 2), now) for pk in range(2 * each)] == [None] * (2 * each)
    assert None not in [rates.admit(pk, str(pk % 2), now) for pk in (10, 11)]


def promise_all(jobs: int) -> float:
    """Return what it costs, in time of the processor, to put off so many jobs and to see their instants pass."""

    def once() -> float:
        rates, began = Rates(RateLimit(each=5, by="submitter", interval=10.0)), process_time()
        instants = [rates.admit(pk, "anna", 0.0) for pk in range(jobs)]
        for at in instants[-jobs // 2 :]:
            rates.admit(0, "anna", at or 0.0)
        return process_time() - began

    return min(once() for _ in range(3))


def test_a_job_that_is_put_off_costs_the_same_however_many_were_before() -> None:
    assert promise_all(30_000) < 25 * promise_all(3_000)  # ten times, if each costs the same


def test_promises_are_those_of_all_starts_and_promises_before() -> None:
    rates = Rates(RateLimit(each=2, by="submitter", interval=10.0))
    start(rates, 1, "anna", 0.0)
    instants = [rates.admit(pk, "anna", 4.0) for pk in range(2, 7)]
    assert instants == [None, 10.01, 14.01, 20.02, 24.02]


# ---- in the core


def rated(**limit: object) -> Core:
    """Return a core whose default queue has a rate limit."""
    core = make_core()
    row = {"name": "default", "concurrency": None, "paused": False, "reserved": 0, "rate": {"interval": 10.0, **limit}}
    core.handle(e.TablesRead([row], [], [], []), 0.0)
    return core


def claim(core: Core, *claims: tuple[int, str], now: float) -> EndAndClaim:
    """Answer the claim of a core with these jobs and their submitters."""
    request = core.next_request(now)
    assert isinstance(request, EndAndClaim)
    want = next(want for want in request.wanted if not want.urgent)
    rows = [Claim(pk, 1, b"x", b"1n", want, Rules(submitter=name)) for pk, name in claims]
    core.handle(e.EndedAndClaimed(rows, (), (), {}, {want: len(rows)}, 10), now)
    return request


def wanted(core: Core, now: float) -> list[ClaimRequest]:
    request = core.next_request(now)
    return list(request.wanted) if isinstance(request, EndAndClaim) else []


def test_a_core_claims_no_more_than_may_start_and_again_when_there_is_room() -> None:
    core = rated(rate=2)
    assert max(want.most for want in claim(core, (1, "anna"), (2, "anna"), now=0.0).wanted) <= 2
    assert wanted(core, 1.0) == []
    for job in core.state.jobs.values():
        core.state.job_began(job, core.state.slots.all[0], 3.0)
    assert core.state.deadlines.at[RATES] == 13.0
    queue = core.state.queues["default"]
    assert [queue.room(at) for at in (12.9, 13.0)] == [0, 2]
    core.tick(13.0)
    assert core.state.may_want_more


def test_each_start_leaves_room_when_it_is_over_and_not_when_the_next_one_is() -> None:
    core = rated(rate=2)
    rates = core.state.rated["default"]
    for pk, at in ((1, 0.0), (2, 4.0), (3, 10.0)):
        rates.began(pk, at)
        rates.ended(pk)
        core.tick(at)
    assert (wanted(core, 10.0), core.state.deadlines.at[RATES]) == ([], 14.0)


def test_a_core_that_takes_over_claims_when_the_starts_of_the_former_owner_are_over_r57() -> None:
    core = make_core()
    row = {"name": "default", "concurrency": None, "paused": False, "reserved": 0, "starts": {"": [8.0]}}
    core.handle(e.TablesRead([row | {"rate": {"rate": 1, "interval": 10.0}}], [], [], []), 0.0)
    assert (wanted(core, 0.0), core.state.deadlines.at[RATES]) == ([], 2.0)
    core.tick(2.0)
    assert wanted(core, 2.0)


def test_a_core_gives_back_the_jobs_of_a_value_at_its_limit_until_then() -> None:
    core = rated(each=1, by="submitter")
    request = claim(core, (1, "anna"), (2, "anna"), (3, "bert"), now=0.0)
    assert all(want.detailed for want in request.wanted)
    assert sorted(core.state.jobs) == [1, 3]
    (row,) = core.state.outbox.saves.values()
    assert (row.pk, row.state, row.outcome, row.retry_in) == (2, "queued", "not begun", 10.01)
    assert row.text == "rate limit of queue default: 1 starts in 10 s with submitter 'anna'"


def test_starts_that_could_not_be_written_down_are_written_with_the_next() -> None:
    core = rated(rate=3)
    claim(core, (1, "anna"), (2, "anna"), now=0.0)
    core.state.job_began(core.state.jobs[1], core.state.slots.all[0], 3.0)
    shown = core.report.take_changed_rates(4.0)
    assert (shown, core.report.has_rate_changes) == (
        [{"queue": "default", "value": "", "ages": [1.0], "next": None}],
        False,
    )
    core.report.show_rates_again({"default", "gone"})
    assert core.report.take_changed_rates(4.0) == shown


def test_restored_limits_ignore_what_another_version_has_written() -> None:
    rates = Rates(RateLimit(rate=2, interval=10.0))
    rates.began(1, 5.0)
    snapshot = rates.snapshot()
    snapshot["whole"]["unknown"] = 1
    later = Rates.restored(snapshot)
    assert later.snapshot() == rates.snapshot()
