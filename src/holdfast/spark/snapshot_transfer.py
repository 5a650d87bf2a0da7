"""Bringing one subtask's state to checkpoint storage, and back.

These functions run where the local state is: in a thread of the driver, or in a task.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.checkpoint.storage import MOST_INLINE, never
from holdfast.checkpoint.transfer import (
    difference,
    download_snapshot,
    upload_bytes,
    upload_snapshot,
    whole_snapshot,
)
from holdfast.clock import monotonic
from holdfast.errors import CheckpointError, CorruptCheckpointError, HoldfastError
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.spark.savepoint_parts import SavepointPart, write_part
from holdfast.state.directories import claim_job, job_directory, make_private, store_directory
from holdfast.state.local_snapshot import (
    can_be_partial,
    files_with,
    is_shareable,
    open_snapshot_of,
    snapshot_files,
)
from holdfast.state.machine import boot_id
from holdfast.state.open_store import open_store
from holdfast.state.redistribution import OperatorStateSnapshot
from holdfast.state.restore_store import restore_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.api.backends import StateBackend
    from holdfast.checkpoint.handles import FileHandle, Handle
    from holdfast.checkpoint.storage import Cancelled, JobCheckpointFiles
    from holdfast.spark.savepoint_parts import SavepointTarget
    from holdfast.state.machine import ProcessIdentity


@dataclass(frozen=True)
class Upload:
    """A local snapshot that is to be uploaded."""

    checkpoint_id: int
    level: int
    uid: str
    subtask: int
    directory: str
    incremental: bool
    inline_below: int
    """Size below which a file travels within the metadata."""
    files: dict[str, int] = field(default_factory=dict)
    """Size of every file that its store must have, by name."""
    has_operator_state: bool = False
    """Whether it must have operator state."""
    inline_at_most: int = MOST_INLINE
    """Bytes of all its files that may."""
    known: dict[str, FileHandle] = field(default_factory=dict)
    """Files that storage has from the checkpoint before, by local name."""
    keep: bool = False
    """Whether the local snapshot stays: for a quick recovery, or since Spark may try again."""
    savepoint: SavepointTarget | None = None
    """A savepoint that gets its part of it too."""


@dataclass(frozen=True)
class Uploaded:
    """What became of it."""

    upload: Upload
    files: dict[str, Handle]
    operator_state: Handle | None
    uploaded_size: int
    duration_ms: int
    savepoint: SavepointPart | None = None


def upload_one(
    upload: Upload, *, files: JobCheckpointFiles, cancelled: Cancelled = never
) -> Uploaded:
    """Upload one local snapshot; when that is done, remove it unless it is to be kept.

    After an error it stays, for whoever tries again; it goes with the next epoch.
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
    faults.reach("before-upload", **where)
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
    faults.reach("during-upload", **where)
    operator_state: Handle | None = None
    if state is not None:
        inline_below = upload.inline_below if is_inline else 0
        operator_state = upload_bytes(state, files, upload.checkpoint_id, inline_below=inline_below)
        size += len(state)
    faults.reach("after-upload", **where)
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
    """The savepoint's part; if it fails, the checkpoint does not, unless it is to."""
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


@dataclass(frozen=True)
class StoredCopy:
    """One old subtask's store, of which a new one takes a part."""

    files: dict[str, Handle]
    version: str
    local: str | None = None
    """Local snapshot that holds the same, perhaps; on the executor that made it."""


@dataclass(frozen=True)
class Restore:
    """A local store that is to be built."""

    job_id: str
    incarnation: str
    local_dir: str | None
    owner: ProcessIdentity
    backend: StateBackend
    uid: str
    subtask: int
    version: str
    copies: tuple[StoredCopy, ...]
    kind: str
    """What made the copies, as `open_snapshot_of` takes it."""
    whole: bool
    """Whether the one copy is taken over as it is."""
    key_groups: range
    operator_state: bytes | None


@dataclass(frozen=True)
class Restored:
    """What became of it."""

    uid: str
    subtask: int
    version: str
    downloaded: int = 0
    """Bytes fetched from storage."""
    local: bool = False
    """Whether local copies served for all of it."""
    distrusted: tuple[str, ...] = ()
    """Why local copies that were there have not served, and were removed."""


