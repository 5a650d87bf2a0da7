"""How a job ended, and notes of it in checkpoint storage.

The checkpoints of a job are deleted when it ends. Without a note, a start under the same job id
would begin again and publish all output a second time. For example, a supervisor restarts a driver
that died after it deleted the checkpoints and before it reported success.

    finished.json   {"format": 1, "job_id": "orders", "fence": 3, "finished_ms": 1767225600000}
    stopped.json    {"format": 1, "savepoint": "/savepoints/savepoint-orders-0123456789ab",
                     "identity": "orders-12-1767225600000", "job_id": "orders"}

Several jobs may use a directory, one after the other: a note counts for its own job only.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.fence import fences
from holdfast.checkpoint.files.metadata import identity_of
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.config.checkpoint_options import ExternalizedCheckpointRetention
from holdfast.errors import HoldfastError, RestoreError
from holdfast.job.statistics import JobStatus

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.files import NamedFiles

FINISHED: Final = "finished.json"
STOPPED: Final = "stopped.json"
FORMAT: Final = 1


@dataclass(frozen=True)
class JobEnding:
    """How a job has ended."""

    status: JobStatus
    lasting_id: bool
    """Whether another start finds the job's checkpoints by its id."""
    more_input: bool = False
    """Whether there may be input that the job has not processed."""
    savepoint: str | None = None
    """The savepoint that the job was stopped with."""

    def deletes(self, retention: ExternalizedCheckpointRetention) -> bool:
        """Whether the job's checkpoints are deleted."""
        match self.status:
            case JobStatus.FINISHED:
                return not (self.lasting_id and self.more_input and self.savepoint is None)
            case JobStatus.CANCELED:
                return retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
            case _:
                # After a fix, a start under the same id continues a failed job.
                never = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
                return not self.lasting_id and retention is never


class _Finished(msgspec.Struct):
    format: int
    job_id: str
    fence: int
    """Fence of the driver that finished the job."""
    finished_ms: int


class _Stopped(msgspec.Struct, omit_defaults=True):
    format: int
    savepoint: str
    identity: str = ""
    """See `identity_of`: it identifies the savepoint even if it was moved."""
    job_id: str = ""


def note_finished(files: NamedFiles, job_id: str, fence: int, now_ms: int) -> None:
    """Note that the job has processed all its input; call this before deleting checkpoints."""
    _write(files, FINISHED, _Finished(FORMAT, job_id, fence, now_ms))
    files.delete(STOPPED)


def finished_at(files: NamedFiles, job_id: str) -> str | None:
    """When the job finished, as text; None if it did not."""
    data = files.read(FINISHED)
    if data is None:
        return None
    try:
        note = msgspec.json.decode(data, type=_Finished)
        if note.job_id != job_id:
            return None
        return f"at {datetime.fromtimestamp(note.finished_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (msgspec.DecodeError, ValueError, OverflowError, OSError):
        return "at a time that this Holdfast cannot read"


def delete_finished(files: NamedFiles) -> None:
    """Delete what a finished job has left, unless another driver has started since."""
    try:
        fence = msgspec.json.decode(files.read(FINISHED) or b"", type=_Finished).fence
    except msgspec.DecodeError:
        return
    if max(fences(files), default=0) <= fence:
        delete_job(files, runs_again=True)


def note_stopped(files: NamedFiles, job_id: str, savepoint: str) -> None:
    """Note that the job was stopped with a savepoint; call this before deleting checkpoints."""
    note = _Stopped(FORMAT, savepoint, job_id=job_id)
    with suppress(HoldfastError):
        note.identity = identity_of(find_snapshot(savepoint)[1])
    _write(files, STOPPED, note)
    files.delete(FINISHED)


def forget_ending(files: NamedFiles) -> None:
    """Delete the notes of an earlier run."""
    files.delete(FINISHED)
    files.delete(STOPPED)


def check_not_ended(
    files: NamedFiles, job_id: str, start: CheckpointMetadata | None = None
) -> None:
    """Refuse to start a job that has finished, or was stopped with another savepoint.

    Args:
        files: The job's files, which hold no checkpoint.
        job_id: The job.
        start: The savepoint or checkpoint that the job starts from, if any.

    Raises:
        RestoreError: The job has just finished; or it was stopped with another savepoint.
    """
    when = finished_at(files, job_id)
    if when is not None:
        raise RestoreError(
            f"{files.root}: another driver of this job has finished it, {when}, while this one was "
            f"starting. To run it again, start it under another job id, or delete {FINISHED} there"
        )
    data = files.read(STOPPED)
    if data is None:
        return
    where = "a savepoint that it does not name in a way this Holdfast can read"
    with suppress(msgspec.DecodeError):
        note = msgspec.json.decode(data, type=_Stopped)
        if note.job_id not in ("", job_id):
            return
        if start is not None and note.identity in ("", identity_of(start)):
            return
        where = repr(note.savepoint)
    begins = "start from scratch" if start is None else "start from another one"
    raise RestoreError(
        f"this job was stopped with a savepoint, {where}, and would {begins} under the same job "
        "id, which would publish its output again. Start it with from_savepoint to continue from "
        f"there. To {begins}, start it under another job id, or delete {files.root}/{STOPPED}"
    )


def _write(files: NamedFiles, name: str, note: msgspec.Struct) -> None:
    files.delete(name)
    files.create_exclusive(name, msgspec.json.encode(note))
