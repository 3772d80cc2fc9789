"""Split SQL into tokens: strings, dollar quotes and comments are known, grammar is not.

No parser at hand writes PL/pgSQL back, and most of the schema is PL/pgSQL. A mutant is an edit of the text, so nothing
has to be written back.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|\{\{\w+\}\})
      |(?P<number>\d+(?:\.\d+)?)
      |(?P<word>[A-Za-z_]\w*|[$:][A-Za-z0-9_]+)
      |(?P<operator>:=|::|(?:(?!--)[-+*/<>=~!@\#%^&|`?])+)
      |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
OPEN: Final = frozenset("([")
CLOSE: Final = frozenset(")]")
# A condition ends before one of these.
ENDS: Final = frozenset((
    "where", "group", "order", "having", "limit", "offset", "for", "then", "loop", "union", "except", "intersect",
    "returning", "window", "on", "join", "left", "cross", "inner", "from", "when", "else", "set", "execute", "do",
    "using", "raise", ";", ",",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its place in the text; `depth` counts the brackets and the `case` around it."""

    kind: str
    text: str  # in lower case, if it is a word
    start: int
    end: int
    depth: int
    is_assignment: bool = False  # the `=` of `update ... set`
    is_range: bool = False  # the `and` of `between`


def tokens(text: str, start: int, end: int) -> list[Token]:
    """Return the tokens of a part of a text, without blanks and comments."""
    found: list[Token] = []
    stack: list[str] = []  # what opened each level
    sets: set[int] = set()  # levels at which `set` assigns
    ranges: set[int] = set()  # levels at which a `between` has not met its `and`
    for kind, word, at in _raw(text, start, end):
        before = found[-1].text if found else ""
        if word in CLOSE or (word == "end" and stack[-1:] == ["case"]):
            sets.discard(len(stack))
            ranges.discard(len(stack))
            del stack[-1:]
        depth = len(stack)
        if word == "set":
            sets.add(depth)
        elif word in ("where", "from", "returning", ";"):
            sets.discard(depth)
        is_range = word == "and" and depth in ranges
        if word == "between":
            ranges.add(depth)
        elif is_range:
            ranges.discard(depth)
        found.append(Token(kind, word, at, at + len(word), depth, word == "=" and depth in sets, is_range))
        if word in OPEN or (word == "case" and before != "end"):
            stack.append(word)
    return found


def _raw(text: str, start: int, end: int) -> Iterator[tuple[str, str, int]]:
    for match in TOKEN.finditer(text, start, end):
        kind = next(name for name in ("skip", "string", "number", "word", "operator", "other") if match[name])
        if kind != "skip":
            yield kind, match[0].lower() if kind == "word" else match[0], match.start()


def closing(found: list[Token], at: int) -> int:
    """Return the place of the bracket that closes the one at `at`."""
    return next(n for n in range(at + 1, len(found)) if found[n].depth == found[at].depth and found[n].text in CLOSE)


def operand_after(found: list[Token], at: int) -> int:
    """Return the place after the condition that begins behind `at`."""
    depth = found[at].depth
    for n in range(at + 1, len(found)):
        if found[n].depth < depth or (found[n].depth == depth and _is_boundary(found, n)):
            return n
    return len(found)


def operand_before(found: list[Token], at: int) -> int:
    """Return the place of what the condition that ends before `at` stands behind, such as `where`; -1 if of nothing."""
    depth = found[at].depth
    for n in range(at - 1, -1, -1):
        opens = found[n].depth == depth - 1 and found[n].text in OPEN
        if opens or (found[n].depth == depth and _is_boundary(found, n)):
            return n
    return -1


def _is_boundary(found: list[Token], at: int) -> bool:
    token = found[at]
    before = found[at - 1].text if at else ""
    after = found[at + 1].text if at + 1 < len(found) else ""
    if token.text in ("and", "or"):
        return not token.is_range
    is_other = (token.text == "from" and before == "distinct") or (token.text == "left" and after == "(")
    return (token.text in ENDS or token.text in ("if", "elsif")) and not is_other
