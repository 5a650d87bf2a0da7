"""Random types, changed at random: old values are read as a simple model says."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Union
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serde.factory import codec_for
from holdfast.serde.reading import reader
from holdfast.state.schemas import MARK, SchemaHistory, as_stored, conversion, declare, evolving
from holdfast.types.compatibility import resolve, schema_id
from holdfast.types.serializers import StateCompatibility

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[[Any], Any]

BERLIN = ZoneInfo("Europe/Berlin")
SCALARS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers(-(2**70), 2**70)),
    "float": (float, st.floats(allow_nan=False)),
    "str": (str, st.text(max_size=3)),
    "bytes": (bytes, st.binary(max_size=3) | st.just(MARK)),
    "date": (date, st.dates()),
    "datetime": (
        datetime,
        st.datetimes(timezones=st.sampled_from([None, UTC, BERLIN])),
    ),
}
KINDS = ["dataclass", "struct", "array", "named_tuple", "typed_dict"]
ABSENT = object()


# A model of types. A value of one is plain: lists for sequences, dicts for classes.


@dataclass(frozen=True)
class Scalar:
    name: str


@dataclass(frozen=True)
class Sequence:
    item: Any
    cls: type = list


@dataclass(frozen=True)
class Dict:
    value: Any


@dataclass(frozen=True)
class Union_:
    members: tuple[Any, ...]
    """A type, and perhaps a second scalar of another class, and None."""


@dataclass(frozen=True)
class Field:
    name: str
    type: Any
    default: Any = ABSENT


@dataclass(frozen=True)
class Class:
    kind: str
    fields: tuple[Field, ...]


NONE = Scalar("None")


def fields_of(types: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Field, ...]]:
    names = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*(st.builds(Field, st.just(name), types) for name in chosen))
    )


TYPES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(sorted(SCALARS)).map(Scalar),
    lambda types: (
        st.builds(Sequence, types, st.sampled_from([list, tuple]))
        | st.builds(Dict, types)
        | types.filter(lambda one: not isinstance(one, Union_)).map(lambda t: Union_((t, NONE)))
        | st.builds(Class, st.sampled_from(KINDS), fields_of(types))
    ),
    max_leaves=8,
)


def python(model: Any) -> Any:
    """The type as Python has it."""
    match model:
        case Scalar(name):
            return type(None) if name == "None" else SCALARS[name][0]
        case Sequence(item, cls):
            return list[python(item)] if cls is list else tuple[python(item), ...]  # type: ignore[misc]
        case Dict(value):
            return dict[str, python(value)]  # type: ignore[misc]
        case Union_(members):
            return Union[tuple(map(python, members))]  # noqa: UP007
        case Class():
            return _class(model)
    raise AssertionError(model)


_made: dict[Class, Any] = {}


def _class(model: Class) -> Any:
    if model in _made:
        return _made[model]
    plain = [(f.name, python(f.type)) for f in model.fields if f.default is ABSENT]
    kept = [(f.name, python(f.type), made(f.type, f.default)) for f in model.fields
            if f.default is not ABSENT]  # fmt: skip
    match model.kind:
        case "typed_dict":
            optional = [(name, NotRequired[tree]) for name, tree, _ in kept]
            typed: Any = TypedDict
            found: Any = typed("Typed", dict(plain + optional))
        case "named_tuple":
            names = [name for name, *_ in [*plain, *kept]]
            named: Any = namedtuple
            found = named("Named", names, defaults=[d for *_, d in kept])
            found.__annotations__ = {name: tree for name, tree, *_ in [*plain, *kept]}
        case "dataclass":
            found = make_dataclass("Data", [*plain, *((n, t, _factory(d)) for n, t, d in kept)])
        case _:
            array = model.kind == "array"
            fields: Any = [*plain, *((n, t, _struct_factory(d)) for n, t, d in kept)]
            found = msgspec.defstruct("Struct", fields, array_like=array)
    _made[model] = found
    return found


def _factory(default: Any) -> Any:
    return field(default_factory=lambda: default)


def _struct_factory(default: Any) -> Any:
    return msgspec.field(default_factory=lambda: default)


def made(model: Any, plain: Any) -> Any:
    """The object that a plain value stands for."""
    match model:
        case Sequence(item, cls):
            return cls(made(item, inner) for inner in plain)
        case Dict(value):
            return {key: made(value, inner) for key, inner in plain.items()}
        case Union_(members):
            return None if plain is None else made(members[0], plain)
        case Class(kind, fields):
            values = {f.name: made(f.type, plain[f.name]) for f in fields if f.name in plain}
            return values if kind == "typed_dict" else python(model)(**values)
    return plain


def plain_of(model: Any, value: Any) -> Any:
    """The plain value that stands for an object, which has to be of the type."""
    match model:
        case Sequence(item, cls):
            assert type(value) is cls
            elements: Any = value
            return [plain_of(item, one) for one in elements]
        case Dict(inner):
            return {key: plain_of(inner, one) for key, one in value.items()}
        case Union_(members):
            return None if value is None else plain_of(members[0], value)
        case Class("typed_dict", fields):
            return {f.name: plain_of(f.type, value[f.name]) for f in fields if f.name in value}
        case Class(_, fields):
            assert type(value) is python(model)
            return {f.name: plain_of(f.type, getattr(value, f.name)) for f in fields}
    return value


def plain_values(model: Any) -> st.SearchStrategy[Any]:
    match model:
        case Scalar(name):
            return st.none() if name == "None" else SCALARS[name][1]
        case Sequence(item):
            return st.lists(plain_values(item), max_size=3)
        case Dict(value):
            return st.dictionaries(st.text(max_size=2), plain_values(value), max_size=3)
        case Union_(members):
            return st.one_of([plain_values(member) for member in members])
        case Class(_, fields):
            required = {f.name: plain_values(f.type) for f in fields if f.default is ABSENT}
            optional = {f.name: plain_values(f.type) for f in fields if f.default is not ABSENT}
            if model.kind == "typed_dict":
                return st.fixed_dictionaries(required, optional=optional)
            return st.fixed_dictionaries(required | optional)
    raise AssertionError(model)


ADDED = [
    (Scalar("int"), 7),
    (Union_((Scalar("str"), NONE)), None),
    (Scalar("datetime"), datetime(2026, 1, 1, tzinfo=BERLIN)),
]


@st.composite
def evolutions(draw: st.DrawFn, model: Any, step: int) -> Any:
    """A type that is allowed after another."""
    match model:
        case Sequence(item):
            return Sequence(draw(evolutions(item, step)), draw(st.sampled_from([list, tuple])))
        case Dict(value):
            return Dict(draw(evolutions(value, step)))
        case Union_((first, *rest)):
            inner = draw(evolutions(first, step))
            members = inner.members if isinstance(inner, Union_) else (inner,)
            return Union_(tuple(dict.fromkeys((*members, *rest))))
        case Class():
            return draw(_evolved_class(model, step))
    if draw(st.booleans()):
        return model
    more = [Scalar("int")] if model.name in ("float", "str", "date") and draw(st.booleans()) else []
    return Union_((model, *more, NONE))


@st.composite
def _evolved_class(draw: st.DrawFn, model: Class, step: int) -> Class:
    kept = [
        Field(old.name, draw(evolutions(old.type, step)), old.default)
        for old in model.fields
        if draw(st.integers(0, 3))
    ]
    # A name that was removed does not come back: the oldest values still have it.
    added = draw(st.lists(st.sampled_from("fg"), max_size=2, unique=True))
    kept += [Field(f"{letter}{step}", *draw(st.sampled_from(ADDED))) for letter in added]
    fields = draw(st.permutations(kept or [Field(f"z{step}", Scalar("int"), 1)]))
    # Fields with a default stand behind those without, as Python wants it.
    ordered = sorted(fields, key=lambda one: one.default is not ABSENT)
    return Class(draw(st.sampled_from([model.kind, *KINDS])), tuple(ordered))


def converted(old: Any, new: Any, plain: Any) -> Any:
    """What a plain value of one type is under another."""
    if plain is None:
        return None
    old, new = (one.members[0] if isinstance(one, Union_) else one for one in (old, new))
    match old, new:
        case Sequence(), Sequence():
            return [converted(old.item, new.item, one) for one in plain]
        case Dict(), Dict():
            return {key: converted(old.value, new.value, one) for key, one in plain.items()}
        case Class(), Class():
            types = {one.name: one.type for one in old.fields}
            found = {}
            for one in new.fields:
                if one.name in plain:
                    found[one.name] = converted(types[one.name], one.type, plain[one.name])
                elif new.kind != "typed_dict":
                    found[one.name] = one.default
            return found
    return plain


def exactly(plain: Any) -> Any:
    """A plain value in which 1, 1.0 and True are told apart, and zones are."""
    if isinstance(plain, dict):
        return {key: exactly(inner) for key, inner in plain.items()}
    return list(map(exactly, plain)) if isinstance(plain, list) else repr(plain)


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Types that follow each other."""
    models = [draw(TYPES)]
    for step in range(draw(st.integers(1, 3))):
        models.append(draw(evolutions(models[-1], step)))
    return models


