"""Checks that rows fit the table, and loads them into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.connectors.postgres.connection import driver, refusal
from holdfast.connectors.postgres.copy import as_csv
from holdfast.connectors.postgres.statements import (
    BUFFER,
    TableColumn,
    copy_rows,
    create_buffer,
    create_table,
    fits,
    merge_buffer,
    position_column,
    quoted,
    sql_type,
    upsert,
)
from holdfast.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from holdfast.connectors.postgres.connection import Address, Connection
    from holdfast.connectors.postgres.statements import Name

_COLUMNS: Final = b"""
    WITH RECURSIVE found AS (
        SELECT attnum, attname, atttypid AS type, atttypmod AS modifier
        FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT attnum, attname, typbasetype, typtypmod
        FROM found JOIN pg_type ON pg_type.oid = found.type WHERE typtype = 'd'
    )
    SELECT attname, coalesce(element.typname, own.typname), modifier, element.oid IS NOT NULL
    FROM found
    JOIN pg_type own ON own.oid = found.type AND own.typtype <> 'd'
    LEFT JOIN pg_type element ON element.oid = own.typelem AND own.typcategory = 'A'
    ORDER BY attnum
"""


@dataclass(frozen=True)
class Destination:
    """The table for the rows, and its names for their columns."""

    table: Name
    key: tuple[str, ...]
    """Columns of the table that identify rows to update; empty if rows are only inserted."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Pairs of a stream's column and the table's; the others keep their names."""

    def names(self, schema: pa.Schema) -> list[str]:
        """The table's columns, in the order of the stream's."""
        renamed = dict(self.renamed)
        return [renamed.get(name, name) for name in schema.names]


def examine(
    connection: Connection, to: Destination, schema: pa.Schema, address: Address
) -> list[TableColumn]:
    """The table's columns for the rows, after checking that the rows fit.

    Raises:
        SinkError: The table or a column is missing, or a type does not fit.
    """
    found = {
        name: TableColumn(name, kind, modifier, is_array)
        for name, kind, modifier, is_array in connection.execute(_COLUMNS, (quoted(to.table),))
    }
    names = to.names(schema)
    where = f"table {quoted(to.table)} at {address.url}"
    if not found:
        fields = list(zip(names, schema.types, strict=True))
        raise SinkError(
            f"there is no {where} (names are taken literally, capital letters included); "
            f"create it first, for example: {create_table(to.table, fields, to.key)}"
        )
    for name, column in zip(names, schema.types, strict=True):
        if name not in found:
            raise SinkError(
                f"{where} has no column {name!r}, only {', '.join(found)}; rename it with "
                f"`columns`, or run: ALTER TABLE {quoted(to.table)} ADD COLUMN {quoted(name)} "
                f"{sql_type(column)}"
            )
        if not fits(column, found[name]):
            kind = found[name].type + "[]" * found[name].is_array
            raise SinkError(
                f"column {name!r} of {where} is of type {kind}, which does not take the stream's "
                f"{column} unchanged; make it {sql_type(column)}, or convert it in the stream"
            )
    if to.key:
        _examine_key(connection, to, names, address)
    return [found[name] for name in names]


def _examine_key(
    connection: Connection, to: Destination, names: list[str], address: Address
) -> None:
    """Let the server plan the statement that upserts the rows."""
    psycopg = driver()
    nothing = f"{quoted(to.table)} WHERE false"
    try:
        connection.execute(f"EXPLAIN {upsert(to.table, names, to.key, nothing)}".encode())
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        what = f"planning an upsert by {', '.join(to.key)} into {quoted(to.table)}"
        raise refusal(error, what, address) from None


class Load:
    """Loads the rows of one transaction into the table."""

    def __init__(
        self, connection: Connection, to: Destination, schema: pa.Schema, address: Address
    ) -> None:
        """Begin; the caller commits the transaction after `finish`."""
        self._connection = connection
        self._to = to
        self._columns = examine(connection, to, schema, address)
        self._names = [column.name for column in self._columns]
        self._rows = 0
        self._copy = copy_rows(to.table, self._names)
        if to.key:
            connection.execute(create_buffer(to.table, self._names).encode())
            self._copy = copy_rows(BUFFER, [*self._names, position_column(self._names)])

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send rows to the server."""
        with self._connection.cursor() as cursor, cursor.copy(self._copy.encode()) as copy:
            for batch in batches:
                if batch.num_rows:
                    copy.write(as_csv(batch, self._columns, self._rows if self._to.key else None))
                    self._rows += batch.num_rows

    def finish(self) -> None:
        """Merge all rows into the table."""
        if self._to.key:
            merge = merge_buffer(self._to.table, self._names, self._to.key)
            self._connection.execute(merge.encode())
