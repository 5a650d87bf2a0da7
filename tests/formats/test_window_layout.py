"""The layout of windows in the local store, byte for byte.

`window_layout_v1.json` holds the bytes of windows, and every entry that small programs with
windows leave behind: contents, open sessions, states of triggers and functions, and timers.
Like `store_layout_v1.json`, of whose version 1 it is a part, it never changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import ValueStateDescriptor
from holdfast.serde.keys import key_group_of
from holdfast.state.store.opening import open_store
from holdfast.state.store.snapshot import snapshot_files
from holdfast.testing.snapshots import HarnessSnapshot
from holdfast.testing.windows import window_joined, windowed
from holdfast.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindow,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.formats.test_store_layout import BACKENDS, MAX_PARALLELISM
from tests.support.windows import Event, Gathered, Windows, added, shown, with_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.config.backends import StateBackend

# The entries name the class of their elements, which was in another module then.
MOVED = b"tests.unit.windows".hex(), b"tests.support.windows".hex()
GOLDEN = json.loads((Path(__file__).parent / "window_layout_v1.json").read_text().replace(*MOVED))
TEN = TumblingEventTimeWindows.of(10)
WINDOWS: dict[str, Any] = {
    "minute": TimeWindow(1_794_000_000_000, 1_794_000_060_000),
    "around zero": TimeWindow(-1, 1),
    "all of time": TimeWindow(-(2**63), 2**63 - 1),
    "global": GlobalWindow.get(),
}


class Counts(ProcessWindowFunction):
    """Counts its calls, per window and per key."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        for store in (context.window_state(), context.global_state()):
            calls = store.get_state(ValueStateDescriptor("calls", int))
            calls.update((calls.value() or 0) + 1)
            yield key, calls.value()


def one_stream(job: Windows) -> None:
    """Three epochs; in the third the watermark passes the end of the first window."""
    job.push_timed(Event("a", 1, 1), Event("b", -3, 2), Event("a", 19, 3))
    job.end_epoch()
    job.push_timed(Event("a", 12, 4), Event("c", 5, 5), Event("a", 2, 6))
    job.end_epoch()
    job.advance_watermark(9)


def two_streams(job: Windows) -> None:
    """Elements on both sides, in two epochs."""
    job.push_timed(Event("a", 1, 1), Event("b", -3, 2))
    job.push_timed(Event("a", 2, 3), side=1)
    job.end_epoch()
    job.push_timed(Event("a", 3, 4), Event("a", 14, 5), side=1)


def by_the_clock(job: Windows) -> None:
    """Elements of two windows, of which one has ended."""
    job.push(Event("a", 0, 1), Event("b", 0, 2))
    job.set_processing_time(12)
    job.push(Event("a", 0, 3))


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Windows], None], list[Any]]] = {
    "tumbling, reduced": (
        lambda: windowed(TEN, type=Event).allowed_lateness(100).reduce(added, with_bounds),
        one_stream,
        [("a", 10, 20, Event("a", 19, 7))],
    ),
    "sliding, listed": (
        lambda: windowed(SlidingEventTimeWindows.of(20, 10), type=Event).apply(shown),
        one_stream,
        [("a", 0, 20, [1, 3, 4, 6]), ("c", 0, 20, [5]), ("a", 10, 30, [3, 4])],
    ),
    "sessions, counted and aggregated": (
        lambda: (
            windowed(EventTimeSessionWindows.with_gap(8), type=Event)
            .trigger(CountTrigger.of(5))
            .aggregate(Gathered(), with_bounds)
        ),
        one_stream,
        [("a", 10, 27, [3, 4, 7, 8, 9])],
    ),
    "evicting": (
        lambda: (
            windowed(TEN, type=Event)
            .evictor(CountEvictor.of(1))
            .trigger(CountTrigger.of(2))
            .allowed_lateness(100)
            .apply(shown)
        ),
        one_stream,
        [("c", 0, 10, [7])],
    ),
    "joined": (
        lambda: window_joined(TEN, types=(Event, Event)).apply(lambda a, b: (a.n, b.n)),
        two_streams,
        [(1, 3), (1, 4)],
    ),
    "joined and evicting": (
        lambda: (
            window_joined(TEN, types=(Event, Event))
            .evictor(CountEvictor.of(9))
            .apply(lambda a, b: (a.n, b.n))
        ),
        two_streams,
        [(1, 3), (1, 4)],
    ),
    "by the clock, with states": (
        lambda: windowed(TumblingProcessingTimeWindows.of(10), type=Event).process(Counts()),
        by_the_clock,
        [("a", 1), ("a", 2)],
    ),
    "not keyed": (
        lambda: windowed(TEN, keyed=False, type=Event).allowed_lateness(100).reduce(added),
        one_stream,
        [Event("a", 19, 7)],
    ),
}
MORE = {
    "sessions, counted and aggregated": [Event("a", 10, n) for n in (7, 8, 9)],
    "evicting": [Event("c", 6, 7)],
}
"""What comes after the store was read, where the end of time alone fires nothing."""
PROGRAM = pytest.mark.parametrize("name", PROGRAMS)


