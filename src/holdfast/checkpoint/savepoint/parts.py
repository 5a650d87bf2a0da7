"""Writes one subtask's part of a savepoint, where its local snapshot is."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast._faults import fault_point
from holdfast.checkpoint.savepoint.storage import operator_directory, upload_tables
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.snapshot import snapshot_files
from holdfast.storage.files import check_cancelled, never

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.config.backends import StateBackend
    from holdfast.storage.file_system import FileSystemFiles
    from holdfast.storage.files import Cancelled
    from holdfast.storage.handles import Handle


@dataclass(frozen=True)
class SavepointTarget:
    """Where and in which format the parts of a savepoint are written."""

    files: FileSystemFiles
    backend: StateBackend
    canonical: bool
    alone: bool
    """Whether the savepoint is taken without a checkpoint."""
    required: bool = False
    """Whether the checkpoint fails if the savepoint does: event time was advanced to its end."""


@dataclass(frozen=True)
class SavepointPart:
    """The files of one subtask's part."""

    files: dict[str, Handle] = field(default_factory=dict)
    operator_state: Handle | None = None
    operator_tables: dict[str, Handle] = field(default_factory=dict)
    problem: str | None = None
    """Why it could not be written, or None."""

    @property
    def size(self) -> int:
        """Bytes written."""
        found = [*self.files.values(), *self.operator_tables.values(), self.operator_state]
        return sum(handle.size for handle in found if handle is not None)


def write_part(
    directory: Path,
    target: SavepointTarget,
    *,
    uid: str,
    subtask: int,
    checkpoint_id: int,
    cancelled: Cancelled = never,
) -> SavepointPart:
    """Write one subtask's part of a savepoint from its local snapshot.

    Raises:
        StateError: The snapshot cannot be read.
        CheckpointStorageError: Storage failed or is full.
        CheckpointError: The savepoint was cancelled.
    """
    where = {"uid": uid, "subtask": subtask, "checkpoint": checkpoint_id}
    fault_point("before-savepoint-part", **where)
    write = _canonical if target.canonical else _native
    part = write(directory, target, uid, subtask, cancelled)
    fault_point("after-savepoint-part", **where)
    return part


def _native(
    directory: Path, target: SavepointTarget, uid: str, subtask: int, cancelled: Cancelled
) -> SavepointPart:
    root = f"{operator_directory(uid)}/native/part-{subtask:05d}"
    handles: dict[str, Handle] = {}
    for file in snapshot_files(directory / STORE):
        local = directory / STORE / file
        handles[str(file)] = target.files.write_file(local, f"{root}/{file}", cancelled)
    state = directory / OPERATOR_STATE
    handle = target.files.write_file(state, f"{root}/{OPERATOR_STATE}") if state.exists() else None
    return SavepointPart(handles, handle)


def _canonical(
    directory: Path, target: SavepointTarget, uid: str, subtask: int, cancelled: Cancelled
) -> SavepointPart:
    from holdfast.state.tables.operator import write_operator_tables
    from holdfast.state.tables.writer import write_tables

    scratch = directory / f"tables-{uuid.uuid4().hex}"
    try:
        with open_snapshot(target.backend, directory / STORE) as snapshot:
            write_tables(snapshot, scratch / "state")
        check_cancelled(cancelled, str(scratch))
        state = directory / OPERATOR_STATE
        if state.exists():
            exported = OperatorStateSnapshot.decode(state.read_bytes())
            write_operator_tables(exported, scratch / "own", subtask=subtask)
        upload = partial(
            upload_tables, files=target.files, uid=uid, subtask=subtask, cancelled=cancelled
        )
        return SavepointPart(
            files=upload(scratch / "state"), operator_tables=upload(scratch / "own")
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
