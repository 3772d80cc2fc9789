"""Requests that change something: to sign in and out, and to command.

A form is read only as far as one of ours can be long, and carries the token of the person who has signed in; guard.py
has checked before that it comes from one of our pages.
"""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from scheduler.errors import ConfigError
from scheduler.web.pages import Page
from scheduler.web.views import COOKIE, identify, render

LONGEST: Final = 65_536  # bytes
Form = dict[str, list[str]]
Endpoint = Callable[[Request], Awaitable[Response]]


def submitted(act: Callable[[Request, Form], Response]) -> Endpoint:
    """Return the endpoint of a form; `act` runs in a thread, since it waits for the database."""

    async def endpoint(request: Request) -> Response:
        data = b""
        async for part in request.stream():
            data += part
            if len(data) > LONGEST:
                raise HTTPException(413, "the form is too long")
        form = parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=5000)
        identify(request)
        return await run_in_threadpool(act, request, form)

    return endpoint


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


def show_sign_in(request: Request) -> Response:
    """Show the form to sign in; a person with a link that holds the key is signed in by the script of the page."""
    identify(request)
    return render(request, _sign_in_page(request))


def sign_in(request: Request, form: Form) -> Response:
    """Sign in by role and password, or by the key alone; the new cookie is no older one."""
    people = request.app.state.people
    try:
        secret = people.sign_in(last(form, "role").strip(), last(form, "password"))
    except ConfigError as error:
        return render(request, _sign_in_page(request, str(error)), 403)
    people.sign_out(request.cookies.get(COOKIE))
    response = RedirectResponse("/", 303)
    response.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return response


def sign_out(request: Request, _form: Form) -> Response:
    """Sign the person out."""
    request.app.state.people.sign_out(request.cookies.get(COOKIE))
    response = RedirectResponse("/", 303)
    response.delete_cookie(COOKIE)
    return response


def _sign_in_page(request: Request, mistake: str = "") -> Page:
    return Page("sign_in.html", {"mistake": mistake, "has_key": request.app.state.people.has_key}, is_live=False)
