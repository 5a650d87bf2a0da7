"""States with a time to live, over every backend: when entries expire, and what is read then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.catalog import batches
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.timers.layout import FIRST_TIME
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock
from holdfast.testing.harness import OperatorHarness
from tests.support.functions import Mean, plus
from tests.support.subtask import Subtask, put, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.api.descriptors import StateDescriptor

TTL = 100
KINDS = ["value", "list", "map", "sum", "mean"]
BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def config(*, ttl: int = TTL, swept: bool = False, **how: bool) -> StateTtlConfig:
    """A configuration; each of `how` is a method to call."""
    builder = StateTtlConfig.new_builder(ttl)
    if not swept:
        builder.disable_cleanup_in_background()
    for method, wanted in how.items():
        if wanted:
            getattr(builder, method)()
    return builder.build()


STRICT = config()
RELAXED = config(return_expired_if_not_cleaned_up=True)
RENEWED = config(update_ttl_on_read_and_write=True)
RELAXED_RENEWED = config(return_expired_if_not_cleaned_up=True, update_ttl_on_read_and_write=True)
SWEPT = config(swept=True)


def descriptor(kind: str, ttl: StateTtlConfig | None = STRICT) -> StateDescriptor:
    """A descriptor of a state of some kind."""
    match kind:
        case "value":
            return ValueStateDescriptor(kind, int, ttl=ttl)
        case "list":
            return ListStateDescriptor(kind, int, ttl=ttl)
        case "map":
            return MapStateDescriptor(kind, str, int, ttl=ttl)
        case "sum":
            return ReducingStateDescriptor(kind, plus, int, ttl=ttl)
        case _:
            return AggregatingStateDescriptor(kind, Mean(), list[int], ttl=ttl)


class EventClock:
    """Event time as a test sets it."""

    def __init__(self) -> None:
        self.watermark = self.element = FIRST_TIME

    def now(self) -> int:
        return self.watermark

    def stamp(self) -> int:
        return max(self.watermark, self.element)


class Expiring(Subtask):
    """Keyed state of one subtask, with clocks that stand still."""

    def __init__(self, backend: Any, directory: Path, version: str | None = None) -> None:
        self.clock = ManualClock(1000)
        self.event = EventClock()
        super().__init__(backend, directory, version)

    def open(self) -> None:
        self.settings["ttl"] = TtlContext(ClockTime(self.clock), self.event)
        super().open()
        self.key("a")

    def commit(self, snapshot: Path | None) -> Any:
        statistics = super().commit(snapshot)
        self.removed = self.state.expired_removed
        return statistics


@pytest.fixture
def subtask(backend: Any, tmp_path: Path) -> Iterator[Expiring]:
    subtask = Expiring(backend, tmp_path / "store")
    yield subtask
    subtask.state.abort()


# When entries expire


@EVERY_KIND
def test_an_entry_expires_exactly_when_its_time_is_the_ttl_ago(
    subtask: Expiring, kind: str
) -> None:
    state = subtask.get(descriptor(kind))
    put(state, kind)
    subtask.clock.advance(TTL - 1)
    assert read(state, kind) == 7
    subtask.clock.advance(1)
    assert read(state, kind) is None


@EVERY_KIND
def test_times_survive_the_epoch(subtask: Expiring, kind: str) -> None:
    put(subtask.get(descriptor(kind)), kind)
    subtask.clock.advance(TTL - 1)
    subtask.next_epoch()
    assert read(subtask.get(descriptor(kind)), kind) == 7
    subtask.next_epoch()
    subtask.clock.advance(1)
    assert read(subtask.get(descriptor(kind)), kind) is None


@EVERY_KIND
def test_the_longest_ttl_never_expires(subtask: Expiring, kind: str) -> None:
    state = subtask.get(descriptor(kind, config(ttl=2**63 - 1)))
    put(state, kind)
    subtask.clock.set(2**63 - 1)
    assert read(state, kind) == 7


@EVERY_KIND
def test_writing_renews_the_time(subtask: Expiring, kind: str) -> None:
    state = subtask.get(descriptor(kind))
    put(state, kind)
    subtask.clock.advance(TTL - 1)
    put(state, kind)
    subtask.clock.advance(TTL - 1)
    assert read(state, kind) is not None


@EVERY_KIND
def test_reading_renews_the_time_only_if_asked_for(subtask: Expiring, kind: str) -> None:
    renewed = subtask.get(descriptor(kind, RENEWED))
    put(renewed, kind)
    for _ in range(3):
        subtask.clock.advance(TTL - 1)
        assert read(renewed, kind) == 7
        subtask.next_epoch()
        renewed = subtask.get(descriptor(kind, RENEWED))
    subtask.clock.advance(TTL)
    assert read(renewed, kind) is None


@EVERY_KIND
def test_what_has_expired_is_removed_by_the_read(subtask: Expiring, kind: str) -> None:
    for ttl in (STRICT, RELAXED, RENEWED, RELAXED_RENEWED):
        state = subtask.get(descriptor(kind, ttl))
        put(state, kind)
        assert len(subtask.values()) == 1
        subtask.clock.advance(TTL)
        read(state, kind)
        assert len(subtask.values()) == 0
        subtask.next_epoch()


@EVERY_KIND
def test_relaxed_state_gives_what_has_expired_once(subtask: Expiring, kind: str) -> None:
    for ttl in (RELAXED, RELAXED_RENEWED):
        state = subtask.get(descriptor(kind, ttl))
        put(state, kind)
        subtask.next_epoch()
        subtask.clock.advance(10 * TTL)
        state = subtask.get(descriptor(kind, ttl))
        assert read(state, kind) == 7
        assert read(state, kind) is None
        subtask.next_epoch()


@EVERY_KIND
def test_clearing_removes_value_and_time(subtask: Expiring, kind: str) -> None:
    state = subtask.get(descriptor(kind))
    put(state, kind)
    state.clear()
    assert read(state, kind) is None
    assert len(subtask.values()) == 0


@EVERY_KIND
def test_keys_have_times_of_their_own(subtask: Expiring, kind: str) -> None:
    state = subtask.get(descriptor(kind))
    put(state, kind, 1)
    subtask.clock.advance(60)
    subtask.current.key = "b"
    put(state, kind, 2)
    subtask.clock.advance(60)
    assert read(state, kind) == 2
    subtask.current.key = "a"
    assert read(state, kind) is None


# Value, reducing and aggregating state


def test_an_expired_value_gives_the_default(subtask: Expiring) -> None:
    state = subtask.get(ValueStateDescriptor("value", int, 5, ttl=STRICT))
    assert state.value() == 5
    state.update(7)
    subtask.clock.advance(TTL)
    assert state.value() == 5


def test_updating_with_none_clears(subtask: Expiring) -> None:
    state = subtask.get(descriptor("value"))
    state.update(7)
    state.update(None)
    assert state.value() is None
    assert len(subtask.values()) == 0


def test_a_mutable_value_is_a_copy_and_expires(subtask: Expiring) -> None:
    state = subtask.get(ValueStateDescriptor("value", list[int], ttl=RENEWED))
    state.update([1])
    state.value().append(2)
    assert state.value() == [1]
    subtask.clock.advance(TTL)
    assert state.value() is None


def test_a_value_of_another_class_is_refused_where_it_is_set(subtask: Expiring) -> None:
    with pytest.raises(StateValueError, match="declared int"):
        subtask.get(descriptor("value")).update("text")
    with pytest.raises(StateValueError, match="declared int"):
        subtask.get(descriptor("list")).add_all([1, "text"])
    with pytest.raises(StateValueError, match="declared int"):
        subtask.get(descriptor("map")).put("k", "text")
    assert len(subtask.values()) == 0


def test_adding_onto_what_has_expired_starts_afresh(subtask: Expiring) -> None:
    total, mean = subtask.get(descriptor("sum")), subtask.get(descriptor("mean"))
    for state in (total, mean):
        state.add(10)
    subtask.clock.advance(TTL)
    for state in (total, mean):
        state.add(1)
    assert total.get() == 1
    assert mean.get() == 1.0


def test_relaxed_state_adds_to_what_has_expired_and_is_still_there(subtask: Expiring) -> None:
    total = subtask.get(descriptor("sum", RELAXED))
    mean = subtask.get(descriptor("mean", RELAXED))
    for state in (total, mean):
        state.add(10)
    subtask.clock.advance(TTL)
    for state in (total, mean):
        state.add(20)
    assert total.get() == 30
    assert mean.get() == 15.0


def test_a_reducing_state_with_a_ttl_refuses_none(subtask: Expiring) -> None:
    state = subtask.get(descriptor("sum"))
    state.add(1)
    with pytest.raises(StateValueError, match=r"'sum'.*cannot add None; call clear"):
        state.add(None)
    assert state.get() == 1


def test_an_aggregating_state_with_a_ttl_is_cleared_by_none(subtask: Expiring) -> None:
    state = subtask.get(descriptor("mean"))
    state.add(1)
    state.add(None)
    assert state.get() is None


# List state


def test_elements_of_a_list_expire_one_by_one(subtask: Expiring) -> None:
    state = subtask.get(descriptor("list"))
    for number in range(3):
        state.add(number)
        subtask.clock.advance(40)
        subtask.next_epoch()
        state = subtask.get(descriptor("list"))
    assert state.get() == [1, 2]
    subtask.clock.advance(40)
    assert list(state) == [2]


def test_a_relaxed_list_gives_all_until_none_is_alive(subtask: Expiring) -> None:
    state = subtask.get(descriptor("list", RELAXED))
    state.add(1)
    subtask.clock.advance(60)
    state.add(2)
    subtask.clock.advance(60)
    assert state.get() == [1, 2]
    assert state.get() == [1, 2]
    subtask.clock.advance(TTL)
    assert state.get() == [1, 2]
    assert state.get() == []


def test_reading_a_list_renews_what_is_alive_and_drops_the_rest(subtask: Expiring) -> None:
    state = subtask.get(descriptor("list", RELAXED_RENEWED))
    state.add(1)
    subtask.clock.advance(60)
    state.add(2)
    subtask.clock.advance(60)
    assert state.get() == [1, 2]
    assert state.get() == [2]
    subtask.clock.advance(TTL - 1)
    assert state.get() == [2]
    subtask.clock.advance(TTL)
    state.add(3)
    assert state.get() == [2, 3]
    assert state.get() == [3]


def test_replacing_a_list_gives_all_elements_the_time_of_now(subtask: Expiring) -> None:
    state = subtask.get(descriptor("list"))
    state.add_all([1, 2])
    subtask.clock.advance(60)
    state.update(state.get())
    subtask.clock.advance(60)
    assert state.get() == [1, 2]


def test_adding_nothing_changes_nothing_and_updating_with_nothing_clears(
    subtask: Expiring,
) -> None:
    state = subtask.get(descriptor("list"))
    state.add(1)
    subtask.clock.advance(60)
    state.add_all([])
    subtask.clock.advance(40)
    assert state.get() == []
    state.add(1)
    state.update([])
    assert state.get() == []
    assert len(subtask.values()) == 0


def test_a_list_refuses_none_and_stays_as_it_was(subtask: Expiring) -> None:
    state = subtask.get(descriptor("list"))
    state.add(1)
    for refused in (
        lambda: state.add(None),
        lambda: state.add_all(None),
        lambda: state.add_all([2, None]),
        lambda: state.update(None),
        lambda: state.update([None]),
    ):
        with pytest.raises(StateValueError, match="None"):
            refused()
    assert state.get() == [1]


# Map state


def test_entries_of_a_map_expire_one_by_one(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map"))
    state.put("old", 1)
    subtask.clock.advance(60)
    state.put_all({"new": 2, "none": None})
    subtask.clock.advance(60)
    assert "old" not in state
    assert dict(state.items()) == {"new": 2, "none": None}
    assert sorted(state) == ["new", "none"]
    assert len(subtask.values()) == 2


def test_a_value_of_none_is_an_entry_until_it_expires(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map"))
    state.put("k", None)
    subtask.next_epoch()
    state = subtask.get(descriptor("map"))
    assert state.contains("k")
    assert state.get("k") is None
    subtask.clock.advance(TTL)
    assert not state.contains("k")


@pytest.mark.parametrize(
    "use",
    [
        lambda state: state.get("k"),
        lambda state: state.contains("k"),
        lambda state: dict(state.items()),
        lambda state: list(state.keys()),
        lambda state: list(state.values()),
    ],
    ids=["get", "contains", "items", "keys", "values"],
)
def test_every_way_to_read_a_map_renews_its_entries(
    subtask: Expiring, use: Callable[[Any], Any]
) -> None:
    state = subtask.get(descriptor("map", RENEWED))
    state.put("k", 1)
    subtask.clock.advance(TTL - 1)
    use(state)
    subtask.next_epoch()
    subtask.clock.advance(TTL - 1)
    assert subtask.get(descriptor("map", RENEWED)).get("k") == 1


def test_a_relaxed_map_gives_expired_entries_once_and_removes_them(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map", RELAXED))
    state.put_all({"a": 1, "b": 2, "c": 3})
    subtask.clock.advance(TTL)
    assert state.contains("a")
    assert not state.contains("a")
    assert state.get("b") == 2
    assert dict(state.items()) == {"c": 3}
    assert dict(state.items()) == {}
    assert len(subtask.values()) == 0


def test_is_empty_ignores_times_and_renews_none(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map", RENEWED))
    assert state.is_empty()
    state.put("k", 1)
    subtask.clock.advance(60)
    assert not state.is_empty()
    subtask.clock.advance(60)
    assert not state.is_empty()
    assert state.get("k") is None
    assert state.is_empty()


def test_a_map_refuses_what_a_plain_one_refuses(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map"))
    with pytest.raises(StateValueError, match="takes a mapping"):
        state.put_all(None)
    with pytest.raises(StateValueError, match="declared str"):
        state.put_all({"k": 1, 2: 2})
    assert state.is_empty()
    state.put("k", 1)
    state.remove("k")
    state.remove("k")
    assert state.is_empty()


# Configuration and registration


def test_another_ttl_takes_effect_on_what_is_stored(subtask: Expiring) -> None:
    put(subtask.get(descriptor("value")), "value")
    subtask.next_epoch()
    subtask.clock.advance(50)
    assert subtask.get(descriptor("value", config(ttl=51))).value() == 7
    subtask.next_epoch()
    assert subtask.get(descriptor("value", config(ttl=50))).value() is None


@EVERY_KIND
def test_a_disabled_ttl_is_none(subtask: Expiring, kind: str) -> None:
    disabled = (
        StateTtlConfig.new_builder(1).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    )
    state = subtask.get(descriptor(kind, disabled))
    assert type(state) is type(subtask.get(descriptor(kind, None)))
    put(state, kind)
    subtask.clock.advance(10 * TTL)
    assert read(state, kind) == 7


def test_a_state_is_asked_for_with_one_ttl_only(subtask: Expiring) -> None:
    state = subtask.get(descriptor("value"))
    assert subtask.get(descriptor("value")) is state
    for other in (None, RELAXED):
        with pytest.raises(StateDescriptorError, match="another time to live before"):
            subtask.get(descriptor("value", other))
        with pytest.raises(StateDescriptorError, match="another time to live before"):
            subtask.state.register(descriptor("value", other), subtask.state.namespaced())


def test_states_are_described_by_their_own_names(subtask: Expiring) -> None:
    subtask.get(descriptor("value"))
    subtask.get(descriptor("list", None))
    described = subtask.state.state_descriptions()
    assert [(state["name"], state.get("ttl", False)) for state in described] == [
        ("list", False),
        ("value", True),
    ]


def test_keys_with_such_state_are_found(subtask: Expiring) -> None:
    state = subtask.get(descriptor("map"))
    for subtask.current.key in ("a", "b"):
        state.put("k", 1)
    assert sorted(key for keys in subtask.state.keys_of("map") for key in keys) == ["a", "b"]


def test_an_epoch_that_fails_leaves_times_as_they_were(subtask: Expiring) -> None:
    put(subtask.get(descriptor("value", RENEWED)), "value")
    subtask.next_epoch()
    subtask.clock.advance(TTL - 1)
    assert subtask.get(descriptor("value", RENEWED)).value() == 7
    subtask.fail()
    subtask.clock.advance(1)
    assert subtask.get(descriptor("value", RENEWED)).value() is None


# Namespaces


@EVERY_KIND
def test_state_of_namespaces_expires_and_is_swept(subtask: Expiring, kind: str) -> None:
    scope = subtask.state.namespaced()
    state: Any = subtask.state.register(descriptor(kind, SWEPT), scope)
    for number, namespace in enumerate((b"one", b"two")):
        scope.current.key = ("a", namespace)
        put(state, kind, number)
        subtask.clock.advance(60)
    assert read(state, kind) == 1
    scope.current.key = ("a", b"one")
    subtask.next_epoch()
    assert subtask.removed == 1
    scope = subtask.state.namespaced()
    state = subtask.state.register(descriptor(kind, SWEPT), scope)
    scope.current.key = ("a", b"two")
    assert read(state, kind) == 1
    subtask.clock.advance(60)
    assert read(state, kind) is None


# Event time

BY_EVENT = config(swept=True, use_event_time=True)


@EVERY_KIND
def test_event_time_passes_with_the_watermark(subtask: Expiring, kind: str) -> None:
    state = subtask.get(descriptor(kind, BY_EVENT))
    subtask.event.element = 500
    put(state, kind)
    subtask.clock.advance(10 * TTL)
    subtask.event.element = 10_000
    assert read(state, kind) == 7
    subtask.event.watermark = 599
    assert read(state, kind) == 7
    subtask.event.watermark = 600
    assert read(state, kind) is None


@EVERY_KIND
def test_an_entry_without_a_time_gets_one_from_the_sweep(subtask: Expiring, kind: str) -> None:
    put(subtask.get(descriptor(kind, BY_EVENT)), kind)
    subtask.next_epoch()
    subtask.event.watermark = 5000
    state = subtask.get(descriptor(kind, BY_EVENT))
    assert read(state, kind) == 7
    subtask.next_epoch()
    assert subtask.removed == 0
    subtask.event.watermark = 5099
    assert read(subtask.get(descriptor(kind, BY_EVENT)), kind) == 7
    subtask.next_epoch()
    subtask.event.watermark = 5100
    assert read(subtask.get(descriptor(kind, BY_EVENT)), kind) is None


def test_a_late_element_that_reads_shortens_no_life(subtask: Expiring) -> None:
    by_event = config(use_event_time=True, update_ttl_on_read_and_write=True)
    states = {kind: subtask.get(descriptor(kind, by_event)) for kind in KINDS}
    subtask.event.watermark, subtask.event.element = 100, 500
    for kind, state in states.items():
        put(state, kind)
    subtask.event.element = 200
    for kind, state in states.items():
        read(state, kind)
    dict(states["map"].items())
    subtask.event.watermark = 599
    assert [read(state, kind) for kind, state in states.items()] == [7] * 5


def test_event_time_needs_an_input_that_has_some(tmp_path: Path) -> None:
    store = open_store(HashMapStateBackend(), tmp_path / "store", None)
    state = KeyedStateBackend(store, max_parallelism=8, epoch=1, current=CurrentKey())
    with pytest.raises(StateDescriptorError, match="assign_timestamps_and_watermarks"):
        state.register(descriptor("value", BY_EVENT))
    state.abort()


# Migration


def test_entries_are_changed_and_moved_batch_by_batch(subtask: Expiring) -> None:
    store = subtask.store
    keys = [b"\x00\x01%d" % n for n in range(7)]
    store.write([(key, b"old") for key in [*keys, b"\x00\x02"]])
    sizes = []
    for entries in batches(store, b"\x00\x01", at_once=3):
        sizes.append(len(entries))
        assert {value for _, value in entries} == {b"old"}
        store.write([(entries[0][0], b"new"), (entries[-1][0], None)])
    assert sizes == [3, 3, 1]
    assert list(store.scan(b"\x00\x01")) == [
        (keys[0], b"new"),
        (keys[1], b"old"),
        (keys[3], b"new"),
        (keys[4], b"old"),
    ]


@EVERY_KIND
def test_state_without_times_lives_for_one_ttl_from_when_it_gets_them(
    subtask: Expiring, kind: str
) -> None:
    state = subtask.get(descriptor(kind, None))
    for subtask.current.key in "abcde":
        put(state, kind)
    subtask.next_epoch()
    subtask.clock.advance(10 * TTL)
    state = subtask.get(descriptor(kind))
    subtask.next_epoch()
    assert [s["name"] for s in subtask.state.state_descriptions()] == [kind]
    assert len(subtask.values()) == 5
    subtask.clock.advance(TTL - 1)
    state = subtask.get(descriptor(kind))
    for subtask.current.key in "abcde":
        assert read(state, kind) == 7
    subtask.clock.advance(1)
    assert read(state, kind) is None


@EVERY_KIND
def test_state_that_loses_its_times_reappears_though_it_has_expired(
    subtask: Expiring, kind: str
) -> None:
    state = subtask.get(descriptor(kind, SWEPT))
    for subtask.current.key in "abcde":
        put(state, kind)
    subtask.next_epoch()
    subtask.clock.advance(10 * TTL)
    state = subtask.get(descriptor(kind, None))
    for subtask.current.key in "abcde":
        assert read(state, kind) == 7
    subtask.next_epoch()
    assert subtask.state.state_descriptions()[0].keys() == {"name", "kind", "schema"}
    assert len(subtask.values()) == 5
    assert not [key for key in subtask.content() if key.startswith(b"\x00\x00sweep")]
    assert read(subtask.get(descriptor(kind, None)), kind) == 7


def test_migration_keeps_lists_in_order_and_none_in_maps(subtask: Expiring) -> None:
    for number in range(3):
        subtask.get(descriptor("list", None)).add_all([number, number])
        subtask.get(descriptor("map", None)).put_all({str(number): None, "n" * number: number})
        subtask.next_epoch()
    for ttl in (STRICT, None):
        assert subtask.get(descriptor("list", ttl)).get() == [0, 0, 1, 1, 2, 2]
        assert dict(subtask.get(descriptor("map", ttl)).items()) == {
            "0": None, "1": None, "2": None, "": 0, "n": 1, "nn": 2,
        }  # fmt: skip
        subtask.next_epoch()


def test_a_migration_is_undone_with_its_epoch(subtask: Expiring) -> None:
    for kind in KINDS:
        put(subtask.get(descriptor(kind, None)), kind)
    subtask.next_epoch()
    before = subtask.content()
    for kind in KINDS:
        put(subtask.get(descriptor(kind)), kind, 8)
    subtask.fail()
    assert subtask.content() == before


def test_kind_and_type_are_checked_across_a_migration(subtask: Expiring) -> None:
    put(subtask.get(descriptor("value")), "value")
    subtask.next_epoch()
    with pytest.raises(StateDescriptorError, match="is stored as a value state"):
        subtask.get(ListStateDescriptor("value", int))
    with pytest.raises(StateDescriptorError, match="was written with the type"):
        subtask.get(ValueStateDescriptor("value", str))
    assert subtask.get(descriptor("value", None)).value() == 7


@BACKENDS
@pytest.mark.parametrize("wanted", [STRICT, None], ids=["to times", "to none"])
def test_stores_of_which_only_some_have_migrated_are_rescaled(
    backend: Any, wanted: StateTtlConfig | None, tmp_path: Path
) -> None:
    keys = [f"key-{number}" for number in range(20)]
    snapshots = []
    for number, ttl in enumerate((STRICT, None)):
        subtask = Expiring(backend, tmp_path / f"store-{number}")
        states = {kind: subtask.get(descriptor(kind, ttl)) for kind in KINDS}
        for subtask.current.key in keys:
            if subtask_of(key_group_of(subtask.current.key, 128), 2, 128) == number:
                for kind, state in states.items():
                    put(state, kind)
        snapshots.append(tmp_path / f"snapshot-{number}")
        subtask.next_epoch(snapshots[-1])
        subtask.state.abort()
    seen = 0
    for number in range(3):
        directory = tmp_path / f"restored-{number}"
        restore_store(
            backend,
            snapshots,
            directory,
            version="restored",
            key_groups=key_groups(number, 3, 128),
            whole=False,
            operator_state=None,
        )
        subtask = Expiring(backend, directory, "restored")
        states = {kind: subtask.get(descriptor(kind, wanted)) for kind in KINDS}
        for subtask.current.key in keys:
            if subtask_of(key_group_of(subtask.current.key, 128), 3, 128) == number:
                assert [read(state, kind) for kind, state in states.items()] == [7] * 5
                seen += 1
        assert len(subtask.values()) % len(KINDS) == 0
        assert len(subtask.state.state_descriptions()) == len(KINDS)
        subtask.state.abort()
    assert seen == len(keys)


@EVERY_KIND
def test_an_entry_in_both_forms_is_that_of_the_form_asked_for(subtask: Expiring, kind: str) -> None:
    put(subtask.get(descriptor(kind, None)), kind, 1)
    subtask.next_epoch()
    plain = subtask.content()
    put(subtask.get(descriptor(kind)), kind, 2)
    subtask.next_epoch()
    subtask.store.write([item for item in plain.items() if item[0] != b"\x00\x00operator"])
    subtask.next_epoch()
    assert len(subtask.state.state_descriptions()) == 2
    state = subtask.get(descriptor(kind))
    if kind == "list":
        assert state.get() == [1, 1, 2]
    else:
        assert read(state, kind) == {"sum": 3, "mean": 1.5}.get(kind, 2)
    assert len(subtask.state.state_descriptions()) == 1


# In functions


class Remember(KeyedProcessFunction):
    """Gives out what it has seen of a key, and when that is; fails on negative numbers."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", int, ttl=self.ttl))
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=self.ttl))
        self.by = ctx.get_map_state(MapStateDescriptor("by", int, int, ttl=self.ttl))

    def process_element(self, value: int, ctx: Any) -> Any:
        self.seen.add(value)
        self.last.update(value)
        self.by.put(value, value)
        if value < 0:
            raise ValueError("negative")
        ctx.timer_service().register_event_time_timer(10_000)
        yield self.last.value(), self.seen.get(), sorted(self.by)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self.last.value()
        self.last.update(99)


