"""Stores the positions of a job's sources in checkpoints.

The log of a file source names every file it has ever seen. So a checkpoint holds the end of the
log, and handles to parts that earlier checkpoints have written: only new entries are uploaded. A
new part absorbs earlier ones, so that each remaining part is larger than all later parts together.
A log of n bytes has about log(n) parts, and each byte is written about log(n) times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.checkpoint.files.layout import shared_name
from holdfast.checkpoint.files.metadata import SourceSnapshot
from holdfast.errors import CheckpointError
from holdfast.job.model import QueryPosition, SourcePosition, join
from holdfast.job.threads import NoAnswerError, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.job.model import JobPlan
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


class SourceCommits:
    """Passes the offsets of completed checkpoints to sources with a `commit` method."""

    def __init__(self, plan: JobPlan, time_limits: TimeLimits | None = None) -> None:
        """Collect the `commit` methods of the job's sources."""
        self._time_limits = time_limits or TimeLimits()
        self._commits: dict[str, Callable[[str], None]] = {
            source.uid: commit
            for source in plan.sources
            if (commit := getattr(source.node.function, "commit", None)) is not None
        }
        self._newest = 0

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Commit the offsets of a checkpoint; has no effect for an older one than the last.

        Called by one thread at a time: checkpoints are completed one after the other.

        Raises:
            CheckpointError: A source raised or hangs; all others were called.
        """
        # An older checkpoint may complete after a newer one, and offsets must not go back.
        if metadata.checkpoint_id <= self._newest or not self._commits:
            return
        self._newest = metadata.checkpoint_id
        failures = [
            failure
            for uid, leaves in end_of(metadata).sources.items()
            if (failure := self._commit(uid, [leaf.offset for leaf in leaves])) is not None
        ]
        if failures:
            raise CheckpointError(
                f"after checkpoint {metadata.checkpoint_id}, which is complete: "
                + "; ".join(failures)
            )

    def _commit(self, uid: str, offsets: list[Any]) -> str | None:
        commit = self._commits.get(uid)
        if commit is None or offsets[0] is None:
            return None
        try:
            self._time_limits.call(f"source (uid {uid!r})", lambda _: commit(offsets[0]))
        except NoAnswerError as error:
            return f"source (uid {uid!r}) hangs in commit(): {error}"
        except Exception as error:
            return f"source (uid {uid!r}) raised in commit(): {type(error).__name__}: {error}"
        return None


PARTS: Final = "parts"
"""Key under which a source's snapshot lists the older parts of its logs."""


def source_snapshots(
    position: QueryPosition,
    base: CheckpointMetadata | None,
    files: JobCheckpointFiles,
    checkpoint_id: int,
    inline_below: int,
) -> list[SourceSnapshot]:
    """The positions of the sources, for the metadata of a checkpoint.

    `position` was captured since `base`, whose parts are used again.
    """
    before = {} if base is None else {source.uid: source for source in base.sources}
    snapshots = []
    for uid, leaves in position.sources.items():
        known = before.get(uid)
        parts = list(known.logs.get(PARTS, [])) if known is not None else []
        tail = leaves if known is None else _joined([_decoded(known.position), leaves])
        size = len(msgspec.json.encode(tail))
        if size > inline_below and _has_log(tail):
            kept = _larger(parts, size)
            merged = _joined([*_parts(parts[kept:], files), tail])
            data = msgspec.json.encode(merged)
            parts[kept:] = [files.write_bytes(shared_name(checkpoint_id), data)]
            tail = tuple(map(_without_entries, tail))
        snapshots.append(
            SourceSnapshot(uid=uid, position=msgspec.to_builtins(tail), logs={PARTS: parts})
        )
    return snapshots


def _larger(parts: Sequence[Handle], size: int) -> int:
    """How many parts stay unchanged when a part of `size` bytes follows them."""
    kept = len(parts)
    for at in reversed(range(len(parts))):
        if parts[at].size <= size:
            kept = at
        size += parts[at].size
    return kept


def position_of(metadata: CheckpointMetadata, files: JobCheckpointFiles) -> QueryPosition:
    """The whole position in a checkpoint, with all parts of its logs."""
    return QueryPosition(
        metadata.batch_id,
        metadata.spark["offset_metadata"],
        {
            source.uid: _joined(
                [*_parts(source.logs.get(PARTS, []), files), _decoded(source.position)]
            )
            for source in metadata.sources
        },
    )


def end_of(metadata: CheckpointMetadata) -> QueryPosition:
    """The end of the position in a checkpoint, without the older parts of its logs."""
    sources = {source.uid: _decoded(source.position) for source in metadata.sources}
    return QueryPosition(metadata.batch_id, metadata.spark["offset_metadata"], sources)


def _parts(
    handles: Sequence[Handle], files: JobCheckpointFiles
) -> list[tuple[SourcePosition, ...]]:
    return [_decoded(msgspec.json.decode(files.read_bytes(handle))) for handle in handles]


def _decoded(data: Any) -> tuple[SourcePosition, ...]:
    return msgspec.convert(data, tuple[SourcePosition, ...])


def _joined(parts: list[tuple[SourcePosition, ...]]) -> tuple[SourcePosition, ...]:
    whole = join([QueryPosition(0, "", {"source": part}) for part in parts])
    return whole.sources["source"]


def _has_log(leaves: tuple[SourcePosition, ...]) -> bool:
    return any(leaf.log is not None and leaf.log.entries for leaf in leaves)


def _without_entries(leaf: SourcePosition) -> SourcePosition:
    if leaf.log is None:
        return leaf
    return replace(leaf, log=replace(leaf.log, after=leaf.log.upto, entries=()))
