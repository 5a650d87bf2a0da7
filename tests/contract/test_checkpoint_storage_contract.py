"""All kinds of checkpoint storage under the one contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem

from holdfast.checkpoint.files.job_files import open_files
from holdfast.config.storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from tests.contract.checkpoint_files_contract import AtomicCreation, CheckpointFilesContract

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.files import JobCheckpointFiles


class TestLocalFiles(CheckpointFilesContract, AtomicCreation):
    def open(self, directory: Path) -> JobCheckpointFiles:
        storage = FileSystemCheckpointStorage(str(directory.parent))
        return open_files(storage, directory.name)

    def test_a_deleted_job_leaves_no_directory(self, tmp_path):
        files = self.open(tmp_path / "job")
        assert files.create_exclusive("fence/1", b"")
        files.delete_tree("fence")
        files.delete_empty_root()
        assert list(tmp_path.iterdir()) == []


class TestLocalFilesByUrl(CheckpointFilesContract, AtomicCreation):
    def open(self, directory: Path) -> JobCheckpointFiles:
        storage = FileSystemCheckpointStorage(f"file://{directory}")
        return open_files(storage, "ignored", create_subdir=False)


class TestMemoryUrl(CheckpointFilesContract):
    def open(self, directory: Path) -> JobCheckpointFiles:
        storage = FileSystemCheckpointStorage(f"memory://checkpoints{directory.parent}")
        return open_files(storage, directory.name)


class ArrowLocal(ArrowFSWrapper):  # type: ignore[misc]
    """A local disk by way of Arrow, as HDFS is reached: it deletes one name at a time."""

    protocol = "arrowlocal"

    def __init__(self, **options: object) -> None:
        super().__init__(fs=LocalFileSystem(), **options)


class TestArrowUrl(CheckpointFilesContract):
    def open(self, directory: Path) -> JobCheckpointFiles:
        fsspec.register_implementation("arrowlocal", ArrowLocal, clobber=True)
        storage = FileSystemCheckpointStorage(f"arrowlocal://{directory.parent}")
        return open_files(storage, directory.name)


class TestDriverMemory(CheckpointFilesContract, AtomicCreation):
    def open(self, directory: Path) -> JobCheckpointFiles:
        job_id = f"{directory.parent.name}-{directory.name}"
        return open_files(JobManagerCheckpointStorage(), job_id)


class TestDriverMemoryWithMetadataInFiles(CheckpointFilesContract, AtomicCreation):
    def open(self, directory: Path) -> JobCheckpointFiles:
        storage = JobManagerCheckpointStorage(str(directory.parent))
        return open_files(storage, directory.name)
