"""Whole programs, compiled and run task by task without Spark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    FailedRow,
    HashMapStateBackend,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ValueStateDescriptor,
)
from holdfast.errors import KeyTypeError, OutputTypeError, StateAccessError, UserFunctionError
from holdfast.job.key_agreement import KeyAgreement
from holdfast.serde.keys import key_group_of
from holdfast.state.key_groups import subtask_of
from tests.support.functions import AllFive, Count
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = "k string, n bigint"
COUNTS = "k string, count bigint"
WORDS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 6)]
BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
LATE = OutputTag("late", ROWS)
ODD = OutputTag("odd")


def same(value: Any) -> Any:
    return value


class Route(ProcessFunction):
    """Sends some rows to the side, some of them twice."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n > 4:
            yield LATE, value
        if value.n % 2:
            yield ODD, {"word": value.k}
        yield value


def number_or_text(row: Any) -> Any:
    """A key whose type depends on the row."""
    return row.n if row.k == "number" else row.k


class Here(MapFunction):
    """Says where it runs."""

    def open(self, ctx: Any) -> None:
        self.here = (ctx.get_index_of_this_subtask(), ctx.get_number_of_parallel_subtasks())

    def map(self, value: Any) -> Any:
        return (value, *self.here)


@BACKENDS
def test_several_channels_and_types_cross_stages_together(backend: Any, tmp_path: Path) -> None:
    program = Program(backend=backend, parallelism=3)
    words, numbers = program.source(ROWS), program.source("n bigint")
    routed = words.rebalance().process(Route(), ROWS)
    late, odd = program.collect(routed.get_side_output(LATE)), routed.get_side_output(ODD)
    odd_words = program.collect(odd.key_by(lambda o: o["word"]).process(Count(), COUNTS))
    counts = routed.key_by("k").process(Count(), COUNTS).uid("counts")
    counted = program.collect(counts)
    totals = program.collect(numbers.key_by(lambda row: row.n % 2).sum("n"))
    by_count = program.collect(counts.key_by("count").process(Count(), "c bigint, n bigint"))
    raw = program.collect(words)
    run = program.start(tmp_path)
    for epoch in (1, 2, 3):
        run.push(WORDS, [(1,), (2,), (3,)])
        assert Counter(k for k, _ in counted) == {"a": 3 * epoch, "b": 2 * epoch, "c": epoch}
        assert max(counted) == ("c", epoch)
        assert len(set(counted)) == 6 * epoch
    assert Counter(late) == {("a", 5): 3, ("b", 6): 3}
    assert Counter(k for k, _ in odd_words) == {"a": 9}
    assert sorted(row.n for row in totals) == [1, 2, 4, 4, 5, 6, 8, 9, 12]
    expected = Counter(n for _, n in counted)
    assert Counter(n for n, _ in by_count) == expected
    assert Counter(raw) == Counter(WORDS * 3)


@BACKENDS
def test_a_key_has_one_home_over_all_epochs(backend: Any, tmp_path: Path) -> None:
    program = Program(backend=backend, parallelism=4)
    keys = [f"key {i}" for i in range(40)]
    by_column = program.source("k string").key_by("k").process(Whereabouts(), "k string, at int")
    other = program.source("k string").key_by(lambda row: row.k)
    homes = program.collect(by_column)
    other_homes = program.collect(other.process(Whereabouts(), "k string, at int"))
    run = program.start(tmp_path)
    for _ in range(2):
        run.push([(k,) for k in keys], [(k,) for k in reversed(keys)])
    assert len(set(homes)) == len(keys)
    assert set(homes) == set(other_homes)
    assert {at for _, at in homes} == {0, 1, 2, 3}


