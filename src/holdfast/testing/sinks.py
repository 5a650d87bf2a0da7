"""The second step of sinks in the harness: committables and their committer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.sinks import CommitRequest, Sink
from holdfast.errors import SinkError
from holdfast.runtime.committable_codec import committable_codec
from holdfast.runtime.report import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.sinks import Committer


class PendingCommits:
    """Committables of a sink's writers that wait to be published."""

    def __init__(self, sink: Callable[[], Sink], uid: str, subtask: int) -> None:
        """Nothing is pending; `sink` makes a copy of the sink."""
        self._sink, self._uid, self._subtask = sink, uid, subtask
        self._requests: list[CommitRequest] = []

    def add(
        self, prepared: Iterable[Prepared], *, epoch: int, checkpoint: int, recovered: bool = False
    ) -> None:
        """Add the committables of an epoch."""
        decode = committable_codec(self._sink()).decode
        self._requests += [
            CommitRequest(
                decode(one.data),
                job_id=self._uid,
                lineage=self._uid,
                uid=self._uid,
                checkpoint_id=checkpoint,
                epoch=epoch,
                subtask=self._subtask,
                recovered=recovered,
            )
            for one in prepared
        ]

    @property
    def committables(self) -> list[Any]:
        """What is pending, in the order of epochs."""
        return [request.committable for request in self._requests]

    def prepared(self) -> tuple[Prepared, ...]:
        """What is pending, as a snapshot stores it."""
        encode = committable_codec(self._sink()).encode
        return tuple(Prepared(self._uid, encode(one)) for one in self.committables)

    def commit(self, runtime: RuntimeContext) -> None:
        """Publish all that is pending; what is to be retried stays.

        Raises:
            SinkError: The committer has reported a failure.
        """
        committer = self._sink().create_committer(runtime)
        try:
            committer.commit(self._requests)
        finally:
            committer.close()
        failed = [request for request in self._requests if request.outcome == "failed"]
        self._requests = [one for one in self._requests if one.outcome in ("retry", "failed")]
        for request in self._requests:
            request.outcome, request.retries = "done", request.retries + 1
        if failed:
            raise SinkError(
                f"the committer could not publish {failed[0].committable!r}: {failed[0].error}"
            )

    def abort_opened(self, runtime: RuntimeContext, opened: list[Any]) -> None:
        """Let a committer drop what a writer had opened when its process died."""
        committer: Committer = self._sink().create_committer(runtime)
        try:
            committer.abort_opened(opened)
        finally:
            committer.close()
