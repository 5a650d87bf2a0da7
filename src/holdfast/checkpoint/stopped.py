"""The note that a job leaves in checkpoint storage when it is ended with a savepoint.

Its checkpoints go. A start under the same job id would then begin anew and give out all output
a second time, for instance where the driver died before anyone learned of the savepoint:

    stopped.json    {"format": 1, "savepoint": "/savepoints/savepoint-orders-0123456789ab"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import RestoreError

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import NamedFiles

STOPPED: Final = "stopped.json"
FORMAT: Final = 1


class _Note(msgspec.Struct):
    format: int
    savepoint: str


def note_stopped(files: NamedFiles, savepoint: str) -> None:
    """Note that the job has ended with a savepoint; its checkpoints are still there."""
    files.delete(STOPPED)
    files.create_exclusive(STOPPED, msgspec.json.encode(_Note(FORMAT, savepoint)))


def check_not_stopped(files: NamedFiles) -> None:
    """Refuse to begin anew where a savepoint says how the job goes on.

    Raises:
        RestoreError: The job has ended with a savepoint.
    """
    data = files.read(STOPPED)
    if data is None:
        return
    try:
        where = repr(msgspec.json.decode(data, type=_Note).savepoint)
    except msgspec.DecodeError:
        where = "a savepoint that it does not name in a way this Holdfast can read"
    raise RestoreError(
        f"this job was stopped with a savepoint, {where}, and would begin anew under the same job "
        "id. Start it with from_savepoint to go on from there. To begin anew, start it under "
        f"another job id, or delete {files.root}/{STOPPED}"
    )
