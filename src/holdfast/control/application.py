"""The ASGI application: the routes, without the guard.

Everything that asks a job runs in a thread: the event loop never waits for one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from holdfast.control.openapi import description
from holdfast.control.routes import Call, Endpoint, Handlers
from holdfast.control.wire import decoded, encoded, error_response, json_response, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from holdfast.control.jobs import Jobs
    from holdfast.control.operations import Operations

logger = logging.getLogger("holdfast")


def application(jobs: Jobs, operations: Operations) -> Starlette:
    """The routes for these jobs, without the guard."""
    endpoints = Handlers(jobs, operations).endpoints()
    described = description(endpoints)
    own = Endpoint(
        "GET", "/openapi.json", "This description", lambda call: described, dict[str, Any]
    )
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in (*endpoints, own):
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    # The first match counts, so routes without parameters come before those with some.
    routes = [
        Route(path, _dispatcher(methods), methods=list(methods))
        for path, methods in sorted(by_path.items(), key=lambda one: one[0].count("{"))
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False
    return app


def _dispatcher(methods: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    """One route for all methods of a path, so that 405 names all of them."""

    async def dispatch(request: Request) -> Response:
        # Starlette lets HEAD through wherever it lets GET through.
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        try:
            return await _answer(endpoint, request)
        except HTTPException:
            raise
        except ClientDisconnect:
            return error_response(400, "the request was broken off")
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.url.path)
            return error_response(500, f"{type(error).__name__}: {error}")

    return dispatch


async def _answer(endpoint: Endpoint, request: Request) -> Response:
    """The answer of a route to a request."""
    body = None
    if endpoint.body is not None:
        body = decoded(await read_body(request), endpoint.body)
    _check_query(endpoint, request.query_params.multi_items())
    call = Call(request.path_params, body)
    content = await run_in_threadpool(lambda: encoded(endpoint.handle(call)))
    return json_response(content, endpoint.status)


def _check_query(endpoint: Endpoint, given: list[tuple[str, str]]) -> None:
    """Check the query of a route that takes one: a mistake must not end a job."""
    if endpoint.query is None:
        return
    for name, value in given:
        wanted = endpoint.query.get(name)
        if wanted is None:
            known = ", ".join(endpoint.query)
            raise HTTPException(400, f"{name}: there is no such parameter; known: {known}")
        if value not in wanted:
            raise HTTPException(400, f"{name}: expected {', '.join(wanted)}, got {value!r}")
    if len(dict(given)) < len(given):
        raise HTTPException(400, f"{given[0][0]}: given twice")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail
    if error.status_code == 404 and text == "Not Found":
        text = f"there is no route {request.url.path}; GET /openapi.json lists all"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "none")
        text = f"{request.method} is not allowed here; allowed: {allowed}"
    return error_response(error.status_code, text, headers=error.headers)
