"""Values that a column shows although their bytes do not come back from it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Optional

import msgspec
import pyarrow as pa
import pytest

from holdfast.serde.factory import codec_for
from holdfast.serde.tagged import either, timestamped
from holdfast.state.tables.values import value_column
from tests.unit.state.test_tables_types import BERLIN, LINE, NOON, Line, Order

# A value, another of the same type that comes first, and what is shown of the value.
SHOWN: list[tuple[Any, Any, Any, Any]] = [
    (Decimal, Decimal("1.1"), Decimal("1.10"), Decimal("1.10")),
    (Decimal, Decimal("1.00"), Decimal("1.1"), Decimal(1)),
    (Decimal, Decimal("1E+5"), Decimal(1), Decimal(100_000)),
    (Decimal, Decimal("0E+50"), Decimal("1.0"), Decimal(0)),
    (Decimal, Decimal("-0.00"), Decimal("1.00"), Decimal("0.00")),
    (pa.decimal128(5, 2), Decimal("1.1"), Decimal("1.10"), Decimal("1.10")),
    (list[Decimal], [Decimal("1.1"), Decimal(2)], [Decimal("0.50")], [Decimal("1.1"), Decimal(2)]),
    (tuple[Decimal, Any], (Decimal(1), [1]), (Decimal("0.0"), 0),
     {"_1": Decimal(1), "_2": b"\x91\x01"}),
    (tuple[Decimal, float], (Decimal(1), math.inf), (Decimal("0.0"), 0.0),
     {"_1": Decimal(1), "_2": math.inf}),
    (Line, Line("tea", Decimal("1.1"), ["a", "ü"]), Line("", Decimal("1.10"), []), LINE),
    (Optional[Line], Line("tea", Decimal("1.1"), ["a", "ü"]),  # noqa: UP045
     Line("", Decimal("1.10"), []), LINE),
    (dict[Decimal, Decimal], {Decimal(1): Decimal(2)}, {Decimal("1.0"): Decimal("0.50")},
     [(Decimal(1), Decimal(2))]),
    (int | Decimal, Decimal(2), Decimal("0.0"), {"int": None, "decimal": Decimal(2)}),
    (list[int | Decimal | None], [1, None, Decimal(2)], [Decimal("0.0")],
     [{"int": 1, "decimal": None}, None, {"int": None, "decimal": Decimal(2)}]),
    (datetime, NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=UTC),
     NOON.replace(hour=11, tzinfo=UTC)),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), NOON.replace(tzinfo=UTC),
     datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    (datetime, NOON.replace(fold=1), NOON, NOON),
    (datetime | bool, NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=UTC),
     {"datetime": NOON.replace(hour=11, tzinfo=UTC), "bool": None}),
    (tuple[datetime, Any, Decimal], (NOON.replace(tzinfo=BERLIN), {"a": [1]}, Decimal(1)),
     (NOON.replace(tzinfo=UTC), 0, Decimal(1)),
     {"_1": NOON.replace(hour=11, tzinfo=UTC), "_2": b"\x81\xa1a\x91\x01", "_3": Decimal(1)}),
    (datetime, datetime(1800, 1, 1, tzinfo=BERLIN), NOON.replace(tzinfo=UTC),
     datetime(1799, 12, 31, 23, 6, 32, tzinfo=UTC)),
    (dict[datetime, list[datetime]], {NOON.replace(tzinfo=BERLIN): [NOON.replace(tzinfo=BERLIN)]},
     {NOON.replace(tzinfo=UTC): []},
     [(NOON.replace(hour=11, tzinfo=UTC), [NOON.replace(hour=11, tzinfo=UTC)])]),
    (Order, Order(1, [], NOON.replace(tzinfo=BERLIN), {}), Order(2, [], NOON.replace(tzinfo=UTC)),
     {"id": 1, "lines": [], "at": NOON.replace(hour=11, tzinfo=UTC), "by": []}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "value", "first", "shown"), SHOWN, ids=str)
def test_an_equal_value_is_shown_and_its_bytes_are_kept_beside_it(
    spec: Any, value: Any, first: Any, shown: Any
) -> None:
    codec = codec_for(spec)
    blobs = [codec.encode(first), codec.encode(value)] * 2
    target = value_column(codec.schema)
    column, rest = target.typed(blobs)
    assert column.to_pylist()[1::2] == [shown, shown]
    assert rest in ([1, 3], [0, 2])
    back = target.stored(column)
    assert [row for row in range(4) if back[row] != blobs[row]] == rest


@pytest.mark.parametrize(
    ("first", "scale", "digits", "rest"),
    [
        (["1.5", "2.25", "3"], 18, 0, []),
        (["1.50", "2.25", "3.00", "4"], 18, 2, [3]),
        (["1.50", "2.25", "3.125", "4"], 18, 0, [0]),
        (["1.5", "2.50", "3.500", "4.25"], 18, 0, [1, 2]),
        (["1.50", "2.50", "3.500", "4.2525"], 18, 2, [2]),
        (["7", "-0"], 18, 0, [1]),
        (["1E+3"], 18, 0, [0]),
        (["1E-38", "123456789012.50", "4.25"], 18, 2, [0]),
        (["NaN", "1E-39", "Infinity"], 18, 0, [0, 1, 2]),
        (["0.000", "0E+50", "NaN"], 18, 3, [1, 2]),
        (["9" * 38, "0.5"], 18, 0, [0]),
        (["9" * 30, "0.5"], 18, 0, [0]),
        (["9" * 30, "0.5", "8" * 30], 1, 0, []),
        (["9" * 38, "9" * 37], 0, 0, []),
        ([str(Decimal(1) / 3), str(Decimal(10) / 7), "2"], 28, 0, []),
        (["0." + "1" * 30, "2"], 18, 0, [0]),
        (["0." + "1" * 30, "2", "0." + "2" * 31], 31, 0, []),
        (["1.1" + "0" * 25, "1.1"], 18, 0, [0]),
        (["1.1" + "0" * 16, "2.2" + "0" * 16, "1E-17"], 18, 17, []),
    ],
)
def test_the_first_decimals_decide_which_numbers_are_shown_and_which_texts_come_back(
    first: list[str], scale: int, digits: int, rest: list[int]
) -> None:
    codec = codec_for(Decimal)
    target = value_column(codec.schema)
    blobs = [codec.encode(Decimal(one)) for one in first]
    typed = target.typed(blobs)
    assert typed.column.type == pa.decimal128(38, scale)
    assert [one.digits for one in target.decimals()] == [digits]
    assert typed.rest == rest
    # They decide for all that follow.
    typed = target.typed([codec.encode(Decimal("0." + "1" * 37))])
    assert typed.column.type == target.arrow == pa.decimal128(38, scale)
    assert (typed.column.to_pylist(), typed.rest) == ([None], [0])


def test_a_datetime_without_a_zone_is_never_shown_as_one_with_a_zone() -> None:
    codec = codec_for(datetime)
    zoned = NOON.replace(tzinfo=BERLIN)
    for values in ([NOON, NOON, zoned], [zoned, zoned, NOON]):
        target = value_column(codec.schema)
        column, rest = target.typed(list(map(codec.encode, values)))
        assert column.is_valid().to_pylist() == [True, True, False]
        assert 2 in rest


def test_a_class_that_has_lost_a_field_shows_the_others_and_keeps_all_bytes() -> None:
    target = value_column(codec_for(Line).schema)
    fields = {"item": "tea", "price": "1.10", "tags": [], "gone": 1}
    column, rest = target.typed([msgspec.msgpack.encode(fields)])
    assert column.to_pylist() == [{"item": "tea", "price": Decimal("1.10"), "tags": []}]
    assert rest == [0]


def test_a_nan_beside_an_inexact_decimal_is_shown() -> None:
    codec = codec_for(tuple[Decimal, float])
    target = value_column(codec.schema)
    blobs = [codec.encode((Decimal(one), math.nan)) for one in ("0.50", "1")]
    column, rest = target.typed(blobs)
    assert (column.null_count, rest) == (0, [0])


def test_a_decimal_with_a_time_or_on_one_side_is_shown_with_its_bytes_beside_it() -> None:
    prices = list(map(Decimal, ("1.10", "1.1", "NaN", "2")))
    codec = timestamped(codec_for(Decimal))
    blobs = [codec.encode((price, 1_000)) for price in prices[:3]]
    blobs += [codec.encode((prices[3], None)), codec.encode((prices[1], 2**63 - 1))]
    column, rest = value_column(codec.schema).typed(blobs)
    shown = [None if one is None else one["value"] for one in column.to_pylist()]
    assert (shown, rest) == ([*prices[:2], None, prices[3], None], [0, 2, 4])
    sides = either(codec_for(Decimal), codec_for(list[Decimal]))
    blobs = [sides.encode((0, price)) for price in prices]
    blobs += [sides.encode((1, [price])) for price in prices]
    column, rest = value_column(sides.schema).typed(blobs)
    assert rest == [0, 2, 4, 6]
    assert column.to_pylist() == [
        *({"left": one, "right": None} for one in prices[:2]),
        None,
        {"left": prices[3], "right": None},
        *({"left": None, "right": [one]} for one in prices[:2]),
        None,
        {"left": None, "right": [prices[3]]},
    ]
