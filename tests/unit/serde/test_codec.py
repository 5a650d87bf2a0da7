from __future__ import annotations

import enum
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest

from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.serde.codec import Codec
from holdfast.serde.factory import codec_for

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers

BERLIN = ZoneInfo("Europe/Berlin")
T = TypeVar("T")


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Pairs(enum.Enum):
    A = (1, 2)


@dataclass
class Click:
    url: str
    n: int
    x: float


@dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple[str, ...] = ()
    c: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FrozenOutside:
    items: list[int]


@dataclass
class Node:
    value: int
    next: Node | None = None
    at: datetime | None = None


@dataclass
class Private:
    _a: int
    b: int = field(init=False, default=3)


class Point(NamedTuple):
    x: int
    y: float = 0.0


OtherPoint = namedtuple("OtherPoint", "x y")
WRONG: Any = "x"
Titled = Annotated[list[int], msgspec.Meta(title="n")]


class Struct(msgspec.Struct):
    url: str
    n: int


class FrozenStruct(msgspec.Struct, frozen=True):
    a: int


class Cat(msgspec.Struct, tag=True, array_like=True):
    lives: int


class Dog(msgspec.Struct, tag=True, array_like=True):
    name: str


class Positive(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(gt=0)]


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Unresolved:
    a: OnlyForTypeCheckers


class Text(str):
    pass


class Complex:
    def serialize(self, value):
        return str(value).encode()

    def deserialize(self, data):
        return complex(data.decode())


class OddZone(tzinfo):
    def utcoffset(self, when):
        return timedelta(hours=1)

    def dst(self, when):
        return None

    def tzname(self, when):
        return "odd"


def same(left, right):
    """Equal, of the same classes at every level, and the same to the eye."""
    return left == right and shown(left) == shown(right) and type(left) is type(right)


def shown(value):
    # Equal sets may iterate in different orders.
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


def refused(spec, value):
    codec = codec_for(spec)
    with pytest.raises(StateValueError) as caught:
        codec.encode(value)
    return str(caught.value)


# What comes back.

EXACT: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**400]),
    (float, [0.0, -0.0, 0.1, math.inf]),
    (str, ["", "\x00é\U0001f600"]),
    (bytes, [b"", b"\xff"]),
    (bytearray, [bytearray(b"x")]),
    (bool, [True, False]),
    (Decimal, [Decimal("1.50"), Decimal("-0"), Decimal("1E+100"), Decimal("-Infinity")]),
    (date, [date.min, date.max]),
    (time, [time(1, 2, 3, 4), time(1, tzinfo=UTC), time(1, fold=1), time(1, tzinfo=BERLIN)]),
    (timedelta, [timedelta.min, timedelta.max, timedelta(-1, 5, 7)]),
    (UUID, [UUID(int=7)]),
    (type(None), [None]),
    (int | None, [None, 5, 2**99]),
    (int | float, [1, 1.0]),
    (bool | int | str, [True, 1, "1"]),
    (Decimal | int | float, [Decimal(1), 1, 1.0]),
    (Literal["a", 3], ["a", 3]),
    (Annotated[int, msgspec.Meta(title="n")] | None, [None, 1]),
    (tuple[bool, Annotated[int, msgspec.Meta(title="n")]], [(True, 1), (True, 2**70)]),
    (Color, [Color.RED]),
    (Level, [Level.LOW]),
    (list[int], [[], [1, 2**70]]),
    (Sequence[int], [[1]]),
    (tuple[int, ...], [(), (1, 2)]),
    (tuple[int, str], [(1, "a")]),
    (set[str], [set(), {"a", "b"}]),
    (frozenset[tuple[int, ...]], [frozenset({(1, 2), ()})]),
    (dict[int, str], [{}, {2: "b", 1: "a"}]),
    (dict[tuple[int, Color], list[date]], [{(2**70, Color.RED): [date(2024, 1, 1)]}]),
    (dict[float | None, bool], [{None: True, 0.5: False}]),
    (dict[bytes, dict[UUID, Decimal]], [{b"x": {UUID(int=1): Decimal("1.0")}}]),
    (Click, [Click("/a", 1, 0.5), Click("/a", 2**70, 0.5)]),
    (Frozen, [Frozen(1, ("a",), frozenset({1}))]),
    (Node, [Node(1, Node(2, None, datetime(2024, 1, 1, tzinfo=BERLIN)))]),
    (Private, [Private(1)]),
    (Point, [Point(1, 0.5)]),
    (Struct, [Struct("/a", 2**70)]),
    (Cat | Dog, [Cat(9), Dog("Rex"), Cat(2**70)]),
    (Positive, [Positive(1)]),
    (Movie, [{"title": "M"}, {"title": "M", "year": 1931}]),
    (Box[int], [Box(1), Box(2**70)]),
    (list[Box[Color]], [[Box(Color.RED)]]),
    (list[Click | None], [[None, Click("/a", 1, 0.5)]]),
    (dict[str, Any], [{"a": [1, None, {"b": b"x", (1, "t"): 2**80}], "c": 0.5}]),
    (list, [[1, [True, "x"]]]),
    (dict, [{1: "a", None: {}}]),
    (namedtuple("Bare", "a b"), []),
    (
        datetime,
        [
            datetime.min,
            datetime.max,
            datetime(2024, 1, 1, fold=1),
            datetime.min.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2), "EET")),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "Z")),
            datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
            datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
            datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        ],
    ),
]


