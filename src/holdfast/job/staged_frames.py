"""A sink that stages rows in checkpoint storage until the driver publishes a DataFrame of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.sinks import Committer, Sink, SinkWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.sinks import StagedRows, WriterContext


class StagedFrameSink(Sink):
    """Stages an epoch's rows for a DataFrame."""

    takes_rows = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Create a writer that stages rows in checkpoint storage."""
        return _Writer(context)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """Not used: the driver publishes the rows of all subtasks at once."""
        raise AssertionError("frames are published by the driver")


class _Writer(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        assert context.staging is not None
        self._rows = context.staging.open(f"{context.unique_name}-rows", context.schema)

    def write_rows(self, rows: pa.RecordBatch) -> None:
        self._rows.write(rows)

    def prepare_commit(self) -> Sequence[StagedRows]:
        return (self._rows.close(),)

    def abort(self) -> None:
        self._rows.abort()
