"""Packs the assignments of a stage's subtasks, so that each task decodes only its own.

The driver knows the store versions, due timers and channel state of all subtasks. If every
task got all of it, each would spend time that grows with the number of subtasks, and all
tasks together its square. So the assignments are encoded subtask by subtask into one byte
string. Tasks carry the string and decode the few bytes that are theirs.
"""

from __future__ import annotations

import pickle
from array import array
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.runtime.channel_cut import entries_of, takers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.runtime.plan import ChannelRows, EpochPlan, StagePlan

Store = tuple[str, int]
"""Uid and subtask."""

_Packed = tuple[list[str | None], list[int], list[int], bytes]
"""Versions by operator; positions of operators whose stores a complete checkpoint holds, and of
those with timers due; channel state, pickled."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Packed).decode
_ENDS: Final = "I"


@dataclass(frozen=True)
class Assignments:
    """The assignments of all subtasks of one stage."""

    uids: tuple[str, ...]
    """The stage's operators."""
    data: bytes
    ends: bytes
    """Where the part of each subtask ends in `data`."""

    def of_subtask(self, epoch: EpochPlan, subtask: int) -> EpochPlan:
        """The epoch's plan for one subtask."""
        ends = memoryview(self.ends).cast(_ENDS)
        begin = ends[subtask - 1] if subtask else 0
        versions, held, due, left = _decode(memoryview(self.data)[begin : ends[subtask]])
        time = epoch.time
        return replace(
            epoch,
            expected={
                (uid, subtask): version
                for uid, version in zip(self.uids, versions, strict=False)
                if version is not None
            },
            held=frozenset((self.uids[at], subtask) for at in held),
            channel_rows=pickle.loads(left) if left else (),
            time=time and replace(time, due=frozenset((self.uids[at], subtask) for at in due)),
        )


def assign(
    stage: StagePlan,
    tasks: int,
    expected: Mapping[Store, str],
    held: Mapping[Store, str],
    due: Collection[Store],
    channel_rows: Iterable[ChannelRows],
) -> Assignments:
    """Pack the assignments of the tasks of a stage.

    Args:
        stage: The stage.
        tasks: Number of its subtasks.
        expected: Versions of all stores, of other stages too.
        held: Versions of stores that the newest complete checkpoint holds.
        due: Stores with timers that must fire.
        channel_rows: Channel state of earlier epochs, in order.
    """
    uids = tuple(operator.uid for operator in stage.operators)
    left = _by_subtask(stage, channel_rows)
    nothing = _encode(([], [], [], b""))
    parts = []
    for subtask in range(tasks):
        versions = [expected.get((uid, subtask)) for uid in uids]
        stays = [
            at
            for at, version in enumerate(versions)
            if version is not None and held.get((uids[at], subtask)) == version
        ]
        fires = [at for at, uid in enumerate(uids) if (uid, subtask) in due] if due else []
        mine = left.get(subtask)
        if fires or mine or any(versions):
            rows = pickle.dumps(tuple(mine)) if mine else b""
            parts.append(_encode((versions, stays, fires, rows)))
        else:
            parts.append(nothing)
    ends = array(_ENDS, accumulate(map(len, parts)))
    return Assignments(uids, b"".join(parts), ends.tobytes())


def _by_subtask(
    stage: StagePlan, channel_rows: Iterable[ChannelRows]
) -> dict[int, list[ChannelRows]]:
    entries = entries_of(stage)
    found: dict[int, list[ChannelRows]] = defaultdict(list)
    for left in channel_rows:
        entry = entries.get((left.uid, left.input))
        if entry is not None:
            for subtask in takers(left, *entry):
                found[subtask].append(left)
    return found
