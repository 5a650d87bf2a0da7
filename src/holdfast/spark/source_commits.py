"""Telling sources what they may forget: what a completed checkpoint contains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import CheckpointError
from holdfast.spark.patience import NoAnswerError, Patience
from holdfast.spark.source_snapshots import end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.spark.compiler import JobPlan


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
