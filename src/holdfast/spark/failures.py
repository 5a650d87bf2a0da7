"""Errors of a job's query, and the error that broke a job in the exceptions of Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.errors import HoldfastError, JobExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = re.compile(r"holdfast\.errors\.(\w+): ")
_TRAILERS = (
    "\n\n\tat ",
    "\n\tat org.",
    "\n\tat java.",
    " SQLSTATE: ",
    "\n=== Streaming Query ===",
    "\nDriver stacktrace:",
)


_JAVA_CAUSE = re.compile(r"\nCaused by: (.+)")
_CAUSED = re.compile(r"\n\n(?:The above exception was|During handling of the above exception)")


INTERRUPTED = (
    "the job was stopped during an epoch (py4j.protocol.Py4JJavaError: An error occurred while "
    "calling Spark: java.lang.InterruptedException)"
)
"""Tells Spark that an epoch has failed because its query was stopped.

Spark looks for these class names in what a Python function raises, by a regular expression that
overflows the stack on a long text, and prints a thousand lines then. So the text is short.
"""


class EpochInterrupted(Exception):
    """An epoch has ended early, because its query was stopped."""


class QueryStoppedError(JobExecutionError):
    """The query of a job was stopped from outside; nothing that the job needs is lost."""


def stopped_early(query: str) -> QueryStoppedError:
    """The error of a query that was stopped from outside while there was more to read."""
    return QueryStoppedError(
        f"the query {query!r} was stopped before it had read all input, and not by this job; call "
        "cancel() or suspend() of the job instead"
    )


def original_error(failure: BaseException) -> BaseException:
    """The Holdfast error inside `failure`, rebuilt from its text; else `failure` itself."""
    for error in _chain(failure):
        if isinstance(error, HoldfastError):
            return error
    return _from_text(str(failure)) or failure


def summary(failure: BaseException) -> str:
    """The message of an error, without the Java stack traces and query plans of Spark."""
    text = str(failure)
    if not type(failure).__module__.startswith(("pyspark.", "py4j.")):
        return text
    short = _without_trailers(text).strip()
    for cause in _JAVA_CAUSE.findall(text)[-1:]:
        if cause not in short:
            short = f"{short}\nCaused by: {cause}"
    return short or text


def headline(failure: BaseException) -> str:
    """The first line of what broke a job, for places without room for more."""
    error = original_error(failure)
    lines = summary(error).strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        # From py4j; the exception of Java follows.
        lines = [lines[1].removeprefix(": ")]
    return lines[0] if lines else type(error).__name__


def _chain(failure: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    error: BaseException | None = failure
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _from_text(text: str) -> HoldfastError | None:
    found: HoldfastError | None = None
    for mark in _MARK.finditer(text):
        cls = getattr(errors, mark[1], None)
        if not (isinstance(cls, type) and issubclass(cls, HoldfastError)):
            continue
        message = _first_message(text[mark.end() :])
        cause = _CAUSED.search(message)
        found = cls(message[: cause.start() if cause else None].strip())
        if cause is None:
            break
        # A cause is printed before the error that locates it.
    return found


def _without_trailers(text: str) -> str:
    for trailer in _TRAILERS:
        text = text.split(trailer, 1)[0]
    return text


def _first_message(text: str) -> str:
    """The message of the Holdfast error at the beginning of `text`."""
    text = _without_trailers(text)
    following = _MARK.search(text)
    return text[: following.start()] if following else text
