"""Reads the operator state in a checkpoint or savepoint."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from holdfast.checkpoint.transfer import download_snapshot
from holdfast.state.operator.redistribution import OperatorStateSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.checkpoint.files.metadata import OperatorSnapshot
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


def read_operator_states(
    snapshot: OperatorSnapshot, files: JobCheckpointFiles
) -> list[OperatorStateSnapshot | None]:
    """Read the operator state of every subtask, in order; None for a subtask without any.

    Raises:
        CorruptCheckpointError: A file is missing, or has changed.
        StateError: A file cannot be read.
    """
    found: list[OperatorStateSnapshot | None] = [None] * snapshot.parallelism
    for store in snapshot.subtasks:
        if store.operator_state is not None:
            data = files.read_bytes(store.operator_state)
            found[store.subtask] = OperatorStateSnapshot.decode(data)
        elif store.operator_tables:
            found[store.subtask] = _from_tables(store.operator_tables, files)
    return found


def _from_tables(tables: Mapping[str, Handle], files: JobCheckpointFiles) -> OperatorStateSnapshot:
    from holdfast.state.tables.operator import read_operator_tables

    with TemporaryDirectory(prefix="holdfast-restore-") as directory:
        download_snapshot(tables, files, Path(directory))
        return read_operator_tables(Path(directory))
