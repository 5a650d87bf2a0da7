"""Functions with operator state, and those that hear of checkpoints.

A function lives for one epoch. So `initialize_state` runs at the start of every epoch
on every subtask, before `open`, and `snapshot_state` at the end of every epoch, before
`close`: what it puts into its state there is what `initialize_state` finds in the next
epoch, after a recovery, or on another number of subtasks.

    class Buffering(SinkFunction, CheckpointedFunction):
        def initialize_state(self, ctx):
            store = ctx.get_operator_state_store()
            self.state = store.get_list_state(ListStateDescriptor("buffered", str))
            self.buffer = list(self.state.get())

        def invoke(self, value, context):
            self.buffer.append(value)

        def snapshot_state(self, ctx):
            self.state.update(self.buffer)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.descriptors import ListStateDescriptor, MapStateDescriptor
    from holdfast.api.functions import RuntimeContext
    from holdfast.api.state import ListState, MapState
    from holdfast.api.type_variables import K, T, V


class OperatorStateStore(ABC):
    """State that belongs to a subtask, not to a key; it lives in memory during a task."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list whose elements are dealt out evenly when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list of which, after a restore, every subtask gets all elements of all."""

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """A map that is to be the same on every subtask."""


class FunctionInitializationContext(ABC):
    """What `initialize_state` learns and gets."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether state of an earlier epoch, or of a checkpoint, may be there."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Checkpoint that the job was last restored from, or None."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Where operator state is registered."""

    @abstractmethod
    def get_keyed_state_store(self) -> RuntimeContext:
        """Where keyed state is registered; only on a keyed stream."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> list[bytes]:
        """Partitions of raw operator state that are this subtask's now."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> list[tuple[int, bytes]]:
        """Key groups of this subtask that have raw state, and its bytes."""


class RawOperatorStateOutput(ABC):
    """Takes a subtask's raw operator state; partitions are dealt out on rescaling."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Let what is written from here on be a partition of its own."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes to the current partition."""


class RawKeyedStateOutput(ABC):
    """Takes raw state by key group."""

    @abstractmethod
    def start_new_key_group(self, key_group: int) -> None:
        """Let what is written from here on belong to `key_group`, one of this subtask's."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes to the current key group."""


class FunctionSnapshotContext(ABC):
    """What `snapshot_state` learns and gets."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Checkpoint that will be the first to contain this epoch."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Time of the snapshot, in milliseconds since 1970."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """Takes raw operator state; replaces what was there before."""

    @abstractmethod
    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        """Takes raw keyed state; replaces what was there before. Keyed streams only."""


class CheckpointedFunction(ABC):
    """A function with operator state; goes with any other function class."""

    @abstractmethod
    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Register state and read what it holds; before `open`, in every epoch."""

    @abstractmethod
    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Bring the state up to date; after the last element of every epoch."""


class ListCheckpointed(ABC):
    """A function whose state is one list; the older form of `CheckpointedFunction`."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> Sequence[Any]:
        """Elements that make up the state; an empty list for none."""

    @abstractmethod
    def restore_state(self, state: list[Any]) -> None:
        """Take over elements that `snapshot_state` gave; before `open`."""


class CheckpointListener:
    """A function that hears how checkpoints end.

    Told at the start of the next epoch, on every subtask. Notifications are a best
    effort: one may never come, and completion of a checkpoint implies all before it.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete, and so is everything it contains."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint failed; a later one contains what it would have."""
