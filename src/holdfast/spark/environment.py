"""The entry to Holdfast: where programs are built and run."""

from __future__ import annotations

import dataclasses
import sys
import uuid
import warnings
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.api import configuration as conf
from holdfast.api.backends import EmbeddedRocksDBStateBackend, StateBackend, backend_named
from holdfast.api.checkpoint_config import CheckpointConfig
from holdfast.api.checkpoint_options import (
    IGNORE_UNCLAIMED_STATE,
    INCREMENTAL,
    RECOVERY_PATH,
    SAVEPOINT_DIR,
    CheckpointingMode,
)
from holdfast.api.checkpoint_settings import checkpoint_settings
from holdfast.api.configuration import Configuration, RuntimeExecutionMode
from holdfast.api.configuration_file import load_configuration
from holdfast.api.driver_sinks import CollectSink
from holdfast.api.graph import Edge, JobGraph, Kind
from holdfast.api.inference import infer_type
from holdfast.api.parallelism import check_max_parallelism
from holdfast.api.restart_strategies import FallBack, RestartStrategy, restart_strategy
from holdfast.api.streams import DataStream
from holdfast.api.types import StreamType
from holdfast.errors import ConfigurationError
from holdfast.spark.checkpointing import Checkpointing, RecoveryOrder
from holdfast.spark.collecting import CollectedResults
from holdfast.spark.compiler import JobPlan, Settings, compile_job
from holdfast.spark.indexed_source import IndexedElements, data_source
from holdfast.spark.job import JobClient, JobExecutionResult, JobOrder, new_job_id
from holdfast.spark.lookups import make_lookup
from holdfast.spark.pace import pace_of, runs_as_batch
from holdfast.spark.progress import wait_watched
from holdfast.spark.replayable_source import replayed
from holdfast.spark.session import check_session, local_session
from holdfast.spark.source import (
    Source,
    as_stream,
    check_classic_frame,
    check_streaming_frame,
)
from holdfast.spark.types import spark_schema, stream_type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.checkpointed import CheckpointListener
    from holdfast.api.lookup import LookupJoin
    from holdfast.api.options import ConfigOption, Duration
    from holdfast.api.replayable_source import ReplayableSource
    from holdfast.spark.incarnation import Pace
    from holdfast.spark.statistics import EpochStatistics


PREVIEW = "preview"
"""Id of the job that `explain` describes."""


