from holdfast.api.checkpointed import CheckpointedFunction as CheckpointedFunction
from holdfast.api.checkpointed import CheckpointListener as CheckpointListener
from holdfast.api.checkpointed import FunctionInitializationContext as FunctionInitializationContext
from holdfast.api.checkpointed import FunctionSnapshotContext as FunctionSnapshotContext
from holdfast.api.checkpointed import ListCheckpointed as ListCheckpointed
from holdfast.api.checkpointed import OperatorStateStore as OperatorStateStore
from holdfast.api.co_functions import BroadcastProcessFunction as BroadcastProcessFunction
from holdfast.api.co_functions import CoFlatMapFunction as CoFlatMapFunction
from holdfast.api.co_functions import CoMapFunction as CoMapFunction
from holdfast.api.co_functions import CoProcessFunction as CoProcessFunction
from holdfast.api.co_functions import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
from holdfast.api.co_functions import KeyedCoProcessFunction as KeyedCoProcessFunction
from holdfast.api.co_functions import ProcessJoinFunction as ProcessJoinFunction
from holdfast.api.co_functions import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from holdfast.api.descriptors import AggregatingStateDescriptor as AggregatingStateDescriptor
from holdfast.api.descriptors import ListStateDescriptor as ListStateDescriptor
from holdfast.api.descriptors import MapStateDescriptor as MapStateDescriptor
from holdfast.api.descriptors import ReducingStateDescriptor as ReducingStateDescriptor
from holdfast.api.descriptors import ValueStateDescriptor as ValueStateDescriptor
from holdfast.api.functions import AggregateFunction as AggregateFunction
from holdfast.api.functions import FilterFunction as FilterFunction
from holdfast.api.functions import FlatMapFunction as FlatMapFunction
from holdfast.api.functions import KeyedProcessFunction as KeyedProcessFunction
from holdfast.api.functions import KeySelector as KeySelector
from holdfast.api.functions import MapFunction as MapFunction
from holdfast.api.functions import ProcessFunction as ProcessFunction
from holdfast.api.functions import ReduceFunction as ReduceFunction
from holdfast.api.functions import RuntimeContext as RuntimeContext
from holdfast.api.functions import SinkFunction as SinkFunction
from holdfast.api.functions import TimerService as TimerService
from holdfast.api.outputs import ErrorPolicy as ErrorPolicy
from holdfast.api.outputs import FailedRow as FailedRow
from holdfast.api.outputs import OutputTag as OutputTag
from holdfast.api.sinks import CommitRequest as CommitRequest
from holdfast.api.sinks import Committer as Committer
from holdfast.api.sinks import Sink as Sink
from holdfast.api.sinks import SinkWriter as SinkWriter
from holdfast.api.sinks import SparkSink as SparkSink
from holdfast.api.sinks import WriterContext as WriterContext
from holdfast.api.sources import ReplayableSource as ReplayableSource
from holdfast.api.state import AggregatingState as AggregatingState
from holdfast.api.state import ListState as ListState
from holdfast.api.state import MapState as MapState
from holdfast.api.state import ReducingState as ReducingState
from holdfast.api.state import ValueState as ValueState
from holdfast.api.streams.connected import BroadcastStream as BroadcastStream
from holdfast.api.streams.connected import ConnectedStreams as ConnectedStreams
from holdfast.api.streams.data_stream import DataStream as DataStream
from holdfast.api.streams.keyed_stream import KeyedStream as KeyedStream
from holdfast.api.streams.windowed import WindowedStream as WindowedStream
from holdfast.api.time import MAX_WATERMARK as MAX_WATERMARK
from holdfast.api.time import MIN_WATERMARK as MIN_WATERMARK
from holdfast.api.time import Duration as Duration
from holdfast.api.time import TimeDomain as TimeDomain
from holdfast.api.time import TimestampAssigner as TimestampAssigner
from holdfast.api.time import WatermarkStrategy as WatermarkStrategy
from holdfast.api.ttl import StateTtlConfig as StateTtlConfig
from holdfast.api.two_phase_commit import TwoPhaseCommitSinkFunction as TwoPhaseCommitSinkFunction
from holdfast.api.windows.assigners import EventTimeSessionWindows as EventTimeSessionWindows
from holdfast.api.windows.assigners import GlobalWindows as GlobalWindows
from holdfast.api.windows.assigners import MergingWindowAssigner as MergingWindowAssigner
from holdfast.api.windows.assigners import (
    ProcessingTimeSessionWindows as ProcessingTimeSessionWindows,
)
from holdfast.api.windows.assigners import (
    SessionWindowTimeGapExtractor as SessionWindowTimeGapExtractor,
)
from holdfast.api.windows.assigners import SlidingEventTimeWindows as SlidingEventTimeWindows
from holdfast.api.windows.assigners import (
    SlidingProcessingTimeWindows as SlidingProcessingTimeWindows,
)
from holdfast.api.windows.assigners import TumblingEventTimeWindows as TumblingEventTimeWindows
from holdfast.api.windows.assigners import (
    TumblingProcessingTimeWindows as TumblingProcessingTimeWindows,
)
from holdfast.api.windows.assigners import WindowAssigner as WindowAssigner
from holdfast.api.windows.continuous_triggers import (
    ContinuousEventTimeTrigger as ContinuousEventTimeTrigger,
)
from holdfast.api.windows.continuous_triggers import (
    ContinuousProcessingTimeTrigger as ContinuousProcessingTimeTrigger,
)
from holdfast.api.windows.evictors import CountEvictor as CountEvictor
from holdfast.api.windows.evictors import DeltaEvictor as DeltaEvictor
from holdfast.api.windows.evictors import Evictor as Evictor
from holdfast.api.windows.evictors import TimeEvictor as TimeEvictor
from holdfast.api.windows.evictors import TimestampedValue as TimestampedValue
from holdfast.api.windows.functions import AllWindowFunction as AllWindowFunction
from holdfast.api.windows.functions import CoGroupFunction as CoGroupFunction
from holdfast.api.windows.functions import FlatJoinFunction as FlatJoinFunction
from holdfast.api.windows.functions import JoinFunction as JoinFunction
from holdfast.api.windows.functions import ProcessAllWindowFunction as ProcessAllWindowFunction
from holdfast.api.windows.functions import ProcessWindowFunction as ProcessWindowFunction
from holdfast.api.windows.functions import WindowFunction as WindowFunction
from holdfast.api.windows.triggers import CountTrigger as CountTrigger
from holdfast.api.windows.triggers import EventTimeTrigger as EventTimeTrigger
from holdfast.api.windows.triggers import NeverTrigger as NeverTrigger
from holdfast.api.windows.triggers import ProcessingTimeTrigger as ProcessingTimeTrigger
from holdfast.api.windows.triggers import PurgingTrigger as PurgingTrigger
from holdfast.api.windows.triggers import Trigger as Trigger
from holdfast.api.windows.triggers import TriggerResult as TriggerResult
from holdfast.api.windows.windows import GlobalWindow as GlobalWindow
from holdfast.api.windows.windows import TimeWindow as TimeWindow
from holdfast.api.windows.windows import Window as Window
from holdfast.checkpoint.savepoint.comparison import SavepointComparison as SavepointComparison
from holdfast.checkpoint.savepoint.storage import dispose_savepoint as dispose_savepoint
from holdfast.config.backends import EmbeddedRocksDBStateBackend as EmbeddedRocksDBStateBackend
from holdfast.config.backends import HashMapStateBackend as HashMapStateBackend
from holdfast.config.checkpoint_config import CheckpointConfig as CheckpointConfig
from holdfast.config.checkpoint_options import CheckpointingMode as CheckpointingMode
from holdfast.config.checkpoint_options import (
    ExternalizedCheckpointRetention as ExternalizedCheckpointRetention,
)
from holdfast.config.checkpoint_options import RecoveryClaimMode as RecoveryClaimMode
from holdfast.config.checkpoint_options import SavepointFormatType as SavepointFormatType
from holdfast.config.configuration import Configuration as Configuration
from holdfast.config.configuration import RuntimeExecutionMode as RuntimeExecutionMode
from holdfast.config.configuration_file import load_configuration as load_configuration
from holdfast.config.restart import RestartStrategies as RestartStrategies
from holdfast.config.storage import FileSystemCheckpointStorage as FileSystemCheckpointStorage
from holdfast.config.storage import JobManagerCheckpointStorage as JobManagerCheckpointStorage
from holdfast.connectors.files.sink import FileSink as FileSink
from holdfast.connectors.postgres.sink import PostgresSink as PostgresSink
from holdfast.errors import HoldfastError as HoldfastError
from holdfast.errors import StateMigrationError as StateMigrationError
from holdfast.job.model import JobExecutionResult as JobExecutionResult
from holdfast.job.statistics import EpochStatistics as EpochStatistics
from holdfast.job.statistics import JobStatistics as JobStatistics
from holdfast.job.statistics import JobStatus as JobStatus
from holdfast.spark.environment import StreamExecutionEnvironment as StreamExecutionEnvironment
from holdfast.spark.job import JobClient as JobClient
from holdfast.state_processor.max_parallelism import (
    rewrite_max_parallelism as rewrite_max_parallelism,
)
from holdfast.types.avro import AvroSchema as AvroSchema
from holdfast.types.serializers import EvolvingStateSerializer as EvolvingStateSerializer
from holdfast.types.serializers import StateCompatibility as StateCompatibility

__version__: str
