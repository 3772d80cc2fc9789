"""`drover out N`: what the programs of a job wrote, exactly as they wrote it."""

import sys
from argparse import Namespace

from scheduler.cli.complain import no_such_job
from scheduler.cli.database import connect
from scheduler.cli.text import printable_lines
from scheduler.model.config import Config

JOB = "select jq_attempt from drover.jobqueue where jq_pk = %s"
OUTPUT = """
select out_data from drover.output
 where out_jq_fk = %s and out_attempt = %s and out_stream = %s order by out_pk
"""


def run(options: Namespace, config: Config) -> int:
    """Print one stream of the latest attempt; on a terminal, control characters are escaped."""
    with connect(config) as connection:
        attempt = connection.execute(JOB, (options.job,)).fetchone()
        if attempt is None:
            return no_such_job(options.job)
        stream = "err" if options.errors else "out"
        write = _write_safely if sys.stdout.isatty() else sys.stdout.write
        for (text,) in connection.execute(OUTPUT, (options.job, *attempt, stream)):
            write(text)
    return 0


def _write_safely(text: str) -> int:
    return sys.stdout.write(printable_lines(text))
