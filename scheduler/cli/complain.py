"""What went wrong without being an error: one line on stderr, and exit status 1."""

import sys

from scheduler.cli.text import printable


def warn(message: str) -> None:
    """Say something that goes beside the output."""
    print("drover:", printable(message), file=sys.stderr, flush=True)


def failed(message: str) -> int:
    """Say why it could not be done, and give the exit status for that."""
    warn(message)
    return 1


def no_such_job(job: int) -> int:
    """The job was never there, or has been flushed."""
    return failed(f"no job {job}; drover ls --all lists those there are")
