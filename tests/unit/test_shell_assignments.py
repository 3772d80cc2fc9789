"""Variables as a shell writes them, read as data."""

import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cli.submit import assignments
from scheduler.errors import ConfigError
from tests.needs import need

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SHELLISH = st.text(st.sampled_from("ab '\"$\\`\n\t;|&()<>#!~*?[{=é😀\x01\x1b\x7f"))
EXAMPLE = b"""\
# billing
userid=simpsons
invoice='a "b" $c'   # as it stands
note="a \\"b\\" \\$c \\`d\\` \\e"
rjm_blocks=(shipping.1 'notify.1'
            "other.1")  # children
none=
empty=()
lines='a
b'
price="5 $"$/x#y
joined=a\\ b"c d"'e'
going=a\\
b
escaped=$'a\\nb\\x41\\303\\244\\u20ac\\q'
"""
EXPANDED = "a shell would expand $ or ` in double quotes, but nothing is expanded here: use single quotes"


def test_scalars_and_lists_are_read_with_the_quotes_of_a_shell_r24_r27() -> None:
    assert assignments(EXAMPLE) == {
        "userid": "simpsons",
        "invoice": 'a "b" $c',
        "note": 'a "b" $c `d` \\e',
        "rjm_blocks": ["shipping.1", "notify.1", "other.1"],
        "none": "",
        "empty": [],
        "lines": "a\nb",
        "price": "5 $$/x#y",
        "joined": "a bc de",
        "going": "ab",
        "escaped": "a\nbAä€\\q",
    }


APPENDED = """
a=x
a+=y
b=(1)
b+=(2 '3 4')
c=("${b[@]}" 5 "${a[@]}")
c=(0 "${c[@]}")
a+=(z)
d+=(6)
"""


def test_lists_above_and_appended_values_are_data_r24() -> None:
    c = ["0", "1", "2", "3 4", "5", "xy"]
    assert assignments(APPENDED.encode()) == {"a": ["xy", "z"], "b": ["1", "2", "3 4"], "c": c, "d": ["6"]}


def test_bash_reads_the_same_in_appended_lists_r24() -> None:
    need("bash")
    shown = subprocess.run(["bash"], input=APPENDED + "declare -p a b c d", capture_output=True, text=True, check=True)
    lists = [re.sub(r"\[\d+\]=", "", line.partition("=")[2]).strip("()") for line in shown.stdout.splitlines()]
    assert [shlex.split(each) for each in lists] == list(assignments(APPENDED.encode()).values())


def test_empty_text_has_no_assignments() -> None:
    assert assignments(b"") == assignments(b" \n\t# only\n\n") == {}


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"x", 1, "expected NAME=value or NAME=(a b)"),
        (b"a=1\nexport b=2", 2, "expected NAME=value or NAME=(a b)"),
        (b"a-b=2", 1, "expected NAME=value or NAME=(a b)"),
        (b"1a=2", 1, "expected NAME=value or NAME=(a b)"),
        (b"a=1\nb= c", 2, "a value with blanks must be quoted"),
        (b"a=b c", 1, "a value with blanks must be quoted"),
        (b"a=(b) c", 1, "a value with blanks must be quoted"),
        (b"a=1\na=2", 2, "a is given twice"),
        (b"\na='x\ny\n", 2, "the quote is not closed"),
        (b'a="x', 1, "the quote is not closed"),
        (b"a=$'x", 1, "the quote is not closed"),
        (b"a=(b\nc", 1, "the list is not closed"),
        (b"a=(b;c)", 1, "';c' must be quoted, since nothing is executed here"),
        (b"a=$b", 1, "'$b' must be quoted, since nothing is executed here"),
        (b'a=1\nb="$a"', 2, EXPANDED),
        (b'a="x`id`"', 1, EXPANDED),
        (b'a="b" "c d"', 1, "a value with blanks must be quoted"),
        (b'a=("$(id)")', 1, EXPANDED),
        (b'a=("${b[@]}")', 1, "b is not set above"),
        (b"a=(b)\na+=c", 2, "a is a list, to which a+=(...) appends"),
        (b"a=x\\", 1, "nothing follows the backslash"),
        (b"a=(b) \\\n", 2, "nothing follows the backslash"),
        (b"a=1\r\nb='\xff'", 2, "is not UTF-8"),
        (b"a=\0", 1, "holds a NUL"),
    ],
)
def test_a_bad_line_is_reported_with_its_number(data: bytes, line: int, reason: str) -> None:
    with pytest.raises(ConfigError) as told:
        assignments(data)
    assert str(told.value) == f"stdin:{line}: {reason}; nothing was set up"


@pytest.mark.parametrize("written", ["$(touch x)", "`touch x`", "a;touch x", "a&", "a|b", "<(touch x)", "a>b", '$"a"'])
def test_shell_syntax_is_refused_unless_quoted_r20(written: str) -> None:
    with pytest.raises(ConfigError, match="must be quoted, since nothing is executed here"):
        assignments(f"a={written}".encode())
    assert assignments(f"a='{written}'".encode()) == {"a": written}


@given(TEXTS | SHELLISH)
def test_text_quoted_by_python_is_read_unchanged_r27(text: str) -> None:
    quoted = shlex.quote(text)
    assert assignments(f"a={quoted}\nb=({quoted} {quoted})\n".encode()) == {"a": text, "b": [text, text]}


def test_text_quoted_by_bash_is_read_unchanged_r27() -> None:
    need("bash")
    texts = [
        "",
        "a b",
        "'",
        '"',
        "$c",
        "$(touch x)",
        "a\nb",
        "\x01\x1b\x7f",
        "é😀",
        "\\",
        "`",
        "a'\n\"",
        "#",
        "~",
        "!x",
    ]
    script = r'i=0; for each; do printf "a%d=%q\nb%d=%s\n" $i "$each" $i "${each@Q}"; i=$((i + 1)); done'
    written = subprocess.run(["bash", "-c", script, "x", *texts], capture_output=True, check=True).stdout
    read = assignments(written)
    assert [read[f"a{i}"] for i in range(len(texts))] == [read[f"b{i}"] for i in range(len(texts))] == texts


@given(st.binary() | SHELLISH.map(lambda text: text.encode(errors="ignore")))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    told = refusal(data)
    assert not told or told.startswith("stdin:")


def refusal(data: bytes) -> str:
    try:
        assignments(data)
    except ConfigError as refused:
        return str(refused)
    return ""
