"""Which commands the pages offer: all verbs of the registry that need no word but the name of what they are about.

What a verb does, who may give it and how it is refused is the registry's and the scheduler's; a page only leaves out
what a job in its state would refuse.
"""

from collections.abc import Collection, Mapping
from typing import Final

from starlette.exceptions import HTTPException

from scheduler.cli.database_session import Session
from scheduler.model.states import BLOCKED, JOB_STATES
from scheduler.model.verbs import HOST, JOB, TYPE, VERBS, Verb
from scheduler.web.database_sessions import Login

JOBS, QUEUES, HOSTS, TYPES, SCHEDULES, CONDITIONS = "job", "queue", "host", "agent", "schedule", "condition"
RIGHTS_AGE_S: Final = 30.0
MAY_COMMAND: Final = (
    "members of drover_operator may, and those of drover_frontend, drover_frontend_sql and drover_tenant about their "
    "own jobs"
)
NEEDS_CARE: Final = ("cancel", "killjob", "ice", "agent-disable", "host-disable")  # asked about once more


def _is_about_jobs_alone(verb: Verb) -> bool:
    return verb.about == JOB and all(word.startswith("[") for word in verb.usage.split()[1:])


OFFERED: Final[Mapping[str, tuple[Verb, ...]]] = {
    JOBS: tuple(verb for verb in VERBS.values() if _is_about_jobs_alone(verb)),
    QUEUES: tuple(verb for verb in VERBS.values() if verb.carried_out_by == "pause"),
    HOSTS: tuple(verb for verb in VERBS.values() if (verb.about, verb.usage) == (HOST, "NAME")),
    TYPES: tuple(verb for verb in VERBS.values() if (verb.about, verb.usage) == (TYPE, "NAME")),
    SCHEDULES: tuple(verb for verb in VERBS.values() if verb.usage == "SCHEDULE"),
    CONDITIONS: (VERBS["unblock"],),
}
# States in which a job takes a verb; a verb that is not here is offered in all.
POSSIBLE: Final[Mapping[str, Collection[str]]] = {verb.name: verb.in_bulk for verb in OFFERED[JOBS] if verb.in_bulk} | {
    "unblock": {BLOCKED}
}


def possible(verb: Verb) -> Collection[str]:
    """Return the states in which a job takes a verb."""
    return POSSIBLE.get(verb.name, JOB_STATES)


def require_rights(login: Login, session: Session) -> None:
    """Refuse a form of a role that may give no commands, and say who may. Errors: HTTPException."""
    if not any(rights(login, session).values()):
        raise HTTPException(403, f"role {session.value('role')} may not give commands: {MAY_COMMAND}")


def rights(login: Login, session: Session) -> dict[str, list[Verb]]:
    """Return the verbs that this login may use, by what they are about; none for visitors."""

    def ask() -> dict[str, list[Verb]]:
        may_command = not login.is_visitor and session.value("may_command")
        is_operator = may_command and session.value("is_operator")
        return {
            what: [verb for verb in verbs if is_operator or (may_command and verb.is_for_owners)]
            for what, verbs in OFFERED.items()
        }

    return login.cached("rights", RIGHTS_AGE_S, ask)
