r"""Where the macros of a shell template stand: what a shell reads around each of them.

A scanner of the part of sh(1) that decides how a word is quoted: quotes, comments, $( ), ${ }, $(( )) and backquotes,
as deep as they are nested. Where a value could be split, expanded or run whatever is written around it, the template is
refused. Pure: the agent uses it for each item, the scheduler when it reads the configuration.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE, DOUBLE, SINGLE = "", '"', "'"
MACRO = r"%\{[^{}]*\}"
PERCENT = "%{%}"
INNER = 'put the value into a variable first, as in: v=%{name}; ... "$v"'
# expr computes as arithmetic does, but runs nothing that a value holds.
COMPUTED = "compute with expr instead, as in: $(expr %{name} + 1)"
# What runs its words as a program, or evaluates them; of a shell only the word behind -c is such a word.
EVALUATES = frozenset(
    ("eval", "trap", "alias", "let", "declare", "typeset", "local", "unset", "[[", "ssh", "rsh", "watch", "parallel"),
)
SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash", "yash", "fish", "csh", "tcsh"))
RUNNERS = frozenset(("su", "runuser", "script", "flock"))  # give the word behind -c to a shell, wherever that option is

_COMMAND = re.compile(
    rf"{MACRO}|\\.|\$\(\(|\$\(|\$\{{|\$['\"]|<<|[<>]\(|[<>][&|]|&>|[<>]|\(\(|[\"'`()#;&|\n \t]|.", re.DOTALL
)
_DOUBLE = re.compile(rf"{MACRO}|\\.|\$\(\(|\$\(|\$\{{|[\"`]|.", re.DOTALL)
_SINGLE = re.compile(rf"{MACRO}|'|.", re.DOTALL)
_COMMENT = re.compile(rf"{MACRO}|.", re.DOTALL)
_BACKQUOTED = re.compile(rf"{MACRO}|\\.|`|.", re.DOTALL)
_BRACED = re.compile(rf"{MACRO}|\$\{{|\$\(|\}}|.", re.DOTALL)
_ARITHMETIC = re.compile(rf"{MACRO}|\$\(|[()]|.", re.DOTALL)
_PROGRAM_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*|--com[a-z]*")
_ATTACHED = re.compile(r"(-[A-Za-z]*c|--com[a-z]*=)")
_WITH_VALUE = re.compile(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file")
_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[")
_INTRICATE = frozenset("\"'`\\")  # in ${ } and $(( )): what is quoted there differs from shell to shell


class TemplateError(ValueError):
    """A template in which no quoting makes a value one word."""


class _Frame:
    """An open construct of the shell: its kind of quoting; of commands, the words of the current one, and parentheses.

    The target of a redirection is no word of the command, wherever it stands.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.depth = 1
        self.words: list[str] = []
        self.word: str | None = None
        self.is_target = False


def pieces(template: str) -> Iterator[tuple[str, str]]:
    """Return the template in pieces, each with the quotes around it: BARE, DOUBLE or SINGLE.

    A macro is a piece of its own. Errors: TemplateError, at the first macro or quote that makes it unsafe.
    """
    if not has_macros(template):
        yield from ((piece, BARE) for piece in re.split(f"({MACRO})", template))
        return
    scanner, place = _Scanner(), 0
    while place < len(template):
        found = scanner.pattern().match(template, place)
        assert found is not None
        place = found.end()
        yield found[0], scanner.read(found[0])
    scanner.end()


def check(template: str) -> None:
    """Refuse a template that is not safe. Errors: TemplateError."""
    for _ in pieces(template):
        pass


def has_macros(template: str) -> bool:
    """Return whether the template has a macro other than %%."""
    return any(found != PERCENT for found in re.findall(MACRO, template))


