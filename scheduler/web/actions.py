"""Commands from the pages: rows of drover.jobqueue, inserted by drover.command with the rights of who signed in.

About one thing, about marked jobs, or about all jobs that a filter finds, after a page that says how many these are.
"""

import re
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from scheduler.cli.answers import insert, sentence, waits
from scheduler.cli.arguments import PATIENCE_S
from scheduler.cli.database_session import Session
from scheduler.cli.output import as_json
from scheduler.errors import DroverError
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import SEE_RESULT, CommandError, Verb, parse, quoted
from scheduler.web import job_filter, offered_verbs
from scheduler.web.database_sessions import writing
from scheduler.web.pages import Page
from scheduler.web.request_handling import Form, last, session_of
from scheduler.web.sign_in import Person

MOST: Final = 5000  # commands at once
WAIT_S: Final = 2.0  # for the answers to a few
FEW: Final = 50
LOOK_S: Final = 0.05
OWN_PATH: Final = re.compile(r"/(?:[A-Za-z0-9_%?&=.+~-][A-Za-z0-9/_%?&=.+~-]*)?")


def act(request: Request, form: Form) -> Response:
    """Insert a command about each thing that is named; the page that sent the form shows the answers."""
    person: Person = request.state.person
    verb = _verb(last(form, "about"), last(form, "verb"))
    with session_of(request) as session:
        offered_verbs.require_rights(person.login, session)
    words = [word for word in dict.fromkeys(form.get("word", [])) if word.strip()]
    if not words:
        person.note("bad", f"{verb.name}: nothing was marked; no command was sent")
    else:
        is_queue = last(form, "about") == offered_verbs.QUEUES
        _give(request, [f"{verb.name} {quoted(word) if is_queue else word}" for word in words[:MOST]])
    return _back(form)


def act_on_all(request: Request, form: Form) -> Response:
    """Insert one command about all jobs that a filter finds, if they are as many as the page said, or fewer."""
    person: Person = request.state.person
    verb = _verb(offered_verbs.JOBS, last(form, "verb"))
    wanted = job_filter.read(form)
    states = _states(wanted, verb)
    with session_of(request) as session:
        offered_verbs.require_rights(person.login, session)
        jobs = sum(count for state, count in _counts(session, wanted).items() if state in states)
        now = session.value("now")
    if jobs > (job_filter.number(last(form, "count")) or 0):
        person.note("bad", f"{verb.name}: there are more such jobs by now, {jobs}; look, and send it again")
        return RedirectResponse(f"/jobs/all{job_filter.link(wanted)}", 303)
    if states and verb.in_bulk:
        _give(request, [verb.name], wanted.of_command(states, now))
    return RedirectResponse(f"/jobs{job_filter.link(wanted)}", 303)


def confirm(request: Request, session: Session) -> Page:
    """Show how many jobs a filter finds, and the commands that may be given about all of them."""
    if request.state.person is None:
        raise HTTPException(403, "sign in first")
    wanted = job_filter.read(job_filter.of_request(request.query_params))
    counts = _counts(session, wanted)
    offers = [
        (verb, sum(counts.get(state, 0) for state in verb.in_bulk))
        for verb in offered_verbs.rights(request.state.login, session)[offered_verbs.JOBS]
    ]
    values = {"filter": wanted, "counts": counts, "offers": [offer for offer in offers if offer[1]]}
    return Page("bulk_action.html", values, is_live=False)


def _counts(session: Session, wanted: job_filter.Filter) -> dict[str, int]:
    """Return how many jobs a filter finds in each state."""
    with session.expecting_many_jobs():
        found = {row["state"]: row["jobs"] for row in session.records("count_jobs", **wanted.parameters())}
    return {state: found[state] for state in JOB_STATES if state in found}


def _states(wanted: job_filter.Filter, verb: Verb) -> list[str]:
    """Return the states that a filter finds and in which a job takes the verb."""
    return [state for state in offered_verbs.possible(verb) if state in (wanted.states or JOB_STATES)]


def _verb(what: str, name: str) -> Verb:
    for verb in offered_verbs.OFFERED.get(what, ()):
        if verb.name == name:
            return verb
    raise HTTPException(400, "there is no such command here")


def _give(request: Request, commands: Sequence[str], chosen: Mapping[str, Any] | None = None) -> None:
    """Insert the commands, all or none, and note the answers that come at once. `chosen`: the filter of one."""
    person: Person = request.state.person
    try:
        for words in commands if chosen is None else ():
            parse(words)
        with session_of(request) as session:
            with writing(session):
                sent = insert(session, commands, PATIENCE_S, chosen)
            for kind, text in _notes(session, sent):
                person.note(kind, text)
    except (CommandError, DroverError) as error:
        person.note("bad", f"{error}; no command was sent")


def _notes(session: Session, sent: Sequence[int]) -> list[tuple[str, str]]:
    if not session.value("is_any_scheduler_active"):
        return [("bad", f"no scheduler is active: {_commands(len(sent))} for one, {PATIENCE_S:g} s at most")]
    answers = _answers(session, sent) if len(sent) <= FEW else []
    notes = [("good" if answer["ok"] else "bad", _text(answer)) for answer in answers]
    if left := len(sent) - len(answers):
        found = waits(session, sent)
        why = f" ({sentence(found[0])})" if found and not found[0]["done"] else ""
        notes.append(("", f"{_commands(left)} for the scheduler, which comes to them in turn{why}"))
    return list(dict.fromkeys(notes))


def _commands(count: int) -> str:
    return "one command waits" if count == 1 else f"{count} commands wait"


def _text(answer: dict[str, Any]) -> str:
    return f"{answer['words']}: {as_json(answer['result']) if answer['text'] == SEE_RESULT else answer['text']}"


def _answers(session: Session, sent: Sequence[int]) -> list[dict[str, Any]]:
    """Return the answers that come in time."""
    until = monotonic() + WAIT_S
    while True:
        found = session.records("answers", commands=list(sent))
        if len(found) == len(sent) or monotonic() > until:
            return found
        sleep(LOOK_S)


def _back(form: Form) -> Response:
    """Redirect to the page of ours that sent the form."""
    path = last(form, "back")
    return RedirectResponse(path if OWN_PATH.fullmatch(path) else "/", 303)
