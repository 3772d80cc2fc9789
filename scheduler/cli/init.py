"""`drover init`: the schema, and the roles on demand."""

from argparse import Namespace

from scheduler.cli.database import located, translated
from scheduler.database import migrate
from scheduler.model.config import Config


def run(options: Namespace, config: Config) -> int:
    """Apply what is missing and say what that was; running it again does nothing."""
    with located(config) as conninfo, translated():
        applied = [f"applied {name}" for name in migrate.apply(conninfo)]
        print(*applied or ["nothing to do"], sep="\n")
        if options.roles:
            migrate.apply_roles(conninfo)
            print("applied roles")
        elif applied and migrate.has_roles(conninfo):
            print("the roles have no rights yet on what is new: run drover init --roles")
    return 0
