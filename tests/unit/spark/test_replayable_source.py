"""Sources that users write: their offsets, their ranges, and what is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import ReplayableSource
from holdfast.errors import JobGraphError, NotSerializableError, OutputTypeError, UserFunctionError
from holdfast.spark.sources.data_source import (
    ENDLESS_EPOCH,
    IndexedSource,
    ReplayedElements,
    plain_offset,
    replayed,
)
from holdfast.types.columns.batches import BatchReader
from holdfast.types.stream_type import OBJECTS, StreamType

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair(NamedTuple):
    n: int
    word: str


class Pairs(ReplayableSource):
    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any) -> Any:
        return min(start + 2, 5)

    def read(self, start: Any, end: Any) -> Iterator[Pair]:
        for n in range(start, end):
            yield Pair(n, str(n))


class Untyped(Pairs):
    def read(self, start: Any, end: Any):
        return range(start, end)


def elements(source: ReplayableSource, spec: Any = Pair) -> ReplayedElements:
    return ReplayedElements(source, StreamType.of(spec), "pairs")


@pytest.mark.parametrize(
    ("offset", "plain"),
    [
        (5, 5),
        (None, None),
        ("x", "x"),
        ((1, 2), [1, 2]),
        ({"b": 1, "a": {"d": 2, "c": (3,)}}, {"a": {"c": [3], "d": 2}, "b": 1}),
    ],
)
def test_an_offset_comes_back_as_json_gives_it(offset: Any, plain: Any) -> None:
    assert plain_offset(offset) == plain
    assert repr(plain_offset(offset)) == repr(plain)


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ({1: "a"}, "the key 1, which JSON would give back as a string"),
        ([{"a": {None: 1}}], "the key None"),
        ({1, 2}, "cannot be kept as JSON"),
        (float("nan"), "cannot be kept as JSON"),
        (b"x", "cannot be kept as JSON"),
    ],
)
def test_an_offset_that_would_come_back_as_another_is_refused(offset: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        plain_offset(offset)


def test_an_epoch_goes_from_offset_to_offset_until_there_is_nothing_new() -> None:
    source = elements(Pairs())
    offsets = [source.first()]
    while (end := source.latest(offsets[-1])) != offsets[-1]:
        offsets.append(end)
    assert offsets == [0, 2, 4, 5]


class Session:
    """As much of a session as a source needs that is registered."""

    def __init__(self) -> None:
        self.dataSource = self.read = self

    def register(self, source: Any) -> None:
        self.registered = source

    def format(self, name: str) -> Session:
        assert name == self.registered.name()
        return self

    def load(self) -> None:
        pass


def test_one_pass_over_nothing_is_one_range_without_elements() -> None:
    class Nothing(Pairs):
        bounded = True

        def latest_offset(self, start: Any) -> Any:
            return start

    session = Session()
    source, _, _ = replayed(session, Nothing(), None, None)  # type: ignore[arg-type]
    assert source.static is not None
    source.static()
    reader = session.registered({}).reader(None)
    [only] = reader.partitions()
    assert list(reader.read(only)) == []


def test_one_range_is_the_whole_unless_the_source_says_otherwise() -> None:
    class Split(Pairs):
        def partitions(self, start: Any, end: Any) -> list[tuple[Any, Any]]:
            return [(n, n + 1) for n in range(start, end)]

    assert [(r.start, r.end) for r in elements(Pairs()).ranges(0, 4)] == [(0, 4)]
    assert [(r.start, r.end) for r in elements(Split()).ranges(0, 2)] == [(0, 1), (1, 2)]
    assert elements(Split()).ranges(3, 3) == []


def test_elements_are_written_as_they_were_declared() -> None:
    source = elements(Pairs())
    reader = BatchReader(source.type)
    rows = [row for batch in source.batches(1, 4) for row in reader.elements(batch)]
    assert rows == [Pair(1, "1"), Pair(2, "2"), Pair(3, "3")]
    assert list(source.batches(2, 2)) == []


def test_elements_that_do_not_fit_name_source_and_range() -> None:
    with pytest.raises(OutputTypeError, match=r"source 'pairs', read from 0 to 3: .*bigint"):
        list(elements(Pairs(), "n bigint, word bigint").batches(0, 3))


def test_what_fails_names_source_and_method() -> None:
    class Broken(Pairs):
        def initial_offset(self) -> Any:
            raise OSError("no broker")

        def read(self, start: Any, end: Any) -> Iterator[Pair]:
            yield Pair(1, "1")
            raise OSError("no broker")

    with pytest.raises(UserFunctionError, match=r"source 'pairs', in initial_offset\(\): OSError"):
        elements(Broken()).first()
    with pytest.raises(UserFunctionError, match=r"'pairs', in read\(\) from 0 to 3: OSError"):
        list(elements(Broken()).batches(0, 3))


def test_the_type_is_given_or_annotated_or_else_elements_are_pickled() -> None:
    def type_of(source: ReplayableSource, given: Any = None) -> StreamType:
        return replayed(None, source, given, None)[1]  # type: ignore[arg-type]

    assert type_of(Pairs()) == StreamType.of(Pair)
    assert type_of(Pairs(), "n int, word string") == StreamType.of("n int, word string")
    assert type_of(Untyped()) == OBJECTS


def test_a_source_is_told_its_own_offset_and_not_the_one_that_spark_keeps() -> None:
    class Told(Pairs):
        bounded = True
        offsets: tuple[Any, ...] = ()

        def commit(self, offset: Any) -> None:
            self.offsets = (*self.offsets, offset)

    told = Told()
    source, _, name = replayed(None, told, None, None)  # type: ignore[arg-type]
    assert source.commit is not None
    source.commit('{"offset": {"n": 5}}')
    assert told.offsets == ({"n": 5},)
    assert (name, source.bounded) == ("Source: Told", True)
    assert Pairs().commit(5) is None  # type: ignore[func-returns-value]


def test_what_is_no_source_or_cannot_be_shipped_is_refused() -> None:
    class Locked(Pairs):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    for wrong, said in [(Pairs, "not the class Pairs"), ([1], "not list")]:
        with pytest.raises(JobGraphError, match=said):
            replayed(None, wrong, None, None)  # type: ignore[arg-type]
    with pytest.raises(NotSerializableError, match=r"Locked cannot be shipped .*open that in read"):
        replayed(None, Locked(), None, None)  # type: ignore[arg-type]


# Collections and generators


def test_a_collection_is_read_by_the_numbers_of_its_elements() -> None:
    source = IndexedSource("words", ["a", "b", "c"], 3)
    assert source.bounded
    assert (source.initial_offset(), source.latest_offset(0), source.latest_offset(3)) == (0, 3, 3)
    assert list(source.read(1, 3)) == ["b", "c"]


def test_an_epoch_is_dealt_out_to_tasks_in_ranges() -> None:
    source = IndexedSource("numbers", lambda n: n * n, 10, tasks=3)
    ranges = source.partitions(0, 10)
    assert ranges == [(0, 3), (3, 6), (6, 10)]
    assert [n for each in ranges for n in source.read(*each)] == [n * n for n in range(10)]
    assert source.partitions(8, 10) == [(8, 9), (9, 10)]
    assert source.partitions(5, 5) == [(5, 5)]


def test_an_epoch_has_no_more_elements_than_it_may() -> None:
    assert IndexedSource("numbers", str, 10, max_rows=4).latest_offset(3) == 7
    assert IndexedSource("numbers", str, 10, max_rows=4).latest_offset(8) == 10
    assert IndexedSource("numbers", str, None).latest_offset(5) == 5 + ENDLESS_EPOCH
    assert IndexedSource("numbers", str, None, rate=1e-9).latest_offset(5) == 5


def test_a_source_that_drains_waits_for_what_its_rate_holds_back() -> None:
    source = IndexedSource("numbers", str, 2, rate=50)
    source.drain()
    offsets = [0]
    while offsets[-1] < 2:
        offsets.append(source.latest_offset(offsets[-1]))
    assert offsets in ([0, 1, 2], [0, 2])
    assert source.latest_offset(2) == 2


def test_an_element_that_cannot_be_generated_is_named_with_its_source() -> None:
    source = IndexedSource("numbers", lambda n: 6 // (n - 2), 5)
    with pytest.raises(UserFunctionError, match=r"source 'numbers', element 2: ZeroDivisionError"):
        list(ReplayedElements(source, StreamType.of(int), "numbers").batches(0, 5))
