"""Keys of one operator have one type, whichever of them come together."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import KeyedProcessFunction, ValueStateDescriptor
from holdfast.errors import KeyTypeError, NullKeyError
from holdfast.serde.key_shapes import KeyShape, KeyTypes
from holdfast.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = datetime(2026, 11, 15, 12, 30)


class Level(IntEnum):
    """Numbers with names."""

    LOW = 1


ALIKE: list[list[Any]] = [
    [1, 2, Level.LOW],
    [True, False],
    [1.0, float("nan")],
    ["a", ""],
    [b"a"],
    [date(2026, 1, 1)],
    [AT.replace(tzinfo=UTC)],
    [AT],
    [Decimal(1)],
    [(1, "a"), (None, "b"), (2, None)],
    [(True, "a"), (None, None)],
    [(1.0, "a")],
    [(1, "a", 1), (None, None, None)],
    [(1,)],
    [()],
    [(AT, 1), (AT, None)],
    [(AT.replace(tzinfo=UTC), 1)],
]
"""Keys of one type each; those of any two lists are of two types, nulls aside."""


def seen(*batches: list[Any]) -> str | None:
    types = KeyTypes()
    for batch in batches:
        types.check(batch)
    return None if types.shape is None else types.shape.name


@pytest.mark.parametrize("keys", ALIKE, ids=repr)
def test_keys_of_one_type_fit_together_in_any_order(keys: list[Any]) -> None:
    shape = seen(keys)
    for order in permutations(keys):
        assert seen(list(order)) == seen(*([key] for key in order)) == shape
        assert seen(list(order), list(order)) == shape


@pytest.mark.parametrize("ones", ALIKE, ids=repr)
def test_keys_of_two_types_are_refused_together_and_one_after_the_other(ones: list[Any]) -> None:
    one = ones[0]
    for other in (keys[0] for keys in ALIKE if keys is not ones):
        for batches in ([[one, other]], [[one], [other]], [[one] * 3, [one, one, other]]):
            with pytest.raises(KeyTypeError, match="let the key function always return the same"):
                seen(*batches)
        with pytest.raises(KeyTypeError, match="but the stored state of this operator has"):
            KeyTypes(KeyShape.of(one)).check([other])


def test_the_first_key_of_another_type_is_the_one_that_is_named() -> None:
    types = KeyTypes()
    assert types.mismatch([1, 2, 3, True, "a", 1.0]) == 3
    assert types.refusal(True).startswith(
        "key True is a bool, but the keys of this operator are int"
    )
    assert types.mismatch([4, 5]) is None


def test_what_cannot_be_a_key_is_said_to_be_none() -> None:
    with pytest.raises(KeyTypeError, match="list cannot be a key"):
        seen([1, [1]])
    with pytest.raises(KeyTypeError, match="list cannot be a key"):
        seen([(1, [1])])
    with pytest.raises(NullKeyError):
        seen([1, None])


def test_stored_keys_of_another_type_are_refused_with_what_to_do() -> None:
    types = KeyTypes(KeyShape("tuple[int, ?]"))
    types.join(KeyShape("tuple[?, str]"))
    assert types.shape == KeyShape("tuple[int, str]")
    with pytest.raises(KeyTypeError, match=r"str in this store, and tuple\[int, str\] elsewhere"):
        types.join(KeyShape("str"))


def test_a_key_unlike_the_stored_ones_is_told_apart_from_mixed_keys() -> None:
    advice = "let all keys be str as before, or give the operator another uid"
    types = KeyTypes(KeyShape("str"))
    assert types.refusal(1).startswith(
        f"key 1 is an int, but the stored state of this operator has str keys; {advice}"
    )
    # The store may be opened after the first key.
    types = KeyTypes()
    types.check([1])
    with pytest.raises(KeyTypeError, match=f"a key is an int, but the stored .* {advice}"):
        types.join(KeyShape("str"))
    types = KeyTypes(KeyShape("tuple[str, ?]"))
    types.check([("a", 1)])
    assert "the keys of this operator are tuple[str, int]" in types.refusal(("a", "b"))
    assert "the stored state of this operator has tuple[str, ?] keys" in types.refusal((1, 1))


# In a function


class Count(KeyedProcessFunction):
    """Counts the elements of every key."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[int]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


class Silent(KeyedProcessFunction):
    """Has no state."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key()


EQUAL = [(1, True), (True, 1), (1, 1.0), (1.0, 1), ((1, "a"), (True, "a")), ((1.0, 2), (1, 2))]


@pytest.mark.parametrize(("one", "other"), EQUAL)
@pytest.mark.parametrize("pause", ["none", "batch", "epoch"])
def test_keys_that_python_takes_for_one_are_refused_whenever_they_come(
    one: Any, other: Any, pause: str
) -> None:
    assert one == other
    with OperatorHarness(Count(), key=lambda e: e) as harness:
        if pause == "none":
            elements = [one, other]
        else:
            harness.push(one)
            elements = [other]
        if pause == "epoch":
            harness.end_epoch()
        with pytest.raises(KeyTypeError) as caught:
            harness.push(*elements)
    text = str(caught.value)
    others = "stored state" if pause == "epoch" else "keys"
    described = KeyShape.of(other).described()
    assert f"key {other!r} is {described}, but the {others} of this operator" in text
    assert f"row: {other!r}" in text
    assert text.startswith("operator 'Count'")


def test_keys_of_two_types_are_refused_where_there_is_no_state_too() -> None:
    with OperatorHarness(Silent(), key=lambda e: e) as harness, pytest.raises(KeyTypeError):
        harness.push(1, 1.0)


def test_state_is_not_shown_for_an_equal_key_of_another_type() -> None:
    with OperatorHarness(Count(), key=lambda e: e) as harness:
        harness.push(1)
        assert harness.state("count", 1) == 1
        with pytest.raises(KeyTypeError):
            harness.state("count", True)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (((1, None), "a"), ((1, 2), "a"), "tuple[tuple[int, int], str]"),
        ((None, 1), (("x", 2), 1), "tuple[tuple[str, int], int]"),
        (((1, 2), "a"), ((1, "b"), "a"), None),
        ((1, (2, 3)), ((1, 2), 3), None),
    ],
)
def test_null_components_of_tuples_within_tuples_fit_any_type(
    one: Any, other: Any, both: str | None
) -> None:
    for first, second in ((one, other), (other, one)):
        found = KeyShape.of(first).joined(KeyShape.of(second))
        assert (None if found is None else found.name) == both
