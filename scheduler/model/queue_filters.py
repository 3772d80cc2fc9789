"""The filters of queues: Boolean expressions of SQL over the attributes of a job and the time of day.

A filter is parsed by sqlglot, and becomes a tree of lists, as JSON has them: `["and", TREE, ...]`, `["or", TREE, ...]`,
`["not", TREE]`, `[OPERATOR, VALUE, VALUE]`, `["like", VALUE, TEXT]`, `["in", VALUE, LITERAL, ...]`,
`["between", VALUE, VALUE, VALUE]`, `["is_null", VALUE]`. A value is `["column", NAME]`, `["data", KEY, "text" or
"number"]`, or a literal: `["text", TEXT]`, `["number", DIGITS]`, `["boolean", true]`.

Only what WHITE_LIST names gets into a tree, and both sides of a comparison are of one kind, so that no evaluation
fails. The database prints the tree as SQL (drover.filter_sql) and refuses all else too; a text never becomes part of a
function.

sqlglot is imported where it is needed, since most daemons have no filter.
"""

import re
from typing import Any, Final

TEXT, NUMBER, BOOLEAN, ANY = "text", "number", "boolean", "any"
COLUMNS: Final[dict[str, str]] = {
    "type": TEXT, "name": TEXT, "submitter": TEXT, "host": TEXT, "priority": TEXT, "mode": TEXT, "urgent": BOOLEAN,
    "sql": BOOLEAN, "minutes": NUMBER, "tenant": TEXT, "group_name": TEXT, "group_priority": NUMBER, "hour": NUMBER,
    "weekday": NUMBER, "time": TEXT, "date": TEXT,
}  # fmt: skip
DATA: Final = "data"
LONGEST: Final = 2000  # characters
DEEPEST: Final = 20
DIGITS: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
EXAMPLE: Final = "write comparisons like type = 'sha256' and hour between 18 and 23, joined by and, or, not"
COMPARISONS: Final[dict[str, str]] = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
# The nodes of sqlglot, and the arguments of each, that may be in a filter. Names, for sqlglot is imported late.
WHITE_LIST: Final[dict[str, frozenset[str]]] = {
    "And": frozenset({"this", "expression"}), "Or": frozenset({"this", "expression"}), "Not": frozenset({"this"}),
    "Paren": frozenset({"this"}), "Column": frozenset({"this", "table"}), "Identifier": frozenset({"this", "quoted"}),
    "Literal": frozenset({"this", "is_string"}), "Boolean": frozenset({"this"}), "Null": frozenset(),
    "Neg": frozenset({"this"}), "In": frozenset({"this", "expressions"}), "Between": frozenset({"this", "low", "high"}),
    "Like": frozenset({"this", "expression", "negate"}), "Is": frozenset({"this", "expression", "negate"}),
    **dict.fromkeys(COMPARISONS, frozenset({"this", "expression"})),
}  # fmt: skip
INSTEAD: Final[dict[str, str]] = {
    "ILike": "like is the only match there is", "RegexpLike": "write like, with % and _",
    "SimilarTo": "write like, with % and _", "Cast": "leave the type out", "Escape": "leave escape out",
    "Anonymous": "functions are not allowed", "Subquery": "queries are not allowed",
    "CurrentTimestamp": "write hour, weekday, time or date",
    "NullSafeNEQ": "write <>, or is not null", "NullSafeEQ": "write =, or is null", "Case": "write and, or, not",
}  # fmt: skip

Tree = list[Any]


class FilterError(ValueError):
    """A filter that is none; the text says where, why, and what to write instead."""


def filter_mistake(text: str) -> str:
    """Return what is wrong with a filter; empty if nothing is, or if there is no filter."""
    try:
        if text:
            parse_filter(text)
    except FilterError as error:
        return str(error)
    return ""


def parse_filter(text: str) -> Tree:
    """Return the tree of a filter. Errors: FilterError."""
    if len(text) > LONGEST:
        raise FilterError(f"has {len(text)} characters, {LONGEST} at most are let in")
    if found := re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", text):
        raise FilterError(f"character {found.start() + 1}: a control character; leave it out")
    try:
        return _Reader(text).condition(_parsed(text), 0)
    except RecursionError:
        raise FilterError(f"is nested too deep: {DEEPEST} levels at most") from None


def _parsed(text: str) -> Any:
    """Return the expression that sqlglot reads in a text. Errors: FilterError."""
    from sqlglot import exp, parse_one
    from sqlglot.errors import ParseError, SqlglotError

    try:
        parsed = parse_one(text, read="postgres", into=exp.Condition)
    except ParseError as error:
        told: dict[str, Any] = next(iter(error.errors), {})
        near = told.get("highlight") or ""
        line, place = told.get("line") or 1, max(1, (told.get("col") or len(text)) - max(len(near) - 1, 0))
        where = f"line {line}, character {place}" if line > 1 else f"character {place}"
        raise FilterError(f"{where}{f', near {near!r}' * bool(near)}: no expression; {EXAMPLE}") from None
    except (SqlglotError, ValueError) as error:
        raise FilterError(f"no expression, maybe a quote is missing ({type(error).__name__}); {EXAMPLE}") from None
    if parsed is None:
        raise FilterError(f"character 1: no expression; {EXAMPLE}")
    return parsed


