from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import TypeDeclarationError
from holdfast.types.arrow import ddl_of
from holdfast.types.ddl import parse_ddl, parse_json

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("string collate UTF8_LCASE", pa.string()),
        ("varchar(10)", pa.string()),
        ("char(3)", pa.string()),
        ("character(3)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("time", pa.time64("ns")),
        ("time(6)", pa.time64("ns")),
        ("timestamp", UTC),
        ("timestamp_ltz", UTC),
        ("timestamp_ntz", pa.timestamp("us")),
        ("timestamp without time zone", pa.timestamp("us")),
        ("void", pa.null()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric(38, 18)", pa.decimal128(38, 18)),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        ("ARRAY < Int >", pa.list_(pa.field("element", pa.int32()))),
        ("map<string,array<double>>", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("struct<a:int,b:string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<a int>", pa.struct([("a", pa.int32())])),
        ("struct<>", pa.struct([])),
    ],
)
def test_a_type_alone_is_a_type(name, arrow):
    assert parse_ddl(name) == arrow


def test_columns_are_a_schema():
    assert parse_ddl("url string, count bigint") == pa.schema(
        [("url", pa.string()), ("count", pa.int64())]
    )
    assert parse_ddl("url: string") == pa.schema([("url", pa.string())])


def test_names_of_types_may_be_names_of_columns():
    assert parse_ddl("date date, timestamp timestamp, day int").names == [
        "date",
        "timestamp",
        "day",
    ]


def test_backquoted_names_are_taken_as_they_are():
    assert parse_ddl("`a b` int, `c``d` int, `Ü-1` int").names == ["a b", "c`d", "Ü-1"]


def test_not_null_and_comments_are_read_at_every_level():
    text = "a int NOT NULL COMMENT 'it''s', s struct<b:int not null comment \"x\", c:int>"
    schema = parse_ddl(text)
    assert not schema.field("a").nullable
    assert schema.field("s").nullable
    assert [field.nullable for field in schema.field("s").type] == [False, True]


@pytest.mark.parametrize(
    ("text", "problem", "character"),
    [
        ("url strng, n bigint", "unknown type, found 'strng'", 5),
        ("a int b", "expected the end, or a comma and another column, found 'b'", 7),
        ("a int, ", "expected a column name, found the end", 8),
        ("a int,, b int", "expected a column name, found ','", 7),
        ("", "expected a type, found the end", 1),
        ("array<int", "expected '>', found the end", 10),
        ("map<int>", "expected ',', found '>'", 8),
        ("int(3)", "the type 'int' takes no parameters, found 'int'", 1),
        ("decimal(39,1)", "a decimal has 1 to 38 digits", 1),
        ("decimal(5,6)", "a decimal has 1 to 38 digits", 1),
        ("decimal(x)", "expected a number, found 'x'", 9),
        ("decimal(1,2,3)", "expected ')', found ','", 12),
        ("a int NOT b", "expected 'NULL', found 'b'", 11),
        ("a int COMMENT b", "expected the comment in quotes, found 'b'", 15),
        ("a ? int", "expected a name or a type, found '?'", 3),
        ("<int>", "expected a type, found '<'", 1),
        ("`` int", "expected a column name", 2),
    ],
)
def test_a_mistake_is_pointed_at(text, problem, character):
    with pytest.raises(TypeDeclarationError) as caught:
        parse_ddl(text)
    message, line, pointer = str(caught.value).split("\n")
    assert problem in message
    assert message.endswith(f"at character {character}")
    assert line == f"    {text}"
    assert pointer.index("^") - 4 == character - 1


@pytest.mark.parametrize("name", ["interval day to second", "interval", "variant", "geometry(0)"])
def test_types_without_a_python_form_are_refused_by_name(name):
    word = name.split()[0].split("(")[0]
    with pytest.raises(TypeDeclarationError, match=f"the type '{word}' cannot be used .*; store"):
        parse_ddl(f"a {name}")


def test_a_spark_type_is_read_from_its_json():
    spec = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long", "nullable": False, "metadata": {}},
            {
                "name": "b",
                "type": {"type": "array", "elementType": "decimal(5,2)", "containsNull": False},
                "nullable": True,
                "metadata": {},
            },
            {
                "name": "c",
                "type": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": "timestamp_ntz",
                    "valueContainsNull": False,
                },
                "nullable": True,
                "metadata": {},
            },
        ],
    }
    parsed = parse_json(spec)
    assert parsed.field("a") == pa.field("a", pa.int64(), nullable=False)
    assert parsed.field("b").type.value_type == pa.decimal128(5, 2)
    assert not parsed.field("b").type.value_field.nullable
    assert not parsed.field("c").type.item_field.nullable


def test_a_user_defined_type_is_refused_with_the_name_of_its_column():
    udt = {"name": "v", "type": {"type": "udt", "class": "x"}, "nullable": True, "metadata": {}}
    with pytest.raises(TypeDeclarationError, match="column 'v': the type 'udt' cannot be used"):
        parse_json({"type": "struct", "fields": [udt]})


@pytest.mark.parametrize(
    "text",
    [
        "bigint",
        "decimal(5,2)",
        "timestamp",
        "timestamp_ntz",
        "time",
        "array<int>",
        "map<string, double>",
        "struct<a: tinyint, b: array<binary>>",
    ],
)
def test_a_type_is_written_as_it_would_be_declared(text):
    assert ddl_of(parse_ddl(text)) == text


def test_a_large_type_is_written_as_the_common_one():
    assert ddl_of(pa.large_list(pa.large_string())) == "array<string>"
