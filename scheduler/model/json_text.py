"""JSON that others wrote, read so that it can be written again: inside of other JSON, and where the stack is deeper."""

import json
import re
from typing import Any, Final

SPARE_DEPTH: Final = 200  # levels between what may be read here and what Python can read at all
_IS_HARD: Final = re.compile(r"\d{300}")
_MANY: Final = 100  # brackets, fewer of which cannot be nested too deep


def read_json(text: str) -> Any:
    """Return the value. Errors: ValueError if it is no JSON, or could not be written again."""
    try:
        value = json.loads(text)
        json.loads("[" * SPARE_DEPTH + text + "]" * SPARE_DEPTH)
        json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text of the database; the text, if programs could not write the value again."""
    if text.count("[") + text.count("{") <= _MANY and not _IS_HARD.search(text):
        return json.loads(text)
    try:
        return read_json(text)
    except ValueError:
        return text
