"""`drover setup NAME`: a job by its name and its variables on standard input, held until it is released.

What a variable means is decided in the database, by drover.job_setup; a job of that name that is there already is
left as it is, so that a script may set up again what it did not see the end of.
"""

import sys
from argparse import Namespace

import psycopg
from psycopg.types.json import Jsonb

from scheduler.cli.assignments import assignments
from scheduler.cli.complain import warn
from scheduler.cli.database import connect
from scheduler.errors import ConfigError
from scheduler.model.config import Config

SETUP = "select jq_pk, existed from drover.job_setup(%s, %s)"


def run(options: Namespace, config: Config) -> int:
    """Print the number of the job, and say so if it was there before."""
    settings = assignments(sys.stdin.buffer.read())
    if options.priority is not None:
        settings["jq_priority"] = options.priority
    with connect(config) as connection:
        try:
            row = connection.execute(SETUP, (options.name, Jsonb(settings))).fetchone()
        except psycopg.errors.UndefinedParameter as error:
            raise ConfigError(f"{error.diag.message_primary}; nothing was set up") from error
    assert row is not None
    job, existed = row
    if existed:
        warn(f"{options.name} exists already; it was left as it is")
    print(job)
    return 0
