"""Findings of a check: a line each, and the exit status that follows from all of them."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Final, Literal

from scheduler.cli.output import as_json, printable

OK: Literal["ok"] = "ok"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"
Finding = tuple[Literal["ok", "WARN", "FAIL"], str]

FAILED: Final = 1


def shown(finding: Finding) -> str:
    """Return a finding as a line for people."""
    severity, text = finding
    return f"{severity:4} {printable(' '.join(text.split()))}"


def shown_as_json(finding: Finding) -> str:
    """Return it as an object of JSON."""
    severity, text = finding
    return as_json({"finding": severity.lower(), "text": " ".join(text.split())})


def shown_as(options: Namespace) -> Callable[[Finding], str]:
    """Return which of these the options ask for."""
    return shown_as_json if options.json else shown


def print_findings(findings: Iterable[Finding], show: Callable[[Finding], str] = shown) -> int:
    """Print each finding as it comes, as a line; return the exit status."""
    status = 0
    for finding in findings:
        print(show(finding), flush=True)
        status = FAILED if finding[0] == FAIL else status
    return status
