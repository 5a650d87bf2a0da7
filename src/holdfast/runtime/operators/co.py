"""Operators with two inputs: connected streams, and streams with a broadcast stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.co_functions import (
    BroadcastReadContext,
    BroadcastTimerContext,
    KeyedBroadcastContext,
    KeyedBroadcastReadContext,
    ReadOnlyBroadcastState,
)
from holdfast.api.descriptors import MapStateDescriptor
from holdfast.api.names import public_name
from holdfast.errors import StateAccessError, StateDescriptorError
from holdfast.runtime.context import ElementContext, TimerContext
from holdfast.runtime.operators.base import always_iterable
from holdfast.runtime.operators.element import FlatMapOperator, MapOperator
from holdfast.runtime.operators.process import ProcessOperator
from holdfast.state.table import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.functions import TimerService
    from holdfast.api.state import MapState
    from holdfast.api.time import TimeDomain
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.operator.backend import OperatorStateBackend
    from holdfast.state.table import CurrentKey


class CoMapOperator(MapOperator):
    """One element of either input in, one out."""

    def _bind(self) -> Callable[..., Any]:
        return self._function.map1  # type: ignore[no-any-return]

    def _bind_second(self) -> Callable[..., Any]:
        return self._function.map2  # type: ignore[no-any-return]


class CoFlatMapOperator(FlatMapOperator):
    """One element of either input in, any number out."""

    def _bind(self) -> Callable[..., Any]:
        return always_iterable(self._function.flat_map1)

    def _bind_second(self) -> Callable[..., Any]:
        return always_iterable(self._function.flat_map2)


class CoProcessOperator(ProcessOperator):
    """The general operator on two inputs."""

    def _bind(self) -> Callable[..., Any]:
        return always_iterable(self._function.process_element1)

    def _bind_second(self) -> Callable[..., Any]:
        return always_iterable(self._function.process_element2)


class BroadcastOperator(ProcessOperator):
    """Runs functions of a stream, keyed or not, and a broadcast stream."""

    open_operator_state: Callable[[], OperatorStateBackend]
    """Set by the operator task."""

    def _bind(self) -> Callable[..., Any]:
        self._states = BroadcastStates(self.plan.details, self.open_operator_state)
        timers = self._element_context.timer_service()
        self._contexts = (
            DataContext(self.current, timers, self._states),
            ControlContext(
                self.current,
                timers,
                self._states,
                None if self.plan.key is None else self._keyed_state,
            ),
        )
        return always_iterable(self._function.process_element)

    def _bind_second(self) -> Callable[..., Any]:
        return always_iterable(self._function.process_broadcast_element)

    def _begin_batch(self, side: int) -> None:
        super()._begin_batch(side)
        self._element_context = self._contexts[side]

    def _is_guarded(self, side: int) -> bool:
        # Skipping a control element halfway would let the copies of the state differ.
        return side == 0 and super()._is_guarded(side)

    def _timer_context(self, domain: TimeDomain) -> TimerContext:
        timers = self._element_context.timer_service()
        return DataTimerContext(self.current, timers, domain, self._states)


class BroadcastStates:
    """The broadcast states of an operator, by descriptor."""

    def __init__(
        self,
        descriptors: tuple[MapStateDescriptor, ...],
        backend: Callable[[], OperatorStateBackend],
    ) -> None:
        """States of these descriptors; `backend` opens them on first use."""
        self._descriptors = {descriptor.name: descriptor for descriptor in descriptors}
        self._backend = backend
        self._handles: dict[str, MapState[Any, Any]] = {}
        self._views: dict[str, _ReadOnly] = {}

    def writable(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The state, writable."""
        known = isinstance(descriptor, MapStateDescriptor)
        handle = self._handles.get(descriptor.name) if known else None
        if handle is None:
            handle = self._opened(descriptor)
        return handle

    def readable(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """The state, read-only."""
        known = isinstance(descriptor, MapStateDescriptor)
        view = self._views.get(descriptor.name) if known else None
        if view is None:
            state = self.writable(descriptor)
            view = self._views[descriptor.name] = _ReadOnly(state)
        return view

    def _opened(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        if not isinstance(descriptor, MapStateDescriptor):
            raise StateDescriptorError(
                f"a broadcast state is asked for by its MapStateDescriptor, not by {descriptor!r}"
            )
        known = self._descriptors.get(descriptor.name)
        if known is None:
            names = ", ".join(map(repr, self._descriptors))
            raise StateDescriptorError(
                f"The requested state does not exist: {descriptor.name!r} is none of the broadcast "
                f"states of this operator, which are {names}; name it in broadcast(...)"
            )
        # Use the descriptor given to broadcast(): all sides share it.
        handle = self._handles[descriptor.name] = self._backend().get_broadcast_state(known)
        return handle


@public_name("ReadOnlyBroadcastState")
class _ReadOnly(ReadOnlyBroadcastState):
    """A broadcast state that can only be read."""

    __slots__ = ("_state",)

    def __init__(self, state: MapState[Any, Any]) -> None:
        self._state = state

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return self._state.items()

    def is_empty(self) -> bool:
        return self._state.is_empty()


@public_name("BroadcastReadContext")
class DataContext(ElementContext, KeyedBroadcastReadContext, BroadcastReadContext):
    """Context of the current element, for the data side."""

    __slots__ = ("_states",)

    def __init__(self, current: CurrentKey, timers: TimerService, states: BroadcastStates) -> None:
        """A context that follows the current key."""
        super().__init__(current, timers)
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """A broadcast state, read-only."""
        return self._states.readable(descriptor)


@public_name("BroadcastTimerContext")
class DataTimerContext(TimerContext, BroadcastTimerContext):
    """Context of the timer that fires, for the data side."""

    __slots__ = ("_states",)

    def __init__(
        self,
        current: CurrentKey,
        timers: TimerService,
        domain: TimeDomain,
        states: BroadcastStates,
    ) -> None:
        """A context for timers of one domain."""
        super().__init__(current, timers, domain)
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """A broadcast state, read-only."""
        return self._states.readable(descriptor)


@public_name("BroadcastContext")
class ControlContext(ElementContext, KeyedBroadcastContext):
    """Context of the current element, for the broadcast side."""

    __slots__ = ("_keyed_state", "_states")

    def __init__(
        self,
        current: CurrentKey,
        timers: TimerService,
        states: BroadcastStates,
        keyed_state: Callable[[], KeyedStateBackend] | None,
    ) -> None:
        """A context without a key; `keyed_state` opens the state of all keys, if there are any."""
        super().__init__(current, timers)
        self._states = states
        self._keyed_state = keyed_state

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """A broadcast state, writable."""
        return self._states.writable(descriptor)

    def current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        """The current watermark."""
        return self._timers.current_watermark()

    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]
    ) -> None:
        """Call `function(key, state)` for every key that has this state."""
        if self._keyed_state is None:
            raise StateAccessError(
                f"apply_to_keyed_state({descriptor.name!r}): there is no keyed state beside a "
                "stream that is not keyed; connect a keyed stream, i.e. after a key_by()"
            )
        call = getattr(function, "process", function)
        backend, current = self._keyed_state(), self._current
        state = backend.register(descriptor)
        try:
            for keys in backend.keys_of(descriptor.name):
                current.start_batch(keys)
                for current.key in keys:
                    call(current.key, state)
                current.end_batch()
                backend.evict_if_full()
        finally:
            current.key = NO_KEY
