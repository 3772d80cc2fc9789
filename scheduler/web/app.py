"""The dashboard as an ASGI application: which path is served by what, and what runs beside."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from scheduler.errors import DroverError
from scheduler.web import actions, forms, pages
from scheduler.web.auth_sessions import People
from scheduler.web.database_sessions import Login
from scheduler.web.guard import Guard
from scheduler.web.live_updates import Changes
from scheduler.web.templating import STATIC, environment
from scheduler.web.views import SignInNeededError, ask_to_sign_in, changes, drawn, failed, refused

TIDY_S: Final = 30.0


def make_app(conninfo: str, group: str, key: str = "", names: Iterable[str] = ()) -> Starlette:
    """Return the application for a database; `names` are those under which browsers may reach it."""
    told = Changes(conninfo)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(told.listen()), asyncio.create_task(_tidy(app))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            app.state.visitors.close_idle(0.0)
            app.state.people.close()

    app = Starlette(
        routes=routes(),
        lifespan=lifespan,
        middleware=[Middleware(Guard, names=tuple(names))],
        exception_handlers={HTTPException: refused, SignInNeededError: ask_to_sign_in, DroverError: failed},
    )
    app.state.group, app.state.changes = group, told
    app.state.visitors = Login(conninfo, is_visitor=True)
    app.state.people = People(conninfo, key)
    app.state.templates = environment()
    return app


def routes() -> list[Route | Mount]:
    return [
        Route("/", drawn(pages.overview), name="overview"),
        Route("/jobs", drawn(pages.jobs), name="jobs"),
        Route("/jobs/{job:int}", drawn(pages.job), name="job"),
        Route("/jobs/all", drawn(actions.confirm), name="all-jobs"),
        Route("/jobs/all", forms.submitted(forms.with_token(actions.act_on_all)), methods=["POST"]),
        Route("/act", forms.submitted(forms.with_token(actions.act)), methods=["POST"]),
        Route("/schedules", drawn(pages.schedules), name="schedules"),
        Route("/conditions", drawn(pages.conditions), name="conditions"),
        Route("/log", drawn(pages.log), name="log"),
        Route("/changes", changes, name="changes"),
        Route("/sign-in", forms.show_sign_in, name="sign-in"),
        Route("/sign-in", forms.submitted(forms.sign_in), methods=["POST"]),
        Route("/sign-out", forms.submitted(forms.with_token(forms.sign_out)), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]


async def _tidy(app: Starlette) -> None:
    while True:
        await asyncio.sleep(TIDY_S)
        await run_in_threadpool(app.state.visitors.close_idle)
        await run_in_threadpool(app.state.people.close_idle)
