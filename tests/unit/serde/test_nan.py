"""One object stands for all NaN, and one instance for all that hold one."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from decimal import Decimal

from holdfast.serde import nan
from holdfast.serde.nan import one_nan


@dataclass(frozen=True)
class Place:
    """A key with a NaN in it, or without."""

    name: str
    at: float | Decimal
    note: str = field(default="", compare=False)


def found(key: object, other: object) -> bool:
    """Whether a dictionary with one key has the other."""
    return one_nan(other) in {one_nan(key): None}


def test_an_instance_is_found_by_another_with_the_same_fields() -> None:
    assert found(Place("a", float("nan")), Place("a", float("-nan"), "b"))
    assert found(Place("a", Decimal("NaN")), Place("a", Decimal("-NaN7")))
    assert found((Place("a", float("nan")),), (Place("a", float("nan")),))
    assert not found(Place("a", float("nan")), Place("b", float("nan")))
    assert not found(Place("a", float("nan")), Place("a", Decimal("NaN")))


def test_an_instance_without_nan_stays_as_it_is() -> None:
    place = Place("a", 1.0)
    assert one_nan(place) is place


def test_instances_that_nobody_holds_are_forgotten() -> None:
    kept = one_nan(Place("kept", float("nan")))
    for number in range(100):
        one_nan(Place(str(number), float("nan")))
    gc.collect()
    assert len(nan._INSTANCES) <= 1
    assert one_nan(Place("kept", float("nan"))) is kept
