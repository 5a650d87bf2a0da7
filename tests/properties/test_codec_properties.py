"""What a state holds comes back the same, or is never taken."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import GenericAlias
from typing import Any, NamedTuple, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.serde.factory import codec_for

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]).map(ZoneInfo),
    st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s))),
    st.just(timezone(timedelta(hours=2), "EET")),
)
# Built by hand, since Hypothesis avoids local times that do not exist, and state does not.
datetimes = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    zones,
    st.sampled_from([0, 1]),
)


@dataclass
class Visit:
    url: str
    n: int
    at: datetime | None = None
    parts: tuple[float, ...] = ()


class Pair(NamedTuple):
    left: int
    right: Decimal | None


class Tree(msgspec.Struct):
    value: bytes
    children: list[Tree] = []


trees = st.recursive(
    st.builds(Tree, st.binary(max_size=3)),
    lambda inner: st.builds(Tree, st.binary(max_size=3), st.lists(inner, max_size=2)),
    max_leaves=4,
)

hashable = st.one_of(
    st.just((int, st.integers())),
    st.just((str, text)),
    st.just((bytes, st.binary(max_size=5))),
    st.just((bool, st.booleans())),
    st.just((date, st.dates())),
    st.just((UUID, st.uuids())),
    st.just((timedelta, st.timedeltas())),
    st.just((tuple[int, str], st.tuples(st.integers(), text))),
)

leaves = st.one_of(
    hashable,
    st.just((float, st.floats())),
    st.just((Decimal, st.decimals(allow_nan=False) | st.just(Decimal("NaN")))),
    st.just((datetime, datetimes)),
    st.just((time, st.times(timezones=st.none() | st.just(UTC)))),
    st.just(
        (
            Visit,
            st.builds(
                Visit,
                text,
                st.integers(),
                st.none() | datetimes,
                st.lists(st.floats(), max_size=2).map(tuple),
            ),
        )
    ),
    st.just((Pair, st.builds(Pair, st.integers(), st.none() | st.decimals(allow_nan=False)))),
    st.just((Tree, trees)),
)


def optional(inner):
    return inner.map(lambda typed: (Optional[typed[0]], st.none() | typed[1]))  # noqa: UP045


def containers(inner):
    return st.one_of(
        optional(inner),
        inner.map(lambda t: (of(list, t[0]), st.lists(t[1], max_size=3))),
        inner.map(lambda t: (of(tuple, t[0], ...), st.lists(t[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(
            lambda p: (of(tuple, p[0][0], p[1][0]), st.tuples(p[0][1], p[1][1]))
        ),
        st.tuples(hashable, inner).map(
            lambda p: (of(dict, p[0][0], p[1][0]), st.dictionaries(p[0][1], p[1][1], max_size=3))
        ),
        hashable.map(lambda t: (of(set, t[0]), st.sets(t[1], max_size=3))),
        hashable.map(lambda t: (of(frozenset, t[0]), st.frozensets(t[1], max_size=3))),
    )


def of(container, *parameters):
    return GenericAlias(container, parameters)


types = st.recursive(leaves, containers, max_leaves=4)


@st.composite
def typed_values(draw):
    spec, values = draw(types)
    return spec, draw(values)


def same(left, right):
    """Equal and of the same classes at every level; NaN is the same as NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float | Decimal) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, set | frozenset):
        return left == right and {type(item) for item in left} == {type(item) for item in right}
    if isinstance(left, Visit):
        return same(vars(left), vars(right))
    if isinstance(left, Tree):
        return left.value == right.value and same(left.children, right.children)
    if isinstance(left, datetime | time):
        # Equality would ignore the zone, the hour that is repeated, or both.
        return repr(left) == repr(right)
    return left == right and str(left) == str(right)


@given(typed_values())
def test_a_value_of_the_declared_type_comes_back_the_same(drawn):
    spec, value = drawn
    codec = codec_for(spec)
    codec.check(value)
    assert same(codec.decode(codec.encode(value)), value)


@given(typed_values())
def test_encoding_what_was_decoded_gives_the_same_bytes(drawn):
    spec, value = drawn
    codec = codec_for(spec)
    data = codec.encode(value)
    if codec.immutable:
        assert codec.encode(codec.decode(data)) == data


@given(types, types, st.data())
def test_a_value_of_another_type_is_refused_or_comes_back_the_same(declared, other, data):
    codec = codec_for(declared[0])
    value = data.draw(other[1])
    try:
        encoded = codec.encode(value)
    except StateValueError:
        return
    assert same(codec.decode(encoded), value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.integers() | st.tuples(text, st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.sampled_from([list, dict, list[Any], dict[str, Any], dict[int, list[Any]], tuple]), anything
)
def test_what_a_type_leaves_open_is_refused_or_comes_back_the_same(spec, value):
    codec = codec_for(spec)
    try:
        encoded = codec.encode(value)
    except StateValueError:
        return
    assert same(codec.decode(encoded), value)


@given(anything)
def test_pickled_values_come_back_the_same(value):
    codec = codec_for(None)
    assert same(codec.decode(codec.encode(value)), value)


@given(st.lists(leaves, min_size=2, max_size=3), st.data())
def test_a_union_is_refused_when_declared_or_tells_its_members_apart(members, data):
    spec = members[0][0]
    for member, _ in members[1:]:
        spec = spec | member
    try:
        codec = codec_for(spec)
    except StateDescriptorError:
        return
    for _, values in members:
        value = data.draw(values)
        assert same(codec.decode(codec.encode(value)), value)


@given(types)
def test_every_type_has_a_description_fit_for_json(typed):
    schema = codec_for(typed[0]).schema
    assert json.loads(json.dumps(schema)) == schema
