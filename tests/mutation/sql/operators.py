"""The small faults that are made in SQL: each operator yields edits of a text, found by its tokens."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.mutation.sql.tokens import ENDS, Token, closing, operand_after, operand_before

SWAPPED: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=",
    "and": "or", "or": "and", "true": "false", "false": "true",
    "min": "max", "max": "min", "greatest": "least", "least": "greatest", "bool_or": "bool_and", "bool_and": "bool_or",
}  # fmt: skip
IS_TIME: Final = re.compile(
    r"(\w+\.)?\w*(_at|_until|_since|time|_queued|_next|_last|_start|_before|_after|_updated|_registered)$"
)
AROUND_TIME: Final = frozenset(("<", "<=", ">", ">=", "+", "-"))
HEADS: Final = frozenset(("where", "on", "when", "having", "if", "elsif", "("))
OPTIONS: Final = frozenset(("errcode", "hint", "detail", "message"))  # `=` is no comparison behind these


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the tokens from `first` to before `end`."""

    first: int
    end: int
    text: str


def edits(found: list[Token]) -> Iterator[Edit]:
    """Yield all faults of a text, in its order; none in an error message, which people read."""
    is_message = False
    for at, token in enumerate(found):
        is_message = token.text == "raise" or (is_message and token.text != ";")
        for operator in OPERATORS if not is_message else ():
            yield from operator(found, at)


def _swapped(found: list[Token], at: int) -> Iterator[Edit]:
    token = found[at]
    is_call = token.text in ("min", "max", "greatest", "least", "bool_or", "bool_and")
    is_other = token.is_assignment or token.is_range or _text(found, at - 1) in OPTIONS
    if token.text in SWAPPED and not is_other and (not is_call or _text(found, at + 1) == "("):
        yield Edit(at, at + 1, SWAPPED[token.text])


def _without_conjunct(found: list[Token], at: int) -> Iterator[Edit]:
    """Leave out each condition that is joined by `and`, and one that stands alone behind `where`."""
    token = found[at]
    if token.text == "and" and not token.is_range:
        yield Edit(at, operand_after(found, at), "")
        head = operand_before(found, at)
        if _text(found, head) in HEADS:
            yield Edit(head + 1, at + 1, "")
    elif token.text == "where":
        end = operand_after(found, at)
        if _text(found, end) not in ("and", "or"):
            yield Edit(at, end, "where true")


def _negated(found: list[Token], at: int) -> Iterator[Edit]:
    """Leave out `not`, and turn `is` round."""
    before, token, after = _text(found, at - 1), found[at].text, _text(found, at + 1)
    if token == "is":
        yield Edit(at, at + 2, "is") if after == "not" else Edit(at, at + 1, "is not")
    elif token == "not" and before not in ("is", "if", "do") and after not in ("materialized", "null"):
        yield Edit(at, at + 1, "")


def _now_for_column(found: list[Token], at: int) -> Iterator[Edit]:
    token, after = found[at], found[at + 1] if at + 1 < len(found) else None
    if token.kind != "word" or not IS_TIME.match(token.text) or _text(found, at + 1) == "(" or token.text[0] in "$:":
        return
    first = at - 2 if _text(found, at - 1) == "." else at
    if _text(found, first - 1) in AROUND_TIME or (after is not None and after.text in AROUND_TIME):
        yield Edit(first, at + 1, "now()")


def _without_order(found: list[Token], at: int) -> Iterator[Edit]:
    if found[at].text == "order" and _text(found, at + 1) == "by":
        depth = found[at].depth
        end = next(
            (
                n
                for n in range(at + 2, len(found))
                if found[n].depth < depth or (found[n].depth == depth and found[n].text in ENDS - {",", "when"})
            ),
            len(found),
        )
        yield Edit(at, end, "")


def _without_default(found: list[Token], at: int) -> Iterator[Edit]:
    if found[at].text == "coalesce" and _text(found, at + 1) == "(":
        end = closing(found, at + 1)
        commas = [n for n in range(at + 2, end) if found[n].text == "," and found[n].depth == found[at + 1].depth + 1]
        if commas:
            yield Edit(commas[-1], end, "")


def _off_by_one(found: list[Token], at: int) -> Iterator[Edit]:
    token = found[at]
    if token.kind == "number" and token.text.isdigit():
        yield Edit(at, at + 1, str(int(token.text) + 1))


def _without_lock(found: list[Token], at: int) -> Iterator[Edit]:
    if found[at].text == "for" and _text(found, at + 1) in ("update", "no", "share", "key"):
        end = at + 1
        while end < len(found) and found[end].kind == "word" and found[end].text not in ENDS:
            end += 1
        yield Edit(at, end, "")
    elif found[at].text == "skip" and _text(found, at + 1) == "locked":
        yield Edit(at, at + 2, "")


def _without_call(found: list[Token], at: int) -> Iterator[Edit]:
    """Leave out what PL/pgSQL calls for its effect."""
    if found[at].text == "perform":
        end = next((n for n in range(at, len(found)) if found[n].text == ";"), len(found))
        yield Edit(at, end, "null")


def _joined_otherwise(found: list[Token], at: int) -> Iterator[Edit]:
    if found[at].text == "left" and _text(found, at + 1) == "join":
        yield Edit(at, at + 1, "")


def _text(found: list[Token], at: int) -> str:
    return found[at].text if 0 <= at < len(found) else ""


OPERATORS: Final[tuple[Callable[[list[Token], int], Iterator[Edit]], ...]] = (
    _swapped,
    _without_conjunct,
    _negated,
    _now_for_column,
    _without_order,
    _without_default,
    _off_by_one,
    _without_lock,
    _without_call,
    _joined_otherwise,
)