@given(models=histories(), data=st.data())
def test_a_value_is_read_as_every_later_type(models: list[Any], data: st.DataObject) -> None:
    known: list[SchemaHistory] = []
    stored: list[tuple[bytes, Any, Any]] = []
    for model in models:
        codec = codec_for(python(model))
        declaration = declare("state", known, [codec])
        known = [declaration.history]
        if declaration.history.others:
            codec = evolving(codec, declaration.history, declaration.readers)
        for written, old, plain in stored:
            found = plain_of(model, codec.decode(written))
            assert exactly(found) == exactly(converted(old, model, plain))
        plain = data.draw(plain_values(model))
        stored.append((codec.encode(made(model, plain)), model, plain))


@given(old=TYPES, new=TYPES, data=st.data())
def test_what_is_said_to_be_readable_is_read_as_a_value_of_the_new_type(
    old: Any, new: Any, data: st.DataObject
) -> None:
    before, after = codec_for(python(old)), codec_for(python(new))
    found = resolve(as_stored([before.schema])[0], after.schema)
    assert (found.verdict == "incompatible") == bool(found.problems)
    if found.problems:
        return
    value = made(old, data.draw(plain_values(old)))
    read = reader(before.schema, after)(before.encode(value))
    assert after.decode(after.encode(read)) == read
    if found.verdict == "as is":
        assert before.encode(value) == before.encode(before.decode(after.encode(read)))


