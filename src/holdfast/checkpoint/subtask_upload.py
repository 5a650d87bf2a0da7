"""Uploads one subtask's snapshot.

These functions run where the local state is: in a thread of the driver, or in a Spark task.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._faults import fault_point
from holdfast.checkpoint.savepoint.parts import SavepointPart, write_part
from holdfast.checkpoint.transfer import upload_bytes, upload_snapshot, whole_snapshot
from holdfast.clock import monotonic
from holdfast.errors import CheckpointError
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.storage.files import MOST_INLINE, never

if TYPE_CHECKING:
    from holdfast.checkpoint.savepoint.parts import SavepointTarget
    from holdfast.storage.files import Cancelled, JobCheckpointFiles
    from holdfast.storage.handles import FileHandle, Handle


@dataclass(frozen=True)
class Upload:
    """A local snapshot to upload."""

    checkpoint_id: int
    stage: int
    uid: str
    subtask: int
    directory: str
    incremental: bool
    inline_below: int
    """Size below which a file is stored inside the metadata."""
    files: dict[str, int] = field(default_factory=dict)
    """Size of every file of the store, by name."""
    has_operator_state: bool = False
    """Whether the snapshot has operator state."""
    inline_at_most: int = MOST_INLINE
    """Most bytes of all its files inside the metadata."""
    known: dict[str, FileHandle] = field(default_factory=dict)
    """Files that the checkpoint before has uploaded, by local name."""
    keep: bool = False
    """Whether the local snapshot stays, as a backup or because Spark may repeat the task."""
    savepoint: SavepointTarget | None = None
    """A savepoint that is written from the same snapshot."""


@dataclass(frozen=True)
class Uploaded:
    """The result of an upload."""

    upload: Upload
    files: dict[str, Handle]
    operator_state: Handle | None
    uploaded_size: int
    duration_ms: int
    savepoint: SavepointPart | None = None


def upload_one(
    upload: Upload, *, files: JobCheckpointFiles, cancelled: Cancelled = never
) -> Uploaded:
    """Upload one local snapshot, and delete it unless `upload.keep` is set.

    After an error it stays for another try. The next epoch deletes it.
    """
    uploaded = _upload(upload, files, cancelled)
    if not upload.keep:
        shutil.rmtree(upload.directory, ignore_errors=True)
    return uploaded


def _upload(upload: Upload, files: JobCheckpointFiles, cancelled: Cancelled) -> Uploaded:
    start = monotonic()
    directory, target = Path(upload.directory), upload.savepoint
    whole_snapshot(directory / STORE, upload.files)
    state, room = _operator_state(upload), upload.inline_at_most
    if target is not None and target.alone:
        alone = _savepoint_part(upload, target, cancelled)
        duration = int((monotonic() - start) * 1000)
        return Uploaded(upload, alone.files, alone.operator_state, alone.size, duration, alone)
    where = {"uid": upload.uid, "subtask": upload.subtask, "checkpoint": upload.checkpoint_id}
    fault_point("before-upload", **where)
    is_inline = state is not None and len(state) < upload.inline_below and len(state) <= room
    handles, size = upload_snapshot(
        directory / STORE,
        files,
        upload.checkpoint_id,
        expected=upload.files,
        known=upload.known,
        inline_below=upload.inline_below,
        inline_at_most=room - len(state) if state and is_inline else room,
        incremental=upload.incremental,
        owner=f"operator {upload.uid!r}, subtask {upload.subtask}",
        cancelled=cancelled,
    )
    fault_point("during-upload", **where)
    operator_state: Handle | None = None
    if state is not None:
        inline_below = upload.inline_below if is_inline else 0
        operator_state = upload_bytes(state, files, upload.checkpoint_id, inline_below=inline_below)
        size += len(state)
    fault_point("after-upload", **where)
    part = None if target is None else _added_part(upload, target, cancelled)
    duration = int((monotonic() - start) * 1000)
    return Uploaded(upload, handles, operator_state, size, duration, part)


def _operator_state(upload: Upload) -> bytes | None:
    if not upload.has_operator_state:
        return None
    path = Path(upload.directory) / OPERATOR_STATE
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: the operator state of {upload.uid!r}, subtask {upload.subtask}, cannot be "
            f"read ({error.strerror}), so its checkpoint cannot complete"
        ) from error


def _added_part(upload: Upload, target: SavepointTarget, cancelled: Cancelled) -> SavepointPart:
    """Write the savepoint's part; an error fails the checkpoint only if the target says so."""
    try:
        return _savepoint_part(upload, target, cancelled)
    except Exception as error:
        if target.required:
            raise
        return SavepointPart(problem=f"{type(error).__name__}: {error}")


def _savepoint_part(upload: Upload, target: SavepointTarget, cancelled: Cancelled) -> SavepointPart:
    return write_part(
        Path(upload.directory),
        target,
        uid=upload.uid,
        subtask=upload.subtask,
        checkpoint_id=upload.checkpoint_id,
        cancelled=cancelled,
    )