@BACKENDS
def test_an_element_that_is_skipped_changes_no_state(backend: Any) -> None:
    with OperatorHarness(
        Remember(STRICT), key=lambda _: "k", backend=backend, on_error=ErrorPolicy.skip()
    ) as harness:
        harness.push(1, -1, 2)
        assert harness.take() == [(1, [1], [1]), (2, [1, 2], [1, 2])]
        assert harness.skipped == 1


def test_the_harness_shows_values_and_renews_none() -> None:
    with OperatorHarness(Remember(RENEWED), key=lambda _: "k") as harness:
        harness.push(1)
        harness.end_epoch()
        harness.clock.advance(TTL - 1)
        assert harness.state("last", "k") == 1
        assert harness.state("seen", "k") == [1]
        assert harness.state("by", "k") == {1: 1}
        harness.clock.advance(1)
        assert harness.state("last", "k") is None
        assert harness.state("seen", "k") == []
        assert harness.state("by", "k") == {}
        with pytest.raises(StateDescriptorError, match="registered"):
            harness.state("other", "k")


def test_the_harness_shows_what_has_expired_and_leaves_it_there() -> None:
    with OperatorHarness(Remember(RELAXED), key=lambda _: "k") as harness:
        harness.push(1)
        harness.clock.advance(TTL)
        for _ in range(2):
            assert harness.state("last", "k") == 1
            assert harness.state("seen", "k") == [1]
            assert harness.state("by", "k") == {1: 1}


