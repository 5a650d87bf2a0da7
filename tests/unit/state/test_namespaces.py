"""State in namespaces: its keys, its scopes, how it merges, and the codecs of elements in it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    AggregatingStateDescriptor,
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import KeyTypeError, StateAccessError, StateDescriptorError, StateValueError
from holdfast.serde.factory import codec_for
from holdfast.serde.keys import KeyEncoder
from holdfast.serde.tagged import either, timestamped
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.namespaces import NamespacedKeyEncoder, merge_namespaces
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from tests.support.functions import Mean, plus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.config.backends import StateBackend
    from holdfast.state.namespaces import StateScope

PREFIX = b"\x00\x07"
KEYS = [
    st.integers(-(2**63), 2**63 - 1),
    st.text(),
    st.binary(),
    st.tuples(st.text(), st.integers(-5, 5)),
]
VALUE = ValueStateDescriptor("value", int)
LIST = ListStateDescriptor("list", int)
SUM = ReducingStateDescriptor("sum", plus, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])
MAP = MapStateDescriptor("map", int, int)


# Keys


@given(
    keys=st.sampled_from(KEYS).flatmap(lambda kind: st.lists(kind, min_size=1, max_size=20)),
    namespaces=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4),
)
def test_an_entry_in_a_namespace_lies_among_those_of_its_key(
    keys: list[Any], namespaces: list[bytes]
) -> None:
    plain, namespaced = KeyEncoder(128), NamespacedKeyEncoder(KeyEncoder(128))
    pairs = [(key, namespaces[i % len(namespaces)]) for i, key in enumerate(keys)]
    encoded = namespaced.encode_all(PREFIX, pairs)
    for (key, namespace), data in zip(pairs, encoded, strict=True):
        of_key = plain.encode(PREFIX, key)[:-1]
        assert data.startswith(of_key)
        length, rest = data[len(of_key)], data[len(of_key) + 1 :]
        if len(namespace) > 127:
            assert length == 0x80 | (len(namespace) & 0x7F)
            rest = rest[1:]
        else:
            assert length == len(namespace)
        assert rest == namespace
        assert namespaced.encode(PREFIX, (key, namespace)) == data
    assert namespaced.shape == plain.shape
    distinct = {plain.encode(PREFIX, key) + namespace for key, namespace in pairs}
    assert len(set(encoded)) == len(distinct)


def test_many_integers_are_encoded_as_few_are() -> None:
    encoder = NamespacedKeyEncoder(KeyEncoder(128))
    pairs = [(number, bytes((number % 3 + 1,))) for number in range(-500, 500)]
    one_by_one = [NamespacedKeyEncoder(KeyEncoder(128)).encode(PREFIX, pair) for pair in pairs]
    assert encoder.encode_all(PREFIX, pairs) == one_by_one


def test_no_entry_of_one_namespace_begins_like_those_of_another() -> None:
    """So that the scan of a list, or a map, meets none but its own entries."""
    encoder = NamespacedKeyEncoder(KeyEncoder(128))
    namespaces = [b"a", b"ab", b"abc", b"\x00", b"\x00\x00", b"a" * 200]
    encoded = [encoder.encode(PREFIX, ("key", namespace)) for namespace in namespaces]
    encoded.append(KeyEncoder(128).encode(PREFIX, "key"))
    for one in encoded:
        assert [other for other in encoded if other.startswith(one)] == [one]


def test_keys_of_two_types_are_refused_in_a_namespace_too() -> None:
    encoder = NamespacedKeyEncoder(KeyEncoder(128))
    encoder.encode(PREFIX, ("a", b"w"))
    with pytest.raises(KeyTypeError):
        encoder.encode(PREFIX, (1, b"w"))


# Scopes


class Epoch:
    """Keyed state for one epoch."""

    def __init__(self, backend: StateBackend, directory: Path, number: int) -> None:
        self.number = number
        self.current = CurrentKey()
        store = open_store(backend, directory, None if number == 1 else f"{number - 1}")
        self.state = KeyedStateBackend(
            store, max_parallelism=128, epoch=number, current=self.current
        )

    def register(self, descriptor: Any, scope: StateScope | None = None) -> Any:
        return self.state.register(descriptor, scope)


@contextmanager
def epoch(backend: StateBackend, directory: Path, number: int = 1) -> Iterator[Epoch]:
    one = Epoch(backend, directory, number)
    yield one
    one.state.commit(f"{number}")


def test_a_state_has_a_value_in_every_namespace_and_one_outside(
    backend: StateBackend, tmp_path: Path
) -> None:
    places = [(key, namespace) for key in "ab" for namespace in (b"", b"v", b"vw")]
    for number in (1, 2):
        with epoch(backend, tmp_path / "store", number) as one:
            scope = one.state.namespaced()
            states = {d: (one.register(d), one.register(d, scope)) for d in (VALUE, LIST, MAP)}
            for place, (key, namespace) in enumerate(places):
                one.current.key = key
                scope.current.key = (key, namespace)
                value, listed, mapped = (pair[bool(namespace)] for pair in states.values())
                if number == 1:
                    value.update(place)
                    listed.add_all([place, -place])
                    mapped.put(place, place)
                assert value.value() == place
                assert listed.get() == [place, -place]
                assert dict(mapped.items()) == {place: place}
            [description] = [d for d in one.state.state_descriptions() if d["name"] == "value"]
            assert description["kind"] == "value"


def test_two_scopes_of_one_operator_have_their_own_current_keys(
    backend: StateBackend, tmp_path: Path
) -> None:
    with epoch(backend, tmp_path / "store") as one:
        first, second = one.state.namespaced(), one.state.namespaced()
        mine, other = one.register(VALUE, first), one.register(SUM, second)
        first.current.key, second.current.key = ("a", b"1"), ("a", b"2")
        mine.update(1)
        other.add(2)
        second.current.key = ("a", b"1")
        assert other.get() is None
        assert mine.value() == 1


def test_a_name_means_one_kind_of_state_in_all_scopes(
    backend: StateBackend, tmp_path: Path
) -> None:
    with epoch(backend, tmp_path / "store") as one:
        scope = one.state.namespaced()
        one.register(VALUE)
        with pytest.raises(StateDescriptorError, match="value"):
            one.register(ListStateDescriptor("value", int), scope)
        one.register(LIST, scope)
        with pytest.raises(StateDescriptorError, match="list"):
            one.register(ValueStateDescriptor("list", int), scope)
        assert one.register(LIST, scope) is one.register(ListStateDescriptor("list", int), scope)


def test_without_a_key_state_of_a_namespace_is_refused(
    backend: StateBackend, tmp_path: Path
) -> None:
    with epoch(backend, tmp_path / "store") as one:
        scope = one.state.namespaced()
        one.current.key = "a"
        with pytest.raises(StateAccessError, match="no key set"):
            one.register(VALUE, scope).value()


def test_a_batch_of_keys_and_namespaces_is_read_at_once(
    backend: StateBackend, tmp_path: Path
) -> None:
    pairs = [(f"key-{i}", bytes((i % 5 + 1,))) for i in range(50)]
    with epoch(backend, tmp_path / "store") as one:
        scope = one.state.namespaced()
        value = one.register(VALUE, scope)
        for i, scope.current.key in enumerate(pairs):
            value.update(i)
    with epoch(backend, tmp_path / "store", 2) as one:
        scope = one.state.namespaced()
        value = one.register(VALUE, scope)
        scope.current.start_batch(pairs)
        scope.current.key = pairs[0]
        assert value.value() == 0
        assert scope.tables[0].cached() == len(pairs)


# Merging


def merged(descriptor: Any, fill: Any, backend: StateBackend) -> list[Any]:
    """What five namespaces hold after the last three were merged into the first."""
    places = [("key", bytes((i,))) for i in range(1, 6)]
    with TemporaryDirectory() as directory:
        with epoch(backend, Path(directory) / "store") as one:
            scope = one.state.namespaced()
            state = one.register(descriptor, scope)
            for i, scope.current.key in enumerate(places[:4]):
                fill(state, i)
            merge_namespaces(state, entering(scope), places[0], places[2:])
        with epoch(backend, Path(directory) / "store", 2) as one:
            scope = one.state.namespaced()
            state = one.register(descriptor, scope)
            enter = entering(scope)
            return [(enter(place), state.get())[1] for place in places]


def entering(scope: StateScope) -> Any:
    """What sets the current key of a scope."""
    return partial(setattr, scope.current, "key")


def test_lists_reduced_values_and_accumulators_merge(backend: StateBackend) -> None:
    def add(state: Any, i: int) -> None:
        state.add(10 * i)
        state.add(10 * i + 1)

    lists = merged(LIST, add, backend)
    assert lists == [[0, 1, 20, 21, 30, 31], [10, 11], [], [], []]
    assert merged(SUM, add, backend) == [103, 21, None, None, None]
    assert merged(MEAN, add, backend) == [103 / 6, 10.5, None, None, None]


def test_what_is_merged_into_nothing_is_there_then(backend: StateBackend) -> None:
    def add(state: Any, i: int) -> None:
        if i:
            state.add(i)

    assert merged(LIST, add, backend)[0] == [2, 3]
    assert merged(SUM, add, backend)[0] == 5
    assert merged(MEAN, add, backend)[0] == 2.5


@pytest.mark.parametrize("descriptor", [VALUE, MAP])
def test_a_value_or_a_map_does_not_merge(descriptor: Any, tmp_path: Path) -> None:
    with epoch(HashMapStateBackend(), tmp_path / "store") as one:
        scope = one.state.namespaced()
        state = one.register(descriptor, scope)
        scope.current.key = ("a", b"1")

        with pytest.raises(StateAccessError, match="only list, reducing and aggregating states"):
            merge_namespaces(state, entering(scope), ("a", b"1"), [("a", b"2")])


# Codecs of elements


TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=50)
@given(value=st.lists(st.integers() | st.none()), time=TIMES)
def test_an_element_comes_back_with_its_time(value: list[Any], time: int | None) -> None:
    for spec in (list[int | None], None):
        codec = timestamped(codec_for(spec))
        codec.check((value, time))
        data = codec.encode((value, time))
        assert codec.decode(data) == (value, time)
        assert codec.pickled == (spec is None)
        assert not codec.immutable


@settings(max_examples=50)
@given(number=st.integers(), text=st.text(), time=TIMES)
def test_an_element_of_either_stream_comes_back(number: int, text: str, time: int | None) -> None:
    codec = either(codec_for(int), codec_for(str))
    for pair in ((0, number), (1, text)):
        codec.check(pair)
        assert codec.decode(codec.encode(pair)) == pair
        timed = timestamped(codec)
        assert timed.decode(timed.encode((pair, time))) == (pair, time)
    assert codec.immutable
    assert timestamped(codec).immutable


def test_what_is_of_neither_type_is_refused() -> None:
    codec = either(codec_for(int), codec_for(str))
    for pair in ((0, "a"), (1, 5)):
        with pytest.raises(StateValueError):
            codec.check(pair)
    with pytest.raises(StateValueError):
        timestamped(codec_for(int)).check(("a", 1))


def test_the_types_inside_are_part_of_the_schema() -> None:
    schemas = [
        timestamped(codec_for(int)).schema,
        timestamped(codec_for(str)).schema,
        either(codec_for(int), codec_for(str)).schema,
        either(codec_for(str), codec_for(int)).schema,
        codec_for(int).schema,
    ]
    assert all(one != other for i, one in enumerate(schemas) for other in schemas[:i])
