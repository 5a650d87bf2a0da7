"""Header record of a local store, checked when the store is opened.

    offset  bytes
    0       8       magic, b"holdfast"
    8       4       number of the format of the whole store, big-endian
    12      2       length b of the boot id, big-endian
    14      b       boot id of the machine when the store was written, UTF-8
    14+b    rest    version, UTF-8

Every commit writes the record atomically with the entries. A store without a record is new:
it has never been committed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.errors import CorruptStoreError, StateError, StoreError, StoreVersionError
from holdfast.state.store.process import boot_id

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
"""Version of the store format."""

_HEAD: Final = struct.Struct(">8sIH")
_MAGIC: Final = b"holdfast"
RECOVERY: Final = (
    "With checkpoints, the job continues from the newest one, in a new directory; nothing has to "
    "be removed"
)
"""What happens after a store cannot be used, for messages."""
_RESTORE: Final = "the state has to be restored from the last checkpoint into a new directory"


def encode_record(version: str) -> bytes:
    """Record of a store with this version."""
    boot = boot_id().encode()
    return _HEAD.pack(_MAGIC, FORMAT, len(boot)) + boot + version.encode()


def checked_version(record: bytes | None, expected: str | None, directory: Path) -> str | None:
    """Version in `record`, after checking that the store may be continued.

    Raises:
        StateError: The record is not a Holdfast record, or has a later format.
        StoreVersionError: The store has another version than `expected`, or was written
            before the machine restarted.
    """
    if record is None:
        if expected is not None:
            raise missing_store(expected, directory)
        return None
    version, boot = decode_record(record, directory)
    if expected is None:
        raise StoreVersionError(
            f"{directory}: expected no store here, but there is one at version {version!r}, left "
            "by an earlier attempt or another job; it was not changed: start in a new directory"
        )
    if version != expected:
        raise StoreVersionError(
            f"{directory}: the store is at version {version!r}, but the epoch continues from "
            f"version {expected!r}: another attempt wrote it last, or it missed epochs; {_RESTORE}"
        )
    if boot != boot_id():
        raise StoreVersionError(
            f"{directory}: the store is at version {version!r} as expected, but was written "
            f"before this machine restarted and may be damaged; {_RESTORE}"
        )
    return version


def corrupt_store(place: Path, problem: object) -> CorruptStoreError:
    """The error for a store whose files are damaged."""
    return CorruptStoreError(
        f"{place}: the local copy of the state on this machine is damaged ({problem}). {RECOVERY}"
    )


def unusable_store(place: Path, problem: object) -> StoreError:
    """The error for a store that fails for another reason."""
    return StoreError(f"{place}: the local store cannot be used ({problem}). {RECOVERY}")


def missing_store(expected: str, directory: Path) -> StoreVersionError:
    """The error for a missing store."""
    return StoreVersionError(
        f"{directory}: expected a store at version {expected!r}, but there is none; the "
        f"subtask moved to this executor, or its directory was removed; {_RESTORE}"
    )


def decode_record(record: bytes, directory: Path) -> tuple[str, str]:
    """Version and boot id in `record`.

    Raises:
        CorruptStoreError: It is not a Holdfast record.
        StateError: It has a later format.
    """
    if len(record) < _HEAD.size or not record.startswith(_MAGIC):
        raise corrupt_store(directory, f"its record starts with {record[:12]!r}")
    _, number, boot_length = _HEAD.unpack_from(record)
    if number != FORMAT:
        raise StateError(
            f"{directory}: the store has format {number}, and this release reads format {FORMAT} "
            "only; run the release that wrote it, or restore from a checkpoint or savepoint"
        )
    end = _HEAD.size + boot_length
    try:
        return record[end:].decode(), record[_HEAD.size : end].decode()
    except UnicodeDecodeError as error:
        raise corrupt_store(directory, error) from error