def test_in_event_time_an_entry_has_the_time_of_its_element_or_of_the_watermark() -> None:
    with OperatorHarness(Remember(BY_EVENT), key=lambda _: "k") as harness:
        harness.advance_watermark(1000)
        harness.push(1, at=1500)
        harness.push(2, at=400)
        harness.clock.advance(10 * TTL)
        assert harness.state("by", "k") == {1: 1, 2: 2}
        harness.advance_watermark(1100)
        assert harness.state("by", "k") == {1: 1}
        harness.end_epoch()
        harness.advance_watermark(1599)
        assert harness.state("by", "k") == {1: 1}
        harness.advance_watermark(1600)
        assert harness.state("by", "k") == {}


def test_what_a_timer_writes_has_the_time_of_the_watermark() -> None:
    with OperatorHarness(Remember(BY_EVENT), key=lambda _: "k") as harness:
        harness.push(1, at=9_950)
        harness.take()
        harness.advance_watermark(10_020)
        assert harness.take() == [1]
        harness.advance_watermark(10_119)
        assert harness.state("last", "k") == 99
        harness.advance_watermark(10_120)
        assert harness.state("last", "k") is None


def test_the_end_of_the_input_is_no_time_and_lets_nothing_expire() -> None:
    with OperatorHarness(Remember(BY_EVENT), key=lambda _: "k") as harness:
        harness.advance_watermark(1000)
        harness.push(1, at=1000)
        harness.end_input()
        assert harness.outputs[-1] == 1
        snapshot = harness.snapshot()
    with OperatorHarness(Remember(BY_EVENT), key=lambda _: "k", restore_from=snapshot) as harness:
        assert harness.state("by", "k") == {1: 1}
        assert harness.state("last", "k") == 99
        harness.advance_watermark(1100)
        assert harness.state("by", "k") == {}
        assert harness.state("last", "k") is None


@pytest.mark.parametrize("between", [False, True], ids=["same-epoch", "next-epoch"])
def test_at_the_end_of_the_input_what_has_expired_before_is_not_alive_again(between: bool) -> None:
    unswept = config(use_event_time=True)
    with OperatorHarness(Remember(unswept), key=lambda _: "k") as harness:
        harness.push(1, at=1000)
        harness.advance_watermark(1100)
        if between:
            harness.end_epoch()
        harness.take()
        harness.end_input()
        assert harness.take() == [None]
