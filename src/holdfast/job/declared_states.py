"""Finds the states that an operator declares, on the driver, before anything runs."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.api.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    ListCheckpointed,
    OperatorStateStore,
)
from holdfast.api.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.api.functions import Function
from holdfast.api.names import public_name
from holdfast.api.sinks import Sink
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.windows.spec import Caller
from holdfast.api.windows.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
)
from holdfast.runtime.context import SubtaskContext
from holdfast.runtime.function_state import ELEMENTS, WRITER_STATE
from holdfast.runtime.operators.element import REDUCED, state_spec
from holdfast.runtime.operators.interval_join import LEFT, RIGHT
from holdfast.runtime.windows.contents import contents_descriptor
from holdfast.runtime.windows.merging import OPEN_WINDOWS
from holdfast.runtime.windows.operator import KEPT_LATE
from holdfast.serde.factory import codec_for
from holdfast.state.operator.handles import BroadcastMap, ElementList
from holdfast.state.operator.redistribution import Mode, NamedState
from holdfast.types.columns.pickling import pickle_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.windows.spec import Windowing
    from holdfast.runtime.plan import OperatorPlan

_WITHOUT_STATE: Final = (EventTimeTrigger, ProcessingTimeTrigger, NeverTrigger, EndOfStreamTrigger)
"""Triggers without state."""


class OwnState(NamedTuple):
    """A declared operator state, and its redistribution mode."""

    mode: Mode
    descriptor: StateDescriptor


@dataclass
class DeclaredStates:
    """The states of an operator, by name."""

    keyed: dict[str, StateDescriptor] = field(default_factory=dict)
    built_in: frozenset[str] = frozenset()
    """Names of keyed states that belong to the operator, not to the function."""
    own: dict[str, OwnState] = field(default_factory=dict)
    """Operator state."""
    unknown: str | None = None
    """Why there may be further states, or None."""


def declared_states(operator: OperatorPlan, job_parameters: Mapping[str, str]) -> DeclaredStates:
    """Find the states that an operator declares, by opening a copy of its function."""
    found = DeclaredStates()
    function, details = operator.function, operator.details
    match operator.kind:
        case OperatorKind.REDUCE:
            found.keyed[REDUCED] = ValueStateDescriptor(REDUCED, state_spec(operator.output))
        case OperatorKind.INTERVAL_JOIN:
            for name, stream in ((LEFT, details.left), (RIGHT, details.right)):
                found.keyed[name] = MapStateDescriptor(name, bytes, state_spec(stream))
        case OperatorKind.BROADCAST_PROCESS | OperatorKind.KEYED_BROADCAST_PROCESS:
            found.own |= {one.name: OwnState("broadcast", one) for one in details}
        case OperatorKind.WINDOW | OperatorKind.WINDOW_JOIN:
            found.keyed |= {state.name: state for state in _window_states(details)}
            found.unknown = _asked_for_by_windows(details)
    found.built_in = frozenset(found.keyed)
    if isinstance(function, Sink) and function.has_state:
        state = ListStateDescriptor(WRITER_STATE, function.state_type)
        found.own[WRITER_STATE] = OwnState("split", state)
    elif isinstance(function, ListCheckpointed):
        found.own[ELEMENTS.name] = OwnState("split", ELEMENTS)
    _try(operator, job_parameters, found)
    return found


def _window_states(windowing: Windowing) -> Iterator[StateDescriptor]:
    """The states that windows register when opened; see `runtime/windows/operator.py`."""
    yield contents_descriptor(windowing)
    if windowing.merges:
        yield ValueStateDescriptor(OPEN_WINDOWS, tuple[tuple[bytes, bytes], ...])
    elif windowing.allowed_lateness_ms and windowing.assigner.is_event_time():
        yield ValueStateDescriptor(KEPT_LATE, bool)


def _asked_for_by_windows(windowing: Windowing) -> str | None:
    """Why windows may request further states when they run, or None."""
    if type(windowing.trigger) not in _WITHOUT_STATE:
        return f"{type(windowing.trigger).__name__} may request states when windows run"
    if windowing.caller is Caller.PROCESS:
        return "process() may request states of windows and keys when it runs"
    return None


def _try(operator: OperatorPlan, job_parameters: Mapping[str, str], found: DeclaredStates) -> None:
    """Let a copy of the function request its states, as in a task."""
    if not isinstance(operator.function, Function | CheckpointedFunction):
        return
    context = _RecordingContext(operator, job_parameters, found)
    step = "copying it"
    try:
        copy = pickle.loads(pickle_one(operator.function))
        if isinstance(copy, CheckpointedFunction):
            step = "initialize_state()"
            copy.initialize_state(_RecordingInitialization(context, found))
        if isinstance(copy, Function):
            step = "open()"
            copy.open(context)
    except Exception as error:
        found.unknown = f"{step} raised {type(error).__name__}: {error}"


@public_name("RuntimeContext")
class _RecordingContext(SubtaskContext):
    """The context of the first subtask; records the keyed states that are requested."""

    def __init__(
        self, operator: OperatorPlan, job_parameters: Mapping[str, str], found: DeclaredStates
    ) -> None:
        super().__init__(operator, 0, job_parameters, None)
        self._found = found

    def _register(self, descriptor: StateDescriptor) -> Any:
        if self._operator.key is None:
            self._refuse(descriptor)
        self._found.keyed[descriptor.name] = descriptor


class _RecordingInitialization(FunctionInitializationContext, OperatorStateStore):
    """Records the operator states that are requested, and returns empty ones."""

    def __init__(self, runtime: RuntimeContext, found: DeclaredStates) -> None:
        self._runtime = runtime
        self._found = found

    def is_restored(self) -> bool:
        return False

    def get_restored_checkpoint_id(self) -> int | None:
        return None

    def get_operator_state_store(self) -> OperatorStateStore:
        return self

    def get_keyed_state_store(self) -> RuntimeContext:
        return self._runtime

    def get_raw_operator_state_inputs(self) -> list[bytes]:
        return []

    def get_raw_keyed_state_inputs(self) -> list[tuple[int, bytes]]:
        return []

    def get_list_state(self, descriptor: ListStateDescriptor) -> ElementList:
        return self._list("split", descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ElementList:
        return self._list("union", descriptor)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastMap:
        self._found.own[descriptor.name] = OwnState("broadcast", descriptor)
        state = NamedState(descriptor.name, "broadcast", [])
        codecs = codec_for(descriptor.value_type), codec_for(descriptor.key_type)
        return BroadcastMap(state, *codecs, state)

    def _list(self, mode: Mode, descriptor: ListStateDescriptor) -> ElementList:
        self._found.own[descriptor.name] = OwnState(mode, descriptor)
        state = NamedState(descriptor.name, mode, [])
        return ElementList(state, codec_for(descriptor.type), state)
