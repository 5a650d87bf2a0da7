"""Requested checkpoints and savepoints, until they are complete or have failed.

A savepoint is taken together with a checkpoint, from the same local snapshots. The checkpoint
completes first, and its output is published. So a savepoint holds neither unpublished output nor
unprocessed input. A job without periodic checkpoints takes a savepoint alone. A checkpoint that is
requested without a savepoint follows the same rules: a job that is rescaled ends with one.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec import UNSET

from holdfast._faults import fault_point
from holdfast.checkpoint.instructions import CheckpointKind
from holdfast.checkpoint.savepoint.parts import SavepointTarget
from holdfast.checkpoint.savepoint.storage import discard_unfinished, new_savepoint, store_savepoint
from holdfast.checkpoint.source_positions import position_of, source_snapshots
from holdfast.config.checkpoint_options import SAVEPOINT_DIR, SavepointFormatType
from holdfast.errors import (
    CheckpointError,
    ConfigurationError,
    HoldfastError,
    JobExecutionError,
    RestoreError,
)
from holdfast.state.store.snapshot import CANONICAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.files.metadata import (
        CheckpointMetadata,
        OperatorSnapshot,
        StoreSnapshot,
    )
    from holdfast.checkpoint.pending import PendingCheckpoint
    from holdfast.checkpoint.savepoint.parts import SavepointPart
    from holdfast.config.backends import StateBackend
    from holdfast.config.options import PathLike
    from holdfast.job.model import QueryPosition
    from holdfast.storage.file_system import FileSystemFiles
    from holdfast.storage.files import JobCheckpointFiles

    Parts = dict[tuple[str, int], SavepointPart]
    """By uid and subtask."""

logger = logging.getLogger("holdfast")

TRIES: Final = 4
"""How often to try to complete a savepoint that the job was drained for."""
FIRST_PAUSE: Final = 0.5
"""Seconds before the second try; each pause is twice as long as the last one."""
INLINE_BELOW = 1024 * 1024
"""Size below which the log of a source is stored inside the metadata of a savepoint."""


class CheckpointRequest:
    """A requested checkpoint; its caller waits for the result."""

    is_savepoint: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        """Create a request; messages call it `name`."""
        self._name = name
        self.required = False
        """Whether the checkpoint fails if the savepoint does: event time was advanced to its end,
        for a job that is to end."""
        self.checkpoint: str | None = None
        """Path of the checkpoint that it is taken with, once that is complete."""
        self._done: Future[str] = Future()
        self._lock = threading.Lock()
        self._is_settled = False
        """Whether the outcome is decided; the result may follow a moment later."""

    @property
    def is_decided(self) -> bool:
        """Whether it is complete or has failed."""
        return self._done.done()

    @property
    def is_complete(self) -> bool:
        """Whether it can be restored."""
        return self.is_decided and self._done.exception() is None

    def wait(self) -> None:
        """Wait until it is complete or has failed."""
        wait_for_all([self._done])

    def result(self, timeout: float | None = None) -> str:
        """Wait for the snapshot, and return its path.

        Raises:
            CheckpointError: It has failed.
            TimeoutError: It is not complete after `timeout` seconds.
        """
        try:
            return self._done.result(timeout)
        except TimeoutError:
            text = f"{self} is not complete after {timeout} s; it continues"
            raise TimeoutError(text) from None

    def __str__(self) -> str:
        """Its name."""
        return self._name

    def complete(self) -> None:
        """Mark it complete; if it has failed meanwhile, delete what is only for it."""
        if self._settle():
            logger.info("%s is complete", self)
            self._done.set_result(self._path())
        else:
            self._discard()

    def fail(self, why: str) -> None:
        """Mark it failed unless it is decided, and delete what was written only for it."""
        if not self._settle():
            return
        text = f"{self} was not taken: {why}"
        logger.warning("%s", text)
        # Before the deletion, which may hang.
        self._done.set_exception(CheckpointError(text))
        self._discard()

    def _path(self) -> str:
        assert self.checkpoint is not None
        return self.checkpoint

    def _discard(self) -> None:
        """Delete nothing: the checkpoint belongs to the job."""

    def failed_drained(self) -> HoldfastError:
        """The error of a job that was drained for this savepoint, which has failed."""
        if self.checkpoint is not None:
            return RestoreError(drained_reason(self.checkpoint))
        return JobExecutionError(
            "event time was advanced to its end for a savepoint, which failed; the job "
            "returns to its last checkpoint"
        )

    def _settle(self) -> bool:
        """Decide the outcome; False if it was decided before."""
        with self._lock:
            first, self._is_settled = not self._is_settled, True
            return first


class SavepointRequest(CheckpointRequest):
    """A requested savepoint."""

    is_savepoint = True

    def __init__(self, files: FileSystemFiles, form: SavepointFormatType) -> None:
        """Create a request for a savepoint at `files`."""
        super().__init__(f"{files.root}: the savepoint")
        self.files = files
        self.form = form

    @staticmethod
    def at(directory: PathLike | None, job_id: str, form: SavepointFormatType) -> SavepointRequest:
        """Create a request for a savepoint of a job, in a new directory below `directory`.

        Raises:
            ConfigurationError: There is no directory, or no such format.
        """
        if not isinstance(form, SavepointFormatType):
            raise ConfigurationError(
                f"{form!r} is not a savepoint format; pass SavepointFormatType.CANONICAL or "
                "SavepointFormatType.NATIVE"
            )
        if directory is None:
            raise ConfigurationError(
                "there is no directory for the savepoint: name one, or set "
                f"{SAVEPOINT_DIR.key} for all savepoints of the job"
            )
        return SavepointRequest(new_savepoint(directory, job_id), form)

    def _path(self) -> str:
        return self.files.root

    def _discard(self) -> None:
        discard_unfinished(self.files)


def drained_reason(checkpoint: str) -> str:
    """Why a job does not continue from a checkpoint that was taken after it was drained."""
    return (
        f"{checkpoint}: the job was stopped with a savepoint and drain=True. Event time was "
        "advanced to its end, and this checkpoint, with the results of all windows as they were, "
        "is complete, but the job did not get to its end. If it continued, windows that get more "
        "rows would give results a second time. The checkpoint holds what the savepoint was to "
        f"hold. To continue from it all the same, start the job with from_savepoint={checkpoint!r}"
    )


def decide(request: CheckpointRequest, work: Callable[[], None]) -> None:
    """Do the work that takes a snapshot; an error fails the request."""
    try:
        work()
    except BaseException as failure:
        logger.exception("%s failed", request)
        request.fail(f"{type(failure).__name__}: {failure}")


class Savepoints:
    """The requests of a job that are pending, by the ids of their checkpoints."""

    def __init__(
        self, backend: StateBackend, *, alone: bool, first_pause: float = FIRST_PAUSE
    ) -> None:
        """Create it without savepoints.

        Args:
            backend: Where local state is kept.
            alone: Whether the job takes savepoints without checkpoints.
            first_pause: Seconds before the second try to complete one that the job is drained for.
        """
        self._backend = backend
        self._first_pause = first_pause
        self.alone = alone
        self._lock = threading.Lock()
        self._requests: dict[int, CheckpointRequest] = {}
        self._given_up: dict[int, SavepointRequest] = {}
        """Failed savepoints whose parts may still be written."""
        self._unwritten: set[int] = set()
        """Checkpoints whose epochs run, so that no part of their savepoints is written."""

    @property
    def kind(self) -> CheckpointKind:
        """Kind of the checkpoints that are requested, or that savepoints are taken with."""
        return CheckpointKind.SAVEPOINT if self.alone else CheckpointKind.WITH_SAVEPOINT

    def begin(self, checkpoint_id: int, request: CheckpointRequest) -> None:
        """Add a request, for which a checkpoint was triggered."""
        with self._lock:
            self._requests[checkpoint_id] = request
            self._unwritten.add(checkpoint_id)

    def write(self, checkpoint_id: int) -> None:
        """Record that parts of a checkpoint's savepoint are written from now on."""
        with self._lock:
            self._unwritten.discard(checkpoint_id)

    def leave_unwritten(self, checkpoint_id: int) -> None:
        """Forget the savepoint of an aborted checkpoint, unless parts of it are written."""
        with self._lock:
            if checkpoint_id in self._unwritten:
                self._unwritten.remove(checkpoint_id)
                self._given_up.pop(checkpoint_id, None)

    def target(self, checkpoint_id: int) -> SavepointTarget | None:
        """Where the parts of a checkpoint's savepoint are written, if it has one."""
        request = self._savepoint(checkpoint_id)
        if request is None:
            return None
        canonical = request.form is SavepointFormatType.CANONICAL
        return SavepointTarget(
            request.files, self._backend, canonical, self.alone, request.required
        )

    def store(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata, position: QueryPosition
    ) -> CheckpointMetadata:
        """Write the metadata of a checkpoint's savepoint, and return it.

        Args:
            pending: The checkpoint, with the parts of the savepoint that are written.
            metadata: The metadata of the checkpoint.
            position: How far the sources were read, since their beginning.

        Raises:
            CheckpointError: A part is missing.
        """
        checkpoint_id = pending.id
        request = self._savepoint(checkpoint_id)
        assert request is not None
        parts = pending.savepoint_parts
        problems = [part.problem for part in parts.values() if part.problem]
        if problems:
            raise CheckpointError(problems[0])
        fault_point("before-savepoint-metadata", checkpoint=checkpoint_id)
        sources = source_snapshots(position, None, request.files, checkpoint_id, INLINE_BELOW)
        metadata = msgspec.structs.replace(
            metadata,
            is_savepoint=True,
            origin=UNSET,
            drained=UNSET,
            lineage="",
            fence=0,
            sources=pending.named(sources),
            committables=[],
            stale_notes=UNSET,
            channel_state=[],
            operators=[_operator(one, parts, request.form) for one in metadata.operators],
        )
        store_savepoint(request.files, metadata)
        return metadata

    def complete(self, checkpoint_id: int) -> None:
        """Complete the request for a checkpoint, if there is one."""
        with self._lock:
            request = self._requests.pop(checkpoint_id, None)
        if request is not None:
            request.complete()

    def fail(self, checkpoint_id: int, why: str) -> None:
        """Fail the request for a checkpoint, if there is one."""
        with self._lock:
            request = self._requests.pop(checkpoint_id, None)
            if isinstance(request, SavepointRequest):
                self._given_up[checkpoint_id] = request
        if request is not None:
            request.fail(why)

    def tidy(self, checkpoint_id: int) -> None:
        """Delete the files of a failed savepoint, after its last part was written."""
        with self._lock:
            request = self._given_up.pop(checkpoint_id, None)
            request = request or self._savepoint(checkpoint_id)
        if request is not None and request.is_decided and not request.is_complete:
            discard_unfinished(request.files)

    def _savepoint(self, checkpoint_id: int) -> SavepointRequest | None:
        """The savepoint that is taken with a checkpoint, if there is one."""
        request = self._requests.get(checkpoint_id)
        return request if isinstance(request, SavepointRequest) else None

    def add(self, pending: PendingCheckpoint, files: JobCheckpointFiles) -> str | None:
        """Complete the request for a checkpoint that is complete and published, if there is one.

        Returns the path of its savepoint, or None if there is none.

        Args:
            pending: The checkpoint.
            files: Where the checkpoint is stored.
        """
        request = self._savepoint(pending.id)
        if request is None:
            self.complete(pending.id)
            return None
        why = self._try_to_add(pending, files)
        pause, tries = self._first_pause, TRIES if request.required else 1
        while why is not None and (tries := tries - 1):
            logger.warning("savepoint %s is tried again: %s", request.files.root, why)
            threading.Event().wait(pause)
            pause *= 2
            why = self._try_to_add(pending, files)
        if why is None:
            self.complete(pending.id)
        elif request.required and request.checkpoint is not None:
            self.fail(pending.id, f"{why}. {drained_reason(request.checkpoint)}")
        else:
            self.fail(pending.id, why)
        return request.files.root if request.is_complete else None

    def _try_to_add(self, pending: PendingCheckpoint, files: JobCheckpointFiles) -> str | None:
        """Write the metadata of a savepoint; returns why that failed, or None."""
        assert pending.stored is not None
        try:
            position = position_of(pending.stored, files)
            self.store(pending, pending.stored, position)
        except HoldfastError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def checkpoint_completed(self, checkpoint_id: int, path: str) -> None:
        """Record that the checkpoint of a request, if it has one, is complete."""
        request = self._requests.get(checkpoint_id)
        if request is not None:
            request.checkpoint = path


def _operator(
    snapshot: OperatorSnapshot, parts: Parts, form: SavepointFormatType
) -> OperatorSnapshot:
    stores = [
        _store(store, parts[snapshot.uid, store.subtask], form) for store in snapshot.subtasks
    ]
    return msgspec.structs.replace(snapshot, subtasks=stores)


def _store(store: StoreSnapshot, part: SavepointPart, form: SavepointFormatType) -> StoreSnapshot:
    return msgspec.structs.replace(
        store,
        backend=CANONICAL if form is SavepointFormatType.CANONICAL else store.backend,
        files=part.files,
        full_size=part.size,
        uploaded_size=part.size,
        operator_state=part.operator_state,
        operator_tables=part.operator_tables or UNSET,
    )
