"""What assigners, triggers, evictors and window functions can learn and do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from holdfast.state.backend import KeyedStateBackend, StateScope


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
        """Where the watermark stands."""
        return self._timers.watermark


class AssignerContext(TimeContext):
    """The same for assigners, for which the clock is past all windows that have fired by it.

    A window fires in its last millisecond. What comes later in that millisecond lies in the
    next one, or the same window would give out two results.
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


class WindowTriggerContext(TimeContext, OnMergeContext):
    """What a trigger does to the window that the scope's current key names."""

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
        """Windows that were merged into the one at hand."""

    def register_event_time_timer(self, time: int) -> None:
        """Set a timer of the window."""
        self._timers.event().register(time, self._scope.current.key[1])

    def register_processing_time_timer(self, time: int) -> None:
        """Set a timer of the window."""
        self._timers.processing().register(time, self._scope.current.key[1])

    def delete_event_time_timer(self, time: int) -> None:
        """Take a timer of the window back."""
        self._timers.event().delete(time, self._scope.current.key[1])

    def delete_processing_time_timer(self, time: int) -> None:
        """Take a timer of the window back."""
        self._timers.processing().delete(time, self._scope.current.key[1])

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """A state of the window."""
        return self._backend.register(state_descriptor, self._scope)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Bring states of the merged windows together."""
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


class ScopedStates(DescribedStates):
    """The states of one scope."""

    __slots__ = ("_backend", "_scope")

    def __init__(self, backend: KeyedStateBackend, scope: StateScope | None) -> None:
        """Those of the void namespace if `scope` is None."""
        self._backend = backend
        self._scope = scope

    def _register(self, descriptor: StateDescriptor) -> Any:
        return self._backend.register(descriptor, self._scope)


class FunctionContext(WindowContext):
    """What a process window function learns about the window at hand."""

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
        """Where the watermark stands."""
        return self._timers.watermark

    def window_state(self) -> KeyedStateStore:
        """State of the window."""
        if self._own is None:
            raise StateAccessError(
                "windows that merge, such as sessions, have no state of their own: it could not be "
                "merged; use global_state()"
            )
        return self._own

    def global_state(self) -> KeyedStateStore:
        """State of the key."""
        return self._global
