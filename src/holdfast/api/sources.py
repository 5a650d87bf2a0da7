"""Custom sources: anything that can be read again from an offset.

    class Lines(ReplayableSource):
        def __init__(self, path):
            self.path = path

        def initial_offset(self):
            return 0

        def latest_offset(self, start):
            return min(os.path.getsize(self.path), start + 1_000_000)

        def read(self, start, end) -> Iterator[str]:
            with open(self.path, "rb") as file:
                file.seek(start)
                ...

    env.add_source(Lines("/data/events.log")).uid("lines")

The offset is the source's state. Checkpoints contain it, and a recovery continues from the offset
of its checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from holdfast.api.type_variables import T

if TYPE_CHECKING:
    from collections.abc import Iterable


class ReplayableSource(ABC, Generic[T]):
    """A source that returns the same elements for the same offsets every time.

    An offset is any JSON value. It comes back as JSON returns it: tuples become lists, and keys of
    mappings are strings. Two offsets are equal if their JSON is equal; the order of keys is
    ignored.

    A recovery depends on three promises that Holdfast cannot check: the elements between two
    offsets never change, `latest_offset` never goes backwards, and nothing after the last `commit`
    is lost. A source that breaks a promise silently loses or repeats elements after a failure.

    The source is pickled when the job starts. `initial_offset`, `latest_offset` and `partitions`
    run in a process beside the driver, one after the other, on a copy that lives as long as the
    query. `read` runs in tasks, each on a fresh copy. `commit` runs on the object itself, in the
    driver. So open files and connections where they are needed, and do not share attributes
    between methods.
    """

    bounded: bool = False
    """Whether the source ends: a job ends when all its sources are bounded and each has
    once given `start` for its latest offset."""

    @abstractmethod
    def initial_offset(self) -> Any:
        """Where a job without a checkpoint starts reading."""

    @abstractmethod
    def latest_offset(self, start: Any) -> Any:
        """The end of the epoch that starts at `start`; `start` itself if there is nothing new.

        Called before every epoch, and repeatedly while there is nothing new. The result bounds the
        epoch: to limit the size of epochs, return less than is available.
        """

    @abstractmethod
    def read(self, start: Any, end: Any) -> Iterable[T]:
        """The elements from `start` (inclusive) to `end` (exclusive)."""

    def partitions(self, start: Any, end: Any) -> list[tuple[Any, Any]]:
        """Ranges that are read in parallel and together cover `start` to `end`.

        Each range is read by a separate task. Ranges need not be ordered, and only `read`
        interprets them. By default there is one range.
        """
        return [(start, end)]

    def commit(self, offset: Any) -> None:
        """Release the elements before `offset`: they will not be read again.

        Called after a checkpoint that contains everything up to `offset` has completed, so never
        in a job without checkpoints. Offsets never go back. Calls are a best effort: if the driver
        dies, a call may be missing, and a later one replaces it. Epochs continue meanwhile. An
        exception fails the job, which restarts as after any failure; the checkpoint stays
        complete.
        """
        return None
