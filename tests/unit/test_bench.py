"""The pure parts of the bench: what a line says, what is made of a server's log, what is drawn."""

import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from tests.bench import bars
from tests.bench.bars import Bars
from tests.bench.cases import CASES, in_turns, turns
from tests.bench.lines import LEGEND, Line, heading, of_rates, show, to_json
from tests.bench.others import claims_of
from tests.bench.plots import bars_of
from tests.bench.rates import Cost, Process, Rate, Role, cost_of, median_cost, spent
from tests.bench.report import page
from tests.bench.sizes import Sizes
from tests.bench.svg import Chart, ceiling, draw, short

RATES = Line("P1", "jobs", "/s", [10, 60, 20], [100, 100, 100], [20, 20, 20], "huey", "limit", at_least=0.3)
DAEMON, BACKEND, AGENT = (Process(role, 1000) for role in ("driver", "backends", "agents"))
OURS = Rate(20.0, Cost(26.04, 25.0, 4.5, 0.25, 884.4))
PEER = Rate(10.0, Cost(140.0, 20.0, None, 1.0, 1650.0))
LOG = """\
2026-01-01 00:00:00.000 UTC [1] LOG:  duration: 0.100 ms  bind end_and_claim: -- claims
\tdelete from drover.claimable where skip locked
2026-01-01 00:00:00.000 UTC [1] LOG:  duration: 12.500 ms  execute end_and_claim: -- claims
\twith x as (select 1 for update skip locked)
\tdelete from drover.claimable
2026-01-01 00:00:00.000 UTC [2] LOG:  duration: 7.000 ms  execute due: select 1 for update skip locked
2026-01-01 00:00:00.000 UTC [1] LOG:  duration: 2.0 ms  execute end_and_claim: delete from drover.claimable skip locked
"""


def columns(line: Line) -> list[str]:
    return re.split(r"\s{2,}", show(line))


def test_every_target_has_a_case() -> None:
    assert list(CASES) == [f"P{number}" for number in range(1, 12)]


def test_a_line_shows_the_median_ratio_and_its_range() -> None:
    assert RATES.ratios == [0.1, 0.6, 0.2]
    said = ["P1", "jobs", "20/s", "100/s", "huey 20/s", "0.20 (0.10-0.60)", ">= 0.3 x limit", "FALLS SHORT"]
    assert columns(RATES) == said


def test_a_line_without_a_limit_shows_its_own_range() -> None:
    line = Line("P5", "first item", "s", ours=[0.5, 0.1, 0.2], at_most=1.0)
    assert columns(line) == ["P5", "first item", "0.2 s (0.1-0.5)", "<= 1", "PASS"]


@pytest.mark.parametrize(
    ("ours", "at_least", "at_most", "verdict"),
    [
        ([2.0], 2.0, None, "PASS"),
        ([1.9], 2.0, None, "FALLS SHORT"),
        ([2.0], None, 2.0, "PASS"),
        ([2.1], None, 2.0, "FALLS SHORT"),
        ([1.0, 3.0, 2.0], 2.0, None, "PASS"),
        ([1.0], None, None, ""),
    ],
)
def test_the_verdict_judges_the_median(
    ours: Sequence[float], at_least: float | None, at_most: float | None, verdict: str
) -> None:
    assert Line("P4", "it", "s", ours, at_least=at_least, at_most=at_most).verdict == verdict


def test_a_line_against_a_peer_is_judged_by_the_ratio_to_the_peer() -> None:
    line = Line("P3", "wait", "ms", [1.0], peer=[2.0], peer_name="huey", against="peer", at_most=0.8)
    assert (line.ratios, line.target, line.verdict) == ([0.5], "<= 0.8 x peer", "PASS")


def test_a_line_with_a_missing_peer_names_it_and_has_no_verdict() -> None:
    line = Line("P1", "jobs", "/s", [10.0], at_least=1.2, missing="huey (no pip here)")
    assert columns(line) == ["P1", "jobs", "10/s", ">= 1.2", "missing: huey (no pip here)"]


def test_the_json_holds_the_figures_of_the_line() -> None:
    told = to_json(RATES)
    assert (told["case"], told["ratios"], told["verdict"]) == ("P1", [0.1, 0.6, 0.2], "FALLS SHORT")


def test_a_line_of_rates_shows_below_what_a_job_costs() -> None:
    line = of_rates(Line("P1", "jobs", "/s", peer_name="huey", against="peer"), [OURS], peer=[PEER])
    rate, cost = show(line).splitlines()
    assert re.split(r"\s{2,}", rate) == ["P1", "jobs", "20/s", "huey 10/s", "2.00 (2.00-2.00)"]
    assert cost.strip() == "ours 26.0 + 25.0 + 4.5 (+ 0.2) us, 884 B; huey 140 + 20.0 (+ 1.0) us, 1,650 B"
    assert LEGEND in heading()


def test_the_json_holds_the_cost_of_a_job_in_each_round_and_its_median() -> None:
    told = to_json(of_rates(Line("P1", "jobs", "/s"), [OURS, PEER, OURS]))
    assert [each["driver_us"] for each in told["costs"]["ours"]] == [26.04, 140.0, 26.04]
    assert (told["cost"]["ours"]["driver_us"], told["cost"]["ours"]["agents_us"]) == (26.04, 4.5)


def test_the_page_has_a_row_for_what_a_job_costs() -> None:
    html = page({}, [of_rates(Line("P1", "jobs", "/s"), [OURS])], [])
    assert "ours 26.0 + 25.0 + 4.5 (+ 0.2) us, 884 B" in html