@pytest.mark.parametrize(
    ("spec", "value"), [(spec, value) for spec, values in EXACT for value in values]
)
def test_a_value_comes_back_as_it_was(spec, value):
    codec = codec_for(spec)
    data = codec.encode(value)
    assert type(data) is bytes
    assert same(codec.decode(data), value)
    codec.check(value)


def test_nan_comes_back():
    assert math.isnan(codec_for(float).decode(codec_for(float).encode(math.nan)))
    assert codec_for(Decimal).decode(codec_for(Decimal).encode(Decimal("sNaN"))).is_snan()


def test_the_order_of_a_dict_is_kept():
    codec = codec_for(dict[str, int])
    assert list(codec.decode(codec.encode({"b": 1, "a": 2}))) == ["b", "a"]


def test_common_values_have_the_plain_form_of_message_pack():
    assert codec_for(int).encode(5) == b"\x05"
    assert codec_for(Point).encode(Point(1, 0.5)) == msgspec.msgpack.encode([1, 0.5])
    assert codec_for(Struct).encode(Struct("a", 1)) == msgspec.msgpack.encode({"url": "a", "n": 1})


def test_the_wide_form_is_marked_by_a_byte_message_pack_never_starts_with():
    wide = codec_for(int).encode(2**64)
    assert wide == b"\xc1\xc7\x09\x01" + b"\x01" + bytes(8)
    moment = codec_for(datetime).encode(datetime(2024, 1, 1, tzinfo=BERLIN))
    assert moment[:1] == b"\xc1"
    assert b"Europe/Berlin" in moment


def test_a_class_may_gain_and_lose_fields_that_have_defaults():
    older = codec_for(Old).encode(Old(1, 2))
    assert codec_for(New).decode(older) == New(1, "later")
    assert codec_for(New).decode(codec_for(Old).encode(Old(2**70, 2))) == New(2**70, "later")


@dataclass
class Old:
    a: int
    gone: int


@dataclass
class New:
    a: int
    added: str = "later"


