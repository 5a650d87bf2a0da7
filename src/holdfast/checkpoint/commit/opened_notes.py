"""Notes of what writers have opened, such as transactions.

A writer notes what it opens before its first element. If its process dies, the note lets
somebody abort it. Once a complete checkpoint lists what a note speaks of, that is the
checkpoint's to publish, and nobody may abort it ever after. So its note goes before it is
published. If storage does not delete the note, the name is kept in mind for as long as
the note is there: by this driver, and in the metadata of its checkpoints for the next.
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
"""Deletions at a time."""
TRIES: Final = 3
"""Deletions that may fail; the rest is left for the next checkpoint then."""


@dataclass(frozen=True)
class Note:
    """Says that a writer has opened something."""

    name: str
    job_attempt: str
    epoch: int
    sink: str
    """File name of its uid."""

    @staticmethod
    def named(name: str) -> Note:
        """The note in a file of that name."""
        unique, _, sink = name.removeprefix(OPENED).partition("@")
        job_attempt, epoch, _, _ = unique.rsplit("-", 3)
        return Note(name, job_attempt, int(epoch), sink)

    @property
    def path(self) -> str:
        """Where it is, in the job's directory."""
        return f"{STAGED}/{self.name}"


class OpenedNotes:
    """The notes of one job; serves any thread."""

    def __init__(self, files: NamedFiles, quiet: Collection[str] = ()) -> None:
        """Notes among `files`.

        Args:
            files: The job's files.
            quiet: Uids of sinks that note nothing.
        """
        self._files = files
        self._quiet = frozenset(quiet)
        self._lock = threading.Lock()
        self._listed: set[str] = set()
        """Names that a complete checkpoint has listed, and whose notes may still be there."""

    @property
    def stale(self) -> list[str]:
        """Names of notes that are left though a complete checkpoint has listed them."""
        with self._lock:
            return sorted(self._listed)

    def listed(self, checkpoints: Iterable[CheckpointMetadata]) -> None:
        """These checkpoints are complete: nothing that they list is ever aborted."""
        names = {name for metadata in checkpoints for name in self._names_in(metadata)}
        with self._lock:
            self._listed |= names

    def drop_listed(self) -> None:
        """Delete the notes of what checkpoints have listed; those that stay are kept in mind."""
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
        """Delete notes, unless storage fails too often; those that were."""

        def delete(name: str) -> str | None:
            if len(failures) >= TRIES:
                return None
            try:
                self._files.delete(f"{STAGED}/{name}")
            except HoldfastError as error:
                failures.append(error)
                return None
            return name

        # Output waits for it, and a request to an object store takes a while.
        deleted = in_threads(delete, names, DELETIONS, "holdfast-notes")
        return {name for name in deleted if name is not None}

    def read(self, note: Note) -> bytes | None:
        """What was opened, encoded; None if the note is gone."""
        return self._files.read(note.path)

    def drop(self, notes: Iterable[Note]) -> None:
        """Delete notes of what was aborted, or never can be."""
        for note in notes:
            self._files.delete(note.path)

    def orphans(self, job_attempt: str, epoch: int) -> list[Note]:
        """Notes of what no process will prepare any more, and no checkpoint has listed.

        That of other job attempts; and of this one up to an epoch whose checkpoint is
        complete, for there only attempts are left whose place another one has taken.

        Args:
            job_attempt: The one that runs now.
            epoch: The last one that a complete checkpoint contains.

        Raises:
            CorruptCheckpointError: A complete checkpoint cannot be read, so what it lists is
                not known.
            CheckpointStorageError: Storage failed.
        """
        found = [Note.named(name) for name in self._files.entries(STAGED) if _is_note(name)]
        found = [note for note in found if note.job_attempt != job_attempt or note.epoch <= epoch]
        with self._lock:
            found = [note for note in found if note.name not in self._listed]
        if not found:
            return []
        # Also those that this driver has not completed, or has given up: whoever goes back to
        # one of them publishes what it lists.
        listed = {name for metadata in load_all(self._files) for name in self._names_in(metadata)}
        return [note for note in found if note.name not in listed]

    def _names_in(self, metadata: CheckpointMetadata) -> Iterable[str]:
        for one in metadata.committables:
            if one.uid not in self._quiet:
                unique = f"{metadata.job_attempt}-{one.epoch}-{one.subtask}-{one.attempt}"
                yield opened_name(one.uid, unique)
        yield from metadata.stale_notes or ()


def _is_note(name: str) -> bool:
    return name.startswith(OPENED)


def _warn(number: int, error: HoldfastError) -> None:
    logger.warning(
        "%d notes of what writers have opened were not deleted, which is tried again: %s",
        number,
        error,
    )
