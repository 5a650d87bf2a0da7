"""Replaces every NaN in a key by one object.

No NaN equals another or itself, so a dictionary finds it only by identity. With one object for
all NaNs, keys are found: bare ones, and those in tuples or in fields of classes.

From Python 3.13 on, instances of a dataclass with that object in a field are not equal either:
their fields are compared one by one, not as tuples. So one instance stands for all that are alike.
"""

from __future__ import annotations

import copy
import dataclasses
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import is_
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

NAN: Final = float("nan")
"""The one NaN among floats."""
DECIMAL_NAN: Final = Decimal("NaN")
"""The one NaN among Decimals."""

_NEVER: Final = frozenset(
    {type(None), bool, int, str, bytes, date, datetime, time, timedelta, UUID}
)
"""Classes whose instances cannot be or contain NaN."""


def one_float(value: float) -> float:
    """The float, or the one NaN."""
    return value if value == value else NAN


def one_nan(value: Any) -> Any:
    """The value with every NaN replaced by the same object.

    A signaling NaN stays: it has no hash, and is therefore refused as a key.
    """
    kind = type(value)
    if kind in _NEVER:
        return value
    if isinstance(value, float):
        return one_float(value)
    if isinstance(value, Decimal):
        return DECIMAL_NAN if value.is_qnan() else value
    if isinstance(value, tuple):
        parts = _parts(value)
        return value if parts is None else tuple.__new__(kind, parts)
    if isinstance(value, frozenset):
        # Both iterations have the same order, since nothing is added.
        parts = _parts(value)
        return value if parts is None else frozenset(parts)
    if isinstance(value, msgspec.Struct):
        return _struct(value)
    if dataclasses.is_dataclass(kind):
        return _instance(value)
    return value


def _parts(values: Iterable[Any]) -> list[Any] | None:
    """The values with one NaN; None if nothing changes."""
    parts = list(map(one_nan, values))
    return None if all(map(is_, parts, values)) else parts


def _struct(value: Any) -> Any:
    changed = _changed(value, value.__struct_fields__)
    return msgspec.structs.replace(value, **changed) if changed else value


def _instance(value: Any) -> Any:
    fields = dataclasses.fields(value)
    changed = _changed(value, [field.name for field in fields])
    if changed:
        value = copy.copy(value)
        for name, part in changed.items():
            object.__setattr__(value, name, part)
    compared = tuple(getattr(value, field.name) for field in fields if field.compare)
    if all(part == part for part in compared):
        return value
    try:
        return _INSTANCES.setdefault((type(value), compared), value)
    except TypeError:
        # No weak reference can point to it, since its class has slots.
        return value


_INSTANCES: Final[WeakValueDictionary[tuple[type, tuple[Any, ...]], Any]] = WeakValueDictionary()
"""Instances with NaN in a field, while somebody holds them, by class and compared fields."""


def _changed(value: Any, names: Iterable[str]) -> dict[str, Any]:
    pairs = [(name, getattr(value, name)) for name in names]
    return {name: one for name, part in pairs if (one := one_nan(part)) is not part}
