"""The state of one operator on one subtask, in its local store, epoch after epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._faults import fault_point
from holdfast.clock import monotonic
from holdfast.errors import StateError
from holdfast.runtime.report import OPERATOR_STATE, STORE, SnapshotReport, StoreReport
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.store.directories import (
    claim_job,
    file_name,
    job_directory,
    make_private,
    snapshot_directory,
    store_directory,
)
from holdfast.state.store.opening import open_store
from holdfast.state.store.snapshot import snapshot_sizes
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.config.backends import StateBackend
    from holdfast.runtime.plan import CheckpointOrder, EpochPlan, OperatorPlan
    from holdfast.serde.key_shapes import KeyTypes
    from holdfast.state.operator.redistribution import OperatorStateSnapshot
    from holdfast.state.store.protocol import StateStore, StoreStatistics
    from holdfast.state.table import CurrentKey
    from holdfast.state.ttl.states import TtlContext


class OperatorStore:
    """Opens an operator's store on first use in an epoch, and commits it at the end.

    Handles and cached values stay from epoch to epoch. Values are used only if the store is as
    this object has left it: another worker may have run the epochs in between.
    """

    def __init__(
        self,
        plan: OperatorPlan,
        backend: StateBackend,
        subtask: int,
        current: CurrentKey,
        key_types: KeyTypes,
        ttl: Callable[[], TtlContext],
    ) -> None:
        """No state yet; `ttl` makes the clocks of states with a time to live."""
        self.keyed: KeyedStateBackend | None = None
        """The keyed state, once it was used."""
        self.operator_state: OperatorStateBackend | None = None
        """The operator state, once it was used."""
        self.directory: Path | None = None
        """Directory of the store, once it was opened."""
        self._plan = plan
        self._backend = backend
        self._subtask = subtask
        self._current = current
        self._key_types = key_types
        self._ttl = ttl
        self._store: StateStore
        self._epoch: EpochPlan | None = None
        self._attempt_id = 0
        self._version: str | None = None
        """Version of the store that this object has left; None before its first commit."""

    def is_behind(self, epoch: EpochPlan) -> bool:
        """Whether another process has written to the store since."""
        return self._version is not None and self._version != self._expected_in(epoch)

    def has_failed(self, epoch: EpochPlan) -> bool:
        """Whether the last commit here is not the one that counts for its epoch."""
        expected = self._expected_in(epoch)
        return self.is_behind(epoch) and _epoch_of(self._version) >= _epoch_of(expected)

    def begin(self, epoch: EpochPlan | None, attempt_id: int) -> bool:
        """Prepare for an epoch; returns whether the store is as this object has left it.

        If state was used before, the store is opened.
        """
        self._epoch, self._attempt_id = epoch, attempt_id
        if self.keyed is None or epoch is None:
            return True
        expected = self.expected
        assert expected is not None, "a store that was committed has a version"
        own = self._version == expected
        self._store.reopen(expected)
        self.keyed.resume(epoch.epoch, own=own)
        if not own and self.operator_state is not None:
            self.operator_state.reload()
        return own

    @property
    def epoch(self) -> EpochPlan:
        """The plan of the epoch."""
        assert self._epoch is not None, "operators with state never run at the sources"
        return self._epoch

    @property
    def expected(self) -> str | None:
        """Version that the store must have; None if there is no store yet."""
        return self._expected_in(self.epoch)

    def _expected_in(self, epoch: EpochPlan) -> str | None:
        return epoch.expected.get((self._plan.uid, self._subtask))

    def open(self) -> KeyedStateBackend:
        """The keyed state; opens the store on first use."""
        if self.keyed is None:
            epoch, plan = self.epoch, self._plan
            claim_job(epoch.local_dir, epoch.job_id, epoch.owner)
            self.directory = store_directory(
                epoch.local_dir,
                epoch.job_id,
                epoch.job_attempt,
                plan.uid,
                self._subtask,
                epoch.owner.run,
            )
            self._store = open_store(self._backend, self.directory, self.expected)
            self.keyed = KeyedStateBackend(
                self._store,
                max_parallelism=plan.max_parallelism,
                epoch=epoch.epoch,
                current=self._current,
                key_groups=key_groups(self._subtask, plan.parallelism, plan.max_parallelism),
                ttl=self._ttl(),
                key_types=self._key_types,
            )
        return self.keyed

    def open_operator_state(self) -> OperatorStateBackend:
        """The operator state; opens the store on first use."""
        if self.operator_state is None:
            self.open()
            self.operator_state = OperatorStateBackend(self._store)
        return self.operator_state

    def next_timer(self, name: str) -> int | None:
        """Time before which no timer of a time domain is pending; None if none is."""
        state = self.open()
        return state.timers(name).next_time if state.has_timers(name) else None

    def commit(self) -> StoreReport | None:
        """Make the epoch's changes durable, and close the store; None if there was no state.

        An epoch that ends in a checkpoint also makes a snapshot of the store.
        """
        if self.keyed is None:
            return None
        epoch = self.epoch
        self._version = None
        where = {"uid": self._plan.uid, "subtask": self._subtask, "epoch": epoch.epoch}
        version = f"{epoch.epoch}-{self._attempt_id}"
        directory = None if epoch.checkpoint is None else self._snapshot_directory(epoch.checkpoint)
        fault_point("before-commit", **where)
        exported = None if directory is None else self._exported_operator_state()
        if self.operator_state is not None:
            self.operator_state.flush()
        next_event_timer = self.next_timer(EVENT_TIMERS)
        next_processing_timer = self.next_timer(PROCESSING_TIMERS)
        start = monotonic()
        changed = self.keyed.stage(snapshot=directory is not None)
        if not changed and self._may_stay:
            # Nothing was written: the store keeps its version, and needs no snapshot.
            assert self.expected is not None
            version, directory = self.expected, None
            statistics = self._store.leave()
        else:
            statistics = self._commit_store(version, directory, where)
        sync_ms = int((monotonic() - start) * 1000)
        snapshot = None
        if directory is not None:
            if exported is not None:
                (directory / OPERATOR_STATE).write_bytes(exported.encode())
            snapshot = SnapshotReport(
                str(directory),
                tuple(self.keyed.state_descriptions()),
                self.keyed.key_shape,
                sync_ms,
                snapshot_sizes(directory / STORE),
                has_operator_state=exported is not None,
            )
            fault_point("after-snapshot", **where)
        self._version = version
        return StoreReport(
            version,
            statistics.entries,
            statistics.bytes_on_disk,
            snapshot,
            next_event_timer,
            next_processing_timer,
            self.keyed.expired_removed,
        )

    @property
    def _may_stay(self) -> bool:
        """Whether the store may keep its version if nothing was written."""
        epoch = self.epoch
        where = (self._plan.uid, self._subtask)
        return where in (epoch.expected if epoch.checkpoint is None else epoch.held)

    def _commit_store(
        self, version: str, directory: Path | None, where: dict[str, Any]
    ) -> StoreStatistics:
        if directory is None:
            statistics = self._store.commit(version)
        else:
            self._make_snapshot_directory(directory)
            statistics = self._store.commit(version, directory / STORE)
        fault_point("after-commit", **where)
        return statistics

    def _make_snapshot_directory(self, directory: Path) -> None:
        epoch = self.epoch
        if not job_directory(epoch.local_dir, epoch.job_id, epoch.owner.run).exists():
            # The job has ended meanwhile; nobody would own a new directory.
            raise StateError(f"{directory}: the job's local state was removed while it was used")
        make_private(directory)

    def _exported_operator_state(self) -> OperatorStateSnapshot | None:
        if self.operator_state is not None:
            return self.operator_state.export()
        # The function did not run in this epoch, or no longer has operator state.
        return OperatorStateBackend(self._store).export()

    def _snapshot_directory(self, checkpoint: CheckpointOrder) -> Path:
        epoch = self.epoch
        root = snapshot_directory(
            epoch.local_dir, epoch.job_id, epoch.job_attempt, checkpoint.id, epoch.owner.run
        )
        # Of two attempts, only the one that reports is read.
        return root / file_name(self._plan.uid) / f"{self._subtask}-{self._attempt_id}"

    def abort(self) -> None:
        """Drop the epoch's changes, and close the store."""
        if self.keyed is not None:
            self.keyed.abort()


def _epoch_of(version: str | None) -> int:
    """Epoch that has written a version of a store; -1 for a restored store."""
    number = "" if version is None else version.partition("-")[0]
    return int(number) if number.isdecimal() else -1
