"""Every kind of keyed state, over every backend: Flink's behaviour, method by method."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import (
    StateAccessError,
    StateDescriptorError,
    StateError,
    StateValueError,
    StoreVersionError,
)
from holdfast.state.list import MAX_CHUNKS
from holdfast.state.snapshots import open_snapshot
from holdfast.state.table import NO_KEY
from tests.support.subtask import Subtask

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def subtask(backend: Any, tmp_path: Path) -> Any:
    subtask = Subtask(backend, tmp_path / "store")
    yield subtask
    subtask.state.abort()


@dataclass
class Basket:
    items: list[str]


class Point(NamedTuple):
    x: int
    y: int


class Mean(AggregateFunction):
    """Mean of numbers, with a mutable accumulator."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [a + b for a, b in zip(acc_a, acc_b, strict=True)]


AT = datetime(2026, 11, 15, 4, 30, tzinfo=UTC)
VALUE = ValueStateDescriptor("value", int)
LIST = ListStateDescriptor("list", int)
MAP = MapStateDescriptor("map", str, int)
REDUCING = ReducingStateDescriptor("sum", lambda a, b: a + b, int)
AGGREGATING = AggregatingStateDescriptor("mean", Mean(), list[int])
ALL = [VALUE, LIST, MAP, REDUCING, AGGREGATING]


# Value state


def test_a_value_is_none_until_it_is_set_and_after_it_is_cleared(subtask: Subtask) -> None:
    state = subtask.get(VALUE)
    subtask.key("a")
    assert state.value() is None
    state.update(1)
    assert state.value() == 1
    state.clear()
    state.clear()
    assert state.value() is None


def test_values_follow_the_key_and_survive_the_epoch(subtask: Subtask) -> None:
    state = subtask.get(VALUE)
    for key, value in [("a", 1), ("b", 2)]:
        subtask.key(key)
        state.update(value)
    subtask.next_epoch()
    state = subtask.get(VALUE)
    found = {}
    for key in ("a", "b", "c"):
        subtask.key(key)
        found[key] = state.value()
    assert found == {"a": 1, "b": 2, "c": None}


def test_updating_with_none_clears_and_brings_the_default_back(subtask: Subtask) -> None:
    state = subtask.get(ValueStateDescriptor("value", int, default=7))
    subtask.key("a")
    assert state.value() == 7
    state.update(1)
    state.update(None)
    assert state.value() == 7
    subtask.next_epoch()
    assert len(subtask.content()) == 2  # metadata only


def test_a_default_is_copied_for_every_access(subtask: Subtask) -> None:
    default = Basket(["apple"])
    state = subtask.get(ValueStateDescriptor("basket", Basket, default=default))
    subtask.key("a")
    first = state.value()
    subtask.key("b")
    second = state.value()
    assert first == second == default
    assert first is not second
    assert first is not default
    first.items.append("pear")
    assert state.value() == Basket(["apple"])


def test_a_value_changed_in_place_is_unchanged_until_it_is_updated(subtask: Subtask) -> None:
    state = subtask.get(ValueStateDescriptor("basket", Basket))
    subtask.key("a")
    mine = Basket(["apple"])
    state.update(mine)
    mine.items.append("pear")
    assert state.value() == Basket(["apple"])
    theirs = state.value()
    theirs.items.append("plum")
    assert state.value() == Basket(["apple"])
    subtask.next_epoch()
    state = subtask.get(ValueStateDescriptor("basket", Basket))
    subtask.key("a")
    assert state.value() == Basket(["apple"])
    state.update(theirs)
    assert state.value() == Basket(["apple", "plum"])


def test_immutable_values_are_not_copied(subtask: Subtask) -> None:
    state = subtask.get(ValueStateDescriptor("point", Point))
    subtask.key("a")
    point = Point(1, 2)
    state.update(point)
    assert state.value() is point


