"""`drover resubmit N...`: what a job asked for once more, as a new job; what becomes of it is seen as of any other."""

from argparse import Namespace

import psycopg

from scheduler.cli.database import connect
from scheduler.cli.orders import numbers
from scheduler.cli.tables import as_json
from scheduler.errors import DroverError
from scheduler.model.config import Config

AGAIN = "select job, drover.job_resubmit(job) from unnest(%s::bigint[]) with ordinality as u(job, n) order by n"


def run(options: Namespace, config: Config) -> int:
    """Print the number of each new job, all or none; 1 if there is no such job."""
    with connect(config) as connection:
        try:
            wanted = list(dict.fromkeys(numbers(connection, options.jobs)))  # a job that is named twice is meant once
            jobs = connection.execute(AGAIN, (wanted,)).fetchall()
        except psycopg.errors.NoDataFound as error:
            raise DroverError(f"{error.diag.message_primary}; drover ls --all lists those there are") from error
        except psycopg.errors.CheckViolation as error:
            raise DroverError(f"{error.diag.message_primary}; nothing was queued") from error
    for old, new in jobs:
        print(as_json({"job": new, "resubmit_of": old}) if options.json else new)
    return 0
