"""The contexts that user functions get while they run on a subtask."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, NoReturn

from typing_extensions import override

from holdfast.api.functions import (
    KeyedProcessContext,
    KeyedStateStore,
    KeyedTimerContext,
    RuntimeContext,
    SinkContext,
    TimerService,
)
from holdfast.api.metrics import MetricGroup
from holdfast.api.names import public_name
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import StateAccessError
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.api.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from holdfast.api.time import TimeDomain
    from holdfast.clock import Clock
    from holdfast.runtime.plan import OperatorPlan
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.table import CurrentKey
    from holdfast.state.timers.table import TimerTable

LATE_DROPPED: Final = "numLateRecordsDropped"
"""Name of the counter of late elements that were dropped."""


class DescribedStates(KeyedStateStore):
    """Gives access to states by their descriptors, with one method per kind."""

    __slots__ = ()

    @override
    def get_state(self, descriptor: ValueStateDescriptor) -> Any:
        return self._checked(descriptor, "ValueStateDescriptor", "value")

    @override
    def get_list_state(self, descriptor: ListStateDescriptor) -> Any:
        return self._checked(descriptor, "ListStateDescriptor", "list")

    @override
    def get_map_state(self, descriptor: MapStateDescriptor) -> Any:
        return self._checked(descriptor, "MapStateDescriptor", "map")

    @override
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> Any:
        return self._checked(descriptor, "ReducingStateDescriptor", "reducing")

    @override
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> Any:
        return self._checked(descriptor, "AggregatingStateDescriptor", "aggregating")

    def _checked(self, descriptor: StateDescriptor, wanted: str, kind: str) -> Any:
        if type(descriptor).__name__ != wanted:
            raise TypeError(f"a {kind} state is described by a {wanted}, not by {descriptor!r}")
        return self._register(descriptor)

    @abstractmethod
    def _register(self, descriptor: StateDescriptor) -> Any:
        """Handle to a state of any kind."""


@public_name("RuntimeContext")
class SubtaskContext(DescribedStates, RuntimeContext):
    """The runtime context of one operator on one subtask."""

    def __init__(
        self,
        operator: OperatorPlan,
        subtask: int,
        job_parameters: Mapping[str, str],
        keyed_state: Callable[[], KeyedStateBackend] | None,
    ) -> None:
        """A context; `keyed_state` opens the state on first use, None if not keyed."""
        self._operator = operator
        self._subtask = subtask
        self._attempt = 0
        self._job_parameters = job_parameters
        self._keyed_state = keyed_state
        self._metrics = MetricGroup()

    def begin(self, attempt: int) -> None:
        """Prepare for an epoch: metrics start again, gauges stay."""
        self._attempt = attempt
        self._metrics.reset()

    def get_index_of_this_subtask(self) -> int:
        """Index of this subtask, from 0."""
        return self._subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of this operator."""
        return self._operator.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism of this operator."""
        return self._operator.max_parallelism

    def get_attempt_number(self) -> int:
        """Number of earlier attempts of this subtask in this epoch."""
        return self._attempt

    def get_task_name(self) -> str:
        """Name of the operator."""
        return self._operator.name

    def get_job_parameter(self, key: str, default: str | None = None) -> str | None:
        """A parameter of the job."""
        return self._job_parameters.get(key, default)

    def get_job_parameters(self) -> Mapping[str, str]:
        """All parameters of the job."""
        return self._job_parameters

    def get_metrics_group(self) -> MetricGroup:
        """Where to register metrics."""
        return self._metrics

    def _register(self, descriptor: StateDescriptor) -> Any:
        if self._keyed_state is None:
            self._refuse(descriptor)
        return self._keyed_state().register(descriptor)

    def _refuse(self, descriptor: StateDescriptor) -> NoReturn:
        raise StateAccessError(
            f"operator {self._operator.name!r} asked for the {descriptor.kind} state "
            f"{descriptor.name!r}: keyed state can only be used on a 'keyed stream', i.e. after "
            "a key_by()"
        )


@public_name("TimerService")
class SubtaskTimers(TimerService):
    """The clock, the watermark and the timers of one operator on one subtask."""

    __slots__ = (
        "_clock",
        "_event",
        "_keyed_state",
        "_operator",
        "_processing",
        "event_time",
        "warnings",
        "watermark",
    )

    def __init__(
        self,
        operator: OperatorPlan,
        clock: Clock,
        keyed_state: Callable[[], KeyedStateBackend] | None,
    ) -> None:
        """`keyed_state` opens the state on first use; None where there are no timers."""
        self._operator = operator
        self._clock = clock
        self._keyed_state = keyed_state
        self._event: TimerTable | None = None
        self._processing: TimerTable | None = None
        self.begin(MIN_WATERMARK)

    def begin(self, watermark: int) -> None:
        """Prepare for an epoch that starts with a watermark."""
        self.event_time = MIN_WATERMARK
        self.warnings: list[str] = []
        self.advance(watermark)

    def advance(self, watermark: int) -> None:
        """Set the watermark."""
        self.watermark = watermark
        # The end of the input is not a time: a later job may continue from a checkpoint.
        if watermark != MAX_WATERMARK:
            self.event_time = watermark

    def current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        return self._clock.now_ms()

    def current_watermark(self) -> int:
        """The current watermark."""
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        """Set a timer for the current key."""
        (self._event or self.event()).register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Set a timer for the current key."""
        (self._processing or self.processing()).register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key."""
        (self._event or self.event()).delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key."""
        (self._processing or self.processing()).delete(timestamp)

    def event(self) -> TimerTable:
        """Timers in event time."""
        if self._event is None:
            self._event = self._table(EVENT_TIMERS)
            if not self._operator.timed:
                self.warnings.append(
                    f"operator {self._operator.name!r} (uid {self._operator.uid!r}) sets timers in "
                    "event time, but its input has no watermarks, so they fire only at the end of "
                    "the input; call assign_timestamps_and_watermarks() on it before key_by"
                )
        return self._event

    def processing(self) -> TimerTable:
        """Timers in processing time."""
        if self._processing is None:
            self._processing = self._table(PROCESSING_TIMERS)
        return self._processing

    def _table(self, name: str) -> TimerTable:
        if self._keyed_state is None:
            raise StateAccessError(
                f"operator {self._operator.name!r} used a timer: timers can only be set on a "
                "'keyed stream', i.e. after a key_by(), in a process function"
            )
        return self._keyed_state().timers(name)


