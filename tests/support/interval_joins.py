"""Interval joins run without Spark: a program of two sources, epoch by epoch, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from holdfast import OutputTag, ProcessFunction, ProcessJoinFunction, WatermarkStrategy
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.exchange import SUBTASK, ExchangeWriter, appended
from holdfast.runtime.plan import TIME, EpochTime
from holdfast.state.store.directories import store_directory
from holdfast.state.store.opening import open_store
from holdfast.types.columns.batches import BatchWriter
from tests.support.programs import Program, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.api.streams.connected import IntervalJoined
    from holdfast.config.backends import StateBackend
    from holdfast.runtime.plan import EpochPlan

JOIN = "join"
ELEMENTS = "k string, t bigint, n bigint"
PAIRS = "k string, left bigint, right bigint, left_time bigint, right_time bigint, time bigint"
STAMPED = f"{PAIRS}, stamped bigint"
LATE_LEFT = OutputTag("late left", ELEMENTS)
LATE_RIGHT = OutputTag("late right", ELEMENTS)


class Element(NamedTuple):
    """An element of either side: `n` tells it apart from all others."""

    k: str
    t: int
    n: int


class Pair(NamedTuple):
    """What `Pairs` makes of a pair, and the event time it was given out with."""

    k: str
    left: int
    right: int
    left_time: int
    right_time: int
    time: int
    stamped: int


class Pairs(ProcessJoinFunction):
    """Gives out every pair, and what the context says of it."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        assert left.k == right.k
        times = ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp()
        yield left.k, left.n, right.n, *times


class Stamps(ProcessFunction):
    """Adds their event time to elements."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield *value, ctx.timestamp()


class JoinRun(Run):
    """A join at work, whose watermark moves as it is told."""

    def __init__(self, program: Program, directory: Path) -> None:
        super().__init__(program.compile(), directory)
        self._backend = program.settings.backend
        self._subtasks = program.settings.parallelism
        self.watermark = self._target = MIN_WATERMARK

    def push_until(
        self, watermark: int, left: Sequence[Any] = (), right: Sequence[Any] = ()
    ) -> None:
        """Run an epoch at whose end the watermark stands here, or where it stood before."""
        self._target = max(watermark, self.watermark)
        self.push(list(left), list(right))
        self.watermark = self._target

    def push_in_turn(self, *elements: tuple[int, Element]) -> None:
        """Run an epoch in which elements come one by one, each on its side; of one subtask."""
        assert self._subtasks == 1
        self.epoch += 1
        self.reports = []
        self._target = self.watermark
        [stage] = self.plan.stages
        channels = {channel.side: channel for channel in stage.reads.channels}
        batches = []
        for side, element in elements:
            rows = BatchWriter(channels[side].type).batch([element])
            rows = appended(rows, TIME, pa.array([element.t], pa.int64()))
            packed = ExchangeWriter(stage.reads).pack(
                channels[side], rows, pa.array([0], pa.int32())
            )
            batches.append(packed.drop_columns([SUBTASK]))
        self._deliver(self._task(stage, 0, batches))

    def finish(self) -> None:
        """Run the last epoch."""
        self.push_until(MAX_WATERMARK)

    def epoch_plan(self) -> EpochPlan:
        time = EpochTime(
            watermarks={JOIN: (self.watermark, self._target)},
            due=frozenset((JOIN, subtask) for subtask in range(self._subtasks)),
            last=self._target == MAX_WATERMARK,
        )
        return replace(super().epoch_plan(), time=time)

    def kept(self) -> int:
        """Entries of state and timers that the join's stores hold."""
        return sum(
            not key.startswith(b"\x00\x00")
            for subtask in range(self._subtasks)
            for key in self._stored(subtask)
        )

    def _stored(self, subtask: int) -> list[bytes]:
        directory = store_directory(str(self._directory), "program", "1", JOIN, subtask)
        store = open_store(self._backend, directory, self.expected.get((JOIN, subtask)))
        keys = [key for key, _ in store.scan(b"")]
        store.abort()
        return keys

    def late_dropped(self) -> int:
        """Elements that the last epoch has dropped."""
        counts = [report.operators.get(JOIN) for report in self.reports]
        return sum(c.metrics.counters.get("numLateRecordsDropped", 0) for c in counts if c)


