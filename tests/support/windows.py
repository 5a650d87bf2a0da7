"""Windows run without Spark: a harness for batches of several times, and what tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast import AggregateFunction
from holdfast.runtime.outlets import by_tag
from holdfast.state.catalog import STATE_PREFIX
from holdfast.testing.harness import OperatorHarness
from holdfast.testing.windows import windowed
from holdfast.windows import (
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.api.streams.windowed import WindowedStream
    from holdfast.runtime.operators.base import Output

CONTENTS = "window-contents"
EVENT_TIMERS = "timers:event"
PROCESSING_TIMERS = "timers:processing"
OPEN_WINDOWS = "merging-window-set"


class Event(NamedTuple):
    """An element of the streams of these tests."""

    key: str
    time: int
    n: int


def key_of(element: Any) -> Any:
    return element[0]


class Windows(OperatorHarness):
    """A harness in which every element of a batch has its own time, as its second member says."""

    def __init__(self, stream: Any, **more: Any) -> None:
        self.stamped: list[tuple[Any, int | None]] = []
        """What was given out, with its event time."""
        more.setdefault("key", key_of)
        super().__init__(stream, **more)

    def __enter__(self) -> Windows:
        return self

    def push_timed(self, *elements: Any, side: int = 0) -> None:
        """Process elements as one batch."""
        batch, operator_task = list(elements), self._operator_task
        try:
            keys = operator_task.keys_of(batch, side)
            out = operator_task.process(batch, [element[1] for element in batch], side, keys)
        except BaseException:
            self.fail()
            raise
        self._collect(out)

    def _collect(self, output: Output) -> None:
        main, _ = by_tag(output)
        times = main.times if main.times is not None else [None] * len(main.elements)
        self.stamped += zip(main.elements, times, strict=True)
        super()._collect(output)

    def kept(self) -> dict[str, int]:
        """Entries in the store, by the name of the state; of timers too."""
        self._operator_task.open_state().flush()
        store = self._operator_task._store._store
        ids = {
            name[len(STATE_PREFIX) :].decode(): msgspec.json.decode(data)["id"]
            for name, data in store.scan(STATE_PREFIX)
        }
        counts = {
            name: sum(1 for _ in store.scan(number.to_bytes(2, "big")))
            for name, number in ids.items()
        }
        return {name: count for name, count in counts.items() if count}

    def dropped(self) -> int:
        """Elements of this epoch that came too late for all of their windows."""
        return int(self.metrics.counters.get("numLateRecordsDropped", 0))


def count_window(size: int, slide: int | None = None, *, keyed: bool = True) -> WindowedStream:
    """Windows of so many elements, for the harness."""
    stream: Any = windowed(GlobalWindows.create(), keyed=keyed)._stream
    found: WindowedStream = (
        stream.count_window(size, slide) if keyed else stream.count_window_all(size, slide)
    )
    return found


def shown(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Any]:
    """A key, the bounds of its window, and the numbers of the elements."""
    yield key, window.start, window.end, [element[2] for element in elements]


def numbers(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Any]:
    """A key and the numbers of the elements."""
    yield key, [element[2] for element in elements]


class Shown(ProcessWindowFunction):
    """The same as `shown`, as a process function."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        yield from shown(key, context.window(), elements)


class Gathered(AggregateFunction):
    """The numbers of all elements, in a list that is changed in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator.append(value[2])
        if value[2] < 0:
            raise ValueError(f"{value[2]} is negative")
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a += acc_b
        if any(n % 1000 == 666 for n in acc_a):
            raise ValueError("these do not merge")
        return acc_a


def with_bounds(key: Any, window: Any, results: Sequence[Any]) -> Iterator[Any]:
    """The one result of a window, with its key and bounds."""
    [result] = results
    yield key, window.start, window.end, result


def added(old: Any, new: Any) -> Event:
    """The first of two events with the sum of their numbers."""
    if new[2] < 0:
        raise ValueError(f"{new[2]} is negative")
    return Event(old[0], old[1], old[2] + new[2])


class GeneralEventTime(EventTimeTrigger):
    """The same trigger, of another class: windows with it take no shorter way."""


class GeneralProcessingTime(ProcessingTimeTrigger):
    """The same trigger, of another class: windows with it take no shorter way."""