def test_a_value_of_another_type_is_refused_where_it_is_set(subtask: Subtask) -> None:
    state = subtask.get(VALUE)
    subtask.key("a")
    with pytest.raises(StateValueError, match="int"):
        state.update("one")
    assert state.value() is None


# List state


def test_a_list_keeps_order_and_duplicates(subtask: Subtask) -> None:
    state = subtask.get(LIST)
    subtask.key("a")
    assert state.get() == []
    state.add(2)
    state.add_all([1, 2])
    assert state.get() == list(state) == [2, 1, 2]
    subtask.next_epoch()
    state = subtask.get(LIST)
    subtask.key("a")
    state.add(3)
    assert state.get() == [2, 1, 2, 3]


def test_adding_nothing_changes_nothing_and_updating_with_nothing_clears(subtask: Subtask) -> None:
    state = subtask.get(LIST)
    subtask.key("a")
    state.add_all([])
    state.add(1)
    state.add_all([])
    assert state.get() == [1]
    state.update([])
    assert state.get() == []
    subtask.next_epoch()
    assert len(subtask.content()) == 2


def test_updating_replaces_what_earlier_epochs_added(subtask: Subtask) -> None:
    state = subtask.get(LIST)
    subtask.key("a")
    state.add_all([1, 2])
    subtask.next_epoch()
    state = subtask.get(LIST)
    subtask.key("a")
    state.update([9])
    state.add(8)
    subtask.next_epoch()
    state = subtask.get(LIST)
    subtask.key("a")
    assert state.get() == [9, 8]


def test_nulls_in_a_list_are_refused_and_leave_it_as_it_was(subtask: Subtask) -> None:
    state = subtask.get(LIST)
    subtask.key("a")
    state.add(1)
    for refused in (
        lambda: state.add(None),
        lambda: state.add_all([2, None]),
        lambda: state.add_all(None),
        lambda: state.update([2, None]),
        lambda: state.update(None),
        lambda: state.add_all([2, "three"]),
    ):
        with pytest.raises(StateValueError):
            refused()
    assert state.get() == [1]


def test_a_list_handed_out_is_the_callers_own(subtask: Subtask) -> None:
    state = subtask.get(ListStateDescriptor("baskets", Basket))
    subtask.key("a")
    basket = Basket(["apple"])
    state.add(basket)
    basket.items.append("pear")
    got = state.get()
    got[0].items.append("plum")
    got.append(Basket([]))
    assert state.get() == [Basket(["apple"])]


def test_a_list_that_grows_over_many_epochs_stays_whole(subtask: Subtask) -> None:
    expected = []
    for epoch in range(3 * MAX_CHUNKS):
        state = subtask.get(LIST)
        subtask.key("a")
        state.add(epoch)
        expected.append(epoch)
        if epoch % 5 == 0:
            assert state.get() == expected
        subtask.next_epoch()
        assert len(subtask.content()) <= 2 + MAX_CHUNKS + 6
    state = subtask.get(LIST)
    subtask.key("a")
    assert state.get() == expected


# Map state


