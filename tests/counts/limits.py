"""The limits of what is counted: limits.toml, one table a figure. A limit moves with a reason only.

measure   which measure gives it (measures.py)
targets   what asks for it: targets of performance and requirements
what      one sentence
limit     more than this fails
floor     less than this part of the limit fails too: then the limit is to be tightened. 0 where the figure depends
          on how fast the machine is: such a limit only keeps the worst out
margin    how far the limit stands from what was measured when it was set
measured  what it was when it was last written, and `on` which day
reason    why the limit is what it is
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("limits.toml")
HEAD: Final = """\
# What may be counted at most; limits.py tells what the keys mean. To look: `python -m tests.counts`. After a change
# that is worth its price, or that makes something cheaper: `python -m tests.counts --write "the reason"`.
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """What is known of a figure; the fields are the keys of its table."""

    measure: str
    targets: list[str]
    what: str
    limit: float
    floor: float
    margin: float
    measured: float
    on: date
    reason: str


def read(path: Path = FILE) -> dict[str, Limit]:
    """Return the limits by the name of their figure."""
    return {name: Limit(**keys) for name, keys in tomllib.loads(path.read_text()).items()}


def write(limits: Mapping[str, Limit], path: Path = FILE) -> None:
    """Write them all."""
    path.write_text(HEAD + "".join(f"\n[{name}]\n{_table(limit)}" for name, limit in limits.items()))


def verdict(name: str, limit: Limit, figure: float) -> str:
    """Return what is wrong with a figure; nothing when nothing is."""
    if figure > limit.limit:
        return (
            f"{name} is {figure:.5g}, and may be {limit.limit:g}: {limit.what} costs more than it did"
            f' ({limit.measured:g}). Make it cheaper, or: python -m tests.counts --write "why it is worth that"'
        )
    if figure < limit.floor * limit.limit:
        return (
            f"{name} is {figure:.5g}, far below its limit {limit.limit:g}: {limit.what} has become cheaper. Keep it so:"
            f' python -m tests.counts --write "what made it cheaper"'
        )
    return ""


def renewed(name: str, limit: Limit, figure: float, reason: str, today: date) -> Limit:
    """Return the limit with what was measured now; with a reason, a limit that does not hold any more moves."""
    measured = _rounded(figure)
    if measured != limit.measured:
        limit = replace(limit, measured=measured, on=today)
    if reason and verdict(name, limit, figure):
        limit = replace(limit, limit=_above(figure * (1 + limit.margin)), reason=reason)
    return limit


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _above(value: float) -> float:
    """Return three digits that are no less."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.3g}")


def _table(limit: Limit) -> str:
    return "".join(f"{field.name} = {_value(getattr(limit, field.name))}\n" for field in fields(limit))


def _value(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else json.dumps(value)
