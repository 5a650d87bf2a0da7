"""A checkpoint on its way: what its epoch left, and what has been uploaded of it."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast._version import VERSION
from holdfast.checkpoint.commit.committables import PendingCommittables, staged_handle
from holdfast.checkpoint.files.layout import SHARED
from holdfast.checkpoint.files.metadata import (
    ChannelState,
    CheckpointMetadata,
    OperatorSnapshot,
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
    from collections.abc import Iterable, Iterator

    from holdfast.checkpoint.files.metadata import SourceSnapshot
    from holdfast.checkpoint.instructions import CheckpointKind, Participant
    from holdfast.checkpoint.savepoint.parts import SavepointPart, SavepointTarget
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.job.model import EpochResult, JobIdentity, JobPlan, QueryPosition
    from holdfast.runtime.plan import CheckpointOrder, OperatorPlan
    from holdfast.runtime.report import StoreReport


def inline_below(settings: CheckpointSettings) -> int:
    """Size below which bytes travel within the metadata."""
    threshold: int = getattr(settings.storage, "file_state_size_threshold", 0)
    return threshold


def held_by(base: CheckpointMetadata | None, job: JobIdentity) -> dict[tuple[str, int], str]:
    """Versions of the stores that a checkpoint of this job attempt holds, by uid and subtask.

    In another one a version may stand for other bytes. For a savepoint nothing is held: it
    is made out of local snapshots.
    """
    if base is None or base.job_attempt != job.job_attempt:
        return {}
    return {
        (operator.uid, store.subtask): store.version
        for operator in base.operators
        for store in operator.subtasks
    }


class CheckpointDraft:
    """One checkpoint, from the end of its epoch to its metadata."""

    def __init__(
        self,
        plan: JobPlan,
        job: JobIdentity,
        settings: CheckpointSettings,
        order: CheckpointOrder,
        result: EpochResult,
        position: QueryPosition,
        base: CheckpointMetadata | None,
        pending_committables: PendingCommittables | None = None,
        savepoint: SavepointTarget | None = None,
        origin: str = "",
    ) -> None:
        """A draft of which nothing is uploaded yet.

        Args:
            plan: The compiled job.
            job: The job attempt it is taken in.
            settings: How checkpoints are taken.
            order: Its id and when it was triggered.
            result: What the epoch's tasks have reported.
            position: How far the sources were read, since `base`.
            base: The completed checkpoint that it builds upon.
            pending_committables: Output of the job attempt that waits to be published.
            savepoint: A savepoint that is taken with it.
            origin: Names the snapshot that the job's first checkpoint began from.
        """
        self._plan = plan
        self._job = job
        self._settings = settings
        self._order = order
        self._epoch = result.statistics.epoch
        self.pending_committables = pending_committables or PendingCommittables()
        self._savepoint = savepoint
        self._origin = origin
        self._before = {} if base is None else {one.uid: one for one in base.operators}
        self._channel_rows = result.channel_rows
        self.position = position
        self.base = base
        self.stored: CheckpointMetadata | None = None
        """The metadata, once it is written."""
        self.over = threading.Event()
        """Set when it was given up; or is complete, its output is published, and all are told."""
        self.broken: BaseException | None = None
        """What has kept it from being completed, other than a reason to give it up."""
        self._reports: dict[tuple[str, int], StoreReport] = {}
        self.versions: dict[tuple[str, int], str] = {}
        """Version of every store, by uid and subtask."""
        self.unchanged: set[tuple[str, int]] = set()
        """Stores that are as the base holds them."""
        self._stages: dict[tuple[str, int], int] = {}
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
        """Bytes of input that it holds because there was no time to process it."""
        return sum(left.rows.size for left in self._channel_rows)

    @property
    def channel_files(self) -> Iterator[str]:
        """Files with the input that it holds."""
        handles = (left.rows.handle for left in self._channel_rows)
        return (handle.path for handle in handles if isinstance(handle, FileHandle))

    @property
    def inline_below(self) -> int:
        """Size below which state travels within the metadata."""
        return inline_below(self._settings)

    @property
    def local_copies(self) -> dict[tuple[str, int], str]:
        """Directory of every local snapshot, by uid and subtask."""
        return {
            where: report.snapshot.directory
            for where, report in self._reports.items()
            if report.snapshot is not None
        }

    @property
    def savepoint_parts(self) -> dict[tuple[str, int], SavepointPart]:
        """What was written of its savepoint, by uid and subtask."""
        return {
            (uid, subtask): done.savepoint
            for uid, stores in self._uploaded.items()
            for subtask, done in stores.items()
            if done.savepoint is not None
        }

    def figures(self, store: Uploaded, now: int) -> SubtaskCheckpoint:
        """What is shown of a store that was uploaded."""
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

    def uploads(self, inherited: frozenset[tuple[str, int]]) -> Iterator[Upload]:
        """What has to be uploaded.

        Args:
            inherited: Stores that build upon the files of the base.
        """
        held = self._held()
        for where, directory in self.local_copies.items():
            files = held[where].files if where in inherited and where in held else {}
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
        """Stores that are as the base holds them: with its files, and nothing to upload.

        Raises:
            CheckpointError: The base does not hold one of them so.
        """
        held = self._held()
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
            checkpoint_id=self._order.id,
            stage=self._stages[uid, subtask],
            uid=uid,
            subtask=subtask,
            directory=directory,
            incremental=self._settings.incremental,
            inline_below=self.inline_below,
            inline_at_most=MOST_INLINE // len(self.versions),
            keep=self._settings.local_backup,
            savepoint=self._savepoint,
        )

    def _held(self) -> dict[tuple[str, int], StoreSnapshot]:
        """What the base holds, by uid and subtask."""
        return {
            (operator.uid, store.subtask): store
            for operator in ([] if self.base is None else self.base.operators)
            for store in operator.subtasks
        }

    def tasks_without_state(self) -> list[tuple[int, int]]:
        """Stage and subtask of every task that has nothing to upload."""
        return [task for task in self._plan.tasks if not self._missing[task]]

    def arrived(self, done: Uploaded) -> list[Uploaded] | None:
        """Note an upload; all of its task's, once they are complete."""
        upload = done.upload
        self._uploaded[upload.uid][upload.subtask] = done
        task = (upload.stage, upload.subtask)
        self._by_task[task].append(done)
        self._missing[task] -= 1
        return None if self._missing[task] else self._by_task[task]

    def metadata(
        self, sources: list[SourceSnapshot], fence: int, completed_ms: int
    ) -> CheckpointMetadata:
        """The metadata, once everything is uploaded."""
        checkpoint_id = self._order.id
        operators = [op for stage in self._plan.stages for op in stage.operators]
        return CheckpointMetadata(
            version=VERSION,
            checkpoint_id=checkpoint_id,
            job_id=self._job.job_id,
            job_name=self._job.name,
            lineage=self.pending_committables.lineage,
            fence=fence,
            job_attempt=self._job.job_attempt,
            epoch=self._epoch,
            batch_id=self.position.batch_id,
            triggered_ms=self._order.timestamp,
            completed_ms=completed_ms,
            mode=self._settings.mode.name,
            origin=self._origin or UNSET,
            operators=[
                snapshot for op in operators if (snapshot := self._operator(op)) is not None
            ],
            sources=sources,
            committables=self.pending_committables.listed(self._epoch, checkpoint_id),
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
            spark={"offset_metadata": self.position.metadata},
        )

    def _operator(self, operator: OperatorPlan) -> OperatorSnapshot | None:
        stores = self._uploaded.get(operator.uid)
        if not stores:
            return None
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
    """Name of the shape that keys of all these shapes have; None if there are no keys."""
    joined: KeyShape | None = None
    for shape in (KeyShape(name) for name in names if name is not None):
        joined = shape if joined is None else joined.joined(shape)
        assert joined is not None, "tasks whose keys differ end no epoch"
    return None if joined is None else joined.name


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint that has begun and neither completed nor been aborted."""

    id: int
    kind: CheckpointKind
    triggered_at: int
    participants: frozenset[Participant]
    acknowledged: set[Participant] = field(default_factory=set)

    @property
    def finalizing(self) -> bool:
        """Whether all have acknowledged, so that its metadata is being written."""
        return len(self.acknowledged) == len(self.participants)

    def awaits(self, participant: Participant) -> bool:
        """Whether the participant belongs to it and has not acknowledged."""
        return participant in self.participants and participant not in self.acknowledged