def restore_one(restore: Restore, *, files: JobCheckpointFiles) -> Restored:
    """Build one local store from what a checkpoint holds.

    A local copy serves if it is what the checkpoint holds, bit by bit. If the store cannot be
    built with one, it is built from storage alone.
    """
    where = {"uid": restore.uid, "subtask": restore.subtask}
    faults.reach("before-restore", **where)
    claim_job(restore.local_dir, restore.job_id, restore.owner)
    target = store_directory(
        restore.local_dir,
        restore.job_id,
        restore.incarnation,
        restore.uid,
        restore.subtask,
        restore.owner.run,
    )
    if target.exists():
        # A task that Spark tries again finds what its first attempt has finished. It is as
        # good: nothing but restores of this incarnation has been here yet.
        open_store(restore.backend, target, restore.version).abort()
        return Restored(restore.uid, restore.subtask, restore.version)
    make_private(target.parent)
    local, distrusted = _trusted_copies(restore)
    try:
        downloaded = _build(restore, files, target, local)
    except Exception as error:
        if not local:
            raise
        distrusted += [f"{directory}: {error}" for directory in local.values()]
        _drop(restore, local)
        local = {}
        downloaded = _build(restore, files, target, local)
    faults.reach("after-restore", **where)
    return Restored(
        restore.uid,
        restore.subtask,
        restore.version,
        downloaded,
        local=bool(local) and len(local) == len(restore.copies),
        distrusted=tuple(distrusted),
    )


def _build(
    restore: Restore, files: JobCheckpointFiles, target: Path, local: Mapping[int, Path]
) -> int:
    """Build the store at `target`; return the bytes that were downloaded for it.

    Args:
        restore: What it is made of.
        files: Where its copies are.
        target: Its directory, which appears whole, or not at all.
        local: Directories of the copies that need not be downloaded, by their place among all.
    """
    job = job_directory(restore.local_dir, restore.job_id, restore.owner.run)
    scratch = job / f"{restore.incarnation}.restoring-{uuid.uuid4().hex}"
    make_private(scratch)
    try:
        sources, downloaded = [], 0
        for number, copy in enumerate(restore.copies):
            directory = local.get(number)
            if directory is None:
                directory = scratch / str(number)
                downloaded += _download(copy, restore, files, directory)
            sources.append(directory)
        faults.reach("during-restore", uid=restore.uid, subtask=restore.subtask)
        state = restore.operator_state
        restore_store(
            restore.backend,
            sources,
            target,
            version=restore.version,
            key_groups=restore.key_groups,
            whole=restore.whole,
            operator_state=None if state is None else OperatorStateSnapshot.decode(state),
            kind=restore.kind,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return downloaded


def _download(
    copy: StoredCopy, restore: Restore, files: JobCheckpointFiles, directory: Path
) -> int:
    """Bring what the new store needs of a copy; return the bytes of it."""
    wanted = copy.files
    if not restore.whole and can_be_partial(restore.kind):
        first = {name: one for name, one in wanted.items() if not is_shareable(Path(name))}
        download_snapshot(first, files, directory)
        needed = files_with(restore.key_groups, directory)
        unknown = [name for name in needed if name not in wanted]
        if unknown:
            raise CorruptCheckpointError(
                f"operator {restore.uid!r}: the journal of a store names {', '.join(unknown)}, "
                "which the checkpoint does not list; restore from another checkpoint"
            )
        rest = {name: wanted[name] for name in needed}
        download_snapshot(rest, files, directory)
        wanted = first | rest
    else:
        download_snapshot(wanted, files, directory)
    return sum(handle.size for handle in wanted.values())


def _trusted_copies(restore: Restore) -> tuple[dict[int, Path], list[str]]:
    """Copies that are here and may be used, by their place; and why others may not."""
    local: dict[int, Path] = {}
    distrusted: list[str] = []
    for number, copy in enumerate(restore.copies):
        if copy.local is None or not Path(copy.local).exists():
            continue
        directory = Path(copy.local) / STORE
        why = _distrust(copy, restore.kind, directory)
        if why is None:
            local[number] = directory
        else:
            distrusted.append(f"{directory}: {why}")
            _drop(restore, [number])
    return local, distrusted


def _distrust(copy: StoredCopy, kind: str, directory: Path) -> str | None:
    """Why a local snapshot may not be used; None if it is what the checkpoint holds.

    It is opened last: to open what is damaged may kill the process.
    """
    try:
        names = set(map(str, snapshot_files(directory)))
        if names != set(copy.files):
            differing = ", ".join(sorted(names ^ set(copy.files)))
            return f"it and the checkpoint do not have the same files: {differing}"
        why = difference(copy.files, directory)
        if why is not None:
            return why
        with open_snapshot_of(kind, directory) as snapshot:
            if snapshot.version != copy.version:
                return f"it holds version {snapshot.version!r}, and not {copy.version!r}"
            if snapshot.boot != boot_id():
                return "it was written before this machine restarted"
    except (HoldfastError, OSError) as error:
        return str(error)
    return None


def _drop(restore: Restore, numbers: Iterable[int]) -> None:
    """Remove local copies, so that no later restore meets them."""
    for number in numbers:
        local = restore.copies[number].local
        assert local is not None
        shutil.rmtree(local, ignore_errors=True)
