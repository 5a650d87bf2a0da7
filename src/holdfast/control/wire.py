"""Requests and answers as bytes: bodies that are read with limits, JSON without secrets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.control.messages import Errors
from holdfast.control.secrecy import without_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

LARGEST_BODY: Final = 64 * 1024
"""Bytes of the largest body that is read."""
BODY_TIMEOUT: Final = 30.0
"""Seconds within which the body of a request must have come."""


async def read_body(request: Request, seconds: float = BODY_TIMEOUT) -> bytes:
    """The body of a request, if it is not too large and comes in time."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > LARGEST_BODY:
                    raise HTTPException(413, f"the body has more than {LARGEST_BODY} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise HTTPException(408, f"the body has not come within {seconds:g} s") from None
    return b"".join(chunks)


def decoded(body: bytes, kind: Any) -> Any:
    """A body as its type; an empty one has no fields."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not as expected: {error}") from None


def encoded(content: Any) -> bytes:
    """An answer as JSON, without secrets."""
    return without_credentials(msgspec.json.encode(content))


def json_response(
    content: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer that nobody keeps, and that no browser takes for anything else."""
    guard = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(content, status, {**guard, **(headers or {})}, "application/json")


def error_response(status: int, *errors: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    return json_response(encoded(Errors(list(errors))), status, headers)