def test_a_map_answers_every_method(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    subtask.key("a")
    assert state.is_empty()
    assert list(state.items()) == list(state.keys()) == list(state.values()) == []
    state.put("x", 1)
    state.put_all({"y": 2, "x": 3})
    state.put_all({})
    assert state.get("x") == 3
    assert state.get("missing") is None
    assert not state.contains("missing")
    assert dict(state.items()) == {"x": 3, "y": 2}
    assert sorted(state.keys()) == sorted(state) == ["x", "y"]
    assert sorted(state.values()) == [2, 3]
    state.remove("x")
    state.remove("missing")
    assert not state.is_empty()
    state.remove("y")
    assert state.is_empty()


def test_a_map_works_like_a_dictionary(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    subtask.key("a")
    state["x"] = 1
    assert state["x"] == 1
    assert "x" in state
    state["y"] = None
    assert sorted(state) == ["x", "y"]
    assert len(state) == 2
    assert state
    subtask.key("b")
    assert len(state) == 0
    assert not state
    subtask.key("a")
    del state["x"]
    assert "x" not in state
    del state["x"]
    assert len(state) == 1


def test_a_map_may_hold_none_under_a_key_and_under_none(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    subtask.key("a")
    state.put("x", None)
    state.put(None, 5)
    for _ in range(2):
        assert state.contains("x")
        assert state.get("x") is None
        assert state.get(None) == 5
        assert dict(state.items()) == {"x": None, None: 5}
        subtask.next_epoch()
        state = subtask.get(MAP)
        subtask.key("a")


def test_a_map_is_read_entry_by_entry_and_whole_across_epochs(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    for key in ("a", "b"):
        subtask.key(key)
        state.put_all({f"{key}{i}": i for i in range(5)})
    subtask.next_epoch()
    state = subtask.get(MAP)
    subtask.key("a")
    state.put("a0", 100)
    state.remove("a1")
    state.put("new", 7)
    assert state.get("a2") == 2
    assert dict(state.items()) == {"a0": 100, "a2": 2, "a3": 3, "a4": 4, "new": 7}
    subtask.next_epoch()
    state = subtask.get(MAP)
    subtask.key("a")
    assert dict(state.items()) == {"a0": 100, "a2": 2, "a3": 3, "a4": 4, "new": 7}
    subtask.key("b")
    assert len(list(state.keys())) == 5


def test_clearing_a_map_and_filling_it_again_forgets_the_old_entries(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    subtask.key("a")
    state.put_all({"x": 1, "y": 2})
    subtask.next_epoch()
    state = subtask.get(MAP)
    subtask.key("a")
    state.clear()
    assert state.is_empty()
    state.put("y", 3)
    assert dict(state.items()) == {"y": 3}
    subtask.next_epoch()
    assert len(subtask.content()) == 3
    state = subtask.get(MAP)
    subtask.key("a")
    assert dict(state.items()) == {"y": 3}


def test_a_map_may_be_changed_while_it_is_iterated(subtask: Subtask) -> None:
    state = subtask.get(MAP)
    subtask.key("a")
    state.put_all({"x": 1, "y": 2, "z": 3})
    for own in state.keys():  # noqa: SIM118
        if own != "y":
            state.remove(own)
    assert dict(state.items()) == {"y": 2}


def test_values_of_a_map_are_the_callers_own(subtask: Subtask) -> None:
    state = subtask.get(MapStateDescriptor("baskets", str, Basket))
    subtask.key("a")
    state.put("x", Basket(["apple"]))
    state.get("x").items.append("pear")
    assert state.get("x") == Basket(["apple"])


@pytest.mark.parametrize(
    ("key_type", "one", "same"),
    [
        (float, 0.0, -0.0),
        (Decimal, Decimal("1.10"), Decimal("1.1")),
        (datetime, AT, AT.astimezone(timezone(timedelta(hours=8)))),
        (None, (1, 2), Point(1, 2)),
    ],
    ids=["float", "Decimal", "datetime", "pickled"],
)
def test_equal_keys_of_a_map_are_one_key(
    subtask: Subtask, key_type: Any, one: Any, same: Any
) -> None:
    descriptor = MapStateDescriptor("map", key_type, int)
    state = subtask.get(descriptor)
    subtask.key("a")
    state.put(one, 1)
    subtask.next_epoch()
    state = subtask.get(descriptor)
    subtask.key("a")
    assert state.get(same) == 1
    state.put(same, 2)
    subtask.next_epoch()
    state = subtask.get(descriptor)
    subtask.key("a")
    assert list(state.values()) == [2]
    state.remove(one)
    assert state.is_empty()
    subtask.next_epoch()
    assert len(subtask.content()) == 2


def test_a_map_key_that_cannot_be_one_is_refused(subtask: Subtask) -> None:
    state = subtask.get(MapStateDescriptor("m", None, int))
    subtask.key("a")
    with pytest.raises(StateValueError, match="cannot be a map's key"):
        state.put([1], 1)
    with pytest.raises(StateValueError, match="mapping, not None"):
        state.put_all(None)
    typed = subtask.get(MAP)
    with pytest.raises(StateValueError):
        typed.put_all({"x": 1, 5: 2})
    assert typed.is_empty()


# Reducing and aggregating state


def test_the_first_value_is_kept_as_it_is_and_later_ones_are_folded_in(subtask: Subtask) -> None:
    calls: list[tuple[Any, Any]] = []

    def concatenate(old: str, new: str) -> str:
        calls.append((old, new))
        return old + new

    state = subtask.get(ReducingStateDescriptor("text", concatenate, str))
    subtask.key("a")
    assert state.get() is None
    state.add("x")
    assert calls == []
    state.add("y")
    assert state.get() == "xy"
    assert calls == [("x", "y")]
    state.clear()
    assert state.get() is None


def test_reducing_and_aggregating_survive_the_epoch(subtask: Subtask) -> None:
    total, mean = subtask.get(REDUCING), subtask.get(AGGREGATING)
    subtask.key("a")
    assert mean.get() is None
    total.add(1)
    mean.add(1)
    subtask.next_epoch()
    total, mean = subtask.get(REDUCING), subtask.get(AGGREGATING)
    subtask.key("a")
    total.add(2)
    mean.add(2)
    assert total.get() == 3
    assert mean.get() == 1.5


def test_adding_none_clears_as_on_flinks_heap(subtask: Subtask) -> None:
    total, mean = subtask.get(REDUCING), subtask.get(AGGREGATING)
    subtask.key("a")
    for state in (total, mean):
        state.add(1)
        state.add(None)
        assert state.get() is None


def test_a_reduce_function_object_serves_as_well(subtask: Subtask) -> None:
    class Longest(ReduceFunction):
        def reduce(self, value1: str, value2: str) -> str:
            return max(value1, value2, key=len)

    state = subtask.get(ReducingStateDescriptor("longest", Longest(), str))
    subtask.key("a")
    state.add("aa")
    state.add("b")
    assert state.get() == "aa"


# All of them


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.kind)
def test_using_state_without_a_key_is_an_error(subtask: Subtask, descriptor: Any) -> None:
    state = subtask.get(descriptor)
    uses = {
        "value": [state.clear, lambda: state.value(), lambda: state.update(1)],
        "list": [state.clear, lambda: state.get(), lambda: state.add(1), lambda: state.update([])],
        "map": [
            state.clear,
            lambda: state.get("x"),
            lambda: state.put("x", 1),
            lambda: state.is_empty(),
        ],
        "reducing": [state.clear, lambda: state.get(), lambda: state.add(1)],
        "aggregating": [state.clear, lambda: state.get(), lambda: state.add(1)],
    }[descriptor.kind]
    subtask.current.key = NO_KEY
    for use in uses:
        with pytest.raises(StateAccessError, match="no key set"):
            use()


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.kind)
def test_an_emptied_state_leaves_no_entry_behind(subtask: Subtask, descriptor: Any) -> None:
    state = subtask.get(descriptor)
    subtask.key("a")
    {
        "value": lambda: state.update(1),
        "list": lambda: state.add(1),
        "map": lambda: state.put("x", 1),
        "reducing": lambda: state.add(1),
        "aggregating": lambda: state.add(1),
    }[descriptor.kind]()
    subtask.next_epoch()
    assert len(subtask.content()) == 3
    state = subtask.get(descriptor)
    subtask.key("a")
    state.clear()
    subtask.next_epoch()
    assert len(subtask.content()) == 2


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.kind)
def test_a_failed_epoch_leaves_no_trace(subtask: Subtask, descriptor: Any) -> None:
    state = subtask.get(descriptor)

    def fill(n: int) -> None:
        {
            "value": lambda: state.update(n),
            "list": lambda: state.add(n),
            "map": lambda: state.put(str(n), n),
            "reducing": lambda: state.add(n),
            "aggregating": lambda: state.add(n),
        }[descriptor.kind]()

    def read() -> Any:
        if descriptor.kind == "map":
            return dict(state.items())
        return state.value() if descriptor.kind == "value" else state.get()

    subtask.key("a")
    fill(1)
    before = read()
    subtask.next_epoch()
    state = subtask.get(descriptor)
    subtask.key("a")
    fill(2)
    assert read() != before
    subtask.fail()
    state = subtask.get(descriptor)
    subtask.key("a")
    assert read() == before


def test_the_same_name_gives_the_same_handle_and_another_kind_is_refused(subtask: Subtask) -> None:
    handle = subtask.get(VALUE)
    assert subtask.get(ValueStateDescriptor("value", int)) is handle
    with pytest.raises(StateDescriptorError, match="already in use for a value state"):
        subtask.get(ListStateDescriptor("value", int))
    subtask.next_epoch()
    with pytest.raises(StateDescriptorError, match="'value' is stored as a value state"):
        subtask.get(MapStateDescriptor("value", str, int))


def test_a_state_written_under_another_type_is_refused(subtask: Subtask) -> None:
    state = subtask.get(VALUE)
    subtask.key("a")
    state.update(5)
    subtask.next_epoch()
    with pytest.raises(StateDescriptorError, match="value: was int, is str"):
        subtask.get(ValueStateDescriptor("value", str))
    state = subtask.get(VALUE)
    subtask.key("a")
    assert state.value() == 5


def test_a_state_that_an_epoch_does_not_ask_for_is_kept(subtask: Subtask) -> None:
    state = subtask.get(VALUE)
    subtask.key("a")
    state.update(5)
    subtask.next_epoch()
    other = subtask.get(LIST)
    subtask.key("a")
    other.add(1)
    subtask.next_epoch()
    state = subtask.get(VALUE)
    subtask.key("a")
    assert state.value() == 5


def test_what_is_no_descriptor_is_refused(subtask: Subtask) -> None:
    with pytest.raises(StateDescriptorError, match="descriptor"):
        subtask.get(None)  # type: ignore[arg-type]
    with pytest.raises(StateDescriptorError, match="non-empty string"):
        ValueStateDescriptor("")
    with pytest.raises(TypeError, match="AggregateFunction"):
        AggregatingStateDescriptor("x", sum)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        ReducingStateDescriptor("x", 5)  # type: ignore[call-overload]


def test_a_rich_reduce_function_is_refused() -> None:
    class Rich(ReduceFunction):
        def open(self, ctx: Any) -> None:
            pass

        def reduce(self, value1: int, value2: int) -> int:
            return value1

    with pytest.raises(StateDescriptorError, match="plain reduce function"):
        ReducingStateDescriptor("x", Rich())


def test_descriptors_are_equal_by_kind_and_name() -> None:
    assert ValueStateDescriptor("x", int) == ValueStateDescriptor("x", "string")
    assert len({ValueStateDescriptor("x", int), ListStateDescriptor("x", int)}) == 2


def test_untyped_state_is_pickled_and_says_so(subtask: Subtask) -> None:
    state = subtask.get(ValueStateDescriptor("anything"))
    assert subtask.state.warnings == [
        "state 'anything' has no type and is pickled, which is slow and cannot evolve; give its "
        "descriptor one"
    ]
    subtask.key("a")
    state.update({1: {2, 3}})
    subtask.next_epoch()
    state = subtask.get(ValueStateDescriptor("anything"))
    subtask.key("a")
    assert state.value() == {1: {2, 3}}


def test_keys_and_map_keys_of_any_length_work(subtask: Subtask) -> None:
    keys = ["k" * length for length in (1, 490, 511, 512, 5000)]
    for key in keys:
        subtask.key(key)
        subtask.get(VALUE).update(len(key))
        subtask.get(MAP).put_all({"m" * n: n for n in (1, 500, 600, 3000)})
        subtask.get(LIST).add(len(key))
    subtask.next_epoch()
    for key in keys:
        subtask.key(key)
        assert subtask.get(VALUE).value() == len(key)
        assert subtask.get(MAP).get("m" * 3000) == 3000
        assert dict(subtask.get(MAP).items()) == {"m" * n: n for n in (1, 500, 600, 3000)}
        assert subtask.get(LIST).get() == [len(key)]


def test_a_batch_is_read_in_one_go_and_caches_are_kept_within_bounds(
    backend: Any, tmp_path: Path
) -> None:
    subtask = Subtask(backend, tmp_path / "store", cache_limit=10)
    for epoch in range(3):
        value, own_map, own_list = (subtask.get(d) for d in (VALUE, MAP, LIST))
        for start in range(0, 100, 20):
            keys = list(range(start, start + 20))
            subtask.current.start_batch(keys)
            for key in keys:
                subtask.key(key)
                value.update((value.value() or 0) + 1)
                own_map.put(str(epoch), key)
                own_list.add(epoch)
            subtask.current.end_batch()
            subtask.state.evict_if_full()
            assert sum(table.cached() for table in subtask.state.tables) == 0
        subtask.next_epoch()
    for key in range(100):
        subtask.key(key)
        assert subtask.get(VALUE).value() == 3
        assert dict(subtask.get(MAP).items()) == {"0": key, "1": key, "2": key}
        assert subtask.get(LIST).get() == [0, 1, 2]
    subtask.state.abort()


def test_an_operators_key_type_and_max_parallelism_are_fixed(subtask: Subtask) -> None:
    subtask.key("a")
    subtask.get(VALUE).update(1)
    subtask.next_epoch()
    subtask.key(1)
    with pytest.raises(StateError, match="but the stored state of this operator has str keys"):
        subtask.get(VALUE).value()
    subtask.state.abort()
    subtask.settings["max_parallelism"] = 64
    with pytest.raises(StateError, match="has 128 key groups, the operator 64"):
        subtask.open()
    subtask.settings["max_parallelism"] = 128
    subtask.open()


def test_a_store_at_another_version_is_reported(subtask: Subtask) -> None:
    subtask.key("a")
    subtask.get(VALUE).update(1)
    subtask.next_epoch()
    subtask.state.abort()
    right, subtask.version = subtask.version, "99-other"
    with pytest.raises(StoreVersionError, match="99-other"):
        subtask.open()
    subtask.version = right
    subtask.open()
    subtask.key("a")
    assert subtask.get(VALUE).value() == 1


def test_states_and_the_type_of_keys_are_described_for_snapshots(subtask: Subtask) -> None:
    assert subtask.state.state_descriptions() == []
    assert subtask.state.key_shape is None
    subtask.get(MapStateDescriptor("scores", str, float))
    subtask.get(ValueStateDescriptor("count", int))
    subtask.key(("a", None))
    subtask.get(ValueStateDescriptor("count", int)).update(1)
    subtask.next_epoch()
    assert subtask.state.key_shape == "tuple[str, ?]"
    described = subtask.state.state_descriptions()
    assert [(state["name"], state["kind"]) for state in described] == [
        ("count", "value"),
        ("scores", "map"),
    ]
    assert [schema["type"] for schema in described[1]["schema"]] == ["float", "str"]


def test_a_commit_of_keyed_state_can_leave_a_snapshot(subtask: Subtask, tmp_path: Path) -> None:
    subtask.get(ValueStateDescriptor("count", int))
    subtask.key("a")
    subtask.get(ValueStateDescriptor("count", int)).update(1)
    subtask.state.commit("1-test", tmp_path / "snapshot")
    subtask.version = "1-test"
    with open_snapshot(subtask.backend, tmp_path / "snapshot") as snapshot:
        assert snapshot.version == "1-test"
        assert sum(1 for _ in snapshot.scan(b"")) == 3
    subtask.open()
