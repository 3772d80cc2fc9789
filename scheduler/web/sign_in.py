"""Who has signed in: the cookie, the token in every form, and what each may do.

Two ways in, see man/decisions. With a role of the database and its password: the database decides whether they are
right, and what that role sees and may command. With the key that `drover web` prints on a terminal: whoever can read
it acts by the login of that command. What a session needs is kept in memory, and forgotten after some idle hours.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import psycopg
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from scheduler.errors import ConfigError, WorldError
from scheduler.web import role_logins
from scheduler.web.database_sessions import REFUSED, Login
from scheduler.web.pages import Page
from scheduler.web.password_pauses import Pauses
from scheduler.web.request_handling import COOKIE, LOG, Form, address_of, failed, identify, last, render

IDLE_S: Final = 8 * 3600.0
MOST: Final = 1000  # people who have signed in
MOST_OF_ROLE: Final = 20
TRIES_AT_ONCE: Final = 8
TRY_WAIT_S: Final = 5.0  # for one of these
LONGEST: Final = 1000  # characters of a role or password


@dataclass(slots=True)
class Person:
    """One browser in which a person has signed in."""

    role: str  # empty for those with the key
    login: Login
    token: str = field(default_factory=secrets.token_urlsafe)  # of forms
    seen: float = 0.0
    notes: list[tuple[str, str]] = field(default_factory=list)  # (kind, text), shown once

    @property
    def name(self) -> str:
        return self.role or "key"

    def note(self, kind: str, text: str) -> None:
        """Keep a note for the next page."""
        self.notes.append((kind, text))

    def take_notes(self) -> list[tuple[str, str]]:
        """Return the notes, which are shown once."""
        notes, self.notes = self.notes, []
        return notes

    def visit(self, now: float) -> None:
        """Note the time of a visit."""
        self.seen = now

    def owns(self, token: str) -> bool:
        """Return whether a form was made for this person."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class People:
    """The people who have signed in, by the secret in the cookie."""

    def __init__(self, conninfo: str, key: str, now: Callable[[], float] = time.monotonic) -> None:
        self._conninfo, self._key, self._now = conninfo, key, now
        self._people: dict[str, Person] = {}
        self._own = Login(conninfo, is_visitor=False)
        self._lock = threading.Lock()
        self._pauses = Pauses(now)
        self._tries = threading.BoundedSemaphore(TRIES_AT_ONCE)

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def find(self, secret: str | None) -> Person | None:
        """Return the person with this cookie, or None, and note the time of this visit."""
        person = self._people.get(secret or "")
        if person:
            person.visit(self._now())
        return person

    def knows(self, person: Person | None) -> bool:
        """Return whether this person is still signed in. None stands for a visitor, who needs no sign-in: True."""
        return person is None or person in self._people.values()

    def sign_in(self, role: str, password: str, address: str = "") -> str:
        """Return the secret of a new cookie. Errors: ConfigError, what is wrong with role or password."""
        login = self._login(role, password, address) if role else self._own_login(password)
        self.close_idle()
        secret = secrets.token_urlsafe()
        with self._lock:
            mine = [person for person in self._people.values() if person.role == role]
            same = [person.login for person in mine if person.login.conninfo == login.conninfo]
            left_out = self._beyond(mine, MOST_OF_ROLE) or self._beyond(self._people.values(), MOST)
            self._people[secret] = Person(role, same[0] if same else login, seen=self._now())
        self.sign_out(left_out)
        return secret

    def sign_out(self, secret: str | None) -> None:
        with self._lock:
            person = self._people.pop(secret or "", None)
        if person and person.login is not self._own:
            person.login.close_idle(0.0)

    def close_idle(self) -> None:
        """Sign out people who were away for hours, and close sessions that are not used."""
        limit = self._now() - IDLE_S
        with self._lock:
            people = dict(self._people)
        for secret in [secret for secret, person in people.items() if person.seen < limit]:
            self.sign_out(secret)
        for login in {person.login for person in people.values()} | {self._own}:
            login.close_idle()

    def close(self) -> None:
        """Sign all people out, and close all sessions."""
        for secret in list(self._people):
            self.sign_out(secret)
        self._own.close_idle(0.0)

    def _beyond(self, people: Collection[Person], most: int) -> str | None:
        """Return the secret of the person who was away for longest, if one more is too many."""
        if len(people) < most:
            return None
        oldest = min(people, key=lambda person: person.seen)
        return next(secret for secret, person in self._people.items() if person is oldest)

    def _own_login(self, password: str) -> Login:
        """Return the login of `drover web` for its key, which is too long to be guessed: no pause is needed."""
        if self._key and hmac.compare_digest(password.encode(), self._key.encode()):
            return self._own
        raise ConfigError("the key is wrong" if self._key else "a role is required")

    def _login(self, role: str, password: str, address: str) -> Login:
        """Return the login of a role that the database lets in by this password."""
        if not password:
            raise ConfigError("a password is required")
        if max(len(role), len(password)) > LONGEST or not role.isprintable() or "\0" in password:
            raise ConfigError("role or password is wrong")
        self._pauses.begin(role, address)
        if not self._tries.acquire(timeout=TRY_WAIT_S):
            raise ConfigError("too many people sign in at this moment: try again")
        try:
            login = _log_in(self._conninfo, role, password)
        finally:
            self._tries.release()
        self._pauses.forget(role, address)
        return login


