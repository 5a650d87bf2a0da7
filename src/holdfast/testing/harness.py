"""Running one function without Spark, on the real state backends.

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

import pickle
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from holdfast.api.backends import HashMapStateBackend, StateBackend
from holdfast.api.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from holdfast.api.graph import ErrorPolicy, Kind
from holdfast.api.output import OutputTag
from holdfast.api.parallelism import default_max_parallelism
from holdfast.api.types import StreamType
from holdfast.errors import StateAccessError
from holdfast.runtime.plan import EpochPlan, KeyPlan, LevelPlan, OperatorPlan, Wire
from holdfast.runtime.seat import Seat, TaskIdentity
from holdfast.state.machine import ProcessIdentity
from holdfast.state.table import NO_KEY
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from holdfast.api.metrics import MetricValues

_KINDS: tuple[tuple[type, Kind], ...] = (
    (KeyedProcessFunction, Kind.KEYED_PROCESS),
    (ProcessFunction, Kind.PROCESS),
    (MapFunction, Kind.MAP),
    (FlatMapFunction, Kind.FLAT_MAP),
    (FilterFunction, Kind.FILTER),
    (ReduceFunction, Kind.REDUCE),
    (SinkFunction, Kind.SINK_FUNCTION),
)
_NOTHING = Wire((), (), {}, routed=False)


class OperatorHarness:
    """One function on one subtask: push elements, read outputs, side outputs and state.

    Elements are taken as one epoch until `end_epoch`, which commits the state and opens
    the function anew, as a job does; `fail` drops the epoch instead.

    Args:
        function: The function under test; pickled for every epoch, as a job does.
        key: Gives an element's key; without it the stream is not keyed.
        backend: Where state is kept; the hash map backend if not given.
        on_error: What happens to elements on which the function raises.
        parallelism: What the runtime context says.
        subtask: What the runtime context says.
        job_parameters: What the runtime context says.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: Callable[[Any], Any] | None = None,
        backend: StateBackend | None = None,
        on_error: ErrorPolicy | None = None,
        parallelism: int = 1,
        subtask: int = 0,
        job_parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Open the function's first epoch."""
        self.clock = ManualClock()
        self.outputs: list[Any] = []
        self._sides: dict[str, list[Any]] = {}
        self._key = key
        self._function = pickle.dumps(function) if _is_importable(function) else function
        self._directory = tempfile.mkdtemp(prefix="holdfast-harness-")
        self._parallelism, self._subtask = parallelism, subtask
        self._policy = on_error or ErrorPolicy.fail()
        self._backend = backend or HashMapStateBackend()
        self._job_parameters = dict(job_parameters or {})
        self._epoch = 0
        self._version: str | None = None
        self._start_epoch()

    def push(self, *elements: Any) -> None:
        """Process elements, in order."""
        batch = list(elements)
        if self._key is None:
            out = self._seat.operator.process(batch, None)
        else:
            keys = self._seat.keys_of(batch, None)
            self._seat.current.start_batch(keys or [])
            out = self._seat.operator.process(batch, keys)
            self._seat.current.end_batch()
        self._collect(out)

    def side_output(self, tag: OutputTag) -> list[Any]:
        """What was yielded with `tag` so far."""
        return self._sides.get(tag.tag_id, [])

    def take(self) -> list[Any]:
        """The outputs so far; they are forgotten."""
        taken, self.outputs = self.outputs, []
        return taken

    @property
    def skipped(self) -> int:
        """Elements of this epoch that the error policy has dropped or diverted."""
        return self._seat.operator.skipped

    @property
    def metrics(self) -> MetricValues:
        """What the function's metrics hold in this epoch."""
        return self._seat.finished_report().metrics

    def state(self, name: str, key: Any) -> Any:
        """What a state holds for `key`: its value, list, map as a dict, or result."""
        if self._seat.state is None:
            raise StateAccessError("the function has registered no state")
        handle = self._seat.state.handle(name)
        current = self._seat.current
        current.key = key
        try:
            for read in ("value", "items", "get"):
                if hasattr(handle, read):
                    value = getattr(handle, read)()
                    return dict(value) if read == "items" else value
        finally:
            current.key = NO_KEY
        raise AssertionError(f"{handle!r} cannot be read")

    def end_epoch(self) -> None:
        """End the epoch well: commit its state, and start the next."""
        self._collect(self._seat.operator.finish())
        self._seat.operator.close()
        report = self._seat.commit()
        if report is not None:
            self._version = report.version
        self._start_epoch()

    def fail(self) -> None:
        """Let the epoch fail: its changes to state are gone; start the next."""
        self._seat.abort()
        self._start_epoch()

    def close(self) -> None:
        """Close the function and delete its state."""
        self._seat.operator.close()
        self._seat.abort()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> OperatorHarness:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _collect(self, out: list[Any]) -> None:
        for output in out:
            if type(output) is tuple and len(output) == 2 and type(output[0]) is OutputTag:
                self._sides.setdefault(output[0].tag_id, []).append(output[1])
            else:
                self.outputs.append(output)

    def _start_epoch(self) -> None:
        self._epoch += 1
        function = self._function
        if isinstance(function, bytes):
            function = pickle.loads(function)
        epoch = EpochPlan(
            job_id="harness",
            incarnation="1",
            epoch=self._epoch,
            local_dir=self._directory,
            owner=ProcessIdentity.current(),
            expected={} if self._version is None else {("harness", self._subtask): self._version},
        )
        plan = self._plan(function)
        level = LevelPlan(
            1, (plan,), {}, _NOTHING, _NOTHING, self._backend, job_parameters=self._job_parameters
        )
        task = TaskIdentity(self._subtask, 0, self._epoch)
        self._seat = Seat(plan, level, epoch, task, self.clock)
        self._seat.operator.open()

    def _plan(self, function: Any) -> OperatorPlan:
        anything = StreamType.of(Any)
        kind = next((kind for cls, kind in _KINDS if isinstance(function, cls)), Kind.MAP)
        return OperatorPlan(
            uid="harness",
            name=type(function).__name__,
            kind=kind,
            function=function,
            input=anything,
            output=anything,
            key=None if self._key is None else KeyPlan(selector=self._key),
            policy=self._policy,
            parallelism=self._parallelism,
            max_parallelism=default_max_parallelism(self._parallelism),
            outlets=(),
        )


def _is_importable(function: Any) -> bool:
    """Whether plain pickle can ship the function; else the one object serves all epochs."""
    try:
        pickle.dumps(function)
    except Exception:
        return False
    return True
