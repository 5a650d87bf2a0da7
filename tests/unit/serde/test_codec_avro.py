"""State by Avro schemas: what it holds, and how the schemas may change."""

from __future__ import annotations

import json
import pickle
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast import AvroSchema
from holdfast.errors import (
    ConfigurationError,
    StateDescriptorError,
    StateValueError,
    TypeDeclarationError,
)
from holdfast.serde.factory import codec_for
from holdfast.serde.reading import reader, reading_of
from holdfast.state.schemas import as_stored
from holdfast.types.compatibility import resolve, schema_id


def record(*fields: Any, name: str = "Order", **more: Any) -> dict[str, Any]:
    """A record; each field is a name and a type, and a default perhaps."""
    described = [
        {"name": field[0], "type": field[1]} | ({"default": field[2]} if len(field) > 2 else {})
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": described} | more


def field(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": schema, **more}


def migrated(old: Any, new: Any, value: Any) -> Any:
    codec = codec_for(AvroSchema(old))
    return reader(as_stored([codec.schema])[0], codec_for(AvroSchema(new)))(codec.encode(value))


def problems(old: Any, new: Any) -> list[str]:
    found = resolve(codec_for(AvroSchema(old)).schema, codec_for(AvroSchema(new)).schema)
    assert found.verdict == ("incompatible" if found.problems else "after migration")
    return found.problems


TREE = record(("value", "long"), ("children", {"type": "array", "items": "Tree"}), name="Tree")
DATE = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("long", 2**63 - 1),
        ("string", "ü"),
        (["null", "double"], None),
        (["null", "double"], 0.5),
        ({"type": "array", "items": "int"}, [1, 2]),
        ({"type": "map", "values": ["null", "string"]}, {"a": None, "b": "x"}),
        (record(("id", "long"), ("tags", {"type": "array", "items": "string"})),
         {"id": 1, "tags": ["a"]}),
        (TREE, {"value": 1, "children": [{"value": 2, "children": []}]}),
        ({"type": "array", "items": TREE}, [{"value": 1, "children": []}]),
        (COLOR, "BLUE"),
        ({"type": "fixed", "name": "Id", "size": 2}, b"ab"),
        (DATE, date(2026, 1, 2)),
        (PRICE, Decimal("12.50")),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_value_comes_back(schema, value):
    for spec in (AvroSchema(schema), AvroSchema(json.dumps(schema))):
        codec = codec_for(spec)
        codec.check(value)
        assert codec.decode(codec.encode(value)) == value
        assert codec.schema["kind"] == "avro"
        assert not codec.immutable
        assert not codec.canonical
        assert as_stored([codec.schema]) == [codec.schema]


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("long", "a", "expected long"),
        ("long", 1.5, "expected long"),
        ("long", True, "expected long"),
        ("int", 2**40, "expected int"),
        ("null", 3, "expected null"),
        ("string", "\ud800", "surrogates"),
        (record(("id", "long")), {}, "id"),
        (record(("id", "long")), {"id": 1, "more": 2}, "more"),
        (record(("price", "double")), {"price": "1.5"}, "price"),
        (COLOR, "GREEN", "GREEN"),
    ],
)
def test_a_value_that_the_schema_does_not_hold_is_refused(schema, value, said):
    with pytest.raises(StateValueError, match="cannot hold") as caught:
        codec_for(AvroSchema(schema)).encode(value)
    assert said in str(caught.value)
    assert "HoldfastValue" not in str(caught.value)


def test_bytes_of_something_else_are_refused():
    with pytest.raises(StateValueError, match="do not match the Avro schema"):
        codec_for(AvroSchema(record(("id", "string")))).decode(b"\x10a")


