"""State without a type, and state with a serializer of the user's own."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import (
    Any,
)

import pytest

from holdfast.errors import StateValueError
from holdfast.serde.factory import codec_for


@dataclass
class Click:
    url: str
    n: int
    x: float


class Complex:
    def serialize(self, value):
        return str(value).encode()

    def deserialize(self, data):
        return complex(data.decode())


def same(left, right):
    """Equal, of the same classes at every level, and the same to the eye."""
    return left == right and repr(left) == repr(right) and type(left) is type(right)


def refused(spec, value):
    codec = codec_for(spec)
    with pytest.raises(StateValueError) as caught:
        codec.encode(value)
    return str(caught.value)


@pytest.mark.parametrize("spec", [None, Any, object])
def test_without_a_type_values_are_pickled(spec):
    codec = codec_for(spec)
    assert codec.pickled
    assert not codec.immutable
    value = {"a": (1, {2}), "b": Click("/a", 1, 0.5)}
    codec.check(value)
    assert same(codec.decode(codec.encode(value)), value)
    assert pickle.loads(codec.encode(value)) == value


def test_a_value_that_does_not_pickle_is_refused():
    assert "which does not pickle" in refused(None, threading.Lock())


def test_a_serializer_of_the_users_own_is_used_as_it_is():
    codec = codec_for(Complex())
    codec.check(1j)
    assert codec.encode(1j) == b"1j"
    assert codec.decode(b"1j") == 1j
    assert codec.schema["class"] == f"{__name__}.Complex"
    assert not codec.pickled


def test_a_serializer_that_does_not_give_bytes_is_refused():
    class Wrong(Complex):
        def serialize(self, value):
            return str(value)

    assert "serialize must return bytes, and returned str" in refused(Wrong(), 1j)