# ---- CPU time


def test_cpu_time_is_counted_by_role_from_the_first_look() -> None:
    looks = [{1: DAEMON, 2: AGENT}, {1: Process("driver", 1300), 2: Process("agents", 1200), 3: Process("agents", 50)}]
    assert spent(looks, "agents") == {"driver": 300, "agents": 250}


def test_cpu_time_of_a_process_that_ended_keeps_the_role_it_was_seen_in() -> None:
    postmaster = Process("server", 0)
    looks = [
        {1: postmaster, 2: BACKEND},
        {1: postmaster, 2: BACKEND, 3: Process("server", 400)},
        {1: Process("server", 0, waited_ns=400), 2: BACKEND},
    ]
    assert spent(looks, "backends") == {"server": 400, "backends": 0}


def test_cpu_time_that_no_look_saw_counts_as_that_of_ended_processes() -> None:
    looks = [{1: Process("server", 0), 2: BACKEND}, {1: Process("server", 0, waited_ns=1700)}]
    assert spent(looks, "backends") == {"server": 0, "backends": 700}


def test_waited_times_that_are_rounded_down_take_no_cpu_time_away() -> None:
    looks = [{1: DAEMON}, {1: DAEMON, 2: Process("agents", 900)}, {1: DAEMON}]
    assert spent(looks, "agents") == {"driver": 0, "agents": 900}


def test_the_cost_of_a_job_leaves_out_the_bench_itself() -> None:
    server: Counter[Role] = Counter({"backends": 50_000, "server": 1000, "bench": 9000})
    assert cost_of(Counter({"driver": 20_000}), server, 3000, jobs=10) == Cost(2.0, 5.0, 0.0, 0.1, 300.0)


def test_the_median_cost_of_a_peer_has_no_agents() -> None:
    assert median_cost([PEER.cost, PEER.cost]).agents_us is None


# ---- rounds, sizes, the server's log


def test_contestants_alternate_and_rotate_who_begins() -> None:
    ran: list[str] = []
    given = in_turns(range(2), {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")})
    assert ran == ["a", "b", "b", "a"]
    assert given == {"a": [None, None], "b": [None, None]}


def test_a_round_that_would_end_late_is_left_out_but_the_first() -> None:
    instants = iter([0, 10, 10, 30, 30])  # a round begins and ends
    assert list(turns(3, until=45, clock=lambda: next(instants))) == [0, 1]
    assert list(turns(3, until=-1, clock=lambda: 0)) == [0]


def test_scaled_sizes_are_never_zero() -> None:
    few = Sizes().scaled(0.001)
    assert (few.rows, few.jobs, few.samples, few.idle_s) == (1000, 100, 4, 0.06)


def test_claims_are_found_in_the_log_of_the_server() -> None:
    assert claims_of(LOG) == [12.5, 2.0]


@pytest.mark.parametrize(("value", "round_one"), [(0.7, 1), (1, 1), (1.1, 2), (34, 50), (99_000, 100_000)])
def test_an_axis_ends_at_a_round_number(value: float, round_one: float) -> None:
    assert ceiling(value) == round_one


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (64, "64"), (1000, "1k"), (2_500_000, "2.5M")])
def test_an_axis_has_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_a_chart_is_svg_with_a_line_for_each_series() -> None:
    chart = Chart("a < b", "jobs", "/s", {"ours": [(1, 5.0), (10, 10.0)], "huey": [(1, 2.0)]})
    tree = ElementTree.fromstring(draw(chart))
    lines = tree.findall("{http://www.w3.org/2000/svg}polyline")
    assert [line.get("points") for line in lines] == ["90.0,155.0 600.0,40.0", "90.0,224.0"]
    assert "a < b" in [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]


BARS = Bars("P1-cpu", "a < b", ["daemon", "agents"], {"ours": [2.0, 1.0], "huey": [100.0, 20.0]})


def test_bars_are_svg_with_the_parts_of_each_row_end_to_end() -> None:
    tree = ElementTree.fromstring(bars.draw(BARS))
    spans = [(bar.get("x"), bar.get("width")) for bar in tree.findall("{http://www.w3.org/2000/svg}rect")]
    assert spans[:2] == [("20.0", "42.5"), ("62.5", "21.2")]
    assert "a < b" in [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_a_bar_that_is_cut_off_shows_its_whole_sum() -> None:
    tree = ElementTree.fromstring(bars.draw(BARS))
    assert "> 120" in [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_a_case_with_rates_has_bars_of_all_that_it_compares_once() -> None:
    lines = [
        of_rates(Line("P1", "jobs, to the limit", "/s"), [OURS], [PEER]),
        of_rates(Line("P1", "jobs, to huey", "/s", peer_name="huey"), [OURS], peer=[Rate(5.0, PEER.cost)]),
        of_rates(Line("P1", "limited", "/s"), [Rate(7.0, OURS.cost)]),
        Line("P4", "idle", "%", [1.0]),
    ]
    rate, cpu = bars_of(lines)
    assert rate.rows == {"ours": [20.0], "limit": [10.0], "huey": [5.0], "ours (limited)": [7.0]}
    assert (cpu.name, cpu.rows["huey"]) == ("P1-cpu", (140.0, 20.0, 0.0, 1.0))


def test_the_page_has_the_table_and_the_charts() -> None:
    html = page({"minutes": 1.25, "missing": ["huey (no <pip>)"]}, [RATES], [Chart("depth", "x", "y", {})])
    assert 'class="FALLS">FALLS SHORT' in html
    assert "huey (no &lt;pip&gt;)" in html
    assert html.count("<svg") == 1
