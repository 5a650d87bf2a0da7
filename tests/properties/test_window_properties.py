"""Windows come to what a model of them says, whatever happens to the epochs they live through.

The models are written from the specification: lists of numbers per key and window, and for
each whether its end is still to come. Events come out of order, watermarks pass, epochs end and
fail, and a snapshot is restored with another number of subtasks, which sets the watermark back.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from holdfast import EmbeddedRocksDBStateBackend, ErrorPolicy, HashMapStateBackend, OutputTag
from holdfast.api.time import MIN_WATERMARK
from holdfast.testing.windows import windowed
from holdfast.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tests.support.properties import searched
from tests.support.windows import Event, Gathered, GeneralEventTime, Windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.api.streams.data_stream import DataStream

LATE = OutputTag("late")
KEYS = "abcde"
TIMES = st.integers(-12, 45)
END = 10**6


class Fired(NamedTuple):
    """What a window gives out: its key and bounds, and the numbers it holds."""

    key: str
    start: int
    end: int
    numbers: tuple[int, ...]


# The models


@dataclass
class Held:
    """A window that is open."""

    numbers: list[int] = field(default_factory=list)
    ends: bool = False
    """Whether it will fire when the watermark reaches its end."""


@dataclass
class TimeModel:
    """Windows in time: tumbling and sliding."""

    size: int
    slide: int
    offset: int
    lateness: int
    watermark: int = MIN_WATERMARK
    open: dict[tuple[str, int, int], Held] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)

    def windows(self, time: int) -> list[tuple[int, int]]:
        """Every window that begins at a multiple of the slide, and the offset, and covers it."""
        return [
            (start, start + self.size)
            for start in range(time - self.size + 1, time + 1)
            if (start - self.offset) % self.slide == 0
        ]

    def push(self, one: Event) -> Iterator[Fired]:
        found = self.windows(one.time)
        in_time = [w for w in found if w[1] - 1 + self.lateness > self.watermark]
        for start, end in in_time:
            held = self.open.setdefault((one.key, start, end), Held())
            held.numbers.append(one.n)
            held.ends = held.ends or end - 1 > self.watermark
            if end - 1 <= self.watermark:
                yield self.fired((one.key, start, end))
        if not in_time and one.time + self.lateness <= self.watermark:
            self.late.append(one.n)

    def fired(self, window: tuple[str, int, int]) -> Fired:
        return Fired(*window, tuple(sorted(self.open[window].numbers)))

    def advance(self, watermark: int) -> Iterator[Fired]:
        self.watermark = max(watermark, self.watermark)
        for window, held in list(self.open.items()):
            if held.ends and window[2] - 1 <= self.watermark:
                held.ends = False
                yield self.fired(window)
            if window[2] - 1 + self.lateness <= self.watermark:
                del self.open[window]

    def recover(self) -> None:
        self.watermark = MIN_WATERMARK


class SessionModel(TimeModel):
    """Sessions: `size` is the gap."""

    def push(self, one: Event) -> Iterator[Fired]:
        start, end = one.time, one.time + self.size
        met = [w for w in self.open if w[0] == one.key and w[1] <= end and w[2] >= start]
        if not met and end - 1 + self.lateness <= self.watermark:
            self.late.append(one.n)
            return
        held = Held([one.n])
        for window in met:
            held.numbers += self.open.pop(window).numbers
            start, end = min(start, window[1]), max(end, window[2])
        held.ends = end - 1 > self.watermark
        self.open[one.key, start, end] = held
        if not held.ends:
            yield self.fired((one.key, start, end))


@dataclass
class CountModel:
    """Windows of so many elements: following each other if `slide` is None."""

    size: int
    slide: int | None
    held: dict[str, list[int]] = field(default_factory=dict)
    since: Counter[str] = field(default_factory=Counter)
    late: list[int] = field(default_factory=list)

    def push(self, one: Event) -> Iterator[Fired]:
        numbers = self.held.setdefault(one.key, [])
        numbers.append(one.n)
        self.since[one.key] += 1
        if self.since[one.key] < (self.slide or self.size):
            return
        self.since[one.key] = 0
        del numbers[: -self.size]
        yield Fired(one.key, 0, 0, tuple(sorted(numbers)))
        if self.slide is None:
            numbers.clear()

    def advance(self, watermark: int) -> Iterator[Fired]:
        return iter(())

    def recover(self) -> None:
        return


# The subtasks of an operator


class Job:
    """Harnesses of all subtasks, of which each is given the keys that it owns."""

    def __init__(self, stream: DataStream, backend: Any, policy: ErrorPolicy) -> None:
        self._make: Any = lambda **place: Windows(stream, backend=backend, on_error=policy, **place)
        self._stack = ExitStack()
        self._subtasks: list[Windows] = []
        self._watermark = MIN_WATERMARK
        self.late: list[int] = []
        self._dropped = 0
        self.restore(1, None)

    def restore(self, parallelism: int, snapshots: list[Any] | None) -> None:
        self._stack.close()
        self._watermark = MIN_WATERMARK
        self._subtasks = [
            self._stack.enter_context(
                self._make(parallelism=parallelism, subtask=i, restore_from=snapshots)
            )
            for i in range(parallelism)
        ]

    def push(self, events: list[Event]) -> list[Fired]:
        for job in self._subtasks:
            job.push_timed(*[one for one in events if job.owns(one.key)])
        return self._taken()

    def advance(self, watermark: int) -> list[Fired]:
        self._watermark = max(watermark, self._watermark)
        for job in self._subtasks:
            job.advance_watermark(self._watermark)
        for job in self._subtasks:
            times = [time for _, time in job.stamped]
            assert times == sorted(times, key=lambda time: time or 0), "they fire in order"
        return self._taken()

    def end_epoch(self) -> None:
        self._note_late()
        for job in self._subtasks:
            job.end_epoch()

    def fail(self) -> list[Fired]:
        """Let the epoch fail, and the watermark reach again what it had reached in it."""
        for job in self._subtasks:
            job.fail()
            job.stamped.clear()
        return self.advance(self._watermark)

    def rescale(self, parallelism: int) -> None:
        self._note_late()
        self.restore(parallelism, [job.snapshot() for job in self._subtasks])

    def close(self) -> dict[str, int]:
        """What is still kept."""
        self._note_late()
        kept: Counter[str] = Counter()
        for job in self._subtasks:
            kept.update(job.kept())
        self._stack.close()
        return dict(kept)

    def _taken(self) -> list[Fired]:
        found = []
        for job in self._subtasks:
            for output, time in job.stamped:
                assert output.end == 0 or time == output.end - 1
            job.stamped.clear()
            found += job.take()
        return found

    def _note_late(self) -> None:
        for job in self._subtasks:
            late = job.side_output(LATE)
            self.late += [one.n for one in late]
            late.clear()
            self._dropped += job.dropped()

    @property
    def dropped(self) -> int:
        return self._dropped


# Programs


@dataclass(frozen=True)
class Program:
    """Windows of some kind, and what is made of them."""

    kind: str
    size: int
    slide: int
    offset: int
    lateness: int
    contents: str
    general: bool
    late_output: bool
    forgiving: bool

    def model(self) -> Any:
        match self.kind:
            case "tumbling":
                return TimeModel(self.size, self.size, self.offset % self.size, self.lateness)
            case "sliding":
                return TimeModel(self.size, self.slide, self.offset % self.slide, self.lateness)
            case "session":
                return SessionModel(self.size, 0, 0, self.lateness)
            case "count":
                return CountModel(self.size, None)
        return CountModel(self.size, self.slide)

    def stream(self) -> DataStream:
        match self.kind:
            case "tumbling":
                windows = windowed(TumblingEventTimeWindows.of(self.size, self.offset % self.size))
            case "sliding":
                assigner = SlidingEventTimeWindows.of(
                    self.size, self.slide, self.offset % self.slide
                )
                windows = windowed(assigner)
            case "session":
                windows = windowed(EventTimeSessionWindows.with_gap(self.size))
            case "count":
                trigger = PurgingTrigger.of(CountTrigger.of(self.size))
                windows = windowed(GlobalWindows.create()).trigger(trigger)
            case _:
                windows = windowed(GlobalWindows.create()).trigger(CountTrigger.of(self.slide))
                windows = windows.evictor(CountEvictor.of(self.size))
        if "count" not in self.kind:
            windows = windows.allowed_lateness(self.lateness)
            windows = windows.trigger(GeneralEventTime()) if self.general else windows
        windows = windows.side_output_late_data(LATE) if self.late_output else windows
        match self.contents:
            case "reduce":
                return windows.reduce(joined, reduced)
            case "aggregate":
                return windows.aggregate(Gathered(), aggregated)
        return windows.apply(listed)


def bounds(window: Any) -> tuple[int, int]:
    return getattr(window, "start", 0), getattr(window, "end", 0)


def numbers_of(one: Any) -> tuple[int, ...]:
    """The numbers of an element, or of what elements were reduced to."""
    return one[2] if isinstance(one[2], tuple) else (one[2],)


def joined(old: Any, new: Any) -> Any:
    return (*old[:2], numbers_of(old) + numbers_of(new))


def reduced(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Fired]:
    [one] = elements
    yield Fired(key, *bounds(window), tuple(sorted(numbers_of(one))))


def aggregated(key: Any, window: Any, results: Sequence[Any]) -> Iterator[Fired]:
    yield Fired(key, *bounds(window), tuple(sorted(results[0])))


def listed(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Fired]:
    yield Fired(key, *bounds(window), tuple(sorted(element[2] for element in elements)))


PROGRAMS = st.builds(
    Program,
    kind=st.sampled_from(["tumbling", "sliding", "session", "count", "sliding count"]),
    size=st.integers(1, 15),
    slide=st.integers(2, 9),
    offset=st.integers(0, 8),
    lateness=st.sampled_from([0, 0, 3, 12, 40]),
    contents=st.sampled_from(["reduce", "aggregate", "list"]),
    general=st.booleans(),
    late_output=st.booleans(),
    forgiving=st.booleans(),
)
EVENTS = st.lists(st.tuples(st.sampled_from(KEYS), TIMES), min_size=1, max_size=10)
STEPS = st.lists(
    st.one_of(
        EVENTS,
        EVENTS,
        TIMES,
        TIMES,
        st.sampled_from(["end", "end", "fail"]),
        st.integers(1, 3).map(lambda parallelism: ("rescale", parallelism)),
    ),
    min_size=2,
    max_size=12,
)
BACKENDS = st.sampled_from([*[HashMapStateBackend()] * 3, EmbeddedRocksDBStateBackend()])


def program(kind: str, **more: Any) -> Program:
    plain: dict[str, Any] = {"size": 10, "slide": 5, "offset": 0, "lateness": 0}
    plain |= {"contents": "aggregate", "general": False, "late_output": True, "forgiving": False}
    return Program(kind, **(plain | more))


@searched(10, 40)
def test_windows_come_to_what_their_model_says(examples: int) -> None:
    @settings(max_examples=examples)
    @given(program=PROGRAMS, steps=STEPS, backend=BACKENDS)
    @example(
        program=program("tumbling", lateness=40),
        steps=[[("a", 1)], 9, ("rescale", 2), [("a", 2)], 9],
        backend=HashMapStateBackend(),
    )
    @example(
        program=program("session", lateness=12, contents="list"),
        steps=[[("a", 1), ("a", 20)], 29, "end", [("a", 11)], "fail", [("a", 10)], ("rescale", 3)],
        backend=EmbeddedRocksDBStateBackend(),
    )
    def check(program: Program, steps: list[Any], backend: Any) -> None:
        policy = ErrorPolicy.skip() if program.forgiving else ErrorPolicy.fail()
        model = program.model()
        committed = copy.deepcopy(model)
        job = Job(program.stream(), backend, policy)
        number = 0
        for step in [*steps, "end", END]:
            match step:
                case list():
                    events = [Event(k, t, number + i) for i, (k, t) in enumerate(step)]
                    number += len(events)
                    found, expected = job.push(events), list(pushed(model, events))
                case int():
                    found, expected = job.advance(step), list(model.advance(step))
                case "end":
                    job.end_epoch()
                    committed = copy.deepcopy(model)
                    continue
                case "fail":
                    watermark = getattr(model, "watermark", MIN_WATERMARK)
                    model = copy.deepcopy(committed)
                    found, expected = job.fail(), list(model.advance(watermark))
                case (_, parallelism):
                    job.rescale(parallelism)
                    model.recover()
                    committed = copy.deepcopy(model)
                    continue
            assert sorted(found) == sorted(expected)
        kept = job.close()
        if "count" not in program.kind:
            assert kept == {}
        if program.late_output:
            assert sorted(job.late) == sorted(model.late)
        else:
            assert job.dropped == len(model.late)
        event(f"{program.kind}, late: {bool(model.late)}")

    check()


def pushed(model: Any, events: list[Event]) -> Iterator[Fired]:
    for one in events:
        yield from model.push(one)


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["tumbling", "sliding", "session", "count"]),
    events=st.lists(st.tuples(st.sampled_from("ab"), TIMES, st.booleans()), max_size=20),
    cuts=st.sets(st.integers(0, 20), max_size=3),
    lateness=st.sampled_from([0, 40]),
    backend=BACKENDS,
)
def test_elements_that_raise_never_were(
    kind: str,
    events: list[tuple[str, int, bool]],
    cuts: set[int],
    lateness: int,
    backend: Any,
) -> None:
    made = program(kind, size=4, lateness=lateness, general=True)
    model = made.model()
    job = Job(made.stream(), backend, ErrorPolicy.skip())
    for i, (key, time, fails) in enumerate(events):
        if i in cuts:
            job.end_epoch()
            assert sorted(job.advance(time)) == sorted(model.advance(time))
        # The accumulator takes a negative number in before it raises.
        one = Event(key, time, -i - 1 if fails else i)
        after = copy.deepcopy(model)
        expected = list(after.push(one))
        # One that is late is not added to anything, and so does not raise.
        if not fails or after.late != model.late:
            model = after
        assert sorted(job.push([one])) == ([] if fails else sorted(expected))
    assert sorted(job.advance(END)) == sorted(model.advance(END))
    kept = job.close()
    assert sorted(job.late) == sorted(model.late)
    assert kind == "count" or kept == {}
