"""Runs one function without Spark, on the real state backends.

>>> from holdfast import KeyedProcessFunction, ValueStateDescriptor
>>> class Count(KeyedProcessFunction):
...     def open(self, ctx):
...         self.count = ctx.get_state(ValueStateDescriptor("count", int))
...     def process_element(self, value, ctx):
...         n = (self.count.value() or 0) + 1
...         self.count.update(n)
...         yield value, n
>>> with OperatorHarness(Count(), key=lambda url: url) as harness:
...     harness.push("/a", "/b", "/a")
...     harness.outputs
...     harness.state("count", key="/a")
[('/a', 1), ('/b', 1), ('/a', 2)]
2
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast.api.checkpointed import CheckpointListener
from holdfast.api.functions import KeySelector
from holdfast.api.outputs import ErrorPolicy
from holdfast.api.state import MapState
from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.api.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from holdfast.config.backends import HashMapStateBackend, StateBackend
from holdfast.config.parallelism import default_max_parallelism
from holdfast.errors import ConfigurationError, JobGraphError, StateAccessError, StoreError
from holdfast.runtime.operator_task import OperatorTask, TaskIdentity
from holdfast.runtime.operators.base import Output, Reported
from holdfast.runtime.operators.co import BroadcastOperator
from holdfast.runtime.operators.writer import WriterOperator
from holdfast.runtime.outlets import by_tag
from holdfast.runtime.plan import (
    CheckpointOrder,
    EpochPlan,
    EpochTime,
    Exchange,
    KeyPlan,
    OperatorPlan,
    SecondInput,
    StagePlan,
)
from holdfast.serde.key_shapes import KeyTypes
from holdfast.serde.keys import canonical_key, key_group_of, key_hash
from holdfast.state.key_groups import subtask_of
from holdfast.state.store.directories import claim_job, store_directory
from holdfast.state.store.process import ProcessIdentity
from holdfast.state.table import NO_KEY
from holdfast.testing.clock import ManualClock
from holdfast.testing.copies import check_subtask, copier
from holdfast.testing.kinds import BROADCAST, CONNECTED, kind_of
from holdfast.testing.sinks import PendingCommits
from holdfast.testing.snapshots import HarnessSnapshot, RestorePoint, read_snapshot
from holdfast.testing.windows import windows_of
from holdfast.types.stream_type import OBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.api.descriptors import MapStateDescriptor
    from holdfast.api.metrics import MetricValues
    from holdfast.api.outputs import OutputTag

_UID = "harness"
_JOB_ATTEMPT = "1"
_NOTHING = Exchange((), (), {}, routed=False)


class OperatorHarness:
    """Runs one function on one subtask: push elements, read outputs, side outputs and state.

    Elements belong to one epoch until `end_epoch`, which commits the state and opens a
    fresh copy of the function, as a job does. An epoch that fails, by `fail` or because
    the function raises, leaves no change of state and no output.

    Args:
        function: The function under test; a plain callable runs as a map. Or windows,
            as `windowed` and `window_joined` make them.
        key: Gives an element's key; without it the stream is not keyed.
        second_key: Gives the key of an element of the second stream, of a function that
            connects two; the same as `key` if not given.
        broadcast: Descriptors of the broadcast states, of a function that has some.
        backend: The state backend; the hash map backend if not given.
        on_error: What happens to elements on which the function raises.
        parallelism: Parallelism of the operator.
        max_parallelism: Max parallelism of the operator; that of the snapshots, or else derived
            from the parallelism, if not given.
        subtask: Index of this subtask.
        job_parameters: Parameters of the job.
        restore_from: Snapshots from harnesses of the operator, one of every subtask;
            this subtask starts with its share of them, as after a recovery, on any backend.

    Raises:
        JobGraphError: The stream, keyed or not, does not take the function.
        ConfigurationError: The snapshots do not fit each other, or this harness.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: KeySelector | Callable[[Any], Any] | None = None,
        second_key: KeySelector | Callable[[Any], Any] | None = None,
        broadcast: Sequence[MapStateDescriptor] = (),
        backend: StateBackend | None = None,
        on_error: ErrorPolicy | None = None,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        subtask: int = 0,
        job_parameters: Mapping[str, str] | None = None,
        restore_from: HarnessSnapshot | Sequence[HarnessSnapshot] | None = None,
    ) -> None:
        """Open the function's first epoch."""
        self._details: Any = None
        if isinstance(function, TwoPhaseCommitSinkFunction):
            function = TwoPhaseCommitSink(function)
        if isinstance(function, DataStream):
            function, self._details, self._kind = windows_of(function, keyed=key is not None)
        else:
            self._kind = kind_of(function, keyed=key is not None)
        default = default_max_parallelism(parallelism)
        self._max_parallelism = default if max_parallelism is None else max_parallelism
        check_subtask(subtask, parallelism, self._max_parallelism)
        self.clock = ManualClock()
        self.outputs: list[Any] = []
        """The outputs so far, without side outputs."""
        self._sides: dict[str, list[Any]] = {}
        self._settled: dict[str | None, int] = {}
        self._fresh_copy = copier((function, self._details))
        self._key = key.get_key if isinstance(key, KeySelector) else key
        second = key if second_key is None else second_key
        self._second_key = second.get_key if isinstance(second, KeySelector) else second
        self._broadcast = tuple(broadcast)
        self._watermark = MIN_WATERMARK
        self._parallelism, self._subtask = parallelism, subtask
        self._policy = on_error or ErrorPolicy.fail()
        self._backend = backend or HashMapStateBackend()
        self._job_parameters = dict(job_parameters or {})
        self._epoch = 0
        self._version: str | None = None
        self._directory = tempfile.mkdtemp(prefix="holdfast-harness-")
        self._delete = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._checkpoint = 0
        self._restored: int | None = None
        self._commits = PendingCommits(lambda: self._fresh_copy()[0], _UID, subtask)
        if restore_from is not None:
            if isinstance(restore_from, HarnessSnapshot):
                restore_from = [restore_from]
            self._restore(RestorePoint(restore_from), max_parallelism)
        self._start_epoch()

    def _restore(self, point: RestorePoint, max_parallelism: int | None) -> None:
        if max_parallelism not in (None, point.max_parallelism):
            raise ConfigurationError(
                f"the harness: the snapshots have a max parallelism of {point.max_parallelism}, "
                f"and this harness {max_parallelism}; it is fixed for an operator with state"
            )
        self._max_parallelism = point.max_parallelism
        self._checkpoint = self._restored = point.checkpoint_id
        # As in a job, epoch numbers continue: the chunks of lists are numbered by epoch.
        self._epoch = point.epoch
        version = f"restored-{point.checkpoint_id}"
        claim_job(self._directory, _UID, ProcessIdentity.current())
        directory = store_directory(self._directory, _UID, _JOB_ATTEMPT, _UID, self._subtask)
        if point.restore(self._backend, directory, self._subtask, self._parallelism, version):
            self._version = version
        prepared = point.prepared(self._subtask, self._parallelism)
        if prepared:
            self._commits.add(
                prepared, epoch=point.epoch, checkpoint=point.checkpoint_id, recovered=True
            )

    def push(self, *elements: Any, at: int | None = None) -> None:
        """Process elements, in order, as one batch; `at` is their event time, if they have one.

        Raises:
            UserFunctionError: The function raised, and the policy is to fail; the epoch
                has failed with it.
        """
        self._push(list(elements), at, 0)

    def push_second(self, *elements: Any, at: int | None = None) -> None:
        """The same with elements of the second stream, or of the broadcast stream."""
        if self._kind not in CONNECTED | BROADCAST:
            raise JobGraphError(f"{type(self.function).__name__} takes elements of one stream only")
        self._push(list(elements), at, 1)

    def advance_watermark(self, watermark: int) -> None:
        """Advance the watermark, and fire the timers that it reaches. It never goes back."""
        self._watermark = max(self._watermark, watermark)
        self._fire(self._operator_task.fire_by_watermark(self._watermark))

    def set_processing_time(self, milliseconds: int) -> None:
        """Set the clock, and fire the timers that it reaches."""
        self.clock.set(milliseconds)
        self._fire(self._operator_task.fire_by_clock())

    def end_input(self) -> None:
        """Advance time to its end, as at the end of a bounded stream: every timer fires."""
        self._watermark = MAX_WATERMARK
        self._fire(self._operator_task.fire_at_end(everything=True, watermark=MAX_WATERMARK))

    def _fire(self, outputs: Iterable[Output]) -> None:
        with self._in_epoch():
            for output in outputs:
                self._collect(output)

    def _push(self, batch: list[Any], at: int | None, side: int) -> None:
        operator_task = self._operator_task
        with self._in_epoch():
            keys = operator_task.keys_of(batch, side)
            # A job refuses invalid keys when it routes elements.
            for key in keys or ():
                key_hash(key)
            times = None if at is None else [at] * len(batch)
            self._collect(operator_task.process(batch, times, side, keys))

    @contextmanager
    def _in_epoch(self) -> Iterator[None]:
        """Fail the epoch if the block raises."""
        try:
            yield
        except BaseException:
            # A store that failed cannot be opened again either; its first error counts.
            with suppress(StoreError):
                self.fail()
            raise

    def side_output(self, tag: OutputTag) -> list[Any]:
        """The outputs with `tag` so far."""
        return self._sides.setdefault(tag.tag_id, [])

    def take(self) -> list[Any]:
        """Return the outputs so far, and clear them."""
        taken, self.outputs = self.outputs, []
        self._settled[None] = 0
        return taken

    @property
    def function(self) -> Any:
        """The copy of the function that runs in this epoch."""
        return self._operator_task.plan.function

    @property
    def skipped(self) -> int:
        """Elements of this epoch that the error policy has dropped or diverted."""
        return self._operator_task.operator.skipped

    @property
    def metrics(self) -> MetricValues:
        """The function's metrics in this epoch."""
        return self._operator_task.finished_report().metrics

    def state(self, name: str, key: Any) -> Any:
        """Content of a state for `key`: its value, list, map as a dict, or result."""
        if self._operator_task.state is None:
            raise StateAccessError(
                f"there is no state {name!r} to read: the function has registered none in open()"
            )
        current, key = self._operator_task.current, canonical_key(key)
        KeyTypes(self._operator_task.key_types.shape).check([key])
        current.key = key
        try:
            return self._operator_task.state.peek(name, _content)
        finally:
            current.key = NO_KEY

    def operator_state(self, name: str) -> Any:
        """Content of an operator state: a list, or a broadcast state's map as a dict."""
        operator = self._operator_task.operator
        if isinstance(operator, BroadcastOperator):
            # The function may not have asked for it in this epoch.
            for descriptor in self._broadcast:
                operator.open_operator_state().get_broadcast_state(descriptor)
        backend = self._operator_task.operator_state
        if backend is None:
            raise StateAccessError(
                f"there is no operator state {name!r} to read: the function is neither a "
                "CheckpointedFunction nor a ListCheckpointed"
            )
        handle = backend.handle(name)
        return dict(handle.items()) if isinstance(handle, MapState) else list(handle.get())

    def owns(self, key: Any) -> bool:
        """Whether a job would send elements of `key` to this subtask."""
        group = key_group_of(canonical_key(key), self._max_parallelism)
        return subtask_of(group, self._parallelism, self._max_parallelism) == self._subtask

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the function that a checkpoint is complete."""
        self._notify("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the function that a checkpoint was aborted."""
        self._notify("notify_checkpoint_aborted", checkpoint_id)

    def _notify(self, method: str, checkpoint_id: int) -> None:
        if not isinstance(self.function, CheckpointListener):
            raise JobGraphError(
                f"{type(self.function).__name__} hears of no checkpoints; make it a "
                "CheckpointListener"
            )
        operator = self._operator_task.operator
        with self._in_epoch(), Reported(operator, "in a notification of a checkpoint"):
            getattr(self.function, method)(checkpoint_id)

    def snapshot(self) -> HarnessSnapshot:
        """End the epoch in a checkpoint, and start the next; returns the snapshot.

        To restore from it, pass it to another harness as `restore_from`, with those of the
        other subtasks if there are any. As in a job, a subtask's snapshot is expected to
        hold the keys that it `owns`.
        """
        self._finish_epoch()
        self._checkpoint += 1
        store, operator_state = None, None
        if self._version is not None:
            store, operator_state = self._snapshot_store()
        epoch = self._epoch
        self._start_epoch()
        return HarnessSnapshot(
            self._checkpoint,
            self._subtask,
            self._parallelism,
            self._max_parallelism,
            self._backend.name,
            store,
            operator_state,
            epoch,
            self._commits.prepared() if self._kind is OperatorKind.WRITER else (),
        )

    @property
    def committables(self) -> list[Any]:
        """What a sink's writers have prepared, and `commit` has not published yet."""
        return self._commits.committables

    def commit(self) -> None:
        """Publish the committables with the sink's committer, as a completed checkpoint does.

        What the committer wants to retry stays among the committables.

        Raises:
            SinkError: The committer has reported a failure.
        """
        self._commits.commit(self._operator_task.operator.context)

    def abort(self) -> None:
        """Fail the epoch as if the process had died: a committer drops what the writer opened."""
        operator = self._operator_task.operator
        if not isinstance(operator, WriterOperator) or operator.writer is None:
            raise JobGraphError(f"{type(self.function).__name__} has no committer; call fail()")
        opened = [] if operator.writer.opened is None else [operator.writer.opened]
        # The writer cannot abort what it has opened: its process is gone.
        operator.is_open = False
        self.fail()
        self._commits.abort_opened(self._operator_task.operator.context, opened)

    def _snapshot_store(self) -> tuple[dict[str, bytes], bytes | None]:
        # Like a task whose function got no element in the checkpoint's epoch.
        self._epoch += 1
        operator_task = self._make_operator_task(
            CheckpointOrder(self._checkpoint, self.clock.now_ms())
        )
        operator_task.open_state()
        report = operator_task.commit()
        assert report is not None
        assert report.snapshot is not None
        self._version = report.version
        return read_snapshot(report.snapshot)

    def end_epoch(self) -> None:
        """End the epoch: commit its state, and start the next."""
        self._finish_epoch()
        self._start_epoch()

    def _finish_epoch(self) -> None:
        operator_task = self._operator_task
        with self._in_epoch():
            self._collect(operator_task.finish())
            operator_task.snapshot_function()
            operator_task.close()
            report = operator_task.commit()
        if report is not None:
            self._version = report.version
        if operator_task.prepared:
            self._commits.add(
                operator_task.prepared, epoch=self._epoch, checkpoint=self._checkpoint + 1
            )

    def fail(self) -> None:
        """Fail the epoch: drop its changes to state and its outputs, and start the next."""
        self._operator_task.abort()
        for tag, outputs in [(None, self.outputs), *self._sides.items()]:
            del outputs[self._settled.get(tag, 0) :]
        self._start_epoch()

    def close(self) -> None:
        """Close the function and delete its state."""
        try:
            self._operator_task.close()
        finally:
            self._operator_task.abort()
            self._delete()

    def __enter__(self) -> OperatorHarness:
        """Itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close."""
        self.close()

    def _collect(self, output: Output) -> None:
        main, tagged = by_tag(output)
        self.outputs += main.elements
        for tag, side in tagged.items():
            self._sides.setdefault(tag, []).extend(side.elements)

    def _start_epoch(self) -> None:
        self._epoch += 1
        self._settled = {tag: len(outputs) for tag, outputs in self._sides.items()}
        self._settled[None] = len(self.outputs)
        self._operator_task = self._make_operator_task()
        try:
            self._operator_task.open()
        except BaseException:
            self._operator_task.abort()
            raise

    def _make_operator_task(self, checkpoint: CheckpointOrder | None = None) -> OperatorTask:
        plan = self._plan(*self._fresh_copy())
        stage = StagePlan(
            1, (plan,), {}, _NOTHING, _NOTHING, self._backend, job_parameters=self._job_parameters
        )
        operator_task = OperatorTask(plan, stage, self._subtask, self.clock)
        task = TaskIdentity(self._subtask, 0, self._epoch)
        operator_task.begin(self._epoch_plan(checkpoint), task)
        return operator_task

    def _epoch_plan(self, checkpoint: CheckpointOrder | None) -> EpochPlan:
        return EpochPlan(
            job_id=_UID,
            job_attempt=_JOB_ATTEMPT,
            epoch=self._epoch,
            local_dir=self._directory,
            owner=ProcessIdentity.current(),
            expected={} if self._version is None else {(_UID, self._subtask): self._version},
            checkpoint=checkpoint,
            exactly_once=self._kind is OperatorKind.WRITER,
            next_checkpoint=self._checkpoint + 1,
            restored=self._restored,
            time=EpochTime(
                {_UID: (self._watermark, self._watermark)},
                frozenset() if self._version is None else frozenset({(_UID, self._subtask)}),
            ),
        )

    def _plan(self, function: Any, details: Any) -> OperatorPlan:
        return OperatorPlan(
            uid=_UID,
            name=getattr(function, "__name__", type(function).__name__),
            kind=self._kind,
            function=function,
            input=OBJECTS,
            output=OBJECTS,
            key=None if self._key is None else KeyPlan(selector=self._key),
            policy=self._policy,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            outlets=(),
            timed=True,
            second=self._second_input(),
            details=self._broadcast if self._kind in BROADCAST else details,
        )

    def _second_input(self) -> SecondInput | None:
        if self._kind not in BROADCAST | CONNECTED:
            return None
        keyed = self._kind in CONNECTED and self._second_key is not None
        return SecondInput(OBJECTS, KeyPlan(selector=self._second_key) if keyed else None)


def _content(handle: Any) -> Any:
    for read in ("value", "items", "get"):
        if hasattr(handle, read):
            value = getattr(handle, read)()
            return dict(value) if read == "items" else value
    raise AssertionError(f"{handle!r} cannot be read")
