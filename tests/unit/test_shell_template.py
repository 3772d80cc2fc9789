"""Claims about the shell agent's macros; that data is never run is proved with a real shell."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent_tools import module

template = module("shell/template.py")
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
def test_a_line_put_in_by_a_macro_is_data_in_every_place_f170(line: str) -> None:
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
