"""Hands operator state to a function when it is opened, and takes it at the end of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.api.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListCheckpointed,
    OperatorStateStore,
    RawKeyedStateOutput,
    RawOperatorStateOutput,
)
from holdfast.api.descriptors import ListStateDescriptor
from holdfast.api.names import public_name
from holdfast.errors import StateAccessError
from holdfast.runtime.operators.base import Reported
from holdfast.runtime.operators.writer import WriterOperator
from holdfast.state.key_groups import key_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.state import ListState, MapState
    from holdfast.runtime.operators.base import Operator
    from holdfast.runtime.plan import EpochPlan
    from holdfast.state.operator.backend import OperatorStateBackend

ELEMENTS: Final = ListStateDescriptor("list-checkpointed")
"""The state of a `ListCheckpointed` function; its elements are pickled, as it has no types."""
WRITER_STATE: Final = "writer-state"
"""Name of the state of the writers of a sink."""


class FunctionState:
    """Calls the hooks of functions with operator state and of checkpoint listeners."""

    _epoch: EpochPlan
    _restored: bool

    def __init__(self, operator: Operator, backend: Callable[[], OperatorStateBackend]) -> None:
        """The state of an operator's function; `backend` opens it on first use."""
        self._operator = operator
        self._function = operator.plan.function
        self._backend = backend

    def begin(self, epoch: EpochPlan, *, restored: bool) -> None:
        """Prepare for an epoch.

        Args:
            epoch: The epoch.
            restored: Whether there is state of earlier epochs.
        """
        self._epoch = epoch
        self._restored = restored

    def initialize(self) -> None:
        """Initialize the state of the function; before it is opened."""
        function = self._function
        if isinstance(function, CheckpointedFunction):
            context = _InitializationContext(
                self._operator.context, self._epoch, self._backend(), restored=self._restored
            )
            with Reported(self._operator, "in initialize_state()"):
                function.initialize_state(context)
        elif isinstance(self._operator, WriterOperator):
            if self._operator.plan.has_operator_state:
                self._operator.restored_state = tuple(self._writer_state().get())
        elif isinstance(function, ListCheckpointed):
            elements = list(self._backend().get_list_state(ELEMENTS).get())
            if self._restored:
                with Reported(self._operator, "in restore_state()"):
                    function.restore_state(elements)

    def notify(self) -> None:
        """Notify the function of checkpoints that were completed or aborted."""
        function, epoch = self._function, self._epoch
        if isinstance(function, CheckpointListener):
            with Reported(self._operator, "in a notification of a checkpoint"):
                for checkpoint in epoch.aborted:
                    function.notify_checkpoint_aborted(checkpoint)
                for checkpoint in epoch.completed:
                    function.notify_checkpoint_complete(checkpoint)

    def snapshot(self, now: int) -> None:
        """Let the function update its state; after its last element."""
        function, epoch = self._function, self._epoch
        timestamp = now if epoch.checkpoint is None else epoch.checkpoint.timestamp
        if isinstance(function, CheckpointedFunction):
            plan = self._operator.plan
            groups = key_groups(self._operator.subtask, plan.parallelism, plan.max_parallelism)
            outputs = _SnapshotContext(
                epoch.next_checkpoint, timestamp, None if plan.key is None else groups
            )
            with Reported(self._operator, "in snapshot_state()"):
                function.snapshot_state(outputs)
            backend = self._backend()
            backend.set_raw_partitions(outputs.partitions)
            backend.set_raw_key_groups(outputs.key_groups)
        elif isinstance(self._operator, WriterOperator):
            if self._operator.plan.has_operator_state:
                self._writer_state().update(self._operator.snapshot_state())
        elif isinstance(function, ListCheckpointed):
            with Reported(self._operator, "in snapshot_state()"):
                elements = list(function.snapshot_state(epoch.next_checkpoint, timestamp) or ())
                self._backend().get_list_state(ELEMENTS).update(elements)

    def _writer_state(self) -> ListState[Any]:
        sink = self._function
        return self._backend().get_list_state(ListStateDescriptor(WRITER_STATE, sink.state_type))


@public_name("FunctionInitializationContext")
class _InitializationContext(FunctionInitializationContext, OperatorStateStore):
    """Both contexts in one object: the store only adds the states."""

    def __init__(
        self,
        runtime: RuntimeContext,
        epoch: EpochPlan,
        backend: OperatorStateBackend,
        *,
        restored: bool,
    ) -> None:
        self._runtime = runtime
        self._epoch = epoch
        self._backend = backend
        self._is_restored = restored

    def is_restored(self) -> bool:
        return self._is_restored

    def get_restored_checkpoint_id(self) -> int | None:
        return self._epoch.restored

    def get_operator_state_store(self) -> OperatorStateStore:
        return self

    def get_keyed_state_store(self) -> RuntimeContext:
        return self._runtime

    def get_raw_operator_state_inputs(self) -> list[bytes]:
        return self._backend.raw_partitions()

    def get_raw_keyed_state_inputs(self) -> list[tuple[int, bytes]]:
        return sorted(self._backend.raw_key_groups().items())

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._backend.get_list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._backend.get_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: Any) -> MapState[Any, Any]:
        return self._backend.get_broadcast_state(descriptor)


@public_name("FunctionSnapshotContext")
class _SnapshotContext(FunctionSnapshotContext, RawOperatorStateOutput, RawKeyedStateOutput):
    """Gathers raw state; the context is its own output, for keyed and other raw state."""

    def __init__(self, checkpoint: int, timestamp: int, groups: range | None) -> None:
        self._checkpoint = checkpoint
        self._timestamp = timestamp
        self._groups = groups
        self._parts: list[bytearray] = []
        self._by_group: dict[int, bytearray] = {}
        self._target: bytearray | None = None

    def get_checkpoint_id(self) -> int:
        return self._checkpoint

    def get_checkpoint_timestamp(self) -> int:
        return self._timestamp

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        self.start_new_partition()
        return self

    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        if self._groups is None:
            raise StateAccessError(
                "raw keyed state can only be written on a 'keyed stream', i.e. after a key_by()"
            )
        self._target = None
        return self

    def start_new_partition(self) -> None:
        self._target = bytearray()
        self._parts.append(self._target)

    def start_new_key_group(self, key_group: int) -> None:
        if self._groups is None or key_group not in self._groups:
            raise StateAccessError(
                f"key group {key_group} does not belong to this subtask, which has {self._groups}"
            )
        self._target = self._by_group.setdefault(key_group, bytearray())

    def write(self, data: bytes) -> None:
        if self._target is None:
            raise StateAccessError("call start_new_key_group before writing raw keyed state")
        self._target += data

    @property
    def partitions(self) -> list[bytes]:
        return [bytes(part) for part in self._parts if part]

    @property
    def key_groups(self) -> dict[int, bytes]:
        return {group: bytes(data) for group, data in self._by_group.items() if data}
