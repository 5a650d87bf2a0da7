"""Snapshots of harnesses, and restoring stores from them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from holdfast.config.parallelism import check_parallelism
from holdfast.errors import ConfigurationError
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.redistribution import OperatorStateSnapshot, redistribute
from holdfast.state.restore import restore_store
from holdfast.state.store.snapshot import snapshot_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config.backends import StateBackend
    from holdfast.runtime.report import Prepared, SnapshotReport


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """The snapshot of one subtask; opaque, and picklable."""

    checkpoint_id: int
    subtask: int
    parallelism: int
    max_parallelism: int
    backend: str
    store: dict[str, bytes] | None = None
    """Files of the store, by name; None if there is no state."""
    operator_state: bytes | None = None
    epoch: int = 0
    """The epoch that ended in the checkpoint."""
    prepared: tuple[Prepared, ...] = ()
    """Committables of a sink that were not published yet."""


def read_snapshot(report: SnapshotReport) -> tuple[dict[str, bytes], bytes | None]:
    """Read the files and the operator state of a local snapshot, and delete it."""
    directory = Path(report.directory)
    store = directory / STORE
    files = {str(name): (store / name).read_bytes() for name in snapshot_files(store)}
    path = directory / OPERATOR_STATE
    operator_state = path.read_bytes() if path.exists() else None
    shutil.rmtree(directory)
    return files, operator_state


class RestorePoint:
    """The snapshots of all subtasks, for restoring at any parallelism."""

    def __init__(self, snapshots: Sequence[HarnessSnapshot]) -> None:
        """Check that there is one snapshot for every subtask.

        Raises:
            ConfigurationError: They are not.
        """
        self._snapshots = sorted(snapshots, key=lambda snapshot: snapshot.subtask)
        if not self._snapshots:
            raise ConfigurationError("the harness: there is no snapshot to restore from")
        for what in ("parallelism", "max_parallelism", "backend"):
            found = {getattr(snapshot, what) for snapshot in snapshots}
            if len(found) > 1:
                raise ConfigurationError(
                    f"the harness: the snapshots differ in their {what} "
                    f"({', '.join(map(str, sorted(found)))}); give those of one operator"
                )
        first = self._snapshots[0]
        subtasks = [snapshot.subtask for snapshot in self._snapshots]
        if subtasks != list(range(first.parallelism)):
            raise ConfigurationError(
                f"the harness: the snapshots are of subtasks {subtasks} of {first.parallelism}; "
                "a checkpoint has one of every subtask, so give each once"
            )
        self.max_parallelism = first.max_parallelism
        self.checkpoint_id = max(snapshot.checkpoint_id for snapshot in snapshots)
        self.epoch = max(snapshot.epoch for snapshot in snapshots)

    def restore(
        self, backend: StateBackend, directory: Path, subtask: int, parallelism: int, version: str
    ) -> bool:
        """Make the store of one new subtask, as a recovery does; False if there is no state.

        Raises:
            ConfigurationError: The snapshots do not allow that many subtasks.
        """
        first = self._snapshots[0]
        check_parallelism(parallelism, self.max_parallelism, "the harness")
        groups = key_groups(subtask, parallelism, self.max_parallelism)
        whole = parallelism == first.parallelism
        chosen = [
            snapshot
            for snapshot in self._snapshots
            if snapshot.store is not None and (snapshot.subtask == subtask or not whole)
        ]
        share = self._share(subtask, parallelism)
        if not chosen and share is None:
            return False
        with TemporaryDirectory(prefix="holdfast-harness-") as scratch:
            sources = [_written(snapshot, Path(scratch)) for snapshot in chosen]
            restore_store(
                backend,
                sources,
                directory,
                version=version,
                key_groups=groups,
                whole=whole and bool(sources) and first.backend == backend.name,
                operator_state=share,
                kind=first.backend,
            )
        return True

    def prepared(self, subtask: int, parallelism: int) -> tuple[Prepared, ...]:
        """The share of one new subtask in the committables that wait."""
        return tuple(
            one
            for snapshot in self._snapshots
            if snapshot.subtask % parallelism == subtask
            for one in snapshot.prepared
        )

    def _share(self, subtask: int, parallelism: int) -> OperatorStateSnapshot | None:
        old = [
            None if data is None else OperatorStateSnapshot.decode(data)
            for data in (snapshot.operator_state for snapshot in self._snapshots)
        ]
        if all(state is None for state in old):
            return None
        return redistribute(old, parallelism, self.max_parallelism)[subtask]


def _written(snapshot: HarnessSnapshot, scratch: Path) -> Path:
    assert snapshot.store is not None
    directory = scratch / str(snapshot.subtask)
    directory.mkdir()
    for name, data in snapshot.store.items():
        (directory / name).write_bytes(data)
    return directory
