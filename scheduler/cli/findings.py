"""What a check has found: a line each, and the exit status that follows from all of them."""

from collections.abc import Iterable
from typing import Final, Literal

from scheduler.cli.output import printable

OK: Literal["ok"] = "ok"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"
Finding = tuple[Literal["ok", "WARN", "FAIL"], str]

FAILED: Final = 1


def print_findings(findings: Iterable[Finding]) -> int:
    """Print each finding as it comes, as a line; return the exit status."""
    status = 0
    for severity, text in findings:
        print(f"{severity:4} {printable(' '.join(text.split()))}", flush=True)
        status = FAILED if severity == FAIL else status
    return status
