"""An operator's place in a task: the operator and everything it works with."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import faults
from holdfast.api.graph import Kind
from holdfast.clock import monotonic
from holdfast.errors import HoldfastError, StateError
from holdfast.runtime.context import ElementContext, SubtaskContext
from holdfast.runtime.copies import copier
from holdfast.runtime.function_state import FunctionState
from holdfast.runtime.operators import KINDS, Operator, Reported
from holdfast.runtime.partition import Keys, partitioner
from holdfast.runtime.report import (
    OPERATOR_STATE,
    STORE,
    OperatorReport,
    Prepared,
    SnapshotReport,
    StoreReport,
)
from holdfast.runtime.write_columns import Writer
from holdfast.runtime.writer_operator import WriterOperator
from holdfast.state.directories import (
    claim_job,
    file_name,
    job_directory,
    make_private,
    snapshot_directory,
    store_directory,
)
from holdfast.state.keyed_backend import KeyedStateBackend
from holdfast.state.open_store import open_store
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.table import CurrentKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from holdfast.clock import Clock
    from holdfast.runtime.plan import CheckpointOrder, EpochPlan, LevelPlan, OperatorPlan
    from holdfast.state.redistribution import OperatorStateSnapshot
    from holdfast.state.store import StoreStatistics


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
        self._operator_state: OperatorStateBackend | None = None
        self.report = OperatorReport()
        self.current = CurrentKey()
        self._level, self._epoch = level, epoch
        self._subtask, self._attempt_id = task.subtask, task.attempt_id
        self._context = SubtaskContext(
            plan,
            task.subtask,
            task.attempt,
            level.job_parameters,
            None if plan.key is None else self.open_state,
        )
        kind = WriterOperator if plan.kind is Kind.WRITER else KINDS[plan.kind]
        self.operator: Operator = kind(
            plan,
            self._context,
            task.subtask,
            ElementContext(self.current, clock),
            self.current,
            self.open_state,
            batch_mode=level.batch_mode,
        )
        if isinstance(self.operator, WriterOperator):
            assert epoch is not None, "sinks never run at the sources"
            self.operator.start(epoch, task.attempt_id)
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
        self._clock = clock
        self._function_state: FunctionState | None = None
        if epoch is not None and (plan.has_operator_state or plan.listens):
            self._function_state = FunctionState(
                self.operator,
                epoch,
                self._open_operator_state,
                restored=epoch.restored is not None or self._expected is not None,
            )

    @property
    def _expected(self) -> str | None:
        """Version at which the operator's store stands; None if it has none yet."""
        assert self._epoch is not None
        return self._epoch.expected.get((self.plan.uid, self._subtask))

    def open(self) -> None:
        """Open the operator: first its state, then its function."""
        if self._function_state is not None:
            self._function_state.initialize()
        self.operator.open()
        if self._function_state is not None:
            self._function_state.notify()

    def snapshot_function(self) -> None:
        """Let the function put into its state what must outlive the epoch."""
        if self._function_state is not None and self.operator.is_open:
            self._function_state.snapshot(self._clock.now_ms())

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

    def open_state(self) -> KeyedStateBackend:
        """The operator's keyed state; opens its store on first use."""
        if self.state is None:
            epoch, plan = self._epoch, self.plan
            assert epoch is not None, "keyed operators never run at the sources"
            claim_job(epoch.local_dir, epoch.job_id, epoch.owner)
            directory = store_directory(
                epoch.local_dir, epoch.job_id, epoch.incarnation, plan.uid, self._subtask
            )
            self._store = open_store(self._level.backend, directory, self._expected)
            self.state = KeyedStateBackend(
                self._store,
                max_parallelism=plan.max_parallelism,
                epoch=epoch.epoch,
                current=self.current,
            )
        return self.state

    @property
    def operator_state(self) -> OperatorStateBackend | None:
        """The operator state that its function uses, if it does."""
        return self._operator_state

    def _open_operator_state(self) -> OperatorStateBackend:
        if self._operator_state is None:
            self.open_state()
            self._operator_state = OperatorStateBackend(self._store)
        return self._operator_state

    def commit(self) -> StoreReport | None:
        """Make the epoch's changes to state durable; None if there was no state.

        An epoch that ends in a checkpoint leaves a snapshot of the store beside it.
        """
        if self.state is None:
            return None
        epoch = self._epoch
        assert epoch is not None
        where = {"uid": self.plan.uid, "subtask": self._subtask, "epoch": epoch.epoch}
        version = f"{epoch.epoch}-{self._attempt_id}"
        directory = None if epoch.checkpoint is None else self._snapshot_directory(epoch.checkpoint)
        faults.reach("before-commit", **where)
        with self._located():
            exported = None if directory is None else self._exported_operator_state()
            if self._operator_state is not None:
                self._operator_state.flush()
            statistics, sync_ms = self._commit_store(version, directory, where)
            snapshot = None
            if directory is not None:
                if exported is not None:
                    (directory / OPERATOR_STATE).write_bytes(exported.encode())
                states, key = tuple(self.state.state_descriptions()), self.state.key_shape
                snapshot = SnapshotReport(str(directory), states, key, sync_ms)
                faults.reach("after-snapshot", **where)
        return StoreReport(version, statistics.entries, statistics.bytes_on_disk, snapshot)

    def _commit_store(
        self, version: str, directory: Path | None, where: dict[str, Any]
    ) -> tuple[StoreStatistics, int]:
        assert self.state is not None
        if directory is None:
            statistics = self.state.commit(version)
            faults.reach("after-commit", **where)
            return statistics, 0
        self._make_snapshot_directory(directory)
        start = monotonic()
        statistics = self.state.commit(version, directory / STORE)
        faults.reach("after-commit", **where)
        return statistics, int((monotonic() - start) * 1000)

    def _make_snapshot_directory(self, directory: Path) -> None:
        epoch = self._epoch
        assert epoch is not None
        if not job_directory(epoch.local_dir, epoch.job_id).exists():
            # The job has ended meanwhile; made again, its directory would belong to nobody.
            raise StateError(f"{directory}: the job's local state was removed while it was used")
        make_private(directory)

    def _exported_operator_state(self) -> OperatorStateSnapshot | None:
        if self._operator_state is not None:
            return self._operator_state.export()
        # The function was not at work in this epoch, or no longer has such state.
        return OperatorStateBackend(self._store).export()

    def _snapshot_directory(self, checkpoint: CheckpointOrder) -> Path:
        epoch = self._epoch
        assert epoch is not None
        root = snapshot_directory(epoch.local_dir, epoch.job_id, epoch.incarnation, checkpoint.id)
        # Of two attempts, only the one that reports is read.
        return root / file_name(self.plan.uid) / f"{self._subtask}-{self._attempt_id}"

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Errors of what is written after the element that set it, with the operator."""
        try:
            yield
        except HoldfastError as error:
            raise type(error)(f"{self.operator.describe()}, writing state: {error}") from error

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """Output that waits to be published."""
        return self.operator.prepared if isinstance(self.operator, WriterOperator) else ()

    def abort(self) -> None:
        """Drop the epoch's changes to state, and its output."""
        if self.state is not None:
            self.state.abort()
