"""Sources that users write: anything that can be read again from an offset.

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

The offset is the source's state: every checkpoint holds it, and a recovery reads on from
the one in the checkpoint that it goes back to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from holdfast.api.type_variables import T

if TYPE_CHECKING:
    from collections.abc import Iterable


class ReplayableSource(ABC, Generic[T]):
    """A source that gives the same elements for the same offsets, however often asked.

    An offset is anything that JSON can hold, and comes back as JSON gives it: a tuple as a
    list, and only strings as keys of a mapping. Two offsets are the same if their JSON is,
    whatever the order of keys.

    A recovery depends on three promises, none of which can be checked: the elements
    between two offsets are always the same, `latest_offset` never goes backwards, and
    nothing beyond the last `commit` is ever lost. A source that breaks one of them loses
    elements or repeats them after a failure, and nobody is told.

    The source is pickled when the job starts. `initial_offset`, `latest_offset` and
    `partitions` run in a process beside the driver, one after the other, on a copy that
    lives as long as the query; `read` runs in tasks, each on a fresh copy; `commit` runs on
    the object itself, in the driver. So open files and connections where they are needed,
    and never rely on what another method has stored in the object.
    """

    bounded: bool = False
    """Whether the source ends: a job ends when all its sources are bounded and each has
    once given `start` for its latest offset."""

    @abstractmethod
    def initial_offset(self) -> Any:
        """Where a job begins to read that has no checkpoint."""

    @abstractmethod
    def latest_offset(self, start: Any) -> Any:
        """Where the epoch that reads from `start` may end; `start` if there is nothing new.

        Asked before every epoch, and again and again while there is nothing new. What it
        gives bounds the epoch: a source that limits its epochs gives less than there is.
        """

    @abstractmethod
    def read(self, start: Any, end: Any) -> Iterable[T]:
        """Elements from `start`, which is included, to `end`, which is not."""

    def partitions(self, start: Any, end: Any) -> list[tuple[Any, Any]]:
        """Ranges that are read side by side and together make up `start` to `end`.

        Each is read by a task of its own. They need not be ordered, nor be offsets in any
        sense but that `read` understands them. By default the whole is one.
        """
        return [(start, end)]

    def commit(self, offset: Any) -> None:
        """Nothing before `offset` will be read again; it may be forgotten.

        Called when a checkpoint is complete that contains everything up to `offset`, and
        never for anything that is in no checkpoint: so never in a job that takes none.
        Offsets never go back, but calls are a best effort: one may not come, as when the
        driver dies, and a later one stands in for it. Epochs go on meanwhile. What it raises
        fails the job, which restarts as after any failure; the checkpoint stays complete.
        """
        return None
