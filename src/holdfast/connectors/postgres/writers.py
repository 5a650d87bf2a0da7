"""The writers of `PostgresSink`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.sinks import SinkWriter
from holdfast.connectors.postgres.connection import driver, is_transient, refusal
from holdfast.connectors.postgres.statements import quoted
from holdfast.connectors.postgres.table import Load, examine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from holdfast.api.sinks import RowsInStaging, WriterContext
    from holdfast.connectors.postgres.connection import Address, Connection
    from holdfast.connectors.postgres.table import Destination
    from holdfast.errors import SinkError

_examined: set[tuple[str, Destination, pa.Schema]] = set()
"""Tables that were checked in this process, with the schemas that fit them."""


class StagingWriter(SinkWriter):
    """Stages rows in checkpoint storage; checks the table first, so that errors show early."""

    def __init__(self, address: Address, to: Destination, context: WriterContext) -> None:
        self._address = address
        self._to = to
        self._context = context
        self._staged: RowsInStaging | None = None

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Stage rows; raises SinkError at once if they do not fit the table."""
        if self._staged is None:
            self._examine()
            assert self._context.staging is not None, "rows are staged with exactly once only"
            name = f"{self._context.unique_name}-rows"
            self._staged = self._context.staging.open(name, self._context.schema)
        self._staged.write(rows)

    def prepare_commit(self) -> Sequence[Any]:
        """The rows as one committable; none if there were no rows."""
        if self._staged is None:
            return ()
        staged, self._staged = self._staged.close(), None
        return (staged,)

    def abort(self) -> None:
        """Drop the unfinished rows."""
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.abort()

    def _examine(self) -> None:
        this = (self._address.url, self._to, self._context.schema)
        if this in _examined:
            return
        try:
            with self._address.connect() as connection:
                examine(connection, self._to, self._context.schema, self._address)
        except driver().Error as error:
            if not is_transient(error):
                raise refusal(
                    error, f"looking at {quoted(self._to.table)}", self._address
                ) from None
            # Rows can be staged while the database is unavailable.
            return
        _examined.add(this)


class SendingWriter(SinkWriter):
    """Sends rows to the server, in one transaction per epoch."""

    def __init__(
        self, address: Address, to: Destination, context: WriterContext, batch_size: int
    ) -> None:
        self._address = address
        self._to = to
        self._schema = context.schema
        self._batch_size = batch_size
        self._waiting: list[pa.RecordBatch] = []
        self._connection: Connection | None = None
        self._load: Load | None = None

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Buffer rows until there are enough to send."""
        self._waiting.append(rows)
        if sum(batch.num_rows for batch in self._waiting) >= self._batch_size:
            self._send()

    def prepare_commit(self) -> Sequence[Any]:
        """Send the rest and commit; nothing is left to publish."""
        if self._waiting:
            self._send()
        if self._load is not None and self._connection is not None:
            try:
                self._load.finish()
                self._connection.commit()
            except driver().Error as error:
                raise self._failed(error) from None
            self._load = None
        return ()

    def abort(self) -> None:
        """Roll back."""
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        connection, self._connection, self._load = self._connection, None, None
        if connection is not None:
            connection.close()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            if self._connection is None:
                self._connection = self._address.connect()
            if self._load is None:
                self._load = Load(self._connection, self._to, self._schema, self._address)
            self._load.add(waiting)
        except driver().Error as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> SinkError:
        return refusal(error, f"writing into {quoted(self._to.table)}", self._address)
