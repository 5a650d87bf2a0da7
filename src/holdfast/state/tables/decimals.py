"""Columns of decimals, which are text in MessagePack.

The store keeps their digits: "1.10" and "1.1" are different bytes. A column shows numbers, all
with the same number of digits after the point. Two numbers describe it:

* The scale of the column. Files of several subtasks are read together, and some programs round
  all numbers to the scale of the first file. So it is 18, as in Spark, for as many states as
  possible. Only if the first values would mostly be null it is another: usually 28, which
  Python's quotients have.
* The digits of a text, which the metadata of the file has. A number becomes the shortest text
  with at least so many digits after the point. The first values decide, so that most texts come
  back as they were: 2 for prices, 0 for texts without zeros at the end.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from holdfast.state.tables.shapes import Shape

_PRECISION: Final = 38
"""Most digits of a decimal that all Parquet readers have."""
_USUAL_SCALE: Final = 18
_SCALE_OF_QUOTIENTS: Final = 28
_SAMPLE: Final = 1000
"""How many of the first values decide; they lie evenly among them."""
_PLAIN: Final = 6
"""Most digits after the point with which no number is written with an exponent."""

_exactly: Final = Context(prec=_PRECISION, traps=[Inexact, InvalidOperation])


class DecimalColumn(Shape):
    """Decimals. A value that does not fit is null, and never rounded."""

    python = Decimal

    def __init__(self, arrow: pa.DataType | None = None) -> None:
        """Use this decimal type, if it is declared; texts then have all its digits."""
        self._arrow = arrow
        self.declared = arrow is not None
        self.digits: int | None = None if arrow is None else arrow.scale
        """Least digits after the point of a text; None before values or a file decide."""

    @override
    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`; the first call decides the type and the digits."""
        if self._arrow is None:
            finite = [value for value in values if value is not None and value.is_finite()]
            first = list(map(_Written.of, finite[:: max(1, len(finite) // _SAMPLE)]))
            self._arrow = pa.decimal128(_PRECISION, _scale(first))
            self.digits = _digits(first, self._arrow.scale)
        try:
            return pa.array(values, self._arrow)
        except pa.ArrowInvalid:
            return pa.array(_fitting(values, self._arrow), self._arrow)

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        # They were text in format 1.
        if not pa.types.is_decimal(array.type):
            texts: list[Any] = array.to_pylist()
            return texts
        if self.digits is None or self.digits > array.type.scale:
            raise ValueError(f"texts of {array.type} with {self.digits} digits after the point")
        for most in (self.digits, _PLAIN) if self.digits <= _PLAIN else ():
            # Some numbers may have more digits.
            with suppress(pa.ArrowInvalid):
                return _texts(array, self.digits, most)
        unit = Decimal(1).scaleb(-self.digits)
        return [None if value is None else _text(value, unit) for value in array.to_pylist()]

    @override
    def reads(self, found: pa.DataType) -> bool:
        if self.declared:
            return bool(found == self._arrow)
        is_text = pa.types.is_string(found) or pa.types.is_large_string(found)
        return bool(is_text or (pa.types.is_decimal128(found) and found.precision == _PRECISION))


def decimals_in(shape: Shape) -> list[DecimalColumn]:
    """The columns of decimals without a declared scale, in the order of the type."""
    if isinstance(shape, DecimalColumn):
        return [] if shape.declared else [shape]
    return [found for part in shape.parts for found in decimals_in(part)]


class _Written(NamedTuple):
    """How a finite decimal is written."""

    before: int
    """Digits before the point."""
    least: int
    """Digits after the point without zeros at the end."""
    after: int
    """Digits after the point; -1 with an exponent."""

    @staticmethod
    def of(value: Decimal) -> _Written:
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int), "a finite number has a number as its exponent"
        if not value:
            return _Written(0, 0, -exponent if exponent <= 0 else -1)
        zeros = next(place for place, digit in enumerate(reversed(digits)) if digit)
        before, least = max(0, len(digits) + exponent), max(0, -exponent - zeros)
        return _Written(before, least, -exponent if exponent <= 0 else -1)


def _scale(values: list[_Written]) -> int:
    """The usual scale; if it shows less than half of what another shows, the best other."""
    changes: Counter[int] = Counter()
    for value in values:
        changes[value.least] += 1
        changes[max(value.least, _PRECISION - value.before + 1)] -= 1
    shown = list(accumulate(changes[scale] for scale in range(_PRECISION + 1)))
    if 2 * shown[_USUAL_SCALE] >= max(shown):
        return _USUAL_SCALE
    others: list[int] = [_SCALE_OF_QUOTIENTS, *range(_PRECISION + 1)]
    return max(others, key=lambda scale: shown[scale])


def _digits(values: list[_Written], scale: int) -> int:
    """The smallest number of digits with which the most texts come back."""
    short = Counter(value.least for value in values if value.after == value.least)
    long = Counter(value.after for value in values if value.least < value.after <= scale)
    return max(
        (0, *sorted(long)),
        key=lambda digits: long[digits] + sum(n for least, n in short.items() if least >= digits),
    )


def _fitting(values: list[Decimal | None], arrow: pa.DataType) -> list[Decimal | None]:
    """The values in the scale of a column; None for those that are not exact in it."""
    unit = Decimal(1).scaleb(-arrow.scale)
    exactly = Context(prec=arrow.precision, traps=[Inexact, InvalidOperation])

    def fitting(value: Decimal | None) -> Decimal | None:
        if value is None or not value.is_finite():
            return None
        try:
            return value.quantize(unit, context=exactly)
        except (Inexact, InvalidOperation):
            return None

    return list(map(fitting, values))


def _texts(array: pa.Array, least: int, most: int) -> list[Any]:
    """The shortest texts with `least` to `most` digits after the point; None for null.

    Raises:
        pa.ArrowInvalid: A number has more of them.
    """
    texts = array.cast(pa.decimal128(array.type.precision, most)).cast(pa.string())
    if least < most:
        heads = pc.utf8_slice_codeunits(texts, 0, least - most)
        tails = pc.utf8_rtrim(pc.utf8_slice_codeunits(texts, least - most), "0")
        texts = pc.utf8_rtrim(pc.binary_join_element_wise(heads, tails, ""), ".")
    found: list[Any] = texts.to_pylist()
    return found


def _text(value: Decimal, unit: Decimal) -> str:
    """The shortest text with at least the digits of `unit`."""
    try:
        return str(value.quantize(unit, context=_exactly))
    except Inexact:
        return str(value.normalize(_exactly))
