"""Arrow types, read from the text that Arrow itself writes for them.

    struct<url: string, n: int64 not null, tags: list<element: string>>

Descriptions of states that were declared with an Arrow type hold that text. It says neither
whether the values of a map may be null, nor where a name ends that is made to mislead; a
column is typed by it, and values that do not fit are kept as they are encoded.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from holdfast.types.arrow import map_of

_LEAVES: Final = {
    str(leaf): leaf
    for leaf in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(),
        pa.time64("ns"), pa.null(),
    )
}  # fmt: skip
_LEAF: Final = re.compile(
    r"timestamp\[us(?:, tz=(?P<tz>[^\]]+))?\]"
    r"|decimal128\((?P<precision>\d+), (?P<scale>\d+)\)"
    r"|(?P<plain>\w+(?:\[\w+\])?)"
)
_NOT_NULL: Final = " not null"


def arrow_type(text: str) -> pa.DataType | None:
    """The type whose text this is; None if it cannot be read."""
    try:
        column, end = _type_at(text, 0)
    except (ValueError, KeyError, pa.ArrowException):
        return None
    return column if end == len(text) and str(column) == text else None


def _type_at(text: str, at: int) -> tuple[pa.DataType, int]:
    for name in ("list", "large_list", "struct", "map"):
        if text.startswith(f"{name}<", at):
            return _nested_at(text, at + len(name) + 1, name)
    found = _LEAF.match(text, at)
    if found is None:
        raise ValueError(f"no type at {at} of {text}")
    if found["plain"] is not None:
        return _LEAVES[found["plain"]], found.end()
    if found["precision"] is not None:
        return pa.decimal128(int(found["precision"]), int(found["scale"])), found.end()
    return pa.timestamp("us", tz=found["tz"]), found.end()


def _nested_at(text: str, at: int, name: str) -> tuple[pa.DataType, int]:
    if name == "map":
        key, at = _type_at(text, at)
        value, at = _type_at(text, _after(", ", text, at))
        return map_of(key, value, nullable=True), _after(">", text, at)
    fields: list[pa.Field] = []
    while not fields or text.startswith(", ", at):
        field, at = _field_at(text, at + 2 if fields else at)
        fields.append(field)
    at = _after(">", text, at)
    if name == "struct":
        return pa.struct(fields), at
    (element,) = fields
    return (pa.list_ if name == "list" else pa.large_list)(element), at


def _field_at(text: str, at: int) -> tuple[pa.Field, int]:
    colon = text.index(": ", at)
    column, end = _type_at(text, colon + 2)
    nullable = not text.startswith(_NOT_NULL, end)
    end += 0 if nullable else len(_NOT_NULL)
    return pa.field(text[at:colon], column, nullable=nullable), end


def _after(sign: str, text: str, at: int) -> int:
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign!r} at {at} of {text}")
    return at + len(sign)