class Whereabouts(KeyedProcessFunction):
    """The subtask of every key."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Any:
        return [(ctx.get_current_key(), self.subtask)]


# Unions


def test_a_union_with_itself_counts_every_element_twice(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS)
    mapped = rows.map(same, ROWS)
    keyed = rows.key_by("k").process(AllFive(), ROWS)
    streams = {
        "source": rows.union(rows),
        "chained at the source": mapped.union(mapped).map(same, ROWS),
        "chained": keyed.union(keyed).map(same, ROWS),
        "exchanged": keyed.union(keyed).key_by("n").process(AllFive(), ROWS),
        "output": keyed.union(keyed),
        "output of a map": mapped.union(mapped),
        "three times": keyed.union(keyed, keyed).filter(bool),
    }
    outputs = {name: program.collect(stream) for name, stream in streams.items()}
    program.start(tmp_path).push(WORDS)
    for name, output in outputs.items():
        times = 3 if name == "three times" else 2
        assert Counter(output) == Counter(WORDS * times), name


def test_a_union_brings_together_sources_and_stages(tmp_path: Path) -> None:
    program = Program()
    first, second = program.source(ROWS), program.source(ROWS)
    once = first.key_by("k").process(AllFive(), ROWS)
    twice = once.key_by("n").process(AllFive(), ROWS)
    everything = program.collect(first.union(second, once, twice))
    counted = program.collect(first.union(second, once, twice).key_by("k").process(Count(), COUNTS))
    chained = program.collect(twice.union(first).map(same, ROWS))
    run = program.start(tmp_path)
    run.push(WORDS, [("z", 26)])
    assert Counter(everything) == Counter(WORDS * 3 + [("z", 26)])
    assert Counter(k for k, _ in counted) == {"a": 9, "b": 6, "c": 3, "z": 1}
    assert Counter(chained) == Counter(WORDS * 2)


def test_a_union_of_keyed_streams_is_not_keyed(tmp_path: Path) -> None:
    class Asks(ProcessFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_state(ValueStateDescriptor("n", int))

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    program = Program()
    rows = program.source(ROWS)
    rows.key_by("k").union(rows.key_by("n")).process(Asks())
    with pytest.raises(StateAccessError, match="'keyed stream'"):
        program.start(tmp_path).push(WORDS)


# Parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_operators_run_on_as_many_subtasks_as_they_say(parallelism: int, tmp_path: Path) -> None:
    program = Program(parallelism=parallelism)
    rows = program.source(int)
    where = tuple[int, int, int]
    three = program.collect(rows.map(Here(), where).set_parallelism(3))
    default = program.collect(rows.rebalance().map(Here(), where))
    chain = rows.shuffle().map(same, int).set_parallelism(4).map(same, int)
    back = program.collect(chain.map(Here(), where).set_parallelism(2))
    program.start(tmp_path).push(list(range(60)))
    for output, expected in ((three, 3), (default, parallelism), (back, 2)):
        assert sorted(value for value, _, _ in output) == list(range(60))
        assert {tuple(row)[1:] for row in output} == {(i, expected) for i in range(expected)}


@pytest.mark.parametrize("narrow", [1, 2, 3])
@pytest.mark.parametrize("parallelism", [1, 4])
def test_no_row_is_lost_beside_stages_of_another_width(
    narrow: int, parallelism: int, tmp_path: Path
) -> None:
    program = Program(parallelism=parallelism)
    rows = program.source(ROWS)
    keyed = rows.key_by("k").process(AllFive(), ROWS).set_parallelism(narrow)
    again = keyed.key_by("n").process(AllFive(), ROWS).set_parallelism(1)
    outputs = [program.collect(s) for s in (rows, rows.map(same, ROWS), keyed, again)]
    outputs.append(program.collect(again.union(rows).map(same, ROWS).set_parallelism(2)))
    run = program.start(tmp_path)
    for _ in range(2):
        run.push(WORDS)
    assert [Counter(output) for output in outputs] == [
        *([Counter(WORDS * 2)] * 4),
        Counter(WORDS * 4),
    ]


# Outputs


def test_all_sinks_of_a_stream_see_the_same_rows_computed_once(tmp_path: Path) -> None:
    program = Program()
    counts = program.source(ROWS).key_by("k").process(Count(), COUNTS)
    sinks = [program.collect(counts) for _ in range(3)]
    run = program.start(tmp_path)
    run.push(WORDS)
    run.push(WORDS)
    assert sinks[0] == sinks[1] == sinks[2]
    assert len(set(sinks[0])) == 12


def test_a_job_may_have_no_output(tmp_path: Path) -> None:
    program = Program()
    program.source(ROWS).key_by("k").process(Count()).uid("counts")
    run = program.start(tmp_path)
    run.push(WORDS)
    assert sum(r.operators["counts"].records_in for r in run.reports if r.operators) == 6


def test_an_epoch_without_rows_keeps_all_state(tmp_path: Path) -> None:
    program = Program()
    counted = program.collect(program.source(ROWS).key_by("k").process(Count(), COUNTS))
    run = program.start(tmp_path)
    run.push(WORDS)
    run.push([])
    counted.clear()
    run.push([("a", 1)])
    assert counted == [("a", 4)]


def test_what_an_operator_declares_is_checked_whoever_reads_it(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS)
    declared = rows.map(lambda row: None, int).name("declared")
    lenient = rows.map(lambda row: row.n, "bigint")
    program.collect(declared.union(lenient))
    program.collect(declared)
    with pytest.raises(OutputTypeError, match="operator 'declared'"):
        program.start(tmp_path).push(WORDS)


def test_a_union_carries_null_if_one_of_its_parts_does(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS)
    strict, lenient = rows.map(lambda row: row.n, int), rows.map(lambda row: None, "bigint")
    both = program.collect(strict.union(lenient))
    mapped = program.collect(strict.union(lenient).map(same, "bigint"))
    alone = program.collect(strict)
    exchanged = program.collect(lenient.union(strict).rebalance().map(same, "bigint"))
    program.start(tmp_path).push(WORDS)
    for output in (both, mapped, exchanged):
        assert Counter(output) == Counter([n for _, n in WORDS] + [None] * 6)
    assert Counter(alone) == Counter(n for _, n in WORDS)


# Batch mode and error policies


@BACKENDS
def test_batch_mode_gives_one_result_for_every_key(backend: Any, tmp_path: Path) -> None:
    program = Program(batch_mode=True, backend=backend)
    sums = program.source(ROWS).key_by("k").sum("n")
    results = program.collect(sums)
    counted = program.collect(sums.key_by("n").process(Count(), "n bigint, count bigint"))
    program.start(tmp_path).push(WORDS)
    assert sorted(results) == [("a", 9), ("b", 8), ("c", 4)]
    assert sorted(counted) == [(4, 1), (8, 1), (9, 1)]


@pytest.mark.parametrize("batch_mode", [True, False])
def test_rows_that_fail_in_a_reduction_are_diverted(batch_mode: bool, tmp_path: Path) -> None:
    def add(a: Any, b: Any) -> Any:
        if b.n < 0:
            raise ValueError("negative")
        return (a.k, a.n + b.n)

    failed = OutputTag("failed")
    program = Program(batch_mode=batch_mode, parallelism=1)
    sums = program.source(ROWS).key_by("k").reduce(add)
    sums.on_error(ErrorPolicy.side_output(failed)).uid("sums")
    results = program.collect(sums)
    diverted = program.collect(sums.get_side_output(failed))
    run = program.start(tmp_path)
    run.push([("a", 1), ("a", -1), ("b", 5), ("a", 2), ("a", -2), ("a", 3)])
    assert all(isinstance(row, FailedRow) for row in diverted)
    assert [row.row for row in diverted] == [("a", -1), ("a", -2)]
    if batch_mode:
        assert sorted(results) == [("a", 6), ("b", 5)]
    else:
        assert results == [("a", 1), ("b", 5), ("a", 3), ("a", 6)]
    assert sum(r.operators["sums"].skipped for r in run.reports if r.operators) == 2


def test_a_failure_names_the_operator_that_failed_and_not_those_around_it(tmp_path: Path) -> None:
    program = Program()
    stream = program.source(ROWS).key_by("k").process(AllFive(), ROWS).name("before")
    stream = stream.map(lambda row: 1 // (row.n - 4), int).name("culprit").uid("c")
    stream.map(same).name("after")
    with pytest.raises(UserFunctionError) as caught:
        program.start(tmp_path).push(WORDS)
    text = str(caught.value)
    assert text.startswith("operator 'culprit' (uid 'c'), subtask ")
    assert "ZeroDivisionError" in text
    assert "row: Event(k='c', n=4)" in text
    assert "before" not in text.splitlines()[0]


@BACKENDS
def test_keys_of_different_types_on_different_subtasks_are_noticed_at_once(
    tmp_path: Path, backend: Any
) -> None:
    program = Program(backend=backend)
    rows = program.source(ROWS)
    counts = rows.key_by(number_or_text).process(Count()).uid("count").name("counter")
    program.collect(counts)
    run = program.start(tmp_path)
    here = {key: subtask_of(key_group_of(key, 128), 2, 128) for key in (*range(9), *"abcdefghi")}
    number = next(n for n in range(9) if here[n] == 0)
    text = next(t for t in "abcdefghi" if here[t] == 1)
    # In one epoch, the driver compares what the tasks report.
    run.push([("number", number), (text, 7)])
    agreement = KeyAgreement(run.plan, {})
    with pytest.raises(KeyTypeError) as caught:
        agreement.check(run.epoch, run.reports)
    assert f"int in subtask 0, such as key {number} of row Event(k='number'" in str(caught.value)
    assert f"str in subtask 1, such as key {text!r} of row Event(k={text!r}" in str(caught.value)
    # In a later epoch a task is told of what others have seen.
    run = program.start(tmp_path / "again")
    run.push([("number", number)])
    agreement.check(run.epoch, run.reports)
    assert agreement.shapes == {"count": "int"}
    run.key_shapes = agreement.shapes
    with pytest.raises(KeyTypeError) as caught:
        run.push([("number", number), (text, 7)])
    assert f"key {text!r} is a str, but the stored state of this operator has int" in str(
        caught.value
    )
    assert f"row: Event(k={text!r}, n=7)" in str(caught.value)
