"""What the daemon shows of itself, kept as the tables keep it: it is what the core knows, whenever it was shown."""

from typing import TYPE_CHECKING, Any, Final

from scheduler.model.states import ST_READY
from scheduler.policy.reload import changes
from tests.sim.broken import broken

if TYPE_CHECKING:
    from scheduler.model.config import Config
    from tests.sim.harness import Daemon
    from tests.sim.world import Sim

EVERY: Final = 7  # steps


class Shown:
    """The rows that one daemon has shown: of slots, of hosts and of starts of queues with a rate limit."""

    def __init__(self) -> None:
        self.slots: dict[int, dict[str, Any]] = {}
        self.hosts: dict[str, dict[str, Any]] = {}

    def look(self, daemon: "Daemon") -> None:
        """Show what has changed, as daemon/periodic_tasks.py does; now and then that does not arrive."""
        sim, report = daemon.sim, daemon.core.report
        rows, gone = report.take_changed_slots(sim.now)
        if not self.slots:  # the first time
            rows = report.all_slots(sim.now)
        self.slots |= {row["slot"]: row for row in rows}
        for number in gone:
            self.slots.pop(number, None)
        self.hosts |= {row["name"]: row for row in report.take_changed_hosts(sim.now)}
        if report.has_rate_changes:
            self._show_starts(daemon)
        _read_all(daemon)
        status_is_true(daemon, self)

    def _show_starts(self, daemon: "Daemon") -> None:
        sim, rows = daemon.sim, daemon.core.report.take_changed_rates(daemon.sim.now)
        if sim.chance(0.1):
            daemon.core.report.show_rates_again({row["queue"] for row in rows})
            return
        for row in rows:
            sim.shown_starts[row["queue"], row["value"]] = [sim.now - age for age in row["ages"]]


def _read_all(daemon: "Daemon") -> None:
    """Read what people ask for: none of it fails, whatever state the core is in."""
    sim, report = daemon.sim, daemon.core.report
    report.scheduler_row(1, report.phase("serving"), 0.0, {}, {})
    report.agent_rows(sim.now)
    if sim.chance(0.1):
        report.show_hosts_again()
        report.take_counted()
        report.summary()
        report.overview()
        report.queries()
        report.in_short()
        report.alive()
        report.agents_at_work(host="alpha", kind="sha")
        daemon.core.rate_text("light")
        daemon.core.slots_that_came_up()


def status_is_true(daemon: "Daemon", shown: Shown) -> None:
    """Each slot is shown as it is, and none that is gone; so is each host (nothing is forgotten that is shown)."""
    state = daemon.core.state
    for slot in state.slots.all:
        row = shown.slots.get(slot.number)
        if slot.is_vacant:
            if row is not None:
                broken("status_is_true", f"slot {slot.number} is gone, and is shown as {row}")
            continue
        look = None if row is None else (min(row["state"], ST_READY), row["pid"])  # moves above are shown later
        if row is not None and look != (min(slot.state, ST_READY), slot.pid):
            broken("status_is_true", f"slot {slot.number} is {slot.look}, and is shown as {look}")
        if row is None or (row["agent"], row["host"]) != (slot.pool.name, slot.host.name):
            broken("status_is_true", f"slot {slot.number} of {slot.pool.name} is shown as {row}")
    for name, row in shown.hosts.items():
        host = state.hosts[name]
        if host.is_up != (row["seconds"] is None):
            broken("status_is_true", f"host {name} is up: {host.is_up}, and is shown as {row}")


def show(sim: "Sim") -> None:
    """Let the daemon show what has changed, every few steps."""
    daemon = sim.daemon
    if sim.features and sim.steps % EVERY == 0 and daemon.is_alive:
        daemon.shown.look(daemon)


def tell_changes(old: "Config", new: "Config") -> None:
    """Tell what a reload changes, as the log does."""
    if not changes(old, new):
        broken("status_is_true", "a reload says nothing of what it changes")
