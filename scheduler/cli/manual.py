"""`drover run N...`: jobs that wait to be run by hand, run now and waited for, and what they wrote.

The scheduler runs them; the command row ends when the last has, with what became of each.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from scheduler.cli.complain import warn
from scheduler.cli.database import connect
from scheduler.cli.orders import answered, numbers, status
from scheduler.cli.tables import as_json
from scheduler.cli.text import printable, printable_lines
from scheduler.model.config import Config


def run(options: Namespace, config: Config) -> int:
    """Print what became of each job and its output, or all as one JSON object; 1 if one failed or was not run."""
    with connect(config) as connection:
        words = " ".join(["run", *map(str, numbers(connection, options.jobs))])
        answers = answered(connection, [words], options.wait)
    results = [answer.result or {"jobs": {}, "errors": {"command": answer.text}} for answer in answers]
    for result in results:
        if options.json:
            print(as_json(result))
        else:
            _show(result)
    return status(answers, 1, options.wait) or int(not all(map(_went_well, results)))


def _went_well(result: Mapping[str, Any]) -> bool:
    return not result["errors"] and all(job and job["result"] == "ok" for job in result["jobs"].values())


def _show(result: Mapping[str, Any]) -> None:
    """A line for each job, then its output as it was written; what it said on stderr, and errors, on stderr."""
    for pk, job in result["jobs"].items():
        if job is None:
            warn(f"job {pk} is gone")
            continue
        facts = [pk, job["result"], *(str(job[key]) for key in ("code", "signal") if job[key] is not None)]
        print(printable(" ".join(facts)))
        for stream, text in ((sys.stdout, job["stdout"]), (sys.stderr, job["stderr"])):
            stream.write(printable_lines(text or "") if stream.isatty() else text or "")
            stream.flush()
    for reason in result["errors"].values():
        warn(reason)
