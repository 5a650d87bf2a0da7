"""Stopping a task before the end of its input: nothing is lost, nothing comes twice."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import KeyedProcessFunction, MapFunction, ValueStateDescriptor, WatermarkStrategy
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import RestoreError, UserFunctionError
from holdfast.runtime.channel_cut import InputCut, SliceSizes
from holdfast.serde.keys import key_group_of
from holdfast.state.key_groups import subtask_of
from holdfast.testing.clock import ManualClock
from tests.support.programs import Program
from tests.support.staged import LEAST_WORK_MS, Notebook, StagedRun, forget
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.api.streams.keyed_stream import KeyedStream
    from holdfast.runtime.plan import ChannelRows
    from holdfast.storage.file_system import FileSystemFiles

CLOCK = ManualClock()
SEEN: list[tuple[int, str, int]] = []
"""Subtask, key and number of everything processed, in order."""
MAX_PARALLELISM = 12
SMALLEST = SliceSizes(first=1, largest=1)
"""A slice at a time as small as possible: the cut may come behind every row."""


class Slow(MapFunction):
    """Takes a millisecond for every element, and notes it."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        CLOCK.advance(1)
        SEEN.append((self.subtask, value.k, value.n))
        if value.n < 0:
            raise ValueError("negative")
        return value


