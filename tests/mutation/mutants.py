"""Make the mutants of a module: each is its text with one small fault, such as `<` for `<=`, or a call left out.

The operators are those of mutmut that a type checker does not see, and some of ours. Only bodies of functions are
changed: warm.py puts a function's new code into a process that has imported everything.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
Operator = Callable[[Any], Iterable[cst.CSTNode]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault; `lines` are those of the statement that has it."""

    module: str
    function: str
    lines: range
    diff: str
    name: str  # function and changed text, the same while these are: what notes of earlier runs are found by
    source: str


def of_module(path: Path, root: Path, reached: Container[int] | None = None) -> list[Mutant]:
    """Return the mutants of a module, in the order of its lines; if `reached` is given, of functions with such a line.

    A function is in or out as a whole: so its mutants have the same names in each run.
    """
    wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
    finder = _Finder()
    wrapper.visit(finder)
    text, module, seen = _Text(wrapper.module), str(path.relative_to(root)), Counter[str]()
    chosen = {
        each.function for each in finder.changes if reached is None or any(line in reached for line in each.lines)
    }
    changes = [each for each in finder.changes if each.function in chosen]
    return [text.mutant(change, module, seen) for change in changes]


@dataclass(frozen=True, slots=True)
class _Change:
    function: str
    lines: range
    top: cst.CSTNode  # the statement of the module that has it
    old: cst.CSTNode
    new: cst.CSTNode


class _Text:
    """The text of a module as its statements; that of a mutant differs in one of them."""

    def __init__(self, tree: cst.Module) -> None:
        self._tree = tree
        self._parts = {id(each): tree.code_for_node(each) for each in tree.body}
        text = "".join(self._parts.values())
        start = tree.code.index(text)
        self._head, self._foot = tree.code[:start], tree.code[start + len(text) :]

    def mutant(self, change: _Change, module: str, seen: Counter[str]) -> Mutant:
        top = change.top.deep_replace(change.old, change.new)
        assert isinstance(top, cst.CSTNode)
        before, after = self._parts[id(change.top)], self._tree.code_for_node(top)
        source = self._head + "".join((self._parts | {id(change.top): after}).values()) + self._foot
        lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        diff = [line for line in lines if line[:3] not in ("---", "+++", "@@ ")]
        words = " ".join(f"{line[0]} {line[1:].strip()}" for line in diff)
        name = f"{change.function}: {words}"
        seen[name] += 1
        again = f" ({seen[name]})" if seen[name] > 1 else ""  # the same line twice in a function
        return Mutant(module, change.function, change.lines, "\n".join(diff), name + again, source)


class _Finder(cst.CSTVisitor):
    """Collect the changes below each function, with its qualified name as code objects have it."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[_Change] = []
        self.path: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Parameters | cst.Assert):
            return False  # parameters are made when the module is imported; an assert tells mypy a type
        self.path.append(node)
        if function := self._function():
            for kind, operator in OPERATORS:
                if isinstance(node, kind):
                    self.changes += [self._change(function, node, new) for new in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.path[-1] is original_node:
            self.path.pop()

    def _change(self, function: str, old: cst.CSTNode, new: cst.CSTNode) -> _Change:
        return _Change(function, self._lines(), self.path[1], old, new)

    def _function(self) -> str:
        """Return the outermost function around, with its class; nothing in the body of a module or a class."""
        names: list[str] = []
        for node in self.path[1:-1]:
            if isinstance(node, cst.ClassDef | cst.FunctionDef):
                names.append(node.name.value)
            if isinstance(node, cst.FunctionDef):
                return ".".join(names)
        return ""

    def _lines(self) -> range:
        """Return the lines of the innermost statement; of one with a body, those of its head."""
        statement = next(each for each in reversed(self.path) if isinstance(each, STATEMENTS))
        where = self._where(statement)
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock):
            return range(where.start.line, max(where.start.line + 1, self._where(body.body[0]).start.line))
        if isinstance(statement, cst.Match):
            return range(where.start.line, self._where(statement.cases[0]).start.line + 1)
        return range(where.start.line, where.end.line + 1)

    def _where(self, node: cst.CSTNode) -> CodeRange:
        where = self.get_metadata(PositionProvider, node)
        assert isinstance(where, CodeRange)
        return where


STATEMENTS: Final = (cst.BaseStatement, cst.MatchCase)


def _swapped_call(node: cst.Call) -> Iterator[cst.Call]:
    if isinstance(node.func, cst.Name) and node.func.value in SWAPPED:
        yield node.with_changes(func=cst.Name(SWAPPED[node.func.value]))


def _left_out(node: cst.SimpleStatementLine) -> Iterator[cst.SimpleStatementLine]:
    """Leave out what is done for its effect: a call, a change of a field, a deletion."""
    target = m.Attribute() | m.Subscript()
    effect = m.Expr(m.Call(func=~m.Name("assert_never"))) | m.Del() | m.Assign([m.AssignTarget(target)])
    if len(node.body) == 1 and m.matches(node.body[0], effect):
        yield node.with_changes(body=[cst.Pass()])


def _without_guard(node: cst.MatchCase) -> Iterator[cst.MatchCase]:
    if node.guard is not None:
        no = cst.SimpleWhitespace("")
        yield node.with_changes(guard=None, whitespace_before_if=no, whitespace_after_if=no, whitespace_before_colon=no)


def _without_case(node: cst.Match) -> Iterator[cst.CSTNode]:
    """Leave out a case; not the last, if it only tells mypy that there is no other."""
    never = m.IndentedBlock([m.SimpleStatementLine([m.Expr(m.Call(func=m.Name("assert_never")))])])
    without = list(mutators.operator_match(node))
    yield from without[:-1] if m.matches(node.cases[-1].body, never) else without


def _forced(node: Any) -> Iterable[cst.CSTNode]:
    """Take one branch always, and the other."""
    return mutators.operator_if_exp(node)


def _never(node: cst.While) -> Iterable[cst.CSTNode]:
    return list(mutators.operator_if_exp(node))[:1]  # type: ignore[arg-type]  # it changes `test` of whatever it gets


# What mypy refuses is left out: None for an argument or a value, a missing argument. So are texts, which people read.
OPERATORS: Final[tuple[tuple[type[cst.CSTNode], Operator], ...]] = (
    (cst.BaseNumber, mutators.operator_number),
    (cst.Name, mutators.operator_name),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.Call, mutators.operator_symmetric_string_methods_swap),
    (cst.CSTNode, mutators.operator_keywords),
    (cst.CSTNode, mutators.operator_swap_op),
    (cst.IfExp, _forced),
    (cst.If, _forced),
    (cst.CompIf, _forced),
    (cst.While, _never),
    (cst.Match, _without_case),
    (cst.MatchCase, _without_guard),
    (cst.Call, _swapped_call),
    (cst.SimpleStatementLine, _left_out),
)
