"""Writes one operator of a savepoint as tables of a new savepoint."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from holdfast._faults import fault_point
from holdfast.checkpoint.files.metadata import StoreSnapshot
from holdfast.checkpoint.savepoint.storage import upload_tables
from holdfast.checkpoint.transfer import download_snapshot
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.redistribution import redistribute
from holdfast.state.restore import restore_store
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.snapshot import CANONICAL
from holdfast.state.tables.operator import write_operator_tables
from holdfast.state.tables.writer import write_tables
from holdfast.state_processor.regroup import SCRATCH, regroup
from holdfast.storage.handles import FileHandle, Handle

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import OperatorSnapshot
    from holdfast.state.operator.redistribution import OperatorStateSnapshot
    from holdfast.state.store.snapshot import ReadOnlySnapshot
    from holdfast.storage.file_system import FileSystemFiles

    OperatorStates = list[OperatorStateSnapshot | None]

logger = logging.getLogger("holdfast")

VERSION: Final = "rewritten"
"""Version of the temporary stores."""


@dataclass(frozen=True)
class Rewriting:
    """The source and the target of a rewrite."""

    source: FileSystemFiles
    target: FileSystemFiles
    scratch: Path
    """A local directory for temporary files."""

    def copied(self, handle: Handle, name: str | None = None) -> Handle:
        """Copy a file to the new savepoint; an inline handle is returned unchanged.

        Args:
            handle: The file.
            name: Its new name; None for the old one.
        """
        if not isinstance(handle, FileHandle):
            return handle
        local = self.scratch / "copy"
        try:
            self.source.download(handle, local)
            return self.target.write_file(local, name or handle.path)
        finally:
            local.unlink(missing_ok=True)


def copied_operator(snapshot: OperatorSnapshot, rewriting: Rewriting) -> OperatorSnapshot:
    """Copy an operator's tables unchanged."""

    def copied(handles: dict[str, Handle]) -> dict[str, Handle]:
        return {name: rewriting.copied(handle) for name, handle in handles.items()}

    stores = [
        msgspec.structs.replace(
            store,
            files=copied(store.files),
            operator_tables=copied(store.operator_tables or {}) or UNSET,
        )
        for store in snapshot.subtasks
    ]
    return msgspec.structs.replace(snapshot, subtasks=stores)


def rewritten_operator(
    snapshot: OperatorSnapshot, own: OperatorStates, max_parallelism: int, rewriting: Rewriting
) -> OperatorSnapshot:
    """Write an operator with another number of key groups.

    Args:
        snapshot: The operator.
        own: Operator state of its subtasks; without raw keyed state if the number changes.
        max_parallelism: New number of key groups.
        rewriting: The source and the target.

    Raises:
        StoreFullError: The local disk is full.
        StateError: State cannot be read.
        CorruptCheckpointError: A file is missing, or has changed.
        CheckpointStorageError: Storage failed or is full.
    """
    parallelism = min(snapshot.parallelism, max_parallelism)
    stores: list[StoreSnapshot] = []
    if snapshot.subtasks:
        who = f"operator {snapshot.uid!r}"
        logger.info(
            "%s: max parallelism %d becomes %d", who, snapshot.max_parallelism, max_parallelism
        )
        shares = _dealt_out(own, parallelism, max_parallelism)
        keyed = any(store.key_groups is not None for store in snapshot.subtasks)
        scratch = rewriting.scratch / "operator"
        try:
            _gather(snapshot, rewriting, scratch)
            regroup(scratch / "gathered", VERSION, scratch / "state", max_parallelism, who)
            shutil.rmtree(scratch / "gathered")
            with open_snapshot(SCRATCH, scratch / "state") as state:
                for subtask, share in enumerate(shares):
                    groups = key_groups(subtask, parallelism, max_parallelism)
                    part = _Part(snapshot.uid, subtask, groups, keyed)
                    stores.append(part.written(state, share, rewriting.target, scratch / "tables"))
                    fault_point("after-savepoint-part", uid=snapshot.uid, subtask=subtask)
                    logger.info("%s: subtask %d of %d is written", who, subtask + 1, parallelism)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return msgspec.structs.replace(
        snapshot, parallelism=parallelism, max_parallelism=max_parallelism, subtasks=stores
    )


def _gather(snapshot: OperatorSnapshot, rewriting: Rewriting, scratch: Path) -> None:
    """Restore the state of all subtasks to one store, `gathered`."""
    parts = []
    for store in snapshot.subtasks:
        parts.append(scratch / "parts" / str(store.subtask))
        download_snapshot(store.files, rewriting.source, parts[-1])
    restore_store(
        SCRATCH,
        parts,
        scratch / "gathered",
        version=VERSION,
        key_groups=range(snapshot.max_parallelism),
        whole=False,
        operator_state=None,
        kind=snapshot.subtasks[0].backend,
    )
    shutil.rmtree(scratch / "parts")


def _dealt_out(own: OperatorStates, parallelism: int, max_parallelism: int) -> OperatorStates:
    """Redistribute operator state to the new subtasks."""
    if len(own) == parallelism or not any(own):
        return own[:parallelism]
    dealt = redistribute(own, parallelism, max_parallelism)
    # Every subtask gets a whole union list, and would get it again at the restore.
    return [dealt[0], *map(_without_union_lists, dealt[1:])]


def _without_union_lists(state: OperatorStateSnapshot) -> OperatorStateSnapshot:
    states = [
        msgspec.structs.replace(one, elements=[]) if one.mode == "union" else one
        for one in state.states
    ]
    return msgspec.structs.replace(state, states=states)


@dataclass(frozen=True)
class _Part:
    """One subtask of an operator."""

    uid: str
    subtask: int
    key_groups: range
    keyed: bool
    """Whether the operator's input is keyed."""

    def written(
        self,
        state: ReadOnlySnapshot,
        own: OperatorStateSnapshot | None,
        target: FileSystemFiles,
        scratch: Path,
    ) -> StoreSnapshot:
        """Write the tables of the subtask."""
        try:
            write_tables(state, scratch / "state", key_groups=self.key_groups)
            if own is not None:
                write_operator_tables(own, scratch / "own", subtask=self.subtask)
            files = upload_tables(scratch / "state", target, self.uid, self.subtask)
            tables = upload_tables(scratch / "own", target, self.uid, self.subtask)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        size = sum(handle.size for handle in (*files.values(), *tables.values()))
        groups = self.key_groups
        return StoreSnapshot(
            subtask=self.subtask,
            backend=CANONICAL,
            version=VERSION,
            key_groups=(groups.start, groups.stop - 1) if self.keyed else None,
            files=files,
            full_size=size,
            uploaded_size=size,
            operator_tables=tables or UNSET,
        )
