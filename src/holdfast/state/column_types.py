"""Arrow types as descriptions, in the language of `state/codec_schema.py`.

    struct      {"class": "struct", "kind": "row", "wire": "array", "fields": [...]}
    list, map   {"list": T}, {"dict": [T, T]}
    decimal     {"decimal": [precision, scale]}
    nullable    {"union": [T, "none"]}

A field is required if it is not nullable. Structs are numbered from the outside in, since
a class has a name. Types of which a value has the same bytes have one name: `string` is
also `large_string`, and a timestamp in any zone is `timestamp`.

Descriptions of format 1 hold only the text that Arrow gives for the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.state.tables.arrow_text import arrow_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.state.type_trees import Tree

_NAMES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_date, "date32"),
    (pa.types.is_time, "time64"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_float32, "float32"),
    (pa.types.is_float64, "float64"),
]


def tree_of(column: pa.DataType) -> Tree:
    """Description of a canonical Arrow type."""
    return _Describer().of(column)


def stored_tree(schema: dict[str, Any]) -> Tree | None:
    """Tree of a state's description, of either format; None if its text cannot be read."""
    if "tree" in schema:
        return schema["tree"]
    column = arrow_type(schema["type"])
    return None if column is None else tree_of(column)


class _Describer:
    def __init__(self) -> None:
        self._structs = 0

    def of(self, column: pa.DataType) -> Tree:
        of = pa.types
        if of.is_struct(column):
            return self._struct(column)
        if of.is_map(column):
            return {"dict": [self.of(column.key_type), self._field(column.item_field)]}
        if of.is_nested(column):
            return {"list": self._field(column.value_field)}
        if of.is_decimal(column):
            return {"decimal": [column.precision, column.scale]}
        if of.is_timestamp(column):
            return "timestamp_ntz" if column.tz is None else "timestamp"
        return next((name for belongs, name in _NAMES if belongs(column)), str(column))

    def _field(self, field: pa.Field) -> Tree:
        described = self.of(field.type)
        return {"union": [described, "none"]} if field.nullable else described

    def _struct(self, column: pa.DataType) -> Tree:
        self._structs += 1
        name = "struct" if self._structs == 1 else f"struct {self._structs}"
        fields = [
            {"name": field.name, "type": self._field(field), "required": not field.nullable}
            for field in column
        ]
        return {"class": name, "kind": "row", "wire": "array", "fields": fields}
