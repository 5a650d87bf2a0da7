"""Runs one operator inside a task: its keys, state, timers, context and outputs."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.api.outputs import OutputTag
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK, TimeDomain
from holdfast.errors import HoldfastError, StoreError
from holdfast.runtime.context import ElementContext, EventTime, SubtaskContext, SubtaskTimers
from holdfast.runtime.function_state import FunctionState
from holdfast.runtime.operator_store import OperatorStore
from holdfast.runtime.operators.base import Operator, Output, Reported
from holdfast.runtime.operators.co import BroadcastOperator
from holdfast.runtime.operators.process import ProcessOperator
from holdfast.runtime.operators.writer import WriterOperator
from holdfast.runtime.outlets import OutletWriter, by_tag
from holdfast.runtime.partitioners import Keys
from holdfast.runtime.registry import KINDS
from holdfast.runtime.report import (
    KeyReport,
    OperatorReport,
    Prepared,
    StoreReport,
)
from holdfast.serde.key_shapes import KeyShape, KeyTypes
from holdfast.state.table import CurrentKey
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state.ttl.states import ClockTime, TtlContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.clock import Clock
    from holdfast.runtime.operators.base import Times
    from holdfast.runtime.outlets import OutletBatch
    from holdfast.runtime.plan import EpochPlan, OperatorPlan, StagePlan
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.operator.backend import OperatorStateBackend
    from holdfast.types.columns.rows import Columns


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Identifies a task, as Spark numbers them."""

    subtask: int
    attempt: int
    """Number of earlier attempts of this subtask in this stage."""
    attempt_id: int
    """Unique among all tasks of the application."""


