"""`drover` alone: a greeting, how things are, and the one step that comes next.

Starts nothing: an embedded server that does not run is left so.
"""

import os
from pathlib import Path
from typing import Any, Final

from scheduler.cli.config_files import EMBEDDED, is_embedded_url, load
from scheduler.cli.health import CRITICAL, group_warnings, headline, level_of
from scheduler.cli.output import printable
from scheduler.cli.session import Session, connect
from scheduler.errors import ConfigError, DroverError
from scheduler.model.config import Config
from scheduler.package_data import version

GREETING: Final = "Drover {} drives a queue in Postgres through agents; drover --help lists the commands."
TRY: Final = ("drover demo", "works on real files, with a database of its own")
RUN: Final = ("drover run", "starts a scheduler in this terminal; Ctrl-C ends it")

Step = tuple[str, tuple[str, str]]  # how things are, and a command with what it does


def greet() -> int:
    """Print it; 0 in every situation."""
    situation, (command, does) = _situation()
    print(GREETING.format(version()), printable(situation), "", f"  {command}", f"      {does}", sep="\n")
    return 0


def _situation() -> Step:
    try:
        config = load(None, os.environ)
    except ConfigError as error:
        first, *more = str(error).splitlines()
        others = f"; and {len(more)} more mistakes" if more else ""
        return f"{first}{others}", ("drover check", "says what is wrong with the configuration, and with all it names")
    if is_embedded_url(config.database.url) and not _is_running(config.database.url):
        return "No scheduler runs here yet, and no database is configured: Drover brings one.", TRY
    try:
        with connect(config) as session, session.connection.transaction():
            return _in_database(session, config)
    except DroverError as error:
        return " ".join(str(error).split()), ("drover check", "tries every log-in, and says what to do")


def _is_running(url: str) -> bool:
    from scheduler.database.embedded import default_directory, is_running

    directory = url.removeprefix(EMBEDDED).removeprefix(":")
    return is_running(Path(directory) if directory else default_directory(os.environ))


def _in_database(session: Session, config: Config) -> Step:
    name = config.scheduler.group
    group: dict[str, Any] = session.records("group", group=name)[0] | {"name": name}
    ((live, ended),) = session.rows("queue_in_short")
    head = f"{headline(group)}; jobs: {live:,} wait or run, {ended:,} have ended"
    warnings = list(group_warnings(session, name))
    if not group["active"]:
        return head, RUN
    if warnings:
        worst = next((row for row in warnings if level_of(row) == CRITICAL), warnings[0])
        return f"{head}\n{worst[0]}: {worst[1]}: {worst[3]}", ("drover status", "says what is wrong, and what to do")
    if not live and not ended:
        return head, ("drover submit --wait sha256 /etc/hosts", "queues a first job, and waits for its end")
    if live:
        return head, ("drover why --all", "says what the jobs that have not ended wait for")
    return head, ("drover stats", "says how fast jobs end, and what fails")
