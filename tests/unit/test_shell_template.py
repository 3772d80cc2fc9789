"""Claims about the shell agent's macros; that data is never run is proved with a real shell."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent_tools import module

template = module("shell/template.py")
quoting = sys.modules["quoting"]
SHELLS = [shell for shell in ("/bin/sh", "/bin/bash") if Path(shell).exists()]
AROUND = {"U": "7", "A": "shell", "P": "4711"}


def output(pattern: str, line: str) -> str:
    command = template.expand(pattern, template.Macros(line, {}, AROUND))
    argv = ["/bin/sh", "-c", command.script, "sh", *command.values]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("echo %{U}", "7"),
        ("echo %{A} %{P}", "shell 4711"),
        ("echo %{1}-%{2}-%{3}", "one-two words-three"),
        ("echo %{12}.", "."),
        ("echo 100%{%}", "100%"),
        ("echo %{*}", "one 'two words' three"),
        ("echo '%{Z}' %{} %{01} %", "%{Z} %{} %{01} %"),
        ('echo "<%{2}>"', "<two words>"),
        ("echo '<%{2}>'", "<two words>"),
        ("echo \\'%{2}", "'two words"),
        ("echo 'a\\' %{2}", "a\\ two words"),
    ],
)
def test_each_macro_is_replaced_f170(pattern: str, expected: str) -> None:
    assert output(pattern, "one 'two words' three") == expected + "\n"


def test_the_whole_line_alone_is_the_command_f170() -> None:
    assert output("%{*}", "echo a; echo b") == "a\nb\n"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_line_inserted_by_a_macro_is_data_in_every_place_f170(line: str) -> None:
    command = template.expand("a %{*} \"b %{*}\" 'c %{*}'", template.Macros(line, {}, AROUND))
    assert command == ('a "${1}" "b ${2}" \'c \'"${3}"\'\'', (line, line, line))


@pytest.mark.parametrize("place", ["%{*}x", '"%{*}"x', "'%{*}'x"])
@pytest.mark.parametrize("line", ["$(id)", "`id`", "; id", "' id '", '" id "', "\\", "*", "a  b", "${HOME}", "\n"])
def test_data_is_never_run_f170(place: str, line: str) -> None:
    assert output(f"printf %s {place}", line) == line + "x"


def test_an_open_quote_is_refused_only_where_words_are_wanted_f170() -> None:
    assert output("echo %{*}", "it's") == "it's\n"
    with pytest.raises(ValueError, match="No closing quotation"):
        template.expand("echo %{1}", template.Macros("it's", {}, AROUND))


@pytest.mark.parametrize(("name", "value"), [("path", "a b"), ("1", "path=a b"), ("U", "7"), ("host", None), ("3", "")])
def test_a_column_is_a_macro_and_a_word_f170(name: str, value: str | None) -> None:
    columns = {"path": "a b", "U": "not this"}
    assert template.Macros("the line", columns, AROUND).value(name) == value


# ---- whatever stands around a macro, its value is one word

HOSTILE = [
    "", "a  b", "$(id)", "`id`", "; id #", "' id '", '" id "', "\\", "\\'", "*", "[a-z]*", "${HOME}", "~", "\n", "-n",
    "a\n'\"$(id)`id`)",
]  # fmt: skip
SHOW = 'f() { printf "%s:%s." "$#" "$1"; }; '
SAFE = [
    "f %{*}",
    'f "%{*}"',
    "f '%{*}'",
    "f ''%{*}\"\"",
    ": # it's a \"comment\nf %{*}",
    'v="$(f "%{*}")"; printf %s "$v"',
    'v="$(f %{*})"; printf %s "$v"',
    'v="$(: # it\'s )\nf \'%{*}\')"; printf %s "$v"',
    'v="$( (f %{*}) )"; printf %s "$v"',
    'v="$(printf %s "$(f "%{*}")")"; printf %s "$v"',
    ": $((1 + (2))); f %{*}",
    ': `echo "it\'s"`; f %{*}',
    ': "${x:-y}" ${#x} $#; f %{*}',
    "case %{*} in x) ;; *) f %{*};; esac",
    "( f %{*} )",
    "case eval in eval) f %{*};; esac",
    'v=%{*}; f "$v"',
    'sh -c \'printf "%s:%s." "$#" "$1"\' sh %{*}',
    'sh -ce \'printf "%s:%s." "$#" "$1"\' sh %{*}',
    "2>&1 f %{*} 3>/dev/null </dev/null",
    "f a >%{*} 2>/dev/null; f %{*}",
    "f \\\n  %{*}",
    ": a\\\n#b\nf %{*}",
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("pattern", SAFE)
def test_a_hostile_value_is_one_word_in_every_place(pattern: str, shell: str) -> None:
    for value in HOSTILE:
        command = template.expand(SHOW + pattern, template.Macros(value, {}, AROUND))
        argv = [shell, "-c", command.script, "sh", *command.values]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/")
        assert done.stdout == f"1:{value}."


PLACES = st.sampled_from(
    ["%{*}", '"%{*}"', "'%{*}'", '"$(printf %s. %{*})"', '"$(printf %s. "%{*}")"', "$(: # it's\n)%{*}"]
)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8) | st.sampled_from(HOSTILE)


@settings(max_examples=40, deadline=None)
@given(st.lists(PLACES, min_size=1, max_size=3), VALUES)
def test_the_number_of_words_does_not_depend_on_the_value(places: list[str], value: str) -> None:
    for shell in SHELLS:
        command = template.expand(f"set -- {' '.join(places)}; echo $#", template.Macros(value, {}, AROUND))
        argv = [shell, "-c", command.script, "sh", *command.values]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/")
        assert done.stdout == f"{len(places)}\n"


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("e\\val %{1}", "%{1} is a word of eval"),
        ("s\\h -c %{1}", "%{1} is in the program of sh -c"),
        ("echo `cat %{1}`", "%{1} stands in backquotes, where a shell reads it anew; use $( ) instead"),
        ('echo "`cat %{1}`"', "%{1} stands in backquotes"),
        ("echo $((%{1} + 1))", "%{1} stands in $(( ))"),
        ('echo "$((1 + $(echo) ))" %{1}', "$( in $(( )) and macros do not go together"),
        ("echo ${x:-%{1}}", "%{1} stands in ${ }"),
        ('echo "${x:-"a"}" %{1}', '" in ${ } and macros do not go together'),
        ("trap 'rm %{1}' EXIT", "%{1} is a word of trap, which evaluates it"),
        ("eval echo %{1}", "%{1} is a word of eval"),
        ("if true; then eval \"x=$(echo '%{1}')\"; fi", "%{1} is a word of eval"),
        ("ssh host cat %{1}", "%{1} is a word of ssh"),
        ("sh -c 'cat %{1}'", "%{1} is in the program of sh -c; give it behind the program"),
        ('/bin/bash -euc "cat %{1}"', "%{1} is in the program of bash -euc"),
        ("cat <<END\n%{1}\nEND", "a here-document and macros do not go together"),
        ("echo $'it\\'s' %{1}", "$'...' and macros do not go together"),
        ("((x = %{1}))", "(( )) and macros do not go together"),
        ("[[ %{1} -eq 1 ]]", "%{1} is a word of [["),
        ('echo "$(case x in x) echo %{1};; esac)"', "case in $( ) and macros do not go together"),
        ('echo "$%{1}"', "%{1} stands right behind a $"),
        ("echo 'it %{1}", "' is not closed"),
        ('echo "$(echo %{1}"', '" is not closed'),
    ],
)
def test_a_template_in_which_a_value_would_be_evaluated_again_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(quoting.TemplateError) as refused:
        template.expand(pattern, template.Macros("x", {}, AROUND))
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("sh -ce 'cat %{1}'", "in the program of sh -ce"),
        ("sh -c -- 'cat %{1}'", "in the program of sh -c"),
        ("sh -c -e 'cat %{1}'", "in the program of sh -c"),
        ("bash -ceo pipefail 'cat %{1}'", "in the program of bash -ceo"),
        ("bash --rcfile x -c 'cat %{1}'", "in the program of bash -c"),
        ("find . -exec sh -ce 'cat %{1}' \\;", "in the program of sh -ce"),
        ("su user -c'cat %{1}'", "in the program of su -c"),
        ("su user --command='cat %{1}'", "in the program of su --command="),
        ("flock x --command 'cat %{1}'", "in the program of flock --command"),
        ("script -q x -c 'cat %{1}'", "in the program of script -c"),
        ("sh -c >x 2>&1 'cat %{1}'", "in the program of sh -c"),
        ("sh -\\\nc 'cat %{1}'", "in the program of sh -c"),
        ('sh "-\\\nc" "cat %{1}"', "in the program of sh -c"),
        ("ev\\\nal %{1}", "a word of eval"),
        ("trap 2>&1 'rm %{1}' EXIT", "a word of trap"),
        ("eval >&2 <(ls) &>x %{1}", "a word of eval"),
        ("cat <(eval %{1})", "a word of eval"),
        ("read %{1}", "names a variable"),
        ("printf -v %{1} x", "names a variable"),
        ("[ -n x -a -v %{1} ]", "names a variable"),
        ("a[%{1}]=x", "names a variable"),
        ("echo $((%{1} + 1))", "compute with expr instead, as in: $(expr %{name} + 1)"),
    ],
)
def test_template_that_runs_a_value_in_an_unusual_spelling_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(quoting.TemplateError) as refused:
        template.refuse_unsafe(pattern)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "ssh host cat /etc/motd >%{out}",
        "ssh host wc < %{1} 2>&1",
        "sh -c 'wc' 2>%{2} <%{1}",
        "sh convert.sh -c %{1}",
        "bash convert.sh -codec copy %{1}",
        "su user -c 'wc -l \"$1\"' sh %{1}",
        'for f in %{1} %{2}; do gzip -c <"$f" >"$f.gz"; done',
        "ls a[%{1}]",
    ],
)
def test_harmless_template_is_accepted(pattern: str) -> None:
    template.refuse_unsafe(pattern)


@pytest.mark.parametrize(
    "pattern", ["eval ls", "cat <<END\nx\nEND", "echo `date` $((1)) 100%{%}", "eval %{%}", "%{*}", " %{*}\n"]
)
def test_a_template_without_values_may_hold_any_shell_text(pattern: str) -> None:
    template.refuse_unsafe(pattern)


@given(st.text(alphabet="ab%{}1*$()`'\"\\#; \n<"))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        found = "".join(piece for piece, _ in quoting.pieces(text))
    except quoting.TemplateError:
        return
    assert found == text


def words_or_none(split: Callable[[str], list[str]], line: str) -> list[str] | None:
    try:
        return split(line)
    except ValueError:
        return None


@given(st.text(st.sampled_from("ab \t\r\n'\"\\$`#\udce9\xa0"), max_size=30))
def test_line_is_split_into_the_words_of_shlex(line: str) -> None:
    assert words_or_none(template.split, line) == words_or_none(shlex.split, line)


@pytest.mark.parametrize("piece", ["x", "\\x", "'x'", '"x"', '"\\\\"'])
@pytest.mark.slow
def test_word_of_a_megabyte_is_split(piece: str) -> None:
    (word,) = template.split(piece * (1 << 18))
    assert len(word) == 1 << 18
