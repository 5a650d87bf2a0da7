"""Holdfast: Apache Flink's state management and fault tolerance for PySpark.

The layers, each importing only those below it:

    connectors          sinks to files and databases
    spark | testing     the Spark side; harnesses for users' own tests
    processor           savepoints worked on offline
    runtime             one subtask's work on record batches; knows no Spark
    checkpoint          how state survives: coordinator, metadata, storage
    state               where values live: stores, codecs, key groups
    api                 what users write: streams, functions, descriptors
    errors | clock | faults | version
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.version import VERSION

if TYPE_CHECKING:
    from holdfast.api.avro import AvroSchema
    from holdfast.api.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend
    from holdfast.api.checkpoint_config import CheckpointConfig
    from holdfast.api.checkpoint_options import (
        CheckpointingMode,
        ExternalizedCheckpointRetention,
        RecoveryClaimMode,
        SavepointFormatType,
    )
    from holdfast.api.checkpoint_storage import (
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
    )
    from holdfast.api.checkpointed import (
        CheckpointedFunction,
        CheckpointListener,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        ListCheckpointed,
        OperatorStateStore,
    )
    from holdfast.api.co_functions import (
        BroadcastProcessFunction,
        CoFlatMapFunction,
        CoMapFunction,
        CoProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        ProcessJoinFunction,
        ReadOnlyBroadcastState,
    )
    from holdfast.api.compatibility import StateCompatibility
    from holdfast.api.configuration import Configuration, RuntimeExecutionMode
    from holdfast.api.configuration_file import load_configuration
    from holdfast.api.connected_streams import BroadcastStream, ConnectedStreams
    from holdfast.api.continuous_triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
    )
    from holdfast.api.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from holdfast.api.driver_sinks import SparkSink
    from holdfast.api.evictors import (
        CountEvictor,
        DeltaEvictor,
        Evictor,
        TimeEvictor,
        TimestampedValue,
    )
    from holdfast.api.functions import (
        AggregateFunction,
        FilterFunction,
        FlatMapFunction,
        KeyedProcessFunction,
        KeySelector,
        MapFunction,
        ProcessFunction,
        ReduceFunction,
        RuntimeContext,
        SinkFunction,
        TimerService,
    )
    from holdfast.api.graph import ErrorPolicy
    from holdfast.api.output import OutputTag
    from holdfast.api.replayable_source import ReplayableSource
    from holdfast.api.restart_strategies import RestartStrategies
    from holdfast.api.sink import CommitRequest, Committer, Sink, SinkWriter, WriterContext
    from holdfast.api.state import AggregatingState, ListState, MapState, ReducingState, ValueState
    from holdfast.api.streams import DataStream, KeyedStream
    from holdfast.api.time import (
        MAX_WATERMARK,
        MIN_WATERMARK,
        Duration,
        TimeDomain,
        TimestampAssigner,
        WatermarkStrategy,
    )
    from holdfast.api.triggers import (
        CountTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
        Trigger,
        TriggerResult,
    )
    from holdfast.api.ttl import StateTtlConfig
    from holdfast.api.two_phase_commit import TwoPhaseCommitSinkFunction
    from holdfast.api.types import EvolvingStateSerializer
    from holdfast.api.window_assigners import (
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
    )
    from holdfast.api.window_functions import (
        AllWindowFunction,
        CoGroupFunction,
        FlatJoinFunction,
        JoinFunction,
        ProcessAllWindowFunction,
        ProcessWindowFunction,
        WindowFunction,
    )
    from holdfast.api.windowed_streams import WindowedStream
    from holdfast.api.windows import GlobalWindow, TimeWindow, Window
    from holdfast.checkpoint.savepoint import dispose_savepoint
    from holdfast.connectors.file_sink import FileSink
    from holdfast.connectors.jdbc_sink import JdbcSink
    from holdfast.errors import HoldfastError, StateMigrationError
    from holdfast.processor.max_parallelism import rewrite_max_parallelism
    from holdfast.runtime.operators import FailedRow
    from holdfast.spark.environment import StreamExecutionEnvironment
    from holdfast.spark.job import JobClient, JobExecutionResult
    from holdfast.spark.savepoint_comparison import SavepointComparison
    from holdfast.spark.statistics import EpochStatistics, JobStatistics, JobStatus

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AvroSchema",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CommitRequest",
    "Committer",
    "Configuration",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DataStream",
    "DeltaEvictor",
    "Duration",
    "EmbeddedRocksDBStateBackend",
    "EpochStatistics",
    "ErrorPolicy",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvolvingStateSerializer",
    "ExternalizedCheckpointRetention",
    "FailedRow",
    "FileSink",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindow",
    "GlobalWindows",
    "HashMapStateBackend",
    "HoldfastError",
    "JdbcSink",
    "JobClient",
    "JobExecutionResult",
    "JobManagerCheckpointStorage",
    "JobStatistics",
    "JobStatus",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListCheckpointed",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MergingWindowAssigner",
    "NeverTrigger",
    "OperatorStateStore",
    "OutputTag",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReadOnlyBroadcastState",
    "RecoveryClaimMode",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "ReplayableSource",
    "RestartStrategies",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SavepointComparison",
    "SavepointFormatType",
    "SessionWindowTimeGapExtractor",
    "Sink",
    "SinkFunction",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SparkSink",
    "StateCompatibility",
    "StateMigrationError",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampAssigner",
    "TimestampedValue",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TwoPhaseCommitSinkFunction",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "WriterContext",
    "dispose_savepoint",
    "load_configuration",
    "rewrite_max_parallelism",
]

__version__ = VERSION

_HOMES = {
    "holdfast.api.avro": "AvroSchema",
    "holdfast.api.backends": "EmbeddedRocksDBStateBackend HashMapStateBackend",
    "holdfast.api.checkpoint_config": "CheckpointConfig",
    "holdfast.api.checkpoint_options": "CheckpointingMode ExternalizedCheckpointRetention "
    "RecoveryClaimMode SavepointFormatType",
    "holdfast.api.checkpoint_storage": "FileSystemCheckpointStorage JobManagerCheckpointStorage",
    "holdfast.api.checkpointed": "CheckpointListener CheckpointedFunction "
    "FunctionInitializationContext FunctionSnapshotContext ListCheckpointed OperatorStateStore",
    "holdfast.api.co_functions": "BroadcastProcessFunction CoFlatMapFunction CoMapFunction "
    "CoProcessFunction KeyedBroadcastProcessFunction KeyedCoProcessFunction ProcessJoinFunction "
    "ReadOnlyBroadcastState",
    "holdfast.api.compatibility": "StateCompatibility",
    "holdfast.api.configuration": "Configuration RuntimeExecutionMode",
    "holdfast.api.configuration_file": "load_configuration",
    "holdfast.api.connected_streams": "BroadcastStream ConnectedStreams",
    "holdfast.api.descriptors": "AggregatingStateDescriptor ListStateDescriptor "
    "MapStateDescriptor ReducingStateDescriptor ValueStateDescriptor",
    "holdfast.api.driver_sinks": "SparkSink",
    "holdfast.api.functions": "AggregateFunction FilterFunction FlatMapFunction KeySelector "
    "KeyedProcessFunction MapFunction ProcessFunction ReduceFunction RuntimeContext SinkFunction "
    "TimerService",
    "holdfast.api.graph": "ErrorPolicy",
    "holdfast.api.output": "OutputTag",
    "holdfast.api.replayable_source": "ReplayableSource",
    "holdfast.api.restart_strategies": "RestartStrategies",
    "holdfast.api.sink": "CommitRequest Committer Sink SinkWriter WriterContext",
    "holdfast.api.state": "AggregatingState ListState MapState ReducingState ValueState",
    "holdfast.api.streams": "DataStream KeyedStream",
    "holdfast.api.time": "Duration MAX_WATERMARK MIN_WATERMARK TimeDomain TimestampAssigner "
    "WatermarkStrategy",
    "holdfast.api.ttl": "StateTtlConfig",
    "holdfast.api.two_phase_commit": "TwoPhaseCommitSinkFunction",
    "holdfast.api.types": "EvolvingStateSerializer",
    "holdfast.api.continuous_triggers": "ContinuousEventTimeTrigger "
    "ContinuousProcessingTimeTrigger",
    "holdfast.api.evictors": "CountEvictor DeltaEvictor Evictor TimeEvictor TimestampedValue",
    "holdfast.api.triggers": "CountTrigger EventTimeTrigger NeverTrigger ProcessingTimeTrigger "
    "PurgingTrigger Trigger TriggerResult",
    "holdfast.api.window_assigners": "EventTimeSessionWindows GlobalWindows "
    "MergingWindowAssigner ProcessingTimeSessionWindows SessionWindowTimeGapExtractor "
    "SlidingEventTimeWindows SlidingProcessingTimeWindows TumblingEventTimeWindows "
    "TumblingProcessingTimeWindows WindowAssigner",
    "holdfast.api.window_functions": "AllWindowFunction CoGroupFunction FlatJoinFunction "
    "JoinFunction ProcessAllWindowFunction ProcessWindowFunction WindowFunction",
    "holdfast.api.windowed_streams": "WindowedStream",
    "holdfast.api.windows": "GlobalWindow TimeWindow Window",
    "holdfast.connectors.file_sink": "FileSink",
    "holdfast.connectors.jdbc_sink": "JdbcSink",
    "holdfast.checkpoint.savepoint": "dispose_savepoint",
    "holdfast.errors": "HoldfastError StateMigrationError",
    "holdfast.processor.max_parallelism": "rewrite_max_parallelism",
    "holdfast.runtime.operators": "FailedRow",
    "holdfast.spark.environment": "StreamExecutionEnvironment",
    "holdfast.spark.job": "JobClient JobExecutionResult",
    "holdfast.spark.savepoint_comparison": "SavepointComparison",
    "holdfast.spark.statistics": "EpochStatistics JobStatistics JobStatus",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name on first use: workers and tests need not load what they leave."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
