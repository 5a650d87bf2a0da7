"""Rewrites a savepoint with another max parallelism, offline."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast._faults import fault_point
from holdfast._version import VERSION
from holdfast.checkpoint.files.completed import verify_handles
from holdfast.checkpoint.restore.operator_states import read_operator_states
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.storage import discard_unfinished, new_savepoint, store_savepoint
from holdfast.clock import SystemClock
from holdfast.config.parallelism import check_max_parallelism
from holdfast.errors import ConfigurationError, RestoreError, StoreFullError
from holdfast.state.store.directories import file_name
from holdfast.state.store.snapshot import CANONICAL
from holdfast.state_processor.rewrite import Rewriting, copied_operator, rewritten_operator
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.checkpoint.files.metadata import (
        CheckpointMetadata,
        OperatorSnapshot,
        SourceSnapshot,
    )
    from holdfast.config.options import PathLike
    from holdfast.state_processor.rewrite import OperatorStates


def rewrite_max_parallelism(
    path: PathLike,
    target: PathLike,
    max_parallelism: int,
    operators: Collection[str] | None = None,
) -> str:
    """Write a new savepoint with another max parallelism; the old one does not change.

    Keyed state and timers are assigned to their new key groups. Everything else is copied. The new
    savepoint has the canonical format. Operators with windows over all elements, which always have
    one key group, do not change.

    The state of one operator at a time is stored in the directory for temporary files.

    Args:
        path: Directory of a savepoint or of a retained checkpoint, or its `_metadata` file.
        target: Directory below which the new savepoint is written.
        max_parallelism: Number of key groups, within 1..32768. An operator with more subtasks
            is recorded with that parallelism.
        operators: Uids of the operators to change; None for all.

    Returns:
        Path of the new savepoint.

    Raises:
        ConfigurationError: An argument is wrong.
        RestoreError: There is no savepoint, or its state cannot be rewritten.
        CorruptCheckpointError: The savepoint is damaged.
        CheckpointStorageError: Storage failed or is full.
        StoreFullError: The disk for temporary files is full.
        StateError: State cannot be read.
    """
    check_max_parallelism(max_parallelism, "rewrite_max_parallelism")
    source, metadata = find_snapshot(path)
    _check_target(source, target)
    _check_nothing_waits(metadata, path)
    verify_handles(metadata, source)
    wanted = _wanted(metadata, max_parallelism, operators)
    own = {
        snapshot.uid: read_operator_states(snapshot, source)
        for snapshot in metadata.operators
        if not _stays(snapshot, wanted)
    }
    _check_raw_state(metadata, wanted, own)
    files = new_savepoint(target, metadata.job_id)
    try:
        with TemporaryDirectory(prefix="holdfast-rewrite-") as scratch:
            rewriting = Rewriting(source, files, Path(scratch))
            rewritten = _rewritten(metadata, wanted, own, rewriting)
            fault_point("before-savepoint-metadata", checkpoint=metadata.checkpoint_id)
            store_savepoint(files, rewritten)
    except StoreFullError as error:
        discard_unfinished(files)
        raise StoreFullError(
            f"{error} (the state is written to {scratch}; set TMPDIR to a directory with room "
            "for three times the largest operator's state)"
        ) from error
    except BaseException:
        discard_unfinished(files)
        raise
    return files.root


def _rewritten(
    metadata: CheckpointMetadata,
    wanted: dict[str, int],
    own: dict[str, OperatorStates],
    rewriting: Rewriting,
) -> CheckpointMetadata:
    now = SystemClock().now_ms()
    return msgspec.structs.replace(
        metadata,
        version=VERSION,
        lineage="",
        fence=0,
        triggered_ms=now,
        completed_ms=now,
        is_savepoint=True,
        origin=UNSET,
        operators=[
            copied_operator(snapshot, rewriting)
            if _stays(snapshot, wanted)
            else rewritten_operator(snapshot, own[snapshot.uid], wanted[snapshot.uid], rewriting)
            for snapshot in metadata.operators
        ],
        sources=[_copied_source(source, rewriting) for source in metadata.sources],
    )


def _copied_source(source: SourceSnapshot, rewriting: Rewriting) -> SourceSnapshot:
    place = f"sources/{file_name(source.uid)}"
    logs = {
        name: [
            rewriting.copied(handle, f"{place}/{file_name(name)}-{number:05d}")
            for number, handle in enumerate(handles)
        ]
        for name, handles in source.logs.items()
    }
    return msgspec.structs.replace(source, logs=logs)


def _wanted(
    metadata: CheckpointMetadata, max_parallelism: int, operators: Collection[str] | None
) -> dict[str, int]:
    """New max parallelism of every operator, by uid."""
    known = {snapshot.uid: snapshot for snapshot in metadata.operators}
    for uid in [] if operators is None else operators:
        if uid not in known:
            raise ConfigurationError(
                f"rewrite_max_parallelism: there is no state of an operator {uid!r}; there is "
                f"state of {', '.join(map(repr, known)) or 'none'}"
            )
        if _has_one_key(known[uid]):
            raise ConfigurationError(
                f"rewrite_max_parallelism: operator {uid!r} has windows over all elements, whose "
                "max parallelism is always 1; leave it out"
            )
    chosen = known if operators is None else operators
    return {
        uid: max_parallelism
        if uid in chosen and not _has_one_key(snapshot)
        else snapshot.max_parallelism
        for uid, snapshot in known.items()
    }


def _has_one_key(snapshot: OperatorSnapshot) -> bool:
    """Whether it has windows over all elements: keyed state without a keyed input."""
    return bool(snapshot.states) and all(store.key_groups is None for store in snapshot.subtasks)


def _stays(snapshot: OperatorSnapshot, wanted: dict[str, int]) -> bool:
    """Whether the operator's files can be copied unchanged."""
    return wanted[snapshot.uid] == snapshot.max_parallelism and all(
        store.backend == CANONICAL for store in snapshot.subtasks
    )


def _check_target(source: FileSystemFiles, target: PathLike) -> None:
    inside = FileSystemFiles(target).root.rstrip("/") + "/"
    if inside.startswith(source.root.rstrip("/") + "/"):
        raise ConfigurationError(
            f"{target}: the new savepoint would lie within the old one, {source.root}, and be "
            "deleted with it; give a directory outside of it"
        )


def _check_nothing_waits(metadata: CheckpointMetadata, path: PathLike) -> None:
    if metadata.committables or metadata.channel_state:
        what = "output that is to be published"
        if metadata.channel_state:
            what = "input that was not processed"
        raise RestoreError(
            f"{path}: checkpoint {metadata.checkpoint_id} holds {what}, which a savepoint cannot "
            "hold. Start the job from it, stop it with a savepoint, and rewrite that"
        )


def _check_raw_state(
    metadata: CheckpointMetadata, wanted: dict[str, int], own: dict[str, OperatorStates]
) -> None:
    for snapshot in metadata.operators:
        changes = wanted[snapshot.uid] != snapshot.max_parallelism
        states = own.get(snapshot.uid, [])
        if changes and any(state is not None and state.raw_key_groups for state in states):
            raise RestoreError(
                f"operator {snapshot.name!r} (uid {snapshot.uid!r}) has raw keyed state, whose "
                "keys only its function knows: it cannot be assigned to other key groups. Let "
                "the function keep it in keyed state, or name the other operators' uids in "
                "`operators`"
            )
