"""Runs the operators of one stage on one subtask, epoch after epoch.

The task routes batches between its operators and the exchanges before and after them.
It opens an operator when its first row arrives. At the end of an epoch's input it commits
the stores and reports; functions stay open for the next epoch. If anything fails before the
first commit, every store stays as it was. A task that has failed runs no other epoch.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.channel_cut import SLICE_SIZES, InputCut
from holdfast.runtime.exchange import ExchangeReader, ExchangeWriter, appended, times_of
from holdfast.runtime.operator_task import OperatorTask, TaskIdentity
from holdfast.runtime.operators.timestamps import latest_time, with_time
from holdfast.runtime.partitioners import partitioner
from holdfast.runtime.plan import ORDER, TIME
from holdfast.runtime.report import TaskReport
from holdfast.state.store.directories import delete_snapshots
from holdfast.types.columns.batches import BatchReader, element_copier, no_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Clock
    from holdfast.runtime.channel_cut import SliceSizes
    from holdfast.runtime.operators.base import Output
    from holdfast.runtime.plan import Channel, EpochPlan, OperatorPlan, StagePlan
    from holdfast.types.columns.rows import Columns

STAGES, SUBTASK_BITS, ROW_BITS = 32, 17, 40
"""Position of a broadcast row in 62 bits: 5 for the sender's stage, its subtask, its row."""
COLLECT_EVERY = 16
"""Batches between two runs of the garbage collector, which is otherwise off."""


