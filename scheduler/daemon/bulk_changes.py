"""Commands about all jobs that a filter finds: a batch of jobs at a time, each a transaction and a turn of the loop.

The database chooses the jobs of a batch and changes them (drover.change_jobs), and keeps in the row of the command how
far it is, so that another daemon goes on there. Claims do not wait for it: both skip what is locked. Jobs in hand of
ours are ended by the core, as by a command about one job. The row of the command counts them when their rows say so;
the core knows which had ended by themselves, and these do not count. Jobs in hand of another group are ended by its
daemon, which gets a command about each: they are not counted as done.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from scheduler.daemon.command_rows import AGAIN_S, CommandRow, Context, Done, Later, Outcome, text_of
from scheduler.drivers.loop import Steps
from scheduler.drivers.statement_runner import RefusedError, cause_of
from scheduler.model.verbs import Command

MOST: Final = 1000  # jobs of a batch
PAUSE_S: Final = 0.01  # between two batches, for claims and the lease
LEAST: Final = 200  # however slow the server is
LONG_S: Final = 0.2  # a batch that took longer is followed by a smaller one


@dataclass(slots=True)
class Batches:
    """How far a command is, for the next batch."""

    most: int = MOST
    so_far: str = ""
    gone: int = 0  # jobs in hand that had ended by themselves
    coming: dict[int, object] = field(
        default_factory=dict
    )  # jobs that the core does not know yet, and what brings them

    def __str__(self) -> str:
        return self.so_far


def change_all(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Carry out a batch."""
    batches = row.progress if isinstance(row.progress, Batches) else Batches()
    began = context.now()
    try:
        rows = yield from context.ask("change_jobs", command=row.pk, most=batches.most)
    except RefusedError as error:
        if batches.most == 1 or cause_of(error.failure) == "again":
            raise
        batches.most = max(1, batches.most // 10)  # until the job that is refused is alone
        return Later(AGAIN_S, batches, has_moved=True)
    if not rows:
        return Later(progress=batches)
    is_over, has_moved, done, refused, reasons, parents, ours, told, given, mistake = rows[0]
    if mistake is not None:
        return Done(text_of(mistake), ok=False)
    is_slow = context.now() - began > LONG_S
    batches.most = max(min(batches.most, LEAST), batches.most // 2) if is_slow else min(MOST, batches.most * 2)
    context.settle_listed(parents)
    bringing = context.core.claim_under_way
    batches.coming |= {int(pk): bringing for pk in (ours or b"").split(b",") if pk}
    _end_jobs(context, batches, row.ending, is_kill=command.verb == "killjob")
    changed = int(done or 0) + int(told or 0) - batches.gone
    batches.so_far = f"{changed} jobs so far"
    if is_over != b"t" or batches.coming:
        return Later(PAUSE_S if has_moved == b"t" else AGAIN_S, batches, has_moved == b"t")
    return _end(command, changed, int(refused or 0), reasons, given)


def _end_jobs(context: Context, batches: Batches, text: str, *, is_kill: bool) -> None:
    """Have the core end jobs that we have in hand; their rows say so by now.

    One that the core does not know has ended by itself, unless the answer to a claim is still to bring it.
    """
    for pk, bringing in list(batches.coming.items()):
        core, now = context.core, context.now()
        is_ended = core.kill(pk, text, now) if is_kill else core.cancel(pk, text, now)
        if is_ended or bringing is None or bringing is not core.claim_under_way:
            batches.gone += not is_ended
            del batches.coming[pk]


def _end(command: Command, done: int, refused: int, reasons: bytes | None, given: bytes | None) -> Done:
    others = json.loads(given or b"{}")
    text = f"{command.verb}: {done} {'job' if done == 1 else 'jobs'}" + (f", {refused} refused" if refused else "")
    text += "".join(f", {jobs} given to the scheduler of group {group}" for group, jobs in sorted(others.items()))
    result = {"jobs": done, "refused": refused, "reasons": json.loads(reasons or b"{}"), "given": others}
    return Done(text, result, ok=not refused or done > 0)
