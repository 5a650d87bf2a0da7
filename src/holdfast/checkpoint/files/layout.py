"""Names of the files that a job keeps in checkpoint storage.

    <job directory>/chk-<id>/_metadata       written last: makes the checkpoint complete
    <job directory>/shared/<id>-<unique>     files that checkpoints share; `id` is the first one
    <job directory>/staged/<attempt>-...     output to be published, input to be processed
    <job directory>/taskowned/               rows of static DataFrames
    <job directory>/completed/<fence>-<id>   a record of every completed checkpoint
    <job directory>/completed/<...>.claimed  another job has started from it, and deleted it
    <job directory>/fence/<number>           one per driver that ever wrote here
    <job directory>/used/<fence>-<id>        the highest ones of a job that has ended

Names are relative to the job's directory, with `/` between their parts.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from holdfast.api.sinks import OPENED

METADATA: Final = "_metadata"
SHARED: Final = "shared"
TASK_OWNED: Final = "taskowned"
STAGED: Final = "staged"
FENCES: Final = "fence"
COMPLETED: Final = "completed"
USED: Final = "used"

_OWN_FILES: Final = {
    SHARED: re.compile(r"\d+-[0-9a-f]+"),
    STAGED: re.compile(rf".+~[0-9a-f]{{12}}|{OPENED}.+"),
    FENCES: re.compile(r"\d+(\.from-\d+-\d+)?"),
    COMPLETED: re.compile(r"\d+-\d+(\.claimed)?"),
    USED: re.compile(r"\d+-\d+"),
}

_SHARED_FILE: Final = re.compile(r"shared/(\d+)-[^/]+")


def checkpoint_directory(checkpoint_id: int) -> str:
    """Directory of one checkpoint.

    Example:
        >>> checkpoint_directory(7)
        'chk-7'
    """
    return f"chk-{checkpoint_id}"


def metadata_name(checkpoint_id: int) -> str:
    """Name of the file that makes a checkpoint complete."""
    return f"{checkpoint_directory(checkpoint_id)}/{METADATA}"


def shared_name(checkpoint_id: int) -> str:
    """A new, unique name for a file that later checkpoints may use too."""
    return f"{SHARED}/{checkpoint_id}-{uuid.uuid4().hex}"


def is_own(directory: str, name: str) -> bool:
    """Whether a file in one of the job's directories has a name that Holdfast gives.

    Without a subdirectory for the job, others may use a directory of that name too.
    """
    return _OWN_FILES[directory].fullmatch(name) is not None


def first_user(path: str) -> int | None:
    """The checkpoint that a shared file was written for; None for other files.

    Example:
        >>> first_user("shared/7-0badcafe")
        7
    """
    match = _SHARED_FILE.fullmatch(path)
    return int(match[1]) if match else None
