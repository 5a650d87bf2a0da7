"""Checks the functions that a program gives to streams, and names that streams do not have.

Its messages are the first that a new user sees. Each says what to write instead.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Final

from holdfast.api.names import snake_case
from holdfast.errors import JobGraphError

_ONE_RESULT: Final = {
    "map": "use return, or call flat_map, whose function gives any number of elements",
    "filter": "return True or False",
    "reduce": "use return",
}
"""Methods whose function returns one result, and what to do about a function that yields."""

_ON_DATAFRAME: Final = "call it on the DataFrame before from_dataframe, or use map()"
_ON_KEYS: Final = "call key_by(), then reduce(), window() or process()"
_AT_END: Final = "call execute_and_collect() to get the elements, or print()"
_DATAFRAME_METHODS: Final = {
    **dict.fromkeys(("select", "selectExpr", "withColumn", "withColumns", "drop"), _ON_DATAFRAME),
    **dict.fromkeys(("withColumnRenamed", "alias", "transform", "explode"), _ON_DATAFRAME),
    **dict.fromkeys(("groupBy", "groupby", "agg", "distinct", "dropDuplicates"), _ON_KEYS),
    **dict.fromkeys(("show", "collect", "toPandas", "count", "take"), _AT_END),
    "where": "call filter() with a function, or where() on the DataFrame before from_dataframe",
    "orderBy": "call key_by(), then order_by()",
    "sort": "call key_by(), then order_by()",
    "withWatermark": "call assign_timestamps_and_watermarks()",
    "write": "call sink_to(), for example with SparkSink(format, options)",
    "writeStream": "call sink_to(), for example with SparkSink(format, options)",
    "columns": "use type.columns",
    "schema": "use type.schema",
}
"""Methods of a DataFrame that streams do not have, and what to do instead."""


def checked_function(function: object, kind: type, what: str) -> object:
    """Return `function` if it is of class `kind`, or a callable that fits the method.

    Args:
        function: The function of a program.
        kind: The class of function that the method takes.
        what: The method; the method of `kind` has the same name.
    """
    if not isinstance(function, kind) and not callable(function):
        raise JobGraphError(wrong_function(what, function, f"{kind.__name__} or a callable"))
    call = getattr(function, what) if isinstance(function, kind) else function
    if what in _ONE_RESULT and inspect.isgeneratorfunction(call):
        raise JobGraphError(
            f"{what}: {_name_of(function)} uses yield, and {what} takes one result for every call; "
            f"{_ONE_RESULT[what]}"
        )
    _check_not_async(what, function, call)
    return function


def check_function(function: object, wanted: type, what: str, method: str | None = None) -> None:
    """Check that a function is of the class `wanted`, and that its method can be called."""
    if not isinstance(function, wanted):
        raise JobGraphError(wrong_function(what, function, wanted.__name__))
    if method is not None:
        _check_not_async(what, function, getattr(function, method))


def _check_not_async(what: str, function: object, call: object) -> None:
    """Refuse a coroutine: nothing would await it."""
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise JobGraphError(
            f"{what}: {_name_of(function)} uses async def, and nothing would await its result; "
            "use def"
        )


def wrong_function(what: str, function: object, wanted: str) -> str:
    """The message for a function of the wrong class."""
    return f"{what} takes a {wanted}, not {type(function).__name__}"


def missing_method(stream: type, keyed: type, name: str) -> str:
    """The message for a name that a stream does not have.

    Args:
        stream: The class of the stream.
        keyed: The class of keyed streams.
        name: The name.
    """
    text = f"{stream.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return text
    if hasattr(keyed, name):
        return (
            f"{text}: this stream is not keyed. Call key_by() directly before {name}(); operators "
            "such as map() and assign_timestamps_and_watermarks() return a stream without keys"
        )
    if name in _DATAFRAME_METHODS:
        return f"{text}: a stream is not a DataFrame. Instead, {_DATAFRAME_METHODS[name]}"
    names = [known for known in dir(keyed) if not known.startswith("_")]
    near = difflib.get_close_matches(snake_case(name), names, n=1)
    return f"{text}; did you mean {near[0]!r}?" if near else text


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
