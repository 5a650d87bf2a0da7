"""Which files of a RocksDB snapshot hold the state of some key groups, by its journal alone.

A snapshot is made of a journal and of table files, each with the keys of one range. A new
subtask needs those whose range touches its key groups, and none of the others: they can
stay where they are, as long as nobody reads there.
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
"""Smallest key of an entry; what comes before describes the store."""


def open_read_only(
    directory: Path, backend: EmbeddedRocksDBStateBackend, *, partial: bool = False
) -> rocksdict.Rdict:
    """Open the database of a snapshot for reading.

    Args:
        directory: The snapshot.
        backend: How it is tuned.
        partial: Whether table files may be missing; to read in the range of one is an error.
    """
    options = database_options(backend)
    options.set_paranoid_checks(not partial)
    return rocksdict.Rdict(
        str(directory), options, {"default": options}, rocksdict.AccessType.read_only(False)
    )


def files_with(directory: Path, key_groups: range) -> list[str]:
    """Names of the table files that are needed to read the entries of `key_groups`.

    What describes the store and its states is among them.

    Args:
        directory: The snapshot; its journal is enough.
        key_groups: The key groups.

    Raises:
        StateError: The journal cannot be read.
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
            # Files of level 0 overlap, and all are opened for any scan. In the others a search
            # for a key that no file holds opens the file behind the gap.
            if level == 0 or _touches(end, file["end_key"], key_groups):
                yield file
            end = file["end_key"]


def _touches(start: bytes, end: bytes, key_groups: range) -> bool:
    """Whether entries of the key groups, of whatever state, may lie from `start` to `end`."""
    if start < _ENTRIES:
        return True
    first, last = int.from_bytes(start[:2], "big"), int.from_bytes(end[:2], "big")
    after = int.from_bytes(start[2:4], "big") < key_groups.stop
    before = key_groups.start <= int.from_bytes(end[2:4], "big")
    if first == last:
        return after and before
    return after or before or last - first > 1