class _Reader:
    """Turns the nodes of one filter into a tree; what is not on the white list is refused with its place."""

    def __init__(self, text: str) -> None:
        self._text = text

    def condition(self, node: Any, depth: int) -> Tree:
        """Return the tree of a node that is true or false."""
        kind = self._checked(node)
        if depth > DEEPEST:
            raise self._refusal(node, f"nested too deep, {DEEPEST} levels at most")
        if kind == "Paren":
            return self.condition(node.this, depth + 1)
        if kind in ("And", "Or"):
            return [kind.lower(), *(self.condition(part, depth + 1) for part in self._parts(node, kind))]
        if kind == "Not":
            return ["not", self.condition(node.this, depth + 1)]
        if kind in ("Like", "Is"):
            tree = self._like(node) if kind == "Like" else self._is_null(node)
            return ["not", tree] if node.args.get("negate") else tree
        if kind == "In":
            return self._in(node)
        if kind == "Between":
            values = self._values(node, [node.this, node.args["low"], node.args["high"]])
            return ["between", *values]
        if kind in COMPARISONS:
            return [COMPARISONS[kind], *self._values(node, [node.this, node.expression])]
        if kind == "Column" and self._value(node)[1] == BOOLEAN:
            return ["=", self._value(node)[0], ["boolean", True]]
        raise self._refusal(node, f"neither true nor false; {EXAMPLE}")

    def _parts(self, node: Any, kind: str) -> list[Any]:
        """Return what a chain of one operator joins; sqlglot nests it as deep as it is long."""
        parts: list[Any] = []
        while type(node).__name__ == kind:
            self._checked(node)
            parts.append(node.expression)
            node = node.this
        return [node, *reversed(parts)]

    def _like(self, node: Any) -> Tree:
        value, kind = self._value(node.this)
        pattern, is_of = self._value(node.expression)
        if kind not in (TEXT, ANY) or is_of != TEXT or pattern[0] != "text":
            raise self._refusal(node, "like compares a text attribute with a pattern in quotes")
        if len(re.findall(r"\\*$", pattern[1])[0]) % 2:
            raise self._refusal(node.expression, "a pattern does not end with one backslash; write two")
        return ["like", self._of_kind(value, TEXT), pattern]

    def _is_null(self, node: Any) -> Tree:
        if self._checked(node.expression) != "Null":
            raise self._refusal(node, "only null may follow is")
        value, kind = self._value(node.this)
        if value[0] not in ("column", "data"):
            raise self._refusal(node, "only an attribute is null, or is not")
        return ["is_null", self._of_kind(value, TEXT if kind == ANY else kind)]

    def _in(self, node: Any) -> Tree:
        values = self._values(node, [node.this, *node.expressions])
        if len(values) < 2 or [value for value in values[1:] if value[0] in ("column", "data")]:
            raise self._refusal(node, "in is followed by literals in parentheses, as in ('a', 'b')")
        return ["in", *values]

    def _values(self, node: Any, sides: list[Any]) -> list[Tree]:
        """Return values that are compared with each other, all of one kind."""
        found = [self._value(side) for side in sides]
        kinds = {kind for _, kind in found} - {ANY} or {TEXT}
        if len(kinds) > 1:
            raise self._refusal(node, f"compares {' with '.join(sorted(kinds))}; both sides must be of one kind")
        if BOOLEAN in kinds and (len(found) != 2 or type(node).__name__ not in ("EQ", "NEQ")):
            raise self._refusal(node, "true and false are compared by = and <> only")
        if BOOLEAN in kinds and [value for value, kind in found if kind == ANY]:
            raise self._refusal(node, "data is text or a number; write data.NAME = 'true'")
        return [self._of_kind(value, next(iter(kinds))) for value, _ in found]

    def _value(self, node: Any) -> tuple[Tree, str]:
        """Return a column or a literal, and its kind."""
        kind = self._checked(node)
        if kind == "Paren":
            return self._value(node.this)
        if kind == "Boolean":
            return ["boolean", bool(node.this)], BOOLEAN
        if kind == "Literal" and node.is_string:
            return ["text", str(node.this)], TEXT
        if kind == "Literal" or (kind == "Neg" and self._checked(node.this) == "Literal" and not node.this.is_string):
            digits = str(node.this if kind == "Literal" else node.this.this)
            if not DIGITS.fullmatch(digits):
                raise self._refusal(node, "a number has 15 digits at most, and 15 after a point")
            return ["number", "-" * (kind == "Neg") + digits], NUMBER
        if kind == "Column":
            return self._column(node)
        raise self._refusal(node, f"not an attribute nor a literal; {EXAMPLE}")

    def _column(self, node: Any) -> tuple[Tree, str]:
        self._checked(node.this)
        name = str(node.this.this) if node.this.args.get("quoted") else str(node.this.this).lower()
        if table := node.args.get("table"):
            self._checked(table)
            if str(table.this).lower() != DATA:
                raise self._refusal(
                    node, f"no attribute {table.this}.{name}; write data.NAME for what a job brings along"
                )
            return [DATA, str(node.this.this), ANY], ANY
        if name not in COLUMNS:
            raise self._refusal(node, f"no attribute {name!r}; there are {', '.join(COLUMNS)} and data.NAME")
        return ["column", name], COLUMNS[name]

    def _of_kind(self, value: Tree, kind: str) -> Tree:
        return [*value[:2], kind] if value[0] == DATA else value

    def _checked(self, node: Any) -> str:
        """Return the name of the class of a node. Errors: FilterError, it or an argument is not on the white list."""
        kind = type(node).__name__
        if kind not in WHITE_LIST:
            raise self._refusal(node, f"{INSTEAD.get(kind, 'this is not allowed in a filter')}; {EXAMPLE}")
        for key, value in node.args.items():
            if key not in WHITE_LIST[kind] and value not in (None, False, []):
                raise self._refusal(node, f"{key!r} is not allowed here; {EXAMPLE}")
        return kind

    def _refusal(self, node: Any, why: str) -> FilterError:
        starts = [each.meta["start"] for each in node.walk() if "start" in each.meta] if hasattr(node, "walk") else []
        return FilterError(f"character {min(starts, default=0) + 1}: {why}")
