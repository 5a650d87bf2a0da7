"""A pending checkpoint: the snapshots of its epoch, their uploads, and the metadata they make."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast._version import VERSION
from holdfast.checkpoint.commit.committables import PendingCommittables, staged_handle
from holdfast.checkpoint.files.channel_state import ChannelStateFiles
from holdfast.checkpoint.files.layout import SHARED
from holdfast.checkpoint.files.metadata import (
    ChannelState,
    CheckpointMetadata,
    OperatorSnapshot,
    StoredEventTimes,
    StoreSnapshot,
)
from holdfast.checkpoint.subtask_upload import Upload, Uploaded
from holdfast.errors import CheckpointError
from holdfast.job.statistics import SubtaskCheckpoint
from holdfast.serde.key_shapes import KeyShape
from holdfast.state.key_groups import key_groups
from holdfast.storage.files import MOST_INLINE
from holdfast.storage.handles import FileHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.checkpoint.files.metadata import SourceSnapshot
    from holdfast.checkpoint.savepoint.parts import SavepointPart, SavepointTarget
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.job.model import EpochResult, JobIdentity, JobPlan, QueryPosition
    from holdfast.runtime.plan import CheckpointOrder, OperatorPlan
    from holdfast.runtime.report import StoreReport

    Store = tuple[str, int]
    """Uid and subtask."""
    Capture = Callable[[int, QueryPosition | None], QueryPosition]
    """Returns the position of the sources at the end of a micro-batch.

    Takes the id of the micro-batch and the position in the newest checkpoint: only newer entries
    of the sources' logs are read.
    """


def inline_below(settings: CheckpointSettings) -> int:
    """Size below which a file is stored inside the metadata."""
    threshold: int = getattr(settings.storage, "file_state_size_threshold", 0)
    return threshold


@dataclass(frozen=True)
class CheckpointBase:
    """The completed checkpoint and the job attempt that the next checkpoint builds on."""

    job: JobIdentity
    metadata: CheckpointMetadata | None
    """The newest complete checkpoint of the job; None before the first one."""
    inherited: frozenset[Store]
    """Stores whose local files continue those in `metadata`."""
    capture: Capture
    """Returns how far the sources were read."""
    origin: str = ""
    """Names the snapshot that the job's first checkpoint began from."""
    channel_state: ChannelStateFiles = field(default_factory=ChannelStateFiles)

    def stores(self) -> dict[Store, StoreSnapshot]:
        """The stores in `metadata`."""
        return {
            (operator.uid, store.subtask): store
            for operator in ([] if self.metadata is None else self.metadata.operators)
            for store in operator.subtasks
        }

    def versions(self) -> dict[Store, str]:
        """Versions of the stores in `metadata`, if this job attempt has written it.

        In another job attempt the same version may stand for other bytes.
        """
        if self.metadata is None or self.metadata.job_attempt != self.job.job_attempt:
            return {}
        return {where: store.version for where, store in self.stores().items()}


