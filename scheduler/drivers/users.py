"""Users of this machine that agents run as: who they are, and what it takes to start and end processes of theirs.

Reads the accounts and our own capabilities. Refuses to know what an agent does.
"""

import os
import pwd
from collections.abc import Iterator
from typing import Final

from scheduler.model.config import Config, Contradiction

STATUS: Final = "/proc/self/status"
EFFECTIVE, AMBIENT = "CapEff", "CapAmb"
NEEDED: Final = {"CAP_SETUID": 7, "CAP_SETGID": 6, "CAP_KILL": 5}  # capabilities(7): to become others, to signal them
NO_CAPABILITIES: Final = ("--inh-caps=-all", "--ambient-caps=-all")  # of setpriv(1): else they would outlive the change


def user_mistakes(config: Config) -> Iterator[Contradiction]:
    """Every type whose user is not there, or whose processes this process may not start and end."""
    missing = [name for name, bit in NEEDED.items() if not capabilities(EFFECTIVE) >> bit & 1]
    for name, agent in config.agents.items():
        account = _account(agent.user)
        if agent.user and account is None:
            yield ("agents", name, "user"), "is no user of this machine"
        elif account is not None and missing and account.pw_uid != os.geteuid():
            yield ("agents", name, "user"), f"needs a daemon that is root, or that has {', '.join(missing)}"


def switching(user: str) -> tuple[str, ...]:
    """Return the options of setpriv(1) that make a process this user's, with all its groups; none if nothing changes.

    Our ambient capabilities, if we have any, are for us alone: agents of our own user lose them too.
    Errors: OSError, there is no such user.
    """
    account = _account(user)
    if user and account is None:
        raise FileNotFoundError(2, "there is no such user", user)
    if account is None or account.pw_uid == os.geteuid():
        return NO_CAPABILITIES if capabilities(AMBIENT) else ()
    groups = ",".join(map(str, os.getgrouplist(user, account.pw_gid)))
    return (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", f"--groups={groups}", *NO_CAPABILITIES)


def environment(user: str) -> dict[str, str]:
    """Return the environment variables that name a user; none for our own."""
    account = _account(user)
    if account is None:
        return {}
    return {"HOME": account.pw_dir, "USER": user, "LOGNAME": user, "SHELL": account.pw_shell or "/bin/sh"}


def capabilities(which: str) -> int:
    """Return one of our sets of capabilities, one bit each."""
    with open(STATUS, encoding="ascii", errors="replace") as status:
        return next((int(line.split()[1], 16) for line in status if line.startswith(f"{which}:")), 0)


def _account(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user) if user else None
    except KeyError:
        return None
