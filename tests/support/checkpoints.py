"""Small checkpoints and file systems that fail, for tests."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from holdfast.checkpoint.files.metadata import (
    CheckpointMetadata,
    OperatorSnapshot,
    SourceSnapshot,
    StoreSnapshot,
)
from holdfast.storage.handles import inline

if TYPE_CHECKING:
    from holdfast.storage.handles import Handle


def checkpoint(
    checkpoint_id: int, files: dict[str, Handle] | None = None, *, fence: int = 1
) -> CheckpointMetadata:
    """A checkpoint of one operator with one subtask, whose store has `files`, or a tiny one."""
    if files is None:
        files = {"CURRENT": inline(b"MANIFEST-000001")}
    size = sum(handle.size for handle in files.values())
    store = StoreSnapshot(
        subtask=0,
        backend="rocksdb",
        version=f"{checkpoint_id}-a",
        key_groups=(0, 127),
        files=files,
        full_size=size,
        uploaded_size=size,
    )
    operator = OperatorSnapshot(
        uid="count",
        name="Count",
        parallelism=1,
        max_parallelism=128,
        states=[{"name": "count", "kind": "value", "schema": []}],
        key="str",
        subtasks=[store],
    )
    return CheckpointMetadata(
        version="0.1.0",
        checkpoint_id=checkpoint_id,
        job_id="job",
        job_name="Job",
        fence=fence,
        job_attempt="i1",
        epoch=checkpoint_id * 10,
        batch_id=checkpoint_id * 10 - 1,
        triggered_ms=1_000,
        completed_ms=2_000,
        mode="EXACTLY_ONCE",
        operators=[operator],
        sources=[SourceSnapshot(uid="events", position={"offset": 3})],
    )


class FullDisk(LocalFileSystem):  # type: ignore[misc]
    """A local file system on which every file runs out of space after 100 bytes."""

    protocol = "fulldisk"

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return LocalFileSystem._strip_protocol(path.removeprefix("fulldisk://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _FullFile(path, mode, fs=self)


class _FullFile(LocalFileOpener):  # type: ignore[misc]
    def write(self, data: bytes) -> int:
        if self.f.tell() + len(data) > 100:
            self.f.write(data[: 100 - self.f.tell()])
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.f.write(data))


class Unreachable(LocalFileSystem):  # type: ignore[misc]
    """A local file system that lists its directories and answers nothing else."""

    protocol = "unreachable"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("unreachable://"))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return LocalFileSystem().ls(path, detail=detail)

    def info(self, path: str, **options: Any) -> Any:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")


fsspec.register_implementation("unreachable", Unreachable, clobber=True)
fsspec.register_implementation("fulldisk", FullDisk, clobber=True)
