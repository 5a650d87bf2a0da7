"""Fences: only the driver that started last writes the checkpoints of a job.

Every driver that starts a job takes the next number by creating `fence/<number>`, and looks for a
higher one before it completes or deletes anything. Fences are never deleted while the job's
directory exists: a gap would hide later ones.

A driver that restores a checkpoint notes that in `fence/<number>.from-<fence>-<id>`, before it
publishes the output that the checkpoint lists. A driver that was replaced may later complete
another checkpoint of the same input. No later driver must restore that one.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.checkpoint.files.layout import FENCES
from holdfast.errors import CheckpointStorageError, FencedError

if TYPE_CHECKING:
    from holdfast.storage.files import NamedFiles

logger = logging.getLogger("holdfast")

_REMEMBERED: Final = 16
"""Number of replaced drivers whose local state may still exist."""
_NOTE: Final = re.compile(r"(\d+)\.from-(\d+)-(\d+)")
_Note: TypeAlias = tuple[int, tuple[int, int]]
"""Fence of the driver that restored; fence and id of the checkpoint that it restored."""


class _Holder(msgspec.Struct):
    id: str


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write checkpoints of a job, until another driver takes a higher one."""

    files: NamedFiles
    number: int
    holder: bytes
    """Content of its file, which names the driver; unique."""

    @property
    def run(self) -> str:
        """Unique id of this driver; later drivers know it as replaced."""
        return _run(self.holder) or ""

    def replaced(self) -> tuple[str, ...]:
        """Ids of the drivers that were replaced last."""
        below = range(self.number - 1, max(0, self.number - 1 - _REMEMBERED), -1)
        holders = (self.files.read(_name(number)) for number in below)
        return tuple(run for holder in holders if (run := _run(holder)))

    def check(self) -> None:
        """Raise FencedError if another driver has taken over, or the job was deleted.

        That may happen right after the check. So a checkpoint carries the number of its fence,
        and checkpoints are ordered by fence first.
        """
        if self.files.read(_name(self.number)) != self.holder:
            raise FencedError(
                f"{self.files.root}: fence {self.number} of this driver is gone: the job's "
                "checkpoints were deleted while it ran; stop this driver and start the job again"
            )
        if self.files.exists(_name(self.number + 1)):
            raise self._taken_over()

    def going_back(self, fence: int, checkpoint_id: int) -> None:
        """Note that this driver restores the checkpoint written under `fence`.

        Earlier notes have no effect after that, and are deleted, so that their number does not
        grow. A note that cannot be deleted now is deleted the next time.
        """
        note = self.number, (fence, checkpoint_id)
        self.files.create_exclusive(_note_name(note), b"")
        try:
            self.files.delete_all(_note_name(one) for one in _notes(self.files) if one < note)
        except CheckpointStorageError as failure:
            logger.warning("earlier notes are left in %s/: %s", FENCES, failure)

    def _taken_over(self) -> FencedError:
        highest = max(fences(self.files))
        holder = self.files.read(_name(highest)) or b"?"
        return FencedError(
            f"{self.files.root}: this driver holds fence {self.number}, and another has taken "
            f"fence {highest} ({holder.decode(errors='replace')}): the job was started again "
            "elsewhere; stop this driver, or give the other job an id of its own"
        )


def take_fence(files: NamedFiles, above: int = 0) -> Fence:
    """Take the next fence, higher than every one before, and higher than `above`."""
    there = set(fences(files))
    number = max([above, *there]) + 1
    holder = msgspec.json.encode(
        {"host": socket.gethostname(), "pid": os.getpid(), "id": uuid.uuid4().hex}
    )
    while not files.create_exclusive(_name(number), holder):
        number += 1
    # Some may be lost, and a driver with an older one looks for the next number alone.
    for missing in {one + 1 for one in there} - there - {number}:
        files.create_exclusive(_name(missing), b"")
    return Fence(files, number, holder)


def still_valid(files: NamedFiles, checkpoints: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The checkpoints, each a fence and an id, that a driver may restore.

    Leaves out those that a replaced driver completed too late: another driver had restored an
    earlier one by then.
    """
    notes = _notes(files)
    if not notes:
        return checkpoints
    by, chosen = max(notes)
    return [one for one in checkpoints if one[0] >= by or one <= chosen]


def _notes(files: NamedFiles) -> list[_Note]:
    found = (_NOTE.fullmatch(name) for name in files.entries(FENCES))
    return [(int(note[1]), (int(note[2]), int(note[3]))) for note in found if note]


def _note_name(note: _Note) -> str:
    by, (fence, checkpoint_id) = note
    return f"{_name(by)}.from-{fence}-{checkpoint_id}"


def _run(holder: bytes | None) -> str | None:
    try:
        return msgspec.json.decode(holder or b"", type=_Holder).id
    except msgspec.DecodeError:
        # Written by hand, or damaged: no local state depends on it.
        return None


def _name(number: int) -> str:
    return f"{FENCES}/{number}"


def fences(files: NamedFiles) -> list[int]:
    """Numbers of all fences."""
    return [int(name) for name in files.entries(FENCES) if name.isdecimal()]
