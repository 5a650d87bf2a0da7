"""Downloads one subtask's state and builds its store.

These functions run where the local state is: in a thread of the driver, or in a Spark task.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._faults import fault_point
from holdfast.checkpoint.transfer import difference, download_snapshot
from holdfast.errors import CorruptCheckpointError, HoldfastError
from holdfast.runtime.report import STORE
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.restore import restore_store
from holdfast.state.snapshots import can_be_partial, files_with, open_snapshot_of
from holdfast.state.store.directories import claim_job, job_directory, make_private, store_directory
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import boot_id
from holdfast.state.store.snapshot import is_shareable, snapshot_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.config.backends import StateBackend
    from holdfast.job.model import JobIdentity
    from holdfast.state.store.process import ProcessIdentity
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


@dataclass(frozen=True)
class StoredCopy:
    """The store of an old subtask, from which a new one takes key groups."""

    files: dict[str, Handle]
    version: str
    local: str | None = None
    """Local snapshot with the same content, if it still exists on this executor."""


@dataclass(frozen=True)
class RestoreTarget:
    """The job attempt, process and backend that stores are built for."""

    job: JobIdentity
    owner: ProcessIdentity
    backend: StateBackend

    def store(self, uid: str, subtask: int) -> Path:
        """Directory of a subtask's store."""
        job = self.job
        return store_directory(
            job.local_dir, job.job_id, job.job_attempt, uid, subtask, self.owner.run
        )


@dataclass(frozen=True)
class Restore:
    """A local store to build."""

    target: RestoreTarget
    uid: str
    subtask: int
    version: str
    copies: tuple[StoredCopy, ...]
    kind: str
    """The kind of snapshot, for `open_snapshot_of`."""
    whole: bool
    """Whether the only copy is used unchanged."""
    key_groups: range
    operator_state: bytes | None


@dataclass(frozen=True)
class Restored:
    """A store that was built."""

    uid: str
    subtask: int
    version: str
    downloaded: int = 0
    """Bytes downloaded from storage."""
    local: bool = False
    """Whether it was built from local copies alone."""
    distrusted: tuple[str, ...] = ()
    """Why existing local copies were not used, but deleted."""


def restore_one(restore: Restore, *, files: JobCheckpointFiles) -> Restored:
    """Build one local store from a checkpoint.

    A local copy is used if it equals the checkpoint, byte by byte. If the store cannot be built
    with it, it is built from storage alone.
    """
    where = {"uid": restore.uid, "subtask": restore.subtask}
    fault_point("before-restore", **where)
    job, backend = restore.target.job, restore.target.backend
    claim_job(job.local_dir, job.job_id, restore.target.owner)
    target = restore.target.store(restore.uid, restore.subtask)
    if target.exists():
        # Spark has repeated the task, and its first attempt has built the store. It can be
        # used: only restores of this job attempt have written here.
        open_store(backend, target, restore.version).abort()
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
    fault_point("after-restore", **where)
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
    """Build the store at `target`; returns the number of bytes downloaded.

    Args:
        restore: The store.
        files: The checkpoint's files.
        target: The directory of the store, which is created atomically.
        local: Local directories of copies, by index; these are not downloaded.
    """
    job, owner = restore.target.job, restore.target.owner
    directory = job_directory(job.local_dir, job.job_id, owner.run)
    scratch = directory / f"{job.job_attempt}.restoring-{uuid.uuid4().hex}"
    make_private(scratch)
    try:
        sources, downloaded = [], 0
        for number, copy in enumerate(restore.copies):
            source = local.get(number)
            if source is None:
                source = scratch / str(number)
                downloaded += _download(copy, restore, files, source)
            sources.append(source)
        fault_point("during-restore", uid=restore.uid, subtask=restore.subtask)
        state = restore.operator_state
        restore_store(
            restore.target.backend,
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
    """Download the files that the new store needs of a copy; returns their size."""
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
    """Local copies that can be used, by index, and why others cannot."""
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
    """Why a local snapshot cannot be used; None if it equals the checkpoint.

    It is opened last: opening a damaged one may kill the process.
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
    """Delete local copies, so that no later restore finds them."""
    for number in numbers:
        local = restore.copies[number].local
        assert local is not None
        shutil.rmtree(local, ignore_errors=True)
