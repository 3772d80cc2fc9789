"""The database of a daemon: one that does not answer yet is waited for, so that nobody has to start things in order.

Waits between two tries, which grow longer, by sleeping: there is nothing else to do yet. A schema that is not the right
one is not waited for.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from scheduler.cli.database import located, make_ready
from scheduler.daemon.log import LOG
from scheduler.errors import AbsentError
from scheduler.model.config import Config

FIRST_WAIT_S: Final = 0.2


@contextmanager
def awaited(config: Config) -> Iterator[str]:
    """The conninfo of a database that is there and up to date, as soon as it is, for as long as the block lasts.

    Errors: WorldError if its schema is another, or the embedded one cannot be started.
    """
    with located(config) as conninfo:
        for wait_s in waits(config.scheduler.reconnect_max):
            try:
                make_ready(config, conninfo)
                break
            except AbsentError as error:
                LOG.warning("%s; trying again in %.1f s", " ".join(str(error).split()), wait_s)
            time.sleep(wait_s)
        yield conninfo


def waits(longest: float) -> Iterator[float]:
    """Give seconds to wait, for ever: twice as long each time, less a random part, so that no crowd comes as one."""
    for tries in count():
        whole = FIRST_WAIT_S * 2 ** min(tries, 64)
        yield min(whole, longest) * (0.5 + random.random() / 2)
