"""Windows: assigners, triggers, evictors and the functions that windows call."""

from holdfast.api.streams.windowed import (
    WindowedStream,
)
from holdfast.api.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowAssignerContext,
)
from holdfast.api.windows.continuous_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
)
from holdfast.api.windows.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    EvictorContext,
    TimeEvictor,
    TimestampedValue,
)
from holdfast.api.windows.functions import (
    AllWindowFunction,
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowContext,
    WindowFunction,
)
from holdfast.api.windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    OnMergeContext,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from holdfast.api.windows.windows import (
    GlobalWindow,
    TimeWindow,
    Window,
)

__all__ = [
    "AllWindowFunction",
    "CoGroupFunction",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DeltaEvictor",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "FlatJoinFunction",
    "GlobalWindow",
    "GlobalWindows",
    "JoinFunction",
    "MergingWindowAssigner",
    "NeverTrigger",
    "OnMergeContext",
    "ProcessAllWindowFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "TimestampedValue",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
    "WindowAssignerContext",
    "WindowContext",
    "WindowFunction",
    "WindowedStream",
]
