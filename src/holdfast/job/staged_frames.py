"""A sink that keeps rows in checkpoint storage until the driver publishes them as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.sinks import Committer, Sink, SinkWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.sinks import StagedRows, WriterContext


class StagedFrameSink(Sink):
    """Keeps an epoch's rows for a DataFrame of them."""

    takes_rows = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer that puts rows into checkpoint storage."""
        return _Writer(context)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """None: the driver publishes all subtasks' rows at once."""
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