def harness(name: str, backend: StateBackend, **more: Any) -> Windows:
    make, _, _ = PROGRAMS[name]
    if name == "not keyed":
        more["key"] = None
    return Windows(make(), backend=backend, **more)


def entries(name: str, backend: StateBackend) -> list[list[str]]:
    """All that a program leaves in its store."""
    _, run, _ = PROGRAMS[name]
    with harness(name, backend) as job:
        run(job)
        job.end_epoch()
        job.kept()
        return [
            [key.hex(), value.hex()] for key, value in job._operator_task._store._store.scan(b"")
        ]


@BACKENDS
@PROGRAM
def test_the_bytes_of_windows_in_a_store_are_those_of_version_1(
    backend: StateBackend, name: str
) -> None:
    assert entries(name, backend) == GOLDEN["stores"][name]


@BACKENDS
@PROGRAM
def test_windows_of_version_1_can_be_read_and_go_on(
    backend: StateBackend, name: str, tmp_path: Path
) -> None:
    store = open_store(backend, tmp_path / "store", None)
    stored = GOLDEN["stores"][name]
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in stored])
    store.commit("1-golden", tmp_path / "snapshot")
    files = {
        str(path): (tmp_path / "snapshot" / path).read_bytes()
        for path in snapshot_files(tmp_path / "snapshot")
    }
    snapshot = HarnessSnapshot(1, 0, 1, MAX_PARALLELISM, backend.name, files)
    with harness(name, backend, restore_from=snapshot) as job:
        job.push_timed(*MORE.get(name, []))
        job.end_input()
        assert job.outputs == PROGRAMS[name][2]
        assert set(job.kept()) <= {"calls"}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_bytes_of_windows_are_those_of_version_1(name: str) -> None:
    data = bytes.fromhex(GOLDEN["windows"][name])
    window = WINDOWS[name]
    assert window.to_bytes() == data
    assert type(window).from_bytes(data) == window


def test_the_golden_file_covers_every_program() -> None:
    assert list(GOLDEN["stores"]) == list(PROGRAMS)
    assert list(GOLDEN["windows"]) == list(WINDOWS)
    assert GOLDEN["max_parallelism"] == MAX_PARALLELISM


def test_bytes_of_time_windows_sort_like_windows() -> None:
    windows = [TimeWindow(s, s + n) for s in (-(2**40), -1, 0, 5, 2**40) for n in (1, 300)]
    assert sorted(windows) == sorted(windows, key=TimeWindow.to_bytes)


def test_contents_and_timers_lie_under_the_key_and_the_window() -> None:
    stored = dict(GOLDEN["stores"]["sliding, listed"])
    group = key_group_of("c", MAX_PARALLELISM).to_bytes(2, "big")
    window = b"\x10" + TimeWindow(0, 20).to_bytes()
    contents = b"\x00\x01" + group + b"\x01c" + window
    assert [key for key in stored if key.startswith(contents.hex())]
    timer = b"\x00\x02" + group + b"\x80" + bytes(6) + b"\x13" + b"\x01c" + window
    assert stored[timer.hex()] == ""


def test_open_sessions_are_pairs_of_windows_under_the_key() -> None:
    stored = dict(GOLDEN["stores"]["sessions, counted and aggregated"])
    group = key_group_of("c", MAX_PARALLELISM).to_bytes(2, "big")
    window = TimeWindow(5, 13).to_bytes()
    pair = b"\x91\x92" + 2 * (b"\xc4\x10" + window)
    assert stored[(b"\x00\x02" + group + b"\x01c\x00").hex()] == pair.hex()
