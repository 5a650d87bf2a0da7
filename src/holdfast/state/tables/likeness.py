"""Whether a column that was read is of the type that was written, as far as that matters."""

from __future__ import annotations

import pyarrow as pa


def is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of the one type holds values of the other.

    Another program that writes a table anew may call the parts of lists otherwise, and have
    larger offsets. Whether a timestamp has a zone is decided by values, not by the type.
    """
    of = pa.types
    for kind in (of.is_timestamp, _is_text, _is_binary):
        if kind(wanted):
            return bool(kind(found))
    if of.is_struct(wanted):
        return of.is_struct(found) and _have_like_fields(found, wanted)
    if of.is_map(wanted):
        return (
            of.is_map(found)
            and is_like(found.key_type, wanted.key_type)
            and is_like(found.item_type, wanted.item_type)
        )
    if _is_list(wanted):
        return _is_list(found) and is_like(found.value_type, wanted.value_type)
    return bool(found == wanted)


def _have_like_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    if [field.name for field in found] != [field.name for field in wanted]:
        return False
    return all(is_like(a.type, b.type) for a, b in zip(found, wanted, strict=True))


def _is_text(column: pa.DataType) -> bool:
    return bool(pa.types.is_string(column) or pa.types.is_large_string(column))


def _is_binary(column: pa.DataType) -> bool:
    return bool(pa.types.is_binary(column) or pa.types.is_large_binary(column))


def _is_list(column: pa.DataType) -> bool:
    return bool(pa.types.is_list(column) or pa.types.is_large_list(column))
