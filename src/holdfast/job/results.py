"""Iterates over the output of a running job, on the driver."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from holdfast.job.model import JobHandle

_WAIT: Final = 0.05
_EPOCHS_AHEAD: Final = 8


class CollectedResults:
    """Elements of a stream, as epochs deliver them; closing it cancels the job.

    The job waits if it is some epochs ahead of its reader.
    """

    def __init__(self) -> None:
        """Create results without a job."""
        self._epochs: queue.Queue[list[Any]] = queue.Queue(_EPOCHS_AHEAD)
        self._closed = False
        self._client: JobHandle | None = None

    def collect(self, elements: list[Any]) -> None:
        """Add one epoch's elements; called by the job."""
        while elements and not self._closed and not self._is_cancelled():
            try:
                self._epochs.put(elements, timeout=_WAIT)
            except queue.Full:
                continue
            return

    def _is_cancelled(self) -> bool:
        return self._client is not None and self._client.cancelled

    def attach(self, client: JobHandle) -> None:
        """Set the job that produces the elements."""
        self._client = client

    @property
    def client(self) -> JobHandle:
        """The job that produces the elements."""
        assert self._client is not None
        return self._client

    def __iter__(self) -> Iterator[Any]:
        """Iterate over all elements; raises at the end if the job failed."""
        client = self.client
        while True:
            ended = client.status().is_terminal
            try:
                yield from self._epochs.get(timeout=0 if ended else _WAIT)
            except queue.Empty:
                if ended:
                    break
        client.result()

    def close(self) -> None:
        """Cancel the job, if it still runs."""
        self._closed = True
        if self._client is not None and not self._client.status().is_terminal:
            self._client.cancel()

    def __enter__(self) -> CollectedResults:
        """Return the results."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the job if it still runs; after an error, stop it as Ctrl-C does."""
        if error is not None and self._client is not None:
            self._closed = True
            self._client.interrupt()
        self.close()
