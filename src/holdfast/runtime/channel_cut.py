"""Stops a task before the end of its input: the cut of an unaligned checkpoint.

At the cut the task stops processing. It stores the rest of its input as channel state in
checkpoint storage, and the same subtask starts its next epoch with those rows. So an epoch
ends soon after the cut, however slow functions are, and its state can be checkpointed. A
task that starts after the cut stores all of its input, but always processes some of the
channel state of earlier epochs: otherwise a job might never finish.

The driver's monotonic clock means nothing on other machines, so the cut is a wall-clock time.
A task reads the wall clock once, when it starts, and limits the effect of a wrong one: the cut
comes at most one epoch's time after the start. From then on the task uses a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.clock import monotonic
from holdfast.errors import RestoreError
from holdfast.runtime.partitioners import partitioner
from holdfast.runtime.plan import ChannelRows
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.types.columns.batches import BatchReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.api.sinks import RowsInStaging
    from holdfast.clock import Clock
    from holdfast.runtime.plan import Channel, EpochPlan, OperatorPlan, StagePlan


@dataclass(frozen=True)
class SliceSizes:
    """Numbers of rows that a task processes between two looks at the clock."""

    first: int = 64
    largest: int = 65_536
    short: float = 0.02
    """Seconds; a slice that takes less makes the next one larger."""
    long: float = 0.1
    """Seconds; a slice that takes more makes the next one smaller."""


SLICE_SIZES: Final = SliceSizes()


def entries_of(stage: StagePlan) -> dict[tuple[str, int], tuple[Channel, OperatorPlan]]:
    """Channels into the operators of a stage, by uid and by number within the operator."""
    entries: dict[tuple[str, int], tuple[Channel, OperatorPlan]] = {}
    for channel in stage.reads.channels:
        for place in stage.entries.get(channel.id, ()):
            operator = stage.operators[place]
            number = sum(uid == operator.uid for uid, _ in entries)
            entries[operator.uid, number] = channel, operator
    return entries


def takers(left: ChannelRows, channel: Channel, operator: OperatorPlan) -> range:
    """Subtasks that may own some rows of the channel state."""
    if not _is_spread_by_key(left, channel, operator):
        subtask = left.subtask % operator.parallelism
        return range(subtask, subtask + 1)
    if left.max_parallelism != operator.max_parallelism:
        return range(operator.parallelism)
    groups = key_groups(left.subtask, left.parallelism, left.max_parallelism)
    first, last = (
        subtask_of(group, operator.parallelism, operator.max_parallelism)
        for group in (groups.start, max(groups.start, groups.stop - 1))
    )
    return range(first, last + 1)


def _is_spread_by_key(left: ChannelRows, channel: Channel, operator: OperatorPlan) -> bool:
    same = (left.parallelism, left.max_parallelism) == (
        operator.parallelism,
        operator.max_parallelism,
    )
    return channel.key is not None and not same


class InputCut:
    """Decides when a task stops, and stores the rest of its input."""

    def __init__(
        self,
        stage: StagePlan,
        epoch: EpochPlan,
        subtask: int,
        unique: str,
        clock: Clock,
        sizes: SliceSizes = SLICE_SIZES,
        *,
        seconds: Callable[[], float] = monotonic,
    ) -> None:
        """The cut of a task that has just started.

        Args:
            stage: Stage of the task.
            epoch: Epoch of the task.
            subtask: Number of the subtask.
            unique: Name of this attempt.
            clock: Decides when the cut is.
            sizes: How many rows the task processes before it looks at the clock again.
            seconds: Measures how long a slice takes.
        """
        self._stage = stage
        self._epoch = epoch
        self._subtask = subtask
        self._unique = unique
        self._clock = clock
        self._started = clock.monotonic_ms()
        self._stop = self._started + _time_left(epoch, clock)
        self._kept: dict[int, RowsInStaging] = {}
        self._sizes = sizes
        self._seconds = seconds
        self._size = sizes.first
        self._entries = entries_of(stage)

    def left_before(self) -> Iterator[tuple[Channel, pa.RecordBatch]]:
        """Channel state of earlier epochs for this subtask, in order."""
        assert self._epoch.staging is not None or not self._epoch.channel_rows
        for left in self._epoch.channel_rows:
            entry = self._entries.get((left.uid, left.input))
            if entry is None:
                continue
            channel, operator = entry
            for rows in self._mine(left, channel, operator):
                yield channel, rows

    def _mine(
        self, left: ChannelRows, channel: Channel, operator: OperatorPlan
    ) -> Iterator[pa.RecordBatch]:
        assert self._epoch.staging is not None
        if self._subtask not in takers(left, channel, operator):
            return
        by_key = _is_spread_by_key(left, channel, operator)
        route = partitioner(channel, self._subtask, f"operator {operator.name!r}")
        reader = BatchReader(channel.type)
        for rows in self._epoch.staging.get(left.rows):
            _check_columns(rows, channel, operator)
            if by_key:
                elements = reader.elements(rows) if route.needs_elements else []
                rows = rows.filter(pc.equal(route.subtasks(elements, rows), self._subtask))
            if rows.num_rows:
                yield rows

    def reached(self, *, left_before: bool = False) -> bool:
        """Whether to stop; for good, since rows must not overtake stored ones."""
        if self._kept:
            return True
        if self._epoch.cut_at is None:
            return False
        limit = self._stop
        if left_before:
            limit = max(limit, self._started + self._epoch.least_work_ms)
        return self._clock.monotonic_ms() >= limit

    def slices(
        self, channel: Channel, rows: pa.RecordBatch, *, left_before: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Parts of `rows` to process one by one until the cut; the rest is stored."""
        start = 0
        while start < rows.num_rows:
            if self.reached(left_before=left_before):
                self._keep(channel, rows.slice(start))
                return
            begun, size = self._seconds(), self._size
            yield rows.slice(start, size)
            took = self._seconds() - begun
            start += size
            if took < self._sizes.short:
                self._size = min(size * 2, self._sizes.largest)
            elif took > self._sizes.long:
                self._size = max(size // 2, 1)

    def _keep(self, channel: Channel, rows: pa.RecordBatch) -> None:
        kept = self._kept.get(channel.id)
        # The layout of a column may differ between rows from Spark and stored rows.
        schema = channel.schema
        if kept is None:
            staging = self._epoch.staging
            assert staging is not None
            kept = self._kept[channel.id] = staging.open(f"{self._unique}-input", schema)
        kept.write(rows.cast(schema))

    def close(self) -> tuple[ChannelRows, ...]:
        """Make the stored rows durable."""
        left = []
        for (uid, number), (channel, operator) in self._entries.items():
            kept = self._kept.get(channel.id)
            if kept is not None:
                left.append(
                    ChannelRows(
                        uid=uid,
                        input=number,
                        subtask=self._subtask,
                        parallelism=operator.parallelism,
                        max_parallelism=operator.max_parallelism,
                        rows=kept.close(),
                    )
                )
        return tuple(left)

    def abort(self) -> None:
        """Drop the stored rows: the epoch has failed."""
        for kept in self._kept.values():
            kept.abort()


def _time_left(epoch: EpochPlan, clock: Clock) -> int:
    """Milliseconds until the cut for a task that starts now; bounded, whatever the clock says."""
    if epoch.cut_at is None:
        return 0
    return min(max(epoch.cut_at - clock.now_ms(), 0), epoch.cut_within_ms)


def _check_columns(rows: pa.RecordBatch, channel: Channel, operator: OperatorPlan) -> None:
    if rows.schema.names != channel.schema.names:
        raise RestoreError(
            f"operator {operator.name!r} (uid {operator.uid!r}): the checkpoint holds input for it "
            f"with the columns {rows.schema.names}, and it takes {channel.schema.names}; "
            "change its input only after a savepoint, or an aligned checkpoint"
        )