class EventTime:
    """Event time for states with a TTL: it passes with the watermark."""

    __slots__ = ("_at_hand", "_timers")

    def __init__(self, timers: SubtaskTimers, at_hand: Callable[[], int | None]) -> None:
        """`at_hand` gives the event time of the current element, if there is one."""
        self._timers = timers
        self._at_hand = at_hand

    def now(self) -> int:
        """The watermark; after the end of the input, the last one before it."""
        return self._timers.event_time

    def stamp(self) -> int:
        """Event time of the current element, but no earlier than the watermark."""
        now, time = self._timers.event_time, self._at_hand()
        return now if time is None or time < now else time


@public_name("Context")
class ElementContext(KeyedProcessContext, SinkContext):
    """Context of the current element."""

    __slots__ = ("_current", "_timers", "time")

    def __init__(self, current: CurrentKey, timers: TimerService) -> None:
        """A context that follows the current key."""
        self._current = current
        self._timers = timers
        self.time: int | None = None

    def timer_service(self) -> TimerService:
        """The clock, the watermark and the timers."""
        return self._timers

    def get_current_key(self) -> Any:
        """Key of the element."""
        return self._current.key

    def timestamp(self) -> int | None:
        """Event time of the element, or None."""
        return self.time


@public_name("KeyedTimerContext")
class TimerContext(ElementContext, KeyedTimerContext):
    """Context of the timer that fires."""

    __slots__ = ("_domain",)

    def __init__(self, current: CurrentKey, timers: TimerService, domain: TimeDomain) -> None:
        """A context for timers of one domain."""
        super().__init__(current, timers)
        self._domain = domain

    def time_domain(self) -> TimeDomain:
        """Time domain of the timer."""
        return self._domain
