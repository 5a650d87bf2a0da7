"""Uploads of checkpoints that are given up, from whatever thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.checkpoint.subtask_upload import Upload
from holdfast.checkpoint.uploads import Uploads
from holdfast.errors import CheckpointError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.staged import LocalCalls

if TYPE_CHECKING:
    from pathlib import Path


class _Pending:
    id = 1

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def uploads(self) -> list[Upload]:
        return [self._upload]

    def tasks_without_state(self) -> list[Any]:
        return []

    def kept(self) -> list[Any]:
        return []


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    plan: Any = SimpleNamespace(stages=[SimpleNamespace(index=1)], stage_parallelism=[1])
    calls: Any = LocalCalls()
    return Uploads(plan, calls, FileSystemFiles(str(tmp_path / "checkpoints")))


def test_what_was_given_up_before_its_upload_is_not_uploaded(
    uploads: Uploads, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    (snapshot / "store").mkdir(parents=True)
    (snapshot / "store" / "data").write_bytes(b"state")
    upload = Upload(1, 1, "count", 0, str(snapshot), False, 0, files={"data": 5})
    uploads.begin(1)
    uploads.cancel(1)
    pending: Any = _Pending(upload)
    with pytest.raises(CheckpointError, match="cancelled"):
        list(uploads.run(pending))
    assert snapshot.exists(), "the next epoch removes it"
    assert not (tmp_path / "checkpoints").exists()


class _Groups(LocalCalls):
    """Notes the names under which calls run and are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.run: list[str] = []
        self.cancelled: list[str] = []

    def map(self, function: Any, items: Any, group: str) -> Any:
        self.run.append(group)
        return super().map(function, items, group)

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)


def test_no_job_cancels_what_another_uploads(tmp_path: Path) -> None:
    """Jobs of one session count their checkpoints alike."""
    calls: Any = _Groups()
    plan: Any = SimpleNamespace(stages=[], stage_parallelism=[])
    files = FileSystemFiles(str(tmp_path))
    one, other = Uploads(plan, calls, files), Uploads(plan, calls, files)
    pending: Any = SimpleNamespace(
        id=7, tasks_without_state=list, kept=list, uploads=list, arrived=None
    )
    list(one.run(pending))
    other.cancel(7)
    assert not set(calls.run) & set(calls.cancelled)
    one.cancel(7)
    assert set(calls.run) < set(calls.cancelled)


def test_nothing_is_kept_of_checkpoints_that_are_given_up(uploads: Uploads) -> None:
    for checkpoint_id in range(100):
        uploads.begin(checkpoint_id)
        uploads.cancel(checkpoint_id)
    assert not uploads._cancelled
