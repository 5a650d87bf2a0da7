"""The execution environment: builds programs and runs them."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.api.sinks import CollectSink
from holdfast.api.streams.graph import JobGraph, OperatorKind
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.service import CheckpointService, recovery_order
from holdfast.config import configuration as conf
from holdfast.config.backends import EmbeddedRocksDBStateBackend, StateBackend, backend_named
from holdfast.config.checkpoint_config import CheckpointConfig
from holdfast.config.checkpoint_options import (
    CHECKPOINT_INTERVAL,
    CLAIM_MODE,
    IGNORE_UNCLAIMED_STATE,
    INCREMENTAL,
    NUM_RETAINED,
    RECOVERY_PATH,
    SAVEPOINT_DIR,
    CheckpointingMode,
    RecoveryClaimMode,
)
from holdfast.config.checkpointing import checkpoint_settings, savepoint_settings
from holdfast.config.configuration import Configuration, RuntimeExecutionMode
from holdfast.config.configuration_file import load_configuration
from holdfast.config.parallelism import check_max_parallelism
from holdfast.config.restart import FallBack, RestartStrategy, restart_strategy
from holdfast.control.publishing import prepare, publish
from holdfast.errors import ConfigurationError
from holdfast.job.compiler import compile_job, compile_rescaled
from holdfast.job.model import JobExecutionResult, JobPlan, Settings
from holdfast.job.progress import wait_watched
from holdfast.job.results import CollectedResults
from holdfast.job.threads import TimeLimits
from holdfast.job.trigger import job_trigger, runs_as_batch
from holdfast.registry.announcement import announce
from holdfast.spark.explain import answer_preview, explain_job
from holdfast.spark.job import JobClient, new_job_id
from holdfast.spark.session import check_session, local_session
from holdfast.spark.sources.methods import SourceMethods
from holdfast.spark.supervisor import JobOrder, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from pyspark.sql import SparkSession

    from holdfast.api.checkpointed import CheckpointListener
    from holdfast.api.streams.data_stream import Stream
    from holdfast.checkpoint.savepoint.comparison import SavepointComparison
    from holdfast.checkpoint.service import RecoveryOrder
    from holdfast.config.options import ConfigOption, DurationLike, PathLike
    from holdfast.job.statistics import EpochStatistics
    from holdfast.job.trigger import JobTrigger


PREVIEW = "preview"
"""Id of the job that `explain` and `compare_savepoint` compile."""


class StreamExecutionEnvironment(SourceMethods):
    """Builds streams from sources and runs them as one Spark query."""

    def __init__(self, spark: SparkSession, configuration: Configuration) -> None:
        """Use `get_execution_environment`."""
        self.spark = spark
        """The session that jobs run on."""
        self._graph = JobGraph()
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
        """Create an environment on the given session, or on a local one.

        Args:
            spark: A classic session; by default the active session of this process, or a new local
                session on all cores.
            configuration: Settings by Flink's keys. They take precedence over `holdfast.yaml` in
                the working directory, or the file in HOLDFAST_CONF.
        """
        session = check_session(local_session() if spark is None else spark)
        return StreamExecutionEnvironment(
            session, load_configuration().update(configuration or Configuration())
        )

    # Settings

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the default number of subtasks of operators."""
        return self._set(conf.PARALLELISM, parallelism)

    def get_parallelism(self) -> int:
        """Default number of subtasks of operators."""
        given = self._configuration.get(conf.PARALLELISM)
        return given or self.spark.sparkContext.defaultParallelism

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the default number of key groups of operators."""
        check_max_parallelism(max_parallelism, "set_max_parallelism")
        return self._set(conf.MAX_PARALLELISM, max_parallelism)

    def get_max_parallelism(self) -> int | None:
        """Default number of key groups, or None if it is not set."""
        return self._configuration.get(conf.MAX_PARALLELISM)

    def set_state_backend(self, backend: StateBackend) -> Self:
        """Set where local state is kept; takes precedence over `state.backend.type`.

        Its `enable_incremental_checkpointing` sets `execution.checkpointing.incremental`.
        """
        self._backend = backend
        self._configuration.overrule(conf.STATE_BACKEND, backend.name)
        if getattr(backend, "enable_incremental_checkpointing", False):
            self._set(INCREMENTAL, True)
        return self

    def get_state_backend(self) -> StateBackend:
        """Where local state is kept."""
        backend = self._backend or backend_named(self._configuration.get(conf.STATE_BACKEND))
        if not isinstance(backend, EmbeddedRocksDBStateBackend):
            return backend
        incremental = self._configuration.get(INCREMENTAL)
        return dataclasses.replace(backend, enable_incremental_checkpointing=incremental)

    def enable_checkpointing(
        self,
        interval: DurationLike,
        mode: CheckpointingMode | None = None,
        *,
        dir: PathLike | None = None,
        unaligned: bool | None = None,
        num_retained: int | None = None,
    ) -> Self:
        """Take a checkpoint every `interval` (milliseconds, "10 s" or a `timedelta`).

        What is not given stays as configured. `get_checkpoint_config` has all other settings.

        Args:
            interval: Time from one checkpoint to the next, at least 10 ms.
            mode: Exactly once, which is the default, or at least once.
            dir: Path or URL of the directory in which checkpoints are stored; by default they are
                in the memory of the driver.
            unaligned: Whether a checkpoint may store unprocessed input instead of waiting for the
                end of the epoch.
            num_retained: Number of completed checkpoints that are kept; 1 by default.
        """
        config = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            config.set_checkpointing_mode(mode)
        if dir is not None:
            config.set_checkpoint_storage_dir(dir)
        if unaligned is not None:
            config.enable_unaligned_checkpoints(unaligned)
        return self if num_retained is None else self._set(NUM_RETAINED, num_retained)

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The checkpoint settings; its setters change this environment."""
        return CheckpointConfig(self._configuration)

    def get_checkpoint_interval(self) -> int | None:
        """Milliseconds from one checkpoint to the next, or None without checkpoints."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly once or at least once."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def set_default_savepoint_directory(self, directory: PathLike) -> Self:
        """Set the default directory of savepoints."""
        return self._set(SAVEPOINT_DIR, directory)

    def get_default_savepoint_directory(self) -> str | None:
        """Default directory of savepoints, or None."""
        return self._configuration.get(SAVEPOINT_DIR)

    def set_restart_strategy(self, strategy: RestartStrategy | FallBack) -> Self:
        """Set the restart strategy; takes precedence over `restart-strategy.type`."""
        if not isinstance(strategy, RestartStrategy | FallBack):
            raise ConfigurationError(
                f"set_restart_strategy: {strategy!r} is not a restart strategy; pass one of "
                "holdfast.restarts, such as FixedDelay(3, '10 s')"
            )
        self._restart_strategy = None if isinstance(strategy, FallBack) else strategy
        return self

    def get_restart_strategy(self) -> RestartStrategy:
        """The restart strategy in use."""
        checkpointing = self.get_checkpoint_config().is_checkpointing_enabled()
        return self._restart_strategy or restart_strategy(
            self._configuration, checkpointing=checkpointing
        )

    def set_job_id(self, job_id: str) -> Self:
        """Set the permanent id of the job, so that a new driver finds its checkpoints."""
        return self._set(conf.JOB_ID, job_id)

    def set_runtime_mode(self, mode: RuntimeExecutionMode) -> Self:
        """Run as a stream, in one pass, or depending on the sources."""
        return self._set(conf.RUNTIME_MODE, mode)

    def set_epoch_interval(self, interval: DurationLike) -> Self:
        """Set the minimum time from the start of one epoch to the next."""
        return self._set(conf.EPOCH_INTERVAL, interval)

    def set_max_events_per_epoch(self, events: int) -> Self:
        """Set the maximum events per epoch from sources that can limit them."""
        return self._set(conf.MAX_EVENTS_PER_EPOCH, events)

    def set_available_now(self, available_now: bool = True) -> Self:
        """Process everything available at start-up, then finish."""
        return self._set(conf.AVAILABLE_NOW, available_now)

    def configure(self, configuration: Configuration | Mapping[str, Any]) -> Self:
        """Set all options that are set in `configuration`, or a mapping of keys to values."""
        if not isinstance(configuration, Configuration):
            configuration = Configuration(configuration)
        self._configuration.update(configuration)
        return self

    def set_job_parameters(self, parameters: Mapping[str, str]) -> Self:
        """Set parameters that functions can read from their runtime context."""
        self._job_parameters = dict(parameters)
        return self

    def add_epoch_listener(self, listener: Callable[[EpochStatistics], None]) -> Self:
        """Call `listener` on the driver after every epoch."""
        self._listeners.append(listener)
        return self

    def add_checkpoint_listener(self, listener: CheckpointListener) -> Self:
        """Notify `listener` on the driver when checkpoints complete or fail.

        A function that is a listener is notified in the tasks, in the next epoch.
        """
        self._checkpoint_listeners.append(listener)
        return self

    def _set(self, option: ConfigOption[Any], value: object) -> Self:
        self._configuration.set(option, value)
        return self

    # Execution

    def execute(
        self,
        job_name: str | None = None,
        *,
        from_savepoint: PathLike | None = None,
        allow_non_restored_state: bool | None = None,
        claim_mode: RecoveryClaimMode | None = None,
    ) -> JobExecutionResult:
        """Run the operators added since the last execution, and wait for the end of the job.

        A keyboard interrupt suspends a job with a permanent id, so that a new start continues it.
        It cancels other jobs. The arguments are those of `execute_async`.
        """
        client = self.execute_async(
            job_name,
            from_savepoint=from_savepoint,
            allow_non_restored_state=allow_non_restored_state,
            claim_mode=claim_mode,
        )
        shown = self._configuration.get(conf.PROGRESS)
        watched = shown == "on" or (shown == "auto" and sys.stderr.isatty())
        try:
            return wait_watched(client) if watched else client.result()
        except (KeyboardInterrupt, SystemExit):
            client.interrupt()
            raise

    def execute_async(
        self,
        job_name: str | None = None,
        *,
        from_savepoint: PathLike | None = None,
        allow_non_restored_state: bool | None = None,
        claim_mode: RecoveryClaimMode | None = None,
    ) -> JobClient:
        """Start the operators added since the last execution.

        Args:
            job_name: Name of the job.
            from_savepoint: Savepoint or checkpoint to start from: its directory or its
                `_metadata` file; by default `execution.state-recovery.path`.
            allow_non_restored_state: Whether state that no operator claims may be dropped; by
                default `execution.state-recovery.ignore-unclaimed-state`.
            claim_mode: Who owns the savepoint from now on; by default
                `execution.state-recovery.claim-mode`.
        """
        answer_preview(self)
        settings = self._configuration
        job_id = settings.get(conf.JOB_ID) or new_job_id()
        given = (from_savepoint, allow_non_restored_state, claim_mode)
        program: dict[ConfigOption[Any], object] = {
            RECOVERY_PATH: from_savepoint,
            IGNORE_UNCLAIMED_STATE: allow_non_restored_state,
            CLAIM_MODE: claim_mode,
            conf.JOB_NAME: job_name,
        }
        for option, value in program.items():
            if value is not None:
                settings.overrule(option, value)
        checkpointing = self._checkpointing(job_id, recovery_order(settings, *given))
        graph, plan, trigger, compiled_with = self._compiled(checkpointing)
        restarts = self.get_restart_strategy()
        in_use = {**restarts.settings(), conf.STATE_BACKEND.key: self.get_state_backend().name}
        order = JobOrder(
            name=job_name or settings.get(conf.JOB_NAME),
            job_id=job_id,
            plan=plan,
            trigger=trigger,
            restarts=restarts,
            lasting_id=settings.get(conf.JOB_ID) is not None,
            local_dir=settings.get(conf.LOCAL_STATE_DIR),
            savepoint_dir=settings.get(SAVEPOINT_DIR),
            listeners=tuple(self._listeners),
            configuration={**dict(settings), **in_use},
            job_parameters=self._job_parameters,
            parallelism=compiled_with.parallelism,
            recompile=partial(compile_rescaled, graph, compiled_with),
        )
        prepare(settings)
        supervisor = Supervisor(self.spark, order, checkpointing)
        supervisor.start()
        self._graph.mark_executed(graph)
        client = JobClient(supervisor)
        published = publish(client, settings)
        if published is None:
            announce(client, settings)
        else:
            announce(client, settings, published.server.url, published.token_file)
        return client

    def _checkpointing(self, job_id: str, recovery: RecoveryOrder) -> CheckpointService:
        """The checkpoint service of a job; a job in one pass takes no checkpoints."""
        backend = self.get_state_backend()
        settings = None
        if not job_trigger(self._graph.pending(), self._configuration).one_pass:
            settings = checkpoint_settings(self._configuration) or savepoint_settings(
                self._configuration
            )
        listeners = tuple(self._checkpoint_listeners)
        time_limits = TimeLimits.of(self._configuration)
        return CheckpointService(job_id, backend, settings, recovery, listeners, time_limits)

    def execute_and_collect(
        self, stream: Stream[Any], job_name: str | None = None, limit: int | None = None
    ) -> CollectedResults | list[Any]:
        """Run the program and iterate over `stream`; see `DataStream.execute_and_collect`."""
        results = CollectedResults()
        sink = CollectSink(results.collect)
        self._graph.add(
            OperatorKind.OUTPUT, stream._edges, stream.type, function=sink, name="Collect"
        )
        try:
            results.attach(self.execute_async(job_name))
        except BaseException:
            # No later execution may fill it: it has no reader.
            results.close()
            self._graph.nodes.pop()
            raise
        if limit is None:
            return results
        with results:
            return list(islice(results, limit))

    def explain(self) -> str:
        """Describe the job graph with uids and states, and the Spark plan, without running it.

        Calls `open` on a copy of every keyed function to find its states.
        """
        graph, plan, *_ = self._compiled(
            self._checkpointing(PREVIEW, recovery_order(self._configuration))
        )
        return explain_job(self.spark, graph, plan)

    def compare_savepoint(
        self, path: PathLike, *, allow_non_restored_state: bool | None = None
    ) -> SavepointComparison:
        """Check what a start from a savepoint or checkpoint would restore, without starting.

        Calls `initialize_state` and `open` on a copy of every function to find its states.

        Args:
            path: Directory of a savepoint or checkpoint, or its `_metadata` file.
            allow_non_restored_state: See `execute_async`.
        """
        from holdfast.checkpoint.savepoint.comparison import compare, fitting_limits

        order = recovery_order(self._configuration, path, allow_non_restored_state)
        files, metadata = find_snapshot(path)
        limits = fitting_limits(metadata, self._graph.pending(), self.get_parallelism())
        graph, plan, trigger, _ = self._compiled(self._checkpointing(PREVIEW, order), limits)
        return compare(
            *(os.fspath(path), files, metadata, graph, plan),
            max_parallelism=self.get_max_parallelism(),
            one_pass=trigger.one_pass,
            allow_non_restored_state=order.ignore_unclaimed,
        )

    def _compiled(
        self, checkpointing: CheckpointService, limits: dict[str, int] | None = None
    ) -> tuple[JobGraph, JobPlan, JobTrigger, Settings]:
        """Compile the pending program; `limits` replace the stored max parallelism."""
        graph = self._graph.pending()
        settings = self._configuration
        graph.check_uids(generate=settings.get(conf.AUTO_GENERATE_UIDS))
        self._warn_about_uids(graph)
        self._warn_about_types(graph)
        trigger = job_trigger(graph, settings)
        given = Settings(
            parallelism=self.get_parallelism(),
            max_parallelism=settings.get(conf.MAX_PARALLELISM),
            backend=self.get_state_backend(),
            batch_mode=runs_as_batch(graph, settings),
            job_parameters=self._job_parameters,
            exactly_once=checkpointing.exactly_once,
            stored_max_parallelism=checkpointing.max_parallelism() if limits is None else limits,
            kept_memory=settings.get(conf.KEPT_MEMORY),
        )
        return graph, compile_job(graph, given), trigger, given

    def _warn_about_uids(self, graph: JobGraph) -> None:
        missing = graph.without_uid()
        if missing and self._configuration.get(CHECKPOINT_INTERVAL) is not None:
            warnings.warn(
                "these stateful operators have no uid, so a changed program may not find their "
                "state again: " + "; ".join(map(str, missing)) + '; call .uid("...") on each',
                stacklevel=4,
            )

    def _warn_about_types(self, graph: JobGraph) -> None:
        untyped = graph.untyped()
        if untyped:
            warnings.warn(
                "the output of these operators has no declared type, so its elements are pickled "
                "between tasks, which is slow: " + "; ".join(map(str, untyped)) + "; annotate what "
                "the function returns, or give output_type, the type_info of a source or the type "
                "of an OutputTag; typing.Any keeps them pickled without this warning",
                stacklevel=4,
            )
