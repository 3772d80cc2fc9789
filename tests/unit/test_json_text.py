"""Claims about JSON that others wrote: what is read can be written again, inside of other JSON."""

import json

import pytest

from scheduler.model.json_text import json_or_text, read_json

DEEP = "[" * 5000 + "]" * 5000
NUMBER = "9" * 5000  # more digits than Python reads


@pytest.mark.parametrize("text", ['{"a": [1, null]}', "7", '"x"', "[" * 50 + "]" * 50])
def test_json_is_read(text: str) -> None:
    assert read_json(text) == json.loads(text) == json_or_text(text)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", NUMBER])
def test_what_could_not_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(text)


def test_json_that_is_nested_too_deep_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match="it is nested too deep"):
        read_json(DEEP)


def test_json_that_fits_alone_and_not_inside_of_other_json_is_refused() -> None:
    depth = next(n for n in range(100, 5000) if not is_readable("[" * n + "]" * n))
    text = "[" * (depth - 100) + "]" * (depth - 100)
    assert json.loads(text)
    with pytest.raises(ValueError, match="deep"):
        read_json(text)


def is_readable(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return False
    return True


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 200 + "1" + "}" * 199 + "]", f"[{NUMBER}]"])
def test_a_value_that_programs_could_not_write_stays_text(text: str) -> None:
    assert json_or_text(text) == text


def test_a_long_value_that_is_not_deep_is_read() -> None:
    assert json_or_text("[" + "[1]," * 200 + "[2]]")[-1] == [2]
