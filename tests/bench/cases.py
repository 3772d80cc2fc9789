"""The targets P1 to P11: what is run in turns, and what is asked of it. PERFORMANCE is where the numbers come from."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from statistics import median, quantiles
from typing import Any, Final

from tests.bench import beside, commands, limits, ours, people, ssh
from tests.bench.lines import Line, of_rates
from tests.bench.peers import GRAPHILE, Peers
from tests.bench.place import Place
from tests.bench.rates import Rate
from tests.bench.sizes import Sizes

AT_ONCE: Final = 4  # commands of P8
AHEAD: Final = 16  # lines to an agent at once, where that is compared
QUEUE: Final = "[queues.default]\nconcurrency = 1000\n"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Where to measure, how much, and how often in turns; each is another one."""

    place: Place
    peers: Peers
    sizes: Sizes
    rounds: int
    until: float = inf  # monotonic; fewer rounds if they would take longer

    def turns(self) -> Iterator[int]:
        """Yield the numbers of the rounds that there is time for."""
        return turns(self.rounds, self.until, time.monotonic)


def turns(rounds: int, until: float, clock: Callable[[], float]) -> Iterator[int]:
    """Yield the first round, and each further one that ends in time if it takes as long as the one before it."""
    took = 0.0
    for turn in range(rounds):
        begun = clock()
        if turn and begun + took > until:
            return
        yield turn
        took = clock() - begun