# What is refused.


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, "1"),
        (int, Level.LOW),
        (int, None),
        (float, 1),
        (str, Text("a")),
        (str, b"a"),
        (bytes, bytearray(b"a")),
        (bytes, "a"),
        (date, datetime(2024, 1, 1)),
        (datetime, date(2024, 1, 1)),
        (Color, "r"),
        (Level, 1),
        (Literal["a", 3], "b"),
        (Literal[1], True),
        (int | None, "x"),
        (list[int], (1,)),
        (list[int], {1}),
        (tuple[int, ...], [1]),
        (tuple[int, str], (1, "a", 2)),
        (set[int], frozenset({1})),
        (dict[str, int], OrderedDict(a=1)),
        (dict[str, int], defaultdict(int, a=1)),
        (dict[str, int], Counter("a")),
        (list[int], deque([1])),
        (Click, Struct("/a", 1)),
        (Click, ("/a", 1, 0.5)),
        (Point, (1, 0.5)),
        (Point, OtherPoint(1, 0.5)),
        (Movie, {}),
        (Movie, {"title": "M", "other": 1}),
        (Movie, OrderedDict(title="M")),
    ],
)
def test_a_value_of_another_class_is_refused(spec, value):
    message = refused(spec, value)
    assert message.startswith("a state declared ")
    assert f"({type(value).__name__})" in message
    if type(value) is not codec_for(spec).exact_type and not isinstance(spec, type(Literal["a"])):
        with pytest.raises(StateValueError, match="a state declared "):
            codec_for(spec).check(value)


@pytest.mark.parametrize(
    ("spec", "value", "place"),
    [
        (list[int], [1, True], "True (bool) at [1], which is declared int"),
        (list[str], ["a", Text("b")], "'b' (Text) at [1], which is declared str"),
        (list[int | None], [None, "x"], "'x' (str) at [1], which is declared int | None"),
        (tuple[int, str], (1, 2), "2 (int) at [1], which is declared str"),
        (dict[int, str], {"k": "v"}, "'k' (str) at [key 'k'], which is declared int"),
        (dict[str, list[int]], {"k": [0.5]}, "0.5 (float) at ['k'][0], which is declared int"),
        (Titled, ["x"], "'x' (str) at [0], which is declared int"),
        (Click, Click("/a", WRONG, 0.5), "'x' (str) at .n, which is declared int"),
        (Node, Node(1, Node(2, Node(WRONG))), "'x' (str) at .next.next.value"),
        (Point, Point(1, 2), "2 (int) at .y, which is declared float"),
        (Movie, {"title": "M", "year": "x"}, "'x' (str) at ['year'], which is declared int"),
        (dict[str, Any], {"k": (1,)}, "(1,) (tuple) at ['k'], which is declared any"),
        (list, [{"k": {1}}], "{'k': {1}} (dict) at [0], which is declared any"),
        (dict[str, Any], {"k": date(2024, 1, 1)}, "(date) at ['k'], which is declared any"),
    ],
)
def test_a_value_within_a_value_is_named_by_its_path(spec, value, place):
    assert place in refused(spec, value)


def test_the_advice_fits_the_mistake():
    assert "write float(value)" in refused(float, 1)
    assert "write int(value)" in refused(int, True)
    assert "write value.item()" in refused(int, np.int64(1))
    assert "an untyped place holds None, bool," in refused(list, [(1,)])
    assert "not valid Unicode text" in refused(str, "\ud800")
    assert "not valid Unicode text" in refused(list[str], ["\ud800"])


def test_a_zone_of_another_class_is_refused():
    assert "cannot hold datetime" in refused(datetime, datetime(2024, 1, 1, tzinfo=OddZone()))


def test_a_limit_of_the_type_is_held_when_a_value_is_written():
    assert "breaks a limit of its declared type: Expected `int` >= 1" in refused(
        Positive, Positive(-1)
    )


