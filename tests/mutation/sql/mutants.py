"""Make the mutants of the SQL: an object of the schema, a grant or a statement with one small fault."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.mutation.sql import objects
from tests.mutation.sql.objects import Object
from tests.mutation.sql.operators import edits
from tests.mutation.sql.tokens import tokens

CONTEXT: Final = 40  # characters that are shown on each side of a change


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. `sql` puts it into a database; `text` is that of a block of queries.sql."""

    object: str
    kind: str
    name: str  # the object and the changed text, the same while these are
    sql: str = ""
    text: str = ""
    table: str = ""  # of a trigger or a constraint

    @property
    def uses(self) -> list[str]:
        """Return what a test must use to meet the fault: the function of a trigger rather than its table.

        What roles may do is also read from the catalog, which names no object.
        """
        if self.kind == "grant":
            return [self.object, objects.ROLES_FILE]
        function = re.search(r"EXECUTE FUNCTION (drover\.\w+)", self.sql)
        return [*([function[1]] if function else []), self.table or self.object]


def all_of_them() -> list[Mutant]:
    """Return all mutants of schema.sql, roles.sql and queries.sql."""
    made = [each for thing in (*objects.of_schema(), *objects.of_queries()) for each in of_object(thing)]
    made += [Mutant(each.object, "grant", f"{each.object}: {each.label}", each.sql) for each in objects.grants()]
    return list(_named_apart(made))


def of_object(thing: Object) -> Iterator[Mutant]:
    """Yield the mutants of an object."""
    found = tokens(thing.text, thing.start, thing.end)
    if thing.options:
        yield _changed(thing, thing.text.index(thing.options), len(thing.options), "")
    for edit in edits(found):
        start, end = found[edit.first].start, found[edit.end - 1].end
        yield _changed(thing, start, end - start, edit.text)
    if thing.table:
        left_out = thing.sql.partition(";")[0]
        yield Mutant(thing.name, thing.kind, f"{thing.name}: left out", left_out, table=thing.table)


def _changed(thing: Object, start: int, length: int, new: str) -> Mutant:
    before, old, after = thing.text[:start], thing.text[start : start + length], thing.text[start + length :]
    text = f"{before} {new} {after}" if new else f"{before} {after}"
    left, right = _line(before[-10 * CONTEXT :])[-CONTEXT:], _line(after[: 10 * CONTEXT])[:CONTEXT]
    name = f"{thing.name}: {left}[{_line(old)} -> {new}]{right}"
    if thing.kind == "query":
        return Mutant(thing.name, thing.kind, name, text=text)
    return Mutant(thing.name, thing.kind, name, thing.sql.replace("{}", text), table=thing.table)


def _line(text: str) -> str:
    return " ".join(text.split())


def _named_apart(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Number those whose names are equal."""
    seen = Counter[str]()
    for each in mutants:
        seen[each.name] += 1
        name = each.name if seen[each.name] == 1 else f"{each.name} ({seen[each.name]})"
        yield Mutant(each.object, each.kind, name, each.sql, each.text, each.table)
