"""Complete checkpoints in storage: writes, orders, finds and loads them.

A checkpoint is complete when its `_metadata` exists. The newest is the one with the highest fence
and, among those, the highest id: a driver that was replaced may have completed one with a high id,
based on state that the job no longer has.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.fence import still_valid
from holdfast.checkpoint.files.layout import SHARED, first_user, metadata_name
from holdfast.checkpoint.files.ledger import claimed_by, lost_checkpoint, recorded_checkpoints
from holdfast.checkpoint.files.metadata import (
    LONGEST_HEADER,
    decode_header,
    decode_metadata,
    encode_metadata,
    handles_of,
)
from holdfast.errors import CheckpointStorageError, CorruptCheckpointError, RestoreError
from holdfast.storage.handles import FileHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.checkpoint.files.fence import Fence
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.files import JobCheckpointFiles, NamedFiles

_DIRECTORY: Final = re.compile(r"chk-(\d+)")


def store_metadata(files: JobCheckpointFiles, metadata: CheckpointMetadata, fence: Fence) -> None:
    """Complete a checkpoint; every file that it names must be durable.

    Raises:
        FencedError: Another driver has taken over; nothing was written.
        CheckpointStorageError: Storage failed or is full, or that checkpoint exists.
    """
    if fence.number != metadata.fence:
        raise CheckpointStorageError(
            f"{files.root}: checkpoint {metadata.checkpoint_id} was made under fence "
            f"{metadata.fence}, and this driver holds fence {fence.number}; discard it"
        )
    fence.check()
    name = metadata_name(metadata.checkpoint_id)
    try:
        created = files.create_exclusive(name, encode_metadata(metadata))
    except CheckpointStorageError as error:
        if files.limits is None:
            raise
        raise CheckpointStorageError(f"{error} ({_largest(metadata)})") from error
    if not created:
        raise CheckpointStorageError(
            f"{files.root}/{name}: this checkpoint is complete already, and is never written "
            "over; another driver may be running the same job"
        )


def checkpoint_ids(files: NamedFiles) -> list[int]:
    """Ids of all checkpoints with a directory in storage, complete or not."""
    found = (_DIRECTORY.fullmatch(name) for name in files.entries())
    return sorted(int(match[1]) for match in found if match)


def written_ids(files: NamedFiles) -> set[int]:
    """Ids of all checkpoints with metadata, readable or not."""
    return {one for one in checkpoint_ids(files) if files.exists(metadata_name(one))}


def used_ids(files: NamedFiles) -> set[int]:
    """Ids of all checkpoints with any file in storage, complete or not."""
    first = (first_user(f"{SHARED}/{name}") for name in files.entries(SHARED))
    return {*checkpoint_ids(files), *(found for found in first if found is not None)}


def completed_checkpoints(files: NamedFiles) -> list[tuple[int, int]]:
    """Fence and id of every complete checkpoint, newest first.

    Those with an unreadable header are left out; `load_newest` names them.
    """
    return _survey(files)[0]


def load(files: NamedFiles, checkpoint_id: int) -> CheckpointMetadata:
    """Load the metadata of one complete checkpoint.

    Raises:
        RestoreError: There is no such checkpoint, or it was never completed.
        CorruptCheckpointError: Its metadata cannot be used.
    """
    name = metadata_name(checkpoint_id)
    data = files.read(name)
    if data is None:
        complete = [found for _, found in completed_checkpoints(files)]
        raise RestoreError(
            f"{files.root}/{name}: there is no such checkpoint, or it was never completed; "
            f"completed checkpoints: {', '.join(map(str, complete)) or 'none'}"
        )
    metadata = decode_metadata(data, f"{files.root}/{name}")
    if metadata.checkpoint_id != checkpoint_id:
        raise CorruptCheckpointError(
            f"{files.root}/{name}: the metadata of checkpoint {metadata.checkpoint_id} was put "
            "here; a checkpoint cannot be moved: restore it from where it was written"
        )
    return metadata


def load_all(files: NamedFiles) -> Iterator[CheckpointMetadata]:
    """Load the metadata of every complete checkpoint, in the order of ids.

    Raises:
        CorruptCheckpointError: One of them cannot be used.
    """
    for checkpoint_id in sorted(written_ids(files)):
        # It may be deleted meanwhile.
        with suppress(RestoreError):
            yield load(files, checkpoint_id)


def load_newest(files: NamedFiles) -> tuple[CheckpointMetadata | None, dict[int, str]]:
    """Load the newest checkpoint that can be restored; also says why newer ones cannot, by id.

    The checkpoint is None if there is none. A failure of storage raises: it does not make a
    checkpoint bad, and restoring an older one would lose data.

    Raises:
        CheckpointStorageError: Storage failed.
    """
    # Read before the checkpoints: one that completes meanwhile is not lost.
    records = recorded_checkpoints(files)
    complete, unreadable = _survey(files)
    valid = still_valid(files, complete)
    refusals: dict[int, str] = {}
    newest: CheckpointMetadata | None = None
    for _, checkpoint_id in valid:
        try:
            metadata = load(files, checkpoint_id)
            verify_handles(metadata, files)
        except (CorruptCheckpointError, RestoreError) as error:
            refusals[checkpoint_id] = str(error)
        else:
            newest = metadata
            break
    # Their fences are unknown; by their ids they may be newer.
    floor = newest.checkpoint_id if newest else 0
    newer = {one: why for one, why in unreadable.items() if one > floor}
    if records:
        # Without a record nothing was published.
        newer = {one: newer[one] for _, one in records if one in newer}
    there = unreadable.keys() | {checkpoint_id for _, checkpoint_id in complete}
    lost = lost_checkpoint(files, records, valid, there)
    if lost is not None:
        newer[lost] = lost_reason(files, lost)
    return newest, newer | refusals


def lost_reason(files: NamedFiles, checkpoint_id: int) -> str:
    """The message for a completed checkpoint that is missing in storage."""
    claimer = claimed_by(files, checkpoint_id)
    if claimer is not None:
        return (
            f"{files.root}/{metadata_name(checkpoint_id)}: job {claimer!r} has started from this "
            "checkpoint and claimed it, which deletes it, and continues in the place of this job"
        )
    return (
        f"{files.root}/{metadata_name(checkpoint_id)}: the checkpoint was completed, and is no "
        "longer there; bring it back from a backup"
    )


def verify_handles(metadata: CheckpointMetadata, files: NamedFiles) -> None:
    """Check that every file of a checkpoint exists, with the right size.

    Raises:
        CorruptCheckpointError: A file is missing or has another size, or a store has no files.
    """
    for operator in metadata.operators:
        for store in operator.subtasks:
            # Even a store without state has files.
            if not store.files:
                raise CorruptCheckpointError(
                    f"{files.root}: operator {operator.uid!r}, subtask {store.subtask}: checkpoint "
                    f"{metadata.checkpoint_id} holds no file of its state; restore from another "
                    "checkpoint"
                )
    listed: dict[str, dict[str, int | None]] = {}
    for what, handle in handles_of(metadata):
        if not isinstance(handle, FileHandle):
            continue
        directory, _, name = handle.path.rpartition("/")
        if directory not in listed:
            listed[directory] = files.entries(directory)
        size = listed[directory].get(name)
        if size != handle.size:
            found = "is gone" if size is None else f"has {size} bytes instead of {handle.size}"
            raise CorruptCheckpointError(
                f"{files.root}/{handle.path}: the {what} in checkpoint {metadata.checkpoint_id} "
                f"{found}; restore from another checkpoint"
            )


def _survey(files: NamedFiles) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Fence and id of every complete checkpoint, and why others are unreadable, newest first."""
    complete: list[tuple[int, int]] = []
    unreadable: dict[int, str] = {}
    for checkpoint_id in checkpoint_ids(files):
        name = metadata_name(checkpoint_id)
        head = files.read(name, LONGEST_HEADER)
        if head is None:
            continue
        try:
            header = decode_header(head, f"{files.root}/{name}")
        except CorruptCheckpointError as error:
            unreadable[checkpoint_id] = str(error)
        else:
            complete.append((header.fence, checkpoint_id))
    return sorted(complete, reverse=True), dict(reversed(unreadable.items()))


def _largest(metadata: CheckpointMetadata) -> str:
    largest = max(handles_of(metadata), key=lambda found: found[1].size, default=None)
    if largest is None:
        return "the checkpoint holds no state"
    what, handle = largest
    return f"the largest part is {what} with {handle.size} bytes"
