"""Values of an older schema that pass through tables are read as the store itself reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from holdfast import ValueStateDescriptor
from holdfast.config.backends import backend_named
from holdfast.state.key_groups import key_groups
from holdfast.state.restore import restore_store
from holdfast.state.store.snapshot import CANONICAL
from tests.support.state_tables import State

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Raw:
    x: bytes


@dataclass
class Anything:
    x: Any


class Optionals(TypedDict):
    a: NotRequired[int]
    b: int


@dataclass
class Defaults:
    b: int
    a: int | None = 5


@dataclass
class DefaultsInOrder:
    a: int | None = 5
    b: int = 0


@dataclass
class MayBeNone:
    a: int | None
    b: int


class Omitting(msgspec.Struct, omit_defaults=True):
    a: int | None = 3
    b: int = 0


class OmittingLater(msgspec.Struct, omit_defaults=True):
    a: int | None = None
    b: int = 0


class RawTuple(NamedTuple):
    x: bytes
    y: int


class AnyTuple(NamedTuple):
    x: Any
    y: int


CASES: list[tuple[str, Any, Any, Any]] = [
    ("bytes to Any", Raw, Raw(b"\x01\x02"), Anything),
    ("bytes to Any, valid", Raw, Raw(b"\x07"), Anything),
    ("list of bytes to Any", list[bytes], [b"\x07"], list[Any]),
    ("dict of bytes to Any", dict[str, bytes], {"a": b"\x07"}, dict[str, Any]),
    ("tuple of bytes to Any", RawTuple, RawTuple(b"\x07", 1), AnyTuple),
    ("missing to default", Optionals, {"b": 1}, DefaultsInOrder),
    ("None to omitted", MayBeNone, MayBeNone(None, 1), Omitting),
    ("None to omitted None", MayBeNone, MayBeNone(None, 1), OmittingLater),
    ("omitted to kept", Omitting, Omitting(3, 1), DefaultsInOrder),
    ("omitted to kept2", Omitting, Omitting(None, 1), DefaultsInOrder),
    ("literal", Literal["a"], "a", str),
]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("name", "old", "value", "new"), CASES, ids=[c[0] for c in CASES])
def test_an_old_value_is_the_same_after_a_canonical_savepoint(
    name: str, old: Any, value: Any, new: Any, backend: str, tmp_path: Path
) -> None:
    state = State(tmp_path, backend)
    handle = state.register(ValueStateDescriptor("s", old))
    state.current.key = "k"
    handle.update(value)
    state.keyed.commit("1-test")

    state = State(tmp_path, backend, epoch=2, version="1-test")
    handle = state.register(ValueStateDescriptor("s", new))
    state.current.key = "k"
    before = handle.value()
    tables = state.written()

    restore_store(
        backend_named(backend),
        [tables],
        tmp_path / "restored",
        version="r",
        key_groups=key_groups(0, 1, 128),
        whole=False,
        operator_state=None,
        kind=CANONICAL,
    )
    state = State(tmp_path, backend, epoch=3, store=tmp_path / "restored", version="r")
    handle = state.register(ValueStateDescriptor("s", new))
    state.current.key = "k"
    assert handle.value() == before
