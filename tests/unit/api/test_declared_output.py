"""What a function declares that it returns."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
)

import pytest

from holdfast.api.streams.output_type import declared_output
from holdfast.types.serializers import StateSerializer
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from decimal import Decimal as OnlyForTypeCheckers

    from holdfast.api.outputs import OutputTag


@dataclass
class Point:
    x: int
    y: float | None


def one(x: Any) -> Point: ...


def many(x: Any) -> Iterator[Point]: ...


def generated(x: Any) -> Generator[tuple[str, int], None, None]: ...


def tagged(x: Any) -> Iterator[Point | tuple[OutputTag, str]]: ...


def tagged_only(x: Any) -> Iterator[tuple[OutputTag, str]]: ...


def two_kinds(x: Any) -> Iterator[int | str | tuple[OutputTag, str]]: ...


def sometimes(x: Any) -> list[int] | None: ...


def pair(x: Any) -> tuple[int, str]: ...


def nothing(x: Any) -> None: ...


def unknown(x: Any) -> Iterator[OnlyForTypeCheckers]: ...


def untyped(x): ...


class Functions:
    def method(self, x: Any) -> Iterator[int]: ...

    def __call__(self, x: Any) -> str: ...


@functools.wraps(many)
def wrapped(x): ...


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        (many, Point),
        (generated, tuple[str, int]),
        (tagged, Point),
        (sometimes, int),
        (Functions().method, int),
        (functools.partial(many, 1), Point),
        (functools.partial(functools.partial(many), 1), Point),
        (wrapped, Point),
    ],
)
def test_the_item_of_a_returned_iterable_is_the_output(fn, spec):
    assert declared_output(fn, per_element=False) == StreamType.of(spec)


@pytest.mark.parametrize(
    ("fn", "spec"), [(one, Point), (Functions(), str), (int, int), (sometimes, list[int] | None)]
)
def test_what_a_function_of_one_element_returns_is_the_output(fn, spec):
    assert declared_output(fn, per_element=True) == StreamType.of(spec)


@pytest.mark.parametrize("per_element", [True, False])
@pytest.mark.parametrize("fn", [lambda x: x, untyped, nothing, len, unknown, Any])
def test_a_function_without_a_usable_annotation_declares_nothing(fn, per_element):
    assert declared_output(fn, per_element=per_element) is None


@pytest.mark.parametrize("fn", [tagged_only, two_kinds, one, pair, generated])
def test_an_annotation_that_names_no_single_columnar_item_declares_nothing(fn):
    per_element = fn is generated
    assert declared_output(fn, per_element=per_element) is None


def test_an_annotation_may_name_what_only_type_checkers_import():
    def fn(x):
        yield 1

    fn.__annotations__["return"] = "AsyncIterator[int] | Iterator[int]"
    assert declared_output(fn, per_element=False) is None
    fn.__annotations__["return"] = "Collection[int | tuple[OutputTag, str]]"
    assert declared_output(fn, per_element=False) == StreamType.of(int)


def test_an_annotation_may_name_a_class_of_the_enclosing_function():
    @dataclass
    class Local:
        a: int

    def fn(x: Any) -> Iterator[Local]:
        yield Local(1)

    declared = declared_output(fn, per_element=False)
    assert declared is not None
    assert declared.element is Local


def test_a_serializer_is_known_by_its_methods():
    class Text:
        def serialize(self, value):
            return value.encode()

        def deserialize(self, data):
            return data.decode()

    assert isinstance(Text(), StateSerializer)
    assert not isinstance("text", StateSerializer)
