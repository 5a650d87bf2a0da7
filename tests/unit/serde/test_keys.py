from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from holdfast.errors import KeyTypeError, NullKeyError
from holdfast.serde.key_shapes import KeyShape, KeyTypes
from holdfast.serde.keys import KeyEncoder, canonical_key, key_bytes, key_group_of, key_hash, varint

GOLDEN = json.loads((Path(__file__).parents[2] / "formats" / "key_hashes.json").read_text())


def parsed(key: dict[str, Any]) -> Any:
    """The Python key that a golden entry describes."""
    [(kind, value)] = key.items()
    match kind:
        case "tuple":
            return tuple(None if part is None else parsed(part) for part in value)
        case "bytes":
            return bytes.fromhex(value)
        case "date":
            return date.fromisoformat(value)
        case "timestamp" | "timestamp_ntz":
            return datetime.fromisoformat(value)
        case "double":
            return float(value)
        case _:
            return value


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: json.dumps(entry["key"]))
def test_hashes_are_those_of_spark(entry: dict[str, Any]) -> None:
    unsigned = key_hash(parsed(entry["key"]))
    assert (unsigned ^ (1 << 63)) - (1 << 63) == entry["xxhash64"]


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: json.dumps(entry["key"]))
def test_key_groups_are_those_of_spark(entry: dict[str, Any]) -> None:
    for max_parallelism, group in entry["key_groups"].items():
        assert key_group_of(parsed(entry["key"]), int(max_parallelism)) == group


def test_integers_are_64_bit() -> None:
    assert key_bytes(5) == key_bytes(True + 4) == struct.pack("<q", 5)
    with pytest.raises(KeyTypeError, match="does not fit into 64 bits"):
        key_bytes(2**63)


def test_zero_and_nan_have_one_form() -> None:
    assert key_bytes(-0.0) == key_bytes(0.0)
    assert key_bytes(float("nan")) == key_bytes(-float("nan"))
    assert canonical_key(float("nan")) is canonical_key(-float("nan"))
    assert str(canonical_key(-0.0)) == "0.0"


def test_equal_decimals_are_one_key() -> None:
    texts = ["1.10", "1.1", "1.100E0", "11E-1"]
    assert {key_bytes(Decimal(text)) for text in texts} == {b"1.1"}
    assert key_bytes(Decimal("1E+3")) == b"1000"
    assert key_bytes(Decimal("-0.00")) == b"0"


def test_the_zone_of_a_timestamp_does_not_matter() -> None:
    utc = datetime(2026, 1, 1, 12, tzinfo=UTC)
    elsewhere = utc.astimezone(timezone(timedelta(hours=8)))
    assert key_bytes(utc) == key_bytes(elsewhere)


def test_tuples_with_nulls_and_boundaries_are_told_apart() -> None:
    keys = [("a", None), (None, "a"), ("a", ""), ("", "a"), ("a",), ("ab", ""), ("a", "b")]
    assert len({key_bytes(key) for key in keys}) == len(keys)
    assert len({key_hash(key) for key in keys}) == len(keys)


def test_a_null_key_and_an_unsuitable_one_are_refused() -> None:
    with pytest.raises(NullKeyError):
        key_bytes(None)
    with pytest.raises(KeyTypeError, match="list cannot be a key"):
        key_bytes([1])
    with pytest.raises(KeyTypeError, match="finite"):
        key_bytes(Decimal("NaN"))


class Pair(NamedTuple):
    a: str
    b: int


def test_a_named_tuple_is_the_same_key_as_the_plain_one() -> None:
    assert key_bytes(Pair("x", 1)) == key_bytes(("x", 1))
    assert key_hash(Pair("x", 1)) == key_hash(("x", 1))


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b", "ü" * 200],
        [1, -1, 2**62],
        list(range(-50, 50)),
        [(1, "a"), (2, None)],
        [1.5, 2.0],
        [b"x"],
    ],
    ids=["str", "few ints", "many ints", "tuple", "float", "bytes"],
)
@pytest.mark.parametrize("max_parallelism", [128, 1000])
def test_the_encoder_gives_state_group_length_key_and_namespace(
    keys: list[Any], max_parallelism: int
) -> None:
    encoder = KeyEncoder(max_parallelism)
    encoded = encoder.encode_all(b"\x00\x07", keys)
    for key, part in zip(keys, encoded, strict=True):
        data = key_bytes(key)
        group = struct.pack(">H", key_group_of(key, max_parallelism))
        assert part == b"\x00\x07" + group + varint(len(data)) + data + b"\x00"
        assert encoder.encode(b"\x00\x07", key) == part


def test_an_integer_beyond_64_bits_among_many_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="does not fit into 64 bits"):
        KeyEncoder(128).encode_all(b"\x00\x01", [*range(100), 2**63])


def test_keys_of_two_types_in_one_operator_are_refused() -> None:
    encoder = KeyEncoder(128)
    encoder.encode(b"\x00\x01", "a")
    with pytest.raises(KeyTypeError, match=r"1 is an int, but the keys of this operator are str"):
        encoder.encode(b"\x00\x01", 1)
    with pytest.raises(KeyTypeError, match="True is a bool"):
        KeyEncoder(128, KeyTypes(KeyShape("int"))).encode_all(b"\x00\x01", [True])


def test_components_of_tuples_are_compared_and_nulls_fit_any_type() -> None:
    encoder = KeyEncoder(128)
    encoder.encode_all(b"\x00\x01", [("a", None), ("b", 1), (None, 2)])
    assert encoder.shape == KeyShape("tuple[str, int]")
    for wrong in ((b"a", 1), ("a", 1.5), ("a", 1, 2), "a"):
        with pytest.raises(KeyTypeError, match=r"the keys of this operator are tuple\[str, int\]"):
            encoder.encode(b"\x00\x01", wrong)


def test_a_tuple_of_nothing_and_a_tuple_of_a_null_are_different_types() -> None:
    encoder = KeyEncoder(128)
    encoder.encode(b"\x00\x01", (None,))
    with pytest.raises(KeyTypeError, match=r"tuple\[\?\]"):
        encoder.encode(b"\x00\x01", ())


def test_naive_and_zoned_datetimes_are_different_types() -> None:
    encoder = KeyEncoder(128)
    encoder.encode(b"\x00\x01", datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(KeyTypeError, match="datetime_ntz"):
        encoder.encode(b"\x00\x01", datetime(2026, 1, 1))


def test_both_readings_of_a_repeated_hour_are_keys_of_their_own() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2024, 10, 27, 2, 30, tzinfo=berlin)
    second = first.replace(fold=1)
    assert first == second
    assert canonical_key(first) != canonical_key(second)
