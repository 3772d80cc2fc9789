"""`drover quota`: list, set and remove rows of drover.quota, which schedulers follow at once."""

from argparse import Namespace
from typing import Any, Final

import psycopg

from scheduler.cli.database_session import Session, connect
from scheduler.cli.output import as_json, failed, print_rows
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.verbs import LARGEST_NUMBER

NAMED: Final = ("tenant", "user", "queue", "host")  # at least one of them
OPTIONS: Final = (*NAMED, "group")


def list_or_change(options: Namespace, config: Config) -> int:
    """Print the quotas, or set or remove one; 1 if that is refused."""
    given = {name: getattr(options, name) for name in OPTIONS}
    if options.action != "set" and any(given.values()):
        raise ConfigError(f"drover quota {options.action} takes no options: these are for drover quota set")
    with connect(config) as session:
        match options.action:
            case "set":
                name, most = _words(options, "NAME", "MOST")
                return _set(session, name, most, given, json=options.json)
            case "remove":
                (name,) = _words(options, "NAME")
                return _remove(session, name, json=options.json)
        _words(options)
        return print_rows(session.table("", "list_quota"), json=options.json)


def _words(options: Namespace, *names: str) -> list[str]:
    """Return the words that follow the action. Errors: ConfigError, these are too few or too many."""
    if len(options.args) != len(names):
        raise ConfigError(f"the words are {' '.join(['drover quota', options.action, *names])}")
    return list(options.args)


def _set(session: Session, name: str, most: str, given: dict[str, Any], *, json: bool) -> int:
    """Make or replace a quota; without options change its number only. Errors: ConfigError."""
    if not most.isdecimal() or int(most) > LARGEST_NUMBER:
        raise ConfigError(f"MOST is how many jobs may be in hand at once, from 0 (got {most!r})")
    if not any(given.values()):
        if not session.rows("set_quota_most", name=name, most=int(most)):
            return failed(f"no quota {name}; a new one names what it counts: --tenant, --user, --queue or --host")
    elif not any(given[each] for each in NAMED):
        raise ConfigError("--group alone counts nothing: give --tenant, --user, --queue or --host")
    elif unknown := session.rows("unknown_of_quota", **given):
        return failed("; ".join(sentence for (sentence,) in unknown) + "; no quota was set")
    else:
        _insert(session, name, int(most), given)
    print(as_json({"quota": name, "most": int(most)}) if json else f"quota {name}: {most} at once")
    return 0


def _insert(session: Session, name: str, most: int, given: dict[str, Any]) -> None:
    try:
        session.rows("set_quota", name=name, most=most, **given)
    except psycopg.errors.CheckViolation:
        rule = "64 letters, digits, _, . and - at most, the first one no . or -"
        raise ConfigError(f"no quota can have the name {name!r}: {rule}") from None


def _remove(session: Session, name: str, *, json: bool) -> int:
    if not session.rows("remove_quota", name=name):
        return failed(f"no quota {name}; drover quota lists all")
    print(as_json({"quota": name, "removed": True}) if json else f"quota {name}: removed; what waited for it goes on")
    return 0
