"""Claims about values in HTML: nothing that others wrote is markup, a control character, or another label."""

import html
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from scheduler.cli.output import UNSAFE
from scheduler.web.templating import (
    clock,
    clock_in,
    environment,
    is_one_word,
    labelled,
    lines,
    number,
    query,
    raw,
    readable_json,
    shown,
)

DREW = environment()
TEXT = st.text()


class Reader(HTMLParser):
    """Read a page as a browser does: its tags, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(template: str, **values: object) -> str:
    return DREW.from_string(template).render(**values)


@given(TEXT, st.sampled_from(["{{ x }}", "{{ x | lines }}", "{{ x | readable_json }}", "{{ x | raw }}"]))
def test_no_text_is_markup_or_a_control_character(text: str, template: str) -> None:
    page = drawn(template, x=text)
    assert Reader(page).tags == []
    unseen = {c for c in page if category(c) in UNSAFE} - {"\n", "\t"}
    assert unseen == set() or template == "{{ x | raw }}"


@given(TEXT)
def test_no_text_leaves_the_value_of_a_form(text: str) -> None:
    ((tag, attributes),) = Reader(drawn('<input value="{{ x | raw }}">', x=text)).tags
    assert (tag, [*attributes]) == ("input", ["value"])
    assert not re.search(r"[\x01-\x1f\x7f]", drawn("{{ x | raw }}", x=text))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_form_sends_its_value_back_as_it_was(text: str) -> None:
    written = str(raw(text))
    for code in (*range(1, 32), 127):  # which html.unescape drops
        written = written.replace(f"&#{code};", chr(code))
    assert html.unescape(written) == text


def test_markup_of_ours_stays_and_an_empty_text_is_no_dash() -> None:
    assert drawn("{{ x }}", x=Markup("<b>1</b>")) == "<b>1</b>"
    assert (shown(""), shown(None)) == ("", "-")


def test_lines_of_a_text_stay_lines() -> None:
    assert lines("a\r\nb\tc\rd\x1b") == "a\nb\tc\\rd\\x1b"


def test_json_has_letters_of_any_script() -> None:
    assert readable_json({"a": "\u00e4\u202e"}) == "{&#34;a&#34;: &#34;\u00e4\\u202e&#34;}"


def test_a_link_leaves_out_what_is_empty_and_keeps_a_zero() -> None:
    assert query({"a": "", "b": None, "c": [], "d": (), "e": 0, "f": ["x", "y"]}, e=0) == "?e=0&amp;f=x&amp;f=y"
    assert query({"a": "1"}, a=None) == ""
    assert query({"a": 'x"&<'}) == "?a=x%22%26%3C"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0, "0"), (1234567, "1,234,567")])
def test_thousands_have_commas(value: int | None, text: str) -> None:
    assert number(value) == text


TABLE = Markup(
    '<tr><th class="n">Job</th><th>State <a href="/">x</a></th><th></th></tr>\n'
    '<tr><td>1</td><td class="bad">failed</td><td><input type="checkbox"></td></tr>\n'
    "<tr><td>-</td><td> </td><td><b></b></td><td>more</td></tr>\n"
    '<tr><td colspan="3">none</td></tr>'
)


def test_each_cell_has_the_name_of_its_column() -> None:
    cells = [attributes for tag, attributes in Reader(labelled(TABLE)).tags if tag == "td"]
    assert [each.get("data-label") for each in cells] == ["Job", "State x", "", "Job", "State x", "", "", None]
    assert cells[1]["class"] == "bad"
    assert Reader(labelled(TABLE)).text == Reader(TABLE).text


def test_cells_that_say_nothing_are_marked_but_no_field_of_a_form() -> None:
    cells = [attributes for tag, attributes in Reader(labelled(TABLE)).tags if tag == "td"]
    assert ["data-nothing" in each for each in cells] == [False] * 3 + [True] * 3 + [False] * 2


@pytest.mark.parametrize(("value", "is_word"), [
    ("a", True), (7, True), ("a b", False), (" a", False), ("a ", False), ("", False), ("a\x1b", False),
    ("\u202ea", False),
])  # fmt: skip
def test_a_command_can_name_one_word_of_visible_characters(value: object, is_word: bool) -> None:
    assert is_one_word(value) is is_word


def test_an_instant_of_today_is_shown_without_its_date() -> None:
    now = datetime.now(UTC)
    today, long_ago = Reader(clock(now)), Reader(clock(now - timedelta(days=40)))
    assert re.fullmatch(r"\d\d:\d\d:\d\d", today.text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", long_ago.text)
    assert today.tags[0][1]["datetime"] == now.isoformat()
    assert (clock(None), clock_in(None, "UTC")) == ("-", "-")


def test_an_instant_in_a_time_zone_has_its_offset_and_utc() -> None:
    page = Reader(clock_in(datetime(2026, 7, 1, 22, 30, tzinfo=UTC), "Europe/Berlin"))
    assert page.text == "2026-07-02 00:30:00 +0200"
    assert page.tags == [("time", {"datetime": "2026-07-02T00:30:00+02:00", "title": "2026-07-01 22:30:00 UTC"})]


def test_a_name_that_a_template_does_not_know_is_an_error() -> None:
    with pytest.raises(Exception, match="nosuch"):
        drawn("{{ nosuch }}")
