"""Pickles elements of streams and values of state that have no declared type.

Classes of `__main__` or of a notebook exist by name in the driver only, and plain pickle
refuses their instances in a worker. `pickle_by_value_with` registers a pickler for them.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_by_value: Callable[[Any], bytes] | None = None


def pickle_by_value_with(dumps: Callable[[Any], bytes]) -> None:
    """Use `dumps` for objects whose classes cannot be pickled by name."""
    global _by_value
    _by_value = dumps


def pickled(elements: list[Any]) -> list[bytes]:
    """Every element, pickled."""
    return list(map(pickle_one, elements))


def pickle_one(element: Any) -> bytes:
    """One object, pickled."""
    try:
        return pickle.dumps(element, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        if _by_value is None:
            raise
        return _by_value(element)