class _Scanner:
    """Reads one piece after the other; what is open is a stack, from the script itself up."""

    def __init__(self) -> None:
        self._open = [_Frame("$(")]
        self._before = ""

    def pattern(self) -> re.Pattern[str]:
        """Return the pattern that splits the text at this position."""
        return _KINDS[self._open[-1].kind][0]

    def read(self, piece: str) -> str:
        """Take one piece, and give the quotes that it stands in."""
        frame = self._open[-1]
        quotes = frame.kind if frame.kind in (DOUBLE, SINGLE) else BARE
        if len(piece) > 1 and piece.startswith("%{"):
            if piece != PERCENT and frame.kind != "#":
                self._check_macro(piece)
            self._add("x" if piece != PERCENT else "%")
        else:
            _KINDS[frame.kind][1](self, piece)
        self._before = piece
        return quotes

    def end(self) -> None:
        """Refuse what is left open. Errors: TemplateError."""
        kind = self._open[-1].kind
        if len(self._open) > 1 and kind != "#":
            raise TemplateError(f"{kind} is not closed")

    # ---- macros

    def _check_macro(self, macro: str) -> None:
        for frame in self._open:
            if frame.kind in ("`", "${", "$(("):
                advice = {"`": "use $( ) instead", "${": INNER, "$((": COMPUTED}[frame.kind]
                raise TemplateError(f"{macro} stands in {_NAMES[frame.kind]}, where a shell reads it anew; {advice}")
            if not frame.is_target:
                self._check_command(macro, frame)
        if self._before == "$":
            raise TemplateError(f"{macro} stands right behind a $; put a blank or a quote in between")

    def _check_command(self, macro: str, frame: _Frame) -> None:
        names = [word.rpartition("/")[2] for word in frame.words]
        if evaluates := next((name for name in names if name in EVALUATES), None):
            raise TemplateError(f"{macro} is a word of {evaluates}, which evaluates it; call a script of your own")
        for place, shell in enumerate(names):
            if option := _program_option(shell, names[place + 1 :], frame.word or ""):
                advice = f"give it behind the program, as in: {shell} -c 'echo \"$1\"' {shell} {macro}"
                raise TemplateError(f"{macro} is in the program of {shell} {option}; {advice}")
        if _names_variable(names, frame.word or ""):
            raise TemplateError(f"{macro} names a variable, and some shells evaluate that; give it a name of your own")

    # ---- what each kind of quoting does with a piece

    def _in_command(self, piece: str) -> None:
        frame = self._open[-1]
        if piece == "\\\n":
            return  # is taken out before words are told apart
        if piece in " \t\n;&|":
            self._end_word(is_last=piece in "\n;&|")
        elif piece in ("<(", ">("):
            self._add("")
            self._open.append(_Frame("$("))
        elif piece in _REDIRECTIONS:
            self._redirect()
        elif piece in _OPENERS:
            self._add("")
            self._open.append(_Frame(piece))
        elif piece == "#" and frame.word is None:
            self._open.append(_Frame("#"))
        elif piece in "()":
            self._in_parentheses(piece)
        elif piece in ("<<", "$'", '$"') or (piece == "((" and frame.word is None):
            raise TemplateError(f"{_NAMES[piece]} and macros do not go together: put it into a script of your own")
        else:
            if piece == "((":
                frame.depth += 2
            self._add(piece[1:] if piece.startswith("\\") else piece)

    def _redirect(self) -> None:
        """The next word is the target; a number right before the operator is a descriptor, and no word either."""
        frame = self._open[-1]
        if (frame.word or "").isdecimal():
            frame.word = None
        self._end_word(is_last=False)
        frame.is_target = True

    def _in_parentheses(self, piece: str) -> None:
        frame = self._open[-1]
        self._end_word(is_last=True)
        frame.depth += 1 if piece == "(" else -1
        if frame.depth == 0 and len(self._open) > 1:
            self._open.pop()

    def _in_double(self, piece: str) -> None:
        if piece == DOUBLE:
            self._open.pop()
        elif piece in _OPENERS:
            self._open.append(_Frame(piece))
        elif piece != "\\\n":
            self._add(piece[1:] if piece.startswith("\\") else piece)

    def _in_single(self, piece: str) -> None:
        if piece == SINGLE:
            self._open.pop()
        else:
            self._add(piece)

    def _in_comment(self, piece: str) -> None:
        if piece == "\n":
            self._open.pop()
            self._in_command(piece)

    def _in_backquotes(self, piece: str) -> None:
        if piece == "`":
            self._open.pop()

    def _in_braces(self, piece: str) -> None:
        if piece == "}":
            self._open.pop()
        elif piece == "${":
            self._open.append(_Frame(piece))
        elif piece == "$(" or piece in _INTRICATE:
            raise TemplateError(f"{piece} in ${{ }} and macros do not go together: put it into a variable of its own")

    def _in_arithmetic(self, piece: str) -> None:
        frame = self._open[-1]
        if piece == "$(" or piece in _INTRICATE:
            raise TemplateError(f"{piece} in $(( )) and macros do not go together: put it into a variable of its own")
        if piece in "()":
            frame.depth += 1 if piece == "(" else -1
        if frame.depth < 0:
            self._open.pop()

    # ---- words

    def _add(self, text: str) -> None:
        """Put text to the word that is being read, of the innermost command."""
        frame = next(frame for frame in reversed(self._open) if frame.kind == "$(")
        frame.word = (frame.word or "") + text

    def _end_word(self, *, is_last: bool) -> None:
        frame = self._open[-1]
        if frame.word == "case" and len(self._open) > 1:
            raise TemplateError("case in $( ) and macros do not go together: put it into a script of your own")
        if frame.word is not None:
            frame.words += [] if frame.is_target else [frame.word]
            frame.is_target = False
        frame.word = None
        if is_last:
            frame.words, frame.is_target = [], False


def _program_option(shell: str, words: list[str], begun: str) -> str:
    """Return the option of a shell that makes a program of the word that has `begun` behind these words, or ""."""
    if shell not in SHELLS and shell not in RUNNERS:
        return ""
    if shell in RUNNERS and (attached := _ATTACHED.match(begun)):
        return attached[0]
    option, is_value = "", False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith(("-", "+")):
            option = option or (word if _PROGRAM_OPTION.fullmatch(word) else "")
            is_value = _WITH_VALUE.fullmatch(word) is not None
        elif option or shell in SHELLS:
            return ""  # the program, or a script: what is behind it is given to it
    return option


def _names_variable(names: list[str], begun: str) -> bool:
    """Return whether the word that has `begun` is a variable name or an index: bash runs a $( ) in these."""
    if not names:
        return _SUBSCRIPT.match(begun) is not None
    return names[0] == "read" or (names[-1] == "-v" and not {"test", "[", "printf"}.isdisjoint(names))


_REDIRECTIONS = frozenset(("<", ">", "<&", ">&", "<|", ">|", "&>"))
_OPENERS = frozenset((DOUBLE, SINGLE, "`", "$(", "${", "$(("))
_NAMES = {
    "`": "backquotes", "${": "${ }", "$((": "$(( ))", "((": "(( ))", "<<": "a here-document", "$'": "$'...'",
    '$"': '$"..."',
}  # fmt: skip
_KINDS = {
    "$(": (_COMMAND, _Scanner._in_command),
    DOUBLE: (_DOUBLE, _Scanner._in_double),
    SINGLE: (_SINGLE, _Scanner._in_single),
    "#": (_COMMENT, _Scanner._in_comment),
    "`": (_BACKQUOTED, _Scanner._in_backquotes),
    "${": (_BRACED, _Scanner._in_braces),
    "$((": (_ARITHMETIC, _Scanner._in_arithmetic),
}