@pytest.mark.parametrize("schema", ["{", "nope", 5, None])
def test_what_is_no_schema_is_refused_when_it_is_declared(schema):
    with pytest.raises(TypeDeclarationError, match="an Avro schema is JSON text"):
        AvroSchema(schema)


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"type": "record"}, {"a": 1}, ["nope"]])
def test_a_schema_that_is_not_valid_is_refused_when_it_is_used(schema):
    with pytest.raises(StateDescriptorError, match="not a valid Avro schema"):
        codec_for(AvroSchema(schema))


def test_a_schema_travels_and_is_compared_by_what_it_says():
    spec = AvroSchema(json.dumps(TREE))
    assert pickle.loads(pickle.dumps(spec)) == spec == AvroSchema(TREE)
    assert hash(spec) == hash(AvroSchema(TREE))


def test_without_fastavro_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigurationError, match=r"pip install holdfast\[avro\]"):
        codec_for(AvroSchema("long"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", {"type": "long"}),
        (record(("a", "long"), doc="x"), record(("a", "long", 5), doc="y", aliases=["Old"])),
        (record(("a", "long"), namespace="x"), record(("a", "long"), name="x.Order")),
    ],
)
def test_what_says_the_same_is_read_as_it_is(old, new):
    schemas = [codec_for(AvroSchema(schema)).schema for schema in (old, new)]
    assert resolve(*schemas).verdict == "as is"
    assert len({schema_id([schema]) for schema in schemas}) == 1


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", "float", 5, 5.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "ü", "ü".encode()),
        ("bytes", "string", b"x", "x"),
        ("long", ["null", "long"], 5, 5),
        (["null", "int"], ["string", "null", "long"], 5, 5),
        (["int", "long"], "long", 5, 5),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [5], [5]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 5}, {"a": 5}),
        (COLOR, COLOR | {"symbols": ["BLUE", "RED", "GREEN"]}, "RED", "RED"),
        (COLOR, COLOR | {"symbols": ["NONE", "RED"], "default": "NONE"}, "BLUE", "NONE"),
        (record(("a", "int"), ("b", "string")), record(("b", "string"), ("a", "long")),
         {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        (record(("a", "int"), ("b", "string")), record(("a", "int")), {"a": 1, "b": "x"}, {"a": 1}),
        (record(("a", "int")), record(("a", "int"), name="New", aliases=["Order"]),
         {"a": 1}, {"a": 1}),
        (record(("a", "int"), name="x.Order"), record(("a", "int"), name="y.Order"),
         {"a": 1}, {"a": 1}),
        (record(("a", "int")),
         {"type": "record", "name": "Order", "fields": [field("b", "long", aliases=["a"])]},
         {"a": 1}, {"b": 1}),
        (TREE, record(("children", {"type": "array", "items": "Tree"}), ("value", "double"),
                      ("name", "string", "?"), name="Tree"),
         {"value": 1, "children": [{"value": 2, "children": []}]},
         {"value": 1.0, "name": "?",
          "children": [{"value": 2.0, "name": "?", "children": []}]}),
        (record(("a", COLOR), ("b", "Color")),
         record(("b", ["null", COLOR | {"symbols": ["RED", "BLUE", "X"]}]), ("a", "Color")),
         {"a": "RED", "b": "BLUE"}, {"a": "RED", "b": "BLUE"}),
        ([record(("a", "int"), name="A"), record(("b", "int"), name="B")],
         [record(("b", "long"), ("c", "int", 7), name="B"), record(("a", "int"), name="A")],
         {"b": 1}, {"b": 1, "c": 7}),
    ],
)  # fmt: skip
def test_a_value_is_read_by_avros_own_rules(old, new, value, expected):
    assert problems(old, new) == []
    found = migrated(old, new, value)
    assert found == expected
    assert repr(found) == repr(expected) or isinstance(found, dict)


