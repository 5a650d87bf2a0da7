"""How a job ended for good: the notes that it leaves in checkpoint storage.

Its checkpoints go when it ends. Without a note, a start under the same job id would begin anew
and publish all output a second time: a supervisor, for instance, starts a driver again that
died after it had deleted the checkpoints and before it could report success.

    finished.json   {"format": 1, "job_name": "orders", "finished_ms": 1767225600000}
    stopped.json    {"format": 1, "savepoint": "/savepoints/savepoint-orders-0123456789ab",
                     "identity": "orders-12-1767225600000"}
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.checkpoint.metadata import identity_of
from holdfast.checkpoint.pointer import find_snapshot
from holdfast.errors import HoldfastError, RestoreError

if TYPE_CHECKING:
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import NamedFiles

FINISHED: Final = "finished.json"
STOPPED: Final = "stopped.json"
FORMAT: Final = 1


class _Finished(msgspec.Struct):
    format: int
    job_name: str
    finished_ms: int


class _Stopped(msgspec.Struct, omit_defaults=True):
    format: int
    savepoint: str
    identity: str = ""
    """See `identity_of`: the savepoint is recognized after it was moved."""


def note_finished(files: NamedFiles, job_name: str, now_ms: int) -> None:
    """Note that the job has processed all its input; its checkpoints are still there."""
    _write(files, FINISHED, _Finished(FORMAT, job_name, now_ms))


def finished_at(files: NamedFiles) -> str | None:
    """When the job finished, for people to read; None if it did not."""
    data = files.read(FINISHED)
    if data is None:
        return None
    try:
        moment = msgspec.json.decode(data, type=_Finished).finished_ms / 1000
        return f"at {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (msgspec.DecodeError, ValueError, OverflowError, OSError):
        return "at a time that this Holdfast cannot read"


def note_stopped(files: NamedFiles, savepoint: str) -> None:
    """Note that the job has ended with a savepoint; its checkpoints are still there."""
    note = _Stopped(FORMAT, savepoint)
    with suppress(HoldfastError):
        note.identity = identity_of(find_snapshot(savepoint)[1])
    _write(files, STOPPED, note)


def forget_ending(files: NamedFiles) -> None:
    """Remove the notes of an earlier run: this one has ended otherwise."""
    files.delete(FINISHED)
    files.delete(STOPPED)


def check_not_stopped(files: NamedFiles, start: CheckpointMetadata | None = None) -> None:
    """Refuse to begin anywhere but at the savepoint that the job was stopped with.

    Args:
        files: The job's files, which hold no checkpoint.
        start: The savepoint or checkpoint that the job is to start from, if one is given.

    Raises:
        RestoreError: The job was stopped with a savepoint, and this is not it.
    """
    data = files.read(STOPPED)
    if data is None:
        return
    where = "a savepoint that it does not name in a way this Holdfast can read"
    with suppress(msgspec.DecodeError):
        note = msgspec.json.decode(data, type=_Stopped)
        if start is not None and note.identity in ("", identity_of(start)):
            return
        where = repr(note.savepoint)
    begins = "begin anew" if start is None else "begin from another one"
    raise RestoreError(
        f"this job was stopped with a savepoint, {where}, and would {begins} under the same job "
        "id, so that its output comes again. Start it with from_savepoint to go on from there. To "
        f"{begins}, start it under another job id, or delete {files.root}/{STOPPED}"
    )


def _write(files: NamedFiles, name: str, note: msgspec.Struct) -> None:
    files.delete(name)
    files.create_exclusive(name, msgspec.json.encode(note))
