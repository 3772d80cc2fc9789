"""Planted faults in the statements and in what follows from a lost connection; the product has no hooks for them.

Each is a small edit, made while a daemon starts, and the steps of the walk of which one must bring it out: if none
does, the walk is too kind. `plant` is called by the launcher.
"""

import sys
from typing import Final, NamedTuple

from scheduler.package_data import schema_dir
from tests.faults.failpoints import parse
from tests.faults.walk import Step
from tests.sim.mutants import Finder, Patch
from tests.sim.mutants import Mutant as Patched

FORMS: Final = {"end_and_claim": ("end_and_claim", "only_end", "only_claim")}  # queries that go by one name


class Edit(NamedTuple):
    """In this query, and in each that goes by its name, this text becomes that one, wherever it stands."""

    query: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A fault by name, where it is, and what brings it out."""

    name: str
    edits: tuple[Edit, ...]
    patches: tuple[Patch, ...]
    path: tuple[Step, ...]


def _sql(name: str, path: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(Edit(*edit) for edit in edits), (), _steps(path))


def _python(name: str, path: str, module: str, old: str, new: str) -> Mutant:
    return Mutant(name, (), (Patch(module, old, new),), _steps(path))


def _steps(path: str) -> tuple[Step, ...]:
    """Read `name:when=action@n` words."""
    found = [point for word in path.split() for point in parse(word)]
    return tuple(Step(point.name, point.when, point.action, point.left) for point in found)


OWNED: Final = (  # what fragment is_in_hand asks of a row, but for the states of one that says so
    "(j.jq_state = 'queued' and j.jq_attempt = u.attempt - 1 and j.jq_type <> 'command'"
    " and exists (select from ownership)\n"
    " or j.jq_owner = :owner::uuid and j.jq_attempt = u.attempt and ("
)
MUTANTS: Final = (
    _sql("end_and_claim_guards_the_state_only", " ".join(f"end_and_claim:before=stop@{n}" for n in (3, 4, 5, 6, 7)),
         ("end_and_claim", OWNED, "(j.jq_state = 'queued' or (")),
    _sql("end_and_claim_guards_no_attempt", " ".join(f"end_and_claim:before=stop@{n}" for n in (3, 4, 5, 6, 7)),
         ("end_and_claim", "and j.jq_attempt = u.attempt - 1 and", "and"),
         ("end_and_claim", "and j.jq_attempt = u.attempt and", "and")),
    _sql("save_guards_the_state_only", " ".join(f"save:before=stop@{n}" for n in (1, 2, 3, 4, 2, 3, 4)),
         ("save", OWNED, "(j.jq_state = 'queued' or (")),
    _sql("mark_guards_the_state_only", "mark:before=stop mark:before=stop",
         ("mark", OWNED, "(j.jq_state = 'queued' or (")),
    _sql("claim_without_owning_the_group", "end_and_claim:before=stop take_lease:after=stop end_and_claim:before=stop",
         ("end_and_claim", " and group_owner = :owner::uuid", "")),
    _sql("rescue_without_owning_the_group", "rescue:before=stop rescue:before=stop rescue:before=stop",
         ("rescue", "and group_owner = :owner::uuid", "")),
    _sql("claims_are_not_noted", "end_and_claim:after=kill@2 end_and_claim:after=kill@3 end_and_claim:after=kill@4",
         ("end_and_claim", "from claimed having count(*) > 0)", "from claimed having false)")),
    _sql("a_claim_counts_no_attempt", "end_and_claim:after=kill end_and_claim:after=kill",
         ("end_and_claim", "jq_attempt = jq_attempt + 1", "jq_attempt = greatest(jq_attempt, 1)"),
         ("end_and_claim", "jq_attempt + 1 as", "greatest(jq_attempt, 1) as")),
    _python("requests_in_flight_are_forgotten_with_the_connection",
            " ".join(f"end_and_claim:before=error@{n}" for n in range(3, 21, 3)),
            "scheduler.policy.outbox", "            self.repeats.appendleft(request)\n", "            pass\n"),
    _sql("rows_are_not_compared_after_a_loss", " ".join(f"end_and_claim:after=error@{n}" for n in range(2, 18, 3)),
         ("rescue", "not jq_pk = any (:live::bigint[])", "false")),
)  # fmt: skip


class Schema(NamedTuple):
    """Stands for the directory of queries.sql, and for the file."""

    text: str

    def __truediv__(self, name: str) -> "Schema":
        return self

    def read_text(self) -> str:
        return self.text


def plant(name: str) -> None:
    """Change what is loaded from now on."""
    (mutant,) = (each for each in MUTANTS if each.name == name)
    sys.meta_path.insert(0, Finder(Patched(name, (), mutant.patches)))
    import scheduler.daemon.wiring as daemon
    from scheduler.drivers.statements import expand

    schema = Schema(edited(expand((schema_dir() / "queries.sql").read_text()), mutant))
    daemon.schema_dir = lambda: schema  # type: ignore[attr-defined]


def edited(text: str, mutant: Mutant) -> str:
    """Return queries.sql with the fault. Errors: SystemExit if a query does not have the text."""
    for edit in mutant.edits:
        parts = text.split("-- name: ")
        chosen = [n for n, part in enumerate(parts) if _name_of(part) in forms_of(edit.query) and edit.old in part]
        if not chosen:
            raise SystemExit(f"{edit.query} has no {edit.old!r}")
        for n in chosen:
            parts[n] = parts[n].replace(edit.old, edit.new)
        text = "-- name: ".join(parts)
    return text


def forms_of(query: str) -> tuple[str, ...]:
    """Return the blocks of queries.sql that go by this name."""
    return FORMS.get(query, (query,))


def _name_of(part: str) -> str:
    return part.partition("\n")[0]
