"""The highest fence and checkpoint id that a job has used, in all its runs.

    used/<fence>-<id>      {"format": 1, "checkpoint_id": 7, "fence": 2}

The end of a job deletes its checkpoints, their records and its fences. If the next run under the
same job id counted from 1 again, a table that skips ids that it has seen would lose rows. So the
end of a job leaves this one file, and the next run counts from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.checkpoint.files.completed import completed_checkpoints, used_ids
from holdfast.checkpoint.files.fence import fences
from holdfast.checkpoint.files.layout import USED, is_own
from holdfast.checkpoint.files.ledger import recorded_checkpoints

if TYPE_CHECKING:
    from holdfast.storage.files import NamedFiles

FORMAT: Final = 1


def highest_used(files: NamedFiles) -> tuple[int, int]:
    """The highest fence and the highest checkpoint id that any driver of the job has used.

    Fences are looked for in checkpoints too: should the directory of fences be lost, those of new
    checkpoints would lie below those of old ones, and an old one would count as the newest.
    """
    pairs = [*completed_checkpoints(files), *recorded_checkpoints(files), *_kept(files)]
    numbers = [fence for fence, _ in pairs]
    ids = [checkpoint_id for _, checkpoint_id in pairs]
    return (
        max([*numbers, *fences(files)], default=0),
        max([*ids, *used_ids(files)], default=0),
    )


def keep_highest(files: NamedFiles) -> None:
    """Keep the highest fence and id, for a run after all other files are deleted.

    A job that has used no id leaves nothing.
    """
    fence, checkpoint_id = highest_used(files)
    if not checkpoint_id:
        return
    before = _kept(files)
    note = {"format": FORMAT, "checkpoint_id": checkpoint_id, "fence": fence}
    files.create_exclusive(_name(fence, checkpoint_id), msgspec.json.encode(note))
    # Only now: there is always one that counts.
    files.delete_all(_name(*one) for one in before if one != (fence, checkpoint_id))


def _kept(files: NamedFiles) -> list[tuple[int, int]]:
    names = (name.split("-") for name in files.entries(USED) if is_own(USED, name))
    return [(int(fence), int(checkpoint_id)) for fence, checkpoint_id in names]


def _name(fence: int, checkpoint_id: int) -> str:
    return f"{USED}/{fence}-{checkpoint_id}"
