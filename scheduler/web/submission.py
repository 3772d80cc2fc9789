"""The form that queues a job, with the rights of who signed in; what is wrong is said beside its field.

The row is that of `drover submit`: only the columns that were given are named, and the database decides.
"""

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from scheduler.cli.database_session import Session
from scheduler.cli.jobs import instant
from scheduler.cli.submit import COLUMNS, COMMAND, FORCE, MAY_QUEUE, insert_statement, refusal, right_to_sql
from scheduler.errors import ConfigError, DroverError
from scheduler.web import offered_verbs
from scheduler.web.database_sessions import writing
from scheduler.web.pages import Page, known_values
from scheduler.web.request_handling import Form, last, render, session_of
from scheduler.web.sign_in import Person

FIELDS: Final = ("type", "kind", "args", "queue", "priority", "not_before")
PARAMETER, QUERY = "parameter", "sql"
FIELD_OF_RULE: Final = {
    "jobqueue_jq_priority_check": "priority", "jobqueue_start_window_is_of_dates": "not_before",
}  # fmt: skip
FIELD_OF_COLUMN: Final = {COLUMNS[name]: name for name in ("type", "queue", "priority", "not_before")}
ANYWHERE: Final = "form"  # in place of a field: what is wrong with all of it
OPTION: Final = "not before"
NO_RIGHT: Final = f"role {{}} may not queue jobs: {MAY_QUEUE} may"

Values = Mapping[str, str]
Mistakes = dict[str, str]  # by field


def show(request: Request, session: Session) -> Page:
    """Show the empty form."""
    if request.state.person is None:
        raise HTTPException(403, "sign in first")
    return _page(request, session, dict.fromkeys(FIELDS, "") | {"kind": PARAMETER}, {})


def submit(request: Request, form: Form) -> Response:
    """Queue the job and lead to its page, or show the form again with what is wrong."""
    person: Person = request.state.person
    values = {name: last(form, name).replace("\r\n", "\n") for name in FIELDS}
    with session_of(request) as session:
        if not _rights(request, session)["may_insert"]:
            raise HTTPException(403, NO_RIGHT.format(session.value("role")))
        given, mistakes = _read(session, values)
    try:
        if not mistakes:
            with session_of(request) as session:
                job = _insert(session, given, values["args"])
            person.note("good", f"job {job} was queued")
            return RedirectResponse(f"/jobs/{job}", 303)
    except DroverError as error:
        mistakes = {_field_of(error): str(error)}
    with session_of(request) as session:
        page = _page(request, session, values, mistakes)
        page.values["verbs"] = offered_verbs.rights(person.login, session)
    return render(request, page, 422)


def _page(request: Request, session: Session, values: Values, mistakes: Mistakes) -> Page:
    role = session.value("role")
    shown = {
        "values": values,
        "mistakes": mistakes,
        "known": known_values(request, session),
        "role": role,
        "no_right": NO_RIGHT.format(role),
        **_rights(request, session),
    }
    return Page("submit.html", shown, is_live=False)


def _rights(request: Request, session: Session) -> dict[str, bool]:
    """Return whether the role may queue jobs, and such whose parameter is a query."""
    found: dict[str, bool] = request.state.login.cached(
        "may_submit", offered_verbs.RIGHTS_AGE_S, lambda: session.records("may_submit")[0]
    )
    return found


def _read(session: Session, values: Values) -> tuple[dict[str, Any], Mistakes]:
    """Return the columns that were given, and what is wrong with which field."""
    mistakes = {name: "there is a NUL character in it" for name, value in values.items() if "\0" in value}
    if mistakes:
        return {}, mistakes
    given: dict[str, Any] = {
        COLUMNS[name]: value for name in ("type", "queue", "priority") if (value := values[name].strip())
    }
    if values["kind"] == QUERY:
        given[COLUMNS["sql"]] = True
        if not values["args"].strip():
            mistakes["args"] = "write a query, whose rows are the work items"
    try:
        text = values["not_before"].strip() or None
        if (at := instant(session, OPTION, text, sign=1)) is not None:
            given[COLUMNS["not_before"]] = at
    except ConfigError as error:
        mistakes["not_before"] = str(error).removeprefix(f"{OPTION}: ")
    return given, _refusals(session, given) | mistakes


def _refusals(session: Session, given: Mapping[str, Any]) -> Mistakes:
    """Return why no agent would take such a job: for its type, or for its queue."""
    kind, queue = given.get(COLUMNS["type"], ""), given.get(COLUMNS["queue"])
    if not kind:
        return {"type": "choose an agent type"}
    if kind == COMMAND:
        return {"type": "commands have buttons on the other pages"}
    if reason := refusal(session, kind, None, None, force=False):
        return {"type": reason.removesuffix(f", or {FORCE}")}
    if queue and (reason := refusal(session, kind, queue, None, force=False)):
        return {"queue": reason.removesuffix(f", or {FORCE}")}
    return {}


def _insert(session: Session, given: Mapping[str, Any], text: str) -> int:
    with right_to_sql(session, given), writing(session):
        row = session.connection.execute(insert_statement(given), [*given.values(), [text]]).fetchone()
    assert row
    return int(row[0])


def _field_of(error: DroverError) -> str:
    """Return the field that an answer of the database is about."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error):
        return ANYWHERE
    rule, column = cause.diag.constraint_name or "", cause.diag.column_name or ""
    return FIELD_OF_RULE.get(rule) or FIELD_OF_COLUMN.get(column) or ANYWHERE
