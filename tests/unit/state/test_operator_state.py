"""State of a subtask: lists, union lists, broadcast maps and raw state, epoch after epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import StateDescriptorError, StateError, StateValueError
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.operator.layout import SUBTASK_PREFIX, layout, read_layout
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS = ListStateDescriptor("numbers", int)
LISTS = ListStateDescriptor("lists", list[int])
RULES = MapStateDescriptor("rules", str, int)
MUTABLE = MapStateDescriptor("mutable", str, list[int])


@dataclass
class Rule:
    """A value that can be changed in place."""

    limit: int


class Subtask:
    """Operator state as one subtask sees it."""

    def __init__(self, backend: Any, directory: Path) -> None:
        self.backend, self.directory = backend, directory
        self.version: str | None = None
        self.epoch = 0
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.store = open_store(self.backend, self.directory, self.version)
        self.state = OperatorStateBackend(self.store)

    def next_epoch(self) -> None:
        self.state.flush()
        self.version = f"v{self.epoch}"
        self.store.commit(self.version)
        self.open()

    def staged(self) -> int:
        """Entries that a flush writes."""
        self.state.flush()
        return len(self.store._buffer.entries)

    def stored(self) -> dict[bytes, bytes]:
        return dict(self.store.scan(SUBTASK_PREFIX))


@pytest.fixture
def subtask(backend: Any, tmp_path: Path) -> Iterator[Subtask]:
    made = Subtask(backend, tmp_path / "store")
    yield made
    made.store.abort()


# Lists


@pytest.mark.parametrize("method", ["get_list_state", "get_union_list_state"])
def test_a_list_keeps_its_elements_in_order_over_epochs(subtask: Subtask, method: str) -> None:
    numbers = getattr(subtask.state, method)(NUMBERS)
    assert numbers.get() == []
    numbers.add(3)
    numbers.add_all([1, 3])
    assert list(numbers) == [3, 1, 3]
    subtask.next_epoch()
    numbers = getattr(subtask.state, method)(NUMBERS)
    assert numbers.get() == [3, 1, 3]
    numbers.add(4)
    numbers.add_all([])
    subtask.next_epoch()
    assert getattr(subtask.state, method)(NUMBERS).get() == [3, 1, 3, 4]


def test_an_update_replaces_the_list_and_an_empty_one_clears_it(subtask: Subtask) -> None:
    numbers = subtask.state.get_list_state(NUMBERS)
    for content in ([1, 2, 3, 4], [1, 9], [], [5, 6, 7]):
        numbers.update(content)
        assert numbers.get() == content
        subtask.next_epoch()
        numbers = subtask.state.get_list_state(NUMBERS)
        assert numbers.get() == content
    numbers.clear()
    numbers.clear()
    subtask.next_epoch()
    assert subtask.state.get_list_state(NUMBERS).get() == []


def test_none_and_values_of_other_types_are_refused_and_nothing_is_changed(
    subtask: Subtask,
) -> None:
    numbers: Any = subtask.state.get_list_state(NUMBERS)
    numbers.update([1])
    for refused in (
        lambda: numbers.add(None),
        lambda: numbers.add("1"),
        lambda: numbers.add_all([2, None]),
        lambda: numbers.add_all(None),
        lambda: numbers.update([2, "3"]),
        lambda: numbers.update(None),
    ):
        with pytest.raises(StateValueError, match="operator state 'numbers'"):
            refused()
    assert numbers.get() == [1]


def test_an_element_changed_in_place_is_not_changed_in_the_state(subtask: Subtask) -> None:
    lists = subtask.state.get_list_state(LISTS)
    element = [1]
    lists.add(element)
    element.append(2)
    lists.get()[0].append(3)
    assert lists.get() == [[1]]
    subtask.next_epoch()
    assert subtask.state.get_list_state(LISTS).get() == [[1]]


def test_a_flush_writes_only_what_changed_in_a_list(subtask: Subtask) -> None:
    numbers = subtask.state.get_list_state(NUMBERS)
    numbers.update(range(1000))
    subtask.next_epoch()
    numbers = subtask.state.get_list_state(NUMBERS)
    assert subtask.staged() == 0
    numbers.update(range(1000))
    assert subtask.staged() == 0
    numbers.add(1000)
    assert subtask.staged() == 1
    numbers.update(range(990))
    assert subtask.staged() == 11
    subtask.next_epoch()
    assert subtask.state.get_list_state(NUMBERS).get() == list(range(990))


# Broadcast maps


def test_a_broadcast_map_has_all_methods_of_a_map(subtask: Subtask) -> None:
    rules = subtask.state.get_broadcast_state(RULES)
    assert rules.is_empty()
    assert rules.get("a") is None
    rules.put("a", 1)
    rules.put_all({"b": 2, "c": 3})
    rules["d"] = 4
    del rules["b"]
    rules.remove("unknown")
    assert "a" in rules
    assert "b" not in rules
    assert rules["d"] == 4
    assert sorted(rules.keys()) == sorted(rules) == ["a", "c", "d"]
    assert sorted(rules.values()) == [1, 3, 4]  # type: ignore[type-var]
    assert dict(rules.items()) == {"a": 1, "c": 3, "d": 4}
    for key in rules.keys():  # noqa: SIM118
        rules.remove(key)
    assert rules.is_empty()


def test_a_broadcast_map_lives_on_over_epochs(subtask: Subtask) -> None:
    model: dict[str, int] = {}
    for epoch in range(4):
        rules = subtask.state.get_broadcast_state(RULES)
        assert dict(rules.items()) == model
        rules.put_all({f"{epoch}-{i}": i for i in range(5)})
        rules.remove(f"{epoch - 1}-0")
        model = {k: v for k, v in model.items() if k != f"{epoch - 1}-0"}
        model |= {f"{epoch}-{i}": i for i in range(5)}
        subtask.next_epoch()
    subtask.state.get_broadcast_state(RULES).clear()
    subtask.next_epoch()
    rules = subtask.state.get_broadcast_state(RULES)
    assert rules.is_empty()
    assert len(subtask.stored()) == 1


def test_null_keys_and_null_values_are_kept(subtask: Subtask) -> None:
    rules: Any = subtask.state.get_broadcast_state(RULES)
    rules.put(None, 7)
    rules.put("", None)
    subtask.next_epoch()
    rules = subtask.state.get_broadcast_state(RULES)
    assert rules.get(None) == 7
    assert rules.contains("")
    assert rules.get("") is None
    assert dict(rules.items()) == {None: 7, "": None}


def test_equal_keys_with_different_bytes_are_one(subtask: Subtask) -> None:
    descriptor = MapStateDescriptor("floats", float, int)
    floats = subtask.state.get_broadcast_state(descriptor)
    floats.put(0.0, 1)
    subtask.next_epoch()
    floats = subtask.state.get_broadcast_state(descriptor)
    floats.put(-0.0, 2)
    assert dict(floats.items()) == {0.0: 2}
    subtask.next_epoch()
    assert dict(subtask.state.get_broadcast_state(descriptor).items()) == {0.0: 2}


def test_a_map_value_changed_in_place_is_not_changed_in_the_state(subtask: Subtask) -> None:
    rules = subtask.state.get_broadcast_state(MapStateDescriptor("r", str, Rule))
    rule = Rule(1)
    rules.put("a", rule)
    rule.limit = 2
    found = rules.get("a")
    assert found is not None
    found.limit = 3
    for listed in rules.values():
        assert listed is not None
        listed.limit = 4
    assert rules.get("a") == Rule(1)


def test_a_map_refuses_what_does_not_fit_and_stays_as_it_was(subtask: Subtask) -> None:
    rules: Any = subtask.state.get_broadcast_state(RULES)
    rules.put("a", 1)
    for refused in (
        lambda: rules.put(1, 1),
        lambda: rules.put("b", "1"),
        lambda: rules.put_all({"b": 2, "c": "3"}),
        lambda: rules.put_all(None),
        lambda: rules.put(["b"], 1),
        lambda: rules.get(["b"]),
    ):
        with pytest.raises(StateValueError, match="operator state 'rules'"):
            refused()
    assert dict(rules.items()) == {"a": 1}


def test_a_flush_writes_only_what_changed_in_a_map(subtask: Subtask) -> None:
    subtask.state.get_broadcast_state(MUTABLE).put_all({str(i): [i] for i in range(500)})
    subtask.next_epoch()
    rules = subtask.state.get_broadcast_state(MUTABLE)
    assert subtask.staged() == 0
    rules.put("7", [8])
    rules.remove("8")
    assert subtask.staged() == 2


# Raw state


def test_raw_state_is_replaced_as_a_whole_and_lives_on(subtask: Subtask) -> None:
    assert subtask.state.raw_partitions() == []
    assert subtask.state.raw_key_groups() == {}
    for partitions, groups in (
        ([b"one", b"", b"three"], {0: b"zero", 300: b"many"}),
        ([b"one"], {1: b"one", 300: b"many"}),
        ([], {}),
    ):
        subtask.state.set_raw_partitions(partitions)
        subtask.state.set_raw_key_groups(groups)
        subtask.next_epoch()
        assert subtask.state.raw_partitions() == partitions
        assert subtask.state.raw_key_groups() == groups
    assert subtask.stored() == {}


def test_raw_state_that_is_set_again_is_not_written_again(subtask: Subtask) -> None:
    subtask.state.set_raw_partitions([b"a", b"b"])
    subtask.next_epoch()
    subtask.state.set_raw_partitions([b"a", b"b"])
    assert subtask.staged() == 0
    subtask.state.set_raw_partitions([b"a", b"c"])
    assert subtask.staged() == 1


def test_what_raw_state_hands_out_is_the_callers_own(subtask: Subtask) -> None:
    subtask.state.set_raw_partitions([b"a"])
    subtask.state.set_raw_key_groups({1: b"b"})
    subtask.state.raw_partitions().clear()
    subtask.state.raw_key_groups().clear()
    assert subtask.state.raw_partitions() == [b"a"]
    assert subtask.state.raw_key_groups() == {1: b"b"}


def test_raw_state_takes_bytes_and_key_groups_only(subtask: Subtask) -> None:
    for refused in (
        lambda: subtask.state.set_raw_partitions(["text"]),  # type: ignore[list-item]
        lambda: subtask.state.set_raw_key_groups({1: "text"}),  # type: ignore[dict-item]
        lambda: subtask.state.set_raw_key_groups({-1: b"x"}),
        lambda: subtask.state.set_raw_key_groups({32768: b"x"}),
    ):
        with pytest.raises(StateValueError):
            refused()


# Registration


def test_the_same_name_and_mode_give_the_same_handle(subtask: Subtask) -> None:
    state = subtask.state
    assert state.get_list_state(NUMBERS) is state.get_list_state(ListStateDescriptor("numbers"))
    assert state.get_broadcast_state(RULES) is state.get_broadcast_state(RULES)


@pytest.mark.parametrize("later", [False, True])
def test_a_name_in_another_mode_is_refused(subtask: Subtask, later: bool) -> None:
    subtask.state.get_list_state(NUMBERS)
    subtask.state.get_broadcast_state(RULES)
    if later:
        subtask.next_epoch()
    for refused in (
        lambda: subtask.state.get_union_list_state(NUMBERS),
        lambda: subtask.state.get_broadcast_state(MapStateDescriptor("numbers", str, int)),
        lambda: subtask.state.get_list_state(ListStateDescriptor("rules", int)),
    ):
        known = "is stored as a" if later else "cannot be a"
        with pytest.raises(
            StateDescriptorError, match=f"Incompatible state assignment modes: .*{known}"
        ):
            refused()


def test_state_written_under_another_type_is_refused(subtask: Subtask) -> None:
    subtask.state.get_list_state(NUMBERS).add(1)
    subtask.next_epoch()
    with pytest.raises(StateDescriptorError, match="value: was int, is str"):
        subtask.state.get_list_state(ListStateDescriptor("numbers", str))


def test_descriptors_of_other_kinds_are_refused(subtask: Subtask) -> None:
    value: Any = ValueStateDescriptor("v", int)
    for method in ("get_list_state", "get_union_list_state", "get_broadcast_state"):
        for wrong in (value, None):
            with pytest.raises(StateDescriptorError, match="StateDescriptor, not by"):
                getattr(subtask.state, method)(wrong)


def test_states_without_a_type_are_pickled_and_warned_of(subtask: Subtask) -> None:
    untyped = subtask.state.get_list_state(ListStateDescriptor("untyped"))
    untyped.add_all([1, "two", (3,)])
    assert len(subtask.state.warnings) == 1
    assert "'untyped'" in subtask.state.warnings[0]
    subtask.next_epoch()
    again = subtask.state.get_list_state(ListStateDescriptor("untyped"))
    assert again.get() == [1, "two", (3,)]


def test_keyed_state_of_the_same_names_lives_in_the_same_store(tmp_path: Path) -> None:
    backend, version = HashMapStateBackend(), None
    for epoch in (1, 2):
        store = open_store(backend, tmp_path / "store", version)
        current = CurrentKey()
        keyed = KeyedStateBackend(store, max_parallelism=8, epoch=epoch, current=current)
        own = OperatorStateBackend(store)
        values: Any = keyed.register(ListStateDescriptor("numbers", int))
        current.key = "k"
        values.add(epoch)
        own.get_list_state(NUMBERS).add(10 * epoch)
        assert values.get() == [1, 2][:epoch]
        assert own.get_list_state(NUMBERS).get() == [10, 20][:epoch]
        own.flush()
        version = f"v{epoch}"
        keyed.commit(version)


# Export


def test_there_is_nothing_to_export_where_nothing_was_registered(subtask: Subtask) -> None:
    assert subtask.state.export() is None
    subtask.next_epoch()
    assert subtask.stored() == {}


def test_an_export_has_everything_as_it_is_now_in_order_of_registration(subtask: Subtask) -> None:
    subtask.state.get_union_list_state(ListStateDescriptor("z", int)).add(1)
    subtask.state.get_broadcast_state(RULES).put("a", 1)
    subtask.next_epoch()
    subtask.state.get_list_state(ListStateDescriptor("b", int))
    subtask.state.get_broadcast_state(RULES).put("b", None)
    subtask.state.set_raw_partitions([b"p"])
    subtask.state.set_raw_key_groups({9: b"nine", 2: b"two"})
    exported = subtask.state.export()
    assert exported is not None
    assert [(state.name, state.mode) for state in exported.states] == [
        ("z", "union"),
        ("rules", "broadcast"),
        ("b", "split"),
    ]
    assert exported.states[0].elements == [b"\x01"]
    assert exported.states[1].entries == [(b"\x01\xa1a", b"\x01\x01"), (b"\x01\xa1b", b"\x00")]
    assert exported.raw_partitions == [b"p"]
    assert exported.raw_key_groups == {2: b"two", 9: b"nine"}
    subtask.next_epoch()
    assert subtask.state.export() == exported


def test_a_state_that_is_no_longer_registered_is_carried_along(subtask: Subtask) -> None:
    subtask.state.get_list_state(NUMBERS).add_all([1, 2])
    subtask.state.set_raw_partitions([b"raw"])
    subtask.next_epoch()
    before = subtask.state.export()
    for _ in range(3):
        subtask.state.get_broadcast_state(RULES)
        subtask.next_epoch()
    after = subtask.state.export()
    assert before is not None
    assert after is not None
    assert after.states[0] == before.states[0]
    assert after.raw_partitions == [b"raw"]
    assert subtask.state.get_list_state(NUMBERS).get() == [1, 2]


def test_a_failed_epoch_leaves_operator_state_as_it_was(subtask: Subtask) -> None:
    subtask.state.get_list_state(NUMBERS).add(1)
    subtask.next_epoch()
    subtask.state.get_list_state(NUMBERS).add(2)
    subtask.state.get_broadcast_state(RULES).put("a", 1)
    subtask.state.flush()
    subtask.store.abort()
    subtask.open()
    assert subtask.state.get_list_state(NUMBERS).get() == [1]
    exported = subtask.state.export()
    assert exported is not None
    assert len(exported.states) == 1


def test_what_is_exported_comes_back_in_a_restored_store(subtask: Subtask, tmp_path: Path) -> None:
    subtask.state.get_union_list_state(NUMBERS).add_all(range(300))
    subtask.state.get_broadcast_state(RULES).put_all({"k" * 600: 1, "": 2})
    subtask.state.get_list_state(ListStateDescriptor("n" * 200, int)).add(1)
    subtask.state.set_raw_key_groups({5: b"five"})
    exported = subtask.state.export()
    assert exported is not None
    decoded = OperatorStateSnapshot.decode(exported.encode())
    assert decoded == exported
    restore_store(
        subtask.backend,
        [],
        tmp_path / "new",
        version="r",
        key_groups=range(8),
        whole=False,
        operator_state=decoded,
    )
    store = open_store(subtask.backend, tmp_path / "new", "r")
    restored = OperatorStateBackend(store)
    assert restored.export() == exported
    assert restored.get_union_list_state(NUMBERS).get() == list(range(300))
    store.abort()


def test_states_whose_names_begin_alike_are_told_apart() -> None:
    backend_states = [
        ("a", [b"\x01"]),
        ("ab", [b"\x02", b"\x03"]),
        ("a" * 127, []),
        ("a" * 128, [b"\x04"]),
    ]
    snapshot = OperatorStateSnapshot(
        [NamedState(name, "split", ["int"], list(elements)) for name, elements in backend_states]
    )
    assert read_layout(sorted(layout(snapshot))) == snapshot


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no operator state"),
        (b"hf-opst", "no operator state"),
        (b"something else", "no operator state"),
        (b"hf-opst\x02\x80", "format 2"),
        (b"hf-opst\x01", "damaged"),
        (b"hf-opst\x01\x81\xa6states\x01", "damaged"),
    ],
)
def test_bytes_that_are_no_operator_state_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(StateError, match=message):
        OperatorStateSnapshot.decode(data)
