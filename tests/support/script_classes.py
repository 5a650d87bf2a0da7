"""Run as a script: ships its own classes, as a program does, and writes them to its output.

Given the word `used`, it first uses them as the types of a state, which leaves traces on them.
"""

from __future__ import annotations

import enum
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

import msgspec

from holdfast.serde.factory import codec_for
from holdfast.spark.serialization import dump_function

T = TypeVar("T")


class Color(enum.Enum):
    """A class of names."""

    RED = "red"


class Level(enum.IntEnum):
    """A class of numbers."""

    LOW = 1


@dataclass
class Plain:
    """A dataclass, with a field that has no default."""

    a: int
    b: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WithPayloads:
    """A dataclass that cannot be changed."""

    a: int
    color: Color = Color.RED


@dataclass
class Box(Generic[T]):
    """A dataclass of any type."""

    content: T


class Row(NamedTuple):
    """A named tuple."""

    a: int
    stage: Level = Level.LOW


class Entry(TypedDict):
    """A dict of known keys."""

    row: Row


class Base(msgspec.Struct, kw_only=True, tag=True, rename="camel", frozen=True):
    """A Struct that others inherit from."""

    some_name: int = 1


class Node(Base, omit_defaults=True, frozen=True):
    """A Struct that contains itself, and counts its instances."""

    made: ClassVar[list[int]] = []

    value: WithPayloads
    numbers: list[int] = msgspec.field(default_factory=list)
    following: Node | None = None
    other: str = msgspec.field(default="x", name="elsewhere")

    def __post_init__(self) -> None:
        Node.made.append(self.value.a)

    def last(self) -> Node:
        return self if self.following is None else self.following.last()


class Pair(msgspec.Struct, Generic[T], array_like=True):
    """A Struct of any type."""

    first: T
    second: T


class Outer:
    """Has a class inside."""

    @dataclass
    class Inner:
        """A class inside another."""

        a: int


@dataclass
class Everything:
    """All of them."""

    plain: Plain
    box: Box[int]
    entry: Entry
    node: Node
    pair: Pair[str]
    inner: Outer.Inner


def sample() -> Everything:
    """A value that has all classes in it."""
    node = Node(value=WithPayloads(1), following=Node(value=WithPayloads(2), some_name=3))
    return Everything(Plain(1), Box(2), {"row": Row(3)}, node, Pair("a", "b"), Outer.Inner(4))


def schema_of(kind: Any) -> str:
    """The description of a type; a class inside another loses the name of that on its way."""
    return msgspec.json.encode(codec_for(kind).schema).decode().replace("Outer.", "")


def check(schema: str, stored: bytes) -> None:
    """Use the classes where they have been shipped to, and hold them against these."""
    assert schema_of(Everything) == schema
    codec = codec_for(Everything)
    assert codec.encode(sample()) == stored
    value = codec.decode(stored)
    assert value == sample()
    assert value.node.last().some_name == 3
    assert value.node.last().value.color is Color.RED
    assert Node.made == [2, 1] * 3
    with_default = msgspec.json.decode(b'{"a": 1}', type=Plain)
    assert with_default == Plain(1, [])
    try:
        msgspec.json.decode(b"{}", type=Plain)
    except msgspec.ValidationError:
        return
    raise AssertionError("a field without a default has got one")


def use() -> tuple[str, bytes]:
    """Use the classes as types of a state; what describes them, and a value as it is stored."""
    codec = codec_for(Everything)
    stored = codec.encode(sample())
    codec.decode(stored)
    Node.made.clear()
    return schema_of(Everything), stored


if __name__ == "__main__":
    if sys.argv[1] == "used":
        use()
    shipped = dump_function(check, "the check")
    sys.stdout.buffer.write(pickle.dumps((shipped, *use())))