class SlowCount(KeyedProcessFunction):
    """Counts by key, a millisecond for every element."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        CLOCK.advance(1)
        SEEN.append((self.subtask, value.k, value.n))
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


@pytest.fixture(autouse=True)
def _start() -> None:
    forget()
    CLOCK.set(1_000)
    SEEN.clear()


def keyed(program: Program, by: str = "columns") -> KeyedStream:
    stream = program.source(ROWS)
    return stream.key_by("k") if by == "columns" else stream.key_by(lambda e: e.k)


def start(program: Program, files: FileSystemFiles, tmp_path: Path, **options: int) -> StagedRun:
    staging = FileStaging(files, **options)
    return StagedRun(program.compile(), tmp_path / "local", staging, CLOCK, sizes=SMALLEST)


def slow(
    files: FileSystemFiles, tmp_path: Path, parallelism: int = 2, by: str = "columns"
) -> StagedRun:
    """A run of slow steps by key, or round-robin."""
    program = Program(parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
    if by == "turns":
        program.collect(program.source(ROWS).rebalance().map(Slow(), ROWS).uid("slow"))
    else:
        program.collect(keyed(program, by).process(SlowCount(), ROWS).uid("slow"))
    return start(program, files, tmp_path)


def rows(count: int, keys: int = 5) -> list[tuple[str, int]]:
    return [(f"key-{n % keys}", n) for n in range(count)]


def left_in(run: StagedRun, left: tuple[ChannelRows, ...] | None = None) -> list[int]:
    """Numbers of all rows that are left over."""
    return [
        n
        for one in (run.channel_rows if left is None else left)
        for batch in run.staging.get(one.rows)
        for n in batch.column("n").to_pylist()
    ]


def by_key() -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for _, key, number in SEEN:
        found[key].append(number)
    return dict(found)


def expected(feed: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, number in feed:
        found[key].append(number)
    return dict(found)


# One epoch


def test_nothing_is_kept_without_a_cut(files: FileSystemFiles, tmp_path: Path) -> None:
    run = slow(files, tmp_path)
    run.run(rows(20))
    assert run.channel_rows == ()
    assert by_key() == expected(rows(20))
    assert files.entries() == {}


def test_nothing_is_kept_where_the_cut_never_comes(files: FileSystemFiles, tmp_path: Path) -> None:
    run = slow(files, tmp_path)
    run.run(rows(20), cut_at=1_000_000)
    assert run.channel_rows == ()
    assert files.entries() == {}


@pytest.mark.parametrize("by", ["columns", "function", "turns"])
def test_rows_are_processed_until_the_cut_and_the_rest_is_kept(
    files: FileSystemFiles, tmp_path: Path, by: str
) -> None:
    run = slow(files, tmp_path, 1, by)
    run.run(rows(20), cut_at=1_007)
    assert [n for *_, n in SEEN] == list(range(7))
    assert left_in(run) == list(range(7, 20))
    [left] = run.channel_rows
    assert (left.uid, left.input, left.subtask, left.parallelism) == ("slow", 0, 0, 1)
    assert left.rows.rows == 13


def test_a_task_that_starts_after_the_cut_keeps_all(files: FileSystemFiles, tmp_path: Path) -> None:
    run = slow(files, tmp_path)
    run.run(rows(20), cut_at=1_000)
    assert SEEN == []
    assert sorted(left_in(run)) == list(range(20))
    assert {left.subtask for left in run.channel_rows} == {0, 1}
    assert all(report.stores == {} for report in run.reports)


@pytest.mark.parametrize("step", [-3_600_000, 3_600_000])
def test_a_cut_stays_where_it_is_when_somebody_sets_the_clock(
    files: FileSystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def advance(milliseconds: int) -> None:
        ManualClock.advance(CLOCK, milliseconds)
        if len(SEEN) == 3:
            CLOCK.set(CLOCK.now_ms() + step)

    monkeypatch.setattr(CLOCK, "advance", advance)
    run = slow(files, tmp_path, 1)
    run.run(rows(20), cut_at=1_007)
    assert [n for *_, n in SEEN] == list(range(7))


def test_a_machine_whose_clock_is_behind_cuts_within_the_time_of_the_epoch(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(20), cut_at=3_600_000, cut_within_ms=7)
    assert [n for *_, n in SEEN] == list(range(7))
    assert left_in(run) == list(range(7, 20))


def test_a_machine_whose_clock_is_ahead_does_some_work_all_the_same(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(10), cut_at=7, cut_within_ms=7, least_work_ms=4)
    assert SEEN == []
    while run.channel_rows:
        run.run([], cut_at=7, cut_within_ms=7, least_work_ms=4)
    assert [n for *_, n in SEEN] == list(range(10))


def test_what_was_left_over_comes_first_in_the_next_epoch(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(10), cut_at=1_004)
    run.run([("key-0", 100), ("key-1", 101)])
    assert [n for *_, n in SEEN] == [*range(10), 100, 101]
    assert run.channel_rows == ()


def test_every_row_is_processed_once_in_order_over_any_number_of_cuts(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path)
    feed = rows(30)
    run.run(feed, cut_at=CLOCK.now_ms() + 3, least_work_ms=1)
    epochs = 1
    while run.channel_rows:
        before = len(SEEN)
        run.run([], cut_at=CLOCK.now_ms() + 3, least_work_ms=1)
        assert len(SEEN) > before
        epochs += 1
    run.run([(f"key-{n}", 100 + n) for n in range(5)])
    assert by_key() == {key: [*some, 100 + int(key[-1])] for key, some in expected(feed).items()}
    assert epochs > 5


def test_results_of_counting_are_those_without_a_cut(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    program = Program(max_parallelism=MAX_PARALLELISM)
    out = program.collect(keyed(program).process(SlowCount(), ROWS).uid("slow"))
    run = start(program, files, tmp_path)
    run.run(rows(30), cut_at=1_004)
    run.run(rows(30), cut_at=CLOCK.now_ms() + 2)
    while run.channel_rows:
        run.run([], cut_at=CLOCK.now_ms() + 2)
    assert sorted(map(tuple, out)) == sorted(
        (f"key-{k}", n) for k in range(5) for n in range(1, 13)
    )


def test_what_was_left_over_gets_some_work_even_after_the_cut(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    feed = rows(2 * LEAST_WORK_MS + 50)
    run.run(feed, cut_at=1_000)
    run.run([("key-0", 999)], cut_at=1_000)
    assert len(SEEN) == LEAST_WORK_MS
    run.run([], cut_at=1_000)
    run.run([], cut_at=1_000)
    assert by_key() == expected([*feed, ("key-0", 999)])
    assert run.channel_rows == ()


def test_new_rows_do_not_overtake_what_is_kept_again(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(300), cut_at=1_000)
    run.run([("key-0", 1_000)], cut_at=1_000)
    # The clock stands behind the cut, but not behind the work on what was left over.
    assert left_in(run) == [*range(LEAST_WORK_MS, 300), 1_000]
    [left] = run.channel_rows
    assert left.rows.rows == 201


def test_new_rows_are_cut_as_usual_behind_what_was_left_over(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(10), cut_at=1_004)
    run.run(rows(10), cut_at=CLOCK.now_ms() + 9)
    assert len(SEEN) == 4 + 9
    assert left_in(run) == list(range(3, 10))


def test_an_epoch_without_input_leaves_what_waits_where_it_is(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(10), cut_at=1_004)
    waiting = run.channel_rows
    run.run([], channel_rows=())
    assert len(SEEN) == 4
    assert left_in(run, waiting) == list(range(4, 10))


# Stages, channels, sinks


def test_channels_that_only_pass_through_are_passed_on(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    program = Program(parallelism=1)
    first, second = program.source(ROWS, "first"), program.source(ROWS, "second")
    one = first.rebalance().map(Slow(), ROWS).uid("one")
    united = one.union(second).rebalance().map(Slow(), ROWS).uid("two")
    out = program.collect(united)
    run = start(program, files, tmp_path)
    assert len(run.plan.stages) == 2
    run.run([("a", n) for n in range(5)], [("b", n) for n in range(3)], cut_at=1_002)
    # The second stage starts after the cut, and keeps what came through and what was passed on.
    kept = {(left.uid, left.input): left_in(run, (left,)) for left in run.channel_rows}
    # Those of a union are taken together, as one stream's.
    assert kept == {("one", 0): [2, 3, 4], ("two", 0): [0, 1, 0, 1, 2]}
    assert out == []
    run.run([], [])
    assert sorted(map(tuple, out)) == [("a", n) for n in range(5)] + [("b", n) for n in range(3)]


def test_a_sink_stages_what_was_processed_and_the_rest_later(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    program = Program(parallelism=1)
    mapped = program.source(ROWS).rebalance().map(Slow(), ROWS)
    mapped.sink_to(Notebook(rows=True)).uid("sink")
    run = start(program, files, tmp_path)
    run.run(rows(6), cut_at=1_002)
    assert run.committed("sink") == {0: rows(6)[:2]}
    run.run([])
    assert run.committed("sink") == {0: rows(6)[2:]}


def test_a_sink_with_a_channel_of_its_own_keeps_its_input(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    program = Program(parallelism=2)
    program.source(ROWS).sink_to(Notebook(rows=True)).uid("sink")
    run = start(program, files, tmp_path)
    run.run(rows(6), cut_at=1_000)
    assert run.prepared == []
    assert {left.uid for left in run.channel_rows} == {"sink"}
    run.run([])
    assert sorted(row for some in run.committed("sink").values() for row in some) == sorted(rows(6))


def test_a_task_that_fails_leaves_nothing_that_was_kept(
    files: FileSystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(parallelism=1)
    mapped = program.source(ROWS).rebalance().map(Slow(), ROWS)
    mapped.sink_to(Notebook(fails_in="flush")).uid("sink")
    run = start(program, files, tmp_path, spill_at=0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    # What was caught keeps all that was at work alive.
    with pytest.raises(UserFunctionError, match="no flush today") as caught:
        run.run(rows(6), cut_at=1_002)
    assert caught.tb is not None
    assert list(scratch.iterdir()) == []
    assert files.entries(STAGED) == {}


def test_rows_in_another_layout_are_kept_beside_those_kept_before(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    run.run(rows(4), cut_at=1_000)
    stage = run.plan.stages[0]
    [channel] = stage.reads.channels
    cut = InputCut(stage, _cut(run, 1_000), 0, "x", CLOCK, SMALLEST)
    for _, batch in cut.left_before():
        assert list(cut.slices(channel, batch)) == []
    large = pa.schema([("k", pa.large_string()), ("n", pa.int64())])
    assert list(cut.slices(channel, pa.record_batch([["a"], [9]], schema=large))) == []
    assert left_in(run, cut.close()) == [0, 1, 2, 3, 9]


def test_a_clock_that_is_set_back_lets_no_row_overtake_those_that_are_kept(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    run = slow(files, tmp_path, 1)
    stage = run.plan.stages[0]
    [channel] = stage.reads.channels
    cut = InputCut(stage, _cut(run, 1_000), 0, "x", CLOCK, SMALLEST)
    for number in (1, 2):
        batch = pa.record_batch([["a"], [number]], schema=channel.type.schema)
        assert list(cut.slices(channel, batch)) == []
        CLOCK.set(900)
    assert left_in(run, cut.close()) == [1, 2]


def _cut(run: StagedRun, at: int) -> Any:
    run.told = {"cut_at": at}
    return run.epoch_plan()


def test_slices_grow_while_they_are_quick_and_shrink_when_they_are_slow(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    seconds = [0.0]
    sizes = SliceSizes(first=4, largest=16)
    run = slow(files, tmp_path, 1)
    stage = run.plan.stages[0]
    [channel] = stage.reads.channels
    plan = _cut(run, 9_999)
    cut = InputCut(stage, plan, 0, "x", CLOCK, sizes, seconds=lambda: seconds[0])
    batch = pa.record_batch(
        [[f"{n}" for n in range(76)], list(range(76))], schema=channel.type.schema
    )
    taken = []
    for part, took in zip(
        cut.slices(channel, batch), [0.0, 0.0, 0.0, 0.05, *[0.2] * 6], strict=True
    ):
        taken.append(part.num_rows)
        seconds[0] += took
    assert taken == [4, 8, 16, 16, 16, 8, 4, 2, 1, 1]


# Another parallelism


@pytest.mark.parametrize("by", ["columns", "function", "turns"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (5, 2), (4, 4)])
def test_what_subtasks_left_over_is_read_once_by_those_who_own_it_now(
    files: FileSystemFiles, tmp_path: Path, before: int, after: int, by: str
) -> None:
    feed = rows(40, keys=11)
    old = slow(files, tmp_path / "old", before, by)
    old.run(feed, cut_at=1_000 + 5)
    done = len(SEEN)
    assert 0 < done < 40
    new = slow(files, tmp_path / "new", after, by)
    new.channel_rows = old.channel_rows
    new.run([])
    assert sorted(n for *_, n in SEEN) == list(range(40))
    assert new.channel_rows == ()
    if by != "turns":
        assert by_key() == expected(feed)
        for subtask, key, _ in SEEN[done:]:
            group = key_group_of(key, MAX_PARALLELISM)
            assert subtask == subtask_of(group, after, MAX_PARALLELISM)


def test_what_is_cut_again_on_another_parallelism_belongs_to_that_one(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    feed = rows(2_000, keys=11)
    old = slow(files, tmp_path / "old", 3)
    old.run(feed, cut_at=1_000)
    new = slow(files, tmp_path / "new", 2)
    new.channel_rows = old.channel_rows
    new.run([], cut_at=1_000)
    assert {(left.subtask, left.parallelism) for left in new.channel_rows} == {(0, 2), (1, 2)}
    new.run([])
    assert by_key() == expected(feed)


def test_an_operator_with_fewer_subtasks_than_its_stage_reads_its_rows_once(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    def started(parallelism: int) -> StagedRun:
        program = Program(parallelism=4, max_parallelism=MAX_PARALLELISM)
        stream = program.source(ROWS)
        narrow = stream.rebalance().map(Slow(), ROWS).uid("narrow").set_parallelism(parallelism)
        wide = stream.rebalance().map(Slow(), ROWS).uid("wide")
        program.collect(narrow)
        program.collect(wide)
        return start(program, files, tmp_path)

    old = started(3)
    old.run(rows(20), cut_at=1_000)
    new = started(2)
    new.channel_rows = old.channel_rows
    new.run([])
    assert sorted(n for *_, n in SEEN) == sorted([*range(20), *range(20)])


def test_rows_of_other_columns_than_the_operator_takes_are_refused(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    old = slow(files, tmp_path / "old")
    old.run(rows(4), cut_at=1_000)
    program = Program(max_parallelism=MAX_PARALLELISM)
    stream = program.source("k string, m bigint").key_by("k")
    program.collect(stream.process(SlowCount(), ROWS).uid("slow").name("Slow"))
    new = start(program, files, tmp_path / "new")
    new.channel_rows = old.channel_rows
    with pytest.raises(RestoreError, match=r"'Slow' \(uid 'slow'\).*\['k', 'n'\].*\['k', 'm'\]"):
        new.run([])


@pytest.mark.parametrize("assigner", ["n", lambda row, _: row.n], ids=["column", "function"])
def test_rows_that_were_left_over_tell_how_far_time_has_come(
    files: FileSystemFiles, tmp_path: Path, assigner: Any
) -> None:
    program = Program(parallelism=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    timed = program.source(ROWS).assign_timestamps_and_watermarks(strategy).uid("time")
    program.collect(timed.key_by("k").process(SlowCount(), ROWS).uid("slow"))
    run = start(program, files, tmp_path)
    run.run(rows(5), cut_at=1_002)
    assert left_in(run) == [2, 3, 4]
    # As after a recovery, when nobody remembers what the first epoch has seen.
    run.run([])
    assert {uid: time for one in run.reports for uid, time in one.latest.items()} == {"time": 4}
