"""Finding the error that broke a job in what Spark makes of it."""

from __future__ import annotations

import re

from holdfast import errors
from holdfast.errors import HoldfastError

_MARK = re.compile(r"holdfast\.errors\.(\w+): ")
_TRAILERS = (
    "\n\n\tat ",
    "\n\tat org.",
    "\n\tat java.",
    " SQLSTATE: ",
    "\n=== Streaming Query ===",
    "\nDriver stacktrace:",
)


def original_error(failure: BaseException) -> BaseException:
    """The Holdfast error inside `failure`, rebuilt from its text; else `failure` itself."""
    seen: BaseException | None = failure
    while seen is not None:
        if isinstance(seen, HoldfastError):
            return seen
        seen = seen.__cause__ or seen.__context__
    text = str(failure)
    marks = list(_MARK.finditer(text))
    for mark in marks:
        cls = getattr(errors, mark[1], None)
        if isinstance(cls, type) and issubclass(cls, HoldfastError):
            message = text[mark.end() :]
            for trailer in _TRAILERS:
                message = message.split(trailer, 1)[0]
            following = _MARK.search(message)
            if following:
                message = message[: following.start()]
            return cls(message.strip())
    return failure
