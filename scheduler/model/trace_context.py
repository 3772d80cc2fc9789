"""The variable `traceparent` of a job: the trace that it belongs to, as in W3C Trace Context, level 1.

Shape: version, number of the trace, of the parent and flags, as lower-case hexadecimal digits with a dash between. What
has another shape is no trace, and is left alone: that is how the recommendation treats it.
"""

import re
from collections.abc import Mapping
from typing import Final

PARENT, STATE = "traceparent", "tracestate"  # variables of a job; its agent has them in capitals
SHAPE: Final = re.compile(
    "(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-.*)?"
)


def trace_id(parent: str | None) -> str | None:
    """Return the number of the trace; None if this is no traceparent. Later versions may have more parts."""
    found = SHAPE.fullmatch(parent or "")
    if found is None or (found["more"] and found["version"] == "00"):
        return None
    return found["trace"]


def trace_environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return what an agent gets of a job that belongs to a trace: a state means nothing without its parent."""
    if trace_id(variables.get(PARENT)) is None:
        return {}
    return {name.upper(): value for name in (PARENT, STATE) if (value := variables.get(name))}
