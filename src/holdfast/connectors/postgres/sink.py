"""`PostgresSink`: writes a stream's rows to a table of PostgreSQL, exactly once.

    subtask    stages the epoch's rows in checkpoint storage
    committer  one transaction for a subtask and a checkpoint:
                   lock the commit row, which records what is published
                   COPY the rows of the epochs that are not
                   write the checkpoint into the commit row
                   COMMIT

A publication that is repeated, or comes late from a replaced driver, finds the commit row
at its checkpoint or beyond, and does nothing. Without exactly once a subtask sends its
rows directly to the server, in one transaction per epoch.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Literal

from holdfast._faults import fault_point
from holdfast.api.sinks import Committer, Sink
from holdfast.connectors.postgres.commit_table import CommitTable
from holdfast.connectors.postgres.connection import (
    Address,
    described,
    driver,
    is_transient,
    refusal,
)
from holdfast.connectors.postgres.statements import quoted, sql_type, table_name
from holdfast.connectors.postgres.table import Destination, Load
from holdfast.connectors.postgres.writers import SendingWriter, StagingWriter
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.sinks import CommitRequest, SinkWriter, WriterContext
    from holdfast.connectors.postgres.connection import Connection
    from holdfast.connectors.postgres.statements import Name

logger = logging.getLogger("holdfast")


class PostgresSink(Sink):
    """Writes rows to an existing table of PostgreSQL.

    ```python
    counts.sink_to(
        PostgresSink("postgresql://app@db.example/shop", "counts", mode="upsert", key="user")
    ).uid("counts-table")
    ```

    `insert` appends every row. `upsert` needs `key`, on whose columns the table has a primary
    key or a unique index: a row replaces the one with the same key. Rows of one key must
    then come from one subtask (`key_by` it), or the one that is published last wins.

    With exactly once, rows appear in the table when their checkpoint is complete, all rows
    of a subtask in one transaction, and never twice. `commit_table` records what was published,
    with one row per series of checkpoints, sink uid and subtask; the sink creates the table if
    it is allowed to. Do not delete rows of a job that may still be restored. With at least once
    or without checkpoints, rows appear when their epoch ends.

    Rows are written with COPY, upserts through a temporary table.
    Integers, floats, booleans, strings, binary, decimals, dates, times and timestamps
    with and without zone fit columns that hold them unchanged; lists of them fit arrays;
    structs, maps and other lists fit `jsonb`. Text also fits types that are written as
    text, such as `uuid`. A value that the table refuses, like a number out of range, fails
    the publication, and the job fails until the table is changed.

    Args:
        url: `postgresql://user@host:port/database?option=value` with libpq's options;
            `jdbc:postgresql://...` is accepted as well.
        table: `table` or `schema.table`, taken literally; a tuple if a name contains a dot.
        mode: `insert` or `upsert`.
        key: The stream's columns that identify a row.
        columns: The table's names for columns of the stream; the others keep their names.
        batch_size: Rows per COPY without exactly once.
        commit_table: Name of the table that records what is published.
        max_retries: Retries of a publication after a lost connection, a deadlock and other
            temporary errors before the job fails.
        password: Goes to the tasks with the sink, like one in the URL; neither is ever
            shown. PGPASSWORD or `~/.pgpass` on the driver and the executors is better.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    takes_rows = True

    def __init__(
        self,
        url: str,
        table: str | Sequence[str],
        *,
        mode: Literal["insert", "upsert"] = "insert",
        key: str | Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
        batch_size: int = 1000,
        commit_table: str | Sequence[str] = "holdfast_commits",
        max_retries: int = 3,
        password: str | None = None,
    ) -> None:
        if mode not in ("insert", "upsert"):
            raise ConfigurationError(f"mode must be 'insert' or 'upsert', not {mode!r}")
        self._key = (key,) if isinstance(key, str) else tuple(key)
        if mode == "upsert" and not self._key:
            raise ConfigurationError(
                "mode='upsert' needs `key`: the columns that identify a row, such as key='user'"
            )
        if mode == "insert" and self._key:
            raise ConfigurationError(
                "`key` says which rows to update: give mode='upsert' too, or leave it out"
            )
        self._renamed = dict(columns or {})
        self._address = Address(url, password)
        table_key = tuple(self._renamed.get(name, name) for name in self._key)
        self._to = Destination(
            _checked(table, "table"), table_key, tuple(sorted(self._renamed.items()))
        )
        self._commit_table = _checked(commit_table, "commit_table")
        self._batch_size = _at_least(1, batch_size, "batch_size")
        self._max_retries = _at_least(0, max_retries, "max_retries")

    def __repr__(self) -> str:
        return f"PostgresSink({self._address.url!r}, {quoted(self._to.table)}, key={self._key})"

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigurationError if the rows cannot be written, or the driver is missing."""
        for role, given in (("key", self._key), ("columns", tuple(self._renamed))):
            missing = [name for name in given if name not in schema.names]
            if missing:
                raise ConfigurationError(
                    f"`{role}` of PostgresSink names {', '.join(map(repr, missing))}, but the "
                    f"stream has {', '.join(map(repr, schema.names)) or 'no columns'}"
                )
        names = self._to.names(schema)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise ConfigurationError(
                f"two columns of the stream go to column {twice[0]!r}: rename one with `columns`"
                if twice
                else "PostgresSink has no column to write; let the stream have one"
            )
        for field in schema:
            if sql_type(field.type) is None:
                raise ConfigurationError(
                    f"PostgreSQL has no column for {field.name!r} of type {field.type}; convert "
                    "it in the stream, for example to a string or a number"
                )
        self._address.check()

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer that stages rows with exactly once, and sends them otherwise."""
        if context.exactly_once:
            return StagingWriter(self._address, self._to, context)
        return SendingWriter(self._address, self._to, context, self._batch_size)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer with its own connection."""
        return _PostgresCommitter(self._address, self._to, self._commit_table, self._max_retries)


def _checked(name: str | Sequence[str], argument: str) -> Name:
    parts = table_name(name)
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise ConfigurationError(
            f"`{argument}` must be 'table' or 'schema.table', not {name!r}; "
            "give a tuple of the two if one contains a dot"
        )
    return parts


def _at_least(least: int, value: int, argument: str) -> int:
    if value < least:
        raise ConfigurationError(f"`{argument}` must be {least} or more, not {value}")
    return value


class _PostgresCommitter(Committer):
    """Publishes a subtask's share of a checkpoint in one transaction."""

    def __init__(self, address: Address, to: Destination, table: Name, max_retries: int) -> None:
        self._address = address
        self._to = to
        self._commit_table = table
        self._max_retries = max_retries
        self._connection: Connection | None = None

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        if not requests:
            return
        try:
            self._publish(requests)
        except driver().Error as error:
            # The commit table shows whether a COMMIT without an answer was carried out.
            self.close()
            tries = max(request.retries for request in requests)
            what = self._publishing(requests[0], tries)
            if not is_transient(error) or tries >= self._max_retries:
                raise refusal(error, what, self._address) from None
            logger.warning("%s; it is tried again", described(error, what, self._address))
            for request in requests:
                request.retry_later()
        except BaseException:
            self.close()
            raise

    def clean_up(self, job_id: str, uid: str, job_attempt: str) -> None:
        """Does nothing: staged rows are in checkpoint storage, not in the database.

        Rows of the commit table stay when the job has ended: they are small, and a job that is
        restored from one of its checkpoints needs them.
        """

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _publish(self, requests: Sequence[CommitRequest]) -> None:
        if self._connection is None:
            self._connection = self._address.connect()
            CommitTable(self._connection, self._commit_table).create(self._address)
        connection, last = self._connection, requests[-1]
        table = CommitTable(connection, self._commit_table)
        published = table.take(last)
        new = [r for r in requests if (r.checkpoint_id, r.epoch) > published]
        if not new:
            connection.rollback()
        else:
            self._load(connection, new)
            table.advance(last)
            where = {"uid": last.uid, "checkpoint": last.checkpoint_id, "subtask": last.subtask}
            fault_point("during-publish", **where)
            connection.commit()
            fault_point("published", **where)
        for request in requests:
            if request not in new:
                request.signal_already_committed()

    def _load(self, connection: Connection, requests: Sequence[CommitRequest]) -> None:
        batches = chain.from_iterable(request.rows() for request in requests)
        first = next(batches, None)
        if first is not None:
            load = Load(connection, self._to, first.schema, self._address)
            load.add(chain([first], batches))
            load.finish()

    def _publishing(self, request: CommitRequest, tries: int) -> str:
        what = (
            f"publishing checkpoint {request.checkpoint_id} of subtask {request.subtask} of sink "
            f"{request.uid!r} into {quoted(self._to.table)}"
        )
        return f"{what}, try {tries + 1}," if tries else what