# Columns

COLUMNS: st.SearchStrategy[pa.DataType] = st.recursive(
    st.sampled_from([pa.int8(), pa.int32(), pa.float32(), pa.string(), pa.bool_()]),
    lambda types: (
        types.map(pa.list_)
        | types.map(lambda value: pa.map_(pa.string(), value))
        | fields_of(types).map(lambda fields: pa.struct([(f.name, f.type) for f in fields]))
    ),
    max_leaves=6,
)
WIDER = {pa.int8(): pa.int16(), pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def column_values(column: pa.DataType) -> st.SearchStrategy[Any]:
    of = pa.types
    if of.is_struct(column):
        return st.fixed_dictionaries(
            {field.name: st.none() | column_values(field.type) for field in column}
        )
    if of.is_map(column):
        values = st.none() | column_values(column.item_type)
        return st.dictionaries(st.text(max_size=2), values, max_size=3)
    if of.is_list(column):
        return st.lists(st.none() | column_values(column.value_type), max_size=3)
    if of.is_integer(column):
        return st.integers(-100, 100)
    if of.is_floating(column):
        return st.floats(allow_nan=False)
    return st.booleans() if of.is_boolean(column) else st.text(max_size=3)


def or_none(convert: Convert) -> Convert:
    return lambda plain: None if plain is None else convert(plain)


@st.composite
def column_evolutions(draw: st.DrawFn, column: pa.DataType) -> tuple[pa.DataType, Convert]:
    of = pa.types
    if of.is_map(column):
        inner, convert = draw(column_evolutions(column.item_type))
        some = or_none(convert)
        return pa.map_(pa.string(), inner), lambda p: {k: some(one) for k, one in p.items()}
    if of.is_list(column):
        inner, convert = draw(column_evolutions(column.value_type))
        some = or_none(convert)
        return pa.list_(inner), lambda plain: [some(one) for one in plain]
    if not of.is_struct(column):
        return draw(st.sampled_from([column, WIDER.get(column, column)])), lambda plain: plain
    converts: dict[str, Convert] = {"new": lambda plain: plain}
    fields = [("new", pa.date32())]
    for old in column:
        if draw(st.integers(0, 3)):
            inner, convert = draw(column_evolutions(old.type))
            converts[old.name] = or_none(convert)
            fields.append((old.name, inner))
    fields = draw(st.permutations(fields))
    return pa.struct(fields), lambda p: {n: converts[n](p.get(n)) for n, _ in fields}


def column_plain(column: pa.DataType, value: Any) -> Any:
    """What is read, with dicts in place of events."""
    if value is None:
        return None
    of = pa.types
    if of.is_struct(column):
        return {f.name: column_plain(f.type, v) for f, v in zip(column, value, strict=True)}
    if of.is_map(column):
        return {key: column_plain(column.item_type, inner) for key, inner in value.items()}
    return (
        [column_plain(column.value_type, one) for one in value] if of.is_list(column) else value
    )  # fmt: skip


@given(old=COLUMNS, data=st.data())
def test_columns_go_the_way_of_their_type(old: pa.DataType, data: st.DataObject) -> None:
    new, convert = data.draw(column_evolutions(old))
    plain = data.draw(column_values(old))
    before, after = codec_for(old), codec_for(new)
    read = reader(as_stored([before.schema])[0], after)
    assert exactly(column_plain(new, read(before.encode(plain)))) == exactly(convert(plain))


# Bytes that may begin with anything


class Raw:
    """Bytes behind a number of zeros that is the version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def serialize(self, value: bytes, /) -> bytes:
        return value + bytes(self.version)

    def deserialize(self, data: bytes, /) -> bytes:
        return data[: len(data) - self.version]

    def snapshot(self) -> dict[str, Any]:
        return {"version": self.version}

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        return StateCompatibility.after_migration(Raw(stored["version"]).deserialize)


def marks() -> list[bytes]:
    return [MARK + bytes.fromhex(schema_id([codec_for(Raw(v)).schema])) for v in range(4)]


MARKS = marks()
ODD = st.one_of(
    st.binary(max_size=4),
    st.tuples(st.lists(st.sampled_from([MARK, MARK[:1], *MARKS]), max_size=3).map(b"".join),
              st.binary(max_size=4)).map(b"".join),
)  # fmt: skip


class Source:
    """What one subtask stores, version after version."""

    def __init__(self) -> None:
        self.history: SchemaHistory | None = None
        self.stored: list[tuple[bytes, bytes]] = []

    def declare(self, version: int) -> Any:
        codec = codec_for(Raw(version))
        known = [] if self.history is None else [self.history]
        declaration = declare("raw", known, [codec])
        if self.history is not None:
            self.move(self.history, declaration.history)
        self.history = declaration.history
        if self.history.others:
            codec = evolving(codec, self.history, declaration.readers)
        return codec

    def move(self, old: SchemaHistory, new: SchemaHistory) -> None:
        change = conversion(old, new)
        if change is not None:
            self.stored = [(change(data), value) for data, value in self.stored]

    def write(self, version: int, values: list[bytes]) -> None:
        codec = self.declare(version)
        self.stored += [(codec.encode(value), value) for value in values]


WRITES = st.lists(st.tuples(st.integers(0, 3), st.lists(ODD, max_size=3)), max_size=4)


@given(writes=st.lists(WRITES, min_size=1, max_size=3), last=st.integers(0, 3))
def test_odd_bytes_of_joined_stores_are_read_as_they_were_written(
    writes: list[list[tuple[int, list[bytes]]]], last: int
) -> None:
    sources = []
    for mine in writes:
        sources.append(Source())
        for version, values in mine:
            sources[-1].write(version, values)
    together = Source()
    for source in sources:
        if source.history is not None:
            before = together.history
            together.history = source.history if before is None else before.joined(source.history)
    for source in sources:
        if source.history is not None and together.history is not None:
            source.move(source.history, together.history)
            together.stored += source.stored
    codec = together.declare(last)
    assert [codec.decode(data) for data, _ in together.stored] == [v for _, v in together.stored]
