"""`drover hide` and `unhide`: leave jobs out of `drover ls`, and list them again."""

from argparse import Namespace

from scheduler.cli.output import as_json, failed
from scheduler.cli.session import connect
from scheduler.model.config import Config


def hide(options: Namespace, config: Config) -> int:
    """Hide jobs; 1 if one is not there, or another's."""
    return _set(options, config, is_hidden=True)


def unhide(options: Namespace, config: Config) -> int:
    """Show jobs again; 1 if one is not there, or another's."""
    return _set(options, config, is_hidden=False)


def _set(options: Namespace, config: Config, *, is_hidden: bool) -> int:
    status = 0
    with connect(config) as session:
        for job in session.job_numbers(options.jobs):
            if not session.value("hide_job", job=job, is_hidden=is_hidden):
                status = failed(f"no job {job} of yours")
            elif options.json:
                print(as_json({"job": job, "hidden": is_hidden}))
            else:
                print(f"job {job}: {'hidden' if is_hidden else 'shown'}")
    return status
