"""Notes of transactions that writers have opened.

A writer notes a transaction before its first element. If its process dies, the note allows the
transaction to be aborted. Once a complete checkpoint lists the transaction, it is published and
must never be aborted. So its note is deleted before that. If storage does not delete the note, its
name is remembered as long as it exists: by this driver, and for the next one in the metadata of
checkpoints.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.api.sinks import OPENED
from holdfast.checkpoint.files.completed import load_all
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import HoldfastError
from holdfast.job.threads import in_threads
from holdfast.runtime.operators.writer import opened_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.files import NamedFiles

logger = logging.getLogger("holdfast")

DELETIONS: Final = 8
"""Number of parallel deletions."""
TRIES: Final = 3
"""Number of failed deletions after which the rest is left for the next checkpoint."""


@dataclass(frozen=True)
class Note:
    """A note that a writer has opened a transaction."""

    name: str
    job_attempt: str
    epoch: int
    sink: str
    """The sink's uid as a file name."""

    @staticmethod
    def named(name: str) -> Note:
        """Parse the name of a note's file."""
        unique, _, sink = name.removeprefix(OPENED).partition("@")
        job_attempt, epoch, _, _ = unique.rsplit("-", 3)
        return Note(name, job_attempt, int(epoch), sink)

    @property
    def path(self) -> str:
        """Path in the job's directory."""
        return f"{STAGED}/{self.name}"


class OpenedNotes:
    """The notes of one job; thread-safe."""

    def __init__(self, files: NamedFiles, quiet: Collection[str] = ()) -> None:
        """Read and delete notes in `files`.

        Args:
            files: The job's files.
            quiet: Uids of sinks that write no notes.
        """
        self._files = files
        self._quiet = frozenset(quiet)
        self._lock = threading.Lock()
        self._listed: set[str] = set()
        """Notes whose transactions a complete checkpoint lists, and that may still exist."""

    @property
    def stale(self) -> list[str]:
        """Names of notes that still exist although a complete checkpoint lists them."""
        with self._lock:
            return sorted(self._listed)

    def listed(self, checkpoints: Iterable[CheckpointMetadata]) -> None:
        """Never abort the transactions that these complete checkpoints list."""
        names = {name for metadata in checkpoints for name in self._names_in(metadata)}
        with self._lock:
            self._listed |= names

    def drop_listed(self) -> None:
        """Delete the notes of listed transactions; failed deletions are tried again."""
        expected = self.stale
        if not expected:
            return
        try:
            there = self._files.entries(STAGED)
        except HoldfastError as error:
            _warn(len(expected), error)
            return
        left = [name for name in expected if name in there]
        failures: list[HoldfastError] = []
        deleted = self._delete(left, failures)
        if failures:
            _warn(len(left) - len(deleted), failures[0])
        with self._lock:
            self._listed -= (set(expected) - set(left)) | deleted

    def _delete(self, names: list[str], failures: list[HoldfastError]) -> set[str]:
        """Delete notes until storage fails too often; returns those that were deleted."""

        def delete(name: str) -> str | None:
            if len(failures) >= TRIES:
                return None
            try:
                self._files.delete(f"{STAGED}/{name}")
            except HoldfastError as error:
                failures.append(error)
                return None
            return name

        # In parallel: output waits for it, and object stores are slow.
        deleted = in_threads(delete, names, DELETIONS, "holdfast-notes")
        return {name for name in deleted if name is not None}

    def read(self, note: Note) -> bytes | None:
        """The encoded transaction; None if the note is gone."""
        return self._files.read(note.path)

    def drop(self, notes: Iterable[Note]) -> None:
        """Delete notes of transactions that were aborted, or never can be."""
        for note in notes:
            self._files.delete(note.path)

    def orphans(self, job_attempt: str, epoch: int) -> list[Note]:
        """Notes of transactions that no process will commit and no checkpoint lists.

        These are the notes of other job attempts, and those of this one up to `epoch`: only
        replaced task attempts have left them.

        Args:
            job_attempt: The job attempt that runs now.
            epoch: The last epoch that a complete checkpoint contains.

        Raises:
            CorruptCheckpointError: A complete checkpoint cannot be read, so its list is unknown.
            CheckpointStorageError: Storage failed.
        """
        found = [
            Note.named(name) for name in self._files.entries(STAGED) if name.startswith(OPENED)
        ]
        found = [note for note in found if note.job_attempt != job_attempt or note.epoch <= epoch]
        with self._lock:
            found = [note for note in found if note.name not in self._listed]
        if not found:
            return []
        # All checkpoints in storage count, even aborted ones: a driver that restores one
        # publishes its list.
        listed = {name for metadata in load_all(self._files) for name in self._names_in(metadata)}
        return [note for note in found if note.name not in listed]

    def _names_in(self, metadata: CheckpointMetadata) -> Iterable[str]:
        for one in metadata.committables:
            if one.uid not in self._quiet:
                unique = f"{metadata.job_attempt}-{one.epoch}-{one.subtask}-{one.attempt}"
                yield opened_name(one.uid, unique)
        yield from metadata.stale_notes or ()


def _warn(number: int, error: HoldfastError) -> None:
    logger.warning(
        "%d notes about output that writers opened were not deleted; trying again later: %s",
        number,
        error,
    )
