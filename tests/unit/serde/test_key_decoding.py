from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateError
from holdfast.serde.key_reader import KeyDecoder, length_prefixed
from holdfast.serde.key_shapes import KeyShape
from holdfast.serde.keys import canonical_key, key_bytes, varint

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-8)), timezone(timedelta(hours=5.5))])
AWARE = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=ZONES)
LONGS = st.integers(-(2**63), 2**63 - 1)
SCALARS = {
    "bool": st.booleans(),
    "int": LONGS,
    "float": st.floats(),
    "str": st.text(max_size=300),
    "bytes": st.binary(max_size=300),
    "date": st.dates(),
    "datetime": AWARE,
    "datetime_ntz": st.datetimes(),
    "Decimal": st.decimals(allow_nan=False, allow_infinity=False),
}
TUPLES = st.lists(st.none() | st.one_of(*SCALARS.values()), min_size=1, max_size=4).map(tuple)


class Place(NamedTuple):
    city: str
    zone: int | None


def same(one: Any, other: Any) -> bool:
    """Equal and of one class; NaN is the same object."""
    if isinstance(one, tuple):
        return type(other) is tuple and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one is other or one == other)


@pytest.mark.parametrize("shape", SCALARS)
def test_a_key_comes_back_from_its_bytes(shape: str) -> None:
    @given(st.lists(SCALARS[shape], min_size=1))
    def check(keys: list[Any]) -> None:
        assert {KeyShape.of(key).name for key in keys} == {shape}
        decoder = KeyDecoder(KeyShape(shape))
        data = [key_bytes(key) for key in keys]
        decoded = decoder.decode_all(data)
        assert all(map(same, decoded, map(canonical_key, keys)))
        assert all(map(same, decoded, map(decoder.decode, data)))
        assert [key_bytes(key) for key in decoded] == data

    check()


@given(TUPLES, TUPLES)
def test_tuples_come_back_whatever_is_null_in_them(key: Any, other: Any) -> None:
    shape = KeyShape.of(key)
    for known in (shape, shape.joined(KeyShape.of(other)) or shape):
        decoded = KeyDecoder(known).decode(key_bytes(key))
        assert same(decoded, canonical_key(key))
        assert key_bytes(decoded) == key_bytes(key)


def test_subclasses_come_back_as_what_they_equal() -> None:
    key = Place("Ulm", None)
    assert KeyDecoder(KeyShape("tuple[str, int]")).decode(key_bytes(key)) == key
    assert type(KeyDecoder(KeyShape.of(key)).decode(key_bytes(key))) is tuple


def test_the_empty_tuple_comes_back() -> None:
    assert KeyDecoder(KeyShape.of(())).decode(key_bytes(())) == ()


def test_there_is_one_nan() -> None:
    nan = canonical_key(float("nan"))
    data = key_bytes(-float("nan"))
    assert KeyDecoder(KeyShape("float")).decode(data) is nan
    assert KeyDecoder(KeyShape("tuple[float]")).decode(key_bytes((float("nan"),)))[0] is nan


@pytest.mark.parametrize("shape", ["int", "str"])
def test_keys_are_decoded_in_bulk(shape: str) -> None:
    keys = [i if shape == "int" else f"key-{i}" for i in range(100_000)]
    data = list(map(key_bytes, keys))
    decoder = KeyDecoder(KeyShape(shape))
    times = []
    for _ in range(3):
        start = perf_counter()
        assert len(decoder.decode_all(data)) == len(keys)
        times.append(perf_counter() - start)
    assert decoder.decode_all(data) == keys
    assert decoder.decode_all([]) == []
    assert min(times) < 0.1


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("int", b"\x01"),
        ("float", b""),
        ("str", b"\xff"),
        ("date", struct.pack("<q", 2**62)),
        ("datetime", struct.pack("<q", 2**63 - 1)),
        ("Decimal", b"one"),
        ("tuple[int]", b""),
        ("tuple[int]", b"\x01\x08\x00"),
        ("tuple[str]", b"\x00\x00"),
        ("tuple[?]", b"\x01\x00"),
    ],
)
def test_bytes_that_are_of_no_key_are_reported_with_the_type(shape: str, data: bytes) -> None:
    with pytest.raises(StateError, match=re.escape(f"no key of type {shape} ")):
        KeyDecoder(KeyShape(shape)).decode(data)


@given(st.binary(max_size=3), st.binary(max_size=20_000), st.binary(max_size=3))
def test_bytes_are_found_behind_their_length(before: bytes, data: bytes, after: bytes) -> None:
    whole = before + varint(len(data)) + data + after
    assert length_prefixed(whole, len(before)) == (data, len(whole) - len(after))


def test_the_digits_of_a_decimal_are_all_kept() -> None:
    key = Decimal("123456789012345678901234567890123456789.000000000000001")
    assert KeyDecoder(KeyShape("Decimal")).decode(key_bytes(key)) == key