class OperatorTask:
    """Runs one operator on one subtask, epoch after epoch."""

    def __init__(self, plan: OperatorPlan, stage: StagePlan, subtask: int, clock: Clock) -> None:
        """A task whose operator is not open yet; call `begin` before every epoch."""
        self.plan = plan
        self.report = OperatorReport()
        self.current = CurrentKey()
        self._stage, self._subtask, self._clock = stage, subtask, clock
        self.key_types = KeyTypes()
        self._store = OperatorStore(
            plan, stage.backend, subtask, self.current, self.key_types, self._ttl_context
        )
        self._context = SubtaskContext(
            plan,
            subtask,
            stage.job_parameters,
            None if plan.key is None else self.open_state,
        )
        self._timers = SubtaskTimers(plan, clock, self.open_state if plan.has_timers else None)
        self.operator: Operator = KINDS[plan.kind](
            plan,
            self._context,
            subtask,
            ElementContext(self.current, self._timers),
            self.current,
            self.open_state,
            batch_mode=stage.batch_mode,
        )
        if isinstance(self.operator, BroadcastOperator):
            self.operator.open_operator_state = self._store.open_operator_state
        self._outlets = {
            o.tag: OutletWriter(o, stage, subtask, self.operator) for o in plan.outlets
        }
        inputs = [(plan.key, plan.input)]
        if plan.second is not None:
            inputs.append((plan.second.key, plan.second.type))
        self._keys = [
            None if key is None else Keys(key, stream, self.operator.describe(), self.key_types)
            for key, stream in inputs
        ]
        self._function_state: FunctionState | None = None
        if plan.has_operator_state or plan.listens:
            self._function_state = FunctionState(self.operator, self._store.open_operator_state)

    def fits(self, epoch: EpochPlan) -> bool:
        """Whether the task may run in an epoch of its job attempt.

        Not if its function has operator state that another process has changed since: functions
        load their state when they are opened, and once. Nor if this task has run an epoch whose
        outcome is not the one that counts.
        """
        loads_once = self.plan.has_operator_state and not isinstance(self.operator, WriterOperator)
        if loads_once and self._store.is_behind(epoch):
            return False
        return not self._store.has_failed(epoch)

    def begin(self, epoch: EpochPlan | None, task: TaskIdentity) -> None:
        """Prepare for an epoch; None for the stage at the sources.

        Cached values are used if the store is as this task has left it, and dropped otherwise.
        """
        uid = self.plan.uid
        self.report = OperatorReport()
        self._context.begin(task.attempt)
        self._time = None if epoch is None else epoch.time
        watermarks = {} if self._time is None else self._time.watermarks
        start, self._target = watermarks.get(uid, (MIN_WATERMARK, MIN_WATERMARK))
        self._timers.begin(start)
        agreed = None if epoch is None else epoch.key_shapes.get(uid)
        if agreed is not None:
            self.key_types.agree(KeyShape(agreed))
        elif self.state is None:
            # Keys without state are compared within an epoch only.
            self.key_types.forget()
        try:
            own = self._store.begin(epoch, task.attempt_id)
        except StoreError as error:
            raise self.operator.store_error(error) from error
        if self._function_state is not None and epoch is not None:
            has_state = self._store.expected is not None
            self._function_state.begin(epoch, restored=has_state or epoch.restored is not None)
        self.operator.begin(epoch, task.attempt_id, own_state=own)

    def open(self) -> None:
        """Open the operator, if it is not open: first its state, then its function."""
        if not self.operator.is_open:
            if self._function_state is not None:
                self._function_state.initialize()
            self.operator.open()
            self.report.opened = 1
        if self._function_state is not None:
            self._function_state.notify()

    def snapshot_function(self) -> None:
        """Let the function update its operator state at the end of the epoch."""
        if self._function_state is not None and self.operator.is_open:
            self._function_state.snapshot(self._clock.now_ms())

    def keys_of(
        self,
        elements: list[Any],
        side: int = 0,
        columns: Columns | None = None,
        rows: pa.RecordBatch | None = None,
    ) -> list[Any] | None:
        """Keys of elements that have arrived, or None if their input is not keyed.

        Args:
            elements: The elements.
            side: Which input they have come on, of an operator with two.
            columns: The columns that they were made of, if they come from the exchange.
            rows: Their rows, if they come from the exchange; for messages.
        """
        keys = self._keys[side]
        if keys is None:
            return None
        if columns is None or not keys.from_columns:
            return keys.of_elements(elements)
        return keys.of_columns(columns, rows)

    def process(
        self,
        elements: list[Any],
        times: Times | None = None,
        side: int = 0,
        keys: list[Any] | None = None,
    ) -> Output:
        """The operator's output for elements of one input.

        Args:
            elements: The elements.
            times: Their event times, if they have some.
            side: Which input they have come on, of an operator with two.
            keys: Their keys, if the input is keyed.
        """
        self.report.records_in += len(elements)
        if keys is None:
            return self.operator.process(elements, None, times, side)
        self.current.start_batch(keys)
        output = self.operator.process(elements, keys, times, side)
        self.current.end_batch()
        if self.state is not None:
            with self._located():
                self.state.evict_if_full()
        return output

    def process_rows(self, rows: pa.RecordBatch) -> None:
        """Hand rows to the writer of a sink that takes them."""
        assert isinstance(self.operator, WriterOperator)
        self.report.records_in += rows.num_rows
        self.operator.process_rows(rows)

    def by_outlet(self, output: Output) -> Iterator[OutletBatch]:
        """An output split over the outlets that something reads: side outputs, then the main."""
        if not output.elements:
            return
        if OutputTag.in_use:
            output, tagged = by_tag(output)
            for tag, values in tagged.items():
                yield from self._on_outlet(tag, values)
        yield from self._on_outlet(None, output)

    def _on_outlet(self, tag: str | None, output: Output) -> Iterator[OutletBatch]:
        outlet = self._outlets.get(tag)
        if outlet is not None and output.elements:
            self.report.records_out += len(output.elements)
            yield outlet.batch(output)

    def finish(self) -> Output:
        """The operator's output at the end of its input; its event time is the end of time."""
        out = self.operator.finish()
        return Output(out, [MAX_WATERMARK] * len(out) if self.plan.timed else None)

    def fire_by_clock(
        self, *, everything: bool = False, now: int | None = None
    ) -> Iterator[Output]:
        """Fire the timers that the clock has reached, and give their outputs.

        Args:
            everything: Fire all other timers too, since nobody will wait for them; but no timer
                that is set meanwhile, unless the clock has reached it.
            now: Time of the clock; it is read if None.
        """
        if self._fires():
            now = self._clock.now_ms() if now is None else now
            until = MAX_WATERMARK if everything else now
            yield from self._fire(TimeDomain.PROCESSING_TIME, until, now)

    def advance_watermark(self) -> None:
        """Advance the watermark to that of the end of the epoch."""
        self._timers.advance(self._target)

    def fire_by_watermark(self, watermark: int | None = None) -> Iterator[Output]:
        """Advance the watermark, fire the timers that it reaches, and give their outputs.

        Args:
            watermark: The new watermark; that of the end of the epoch if None.
        """
        watermark = self._target if watermark is None else watermark
        self._timers.advance(watermark)
        if self._fires():
            yield from self._fire(TimeDomain.EVENT_TIME, watermark, watermark)

    def fire_at_end(self, *, everything: bool, watermark: int | None = None) -> Iterator[Output]:
        """Fire timers at the end of the input, also those set meanwhile, and give their outputs.

        Args:
            everything: See `fire_by_clock`.
            watermark: See `fire_by_watermark`.
        """
        yield from self.fire_by_clock(everything=everything)
        yield from self.fire_by_watermark(watermark)
        # Read once: timers that are set again and again must not keep the epoch running.
        now = self._clock.now_ms()
        while self._fires() and self._is_due(now):
            yield from self.fire_by_clock(now=now)
            yield from self.fire_by_watermark(watermark)

    def _is_due(self, now: int) -> bool:
        """Whether timers are pending that the clock or the watermark has reached."""
        next_timer = self._store.next_timer
        event, processing = next_timer(EVENT_TIMERS), next_timer(PROCESSING_TIMERS)
        return (event is not None and event <= self._timers.watermark) or (
            processing is not None and processing <= now
        )

    def _fires(self) -> bool:
        if self._time is None or not self.plan.has_timers:
            return False
        # A function that uses neither state nor timers has no store.
        return self.state is not None or (self.plan.uid, self._subtask) in self._time.due

    def _fire(self, domain: TimeDomain, until: int, registered_until: int) -> Iterator[Output]:
        event = domain is TimeDomain.EVENT_TIME
        if not self.open_state().has_timers(EVENT_TIMERS if event else PROCESSING_TIMERS):
            return
        table = self._timers.event() if event else self._timers.processing()
        assert isinstance(self.operator, ProcessOperator)
        yield from self.operator.fire(domain, table.due(until, registered_until))

    def key_report(self) -> KeyReport | None:
        """Describes the keys of the operator; None if it has none, or none has come yet."""
        shape = self.key_types.shape
        if shape is None:
            return None
        stored = self.state is not None and self.state.key_shape is not None
        return KeyReport(shape.name, self.key_types.example, stored)

    def finished_report(self) -> OperatorReport:
        """The final report; reads the function's gauges."""
        self.report.skipped = self.operator.skipped
        with Reported(self.operator, "in a gauge"):
            self.report.metrics = self._context.get_metrics_group().values(self._subtask)
        return self.report

    def open_state(self) -> KeyedStateBackend:
        """The operator's keyed state; opens its store on first use."""
        try:
            return self._store.open()
        except StoreError as error:
            raise self.operator.store_error(error) from error
        finally:
            self.operator.store = self._store.directory

    @property
    def state(self) -> KeyedStateBackend | None:
        """The keyed state; None if it was never used."""
        return self._store.keyed

    @property
    def operator_state(self) -> OperatorStateBackend | None:
        """The operator state; None if it was not used."""
        return self._store.operator_state

    def _ttl_context(self) -> TtlContext:
        backend = self._stage.backend
        return TtlContext(
            ClockTime(self._clock),
            EventTime(self._timers, self.operator.time_at_hand) if self.plan.timed else None,
            records=lambda: self.report.records_in,
            incremental_snapshots=getattr(backend, "enable_incremental_checkpointing", False),
        )

    def commit(self) -> StoreReport | None:
        """Make the epoch's changes to state durable; None if there was no state."""
        with self._located():
            return self._store.commit()

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Adds the operator to errors of writes that happen after the element that caused them."""
        try:
            yield
        except StoreError as error:
            raise self.operator.store_error(error) from error
        except HoldfastError as error:
            raise type(error)(f"{self.operator.describe()}, writing state: {error}") from error

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """Committables of the epoch."""
        return self.operator.prepared if isinstance(self.operator, WriterOperator) else ()

    @property
    def warnings(self) -> list[str]:
        """Warnings about the keyed state and the timers."""
        of_state = [] if self.state is None else self.state.warnings
        return of_state + self._timers.warnings

    def end_epoch(self) -> None:
        """Close what lives for one epoch: the writer of a sink."""
        self.operator.end_epoch()

    def close(self) -> None:
        """Close the function; does nothing the second time."""
        self.operator.close()

    def abort(self) -> None:
        """Drop the epoch's output and its changes to state, and close the function."""
        with suppress(Exception):
            self.operator.abort()
        with suppress(Exception):
            self.operator.close()
        self._store.abort()
