"""The words of `drover map`: replacement strings, sources of items, and what is refused."""

import pytest

from scheduler.cli.map_words import Splitter, Template, combinations, split_sources
from scheduler.errors import ConfigError


def splitter(*, at_nul: bool = False, colsep: str | None = None, size: int = 1, skip_empty: bool = False) -> Splitter:
    return Splitter(at_nul=at_nul, colsep=colsep, size=size, skip_empty=skip_empty)


def filled(words: list[str], *values: str, replace: str = "{}") -> list[str]:
    return Template(words, replace).command(7, values).words


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("{}", "d.e/a b.tar.gz"),
        ("{.}", "d.e/a b.tar"),
        ("{/}", "a b.tar.gz"),
        ("{//}", "d.e"),
        ("{/.}", "a b.tar"),
        ("{#}", "7"),
        ("{1/.}.png", "a b.tar.png"),
        ("-o={}", "-o=d.e/a b.tar.gz"),
        ("{x} {0} {", "{x} {0} {"),
    ],
)
def test_a_replacement_string_stands_for_a_part_of_the_item(word: str, text: str) -> None:
    assert filled(["do", word, "{}"], "d.e/a b.tar.gz")[1] == text


@pytest.mark.parametrize(("word", "text"), [("{.}", "a/.profile"), ("{//}", "a"), ("{/}", ".profile")])
def test_a_name_that_begins_with_a_dot_has_no_extension(word: str, text: str) -> None:
    assert filled(["do", word], "a/.profile") == ["do", text]


def test_the_folder_of_a_bare_name_is_the_current_one() -> None:
    assert filled(["do", "{//}"], "name") == ["do", "."]


@pytest.mark.parametrize("item", ["a b", "'", '"', ";rm -r x", "$(id)", "a\nb", "", "-x", "\udcff", "{}", "*"])
def test_an_item_stays_one_word_whatever_is_in_it(item: str) -> None:
    assert filled(["do", "--", "{}", "x{}y"], item) == ["do", "--", item, f"x{item}y"]


def test_the_item_comes_last_where_no_word_stands_for_it() -> None:
    assert filled(["do", "-k"], "a b") == ["do", "-k", "a b"]


def test_columns_are_numbered() -> None:
    assert filled(["do", "{2}", "{1.}"], "a.b", "c") == ["do", "c", "a"]


def test_a_lone_replacement_string_becomes_a_word_for_each_value() -> None:
    assert filled(["do", "{}", "[{}]", "{/}"], "d/a", "d/b") == ["do", "d/a", "d/b", "[d/a d/b]", "a", "b"]


def test_another_replacement_string_leaves_the_braces_alone() -> None:
    assert filled(["do", "%", "{}", "x%y"], "a", replace="%") == ["do", "a", "{}", "xay"]


def test_an_item_with_too_few_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^item 7 has 1 value, and \{2\} is asked for$"):
        filled(["do", "{2}"], "a")


def test_an_item_with_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^item 7 holds a NUL"):
        filled(["do"], "a\0b")


def test_a_command_longer_than_a_line_of_an_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the command of item 7 is longer than 1,000,000 bytes$"):
        filled(["do"], "a" * 1_000_001)


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "wc {}"],
        ["/bin/bash", "-ec", "wc {.}"],
        ["env", "A=1", "bash", "-o", "pipefail", "-c", "wc {1} | sort"],
        ["nice", "dash", "-e", "-c", "{}"],
    ],
)
def test_an_item_in_the_program_of_a_shell_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"a shell would run what is in an item: write .* which gives it as a param"):
        Template(words)


@pytest.mark.parametrize("words", [["sh", "-c", 'wc "$1"', "sh", "{}"], ["sh", "{}"], ["sh", "file", "-c", "{}"]])
def test_an_item_as_a_parameter_of_a_shell_is_no_mistake(words: list[str]) -> None:
    assert Template(words).program == "sh"


def test_no_command_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^name a command: "):
        Template([])


def test_items_are_lines_and_the_last_needs_no_end() -> None:
    reader = splitter()
    assert [*reader.feed(b"a b\nc"), *reader.feed(b"d\n\ne"), *reader.feed(b"")] == [["a b"], ["cd"], [""], ["e"]]


def test_items_end_at_nuls_and_keep_newlines() -> None:
    reader = splitter(at_nul=True)
    assert [*reader.feed(b"a\nb\0c"), *reader.feed(b"\0"), *reader.feed(b"")] == [["a\nb"], ["c"]]


def test_empty_items_may_be_left_out() -> None:
    reader = splitter(skip_empty=True)
    assert [*reader.feed(b"\na\n\n"), *reader.feed(b"")] == [["a"]]


def test_columns_are_cut_at_a_regular_expression() -> None:
    reader = splitter(colsep=r",\s*")
    assert [*reader.feed(b"a, b,c\n"), *reader.feed(b"")] == [["a", "b", "c"]]


def test_a_wrong_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--colsep \(: is no regular expression: "):
        splitter(colsep="(")


def test_a_command_may_have_many_items_and_the_last_fewer() -> None:
    reader = splitter(size=2)
    assert [*reader.feed(b"a\nb\nc\n"), *reader.feed(b"")] == [["a", "b"], ["c"]]


def test_sources_are_combined() -> None:
    words, sources = split_sources(["do", "{1}", ":::", "a", "b", ":::", "1", "2"])
    assert (words, list(combinations(sources, splitter()))) == (
        ["do", "{1}"], [["a", "1"], ["a", "2"], ["b", "1"], ["b", "2"]]
    )  # fmt: skip


def test_bytes_that_are_no_text_stay_what_they_are() -> None:
    assert list(splitter().feed(b"\xff\n")) == [["\udcff"]]
