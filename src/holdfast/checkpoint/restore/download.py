"""Downloads one subtask's state and builds its store.

These functions run where the local state is: in a thread of the driver, or in a task.
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
    from holdfast.state.store.process import ProcessIdentity
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


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
    job_attempt: str
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
    fault_point("before-restore", **where)
    claim_job(restore.local_dir, restore.job_id, restore.owner)
    target = store_directory(
        restore.local_dir,
        restore.job_id,
        restore.job_attempt,
        restore.uid,
        restore.subtask,
        restore.owner.run,
    )
    if target.exists():
        # A task that Spark tries again finds what its first attempt has finished. It is as
        # good: nothing but restores of this job attempt has been here yet.
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
    """Build the store at `target`; return the bytes that were downloaded for it.

    Args:
        restore: What it is made of.
        files: Where its copies are.
        target: Its directory, which appears whole, or not at all.
        local: Directories of the copies that need not be downloaded, by their place among all.
    """
    job = job_directory(restore.local_dir, restore.job_id, restore.owner.run)
    scratch = job / f"{restore.job_attempt}.restoring-{uuid.uuid4().hex}"
    make_private(scratch)
    try:
        sources, downloaded = [], 0
        for number, copy in enumerate(restore.copies):
            directory = local.get(number)
            if directory is None:
                directory = scratch / str(number)
                downloaded += _download(copy, restore, files, directory)
            sources.append(directory)
        fault_point("during-restore", uid=restore.uid, subtask=restore.subtask)
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
