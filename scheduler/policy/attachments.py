"""The state of the detached jobs of this daemon: which wait for a process to be attached, and which slots have one."""

from scheduler.model.events_and_effects import Keeper, Spawn
from scheduler.model.protocol import Item
from scheduler.model.queue_requests import Adoption
from scheduler.policy.job import Job
from scheduler.policy.slots import Slot

REMOTE_SPOOL = "~/.local/share/drover/spool"


class Attachments:
    """The detached jobs of this daemon, and the slots whose process is attached to one."""

    def __init__(self) -> None:
        self.site = ""
        self.local_spool = REMOTE_SPOOL  # until the daemon says where
        self.beginning: dict[Slot, Spawn] = {}  # to be started once their row says where
        self.waiting: dict[int, tuple[Job, Item, Adoption]] = {}  # adopted, and no process of ours is attached yet
        self.attached: dict[Slot, Keeper] = {}
        self.first_lines: dict[Slot, bytes] = {}  # what came of the first line of attached processes, until it is whole

    @property
    def is_busy(self) -> bool:
        """Return whether a process is to be started, or is attached, or is to be."""
        return bool(self.beginning or self.waiting or self.attached)

    def learn(self, site: str, local_spool: str) -> None:
        """Note which database this is, and where the spool of this machine is."""
        self.site, self.local_spool = site, local_spool

    def begin(self, slot: Slot, spawn: Spawn) -> None:
        """Start the process of a slot when the row of its job says so."""
        self.beginning[slot] = spawn

    def attach(self, slot: Slot, keeper: Keeper) -> None:
        """Note that a slot has the process of a detached job."""
        self.attached[slot] = keeper
        self.first_lines[slot] = b""

    def detach(self, slot: Slot) -> Keeper | None:
        """Forget the process of a slot; return how it came by its job, None if it was not attached to any."""
        self.first_lines.pop(slot, None)
        return self.attached.pop(slot, None)

    def take_first_line(self, slot: Slot, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the first line of an attached process and what came behind it, once it is whole; else None."""
        line, newline, rest = (self.first_lines[slot] + data).partition(b"\n")
        if not newline:
            self.first_lines[slot] = line
            return None
        del self.first_lines[slot]
        return line, rest

    def wait(self, job: Job, item: Item, adoption: Adoption) -> None:
        """Let an adopted job wait for a slot on its host."""
        self.waiting[job.pk] = (job, item, adoption)

    def forget(self, pk: int) -> None:
        """Note that a job is not ours any more, or has ended."""
        self.waiting.pop(pk, None)
