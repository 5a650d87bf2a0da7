"""Public names of internal classes, and advice about names that they do not have.

States and contexts are internal classes that implement public ones. Python's messages show the
name of the class, so the internal classes carry the public names.
"""

from __future__ import annotations

import difflib
import re
from types import FunctionType
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=type)
"""A class."""

_FOLDED: Final = {"value": "call get()", "update": "call add(value)", "put": "call add(value)"}
_OF_STATES: Final = {
    "ValueState": {
        "get": "call value()",
        **dict.fromkeys(("set", "put", "add"), "call update(value)"),
    },
    "ListState": {
        **dict.fromkeys(("append", "put"), "call add(value)"),
        **dict.fromkeys(("extend", "put_all"), "call add_all(values)"),
        **dict.fromkeys(("value", "values"), "call get()"),
        "set": "call update(values)",
    },
    "MapState": {
        "value": "call get(key)",
        **dict.fromkeys(("set", "add"), "call put(key, value)"),
        "update": "call put_all(entries)",
        **dict.fromkeys(("delete", "discard", "pop"), "call remove(key)"),
    },
    "ReducingState": _FOLDED,
    "AggregatingState": _FOLDED,
}
"""Names that users try on a state, and what to do instead."""

_GET_STATE: Final = (
    "get_state",
    "get_list_state",
    "get_map_state",
    "get_reducing_state",
    "get_aggregating_state",
)
_IN_OPEN: Final = "call it in open(self, ctx), on the RuntimeContext that open() gets"
_TIMERS: Final = (
    "current_processing_time",
    "current_watermark",
    "register_event_time_timer",
    "register_processing_time_timer",
    "delete_event_time_timer",
    "delete_processing_time_timer",
)
_YIELD: Final = "use yield; a side output is `yield tag, value`"
_OF_CONTEXTS: Final = {
    **dict.fromkeys(_GET_STATE, _IN_OPEN),
    **{name: f"call timer_service().{name}()" for name in _TIMERS},
    "get_runtime_context": "keep the RuntimeContext that open(self, ctx) gets",
    **dict.fromkeys(("output", "collect", "emit"), _YIELD),
}
"""Names that users try on the context of an element, and what to do instead."""
_OF_WINDOWS: Final = dict.fromkeys(_GET_STATE, "call it on window_state() or global_state()")
_OF_TRIGGERS: Final = dict.fromkeys(_GET_STATE, "call get_partitioned_state()")
_OF_RUNTIME: Final = {
    **dict.fromkeys(
        ("timer_service", "timestamp", "get_current_key"),
        "call it on the context that process_element() gets",
    ),
    "get_runtime_context": "this is the RuntimeContext",
}


def public_name(name: str) -> Callable[[C], C]:
    """Class decorator that sets the name of a class, and of its methods, in Python's messages."""

    def renamed(cls: C) -> C:
        cls.__name__ = name
        for method in vars(cls).values():
            if isinstance(method, FunctionType):
                method.__qualname__ = f"{name}.{method.__name__}"
        return cls

    return renamed


def advice_on_missing(error: BaseException) -> str:
    """What to use instead of a name that a state or context does not have; empty if unknown."""
    name, owner = getattr(error, "name", None), getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not isinstance(name, str) or name.startswith("_"):
        return ""
    cls = type(owner)
    if not cls.__module__.startswith("holdfast."):
        return ""
    snake = snake_case(name)
    for known in (name, snake):
        instead = _instead(cls.__name__).get(known)
        if instead is not None:
            return instead
    public = [base for base in cls.__mro__ if base.__module__.startswith("holdfast.api.")]
    names = {n for base in public for n in dir(base) if not n.startswith("_")}
    near = difflib.get_close_matches(snake, sorted(names), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _instead(name: str) -> dict[str, str]:
    special = {
        **_OF_STATES,
        "RuntimeContext": _OF_RUNTIME,
        "WindowContext": _OF_WINDOWS,
        "TriggerContext": _OF_TRIGGERS,
    }
    return special.get(name) or (_OF_CONTEXTS if name.endswith("Context") else {})


def snake_case(name: str) -> str:
    """`keyBy` as `key_by`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
