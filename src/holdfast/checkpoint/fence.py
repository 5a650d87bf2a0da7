"""One writer per job: a driver that has been replaced writes no more.

Every driver that starts a job takes the next number by creating `fence/<number>`, and
looks for a higher one before it completes or deletes anything. Fences are never
removed while the job's directory exists: a gap would hide the ones behind it.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.checkpoint.storage import FENCES
from holdfast.errors import FencedError

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import NamedFiles


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write checkpoints of a job, until somebody takes a higher one."""

    files: NamedFiles
    number: int
    holder: bytes
    """Who took it, as written to its file; differs from every other."""

    def check(self) -> None:
        """Raise FencedError if another driver has taken over, or the job was deleted.

        It may happen right after the check. So a checkpoint carries the number of its
        fence, and the order of checkpoints goes by fence first.
        """
        if self.files.read(_name(self.number)) != self.holder:
            raise FencedError(
                f"{self.files.root}: fence {self.number} of this driver is gone: the job's "
                "checkpoints were deleted while it ran; stop this driver and start the job anew"
            )
        if self.files.exists(_name(self.number + 1)):
            raise self._taken_over()

    def _taken_over(self) -> FencedError:
        highest = max(_taken(self.files))
        holder = self.files.read(_name(highest)) or b"?"
        return FencedError(
            f"{self.files.root}: this driver holds fence {self.number}, and another has taken "
            f"fence {highest} ({holder.decode(errors='replace')}): the job was started again "
            "elsewhere; stop this driver, or give the other job an id of its own"
        )


def take_fence(files: NamedFiles) -> Fence:
    """Take the next fence: higher than every one before, and nobody else's."""
    number = max(_taken(files), default=0) + 1
    holder = msgspec.json.encode(
        {"host": socket.gethostname(), "pid": os.getpid(), "id": uuid.uuid4().hex}
    )
    while not files.create_exclusive(_name(number), holder):
        number += 1
    return Fence(files, number, holder)


def _name(number: int) -> str:
    return f"{FENCES}/{number}"


def _taken(files: NamedFiles) -> list[int]:
    return [int(name) for name in files.entries(FENCES) if name.isdecimal()]
