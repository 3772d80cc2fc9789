"""Finds detached jobs that are to be adopted, and has hosts end and remove what no job is for any more.

What hosts keep is listed in drover.detached until they have removed it. A host that cannot be reached now is asked
again later. At the first time after a take-over each host with a detached type says what it keeps at all: what the
database knows nothing of, such as after it was restored from a backup, is ended too.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final

from scheduler.daemon.command_rows import Ask, text_of
from scheduler.daemon.log import log_line
from scheduler.drivers.host_scripts import HostScripts
from scheduler.drivers.keeper_scripts import release_words
from scheduler.drivers.loop import Steps
from scheduler.model.config import Config
from scheduler.model.events_and_effects import Adopted
from scheduler.model.queue_requests import SUSPECT_AFTER, Adoption, Cells, ClaimRequest, read_claim
from scheduler.policy.attachments import REMOTE_SPOOL
from scheduler.policy.core import Core

AGAIN_S: Final = 15.0  # until a host that could not do it is asked again
ENTRY: Final = re.compile(rb"([0-9]{1,19})\.([0-9]{1,10})")
MOST: Final = (1 << 63) - 1, (1 << 31) - 1  # what the columns of the database hold
Entry = tuple[int, int]  # job and attempt
Place = tuple[str, str]  # host and spool


def local_spool() -> str:
    """Return the spool of this machine, if the configuration names none."""
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return f"{state}/spool" if state else REMOTE_SPOOL


def spool_of(config: Config, host: str) -> str:
    """Return where jobs that begin on a host are kept."""
    settings = config.hosts[host]
    return settings.spool or (REMOTE_SPOOL if settings.is_remote else local_spool())


def read_entries(printed: bytes) -> set[Entry]:
    """Return the names of entries that a host has printed, one a line; all else is not for us."""
    found = [match for line in printed.split(b"\n") if (match := ENTRY.fullmatch(line))]
    entries = {(int(match[1]), int(match[2])) for match in found}
    return {(job, attempt) for job, attempt in entries if job <= MOST[0] and attempt <= MOST[1]}


def read_adoption(cells: Cells) -> Adoption:
    """Return what a row of query `adopt` says."""
    pk, attempt, args, rank, more, type, queue, at, host, spool, turn, wanted, began = cells
    request = ClaimRequest(text_of(type), text_of(queue), text_of(at), False, 1)
    claim = read_claim((pk, attempt, b"1", args, rank, more, b"t"), [request])
    return Adoption(claim, text_of(host), text_of(spool), int(turn or 0), text_of(wanted), float(began or 0))


class DetachedJobs:
    """The detached jobs of the group that are not in hand; `ask` runs a query on the watch connection."""

    def __init__(self, core: Core, now: Callable[[], float], ask: Ask, scripts: HostScripts, schedinfo: str) -> None:
        self._core, self._now, self._ask, self._scripts, self._schedinfo = core, now, ask, scripts, schedinfo
        self._site = ""
        self._busy: set[Place] = set()
        self._asked: set[Place] = set()  # what they keep at all since the group was taken over, and that is dealt with
        self._removed: list[Entry] = []
        self._left: dict[Entry, Place] = {}  # entries that hosts keep, as they said

    def begin(self) -> None:
        """Forget what is known: the group was taken over."""
        self._asked.clear()

    def adopt(self) -> Steps[None]:
        """Take in hand what runs and is not in hand: of another owner, or ours when the core was asked what is."""
        (site, before), *_ = yield from self._ask("read_site")
        self._site = text_of(site)
        types = self._types(self._core.config)
        jobs: list[Adoption] = []
        if types:
            live, unread = self._core.live_rows(), SUSPECT_AFTER
            rows = yield from self._ask(
                "adopt",
                live=live,
                before=text_of(before),
                types=types,
                guarded=[],
                unread=unread,
                schedinfo=self._schedinfo,
            )
            jobs = [read_adoption(row) for row in rows]
        self._core.handle(Adopted(self._site, local_spool(), jobs), self._now())

    def release(self) -> Steps[bool]:
        """Have hosts end and remove what no job is for; return whether something is left to do."""
        wanted = yield from self._forget_removed()
        for host, spool, pk, attempt in (yield from self._ask("read_kept")):
            wanted[text_of(host), text_of(spool)].append((int(pk or 0), int(attempt or 0)))
        config = self._core.config
        for name in dict.fromkeys(at for type in self._types(config) for at in config.hosts_of(type)):
            place = name, spool_of(config, name)
            if place not in self._asked:
                wanted.setdefault(place, [])
        for place, entries in wanted.items():
            self._send(place, entries, config)
        return bool(wanted)

    def _forget_removed(self) -> Steps[dict[Place, list[Entry]]]:
        """Forget what hosts have removed; return what they keep though no row is for it.

        A host is asked again what it keeps until it has removed that: this statement may fail, or the script there.
        """
        removed, self._removed = self._removed, []
        left, self._left = self._left, {}
        strays: dict[Place, list[Entry]] = defaultdict(list)
        if removed or left:
            dealt_with = self._asked.intersection(left.values())
            self._asked -= dealt_with
            rows = yield from self._ask(
                "forget_kept", pks=[pk for pk, _ in removed], attempts=[attempt for _, attempt in removed],
                left_pks=[pk for pk, _ in left], left_attempts=[attempt for _, attempt in left],
            )  # fmt: skip
            for pk, attempt in rows:
                entry = int(pk or 0), int(attempt or 0)
                strays[left[entry]].append(entry)
            self._asked |= dealt_with - set(strays)
        return strays

    def _send(self, place: Place, entries: list[Entry], config: Config) -> None:
        name, spool = place
        types = [each for each in self._types(config) if name in config.hosts_of(each)] or self._types(config)
        host = self._core.state.hosts.get(name)
        if place in self._busy or not types or name not in config.hosts or host is None or not host.is_up:
            return
        self._busy.add(place)
        words = release_words(spool, self._site, entries, max(1, round(config.scheduler.kill_grace)))
        self._scripts.run(types[0], name, words, partial(self._done, place, entries))

    def _done(self, place: Place, entries: list[Entry], code: int | None, printed: bytes) -> None:
        self._busy.discard(place)
        if code not in (0, 1):
            log_line("debug", f"host {place[0]}: its spool could not be cleaned now")
            return
        if code == 0:
            self._asked.add(place)
        kept = read_entries(printed)
        self._removed += [entry for entry in entries if entry not in kept]
        self._left |= dict.fromkeys(kept - set(entries), place)

    @property
    def has_news(self) -> bool:
        """Return whether a host has answered since `release` was run."""
        return bool(self._removed or self._left)

    def _types(self, config: Config) -> list[str]:
        return [name for name, agent in config.agents.items() if agent.detached]
