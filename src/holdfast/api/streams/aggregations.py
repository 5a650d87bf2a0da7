"""Rolling aggregates over one field: `sum`, `min`, `max`, `min_by`, `max_by`.

They are reduce functions on whole elements. `sum`, `min` and `max` keep the other fields of the
first element. `min_by` and `max_by` return the whole element with the extreme value; the earlier
one if two are equal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.types.stream_type import StreamType


@dataclasses.dataclass(frozen=True)
class FieldAggregate:
    """Reduces two elements by one field; `how` is one of the five names."""

    how: str
    index: int | None
    """Position of the field; None if the element is a bare value."""
    name: str

    def __call__(self, old: Any, new: Any) -> Any:
        """Fold the newer element into the older."""
        a, b = self._read(old), self._read(new)
        match self.how:
            case "sum":
                return self._with(old, a + b)
            case "min" | "max":
                better = b < a if self.how == "min" else b > a
                return self._with(old, b) if better else old
            case "min_by":
                return new if b < a else old
            case _:
                return new if b > a else old

    def _read(self, element: Any) -> Any:
        if self.index is None:
            return element
        if isinstance(element, tuple):
            return element[self.index]
        if isinstance(element, dict):
            return element[self.name]
        return getattr(element, self.name)

    def _with(self, element: Any, value: Any) -> Any:
        if self.index is None:
            return value
        if isinstance(element, tuple):
            i = self.index
            return tuple.__new__(type(element), (*element[:i], value, *element[i + 1 :]))
        if isinstance(element, dict):
            return {**element, self.name: value}
        if dataclasses.is_dataclass(element):
            return dataclasses.replace(element, **{self.name: value})  # type: ignore[type-var]
        fields = {name: getattr(element, name) for name in element.__struct_fields__}
        return type(element)(**{**fields, self.name: value})


def field_aggregate(how: str, field: int | str, stream: StreamType) -> Callable[[Any, Any], Any]:
    """The reduce function for one field, by position or name, of a stream's elements."""
    if stream.kind == "object":
        raise JobGraphError(
            f"{how}({field!r}) needs a stream whose type is declared; "
            "give the operator before it an output_type"
        )
    names = list(stream.schema.names)
    if isinstance(field, int):
        if not 0 <= field < len(names):
            raise JobGraphError(f"{how}({field}): the stream has {len(names)} columns: {names}")
        index = field
    elif field in names:
        index = names.index(field)
    else:
        raise JobGraphError(f"{how}({field!r}): the column does not exist; the stream has {names}")
    return FieldAggregate(how, None if stream.kind == "value" else index, names[index])
