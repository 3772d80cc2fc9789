"""`drover subscribe`, `unsubscribe`, `subscriptions` and `events`: subscribe, list deliveries, print and post events.

The functions of the database refuse what a role may not subscribe to; nothing here decides it.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from scheduler.cli.database_session import Session, connect
from scheduler.cli.jobs import interval
from scheduler.cli.output import as_json, failed, print_rows, warn
from scheduler.errors import ConfigError
from scheduler.model.config import Config

ABOUT: Final = ("job", "owner", "tenant", "site")


def subscribe(options: Namespace, config: Config) -> int:
    """Subscribe, and print the number; where a secret was made, that too: it is shown only once."""
    if sum(bool(getattr(options, each)) for each in ABOUT) > 1:
        raise ConfigError("one of JOB, --owner, --tenant and --site at most: see drover subscribe --help")
    with connect(config) as session:
        ((number, secret),) = session.rows(
            "subscribe", kind=options.kind, job=None if options.job is None else session.job_number(options.job),
            owner=options.owner, tenant=options.tenant, is_site=options.site, targets=options.to or [],
            ttl=interval("--ttl", options.ttl), most=options.most, secret=_secret(options.secret_file),
        )  # fmt: skip
        if options.to and not session.value("is_notify_served"):
            warn("no scheduler serves agent type notify: deliveries wait until one does; see drover-agent(7)")
    shown = secret if options.to else None
    if options.json:
        print(as_json({"subscription": number, "secret": shown}))
    else:
        print(f"subscription {number}" + (f"\nsecret {shown}" if shown else ""))
    return 0


def _secret(name: str | None) -> str | None:
    """Return the secret in a file; an option would show it to all who see processes."""
    try:
        return None if name is None else (sys.stdin.read() if name == "-" else Path(name).read_text()).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--secret-file {name}: {error}") from None


def unsubscribe(options: Namespace, config: Config) -> int:
    """Remove subscriptions; 1 if one is not there, or another's."""
    with connect(config) as session:
        return _each(session, "unsubscribe", options, "removed")


def subscriptions(options: Namespace, config: Config) -> int:
    """Print subscriptions and the state of their deliveries, or switch some on or off."""
    with connect(config) as session:
        if options.action != "list":
            return _each(session, f"{options.action}_subscription", options, f"{options.action}d")
        if options.subscriptions:
            raise ConfigError("too many words: drover subscriptions [list]")
        return print_rows(session.table("", "list_subscriptions"), json=options.json)


def _each(session: Session, statement: str, options: Namespace, done: str) -> int:
    status = 0
    for number in options.subscriptions:
        if not session.value(statement, subscription=number):
            status = failed(f"no subscription {number}; drover subscriptions lists all")
        elif options.json:
            print(as_json({"subscription": number, done: True}))
        else:
            print(f"subscription {number}: {done}")
    return status


def events(options: Namespace, config: Config) -> int:
    """Print events, the deliveries of them or the dead letters, or post one about a job."""
    if sum((options.deliveries, options.dead, options.post is not None)) > 1:
        raise ConfigError("one of --post, --deliveries and --dead at most")
    with connect(config) as session:
        job = None if options.job is None else session.job_number(options.job)
        if options.post is not None:
            return _post(session, options, job)
        name = "list_dead_letters" if options.dead else "list_deliveries" if options.deliveries else "list_events"
        table = session.table("", name, job=job, limit=options.rows or None, offset=options.offset)
    return print_rows(table, json=options.json)


def _post(session: Session, options: Namespace, job: int | None) -> int:
    if job is None:
        raise ConfigError("--post is about a job: drover events JOB --post TEXT")
    number = session.value("post_event", job=job, text=options.post)
    print(as_json({"event": number, "job": job}) if options.json else f"event {number}")
    return 0