def test_defaults_are_values_and_not_json():
    new = record(
        ("a", "int"),
        ("bytes", "bytes", "\u00ff"),
        ("day", DATE, 1),
        ("price", PRICE, "\u0001\u0000"),
        ("none", ["null", "string"], None),
        ("text", ["null", "string"], "x"),
        ("double", "double", 1),
        ("list", {"type": "array", "items": DATE}, [0]),
        ("map", {"type": "map", "values": "bytes"}, {"k": "\u0001"}),
        ("inner", record(("x", "int", 3), ("y", "bytes"), name="Inner"), {"y": "z"}),
        ("again", "Inner", {"x": 4, "y": "z"}),
        ("color", COLOR, "RED"),
    )
    assert migrated(record(("a", "int")), new, {"a": 1}) == {
        "a": 1,
        "bytes": b"\xff",
        "day": date(1970, 1, 2),
        "price": Decimal("2.56"),
        "none": None,
        "text": "x",
        "double": 1.0,
        "list": [date(1970, 1, 1)],
        "map": {"k": b"\x01"},
        "inner": {"x": 3, "y": b"z"},
        "again": {"x": 4, "y": b"z"},
        "color": "RED",
    }


def test_a_default_that_could_be_changed_is_not_shared():
    old = codec_for(AvroSchema(record(("a", "int"))))
    new = AvroSchema(record(("a", "int"), ("tags", {"type": "array", "items": "string"}, [])))
    read = reader(old.schema, codec_for(new))
    read(old.encode({"a": 1}))["tags"].append("changed")
    assert read(old.encode({"a": 1})) == {"a": 1, "tags": []}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("long", "int", ["value: was long, is int"]),
        ("long", "string", ["value: was long, is string"]),
        (["null", "long"], "long", ["value: was null, is long"]),
        ("string", ["null", "long"], ["value: was string, is [null, long]"]),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"},
         ["value[]: was string, is int"]),
        ({"type": "map", "values": "string"}, {"type": "map", "values": "int"},
         ["value[value]: was string, is int"]),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"},
         ["value: was map of int, is array of int"]),
        (COLOR, COLOR | {"symbols": ["RED"]}, ["Color: has lost BLUE, and has no default symbol"]),
        ({"type": "fixed", "name": "Id", "size": 2}, {"type": "fixed", "name": "Id", "size": 3},
         ["Id: had 2 bytes, has 3"]),
        ("int", DATE, ["value: was int, is int-date; a logical type cannot change"]),
        (PRICE, PRICE | {"scale": 3},
         ["value: was bytes-decimal-6-2, is bytes-decimal-6-3; a logical type cannot change"]),
        (record(("a", "int"), name="A"), record(("a", "int"), name="B"),
         ["B: was record A, is record B; a record keeps its name, or has the old one among its "
          "aliases"]),
        (record(("a", "string"), ("lines", {"type": "array", "items":
                record(("price", "string"), name="Line")})),
         record(("a", "long"), ("b", "long"), ("lines", {"type": "array", "items":
                record(("price", "long"), name="Line")})),
         ["Order.a: was string, is long", "Order.b: is new and has no default; give it one",
          "Order.lines[].price: was string, is long"]),
        (record(("a", "int"), ("b", "int")),
         {"type": "record", "name": "Order", "fields": [field("b", "int", aliases=["a"])]},
         ["Order.b: a and b are stored, and only one is read"]),
        (TREE, record(("value", "string"), ("children", {"type": "array", "items": "Tree"}),
                      name="Tree"), ["Tree.value: was long, is string"]),
    ],
)  # fmt: skip
def test_what_avro_cannot_resolve_is_refused_before_a_value_is_read(old, new, expected):
    assert problems(old, new) == expected
    assert reading_of(codec_for(AvroSchema(old)).schema, codec_for(AvroSchema(new))).decode is None


def test_an_avro_schema_and_a_type_are_not_compatible():
    found = resolve(codec_for(AvroSchema("long")).schema, codec_for(int).schema)
    assert found.problems == [
        "value: was stored by an Avro schema, is declared by a Python type"
    ]  # fmt: skip