def _log_in(conninfo: str, role: str, password: str) -> Login:
    """Log in once, by what was given alone, and return the login. Errors: ConfigError, what to tell the visitor."""
    login = Login(role_logins.conninfo_of(conninfo, role, password), is_visitor=False, role=role)
    try:
        with psycopg.connect(login.conninfo) as connection:
            role_logins.check(connection, login.conninfo, role)
    except psycopg.Error as error:
        raise ConfigError(_refusal(error)) from error
    return login


def _refusal(error: psycopg.Error) -> str:
    """Return the message for a visitor, which does not say whether there is such a role."""
    said = str(error)
    if "did not complete authentication" in said:  # what require_auth has libpq say
        return role_logins.UNPROVEN
    if any(words in said for words in REFUSED):
        return "role or password is wrong"
    LOG.warning("sign-in: %s", " ".join(said.split()))
    return "the database did not let this role in; the log of `drover web` has its words"


# ---- the pages to sign in and out


def show_sign_in(request: Request) -> Response:
    """Show the form to sign in; a person with a link that holds the key is signed in by the script of the page."""
    identify(request)
    return render(request, _sign_in_page(request))


def sign_in(request: Request, form: Form) -> Response:
    """Sign in by role and password, or by the key alone; each sign-in gets a new cookie."""
    people = request.app.state.people
    try:
        secret = people.sign_in(last(form, "role").strip(), last(form, "password"), address_of(request))
    except ConfigError as error:
        return render(request, _sign_in_page(request, str(error), is_of_key=not last(form, "role").strip()), 403)
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


def show_refused_login(request: Request, error: Exception) -> Response:
    """Sign out the person whom the database does not let in any more, and show the form to sign in."""
    if request.state.person is None:
        return failed(request, WorldError(str(error)))
    request.app.state.people.sign_out(request.cookies.get(COOKIE))
    identify(request)
    if request.url.path == "/changes":
        response: Response = PlainTextResponse(f"{error}\n", 403)
    else:
        response = render(request, _sign_in_page(request, str(error)), 403)
    response.delete_cookie(COOKIE)
    return response


def _sign_in_page(request: Request, mistake: str = "", *, is_of_key: bool = False) -> Page:
    has_key = request.app.state.people.has_key
    values = {"mistake": mistake, "has_key": has_key, "is_of_key": has_key and is_of_key}
    return Page("sign_in.html", values, is_live=False)
