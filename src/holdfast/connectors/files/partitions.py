"""Splits rows by directory: `day=2026-01-01/country=at`.

Names and values are written as Spark and Hive do: special characters as `%` and two
hexadecimal digits, null and the empty string as `__HIVE_DEFAULT_PARTITION__`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.arrow import ddl_of, key_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_NAMING: Final = {"str", "int", "bool", "Decimal", "date", "datetime", "datetime_ntz"}
"""Types of columns whose values can name a directory."""
_SPECIAL: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


def check_partitioning(columns: Sequence[str], schema: pa.Schema) -> None:
    """Raise ConfigurationError if rows of this schema cannot be partitioned by `columns`."""
    for column in columns:
        if column not in schema.names:
            raise ConfigurationError(
                f"partition_by names {column!r}, and the rows have the columns "
                f"{', '.join(schema.names)}; take one of them"
            )
        if column.startswith(("_", ".")):
            raise ConfigurationError(
                f"partition_by names {column!r}: readers ignore directories whose names begin "
                "with `_` or `.`; rename the column before the sink"
            )
        if key_type(schema.field(column).type) not in _NAMING:
            raise ConfigurationError(
                f"partition_by names {column!r}, which is {ddl_of(schema.field(column).type)}: "
                "only text, whole numbers, decimals, booleans, dates and timestamps can name a "
                "directory; add a column of one of these types before the sink"
            )
    if len(columns) == len(schema.names):
        raise ConfigurationError(
            f"partition_by names every column ({', '.join(columns)}), and nothing is left for the "
            "files; leave one out"
        )


class HivePartitioning:
    """Splits rows by the values of some columns, and drops these columns.

    Args:
        columns: Columns that name the directory, outermost first.
        schema: Columns of the rows to be split.
    """

    def __init__(self, columns: Sequence[str], schema: pa.Schema) -> None:
        self._columns = tuple(columns)
        self._kept = [i for i, name in enumerate(schema.names) if name not in self._columns]
        self.file_schema: pa.Schema = pa.schema([schema.field(i) for i in self._kept])
        """Columns in the files."""

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Directories and their rows, in their order; "" if nothing is split."""
        kept = [rows.column(i) for i in self._kept]
        rest = pa.RecordBatch.from_arrays(kept, schema=self.file_schema)
        if not self._columns:
            yield "", rest
            return
        groups = _groups([rows.column(name) for name in self._columns])
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        names = self._directories(rows, order[starts])
        for name, places in zip(names, np.split(order, starts[1:]), strict=True):
            yield name, rest if len(names) == 1 else rest.take(pa.array(places))

    def _directories(self, rows: pa.RecordBatch, places: Any) -> list[str]:
        firsts = rows.select(list(self._columns)).take(pa.array(places))
        values = zip(*(column.to_pylist() for column in firsts.columns), strict=True)
        return ["/".join(map(directory_name, self._columns, row)) for row in values]


def directory_name(column: str, value: Any) -> str:
    """Directory of one value of a column.

    Example:
        >>> directory_name("at", "10:30")
        'at=10%3A30'
    """
    text = "" if value is None else _text(value)
    return f"{_escaped(column)}={_escaped(text) or NULL_PARTITION}"


def _groups(columns: list[pa.Array]) -> Any:
    """A number from 0 on for each row, the same for rows with equal values only."""
    groups = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy(zero_copy_only=False)
        # Numbered again each time, so that the product cannot overflow.
        _, groups = np.unique(groups * len(coded.dictionary) + codes, return_inverse=True)
    return groups


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        text = naive.isoformat(sep=" ")
        return text.rstrip("0") if "." in text else text
    return value.isoformat() if isinstance(value, date) else str(value)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)
