"""An operator's place in a task: the operator and everything it works with."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.runtime.context import ElementContext, SubtaskContext
from holdfast.runtime.copies import copier
from holdfast.runtime.operators import KINDS, Operator, Reported
from holdfast.runtime.partition import Keys, partitioner
from holdfast.runtime.report import OperatorReport, StoreReport
from holdfast.runtime.write_columns import Writer
from holdfast.state.directories import claim_job, store_directory
from holdfast.state.keyed_backend import KeyedStateBackend
from holdfast.state.open_store import open_store
from holdfast.state.table import CurrentKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.clock import Clock
    from holdfast.runtime.plan import EpochPlan, LevelPlan, OperatorPlan


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which task this is, as Spark numbers them."""

    subtask: int
    attempt: int
    """How often this subtask was tried before in this stage."""
    attempt_id: int
    """Unique among all tasks of the application."""


class Seat:
    """An operator's place in a task: the operator and what it works with."""

    def __init__(
        self,
        plan: OperatorPlan,
        level: LevelPlan,
        epoch: EpochPlan | None,
        task: TaskIdentity,
        clock: Clock,
    ) -> None:
        """A seat whose operator is not open yet."""
        self.plan = plan
        self.state: KeyedStateBackend | None = None
        self.report = OperatorReport()
        self.current = CurrentKey()
        self._level, self._epoch = level, epoch
        self._subtask, self._attempt_id = task.subtask, task.attempt_id
        self._context = SubtaskContext(
            plan,
            task.subtask,
            task.attempt,
            level.job_parameters,
            None if plan.key is None else self._open_state,
        )
        self.operator: Operator = KINDS[plan.kind](
            plan,
            self._context,
            task.subtask,
            ElementContext(self.current, clock),
            self.current,
            self._open_state,
            batch_mode=level.batch_mode,
        )
        described = self.operator.describe()
        self.main = next((o for o in plan.outlets if o.tag is None), None)
        self.sides = {o.tag: o for o in plan.outlets if o.tag is not None}
        self.writers = {o.tag: Writer(o.type) for o in plan.outlets}
        self.copiers = {o.tag: copier(o.type) for o in plan.outlets}
        self.partitioners = {
            c.id: partitioner(c, task.subtask, described)
            for o in plan.outlets
            for c in o.channels
            if level.writes.routed
        }
        self._keys = None if plan.key is None else Keys(plan.key, plan.input, described)

    def keys_of(self, elements: list[Any], rows: pa.RecordBatch | None) -> list[Any] | None:
        """Keys of rows that have arrived, or None if the operator is not keyed."""
        keys = self._keys
        if keys is None:
            return None
        if keys.from_columns and rows is not None:
            return keys.of_rows(rows)
        return keys.of_elements(elements)

    def relieve(self) -> None:
        """Keep the state's caches within bounds."""
        if self.state is not None:
            with self._located():
                self.state.relieve()

    def finished_report(self) -> OperatorReport:
        """The figures, at the end; reads the function's gauges."""
        self.report.skipped = self.operator.skipped
        with Reported(self.operator, "in a gauge"):
            self.report.metrics = self._context.get_metrics_group().values(self._subtask)
        return self.report

    def _open_state(self) -> KeyedStateBackend:
        if self.state is None:
            epoch, plan = self._epoch, self.plan
            assert epoch is not None, "keyed operators never run at the sources"
            claim_job(epoch.local_dir, epoch.job_id, epoch.owner)
            directory = store_directory(
                epoch.local_dir, epoch.job_id, epoch.incarnation, plan.uid, self._subtask
            )
            expected = epoch.expected.get((plan.uid, self._subtask))
            self.state = KeyedStateBackend(
                open_store(self._level.backend, directory, expected),
                max_parallelism=plan.max_parallelism,
                epoch=epoch.epoch,
                current=self.current,
            )
        return self.state

    def commit(self) -> StoreReport | None:
        """Make the epoch's changes to state durable; None if there was no state."""
        if self.state is None:
            return None
        assert self._epoch is not None
        version = f"{self._epoch.epoch}-{self._attempt_id}"
        with self._located():
            statistics = self.state.commit(version)
        return StoreReport(version, statistics.entries, statistics.bytes_on_disk)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Errors of what is written after the element that set it, with the operator."""
        try:
            yield
        except HoldfastError as error:
            raise type(error)(f"{self.operator.describe()}, writing state: {error}") from error

    def abort(self) -> None:
        """Drop the epoch's changes to state."""
        if self.state is not None:
            self.state.abort()