class Join:
    """A program that joins two sources, and what it has given out."""

    def __init__(
        self,
        lower: int,
        upper: int,
        *,
        backend: StateBackend | None = None,
        function: ProcessJoinFunction | None = None,
        exclusive: tuple[bool, bool] = (False, False),
        late: bool = False,
        parallelism: int = 2,
        types: tuple[Any, Any] = (ELEMENTS, ELEMENTS),
    ) -> None:
        self.program = Program(backend=backend, parallelism=parallelism)
        sources = [self.program.source(spec, name) for spec, name in zip(types, "lr", strict=True)]
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        strategy = strategy.with_timestamp_assigner(lambda element, _: element.t)
        left, right = (
            source.assign_timestamps_and_watermarks(strategy).key_by(lambda element: element.k)
            for source in sources
        )
        joined: IntervalJoined = left.interval_join(right).between(lower, upper)
        if exclusive[0]:
            joined = joined.lower_bound_exclusive()
        if exclusive[1]:
            joined = joined.upper_bound_exclusive()
        if late:
            joined = joined.side_output_left_late_data(LATE_LEFT)
            joined = joined.side_output_right_late_data(LATE_RIGHT)
        self.stream = joined.process(function or Pairs(), PAIRS).uid(JOIN).name("pairs")
        self.late_left: list[Any] = []
        self.late_right: list[Any] = []
        if late:
            self.late_left = self.program.collect(self.stream.get_side_output(LATE_LEFT))
            self.late_right = self.program.collect(self.stream.get_side_output(LATE_RIGHT))
        self._out = self.program.collect(self.stream.process(Stamps(), STAMPED))

    def start(self, directory: Path) -> JoinRun:
        return JoinRun(self.program, directory)

    @property
    def pairs(self) -> list[Pair]:
        """All that was given out so far."""
        return [Pair(*row) for row in self._out]

    def taken(self) -> list[tuple[int, int]]:
        """The numbers of the pairs since this was last asked for."""
        found = [(pair.left, pair.right) for pair in self.pairs]
        self._out.clear()
        return found


class Epoch(NamedTuple):
    """What an epoch of a join is given."""

    left: list[Element]
    right: list[Element]
    watermark: int
    """Where the watermark is at its end."""


class Outcome(NamedTuple):
    """What a join has to come to."""

    pairs: Counter[Pair]
    late_left: Counter[Element]
    late_right: Counter[Element]


def brute_force(epochs: list[Epoch], lower: int, upper: int) -> Outcome:
    """All pairs of elements that were not late, one of which was there when the other came.

    The first of two is gone when the second comes if the watermark had reached the last time
    at which a partner of the first could lie.
    """
    watermark = MIN_WATERMARK
    sides: tuple[list[tuple[Element, int]], list[tuple[Element, int]]] = ([], [])
    late: tuple[Counter[Element], Counter[Element]] = (Counter(), Counter())
    for epoch in epochs:
        for side, elements in enumerate((epoch.left, epoch.right)):
            for element in elements:
                if element.t < watermark:
                    late[side][element] += 1
                else:
                    sides[side].append((element, watermark))
        watermark = max(watermark, epoch.watermark)
    pairs: Counter[Pair] = Counter()
    for left, left_came in sides[0]:
        for right, right_came in sides[1]:
            met = left.k == right.k and lower <= right.t - left.t <= upper
            if left_came < right_came:
                met = met and left.t + max(0, upper) > right_came
            elif right_came < left_came:
                met = met and right.t + max(0, -lower) > left_came
            if met:
                time = max(left.t, right.t)
                pairs[Pair(left.k, left.n, right.n, left.t, right.t, time, time)] += 1
    return Outcome(pairs, *late)
