"""The contexts that functions are called with, and interfaces that few functions need."""

from holdfast.api.checkpointed import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListCheckpointed,
    OperatorStateStore,
)
from holdfast.api.co_functions import (
    BroadcastContext,
    BroadcastReadContext,
    BroadcastTimerContext,
    JoinContext,
    KeyedBroadcastContext,
    KeyedBroadcastReadContext,
    ReadOnlyBroadcastState,
)
from holdfast.api.functions import (
    KeyedProcessContext,
    KeyedStateStore,
    KeyedTimerContext,
    ProcessContext,
    SinkContext,
    TimerService,
)
from holdfast.api.time import WatermarkOutput

__all__ = [
    "BroadcastContext",
    "BroadcastReadContext",
    "BroadcastTimerContext",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "JoinContext",
    "KeyedBroadcastContext",
    "KeyedBroadcastReadContext",
    "KeyedProcessContext",
    "KeyedStateStore",
    "KeyedTimerContext",
    "ListCheckpointed",
    "OperatorStateStore",
    "ProcessContext",
    "ReadOnlyBroadcastState",
    "SinkContext",
    "TimerService",
    "WatermarkOutput",
]
