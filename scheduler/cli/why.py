"""`drover why N`: the reason that the view drover.why gives."""

from argparse import Namespace

from scheduler.cli.complain import no_such_job
from scheduler.cli.database import connect, visible
from scheduler.cli.orders import numbers
from scheduler.cli.text import printable
from scheduler.model.config import Config

REASON = "select reason from drover.why where jq_pk = %s"


def run(options: Namespace, config: Config) -> int:
    """Print one line: why the job is not running, or what became of it."""
    with connect(config) as connection:
        (job,) = numbers(connection, [options.job])
        row = connection.execute(visible(connection, REASON), (job,)).fetchone()
    if row is None:
        return no_such_job(job)
    print(printable(row[0]))
    return 0