class StreamExecutionEnvironment:
    """Builds streams from sources and runs them as one Spark query."""

    def __init__(self, spark: SparkSession, configuration: Configuration) -> None:
        """Use `get_execution_environment`."""
        self.spark = spark
        self.graph = JobGraph()
        self._configuration = configuration
        self._backend: StateBackend | None = None
        self._restart_strategy: RestartStrategy | None = None
        self._job_parameters: dict[str, str] = {}
        self._listeners: list[Callable[[EpochStatistics], None]] = []
        self._checkpoint_listeners: list[CheckpointListener] = []

    @staticmethod
    def get_execution_environment(
        spark: SparkSession | None = None, configuration: Configuration | None = None
    ) -> StreamExecutionEnvironment:
        """An environment on the given session, or on a local one.

        Args:
            spark: Your own classic session; without one, the session that runs in this
                process, or a new one on this machine's cores.
            configuration: Settings by Flink's keys; they go before those of `holdfast.yaml`
                in the working directory, or of the file that HOLDFAST_CONF names.
        """
        session = check_session(local_session() if spark is None else spark)
        return StreamExecutionEnvironment(
            session, load_configuration().update(configuration or Configuration())
        )

    # Settings

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Number of subtasks of operators that set none themselves."""
        return self._set(conf.PARALLELISM, parallelism)

    def get_parallelism(self) -> int:
        """Number of subtasks of operators that set none themselves."""
        given = self._configuration.get(conf.PARALLELISM)
        return given or self.spark.sparkContext.defaultParallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Number of key groups of operators that set none themselves."""
        check_max_parallelism(max_parallelism, "set_max_parallelism")
        return self._set(conf.MAX_PARALLELISM, max_parallelism)

    def get_max_parallelism(self) -> int | None:
        """Number of key groups that was set, or None."""
        return self._configuration.get(conf.MAX_PARALLELISM)

    def set_state_backend(self, backend: StateBackend) -> StreamExecutionEnvironment:
        """Say where local state is kept; goes before `state.backend.type`."""
        self._backend = backend
        return self

    def get_state_backend(self) -> StateBackend:
        """Where local state is kept."""
        return self._backend or backend_named(self._configuration.get(conf.STATE_BACKEND))

    def enable_checkpointing(
        self, interval: Duration, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint so often, in milliseconds.

        Args:
            interval: Time from one checkpoint to the next, at least 10 ms.
            mode: Exactly once or at least once; as configured if not given, which is exactly
                once unless set otherwise.
        """
        if mode is not None:
            self.get_checkpoint_config().set_checkpointing_mode(mode)
        self.get_checkpoint_config().set_checkpoint_interval(interval)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """How checkpoints are taken; setters on it act on this environment."""
        return CheckpointConfig(self._configuration)

    def get_checkpoint_interval(self) -> int | None:
        """Milliseconds from one checkpoint to the next, or None if none are taken."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly once or at least once."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def set_default_savepoint_directory(self, directory: str) -> StreamExecutionEnvironment:
        """Directory of savepoints for which none is named."""
        return self._set(SAVEPOINT_DIR, directory)

    def get_default_savepoint_directory(self) -> str | None:
        """Directory of savepoints for which none is named, or None."""
        return self._configuration.get(SAVEPOINT_DIR)

    def set_restart_strategy(
        self, strategy: RestartStrategy | FallBack
    ) -> StreamExecutionEnvironment:
        """Say what follows a failure; goes before `restart-strategy.type`."""
        if not isinstance(strategy, RestartStrategy | FallBack):
            raise ConfigurationError(
                f"set_restart_strategy: {strategy!r} is not a restart strategy; make one with "
                "RestartStrategies"
            )
        self._restart_strategy = None if isinstance(strategy, FallBack) else strategy
        return self

    def get_restart_strategy(self) -> RestartStrategy:
        """What follows a failure."""
        checkpointing = self.get_checkpoint_config().is_checkpointing_enabled()
        return self._restart_strategy or restart_strategy(
            self._configuration, checkpointing=checkpointing
        )

    def set_job_id(self, job_id: str) -> StreamExecutionEnvironment:
        """Lasting id of the job, under which a lost driver's successor finds its checkpoints."""
        return self._set(conf.JOB_ID, job_id)

    def set_runtime_mode(self, mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Run as a stream, in one pass, or as the sources suggest."""
        return self._set(conf.RUNTIME_MODE, mode)

    def set_epoch_interval(self, milliseconds: int) -> StreamExecutionEnvironment:
        """Least time from the start of one epoch to the next."""
        return self._set(conf.EPOCH_INTERVAL, milliseconds)

    def set_max_events_per_epoch(self, events: int) -> StreamExecutionEnvironment:
        """Most events an epoch takes from a source that can limit them."""
        return self._set(conf.MAX_EVENTS_PER_EPOCH, events)

    def set_available_now(self, available_now: bool = True) -> StreamExecutionEnvironment:
        """Process all there is when the job starts, then finish."""
        return self._set(conf.AVAILABLE_NOW, available_now)

    def configure(self, configuration: Configuration) -> StreamExecutionEnvironment:
        """Take over settings."""
        self._configuration.update(configuration)
        return self

    def set_job_parameters(self, parameters: Mapping[str, str]) -> StreamExecutionEnvironment:
        """Parameters that every function can read from its runtime context."""
        self._job_parameters = dict(parameters)
        return self

    def add_epoch_listener(
        self, listener: Callable[[EpochStatistics], None]
    ) -> StreamExecutionEnvironment:
        """Have `listener` called on the driver after every epoch."""
        self._listeners.append(listener)
        return self

    def add_checkpoint_listener(self, listener: CheckpointListener) -> StreamExecutionEnvironment:
        """Have `listener` told, on the driver and at once, how checkpoints end.

        A function that is a listener itself is told in the tasks, in the next epoch.
        """
        self._checkpoint_listeners.append(listener)
        return self

    def _set(self, option: ConfigOption[Any], value: object) -> StreamExecutionEnvironment:
        self._configuration.set(option, value)
        return self

    # Sources

    def from_dataframe(self, df: DataFrame, name: str | None = None) -> DataStream:
        """A stream of a DataFrame's rows. A static one is bounded, a streaming one is not."""
        check_classic_frame(df)
        if df.isStreaming:
            check_streaming_frame(df)
            source = Source("a streaming DataFrame", False, lambda _: df, None)
        else:
            stream = partial(as_stream, df)
            source = Source("a static DataFrame", True, stream, lambda: df, one_pass=True)
        zone = self.spark.conf.get("spark.sql.session.timeZone")
        stream_type = stream_type_of(df.schema, zone=zone or "UTC")
        return self._add_source(source, stream_type, name or "Source: dataframe")

    def from_collection(
        self, collection: Iterable[Any], type_info: Any = None, name: str | None = None
    ) -> DataStream:
        """A bounded stream of Python values, in their order."""
        elements = list(collection)
        stream_type = infer_type(elements) if type_info is None else StreamType.of(type_info)
        indexed = IndexedElements(
            name=f"holdfast_{uuid.uuid4().hex}",
            type=stream_type,
            count=len(elements),
            partitions=1,
            elements=elements,
        )
        return self._add_indexed(indexed, name or "Source: collection", f"{len(elements)} elements")

    def from_generator(
        self,
        function: Callable[[int], Any],
        *,
        count: int | None = None,
        rate: float | None = None,
        type_info: Any = None,
        name: str | None = None,
    ) -> DataStream:
        """A stream of what `function` makes of the numbers 0, 1, 2, ...

        The function must make the same element of a number every time: after a failure
        elements are made again.

        Args:
            function: Makes an element from its number.
            count: Elements there are; the stream is bounded if given.
            rate: Elements a second; as fast as they are processed if not given.
            type_info: Type of the elements; taken from the function's annotation if not given.
            name: Name of the source.
        """
        if count is not None and count < 0:
            raise ConfigurationError(f"from_generator: count must not be negative, not {count}")
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"from_generator: rate must be positive, not {rate}")
        indexed = IndexedElements(
            name=f"holdfast_{uuid.uuid4().hex}",
            type=_generated_type(function, type_info),
            count=count,
            partitions=self.get_parallelism(),
            elements=function,
            rate=rate,
        )
        described = "generated" if count is None else f"{count} generated elements"
        return self._add_indexed(indexed, name or "Source: generator", described)

    def _add_indexed(self, indexed: IndexedElements, name: str, described: str) -> DataStream:
        schema = spark_schema(indexed.type.schema)

        def register() -> str:
            limited = dataclasses.replace(
                indexed,
                max_rows=self._configuration.get(conf.MAX_EVENTS_PER_EPOCH),
                partitions=node.parallelism or indexed.partitions,
            )
            self.spark.dataSource.register(data_source(limited, schema))
            return indexed.name

        source = Source(
            described,
            indexed.count is not None,
            lambda _: self.spark.readStream.format(register()).load(),
            lambda: self.spark.read.format(register()).load(),
            endless=indexed.count is None,
        )
        stream = self._add_source(source, indexed.type, name)
        [node] = self.graph.nodes[-1:]
        return stream

    def add_source(
        self, source: ReplayableSource, type_info: Any = None, name: str | None = None
    ) -> DataStream:
        """A stream of what a source of your own gives; see `ReplayableSource`.

        Args:
            source: The source; it must be picklable.
            type_info: Type of the elements; taken from the annotation of `read` if not given,
                and pickled objects if that has none.
            name: Name of the source.
        """
        return self._add_source(*replayed(self.spark, source, type_info, name))

    def _add_source(self, source: Source, stream_type: StreamType, name: str) -> DataStream:
        node = self.graph.add(Kind.SOURCE, (), stream_type, function=source, name=name)
        return DataStream(self, (Edge(node, None, stream_type),))

    def lookup(
        self, stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: str
    ) -> LookupJoin:
        """The join of a stream's rows with a table; see `DataStream.lookup_join`."""
        zone = self.spark.conf.get("spark.sql.session.timeZone")
        return make_lookup(stream, table, on, refresh_interval, how, zone or "UTC")

    # Execution

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run what was built since the last execution, and wait for its end.

        An interrupt from the keyboard cancels the job.
        """
        client = self.execute_async(job_name)
        shown = self._configuration.get(conf.PROGRESS)
        watched = shown == "on" or (shown == "auto" and sys.stderr.isatty())
        try:
            return wait_watched(client) if watched else client.result()
        except KeyboardInterrupt:
            client.cancel()
            raise

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start what was built since the last execution."""
        settings = self._configuration
        job_id = settings.get(conf.JOB_ID) or new_job_id()
        checkpointing = self._checkpointing(job_id)
        graph, plan, pace = self._compiled(checkpointing)
        order = JobOrder(
            name=job_name or settings.get(conf.JOB_NAME),
            job_id=job_id,
            plan=plan,
            pace=pace,
            restarts=self.get_restart_strategy(),
            lasting_id=settings.get(conf.JOB_ID) is not None,
            local_dir=settings.get(conf.LOCAL_STATE_DIR),
            listeners=tuple(self._listeners),
        )
        client = JobClient(self.spark, order, checkpointing)
        client.start()
        self.graph.mark_executed(graph)
        return client

    def _checkpointing(self, job_id: str) -> Checkpointing:
        """How the job takes checkpoints; a job that runs in one pass takes none."""
        backend = self.get_state_backend()
        settings = None
        if not pace_of(self.graph.pending(), self._configuration).one_pass:
            settings = checkpoint_settings(self._configuration)
            if settings is not None and getattr(backend, "enable_incremental_checkpointing", False):
                settings = dataclasses.replace(settings, incremental=True)
        recovery = RecoveryOrder(
            self._configuration.get(RECOVERY_PATH), self._configuration.get(IGNORE_UNCLAIMED_STATE)
        )
        listeners = tuple(self._checkpoint_listeners)
        return Checkpointing(job_id, backend, settings, recovery, listeners)

    def execute_and_collect(
        self, stream: DataStream, job_name: str | None = None, limit: int | None = None
    ) -> CollectedResults | list[Any]:
        """Run the program and iterate over `stream`; see `DataStream.execute_and_collect`."""
        results = CollectedResults()
        sink = CollectSink(results.collect)
        self.graph.add(Kind.OUTPUT, stream._edges, stream.type, function=sink, name="Collect")
        try:
            results.attach(self.execute_async(job_name))
        except BaseException:
            # Nobody will ever read it, so no later execution may fill it.
            results.close()
            self.graph.nodes.pop()
            raise
        if limit is None:
            return results
        with results:
            return list(islice(results, limit))

    def explain(self) -> str:
        """The job graph with uids and states, and the Spark plan, without running anything.

        Calls `open` on a copy of every keyed function, to learn which states it uses.
        """
        from holdfast.spark.explain import explain_job
        from holdfast.spark.job import preview_rows

        graph, plan, _ = self._compiled(self._checkpointing(PREVIEW))
        return explain_job(graph, plan, preview_rows(self.spark, plan))

    def _compiled(self, checkpointing: Checkpointing) -> tuple[JobGraph, JobPlan, Pace]:
        graph = self.graph.pending()
        settings = self._configuration
        graph.check_uids(generate=settings.get(conf.AUTO_GENERATE_UIDS))
        self._warn_about_uids(graph)
        pace = pace_of(graph, settings)
        plan = compile_job(
            graph,
            Settings(
                parallelism=self.get_parallelism(),
                max_parallelism=settings.get(conf.MAX_PARALLELISM),
                backend=self._backend_of_tasks(),
                batch_mode=runs_as_batch(graph, settings),
                job_parameters=self._job_parameters,
                exactly_once=checkpointing.exactly_once,
                stored_max_parallelism=checkpointing.max_parallelism(),
            ),
        )
        return graph, plan, pace

    def _backend_of_tasks(self) -> StateBackend:
        """The backend, which tells tasks whether checkpoints are incremental, however set."""
        backend = self.get_state_backend()
        if isinstance(backend, EmbeddedRocksDBStateBackend) and self._configuration.get(
            INCREMENTAL
        ):
            return dataclasses.replace(backend, enable_incremental_checkpointing=True)
        return backend

    def _warn_about_uids(self, graph: JobGraph) -> None:
        missing = graph.without_uid()
        if missing and self._configuration.get(conf.CHECKPOINT_INTERVAL) is not None:
            warnings.warn(
                "these stateful operators have no uid, so a changed program may not find their "
                "state again: " + "; ".join(map(str, missing)) + '; call .uid("...") on each',
                stacklevel=4,
            )


def _generated_type(function: Callable[[int], Any], type_info: object) -> StreamType:
    from holdfast.api.types import declared_output

    if type_info is not None:
        return StreamType.of(type_info)
    return declared_output(function, per_element=True) or infer_type([function(0)])
