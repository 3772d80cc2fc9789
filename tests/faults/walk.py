"""A walk along failpoints, with two daemons on one database: one fails at its point, the next is there to take over.

Each daemon is armed with one point and becomes the one that serves when the one before it has failed; so every step
costs one start. One that was stopped wakes up after another has its work, and must not do any harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM
from typing import Any

from scheduler.drivers.statements import load
from scheduler.package_data import schema_dir
from tests.faults.failpoints import LOGGED, WRITES
from tests.faults.site import Site
from tests.integration.daemon import Daemon, agent

# A stopped daemon's large answer: test_daemons.py. The other two go by the name of end_and_claim.
SHOWN_ELSEWHERE = frozenset(("end_holder", "only_end", "only_claim"))
STDIN_JOBS = frozenset(("next_job_number", "insert_stdin_job", "read_stdin_ends"))  # of `drover run -I`
NAMED = tuple(name for name in load((schema_dir() / "queries.sql").read_text()) if name not in SHOWN_ELSEWHERE)
UNNAMED = (
    "queue.select", "queue.set", "watch.select", "watch.listen", "watch.set",
    "expansion.select", "expansion.set", "expansion.begin", "expansion.declare", "expansion.commit", "expansion.move",
    "expansion.fetch", "expansion.rollback", "expansion.discard",
    "agentdb.select", "agentdb.set", "agentdb.insert", "agentdb.rollback", "agentdb.discard",
)  # fmt: skip
POINTS = (*NAMED, *UNNAMED, "line.note", *sorted(WRITES))
OFTEN = {"end_and_claim": 3, "write": 4, "renew_lease": 2, "show_status": 2, "expansion.fetch": 2}
FAR = '[hosts.far]\ntransport = "ssh"\naddress = "127.0.0.1:1"\n' + agent(  # nobody is there
    "lost", ["true"], kind="exec", hosts=["far"], on_start_failure="fail"
)
LOSES = "end_and_claim:after=error@2"
AFTER_LOSS = frozenset(("end_backend", "find_lost"))  # of the queue's connection
AGAIN = "again:0.7"  # one that wakes finds what it was about to write in the hands of another
STANDING = ("standing by", "serving group")
WORKED = "select exists (select from faults.move where daemon = %s and state = 'claimed')"
RENEWED = "select group_lease_until > now() from drover.scheduler_group"


@dataclass(frozen=True, slots=True)
class Step:
    """A point, when, and what happens there."""

    name: str
    when: str
    action: str
    nth: int = 0  # 0 is what OFTEN says

    @property
    def armed(self) -> str:
        """Return the variable's text."""
        point = f"{self.name}:{self.when}={self.action}@{self.nth or OFTEN.get(self.name, 1)}"
        return f"{LOSES},{point}" if self.name in AFTER_LOSS else point

    @property
    def said(self) -> str:
        """Return what the daemon logs there."""
        return f"{LOGGED} {self.name}:{self.when}: {self.action}"


def steps(action: str, names: Sequence[str] = POINTS) -> list[Step]:
    """Return a step before and one after each of the points."""
    path = [Step(name, when, action) for name in names for when in ("before", "after")]
    return path + [Step("end_and_claim", when, action, nth) for nth in (2, 5, 7) for when in ("before", "after")]


def walk(site: Site, path: Sequence[Step], **options: Any) -> None:
    """Take the steps; at the end a daemon without a point serves."""
    site.has_detached = True
    daemon = _start(site, path[0], options)
    site.until(lambda: site.owner or has_come(daemon, path[0]), "the first daemon does not serve")
    for step, following in zip(path, [*path[1:], None], strict=True):
        _serve(site, daemon, step)  # before another starts, which would take the group at once
        heir = _start(site, following, options) if following else site.start(**options)
        _stand_by(site, heir, following)
        site.submit(again=AGAIN if step.action == "stop" else "")
        site.order()
        _come_to(site, daemon, step)
        _fail(site, daemon, heir, step, following)
        site.cancel_lost()
        daemon = heir


def suffer(site: Site, path: Sequence[Step], **options: Any) -> None:
    """Let one daemon live through errors at each of the points."""
    site.has_detached = True
    site.submit(plain=60)  # before it: a daemon without jobs would pass points that are meant for claims
    daemon = site.serving(points=",".join(step.armed for step in path), **options)
    for step in path:
        _come_to(site, daemon, step)


def has_come(daemon: Daemon, step: Step | None) -> bool:
    """Return whether a daemon has reached its point."""
    return step is not None and step.said in daemon.stderr()


def _start(site: Site, step: Step, options: dict[str, Any]) -> Daemon:
    if step.name in STDIN_JOBS:
        line = f"line | {step.name}-{step.when} nap:1.5\n".encode()  # it is looked at while it is open
        return site.start(step.armed, options=["-I"], stdin=line, metered=False, **options)
    if step.name in ("show_hosts", "stop_unstartable"):
        options = {**options, "config": FAR + site.types(f"d{len(site.daemons) + 1}")}
    return site.start(step.armed, metered=False, **options)


def _stand_by(site: Site, heir: Daemon, step: Step | None) -> None:
    def stands() -> bool:
        assert heir.process.poll() is None or has_come(heir, step), f"it ended at once:\n{heir.stderr()}"
        return has_come(heir, step) or any(words in heir.stderr() for words in STANDING)

    site.until(stands, "the second daemon does not stand by")


def _serve(site: Site, daemon: Daemon, step: Step) -> None:
    site.until(lambda: "serving group" in daemon.stderr() or has_come(daemon, step), "it does not serve")


def _come_to(site: Site, daemon: Daemon, step: Step) -> None:
    if step.name == "unregister":
        site.until(lambda: "serving group" in daemon.stderr(), "it does not serve")
        daemon.signal(SIGTERM)
    if step.name == "may_step_down":
        site.step_down()
    if step.name == "check_now":
        site.limit_jobs()
    if step.name == "stop_unstartable":
        site.lose_job()
    with site.locks() as lock_more:

        def comes() -> bool:
            site.end_victims()
            if step.name == "find_locked":
                lock_more()
            return has_come(daemon, step)

        site.until(comes, f"nobody comes to {step.name}:{step.when}")


def _fail(site: Site, daemon: Daemon, heir: Daemon, step: Step, following: Step | None) -> None:
    if step.action == "kill":
        assert daemon.wait_exit() == -SIGKILL
        return
    site.until(lambda: _state(daemon) == "T", "it is not stopped")
    name = site.name(heir)
    site.until(lambda: site.owner == name or has_come(heir, following), "nobody takes over")
    site.submit(again=AGAIN)
    site.until(lambda: site.value(WORKED, name) or has_come(heir, following), "the heir does nothing")
    daemon.signal(SIGCONT)
    site.until(lambda: _is_awake(site, daemon), "it does not come to itself")
    daemon.kill()


def _is_awake(site: Site, daemon: Daemon) -> bool:
    """Return whether a daemon that was stopped knows its state by now: disowned, the owner, or at its end."""
    said = daemon.stderr().rpartition(LOGGED)[2]
    is_owner = site.owner == site.name(daemon) and site.value(RENEWED)
    return is_owner or daemon.process.poll() is not None or any(words in said for words in (*STANDING, "ended"))


def _state(daemon: Daemon) -> str:
    return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0]
