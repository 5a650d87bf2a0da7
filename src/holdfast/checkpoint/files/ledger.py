"""Records of completed checkpoints, outside of their directories.

    completed/<fence>-<id>          {"format": 1, "checkpoint_id": 7, "fence": 2}
    completed/<fence>-<id>.claimed  {"format": 1, "by": "orders-2"}

The directory of a checkpoint can be lost: a person deletes it, or a lifecycle rule of the storage
does. Without a record the job would restore an older checkpoint, publish the same output again, and
reuse the id of the lost checkpoint.

The record is created after the checkpoint's `_metadata` and before its output is published. It is
deleted before the `_metadata`. So a record without a checkpoint always means a lost checkpoint.

Another job that starts from a checkpoint may claim it, and delete it in the end. It leaves the
record, since the first job must not begin anew, and notes who it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.checkpoint.files.fence import still_valid
from holdfast.checkpoint.files.layout import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.files import NamedFiles

FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d+)-(\d+)")
_CLAIMED: Final = re.compile(r"\d+-(\d+)\.claimed")


def record_completed(files: NamedFiles, metadata: CheckpointMetadata) -> None:
    """Record a completed checkpoint, whose metadata must be durable."""
    checkpoint_id, fence = metadata.checkpoint_id, metadata.fence
    record = {"format": FORMAT, "checkpoint_id": checkpoint_id, "fence": fence}
    name = record_name(fence, checkpoint_id)
    files.create_exclusive(name, msgspec.json.encode(record))


def record_name(fence: int, checkpoint_id: int) -> str:
    """Name of the record of a checkpoint that was written under `fence`.

    Example:
        >>> record_name(2, 7)
        'completed/2-7'
    """
    return f"{COMPLETED}/{fence}-{checkpoint_id}"


class _Claimed(msgspec.Struct):
    format: int
    by: str


def note_claimed(files: NamedFiles, metadata: CheckpointMetadata, by: str) -> None:
    """Note that a job has claimed a checkpoint; call this before deleting it."""
    name = f"{record_name(metadata.fence, metadata.checkpoint_id)}.claimed"
    files.create_exclusive(name, msgspec.json.encode(_Claimed(FORMAT, by)))


def claimed_by(files: NamedFiles, checkpoint_id: int) -> str | None:
    """Id of the job that has claimed a checkpoint; None if no job has."""
    for name in files.entries(COMPLETED):
        match = _CLAIMED.fullmatch(name)
        if match and int(match[1]) == checkpoint_id:
            try:
                return msgspec.json.decode(
                    files.read(f"{COMPLETED}/{name}") or b"", type=_Claimed
                ).by
            except msgspec.DecodeError:
                return "?"
    return None


def recorded_checkpoints(files: NamedFiles) -> list[tuple[int, int]]:
    """Fence and id of every checkpoint that has a record, newest first."""
    found = (_NAME.fullmatch(name) for name in files.entries(COMPLETED))
    return sorted(((int(match[1]), int(match[2])) for match in found if match), reverse=True)


def lost_checkpoint(
    files: NamedFiles,
    records: list[tuple[int, int]],
    complete: Iterable[tuple[int, int]],
    there: Collection[int],
    unwanted: Collection[int] = (),
) -> int | None:
    """Id of the newest completed checkpoint if storage has lost it, else None.

    Args:
        files: The job's files.
        records: Records of complete checkpoints, newest first, read before the checkpoints.
        complete: Fence and id of every complete checkpoint in storage.
        there: Ids of all checkpoints that have metadata, readable or not.
        unwanted: Checkpoints that were aborted while their metadata was written.
    """
    for fence, checkpoint_id in still_valid(files, records):
        if checkpoint_id not in unwanted:
            superseded = any(one > (fence, checkpoint_id) for one in complete)
            return None if superseded or checkpoint_id in there else checkpoint_id
    return None