class PendingCheckpoint:
    """One checkpoint, from the end of its epoch to its metadata."""

    def __init__(
        self,
        plan: JobPlan,
        settings: CheckpointSettings,
        order: CheckpointOrder,
        result: EpochResult,
        base: CheckpointBase,
        position: QueryPosition,
        pending_committables: PendingCommittables | None = None,
        savepoint: SavepointTarget | None = None,
        *,
        most_inline: int = MOST_INLINE,
    ) -> None:
        """Create a pending checkpoint; nothing of it is uploaded yet.

        Args:
            plan: The compiled job.
            settings: How checkpoints are taken.
            order: Its id, and when it was triggered.
            result: The reports of the epoch's tasks.
            base: The job attempt, and the completed checkpoint that it builds on.
            position: How far the sources were read, since `base`.
            pending_committables: Output of the job attempt that is not published yet.
            savepoint: A savepoint that is taken with it.
            most_inline: Most bytes of state inside its metadata.
        """
        self._plan = plan
        self.base = base
        self._settings = settings
        self.id = order.id
        self._triggered_ms = order.timestamp
        self._epoch = result.statistics.epoch
        self.pending_committables = pending_committables or PendingCommittables()
        self._savepoint = savepoint
        self._most_inline = most_inline
        before = [] if base.metadata is None else base.metadata.operators
        self._before = {operator.uid: operator for operator in before}
        self._channel_rows = result.channel_rows
        self._event_times = result.event_times
        self.position = position
        self.stored: CheckpointMetadata | None = None
        """The metadata, once it is written."""
        self.ended = threading.Event()
        """Set when it is aborted; or when it is complete, published, and all listeners know."""
        self.error: BaseException | None = None
        """An unexpected error while it was completed."""
        self._reports: dict[Store, StoreReport] = {}
        self.versions: dict[Store, str] = {}
        """Version of every store."""
        self.unchanged: set[Store] = set()
        """Stores that have not changed since the base."""
        self._stages: dict[Store, int] = {}
        self._missing: dict[tuple[int, int], int] = defaultdict(int)
        self._uploaded: dict[str, dict[int, Uploaded]] = defaultdict(dict)
        """By uid and subtask."""
        self._by_task: dict[tuple[int, int], list[Uploaded]] = defaultdict(list)
        for report in result.reports:
            self._reports |= {(uid, report.subtask): one for uid, one in report.stores.items()}
            self.unchanged |= {(uid, report.subtask) for uid in report.unchanged}
            versions = {uid: store.version for uid, store in report.stores.items()}
            for uid, version in (versions | report.unchanged).items():
                self.versions[uid, report.subtask] = version
                self._stages[uid, report.subtask] = report.stage
                self._missing[report.stage, report.subtask] += 1

    @property
    def persisted_size(self) -> int:
        """Bytes of its channel state."""
        return sum(left.rows.size for left in self._channel_rows)

    @property
    def channel_files(self) -> Iterator[str]:
        """Files of its channel state."""
        handles = (left.rows.handle for left in self._channel_rows)
        return (handle.path for handle in handles if isinstance(handle, FileHandle))

    @property
    def inline_below(self) -> int:
        """Size below which state is stored inside the metadata."""
        return inline_below(self._settings)

    @property
    def local_copies(self) -> dict[Store, str]:
        """Directory of every local snapshot."""
        return {
            where: report.snapshot.directory
            for where, report in self._reports.items()
            if report.snapshot is not None
        }

    @property
    def savepoint_parts(self) -> dict[Store, SavepointPart]:
        """The parts of its savepoint that are written."""
        return {
            (uid, subtask): done.savepoint
            for uid, stores in self._uploaded.items()
            for subtask, done in stores.items()
            if done.savepoint is not None
        }

    def figures(self, store: Uploaded, now: int) -> SubtaskCheckpoint:
        """Statistics of a store that was uploaded."""
        upload = store.upload
        report = self._reports.get((upload.uid, upload.subtask))
        snapshot = None if report is None else report.snapshot
        return SubtaskCheckpoint(
            uid=upload.uid,
            subtask=upload.subtask,
            ack_timestamp=now,
            sync_duration_ms=0 if snapshot is None else snapshot.sync_ms,
            async_duration_ms=store.duration_ms,
            state_size=sum(handle.size for handle in store.files.values()),
            checkpointed_size=store.uploaded_size,
        )

    def uploads(self) -> Iterator[Upload]:
        """The local snapshots that have to be uploaded."""
        held = self.base.stores()
        for where, directory in self.local_copies.items():
            files = held[where].files if where in self.base.inherited and where in held else {}
            snapshot = self._reports[where].snapshot
            assert snapshot is not None
            yield replace(
                self._upload(*where, directory),
                files=snapshot.files,
                has_operator_state=snapshot.has_operator_state,
                known={
                    name: handle
                    for name, handle in files.items()
                    if isinstance(handle, FileHandle) and handle.path.startswith(f"{SHARED}/")
                },
            )

    def kept(self) -> Iterator[Uploaded]:
        """Stores that have not changed: they keep the files of the base, without an upload.

        Raises:
            CheckpointError: The base holds another version of a store.
        """
        held = self.base.stores()
        for where in self.unchanged:
            store, version = held.get(where), self.versions[where]
            if store is None or store.version != version:
                found = "not there" if store is None else f"at version {store.version!r}"
                raise CheckpointError(
                    f"operator {where[0]!r}, subtask {where[1]}: the store has not changed since "
                    f"version {version!r}, but in the checkpoint before it is {found}"
                )
            yield Uploaded(self._upload(*where, ""), store.files, store.operator_state, 0, 0)

    def _upload(self, uid: str, subtask: int, directory: str) -> Upload:
        return Upload(
            checkpoint_id=self.id,
            stage=self._stages[uid, subtask],
            uid=uid,
            subtask=subtask,
            directory=directory,
            incremental=self._settings.incremental,
            inline_below=self.inline_below,
            inline_at_most=self._most_inline // len(self.versions),
            keep=self._settings.local_backup,
            savepoint=self._savepoint,
        )

    def tasks_without_state(self) -> list[tuple[int, int]]:
        """Stage and subtask of every task without anything to upload."""
        return [task for task in self._plan.tasks if not self._missing[task]]

    def arrived(self, done: Uploaded) -> list[Uploaded] | None:
        """Record an upload; returns all uploads of its task once they are complete."""
        upload = done.upload
        self._uploaded[upload.uid][upload.subtask] = done
        task = (upload.stage, upload.subtask)
        self._by_task[task].append(done)
        self._missing[task] -= 1
        return None if self._missing[task] else self._by_task[task]

    def metadata(
        self, sources: list[SourceSnapshot], fence: int, completed_ms: int
    ) -> CheckpointMetadata:
        """The metadata; everything must be uploaded."""
        job = self.base.job
        return CheckpointMetadata(
            version=VERSION,
            checkpoint_id=self.id,
            job_id=job.job_id,
            job_name=job.name,
            lineage=self.pending_committables.lineage,
            fence=fence,
            job_attempt=job.job_attempt,
            epoch=self._epoch,
            batch_id=self.position.batch_id,
            triggered_ms=self._triggered_ms,
            completed_ms=completed_ms,
            mode=self._settings.mode.name,
            origin=self.base.origin or UNSET,
            drained=(self._savepoint is not None and self._savepoint.required) or UNSET,
            operators=[
                self._operator(operator, stores)
                for uid, operator in self._plan.operators.items()
                if (stores := self._uploaded.get(uid))
            ],
            sources=self.named(sources),
            committables=self.pending_committables.listed(self._epoch, self.id),
            stale_notes=self.pending_committables.stale_notes or UNSET,
            channel_state=[
                ChannelState(
                    uid=left.uid,
                    input=left.input,
                    subtask=left.subtask,
                    parallelism=left.parallelism,
                    max_parallelism=left.max_parallelism,
                    rows=staged_handle(left.rows),
                )
                for left in self._channel_rows
            ],
            event_times=StoredEventTimes(
                sources=self._event_times.sources,
                quiet_ms=self._event_times.quiet_ms,
                operators=self._event_times.operators,
            ),
            spark={"offset_metadata": self.position.metadata},
        )

    def named(self, sources: list[SourceSnapshot]) -> list[SourceSnapshot]:
        """The same with the names of the sources, and where the program made them."""
        nodes = {plan.uid: plan.node for plan in self._plan.sources}
        return [
            msgspec.structs.replace(one, name=nodes[one.uid].name, made_at=nodes[one.uid].where)
            for one in sources
        ]

    def _operator(self, operator: OperatorPlan, stores: dict[int, Uploaded]) -> OperatorSnapshot:
        states: dict[str, dict[str, object]] = {}
        keys: list[str | None] = []
        before = self._before.get(operator.uid)
        if before is not None and any((operator.uid, one) in self.unchanged for one in stores):
            states, keys = {state["name"]: state for state in before.states}, [before.key]
        for subtask in sorted(stores):
            report = self._reports.get((operator.uid, subtask))
            if report is not None and report.snapshot is not None:
                states.update({state["name"]: state for state in report.snapshot.states})
                keys.append(report.snapshot.key)
        return OperatorSnapshot(
            uid=operator.uid,
            name=operator.name,
            made_at=operator.made_at,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            states=list(states.values()),
            key=_joined(keys),
            subtasks=[
                self._store(operator, subtask, stores[subtask]) for subtask in sorted(stores)
            ],
        )

    def _store(self, operator: OperatorPlan, subtask: int, done: Uploaded) -> StoreSnapshot:
        groups = key_groups(subtask, operator.parallelism, operator.max_parallelism)
        backend = self._plan.stages[0].backend
        return StoreSnapshot(
            subtask=subtask,
            backend=backend.name,  # type: ignore[arg-type]
            version=self.versions[operator.uid, subtask],
            key_groups=None if operator.key is None else (groups.start, groups.stop - 1),
            files=done.files,
            full_size=sum(handle.size for handle in done.files.values()),
            uploaded_size=done.uploaded_size,
            operator_state=done.operator_state,
        )


def _joined(names: Iterable[str | None]) -> str | None:
    """Name of the key shape that covers all these shapes; None without keys."""
    joined: KeyShape | None = None
    for shape in (KeyShape(name) for name in names if name is not None):
        joined = shape if joined is None else joined.joined(shape)
        assert joined is not None, "tasks whose keys differ end no epoch"
    return None if joined is None else joined.name