def in_turns(turns: Iterable[int], contestants: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Run all contestants in each of these rounds, beginning with another one each time; what each gave."""
    given: dict[str, list[Any]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in turns:
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            given[name].append(contestants[name]())
    return given


def p1(run: Run) -> list[Line]:
    """One-parameter jobs that wait, against the claim alone and against all peers."""
    jobs = run.sizes.jobs
    rates = in_turns(
        run.turns(),
        {
            "limit": partial(limits.complete_and_claim, run.place.conninfo, jobs),
            "ours": partial(ours.drain, run.place, jobs),
            "limited": partial(
                ours.drain_alone, run.place, ours.Load(jobs, run.place.line_agents(ours.AGENTS) + QUEUE)
            ),
            **{name: partial(run.peers.drain, name, jobs) for name in run.peers.names},
        },
    )
    mine, limit = rates["ours"], rates["limit"]
    peers = {name: _of_all_rounds(rates[name]) for name in run.peers.names}
    what = f"{jobs:,} one-parameter jobs, {ours.AGENTS} agents"
    best = Line("P1", f"{what}: to the best peer", "/s", peer_name=GRAPHILE, against="peer", at_least=1.2)
    rest = [
        of_rates(Line("P1", f"{what}: to {name}", "/s", peer_name=name, against="peer"), mine, peer=peer)
        for name, peer in peers.items()
        if name != GRAPHILE
    ]
    return [
        of_rates(Line("P1", f"{what}: to the claim alone", "/s", against="limit", at_least=0.6), mine, limit),
        of_rates(
            Line("P1", f"{what}, limited: to no limit", "/s", against="limit", at_least=0.7), rates["limited"], mine
        ),
        *(_or_missing(run, line) for line in (of_rates(best, mine, limit, peers[GRAPHILE]), *rest)),
    ]


def p2(run: Run) -> list[Line]:
    """The rows of one query, against agents that get ready lines, and against rows that become lines."""
    expanded, raw, loop = _expansions(run)
    mine = [each.rate for each in expanded]
    what = f"{run.sizes.rows:,} rows of a query, {ours.AGENTS} agents"
    return [
        of_rates(Line("P2", f"{what}: to ready lines", "/s", against="limit", at_least=0.5), mine, raw),
        of_rates(Line("P2", f"{what}: to fetched rows", "/s", against="limit", at_least=0.7), mine, loop),
    ]


def p3(run: Run) -> list[Line]:
    """A job that finds everybody waiting, sample by sample in turn with graphile-worker."""
    rounds = [_latencies(run) for _ in run.turns()]
    lines = []
    for p, at_most in ((50, 0.8), (99, 1.0)):
        mine = [_percentile(own, p) for own, _ in rounds]
        theirs = [_percentile(other, p) for _, other in rounds if other]
        what = f"insert -> agent, {run.sizes.samples} samples: p{p}"
        line = Line("P3", what, "ms", mine, peer=theirs, peer_name=GRAPHILE, against="peer", at_most=at_most)
        lines.append(_or_missing(run, line))
    return lines


def p4(run: Run) -> list[Line]:
    """A daemon that waits."""
    idle = ours.idle(run.place, run.sizes.idle_s)
    what = f"idle, {ours.AGENTS} READY agents, {run.sizes.idle_s:g} s"
    return [
        Line("P4", f"{what}: CPU", "%", [idle.cpu_percent], at_most=0.1),
        Line("P4", f"{what}: wake-ups", "/s", [idle.wakeups], at_most=1.0),
        Line("P4", f"{what}: memory", "MB", [idle.rss_mb], at_most=45.0),
        Line("P4", f"{what}: memory with its guardian (PSS)", "MB", [idle.pss_mb]),
    ]


def p5(run: Run) -> list[Line]:
    """The same query as P2: how soon, and how much memory."""
    expanded, *_ = _expansions(run)
    what = f"{run.sizes.rows:,} rows of a query"
    return [
        Line("P5", f"{what}: first item", "s", [each.first_s for each in expanded], at_most=1.0),
        Line("P5", f"{what}: growth", "MB", [each.growth_mb for each in expanded], at_most=20.0),
    ]


def p6(run: Run) -> list[Line]:
    """Jobs beside a long history, and under a snapshot that somebody holds."""
    return [_beside_history(run), *_under_snapshot(run)]


def p7(run: Run) -> list[Line]:
    """A thousand agents on one machine."""
    many, few, items, watch_s = run.sizes.agents, run.sizes.few, run.sizes.items, run.sizes.watch_s
    crowds = in_turns(
        run.turns(),
        {
            "many": partial(ours.crowd, run.place, many, items, watch_s),
            "few": partial(ours.crowd, run.place, few, items, 0.1),
        },
    )
    rates = {name: [each.rate for each in given] for name, given in crowds.items()}
    what = f"{many:,} agents"
    return [
        Line("P7", f"{what}, idle: CPU", "%", [each.cpu_percent for each in crowds["many"]], at_most=1.0),
        of_rates(
            Line("P7", f"{what}, {items:,} items: to {few} agents", "/s", against="limit", at_least=0.5),
            rates["many"],
            rates["few"],
        ),
    ]


def p8(run: Run) -> list[Line]:
    """A process for every job."""
    count, program = run.sizes.commands, commands.find("true")
    contestants = {
        "limit": partial(commands.bare, run.place.conninfo, [program], count, AT_ONCE),
        "ours": partial(ours.commands, run.place, count, AT_ONCE, program),
    }
    why = commands.why_no_parallel()
    if not why:
        contestants["peer"] = partial(commands.parallel, run.place.conninfo, program, count, AT_ONCE)
    rates = in_turns(run.turns(), contestants)
    mine, limit, peer = rates["ours"], rates["limit"], rates.get("peer", [])
    what = f"{count} exec jobs `true`, {AT_ONCE} at once"
    best = Line("P8", f"{what}: to GNU parallel", "/s", peer_name="GNU parallel", at_least=2.0)
    return [
        of_rates(Line("P8", f"{what}: to bare Popen", "/s", against="limit", at_least=0.7), mine, limit),
        of_rates(replace(best, against="peer" if peer else "", missing=why), mine, limit, peer),
    ]


def p9(run: Run) -> list[Line]:
    """A host over SSH."""
    if why := ssh.why_not():
        return [Line("P9", "a host over SSH", "/s", [], missing=why)]
    agent, starts, lines = list(run.place.agent), run.sizes.far_starts, run.sizes.far_lines
    with ssh.server() as there:
        spans = in_turns(
            run.turns(),
            {
                "limit": partial(ssh.bare_starts, there, agent, starts),
                "ours": partial(ssh.our_starts, there, agent, starts),
            },
        )
        told = {name: [median(each) for each in given] for name, given in spans.items()}
        found = [
            Line(
                "P9",
                "SSH: start over an open connection",
                "ms",
                told["ours"],
                told["limit"],
                against="limit",
                at_most=2.0,
            )
        ]
        for agents, at_least in ((8, 1.0), (1, 0.55)):
            rates = in_turns(
                run.turns(),
                {
                    "limit": partial(ssh.bare_rate, run.place.conninfo, there, agent, agents, lines),
                    "ours": partial(ssh.our_rate, run.place, there, agents, lines),
                    "ahead": partial(ssh.our_rate, run.place, there, agents, lines, window=AHEAD),
                },
            )
            what = f"SSH: {lines:,} lines, {agents} agents"
            bare = Line("P9", f"{what}: to bare paramiko", "/s", against="limit", at_least=at_least)
            ahead = Line("P9", f"{what}, {AHEAD} lines each: to 1", "/s", against="limit")
            found += [of_rates(bare, rates["ours"], rates["limit"]), of_rates(ahead, rates["ahead"], rates["ours"])]
    return found


def p10(run: Run) -> list[Line]:
    """Jobs that a front-end copies into the queue."""
    rows = run.sizes.copied
    rates = in_turns(
        run.turns(),
        {"limit": partial(limits.copy, run.place.conninfo, rows), "ours": partial(ours.copy, run.place, rows)},
    )
    what = f"COPY of {rows:,} rows by drover_frontend"
    return [of_rates(Line("P10", what, "/s", against="limit", at_least=0.4), rates["ours"], rates["limit"])]


def p11(run: Run) -> list[Line]:
    """What people look at, beside many jobs and beside few; in the first round the tables were never analysed."""
    places = {
        "few": people.filled(run.place, "few", *people.FEW),
        "many": people.filled(run.place, "many", run.sizes.past, run.sizes.pending),
    }
    found: dict[str, tuple[list[float], list[float]]] = {}
    with people.beside(places["few"]) as few, people.beside(places["many"]) as many:
        for turn in run.turns():
            if turn == 1:
                places["few"].rest()
                places["many"].rest()
            for what, look in few.looks().items():
                limits_s, ours_s = found.setdefault(what, ([], []))
                limits_s.append(look())
                ours_s.append(many.looks()[what]())
    lines = [_look(what, *seconds) for what, seconds in found.items()]
    slowest = max(lines, key=lambda line: median(line.ours))
    return [*lines, Line("P11", f"the slowest: {slowest.what}", "s", slowest.ours, at_most=1.0)]


def _look(what: str, few: Sequence[float], many: Sequence[float]) -> Line:
    """Return the line of what is looked at: of the tables before they were analysed or after, whichever is worse."""
    lines = [
        Line("P11", what, "s", many[part], few[part], against="limit", at_most=3.0)
        for part in (slice(1), slice(1, None))
        if many[part]
    ]
    return max(lines, key=lambda line: median(line.ratios))


CASES: Final[Mapping[str, Callable[[Run], list[Line]]]] = {
    "P1": p1, "P2": p2, "P3": p3, "P4": p4, "P5": p5, "P6": p6, "P7": p7, "P8": p8, "P9": p9, "P10": p10, "P11": p11,
}  # fmt: skip


@cache
def _expansions(run: Run) -> tuple[list[ours.Expanded], list[Rate], list[Rate]]:
    """Work the rows of P2 and P5: ours, ready lines, fetched rows."""
    rows, agent, conninfo = run.sizes.rows, run.place.agent, run.place.conninfo
    given = in_turns(
        run.turns(),
        {
            "raw": partial(limits.ping_pong, conninfo, agent, ours.AGENTS, rows),
            "fetched": partial(limits.fetch_and_ping_pong, conninfo, agent, ours.AGENTS, rows),
            "ours": partial(ours.expand, run.place, rows, None),
        },
    )
    return given["ours"], given["raw"], given["fetched"]


def _latencies(run: Run) -> tuple[list[float], list[float]]:
    samples = run.sizes.samples
    if not run.peers.has(GRAPHILE):
        return ours.latencies(run.place, samples)
    with run.peers.graphile_serving() as sampler:
        return ours.latencies(run.place, samples, partial(sampler.latency_ms, ours.PAUSE_S))


def _beside_history(run: Run) -> Line:
    sizes = run.sizes
    full = beside.with_history(run.place, sizes.finished, sizes.queued)
    load = ours.Load(sizes.jobs, run.place.line_agents(ours.AGENTS))
    rates = in_turns(
        run.turns(),
        {"empty": partial(ours.drain_alone, run.place, load), "full": partial(ours.drain_beside, full, load)},
    )
    what = f"{sizes.jobs:,} jobs beside {sizes.finished:,} finished, {sizes.queued:,} queued"
    return of_rates(Line("P6", what, "/s", against="limit", at_least=0.9), rates["full"], rates["empty"])


def _under_snapshot(run: Run) -> list[Line]:
    seconds = run.sizes.snapshot_s
    rates = in_turns(
        run.turns(),
        {
            "free": partial(beside.sustained, run.place, seconds, beside.nobody),
            "held": partial(beside.sustained, run.place, seconds, beside.snapshot),
        },
    )
    what = f"{seconds:g} s under a snapshot"
    held, free = rates["held"], rates["free"]
    return [
        of_rates(
            Line("P6", what, "/s", against="limit", at_least=0.7), [r.whole for r in held], [r.whole for r in free]
        ),
        Line("P6", f"{what}: its last tenth", "/s", [r.end for r in held], [r.end for r in free], against="limit"),
    ]


def _of_all_rounds(given: Sequence[Rate | None]) -> list[Rate]:
    """Return the rates of all rounds, or none of a contestant that failed in one."""
    rates = [rate for rate in given if rate is not None]
    return rates if len(rates) == len(given) else []


def _or_missing(run: Run, line: Line) -> Line:
    """Return the line, or that its peer is missing, and why."""
    if line.peer:
        return line
    return replace(line, against="", missing=run.peers.missing[line.peer_name])


def _percentile(values: Sequence[float], p: int) -> float:
    return quantiles(values, n=100, method="inclusive")[p - 1]
