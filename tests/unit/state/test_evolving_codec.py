"""Values that were written under other schemas, read as today's."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from holdfast.errors import StateDescriptorError, StateError, StateMigrationError, StateValueError
from holdfast.serde.factory import codec_for
from holdfast.serde.reading import reader, reading_of
from holdfast.serde.tagged import either, timestamped
from holdfast.state import schemas as schema_history
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.schemas import (
    HEAD,
    MARK,
    SchemaHistory,
    as_stored,
    change_entries,
    conversion,
    declare,
    evolving,
)
from holdfast.state.ttl.layout import ttl_codec
from holdfast.types.compatibility import schema_id
from holdfast.types.serializers import EvolvingStateSerializer, StateCompatibility, StateSerializer
from tests.unit.types.test_schema_resolution import record

BERLIN = ZoneInfo("Europe/Berlin")


def migrated(old: Any, new: Any, value: Any) -> Any:
    """A value, written under `old` and read under `new`."""
    codec = codec_for(old)
    return reader(as_stored([codec.schema])[0], codec_for(new))(codec.encode(value))


class Old(NamedTuple):
    a: int
    b: str
    c: float


class New(NamedTuple):
    c: float
    a: int
    when: datetime = datetime(2026, 1, 1, tzinfo=BERLIN)
    tags: list[str] = ["new"]  # noqa: RUF012


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class Camel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    the_number: int
    new_one: int = 3


class CamelArray(msgspec.Struct, rename="camel", array_like=True):
    new_one: int = 3
    the_number: int = 0


class OldArray(msgspec.Struct, array_like=True, tag="old"):
    a: int
    b: int


class NewArray(msgspec.Struct, array_like=True, tag="new", tag_field="kind"):
    b: int
    c: list[int] = msgspec.field(default_factory=list)
    a: int = 0


@dataclass
class Numbered:
    theNumber: int
    gone: int


class Cat(msgspec.Struct, tag=True):
    lives: int


class Kitten(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Pets(NamedTuple):
    pet: Cat | Dog | None
    n: int


class FlippedPets(NamedTuple):
    n: int
    pet: Cat | Dog | None


class Loose(TypedDict, total=False):
    a: int
    b: str


class Size(enum.Enum):
    SMALL = 1


class Sizes(enum.Enum):
    LARGE = 2
    SMALL = 1


@dataclass
class Node:
    value: int
    next: Node | None = None


class Link(NamedTuple):
    next: Link | None
    value: int
    weight: float = 1.0


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (int, int | None, 2**70, 2**70),
        (int, int | float, 5, 5),
        (float, int | float, 2.0, 2.0),
        (Literal["a"], str, "a", "a"),
        (Size, Sizes, Size.SMALL, Sizes.SMALL),
        (list[int], tuple[int, ...], [1, 2**64], (1, 2**64)),
        (tuple[int, str], list[int | str], (1, "a"), [1, "a"]),
        (set[int], frozenset[int], {1, 2}, frozenset({1, 2})),
        (bytes, bytearray, b"x", bytearray(b"x")),
        (list[int], list[Any], [1, 2], [1, 2]),
        (dict[str, Any], dict[str, Any] | None, {"a": [None]}, {"a": [None]}),
        ("int", "bigint", -5, -5),
        ("float", "double", 0.1, 0.1),
        ("decimal(4,2)", "decimal(9,3)", Decimal("1.10"), Decimal("1.10")),
        ("a int, b string", "b string, a bigint, c date", (1, "x"), ("x", 1, None)),
        ("a int, b string", "b string", (1, None), (None,)),
        (
            "a array<struct<b: int, c: int>>, d map<string, struct<e: int>>",
            "d map<string, struct<f: int, e: int>>, a array<struct<c: int>>",
            ([(1, 2), None], {"k": (3,), "n": None}),
            ({"k": (None, 3), "n": None}, [(2,), None]),
        ),
        ("a timestamp, b int", "b int, a timestamp", (datetime(2026, 1, 1, tzinfo=BERLIN), 1),
         (1, datetime(2026, 1, 1, tzinfo=BERLIN))),
        (Old, New, Old(1, "x", 0.5), New(0.5, 1)),
        (Old, New, Old(2**70, "x", 0.5), New(0.5, 2**70)),
        (list[Old], list[New], [Old(1, "x", 0.5)], [New(0.5, 1)]),
        (Old | None, New | None, None, None),
        (record("R", ("a", int), ("gone", str)), Closed, None, None),
        (OldArray, NewArray, OldArray(1, 2), NewArray(2, [], 1)),
        (Numbered, Camel, Numbered(5, 6), Camel(5)),
        (Numbered, CamelArray, Numbered(5, 6), CamelArray(3, 5)),
        (Cat, Kitten, Cat(9), Kitten(9)),
        (Cat, Cat | Dog, Cat(9), Cat(9)),
        (Pets, FlippedPets, Pets(Cat(9), 1), FlippedPets(1, Cat(9))),
        (Pets, FlippedPets, Pets(Dog("Rex"), 1), FlippedPets(1, Dog("Rex"))),
        (Pets, FlippedPets, Pets(None, 1), FlippedPets(1, None)),
        (Node, Link, Node(1, Node(2)), Link(Link(None, 2), 1)),
        (Link, Node, Link(Link(None, 2**70), 1), Node(1, Node(2**70))),
        (Loose, record("R", ("a", int, 7), ("b", str, "-")), {"a": 1}, None),
    ],
)  # fmt: skip
def test_a_value_of_an_old_type_is_read_as_one_of_the_new(old, new, value, expected):
    if new is Closed:
        value, expected = old(1, "x"), Closed(1)
    elif old is Loose:
        expected = new(1, "-")
    found = migrated(old, new, value)
    assert found == expected
    assert type(found) is type(expected) or isinstance(found, tuple)
    assert codec_for(new).decode(codec_for(new).encode(found)) == expected


class Leaves(NamedTuple):
    day: date
    moment: datetime
    zoned: datetime
    hour: time
    length: timedelta
    id: UUID
    price: Decimal
    data: bytes
    byday: dict[date, dict[tuple[int, str], set[UUID]]]


class TurnedLeaves(NamedTuple):
    byday: dict[date, dict[tuple[int, str], set[UUID]]]
    data: bytes
    price: Decimal
    id: UUID
    length: timedelta
    hour: time
    zoned: datetime
    moment: datetime
    day: date


@pytest.mark.parametrize("zone", [None, UTC, BERLIN])
def test_every_kind_of_leaf_survives_a_conversion(zone):
    number = UUID(int=5)
    day, moment = date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6)
    old = Leaves(
        day,
        moment,
        moment.replace(tzinfo=zone),
        time(1, 2),
        timedelta(days=3, microseconds=4),
        number,
        Decimal("1.500"),
        b"\xc1\xc1",
        {day: {(1, "a"): {number}}},
    )
    found = migrated(Leaves, TurnedLeaves, old)
    assert found == TurnedLeaves._make(reversed(old))
    assert repr(found) == repr(TurnedLeaves._make(reversed(old)))


def test_a_default_that_could_be_changed_is_not_shared():
    first, second = (migrated(Old, New, Old(1, "x", 0.5)) for _ in range(2))
    first.tags.append("changed")
    assert second.tags == ["new"]
    assert New(0.0, 1).tags == ["new"]


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T], frozen=True):
    content: T


@dataclass(frozen=True)
class Jar(Generic[T]):
    content: T
    label: str = ""


def test_the_parameter_of_a_class_may_widen():
    assert migrated(Box[int], Box[int | None], Box(5)) == Box(5)
    assert migrated(Box[int], Jar[int | str], Box(5)) == Jar(5)
    assert codec_for(Box[int]).immutable
    assert codec_for(Jar[int]).immutable
    with pytest.raises(StateMigrationError, match=r"content: was int, is str"):
        migrated(Box[int], Jar[str], Box(5))


def test_classes_of_one_name_are_told_apart():
    first = record("Row", ("a", int))
    second = record("Row", ("row", first), ("n", str))
    described = codec_for(second).schema["type"]
    assert described["fields"][0]["type"]["class"] == f"{described['class']} (2)"
    third = record("Row", ("n", str), ("row", record("Row", ("a", int | None), ("b", int, 1))))
    found = migrated(second, third, second(first(5), "x"))
    assert (found.n, found.row.a, found.row.b) == ("x", 5, 1)


def test_bytes_that_are_not_of_the_stored_type_are_refused():
    read = reader(codec_for(Old).schema, codec_for(New))
    for data in (b"\x05", b"\xc1\xc1", b"\x93\x01\xa1x", b""):
        with pytest.raises(StateValueError):
            read(data)


def test_parts_of_an_element_are_converted_each():
    old, new = timestamped(either(codec_for(Old), codec_for(int))), timestamped(
        either(codec_for(New), codec_for(int | None))
    )  # fmt: skip
    read = reader(as_stored([old.schema])[0], new)
    assert read(old.encode(((0, Old(1, "x", 0.5)), 7))) == ((0, New(0.5, 1)), 7)
    assert read(old.encode(((1, 5), None))) == ((1, 5), None)
    bad = timestamped(either(codec_for(str), codec_for(int)))
    assert reading_of(old.schema, bad).decode is None
    for stored, codec in ((codec_for(int), new), (new, codec_for(int))):
        assert reading_of(stored.schema, codec).resolution.verdict == "incompatible"


# Serializers


class Version1:
    def serialize(self, value, /):
        return str(value).encode()

    def deserialize(self, data, /):
        return int(data)


class Version2(EvolvingStateSerializer):
    """Hexadecimal; reads decimal numbers of the version before, which had no snapshot."""

    def serialize(self, value, /):
        return b"%x" % value

    def deserialize(self, data, /):
        return int(data, 16)

    def snapshot(self):
        return {"base": 16}

    def compatibility(self, stored, /):
        match stored:
            case {"base": 16}:
                return StateCompatibility.as_is()
            case {"base": base}:
                return StateCompatibility.incompatible(f"base {base} is unknown")
        return StateCompatibility.after_migration(int)


class Base8(Version2):
    def snapshot(self):
        return {"base": 8}


class Renamed(Version2):
    def snapshot(self):
        return {"base": 16, "since": 3}


class Mute(Version1):
    def snapshot(self):
        return {"base": 10}


def test_a_serializer_without_a_say_reads_what_its_own_class_wrote():
    old = codec_for(Version1())
    assert reading_of(old.schema, codec_for(Version1())).resolution.verdict == "as is"
    (problem,) = reading_of(old.schema, codec_for(Mute())).resolution.problems
    assert problem.startswith(f"value: was written by {__name__}.Version1, is declared with")
    grown = codec_for(Mute()).schema | {"snapshot": {"base": 11}}
    (problem,) = reading_of(grown, codec_for(Mute())).resolution.problems
    assert "has another snapshot" in problem
    assert codec_for(Mute()).schema["snapshot"] == {"base": 10}
    assert isinstance(Version1(), StateSerializer)
    assert not isinstance(Version1(), EvolvingStateSerializer)


def test_a_serializer_says_how_it_reads_what_another_wrote():
    new = codec_for(Version2())
    assert isinstance(Version2(), EvolvingStateSerializer)
    assert new.schema["snapshot"] == {"base": 16}
    first = reading_of(codec_for(Version1()).schema, new)
    assert first.resolution.verdict == "after migration"
    assert first.decode is not None
    assert first.decode(b"255") == 255
    assert new.decode(b"ff") == 255
    renamed = reading_of(new.schema, codec_for(Renamed()))
    assert renamed.resolution.verdict == "as is"
    other = reading_of(codec_for(Base8()).schema, new)
    assert other.resolution.problems == [
        f"value: {__name__}.Version2 cannot read it: base 8 is unknown"
    ]
    assert reading_of(codec_for(int).schema, new).resolution.verdict == "incompatible"


def test_what_a_serializer_says_is_checked():
    class Vague(Version2):
        def compatibility(self, stored, /):
            return True

    class Listed(Version2):
        def snapshot(self):
            return [16]

    class Opaque(Version2):
        def snapshot(self):
            return {"base": object()}

    with pytest.raises(StateDescriptorError, match="must return a StateCompatibility, and retu"):
        reading_of(codec_for(Version1()).schema, codec_for(Vague()))
    with pytest.raises(StateDescriptorError, match="snapshot must return a dict"):
        codec_for(Listed())
    with pytest.raises(StateDescriptorError, match="must return a JSON value"):
        codec_for(Opaque())


# Values of several schemas

NUMBER, OPTIONAL, BOTH = (
    [codec_for(spec).schema] for spec in (int, int | None, int | str | None)
)  # fmt: skip


def test_values_of_the_first_schema_are_bare_and_others_are_marked():
    history = declare("n", [SchemaHistory(NUMBER)], [codec_for(int | None)])
    codec = evolving(codec_for(int | None), history.history, history.readers)
    mark = MARK + bytes.fromhex(schema_id(OPTIONAL))
    assert codec.encode(5) == mark + b"\x05"
    assert codec.decode(mark + b"\x05") == 5
    assert codec.decode(b"\x06") == 6
    assert codec.decode(codec_for(int).encode(2**70)) == 2**70
    assert codec.immutable
    assert codec.exact_type is None
    assert not codec.canonical
    codec.check(None)
    with pytest.raises(StateValueError, match="cannot hold 'x'"):
        codec.encode("x")
    with pytest.raises(StateValueError, match="the schema 00000000, which its store does not kn"):
        codec.decode(MARK + bytes(4) + b"\x05")


def test_a_type_may_change_again_and_again():
    history = SchemaHistory(NUMBER)
    for spec in (int | None, int | str | None):
        history = declare("n", [history], [codec_for(spec)]).history
    assert history.now == schema_id(BOTH)
    assert list(history.known()) == [None, schema_id(OPTIONAL), schema_id(BOTH)]
    assert history.declared == BOTH
    assert list(history.earlier()) == [schema_id(NUMBER), schema_id(OPTIONAL)]


def test_a_type_may_go_back_to_what_it_was():
    one, two = record("P", ("x", int)), record("P", ("x", int), ("y", int, 0))
    first = SchemaHistory([codec_for(one).schema])
    second = declare("p", [first], [codec_for(two)]).history
    back = declare("p", [second], [codec_for(one)])
    assert back.history == SchemaHistory(first.first, second.others, None)
    codec = evolving(codec_for(one), back.history, back.readers)
    assert codec.encode(one(1)) == codec_for(one).encode(one(1))
    marked = MARK + bytes.fromhex(schema_id([codec_for(two).schema]))
    assert codec.decode(marked + codec_for(two).encode(two(1, 2))) == one(1)


def test_all_problems_with_all_schemas_are_named_once():
    history = SchemaHistory(NUMBER).declaring(OPTIONAL)
    with pytest.raises(StateMigrationError) as caught:
        declare("n", [history], [codec_for(str)])
    assert str(caught.value).splitlines() == [
        "state 'n' was written with the type of an earlier program and cannot be read as the type "
        "that is declared now:",
        "  value: was int, is str",
        "  value: was int | None, is str",
        "Declare a type that can hold the stored values (see docs/schema-evolution.md), or give "
        "the state another name to start empty",
    ]


@pytest.mark.parametrize("key", [int | None, str])
def test_the_keys_of_a_map_do_not_change(key):
    known = SchemaHistory([codec_for(int).schema, codec_for(int).schema])
    with pytest.raises(StateMigrationError, match=r"keys: .*; the keys of a map cannot change"):
        declare("m", [known], [codec_for(int | None), codec_for(key)])


def test_the_class_of_a_maps_keys_may_be_renamed():
    here, there = (record(name, ("x", int), frozen=True) for name in ("Here", "There"))
    known = SchemaHistory(as_stored([codec_for(int).schema, codec_for(here).schema]))
    assert declare("m", [known], [codec_for(int), codec_for(there)]).history == known


def test_histories_are_joined_and_the_first_schema_stays():
    mine = SchemaHistory(NUMBER).declaring(BOTH)
    other = SchemaHistory(OPTIONAL)
    joined = mine.joined(other)
    assert joined == SchemaHistory(NUMBER, mine.others | {schema_id(OPTIONAL): OPTIONAL}, mine.now)
    assert other.joined(mine).first == OPTIONAL
    assert other.joined(mine).now == mine.now
    assert set(other.joined(mine).others) == {schema_id(NUMBER), schema_id(BOTH)}
    assert mine.joined(mine) == mine
    assert SchemaHistory(NUMBER).joined(SchemaHistory(NUMBER)) == SchemaHistory(NUMBER)


def test_two_schemas_with_one_id_are_refused(monkeypatch):
    monkeypatch.setattr(schema_history, "schema_id", lambda schemas: "00000000")
    with pytest.raises(StateError, match="schemas of a state have the same id 00000000"):
        SchemaHistory(NUMBER).declaring(OPTIONAL)


def test_bare_values_are_marked_where_another_schema_is_the_first():
    plain, evolved = SchemaHistory(NUMBER), SchemaHistory(NUMBER).declaring(BOTH)
    target = SchemaHistory(OPTIONAL).joined(evolved)
    mark = MARK + bytes.fromhex(schema_id(NUMBER))
    other = MARK + bytes.fromhex(schema_id(BOTH)) + b"\x05"
    for source in (plain, evolved):
        change = conversion(source, target)
        assert change is not None
        assert change(b"\x05") == mark + b"\x05"
        assert (change(other) == other) == (source is evolved)
    assert conversion(plain, evolved) is None
    assert conversion(evolved, evolved) is None


def test_bytes_of_a_serializer_that_look_marked_are_marked_themselves():
    free = [codec_for(Version1()).schema]
    plain = SchemaHistory(free)
    evolved = plain.declaring([codec_for(Version2()).schema])
    change = conversion(plain, evolved)
    assert change is not None
    mark = MARK + bytes.fromhex(schema_id(free))
    assert change(b"5") == b"5"
    assert change(MARK + b"5") == mark + MARK + b"5"
    assert conversion(evolved, evolved) is None
    assert conversion(plain, plain) is None


class Raw(EvolvingStateSerializer):
    """Any bytes, and in a second version all of them reversed."""

    def __init__(self, version):
        self.version = version

    def serialize(self, value, /):
        return value if self.version == 1 else value[::-1]

    def deserialize(self, data, /):
        return data if self.version == 1 else data[::-1]

    def snapshot(self):
        return {"version": self.version}

    def compatibility(self, stored, /):
        return StateCompatibility.after_migration(Raw(stored["version"]).deserialize)


@pytest.mark.parametrize("value", [b"", b"\xc1", MARK, MARK + bytes(4), MARK * 9])
def test_whatever_bytes_a_serializer_gives_are_read_again(value):
    first, second = codec_for(Raw(1)), codec_for(Raw(2))
    plain = SchemaHistory(as_stored([first.schema]))
    declaration = declare("raw", [plain], [second])
    change = conversion(plain, declaration.history)
    assert change is not None
    codec = evolving(second, declaration.history, declaration.readers)
    assert codec.decode(change(first.encode(value))) == value
    assert codec.decode(codec.encode(value)) == value
    # And back to the first version, whose own bytes may look like anything.
    own = MARK + bytes.fromhex(declaration.history.now or "")
    back = declare("raw", [declaration.history], [first])
    assert back.history.now is None
    codec = evolving(first, back.history, back.readers)
    assert codec.decode(codec.encode(own + value)) == own + value
    assert codec.decode(change(first.encode(own + value))) == own + value


@pytest.mark.parametrize("timed", [True, False])
def test_the_value_in_an_entry_is_changed_and_nothing_else(timed):
    codec = ttl_codec(codec_for(bytes)) if timed else codec_for(bytes)

    def stored(value, none=False):
        return codec.encode((5, None if none else value)) if timed else value

    def change(data):
        return data[:-1] + b"!"

    def changed(kind):
        return change_entries(kind, timed=timed, change=change)

    for kind in ("value", "reducing", "aggregating"):
        assert changed(kind)(stored(b"ab")) == stored(b"ab")[:-1] + b"!"
    chunk = pack_chunk([stored(b"ab"), stored(b"cd")])
    assert unpack_chunk(changed("list")(chunk)) == [
        stored(b"ab")[:-1] + b"!",
        stored(b"cd")[:-1] + b"!",
    ]
    assert changed("map")(b"\x01" + stored(b"ab")) == b"\x01" + stored(b"ab")[:-1] + b"!"
    none = b"\x01" + stored(b"", none=True) if timed else b"\x00"
    assert changed("map")(none) == none


def test_a_mark_has_six_bytes():
    assert len(MARK + bytes.fromhex(schema_id(NUMBER))) == HEAD