def test_a_long_value_is_shortened_in_the_message():
    assert len(refused(int, "x" * 10_000)) < 250


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (complex, "state cannot hold the type complex; declare a dataclass, or pass an object"),
        (deque, "state cannot hold the type deque"),
        (list[complex], "state cannot hold the type complex"),
        (str | bytes, "may not contain more than one str-like type"),
        (list | set, "may not contain more than one array-like"),
        (Click | Node, "may not contain more than one dataclass"),
        (Pairs, "Enums must contain either all str or all int values"),
        (Unresolved, "names 'OnlyForTypeCheckers', which cannot be found"),
        (msgspec.Raw, "state cannot hold the type"),
        (Complex, "Complex is a serializer class; pass an instance of it"),
    ],
)
def test_a_type_that_cannot_be_held_exactly_is_refused_when_declared(spec, message):
    with pytest.raises(StateDescriptorError, match=message):
        codec_for(spec)


def test_bytes_of_another_type_are_refused():
    for data in (codec_for(str).encode("a"), b"", b"\xc1", b"\xc1\xa1a"):
        with pytest.raises(StateValueError, match="the stored bytes are not of the declared type"):
            codec_for(int).decode(data)


# What is known of a codec.


@pytest.mark.parametrize(
    "spec",
    [
        int, float, str, bytes, bool, Decimal, date, datetime, UUID, Color, int | None,
        tuple[int, ...], tuple[int, str], frozenset[str], Point, Frozen, FrozenStruct,
        tuple[Frozen, ...], Literal["a"],
    ],
)  # fmt: skip
def test_a_type_whose_values_cannot_change_is_immutable(spec):
    assert codec_for(spec).immutable


@pytest.mark.parametrize(
    "spec",
    [
        bytearray, list[int], set[int], dict[str, int], Click, Struct, Movie, tuple[list[int], int],
        FrozenOutside, Any, Box[int], int | list[int], tuple[Any, ...], Complex(), "a int",
    ],
)  # fmt: skip
def test_a_type_whose_values_may_change_is_not(spec):
    assert not codec_for(spec).immutable


def test_equal_values_of_a_canonical_type_have_equal_bytes():
    codec = codec_for(frozenset[str])
    assert codec.canonical
    letters = "abcdefghijklmnop"
    assert codec.encode(frozenset(letters)) == codec.encode(frozenset(reversed(letters)))
    for spec in (Decimal, datetime, float, list[int], tuple[int, Decimal]):
        assert not codec_for(spec).canonical


def test_the_exact_type_is_the_single_class_that_needs_no_check():
    assert codec_for(int).exact_type is int
    assert codec_for(Click).exact_type is Click
    assert codec_for(Movie).exact_type is dict
    assert codec_for(int | None).exact_type is None
    assert codec_for(None).exact_type is None


@pytest.mark.parametrize("spec", [spec for spec, _ in EXACT] + [None, Complex(), "a int", Cat])
def test_the_schema_is_json_with_a_version(spec):
    schema = codec_for(spec).schema
    assert schema["format"] == (2 if schema["kind"] == "columns" else 1)
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_describes_classes_by_their_fields():
    assert codec_for(Node).schema["type"] == {
        "class": f"{__name__}.Node",
        "kind": "dataclass",
        "wire": "map",
        "fields": [
            {"name": "value", "type": "int", "required": True},
            {
                "name": "next",
                "type": {"union": [{"ref": f"{__name__}.Node"}, "none"]},
                "required": False,
            },
            {"name": "at", "type": {"union": ["datetime", "none"]}, "required": False},
        ],
    }
    assert codec_for(Cat).schema["type"]["tag"] == "Cat"
    assert codec_for(Cat).schema["type"]["wire"] == "array"
    assert codec_for(Color).schema["type"] == {"enum": f"{__name__}.Color", "values": ["r", "b"]}
    assert codec_for(dict[str, tuple[int, ...]]).schema["type"] == {
        "dict": ["str", {"tuple_of": "int"}]
    }


def test_a_codec_is_its_own_declaration():
    codec = codec_for(int)
    assert isinstance(codec, Codec)
    assert codec_for(codec) is codec
