"""Functions with operator state, and functions that are notified of checkpoints.

`initialize_state` runs once per copy of a function, before `open`; `snapshot_state` runs at the
end of every epoch. If another worker has run an epoch of the subtask, a new copy is made, whose
`initialize_state` finds the state that `snapshot_state` has written there. The same holds after a
recovery and after rescaling.

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
    """State of a subtask rather than of a key; a task holds it in memory."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list whose elements are split evenly when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list; after a restore every subtask gets the elements of all subtasks."""

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """A map that must be the same on every subtask."""


class FunctionInitializationContext(ABC):
    """The context of `initialize_state`."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether there may be state of an earlier epoch or of a checkpoint."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """The checkpoint that the job was last restored from, or None."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Registers operator state."""

    @abstractmethod
    def get_keyed_state_store(self) -> RuntimeContext:
        """Registers keyed state; only on a keyed stream."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> list[bytes]:
        """The partitions of raw operator state that this subtask owns."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> list[tuple[int, bytes]]:
        """The key groups of this subtask that have raw state, with its bytes."""


class RawOperatorStateOutput(ABC):
    """Writes raw operator state; rescaling redistributes its partitions."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Start a new partition."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes to the current partition."""


class RawKeyedStateOutput(ABC):
    """Writes raw state per key group."""

    @abstractmethod
    def start_new_key_group(self, key_group: int) -> None:
        """Start writing the state of `key_group`, which must be one of this subtask's."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes to the current key group."""


class FunctionSnapshotContext(ABC):
    """The context of `snapshot_state`."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """The first checkpoint that will contain this epoch."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Time of the snapshot, in milliseconds since 1970."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """Writes raw operator state; replaces the previous one."""

    @abstractmethod
    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        """Writes raw keyed state; replaces the previous one. Keyed streams only."""


class CheckpointedFunction(ABC):
    """Adds operator state to any other function class."""

    @abstractmethod
    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Register state and read it; called once, before `open`."""

    @abstractmethod
    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Update the state; called after the last element of every epoch."""


class ListCheckpointed(ABC):
    """Adds one list of operator state; the older form of `CheckpointedFunction`."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> Sequence[Any]:
        """The elements of the state; an empty list for none."""

    @abstractmethod
    def restore_state(self, state: list[Any]) -> None:
        """Restore the elements of `snapshot_state`; called before `open`."""


class CheckpointListener:
    """Is notified when checkpoints complete or fail.

    Every subtask is notified at the start of the next epoch. Notifications are a best effort: one
    may be missing, and the completion of a checkpoint implies all checkpoints before it.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint failed; a later one will contain its epochs."""