class StageTask:
    """Runs one stage's operators on one subtask, epoch after epoch."""

    report: TaskReport
    """The report of the last epoch that was run."""

    def __init__(
        self, stage: StagePlan, subtask: int, clock: Clock, sizes: SliceSizes = SLICE_SIZES
    ) -> None:
        """A task that has run no epoch yet.

        Args:
            stage: The stage.
            subtask: Number of the subtask.
            clock: The clock of the job.
            sizes: How many rows are processed at a time while the epoch may be cut.
        """
        self._clock = clock
        self._stage = stage
        self._subtask = subtask
        self._sizes = sizes
        self._kept: dict[int, OperatorTask] = {}
        """All operator tasks so far, by the operator's position in the stage."""
        self._last_epoch = -1
        self._entries = {
            channel.id: _Entry(stage, channel, subtask)
            for channel in stage.reads.channels
            if channel.id in stage.entries
        }
        self._writer = ExchangeWriter(stage.writes)
        self._reads_first = stage.index == 1 or (stage.index == 0 and bool(stage.operators))

    def fits(self, epoch: EpochPlan | None) -> bool:
        """Whether the task may run this epoch of its job attempt, after those that it has run."""
        if epoch is None:
            return True
        # An epoch that runs again has seen its rows here already.
        return epoch.epoch > self._last_epoch and all(
            kept.fits(epoch) for kept in self._kept.values()
        )

    def _begin(self, epoch: EpochPlan | None, task: TaskIdentity) -> None:
        self._epoch = epoch
        self._task = task
        self._operator_tasks: dict[int, OperatorTask] = {}
        """Operators that are used in the epoch."""
        self._outgoing: list[pa.RecordBatch] = []
        self._cut: InputCut | None = None
        if epoch is not None:
            self._last_epoch = epoch.epoch
            if epoch.cut_at is not None or epoch.channel_rows:
                unique = f"{epoch.job_attempt}-{epoch.epoch}-{task.subtask}-{task.attempt_id}"
                cut = (self._stage, epoch, task.subtask, unique, self._clock, self._sizes)
                self._cut = InputCut(*cut)
        self._time_advanced = False
        """Whether event time has advanced before the rows."""
        self._latest: dict[str, int] = {}
        self._unchanged: dict[str, str] = {}
        self._rows_read: dict[int, int] = {}
        self._placed = 0
        """Rows sent on broadcast channels."""

    def run(
        self, epoch: EpochPlan | None, task: TaskIdentity, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Run all of `batches` through the stage; `report` is set at the end.

        Args:
            epoch: The epoch; None for the stage at the sources.
            task: Number of the subtask and of the attempt.
            batches: The rows.
        """
        self._begin(epoch, task)
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield from self._process(batches)
            yield from self._finish()
            self.report = self._commit()
        except BaseException:
            self._abort()
            raise
        finally:
            if collecting:
                gc.enable()

    def _process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self._advance_early()
        unpacker = ExchangeReader(self._stage.reads, self._alike())
        if self._cut is not None:
            for channel, rows in self._cut.left_before():
                if channel.time_source is not None:
                    # After a recovery nothing else says how far event time has advanced with them.
                    self._note_time(channel.time_source, pc.max(rows.column(TIME)).as_py())
                yield from self._enter_until_cut(self._cut, channel, rows, left_before=True)
        for count, batch in enumerate(batches, 1):
            if batch.num_rows == 0:
                continue
            if self._reads_first:
                for channel_id, rows_read in unpacker.counts(batch).items():
                    self._rows_read[channel_id] = self._rows_read.get(channel_id, 0) + rows_read
            for uid, stamped in unpacker.stamped(batch):
                self._note_time(uid, latest_time(stamped, f"operator {uid!r}"))
            for channel, rows in unpacker.unpack(batch):
                rows = self._stamped(rows)
                # Broadcast rows are few, and broadcast state must be the same on all subtasks.
                if self._cut is None or channel.broadcast or channel.id not in self._entries:
                    self._enter(channel, rows)
                else:
                    yield from self._enter_until_cut(self._cut, channel, rows)
            yield from self._sent()
            if count % COLLECT_EVERY == 0:
                gc.collect(1)

    def _advance_early(self) -> Iterator[pa.RecordBatch]:
        """Advance event time before the rows, if only sources feed the stage, and fire timers.

        In the plan's order: what the timers of an operator give out reaches the operators chained
        to it before their own time advances.
        """
        epoch = self._epoch
        if epoch is None or epoch.time is None or not epoch.time.early or self._stage.index > 1:
            return
        for index, plan in enumerate(self._stage.operators):
            if (plan.uid, self._task.subtask) in epoch.time.due:
                self._operator_task(index)
            operator_task = self._operator_tasks.get(index)
            if operator_task is not None:
                for output in operator_task.fire_by_watermark():
                    self._forward(operator_task, output)
                    yield from self._sent()
        self._time_advanced = True

    def _alike(self) -> list[tuple[Channel, ...]]:
        """The channels in groups: those of a union enter the same operators."""
        stage = self._stage
        groups: dict[Any, list[Channel]] = {}
        for c in stage.reads.channels:
            entries = stage.entries.get(c.id)
            # Channel state is stored by channel, which says where its event time comes from.
            source = None if self._cut is None else c.time_source
            way = (entries, c.side, c.type, c.key, c.timed, c.broadcast, source)
            groups.setdefault(c.id if entries is None else repr(way), []).append(c)
        return [tuple(group) for group in groups.values()]

    def _stamped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a source, with their event time if the source has one."""
        time = self._stage.time_column
        if time is not None:
            rows = with_time(rows, time.column)
            self._note_time(time.uid, latest_time(rows, f"operator {time.uid!r}"))
        return rows

    def _note_time(self, uid: str, latest: int | None) -> None:
        if latest is not None:
            self._latest[uid] = max(latest, self._latest.get(uid, latest))

    def _enter_until_cut(
        self, cut: InputCut, channel: Channel, rows: pa.RecordBatch, *, left_before: bool = False
    ) -> Iterator[pa.RecordBatch]:
        for part in cut.slices(channel, rows, left_before=left_before):
            self._enter(channel, part)
            yield from self._sent()

    def _enter(self, channel: Channel, rows: pa.RecordBatch) -> None:
        entry = self._entries.get(channel.id)
        if entry is None:
            # Rows for a later stage pass through; broadcast rows already have their position.
            here = pa.repeat(pa.scalar(self._task.subtask, pa.int32()), rows.num_rows)
            self._outgoing.append(self._writer.pack(channel, rows, here))
            return
        elements: list[Any] = []
        columns: Columns = []
        if entry.needs_elements:
            elements, columns = entry.reader.read(rows)
        for copy, route in entry.copies:
            self._send(copy, rows, None if copy.broadcast else route.subtasks(elements, rows))
        for index in entry.by_row:
            self._operator_task(index).process_rows(rows.select(channel.type.columns))
        times = times_of(rows) if entry.by_element else None
        for position, index in enumerate(entry.by_element):
            if position and not entry.shared:
                elements = entry.reader.elements(rows)
            operator_task = self._operator_task(index)
            keys = operator_task.keys_of(elements, channel.side, columns, rows)
            output = operator_task.process(elements, times, channel.side, keys)
            self._forward(operator_task, output)

    def _forward(self, operator_task: OperatorTask, output: Output) -> None:
        """Route an operator's output to the exchange and to the operators chained to it."""
        for batch in operator_task.by_outlet(output):
            # Rows first: chained operators may change the elements that the rows are made of.
            for channel, rows, subtasks in batch.by_channel():
                self._send(channel, rows, subtasks)
            for index in batch.outlet.by_row:
                self._operator_task(index).process_rows(batch.rows)
            for index, elements in batch.by_operator():
                chained = self._operator_task(index)
                self._forward(chained, chained.process(elements, batch.output.times))

    def _send(self, channel: Channel, rows: pa.RecordBatch, subtasks: pa.Array | None) -> None:
        """Put rows on the exchange; broadcast rows get their position here."""
        if channel.broadcast:
            self._broadcast(channel, rows)
        else:
            self._outgoing.append(self._writer.pack(channel, rows, subtasks))

    def _broadcast(self, channel: Channel, rows: pa.RecordBatch) -> None:
        # The sender comes first: its rows keep their order, the same on every subtask.
        sender = ((self._stage.index % STAGES) << SUBTASK_BITS) + self._task.subtask
        first = (sender << ROW_BITS) + self._placed
        self._placed += rows.num_rows
        places = pa.array(range(first, first + rows.num_rows), pa.int64())
        rows = appended(rows, ORDER, places)
        for subtask in range(channel.parallelism):
            here = pa.repeat(pa.scalar(subtask, pa.int32()), rows.num_rows)
            self._outgoing.append(self._writer.pack(channel, rows, here))

    def _sent(self) -> Iterator[pa.RecordBatch]:
        outgoing, self._outgoing = self._outgoing, []
        yield from outgoing

    def _finish(self) -> Iterator[pa.RecordBatch]:
        for index, plan in enumerate(self._stage.operators):
            if self._works_without_rows(plan):
                self._operator_task(index)
        # In the plan's order: the last output of an operator reaches the operators behind
        # it before they finish.
        for index in range(len(self._stage.operators)):
            operator_task = self._operator_tasks.get(index)
            if operator_task is not None:
                yield from self._fire(operator_task)
                self._forward(operator_task, operator_task.finish())
        yield from self._sent()
        self._channel_state = () if self._cut is None else self._cut.close()
        for operator_task in self._operator_tasks.values():
            operator_task.snapshot_function()
        for operator_task in self._operator_tasks.values():
            # Before anything is closed that a gauge may read, and before the commit.
            operator_task.finished_report()
        for operator_task in self._operator_tasks.values():
            operator_task.end_epoch()

    def _fire(self, operator_task: OperatorTask) -> Iterator[pa.RecordBatch]:
        """Fire the timers that the clock and the watermark reach at the end of the epoch."""
        time = None if self._epoch is None else self._epoch.time
        for output in operator_task.fire_at_end(everything=time is not None and time.last):
            self._forward(operator_task, output)
            yield from self._sent()

    def _works_without_rows(self, plan: OperatorPlan) -> bool:
        """Whether the operator must be opened even without input."""
        epoch = self._epoch
        if epoch is None or self._task.subtask >= plan.parallelism:
            return False
        if epoch.time is not None and (plan.uid, self._task.subtask) in epoch.time.due:
            return True
        news = bool(epoch.completed or epoch.aborted)
        return plan.has_operator_state or (plan.listens and news)

    def _open_idle_stores(self) -> None:
        """Open every unused store that needs a snapshot.

        Stores that a complete checkpoint holds unchanged need none.
        """
        epoch = self._epoch
        if epoch is None or epoch.checkpoint is None:
            return
        for index, plan in enumerate(self._stage.operators):
            where = (plan.uid, self._task.subtask)
            operator_task = self._operator_tasks.get(index)
            if where in epoch.held and (operator_task is None or operator_task.state is None):
                self._unchanged[plan.uid] = epoch.expected[where]
            elif where in epoch.expected:
                if operator_task is None:
                    operator_task = self._begun(index)
                operator_task.open_state()

    def _delete_snapshots(self) -> None:
        """Delete local snapshots that are no longer needed."""
        epoch = self._epoch
        if epoch is not None and epoch.kept_snapshots is not None:
            delete_snapshots(
                epoch.local_dir,
                epoch.job_id,
                run=epoch.owner.run,
                but=epoch.kept_snapshots,
                stores=[(plan.uid, self._task.subtask) for plan in self._stage.operators],
            )

    def _commit(self) -> TaskReport:
        # First, since the commit may need the space.
        self._delete_snapshots()
        self._open_idle_stores()
        epoch, host = self._epoch, socket.gethostname()
        report = TaskReport(
            epoch=None if epoch is None else epoch.epoch,
            stage=self._stage.index,
            subtask=self._task.subtask,
            attempt_id=self._task.attempt_id,
            host=host,
            # An executor's Python workers are forked from one process.
            executor=f"{host}:{os.getppid()}",
            operators={task.plan.uid: task.report for task in self._operator_tasks.values()},
            stores={},
            warnings=tuple(w for task in self._operator_tasks.values() for w in task.warnings),
            prepared=tuple(p for task in self._operator_tasks.values() for p in task.prepared),
            channel_state=self._channel_state,
            unchanged=self._unchanged,
            latest=self._latest,
            rows_read=self._rows_read,
        )
        for operator_task in self._operator_tasks.values():
            uid = operator_task.plan.uid
            self._note_time(uid, operator_task.operator.latest)
            if operator_task.operator.emitted is not None:
                report.emitted[uid] = operator_task.operator.emitted
            store = operator_task.commit()
            if store is not None:
                report.stores[uid] = store
                if epoch is not None and epoch.checkpoint is not None and store.snapshot is None:
                    self._unchanged[uid] = store.version
            keys = operator_task.key_report()
            if keys is not None:
                report.keys[uid] = keys
        return report

    def _abort(self) -> None:
        if self._cut is not None:
            self._cut.abort()
        for operator_task in self._kept.values():
            operator_task.abort()

    def close(self) -> None:
        """Close all functions; the task runs no other epoch.

        Raises:
            UserFunctionError: A function raised; all others are closed all the same.
        """
        raised: list[Exception] = []
        for operator_task in self._kept.values():
            try:
                operator_task.close()
            except Exception as error:
                raised.append(error)
        self._kept.clear()
        if raised:
            raise raised[0]

    @property
    def needs_closing(self) -> bool:
        """Whether a function is open that does something when it is closed."""
        return any(kept.operator.needs_closing for kept in self._kept.values())

    def _begun(self, index: int) -> OperatorTask:
        """The task of an operator that is not used in this epoch yet."""
        operator_task = self._kept.get(index)
        if operator_task is None:
            plan = self._stage.operators[index]
            operator_task = OperatorTask(plan, self._stage, self._subtask, self._clock)
            self._kept[index] = operator_task
        self._operator_tasks[index] = operator_task
        operator_task.begin(self._epoch, self._task)
        return operator_task

    def _operator_task(self, index: int) -> OperatorTask:
        operator_task = self._operator_tasks.get(index)
        if operator_task is None:
            operator_task = self._begun(index)
            if self._time_advanced:
                # It has no timers that are due, or it would be open already.
                operator_task.advance_watermark()
            operator_task.open()
            # Timers that the clock has reached fire before the first row.
            for output in operator_task.fire_by_clock():
                self._forward(operator_task, output)
        return operator_task


class _Entry:
    """Operators and channels that take the rows of one incoming channel."""

    def __init__(self, stage: StagePlan, channel: Channel, subtask: int) -> None:
        indices = stage.entries[channel.id]
        self.by_row = [i for i in indices if stage.operators[i].takes_rows]
        self.by_element = [i for i in indices if not stage.operators[i].takes_rows]
        copies = stage.copies.get(channel.id, ())
        self.copies = [(copy, partitioner(copy, subtask, "a source")) for copy in copies]
        self.needs_elements = bool(self.by_element) or any(
            route.needs_elements for _, route in self.copies
        )
        self.reader = BatchReader(channel.type)
        self.shared = element_copier(channel.type) is no_copy
        """Whether operators can share elements, since nothing could change them."""
