"""Handles requests: finds who asks and which session reads the database for them, and turns errors into pages.

A form is read only as far as one of ours can be long, and carries the token of the person who has signed in; the guard
has checked before that it comes from one of our pages.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scheduler.cli.database_session import Session
from scheduler.errors import ConfigError, WorldError
from scheduler.web import job_filter
from scheduler.web.database_sessions import shows_states_only
from scheduler.web.live_updates import OF_ROLE, Changes
from scheduler.web.offered_verbs import NEEDS_CARE, possible, rights
from scheduler.web.pages import Draw, Page
from scheduler.web.password_pauses import neighbourhood

COOKIE: Final = "drover"
LOG: Final = logging.getLogger("uvicorn.error")
LONGEST_FORM: Final = 65_536  # bytes
MOST_FIELDS: Final = 5000

Form = dict[str, list[str]]
Endpoint = Callable[[Request], Awaitable[Response]]


class SignInNeededError(Exception):
    """Visitors may not see this."""


def drawn(draw: Draw) -> Callable[[Request], Response]:
    """Return the endpoint of a page; it runs in a thread, since it waits for the database."""

    def endpoint(request: Request) -> Response:
        with session_of(request) as session:
            page = draw(request, session)
            page.values["verbs"] = rights(request.state.login, session)
        return render(request, page)

    return endpoint


@contextmanager
def session_of(request: Request) -> Iterator[Session]:
    """Yield a session of who asks. Errors: SignInNeededError if a visitor would see data of jobs."""
    identify(request)
    with request.state.login.session() as session:
        if request.state.person is None and not shows_states_only(session):
            raise SignInNeededError
        yield session


def identify(request: Request) -> None:
    """Set `person`, None for a visitor, and `login`, of the database, in the state of a request."""
    person = request.app.state.people.find(request.cookies.get(COOKIE))
    request.state.person = person
    request.state.login = person.login if person else request.app.state.visitors


def render(request: Request, page: Page, status: int = 200) -> Response:
    """Return a page as HTML, with what all pages have."""
    person = request.state.person
    html = request.app.state.templates.get_template(page.template).render(
        page.values, page=page, request=request, person=person, path=request.url.path,
        here=f"{request.url.path}?{request.url.query}".rstrip("?"), possible=possible, needs_care=NEEDS_CARE,
        notes=person.take_notes() if person else [],
    )  # fmt: skip
    return HTMLResponse(html, status)


async def changes(request: Request) -> Response:
    """Return a stream of server-sent events: changes of all, or of one job if the login may see it."""
    job = job_filter.number(request.query_params.get("job", ""))

    def has_seen() -> bool:
        with session_of(request) as session:
            return job is None or bool(session.rows("job_reason", job=job))

    told: Changes = request.app.state.changes
    if not await run_in_threadpool(has_seen):
        return PlainTextResponse("no such job\n", 404)
    person = request.state.person
    visitor = f"{OF_ROLE}{person.name}" if person else address_of(request)
    if not told.has_place(visitor):
        return PlainTextResponse("too many browsers wait for changes\n", 503)
    return ChangesResponse(told, visitor, told.messages(job, lambda: request.app.state.people.knows(person)))


class ChangesResponse(StreamingResponse):
    """A stream of changes, which has a place from the moment in which it is sent."""

    def __init__(self, told: Changes, visitor: str, messages: AsyncIterator[str]) -> None:
        headers = {"x-accel-buffering": "no"}
        super().__init__(messages, media_type="text/event-stream", headers=headers)
        self._told, self._visitor = told, visitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._told.place(self._visitor):
            await super().__call__(scope, receive, send)


def address_of(request: Request) -> str:
    """Return the address of who asks; a proxy on this machine says it, see drover(1)."""
    return neighbourhood(request.client.host if request.client else "")


def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    identify(request)
    return render(
        request, Page("error.html", {"title": _title(error), "text": error.detail}, is_live=False), error.status_code
    )


def _title(error: HTTPException) -> str:
    return "Not found" if error.status_code == HTTPStatus.NOT_FOUND else "This cannot be done"


def failed(request: Request, error: Exception) -> Response:
    """Return what is wrong with the database, or that the role lacks a right."""
    LOG.warning("%s: %s", request.url.path, " ".join(str(error).split()))
    status = 503 if isinstance(error, WorldError) else 403 if isinstance(error, ConfigError) else 500
    text = "Visitors do not see this." if status == 403 and request.state.person is None else str(error)
    return render(request, Page("error.html", {"title": "This cannot be shown", "text": text}, is_live=False), status)


def ask_to_sign_in(request: Request, _error: Exception) -> Response:
    if request.url.path == "/changes":
        return PlainTextResponse("sign in first\n", 403)
    return RedirectResponse("/sign-in", 303)


# ---- forms


def submitted(act: Callable[[Request, Form], Response]) -> Endpoint:
    """Return the endpoint of a form; `act` runs in a thread, since it waits for the database."""

    async def endpoint(request: Request) -> Response:
        form = _form(await _body(request))
        identify(request)
        return await run_in_threadpool(act, request, form)

    return endpoint


async def _body(request: Request) -> bytes:
    data = b""
    try:
        async for part in request.stream():
            data += part
            if len(data) > LONGEST_FORM:
                raise HTTPException(413, "the form is too long")
    except ClientDisconnect as error:
        raise HTTPException(400, "the form was cut short") from error
    return data


def _form(data: bytes) -> Form:
    try:
        return parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(400, f"the form has more than {MOST_FIELDS} fields") from error


def with_token(act: Callable[[Request, Form], Response]) -> Callable[[Request, Form], Response]:
    """Refuse a form that was not made for the person who has signed in."""

    def checked(request: Request, form: Form) -> Response:
        person = request.state.person
        if person is None or not person.owns(last(form, "token")):
            raise HTTPException(403, "sign in, and send the form again from its page")
        return act(request, form)

    return checked


def last(form: Form, name: str) -> str:
    """Return the value of a field, or an empty text."""
    return form.get(name, [""])[-1]
