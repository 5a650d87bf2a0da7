"""State that is written as tables and read into stores again, of any backend, is the same state."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.serde.factory import codec_for
from holdfast.serde.keys import key_group_of
from holdfast.serde.tagged import either, timestamped
from holdfast.state.key_groups import subtask_of
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.tables.operator import read_operator_tables, write_operator_tables
from holdfast.state.tables.reader import TablesSnapshot
from holdfast.state.tables.rows import Portion
from holdfast.state.tables.values import value_column
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.windows import GlobalWindow, TimeWindow
from tests.properties.test_codec_properties import hashable, types
from tests.properties.test_columns_properties import columns
from tests.support.in_memory import IN_MEMORY
from tests.support.properties import searched
from tests.support.state_tables import State, by_name, kept_entries, restored_entries

if TYPE_CHECKING:
    from holdfast.serde.codec import Codec

MAX_PARALLELISM = 8
TTL = StateTtlConfig.new_builder(1).disable_cleanup_in_background().build()
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(-10_000, 10_000)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
integers = st.integers(-(2**63), 2**63 - 1)
simple_keys = [
    st.booleans(),
    integers,
    st.floats(allow_nan=False),
    text,
    st.text("k", min_size=120, max_size=140),
    st.binary(max_size=4),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False, max_value=10**20, min_value=Decimal(-5)),
]
key_sets = st.one_of(
    *(st.lists(one, min_size=1, max_size=5, unique=True) for one in simple_keys),
    *(
        st.lists(
            st.tuples(st.none() | first, st.none() | integers), min_size=1, max_size=5, unique=True
        )
        for first in simple_keys
    ),
)
namespaces = st.one_of(
    st.just(b""),
    st.builds(lambda start, end: TimeWindow(start, end).to_bytes(), TIMES, TIMES),
    st.just(GlobalWindow.get().to_bytes()),
    st.binary(min_size=1, max_size=20),
)


@st.composite
def codecs(draw):
    """A codec of some kind of description, and values of its type."""
    spec, values = draw(types | columns)
    codec = codec_for(spec)
    match draw(st.sampled_from(["bare"] * 4 + ["timestamped", "either", "pickled"])):
        case "timestamped":
            return timestamped(codec), st.tuples(values, st.none() | TIMES)
        case "either":
            sides = st.tuples(st.just(0), values) | st.tuples(st.just(1), integers)
            return either(codec, codec_for(int)), sides
        case "pickled":
            return codec_for(None), values
    return codec, values


def kept(target, typed, blobs):
    """The bytes that a store gets back from a column and the bytes beside it."""
    column, rest = typed
    held = target.stored(column)
    return [blobs[row] if row in rest else held[row] for row in range(len(blobs))]


def is_shown(found, value):
    """Whether a value is that of a state, for a program that knows no zones and no digits."""
    if isinstance(value, list | tuple):
        return len(found) == len(value) and all(map(is_shown, found, value))
    if isinstance(value, dict):
        return is_shown(list(found.items()), list(value.items()))
    if hasattr(value, "__dict__"):
        return is_shown(vars(found), vars(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return found.astimezone(UTC) == value.astimezone(UTC)
    return found == value or (found != found and value != value)


@given(codecs(), st.data())
def test_what_a_column_shows_is_the_value_and_all_bytes_are_kept(typed, data):
    codec, values = typed
    blobs = [codec.encode(value) for value in data.draw(st.lists(values, max_size=6))]
    target = value_column(codec.schema)
    found = target.typed(blobs)
    assert len(found.column) == len(blobs)
    assert found.column.type == target.arrow
    assert kept(target, found, blobs) == blobs
    assert found.rest == sorted(set(found.rest))
    # What is in neither column would be lost.
    valid = found.column.is_valid().to_pylist()
    assert all(there or row in found.rest for row, there in enumerate(valid))
    for there, data_back, blob in zip(valid, target.stored(found.column), blobs, strict=True):
        assert (data_back is not None) == there
        if there:
            assert is_shown(codec.decode(data_back), codec.decode(blob))


digits = st.lists(st.integers(0, 9), min_size=1, max_size=40) | st.lists(
    st.sampled_from([0, 0, 1]), min_size=1, max_size=6
)
decimals = st.one_of(
    st.builds(
        lambda sign, coefficient, exponent: Decimal((sign, tuple(coefficient), exponent)),
        st.integers(0, 1),
        digits,
        st.integers(-45, 45) | st.integers(-3, 0),
    ),
    st.sampled_from(list(map(Decimal, ("NaN", "Infinity", "-Infinity", "-0", "0E-6", "0E+3")))),
)


@given(st.lists(st.lists(decimals, max_size=8), min_size=1, max_size=4))
def test_a_column_of_decimals_shows_numbers_and_keeps_their_digits(portions):
    codec = codec_for(Decimal)
    target, shown = value_column(codec.schema), set()
    for values in portions:
        blobs = list(map(codec.encode, values))
        found = target.typed(blobs)
        assert kept(target, found, blobs) == blobs
        shown.add(found.column.type)
        for value, number, row in zip(values, found.column.to_pylist(), range(99), strict=False):
            assert number == value or (number is None and row in found.rest)
    (column,) = shown
    assert (column.id, column.precision) == (pa.decimal128(38).id, 38)


@given(
    st.lists(
        st.tuples(
            st.lists(decimals, max_size=3),
            st.none() | decimals,
            st.dictionaries(decimals.filter(lambda one: one.is_finite()), decimals, max_size=2),
        ),
        max_size=6,
    )
)
def test_decimals_within_others_are_shown_together_or_not_at_all(rows):
    codec = codec_for(tuple[list[Decimal], Decimal | None, dict[Decimal, Decimal]])
    target = value_column(codec.schema)
    blobs = list(map(codec.encode, rows))
    found = target.typed(blobs)
    assert kept(target, found, blobs) == blobs
    for row, (value, number) in enumerate(zip(rows, found.column.to_pylist(), strict=True)):
        if number is None:
            assert row in found.rest
        else:
            assert (number["_1"], number["_2"], dict(number["_3"])) == value


@given(st.lists(st.lists(decimals, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_a_state_of_decimals_comes_back_in_any_portions(lists, data):
    with TemporaryDirectory(dir=IN_MEMORY) as root:
        state = State(Path(root))
        prices = state.register(ListStateDescriptor("prices", Decimal))
        rates = state.register(MapStateDescriptor("rates", Decimal, list[Decimal]))
        for state.current.key, values in enumerate(lists):
            prices.add_all(values)
            for value in values:
                rates.put(value if value.is_finite() else None, values)
        tables = state.written(portion=Portion(rows=data.draw(st.sampled_from([1, 2, 50]))))
        with state.snapshot() as snapshot, TablesSnapshot(tables) as opened:
            assert kept_entries(opened) == kept_entries(snapshot)


@st.composite
def programs(draw):
    """Keys, states, and what is done to them."""
    keys = draw(key_sets)
    states = []
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["value", "list", "map"]))
        codec, values = draw(codecs())
        own, own_keys = draw(hashable | st.just((float, st.floats(allow_nan=False))))
        states.append((f"{kind}-{number}", kind, codec, values, own, own_keys))
    return keys, states


def registered(state: State, name: str, kind: str, codec: Codec, own: Any, timed: bool) -> Any:
    ttl = TTL if timed else None
    match kind:
        case "value":
            descriptor: Any = ValueStateDescriptor(name, codec, ttl=ttl)
        case "list":
            descriptor = ListStateDescriptor(name, codec, ttl=ttl)
        case _:
            descriptor = MapStateDescriptor(name, own, codec, ttl=ttl)
    return state.register(descriptor, state.windows)


def run(state: State, keys: list[Any], states: list[Any], data: Any) -> None:
    """Fill the states for some keys in some namespaces, and set timers."""
    for name, kind, codec, values, own, own_keys in states:
        timed = data.draw(st.booleans())
        handle = registered(state, name, kind, codec, own, timed)
        for key in keys:
            for namespace in data.draw(st.lists(namespaces, max_size=2)):
                state.windows.current.key = (key, namespace)
                if timed:
                    state.clock.set(data.draw(TIMES))
                drawn = [one for one in data.draw(st.lists(values, max_size=3)) if one is not None]
                if kind == "value":
                    handle.update(drawn[0] if drawn else None)
                elif kind == "list":
                    handle.add_all(drawn)
                else:
                    for one in [*drawn, None]:
                        handle.put(data.draw(st.none() | own_keys), one)
    for name in data.draw(st.sets(st.sampled_from([EVENT_TIMERS, PROCESSING_TIMERS]))):
        for state.current.key in keys:
            for time in data.draw(st.lists(TIMES, max_size=2)):
                state.keyed.timers(name).register(time, data.draw(namespaces))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@searched(10, 40)
def test_any_state_comes_back_on_any_backend_and_any_number_of_subtasks(backend, examples):
    @settings(max_examples=examples)
    @given(programs(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 3, 50]), st.data())
    def check(program, old, new, at_once, data):
        keys, states = program
        with TemporaryDirectory(dir=IN_MEMORY) as root:
            before, tables = [], []
            for subtask in range(old):
                state = State(Path(root) / str(subtask), backend, max_parallelism=MAX_PARALLELISM)
                own = [
                    key
                    for key in keys
                    if subtask_of(key_group_of(key, MAX_PARALLELISM), old, MAX_PARALLELISM)
                    == subtask
                ]
                run(state, own, states, data)
                tables.append(state.written(portion=Portion(rows=at_once)))
                with state.snapshot() as snapshot, TablesSnapshot(tables[-1]) as opened:
                    before.append(kept_entries(snapshot))
                    assert kept_entries(opened) == before[-1]
            for other in ("hashmap", "rocksdb"):
                after = restored_entries(
                    *(other, tables, Path(root) / other),
                    parallelism=new,
                    max_parallelism=MAX_PARALLELISM,
                )
                assert by_name(after) == by_name(before)

    check()


@given(
    st.lists(st.tuples(st.sampled_from(["split", "union", "broadcast"]), codecs()), max_size=3),
    st.lists(st.binary(max_size=4), max_size=3),
    st.dictionaries(st.integers(0, 127), st.binary(max_size=4), max_size=3),
    st.data(),
)
def test_any_operator_state_comes_back(drawn, partitions, groups, data):
    states = []
    for number, (mode, (codec, values)) in enumerate(drawn):
        blobs = list(map(codec.encode, data.draw(st.lists(values, max_size=3))))
        if mode == "broadcast":
            keys = codec_for(str)
            entries = [
                (
                    b"\x01" + keys.encode(str(place)),
                    data.draw(st.sampled_from([b"\x00", b"\x01" + d])),
                )
                for place, d in enumerate(blobs)
            ]
            states.append(
                NamedState(f"s{number}", mode, [codec.schema, keys.schema], entries=entries)
            )
        else:
            states.append(NamedState(f"s{number}", mode, [codec.schema], elements=blobs))
    state = OperatorStateSnapshot(states, partitions, groups)
    with TemporaryDirectory(dir=IN_MEMORY) as root:
        write_operator_tables(state, Path(root) / "tables", subtask=0)
        assert read_operator_tables(Path(root) / "tables") == state
