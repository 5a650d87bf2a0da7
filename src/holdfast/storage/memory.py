"""Checkpoint storage in the driver's memory, for small state."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from holdfast.errors import CorruptCheckpointError
from holdfast.storage.files import (
    InlineLimits,
    NamesElsewhere,
    check_cancelled,
    checked_name,
    inline_content,
    never,
    storage_error,
)
from holdfast.storage.handles import Handle, InlineHandle, inline
from holdfast.storage.local import write_local

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.storage.files import Cancelled, NamedFiles

# A job that restarts in this driver finds its checkpoints here.
_jobs: Final[dict[str, dict[str, bytes]]] = {}
_lock: Final = threading.Lock()


class MemoryNames:
    """Named files in the memory of this process, shared by all objects of one job.

    Args:
        job_id: The job.
        total: Most bytes of all files of the job together.
    """

    def __init__(self, job_id: str, total: int) -> None:
        self._job_id = job_id
        self._total = total

    def __reduce__(self) -> tuple[type[MemoryNames], tuple[str, int]]:
        return MemoryNames, (self._job_id, self._total)

    @property
    def root(self) -> str:
        """The job's place in the driver, for people to read."""
        return f"driver memory of job {self._job_id}"

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if it does not exist."""
        data = self._files().get(checked_name(name))
        return data if data is None else data[:limit]

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists."""
        with _lock:
            files = _jobs.setdefault(self._job_id, {})
            if checked_name(name) in files:
                return False
            held = sum(map(len, files.values()))
            limits = InlineLimits(total=self._total)
            limits.check_total(held + len(data), f"{self.root}: {name} beside {len(files)} files")
            files[name] = data
            return True

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return checked_name(name) in self._files()

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """Entries of a directory: sizes of files, None for subdirectories."""
        prefix = f"{checked_name(directory)}/" if directory else ""
        found: dict[str, int | None] = {}
        for name, data in self._files().items():
            if name.startswith(prefix):
                child, deeper, _ = name[len(prefix) :].partition("/")
                found[child] = None if deeper else len(data)
        return found

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with _lock:
            _jobs.get(self._job_id, {}).pop(checked_name(name), None)

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""
        for name in names:
            self.delete(name)

    def delete_if_empty(self, directory: str) -> None:
        """Does nothing: a directory exists only while it has files."""

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with its content, if it exists."""
        prefix = f"{checked_name(directory)}/"
        with _lock:
            files = _jobs.get(self._job_id, {})
            for name in [name for name in files if name.startswith(prefix)]:
                del files[name]

    def delete_empty_root(self) -> None:
        """Forget the job, if it has no files left."""
        with _lock:
            if not _jobs.get(self._job_id):
                _jobs.pop(self._job_id, None)

    def _files(self) -> dict[str, bytes]:
        with _lock:
            return dict(_jobs.get(self._job_id, {}))


class InlineFiles(NamesElsewhere):
    """Returns state as inline handles; the metadata that contains them is in `names`.

    Only the metadata and the fences are written: state goes back to the caller as a
    handle that contains it, within `limits`.
    """

    def __init__(self, names: NamedFiles, limits: InlineLimits) -> None:
        super().__init__(names)
        self._limits = limits

    def __reduce__(self) -> tuple[type[InlineFiles], tuple[NamedFiles, InlineLimits]]:
        return InlineFiles, (self._names, self._limits)

    @property
    def limits(self) -> InlineLimits:
        """Bounds on state that is kept in the driver."""
        return self._limits

    def write_file(self, local: Path, name: str, cancelled: Cancelled = never) -> InlineHandle:
        """Handle that holds the content of a local file."""
        check_cancelled(cancelled, str(local))
        try:
            self._limits.check_state(local.stat().st_size, str(local))
            return inline(local.read_bytes())
        except OSError as error:
            raise storage_error("reading the local snapshot", str(local), error) from error

    def write_bytes(self, name: str, data: bytes) -> InlineHandle:
        """Handle that holds `data`."""
        self._limits.check_state(len(data), name)
        return inline(data)

    def read_bytes(self, handle: Handle) -> bytes:
        """Content of `handle`."""
        return _content(handle)

    def download(self, handle: Handle, local: Path) -> None:
        """Write the content of `handle` to a local file."""
        write_local(local, [_content(handle)])

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists."""
        self._limits.check_total(len(data), f"{self.root}/{name}")
        return super().create_exclusive(name, data)


def _content(handle: Handle) -> bytes:
    if isinstance(handle, InlineHandle):
        return inline_content(handle)
    raise CorruptCheckpointError(
        f"{handle.path}: the checkpoint keeps this in a file, and the job keeps checkpoints in the "
        "driver's memory; restore it with the checkpoint storage that wrote it"
    )
