"""The contexts of assigners, triggers, evictors and window functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.names import public_name
from holdfast.api.time import MIN_WATERMARK
from holdfast.api.windows.assigners import WindowAssignerContext
from holdfast.api.windows.evictors import EvictorContext
from holdfast.api.windows.functions import WindowContext
from holdfast.api.windows.triggers import OnMergeContext
from holdfast.errors import StateAccessError
from holdfast.runtime.context import DescribedStates
from holdfast.state.namespaces import merge_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.functions import KeyedStateStore
    from holdfast.api.metrics import MetricGroup
    from holdfast.runtime.context import SubtaskTimers
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.namespaces import StateScope


@public_name("WindowAssignerContext")
class TimeContext(WindowAssignerContext, EvictorContext):
    """The clock and the watermark."""

    __slots__ = ("_timers",)

    def __init__(self, timers: SubtaskTimers) -> None:
        """The times of one subtask."""
        self._timers = timers

    def get_current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        """The current watermark."""
        return self._timers.watermark


@public_name("WindowAssignerContext")
class AssignerContext(TimeContext):
    """The same for assigners, whose clock is past all windows that have fired by it.

    A window fires in its last millisecond. Elements that come later in that millisecond belong
    to the next window, or the same window would fire twice.
    """

    __slots__ = ("fired",)

    def __init__(self, timers: SubtaskTimers) -> None:
        """No window has fired yet."""
        super().__init__(timers)
        self.fired = MIN_WATERMARK
        """Latest time of a timer that has fired by the clock."""

    def get_current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        return max(self._timers.current_processing_time(), self.fired + 1)


@public_name("TriggerContext")
class WindowTriggerContext(TimeContext, OnMergeContext):
    """Context of a trigger, for the window that the scope's current key names."""

    __slots__ = ("_backend", "_enter", "_metrics", "_scope", "merged")

    def __init__(
        self,
        timers: SubtaskTimers,
        backend: KeyedStateBackend,
        scope: StateScope,
        enter: Callable[[Any], None],
        metrics: MetricGroup,
    ) -> None:
        """`enter` sets the current key of `scope`, where the trigger's states are."""
        super().__init__(timers)
        self._backend = backend
        self._scope = scope
        self._enter = enter
        self._metrics = metrics
        self.merged: list[bytes] = []
        """Windows that were merged into the current one."""

    def register_event_time_timer(self, time: int) -> None:
        """Set a timer of the window."""
        self._timers.event().register(time, self._scope.current.key[1])

    def register_processing_time_timer(self, time: int) -> None:
        """Set a timer of the window."""
        self._timers.processing().register(time, self._scope.current.key[1])

    def delete_event_time_timer(self, time: int) -> None:
        """Delete a timer of the window."""
        self._timers.event().delete(time, self._scope.current.key[1])

    def delete_processing_time_timer(self, time: int) -> None:
        """Delete a timer of the window."""
        self._timers.processing().delete(time, self._scope.current.key[1])

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """A state of the window."""
        return self._backend.register(state_descriptor, self._scope)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Merge states of the merged windows."""
        key, namespace = here = self._scope.current.key
        sources = [(key, merged) for merged in self.merged if merged != namespace]
        state = self._backend.register(state_descriptor, self._scope)
        try:
            merge_namespaces(state, self._enter, here, sources)
        finally:
            self._enter(here)

    def get_metric_group(self) -> MetricGroup:
        """Where to register metrics."""
        return self._metrics


@public_name("KeyedStateStore")
class ScopedStates(DescribedStates):
    """The states of one scope."""

    __slots__ = ("_backend", "_scope")

    def __init__(self, backend: KeyedStateBackend, scope: StateScope | None) -> None:
        """States of the void namespace if `scope` is None."""
        self._backend = backend
        self._scope = scope

    def _register(self, descriptor: StateDescriptor) -> Any:
        return self._backend.register(descriptor, self._scope)


@public_name("WindowContext")
class FunctionContext(WindowContext):
    """Context of a process window function."""

    __slots__ = ("_global", "_own", "_timers", "at_hand")

    def __init__(
        self, timers: SubtaskTimers, backend: KeyedStateBackend, scope: StateScope | None
    ) -> None:
        """`scope` has the states of single windows; None where windows merge."""
        self._timers = timers
        self._own = None if scope is None else ScopedStates(backend, scope)
        self._global = ScopedStates(backend, None)
        self.at_hand: Any = None

    def window(self) -> Any:
        """The window."""
        return self.at_hand

    def current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        """The current watermark."""
        return self._timers.watermark

    def window_state(self) -> KeyedStateStore:
        """State of the window."""
        if self._own is None:
            raise StateAccessError(
                "windows that merge, such as sessions, have no per-window state, since it could "
                "not be merged; use global_state()"
            )
        return self._own

    def global_state(self) -> KeyedStateStore:
        """State of the key."""
        return self._global
