"""The commit table: records which output of a sink is in the database, per subtask.

A row holds the checkpoint and the epoch that were published last. It changes in the
transaction that publishes, so both happen or neither. It is locked from the first read to
the commit, so two publishers of one subtask run one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.connectors.postgres.connection import driver, refusal
from holdfast.connectors.postgres.statements import CREATE_COMMIT_TABLE, quoted
from holdfast.errors import SinkError

if TYPE_CHECKING:
    from holdfast.api.sinks import CommitRequest
    from holdfast.connectors.postgres.connection import Address, Connection
    from holdfast.connectors.postgres.statements import Name


class CommitTable:
    """The commit table, on one connection."""

    def __init__(self, connection: Connection, table: Name) -> None:
        """The commit table of this name."""
        self._connection = connection
        self._table = quoted(table)
        # In a statement with parameters, the driver looks for them in names too.
        self._escaped = self._table.replace("%", "%%")

    def create(self, address: Address) -> None:
        """Create the table if it does not exist, in a separate transaction.

        Raises:
            SinkError: The user may not create it.
        """
        errors = driver().errors
        found = self._connection.execute("SELECT to_regclass(%s)", (self._table,)).fetchone()
        self._connection.commit()
        if found != (None,):
            return
        statement = CREATE_COMMIT_TABLE.format(self._table)
        try:
            self._connection.execute(statement.encode())
            self._connection.commit()
        except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
            # Another subtask has made it at this moment: IF NOT EXISTS looks once and does not
            # wait, the catalog's own checks of tables, types and indexes have seen it commit.
            self._connection.rollback()
        except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            self._connection.rollback()
            cause = refusal(error, "creating the table that keeps what was published", address)
            raise SinkError(f"{cause}; or let its owner run: {statement}") from None

    def take(self, request: CommitRequest) -> tuple[int, int]:
        """Lock the row of the request's subtask: the checkpoint and epoch published last."""
        who = (request.lineage, request.uid, request.subtask)
        self._connection.execute(
            f"INSERT INTO {self._escaped} VALUES (%s, %s, %s, %s, -1, -1, now()) "
            "ON CONFLICT (lineage, sink, subtask) DO NOTHING".encode(),
            (*who, request.job_id),
        )
        row = self._connection.execute(
            f"SELECT checkpoint_id, epoch FROM {self._escaped} "
            "WHERE lineage = %s AND sink = %s AND subtask = %s FOR UPDATE".encode(),
            who,
        ).fetchone()
        assert row is not None, f"nobody deletes rows of {self._table} that are in use"
        return row[0], row[1]

    def advance(self, request: CommitRequest) -> None:
        """Record that everything up to this request is published, with the transaction."""
        self._connection.execute(
            f"UPDATE {self._escaped} SET checkpoint_id = %s, epoch = %s, committed_at = now() "
            "WHERE lineage = %s AND sink = %s AND subtask = %s".encode(),
            (request.checkpoint_id, request.epoch, request.lineage, request.uid, request.subtask),
        )
