"""One task: the operators of one stage, on one subtask, for one epoch.

The task opens an operator when its first row arrives, runs every batch through the
chain, and at the end of its input closes the functions, commits the stores and
reports. If anything fails before the first commit, every store stays as it was.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.api.outputs import OutputTag
from holdfast.api.time import MAX_WATERMARK
from holdfast.errors import OutputTypeError
from holdfast.runtime.channel_cut import InputCut
from holdfast.runtime.event_times import appended, by_tag, time_array, times_of
from holdfast.runtime.exchange import ExchangeReader, ExchangeWriter
from holdfast.runtime.operator_task import OperatorTask, TaskIdentity
from holdfast.runtime.operators.base import Output
from holdfast.runtime.operators.timestamps import latest_time, with_time
from holdfast.runtime.operators.writer import WriterOperator
from holdfast.runtime.partitioners import partitioner
from holdfast.runtime.plan import ORDER, TIME
from holdfast.runtime.report import StoreReport, TaskReport
from holdfast.state.store.directories import delete_snapshots
from holdfast.types.columns.batches import BatchReader, element_copier, no_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Clock
    from holdfast.runtime.operators.base import Times
    from holdfast.runtime.partitioners import Route
    from holdfast.runtime.plan import Channel, EpochPlan, OperatorPlan, Outlet, StagePlan

STAGES, SUBTASK_BITS, ROW_BITS = 32, 17, 40
"""A broadcast row's place: of 62 bits, 5 for the sender's stage, and so many for the others."""
COLLECT_EVERY = 16
"""Batches between two runs of the garbage collector, which is off in between."""


class StageTask:
    """Runs one stage's operators on one subtask for one epoch."""

    def __init__(
        self, stage: StagePlan, epoch: EpochPlan | None, task: TaskIdentity, clock: Clock
    ) -> None:
        """A task that has not started; without an epoch for the stage at the sources."""
        self._clock = clock
        self._stage = stage
        self._epoch = epoch
        self._task = task
        self._operator_tasks: dict[int, OperatorTask] = {}
        self._packer = ExchangeWriter(stage.writes)
        self._pending_committables: list[pa.RecordBatch] = []
        self._copy_routes = {
            c.id: partitioner(c, task.subtask, "source")
            for copies in stage.copies.values()
            for c in copies
        }
        self._cut: InputCut | None = None
        if epoch is not None and (epoch.cut_at is not None or epoch.channel_rows):
            unique = f"{epoch.job_attempt}-{epoch.epoch}-{task.subtask}-{task.attempt_id}"
            self._cut = InputCut(stage, epoch, task.subtask, unique, clock)
        self._latest: dict[str, int] = {}
        self._unchanged: dict[str, str] = {}
        self._placed = 0
        """Rows sent on broadcast channels."""
        self._copiers = {c.id: element_copier(c.type) for c in stage.reads.channels}
        self._readers = {c.id: BatchReader(c.type) for c in stage.reads.channels}

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all of `batches` through the stage; `report` is valid when this has ended."""
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
        unpacker = ExchangeReader(self._stage.reads, self._alike())
        if self._cut is not None:
            for channel, rows in self._cut.left_before():
                if channel.time_source is not None:
                    # After a recovery nothing else tells how far time has come with them.
                    self._note_time(channel.time_source, pc.max(rows.column(TIME)).as_py())
                yield from self._enter_until_cut(self._cut, channel, rows, left_before=True)
        for count, batch in enumerate(batches, 1):
            if batch.num_rows == 0:
                continue
            for uid, stamped in unpacker.stamped(batch):
                self._note_time(uid, latest_time(stamped, f"operator {uid!r}"))
            for channel, rows in unpacker.unpack(batch):
                rows = self._stamped(rows)
                # Rows that go to all subtasks are few, and their state is to stay the same.
                if self._cut is None or channel.broadcast or not self._is_taken(channel):
                    self._enter(channel, rows)
                else:
                    yield from self._enter_until_cut(self._cut, channel, rows)
            yield from self._sent()
            if count % COLLECT_EVERY == 0:
                gc.collect(1)

    def _is_taken(self, channel: Channel) -> bool:
        return channel.id in self._stage.entries

    def _alike(self) -> list[tuple[Channel, ...]]:
        """The channels in groups: those of a union enter the same operators in the same way."""
        stage = self._stage
        groups: dict[Any, list[Channel]] = {}
        for c in stage.reads.channels:
            entries = stage.entries.get(c.id)
            # Rows that are left over are kept by channel, which must tell whose time they have.
            source = None if self._cut is None else c.time_source
            way = (entries, c.side, c.type, c.key, c.timed, c.broadcast, source)
            groups.setdefault(c.id if entries is None else repr(way), []).append(c)
        return [tuple(group) for group in groups.values()]

    def _stamped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that arrive at a source, with their event time if they have some."""
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
        entries = self._stage.entries.get(channel.id)
        if entries is None:
            self._pass_on(channel, rows)
            return
        copies = self._stage.copies.get(channel.id, ())
        by_element = [i for i in entries if not self._stage.operators[i].takes_rows]
        needed = bool(by_element) or any(self._copy_routes[c.id].needs_elements for c in copies)
        elements = self._readers[channel.id].elements(rows) if needed else []
        times = times_of(rows) if by_element else None
        for copy in copies:
            self._put(copy, rows, elements, self._copy_routes[copy.id])
        for index in entries:
            if self._stage.operators[index].takes_rows:
                self._feed_rows(self._operator_task(index), rows.select(channel.type.columns))
        for position, index in enumerate(by_element):
            if position and self._copiers[channel.id] is not no_copy:
                elements = self._readers[channel.id].elements(rows)
            operator_task = self._operator_task(index)
            keys = operator_task.keys_of(elements, rows, channel.side)
            self._feed(operator_task, elements, keys, times, channel.side)

    def _put(
        self,
        channel: Channel,
        rows: pa.RecordBatch,
        elements: list[Any],
        route: Route | None,
    ) -> None:
        """Send rows, in the channel's columns but for their place, to where they belong."""
        if channel.broadcast:
            self._put_everywhere(channel, rows)
        else:
            subtasks = None if route is None else route.subtasks(elements, rows)
            self._pending_committables.append(self._packer.pack(channel, rows, subtasks))

    def _put_everywhere(self, channel: Channel, rows: pa.RecordBatch) -> None:
        # By the sender first: its rows stay in their order, the same one for every subtask.
        sender = ((self._stage.index % STAGES) << SUBTASK_BITS) + self._task.subtask
        first = (sender << ROW_BITS) + self._placed
        self._placed += rows.num_rows
        places = pa.array(range(first, first + rows.num_rows), pa.int64())
        rows = appended(rows, ORDER, places)
        for subtask in range(channel.parallelism):
            here = pa.repeat(pa.scalar(subtask, pa.int32()), rows.num_rows)
            self._pending_committables.append(self._packer.pack(channel, rows, here))

    def _feed_rows(self, operator_task: OperatorTask, rows: pa.RecordBatch) -> None:
        assert isinstance(operator_task.operator, WriterOperator)
        operator_task.report.records_in += rows.num_rows
        operator_task.operator.process_rows(rows)

    def _feed(
        self,
        operator_task: OperatorTask,
        elements: list[Any],
        keys: list[Any] | None,
        times: Times | None = None,
        side: int = 0,
    ) -> None:
        report = operator_task.report
        report.records_in += len(elements)
        if keys is None:
            out = operator_task.operator.process(elements, None, times, side)
        else:
            operator_task.current.start_batch(keys)
            out = operator_task.operator.process(elements, keys, times, side)
            operator_task.current.end_batch()
            operator_task.evict_if_full()
        self._emit(operator_task, out)

    def _emit(self, operator_task: OperatorTask, output: Output) -> None:
        if not output.elements:
            return
        if OutputTag.in_use:
            output = self._divert_tagged(operator_task, output)
        outlet = operator_task.main
        if outlet is not None:
            self._send(operator_task, outlet, output)

    def _divert_tagged(self, operator_task: OperatorTask, output: Output) -> Output:
        """Send tagged outputs to their side outputs; returns the others."""
        main, tagged = by_tag(output)
        for tag, values in tagged.items():
            outlet = operator_task.sides.get(tag)
            if outlet is not None:
                self._send(operator_task, outlet, values)
        return main

    def _send(self, operator_task: OperatorTask, outlet: Outlet, output: Output) -> None:
        out, times = output
        if not out:
            return
        operator_task.report.records_out += len(out)
        writer = operator_task.writers[outlet.tag]
        by_element = [i for i in outlet.operators if not self._stage.operators[i].takes_rows]
        by_row = [i for i in outlet.operators if self._stage.operators[i].takes_rows]
        try:
            chained = writer.normalise(out) if by_element else []
            rows = writer.batch(out) if outlet.channels or by_row else None
        except OutputTypeError as error:
            raise OutputTypeError(
                f"{operator_task.operator.describe()}: {error}", error.row_index
            ) from error
        # Rows first: operators behind may change the very elements the rows are made of.
        for channel in outlet.channels:
            sent = appended(rows, TIME, time_array(times, len(out))) if channel.timed else rows
            self._put(channel, sent, out, operator_task.partitioners.get(channel.id))
        for index in by_row:
            self._feed_rows(self._operator_task(index), rows)
        last = len(by_element) - 1
        for position, index in enumerate(by_element):
            mine = chained if position == last else operator_task.copiers[outlet.tag](chained)
            self._feed(self._operator_task(index), mine, None, times)

    def _pass_on(self, channel: Channel, rows: pa.RecordBatch) -> None:
        here = pa.repeat(pa.scalar(self._task.subtask, pa.int32()), rows.num_rows)
        self._pending_committables.append(self._packer.pack(channel, rows, here))

    def _sent(self) -> Iterator[pa.RecordBatch]:
        pending_committables, self._pending_committables = self._pending_committables, []
        yield from pending_committables

    def _finish(self) -> Iterator[pa.RecordBatch]:
        for index, plan in enumerate(self._stage.operators):
            if self._works_without_rows(plan):
                self._operator_task(index)
        # In the plan's order: what an operator gives out at its end reaches those
        # behind it before they end themselves.
        for index in range(len(self._stage.operators)):
            operator_task = self._operator_tasks.get(index)
            if operator_task is not None:
                yield from self._fire(operator_task)
                self._emit(operator_task, _at_the_end(operator_task))
        yield from self._sent()
        self._channel_state = () if self._cut is None else self._cut.close()
        for operator_task in self._operator_tasks.values():
            operator_task.snapshot_function()
        for operator_task in self._operator_tasks.values():
            # Before anything is closed, which a gauge may read, and before the commit.
            operator_task.finished_report()
        for operator_task in self._operator_tasks.values():
            operator_task.operator.close()

    def _fire(self, operator_task: OperatorTask) -> Iterator[pa.RecordBatch]:
        """Let the timers fire that the clock and the watermark reach at the end of the epoch."""
        time = None if self._epoch is None else self._epoch.time
        for output in operator_task.fire_at_end(everything=time is not None and time.last):
            self._emit(operator_task, output)
            yield from self._sent()

    def _works_without_rows(self, plan: OperatorPlan) -> bool:
        """Whether the operator is opened though none of the epoch's rows reached it."""
        epoch = self._epoch
        if epoch is None or self._task.subtask >= plan.parallelism:
            return False
        if epoch.time is not None and (plan.uid, self._task.subtask) in epoch.time.due:
            return True
        news = bool(epoch.completed or epoch.aborted)
        return plan.has_operator_state or (plan.listens and news)

    def _open_idle_stores(self) -> None:
        """Open every store that was not used and is to be snapshot, whether rows came or not.

        One that a complete checkpoint holds as it is need not be.
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
                    operator_task = OperatorTask(plan, self._stage, epoch, self._task, self._clock)
                    self._operator_tasks[index] = operator_task
                operator_task.open_state()

    def _delete_snapshots(self) -> None:
        """Remove the local snapshots here that nobody wants any more."""
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
        # First, since the commit may need the room.
        self._delete_snapshots()
        self._open_idle_stores()
        ends_in_checkpoint = self._epoch is not None and self._epoch.checkpoint is not None
        stores: dict[str, StoreReport] = {}
        warnings: list[str] = []
        for operator_task in self._operator_tasks.values():
            if operator_task.state is not None:
                warnings += operator_task.state.warnings
            report = operator_task.commit()
            if report is not None:
                stores[operator_task.plan.uid] = report
                if ends_in_checkpoint and report.snapshot is None:
                    self._unchanged[operator_task.plan.uid] = report.version
        return TaskReport(
            epoch=None if self._epoch is None else self._epoch.epoch,
            stage=self._stage.index,
            subtask=self._task.subtask,
            attempt_id=self._task.attempt_id,
            host=socket.gethostname(),
            # An executor's Python workers are forked from one process.
            executor=f"{socket.gethostname()}:{os.getppid()}",
            operators={
                operator_task.plan.uid: operator_task.report
                for operator_task in self._operator_tasks.values()
            },
            stores=stores,
            warnings=tuple(warnings),
            prepared=tuple(
                one
                for operator_task in self._operator_tasks.values()
                for one in operator_task.prepared
            ),
            channel_state=self._channel_state,
            keys={
                operator_task.plan.uid: keys
                for operator_task in self._operator_tasks.values()
                if (keys := operator_task.key_report()) is not None
            },
            unchanged=self._unchanged,
            latest=self._latest_times(),
        )

    def _latest_times(self) -> dict[str, int]:
        for operator_task in self._operator_tasks.values():
            self._note_time(operator_task.plan.uid, operator_task.operator.latest)
        return self._latest

    def _abort(self) -> None:
        if self._cut is not None:
            self._cut.abort()
        for operator_task in self._operator_tasks.values():
            with contextlib.suppress(Exception):
                operator_task.operator.abort()
            with contextlib.suppress(Exception):
                operator_task.operator.close()
            operator_task.abort()

    def _operator_task(self, index: int) -> OperatorTask:
        operator_task = self._operator_tasks.get(index)
        if operator_task is None:
            plan = self._stage.operators[index]
            operator_task = OperatorTask(plan, self._stage, self._epoch, self._task, self._clock)
            self._operator_tasks[index] = operator_task
            operator_task.open()
            # What the clock has reached before the first row comes before it.
            for output in operator_task.fire_by_clock():
                self._emit(operator_task, output)
        return operator_task


def _at_the_end(operator_task: OperatorTask) -> Output:
    """What an operator gives out when all its input is processed; at the end of time."""
    out = operator_task.operator.finish()
    return Output(out, [MAX_WATERMARK] * len(out) if operator_task.plan.timed else None)
