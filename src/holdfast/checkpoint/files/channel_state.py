"""Rows in checkpoint storage: output to be published, and input to be processed.

A file is an Arrow IPC stream, compressed with LZ4, below `staged/` in the job's directory. Its name
begins with the job attempt that wrote it. Small amounts are stored inside the metadata instead.
"""

from __future__ import annotations

import io
import logging
import tempfile
import threading
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.files.layout import STAGED
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.errors import CorruptCheckpointError, HoldfastError
from holdfast.storage.files import storage_error
from holdfast.storage.handles import FileHandle, inline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

    from holdfast.checkpoint.files.job_files import JobStorage
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.runtime.plan import ChannelRows
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


logger = logging.getLogger("holdfast")


class ChannelStateFiles:
    """Tracks the channel-state files of one job attempt; thread-safe."""

    def __init__(self) -> None:
        """Create a tracker without files."""
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._waiting: set[str] = set()

    def taken(self, channel_rows: Iterable[ChannelRows]) -> None:
        """Record the channel state that an epoch has left."""
        handles = (left.rows.handle for left in channel_rows)
        waiting = {handle.path for handle in handles if isinstance(handle, FileHandle)}
        with self._lock:
            self._waiting = waiting
            self._files |= waiting

    def done(self, metadata: CheckpointMetadata, needed: Iterable[str] = ()) -> set[str]:
        """The files that are no longer needed, now that this checkpoint is complete.

        Args:
            metadata: The checkpoint.
            needed: Files that pending checkpoints list.
        """
        listed = paths_of(metadata).union(needed)
        with self._lock:
            kept = self._files & (listed | self._waiting)
            done, self._files = self._files - kept, kept
        return done


def release(done: set[str], storage: JobStorage) -> None:
    """Delete files; if that fails, `delete_unlisted` does it later."""
    try:
        storage.release_staged(done)
    except HoldfastError as error:
        logger.warning("channel state that was processed was not deleted: %s", error)


SPILL_AT: Final = 8 * 1024 * 1024


class FileStaging:
    """Stores rows in a job's checkpoint directory; picklable and thread-safe."""

    def __init__(
        self, files: JobCheckpointFiles, inline_below: int = 0, *, spill_at: int = SPILL_AT
    ) -> None:
        """Store rows in `files`, or inside their handle below `inline_below` bytes.

        Rows of more than `spill_at` bytes are written to a local file until they are uploaded.
        """
        self._files = files
        self._inline_below = inline_below
        self._spill_at = spill_at

    def open(self, name: str, schema: pa.Schema) -> SpooledRows:
        """Begin to store rows."""
        return SpooledRows(self._files, self._inline_below, name, schema, self._spill_at)

    def put(self, name: str, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        """Store rows durably, all at once."""
        spooled = self.open(name, schema)
        try:
            for batch in rows:
                spooled.write(batch)
            return spooled.close()
        except BaseException:
            spooled.abort()
            raise

    def get(self, staged: StagedRows) -> Iterator[pa.RecordBatch]:
        """Read rows in their order, and verify them."""
        try:
            if staged.size <= self._spill_at:
                yield from pa.ipc.open_stream(self._files.read_bytes(staged.handle))
                return
            with tempfile.TemporaryDirectory(prefix="holdfast-staged-") as directory:
                local = Path(directory) / "rows"
                self._files.download(staged.handle, local)
                with pa.memory_map(str(local)) as mapped:
                    yield from pa.ipc.open_stream(mapped)
        except pa.ArrowException as error:
            raise CorruptCheckpointError(
                f"{self._files.root}: rows that a checkpoint holds cannot be read ({error}); "
                "restore from another checkpoint"
            ) from error

    def note(self, name: str, data: bytes) -> None:
        """Store a note; has no effect if checkpoints are in the driver's memory."""
        if self._files.limits is None:
            self._files.write_bytes(f"{STAGED}/{name}", data)


class SpooledRows:
    """Collects rows and uploads them to checkpoint storage."""

    def __init__(
        self,
        files: JobCheckpointFiles,
        inline_below: int,
        name: str,
        schema: pa.Schema,
        spill_at: int,
    ) -> None:
        self._files = files
        self._inline_below = inline_below
        self._name = f"{STAGED}/{name}~{uuid.uuid4().hex[:12]}"
        self._schema = schema
        self._rows = 0
        self._spool = _Spool(spill_at)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(self._spool, schema, options=options)

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        with self._local_errors():
            self._writer.write_batch(rows.cast(self._schema))
        self._rows += rows.num_rows

    def close(self) -> StagedRows:
        """Upload the rows."""
        spool = self._spool
        with self._local_errors():
            self._writer.close()
        try:
            handle: Handle
            if spool.local is not None:
                with self._local_errors():
                    spool.local.flush()
                handle = self._files.write_file(Path(spool.local.name), self._name)
            elif spool.size < self._inline_below:
                handle = inline(bytes(spool.memory))
            else:
                handle = self._files.write_bytes(self._name, bytes(spool.memory))
            return StagedRows(handle, self._rows, spool.size)
        finally:
            spool.drop()

    def abort(self) -> None:
        """Drop the rows."""
        self._spool.drop()

    @contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._spool.drop()
            place = tempfile.gettempdir()
            raise storage_error("writing rows on their way to storage", place, error) from error


class _Spool(io.RawIOBase):
    """Collects bytes in memory, and in a local file once they exceed `spill_at`."""

    def __init__(self, spill_at: int) -> None:
        self._spill_at = spill_at
        self.memory = bytearray()
        self.local: tempfile._TemporaryFileWrapper[bytes] | None = None
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self.local is None:
            self.memory += data
            if self.size > self._spill_at:
                self.local = tempfile.NamedTemporaryFile(prefix="holdfast-staged-")  # noqa: SIM115
                self.local.write(self.memory)
                self.memory = bytearray()
        else:
            self.local.write(data)
        return count

    def drop(self) -> None:
        self.memory = bytearray()
        if self.local is not None:
            self.local.close()
