"""The position of a job's sources as part of a checkpoint.

A file source's log names every file it has ever seen. So a checkpoint holds the end
of it, and handles to parts that earlier checkpoints have written: what is uploaded
follows what is new. A new part takes in parts before it, so that each of those that stay is
larger than all behind it together: of n bytes there are about log(n) parts, and each
byte is written about log(n) times in the life of a job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.checkpoint.files.layout import shared_name
from holdfast.checkpoint.files.metadata import SourceSnapshot
from holdfast.errors import CheckpointError
from holdfast.job.model import QueryPosition, SourcePosition, join
from holdfast.job.threads import NoAnswerError, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.job.model import JobPlan
    from holdfast.storage.files import JobCheckpointFiles
    from holdfast.storage.handles import Handle


class SourceCommits:
    """Passes the offsets in completed checkpoints on to the sources that want them."""

    def __init__(self, plan: JobPlan, patience: Patience | None = None) -> None:
        """Of the job's sources, those that have a `commit`."""
        self._patience = patience or Patience()
        self._commits: dict[str, Callable[[str], None]] = {
            source.uid: commit
            for source in plan.sources
            if (commit := getattr(source.node.function, "commit", None)) is not None
        }
        self._newest = 0

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Tell them of a checkpoint; of one older than the last, nothing.

        By one thread at a time: checkpoints are completed one after the other.

        Raises:
            CheckpointError: A source raised or hangs; those behind it were told all the same.
        """
        # An older one may be completed after a newer one, and offsets must not go back.
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
            self._patience.call(f"source (uid {uid!r})", lambda _: commit(offsets[0]))
        except NoAnswerError as error:
            return f"source (uid {uid!r}) hangs in commit(): {error}"
        except Exception as error:
            return f"source (uid {uid!r}) raised in commit(): {type(error).__name__}: {error}"
        return None


PARTS: Final = "parts"


"""Name under which a source's snapshot lists the older parts of its logs."""


def source_snapshots(
    position: QueryPosition,
    base: CheckpointMetadata | None,
    files: JobCheckpointFiles,
    checkpoint_id: int,
    inline_below: int,
) -> list[SourceSnapshot]:
    """What a checkpoint holds of its sources, given the completed one before it.

    `position` was captured since that one, whose parts are used again.
    """
    before = {} if base is None else {source.uid: source for source in base.sources}
    snapshots = []
    for uid, leaves in position.sources.items():
        known = before.get(uid)
        parts = list(known.logs.get(PARTS, [])) if known is not None else []
        tail = leaves if known is None else _joined([_decoded(known.position), leaves])
        if len(msgspec.json.encode(tail)) > inline_below and _has_log(tail):
            kept = _larger(parts, len(msgspec.json.encode(tail)))
            merged = _joined([*_parts(parts[kept:], files), tail])
            data = msgspec.json.encode(merged)
            parts[kept:] = [files.write_bytes(shared_name(checkpoint_id), data)]
            tail = tuple(map(_without_entries, tail))
        snapshots.append(
            SourceSnapshot(uid=uid, position=msgspec.to_builtins(tail), logs={PARTS: parts})
        )
    return snapshots


def _larger(parts: Sequence[Handle], size: int) -> int:
    """How many parts stay as they are when one of `size` bytes comes behind them."""
    kept = len(parts)
    for at in reversed(range(len(parts))):
        if parts[at].size <= size:
            kept = at
        size += parts[at].size
    return kept


def position_of(metadata: CheckpointMetadata, files: JobCheckpointFiles) -> QueryPosition:
    """The whole position in a checkpoint, ready to be laid out."""
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
    """Where the position in a checkpoint ends, without the older parts of its logs."""
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
