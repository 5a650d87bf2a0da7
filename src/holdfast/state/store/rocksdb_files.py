"""Selects the files of a RocksDB snapshot that a subtask needs.

A snapshot has a manifest and table files, each with the keys of one range. A new subtask
needs only the table files whose range overlaps its key groups; the others need not be
downloaded, as long as nothing reads in their range.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import rocksdict

from holdfast.config.backends import EmbeddedRocksDBStateBackend
from holdfast.errors import StateError
from holdfast.state.store.rocksdb_options import database_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_ENTRIES: Final = b"\x00\x01"
"""Smallest key of a state entry; smaller keys describe the store."""


def open_read_only(
    directory: Path, backend: EmbeddedRocksDBStateBackend, *, partial: bool = False
) -> rocksdict.Rdict:
    """Open the database of a snapshot for reading.

    Args:
        directory: The snapshot.
        backend: Options of the database.
        partial: Whether table files may be missing; reading in their range is an error.
    """
    options = database_options(backend)
    options.set_paranoid_checks(not partial)
    return rocksdict.Rdict(
        str(directory), options, {"default": options}, rocksdict.AccessType.read_only(False)
    )


def files_with(directory: Path, key_groups: range) -> list[str]:
    """Names of the table files that are needed to read the entries of `key_groups`.

    They include those that describe the store and its states.

    Args:
        directory: The snapshot; its manifest is enough.
        key_groups: The key groups.

    Raises:
        StateError: The manifest cannot be read.
    """
    try:
        database = open_read_only(directory, EmbeddedRocksDBStateBackend(), partial=True)
        files = database.live_files()
        database.close()
    except Exception as error:
        raise StateError(
            f"{directory}: the journal of the snapshot cannot be read ({error}); restore from "
            "another checkpoint if it is damaged"
        ) from error
    return sorted(file["name"].lstrip("/") for file in _needed(files, key_groups))


def _needed(files: Iterable[dict[str, Any]], key_groups: range) -> Iterator[dict[str, Any]]:
    ordered = sorted(files, key=lambda file: (file["level"], file["start_key"]))
    for level, some in groupby(ordered, key=lambda file: file["level"]):
        end = b""
        for file in some:
            # Files of level 0 overlap, and every scan opens all of them. On other levels, a
            # search for a key in a gap opens the file after the gap.
            if level == 0 or _touches(end, file["end_key"], key_groups):
                yield file
            end = file["end_key"]


def _touches(start: bytes, end: bytes, key_groups: range) -> bool:
    """Whether entries of the key groups, of any state, may lie between `start` and `end`."""
    if start < _ENTRIES:
        return True
    first, last = int.from_bytes(start[:2], "big"), int.from_bytes(end[:2], "big")
    after = int.from_bytes(start[2:4], "big") < key_groups.stop
    before = key_groups.start <= int.from_bytes(end[2:4], "big")
    if first == last:
        return after and before
    return after or before or last - first > 1
