"""Codecs of Avro schemas, in Avro's binary form without a header.

Their description contains the schema with full names, as `fastavro` parses it:

    {"format": 1, "kind": "avro", "schema": {...}}

Fields missing in old values get the default of the declared schema, converted from JSON to
the value that Avro reads.
"""

from __future__ import annotations

from copy import deepcopy
from io import BytesIO
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError, StateDescriptorError, StateValueError
from holdfast.serde.codec import Codec, Reading, let_pass
from holdfast.types.avro import named_types, type_of
from holdfast.types.compatibility import resolve
from holdfast.types.mismatch import shown
from holdfast.types.schema import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.codec import Decode, Encode
    from holdfast.types.avro import AvroSchema, Schema


def avro_codec(spec: AvroSchema) -> Codec:
    """Codec of an Avro schema.

    Raises:
        ConfigurationError: `fastavro` is not installed.
        StateDescriptorError: The schema is not valid.
    """
    avro = _library()
    schema = _parsed(avro, spec.schema)
    described = {"format": FORMAT, "kind": "avro", "schema": schema}
    decode = _decoder(avro, schema)
    return Codec(
        encode=_encoder(avro, schema),
        decode=decode,
        # `encode` checks all of a value.
        check=let_pass,
        schema=described,
        reading=lambda stored: _reading(avro, stored, described, decode),
    )


def _library() -> Any:
    try:
        import fastavro
        import fastavro.validation
    except ImportError as error:
        raise ConfigurationError(
            f"AvroSchema needs the package fastavro here ({error}); run "
            "`pip install holdfast[avro]` on the driver and on every executor"
        ) from None
    return fastavro


def _parsed(avro: Any, schema: Schema) -> Schema:
    try:
        return _plain(avro.parse_schema(_plain(schema)))
    except Exception as error:
        raise StateDescriptorError(f"this is not a valid Avro schema: {error!r}") from error


def _plain(schema: Any) -> Any:
    """A schema without the marks that `fastavro` adds when it parses."""
    if isinstance(schema, list):
        return list(map(_plain, schema))
    if isinstance(schema, dict):
        return {name: _plain(p) for name, p in schema.items() if not name.startswith("__")}
    return schema


def _encoder(avro: Any, schema: Schema) -> Encode:
    parsed = _boxed(avro, schema)
    write, validate = avro.schemaless_writer, avro.validation.validate

    def encode(value: Any) -> bytes:
        out, box = BytesIO(), {"value": value}
        try:
            validate(box, parsed, strict=True)
            write(out, parsed, box, strict=True)
        except Exception as error:
            raise StateValueError(
                f"a state declared by the Avro schema {_name(schema)} cannot hold {shown(value)}; "
                f"{_said(error)}"
            ) from error
        return out.getvalue()

    return encode


def _boxed(avro: Any, schema: Schema, *, expand: bool = False) -> Schema:
    """Schema of a record around the value; its bytes are those of the value.

    `fastavro` remembers that it has parsed a record; other types it parses every time.
    """
    field = {"name": "value", "type": deepcopy(schema)}
    return avro.parse_schema({"type": "record", "name": _BOX, "fields": [field]}, expand=expand)


_BOX = "HoldfastValue"


def _said(error: Exception) -> str:
    return str(error).replace(f"{_BOX}.value", "the value").replace("\n", " ")


def _name(schema: Schema) -> str:
    return str(schema["name"]) if isinstance(schema, dict) and "name" in schema else type_of(schema)


def _decoder(avro: Any, schema: Schema) -> Decode:
    parsed = _boxed(avro, schema)
    return _wrapped(lambda data: avro.schemaless_reader(data, parsed, None))


def _wrapped(read: Callable[[BytesIO], Any]) -> Decode:
    def decode(data: bytes) -> Any:
        try:
            return read(BytesIO(data))["value"]
        except Exception as error:
            raise StateValueError(
                f"the stored bytes do not match the Avro schema that they were stored under: "
                f"{error!r}; restore from another checkpoint"
            ) from error

    return decode


def _reading(
    avro: Any, stored: dict[str, Any], described: dict[str, Any], decode: Decode
) -> Reading:
    resolution = resolve(stored, described)
    if resolution.verdict == "incompatible":
        return Reading(resolution)
    if resolution.verdict == "as is":
        return Reading(resolution, decode)
    # fastavro does not resolve all references by name, so neither side has any.
    written = _boxed(avro, stored["schema"], expand=True)
    declared = _boxed(avro, described["schema"], expand=True)
    shares = _Defaults(avro, described["schema"]).fill(declared)

    def read(data: BytesIO) -> Any:
        value = avro.schemaless_reader(data, written, declared)
        return deepcopy(value) if shares else value

    return Reading(resolution, _wrapped(read))


_JSON_KINDS: dict[type, tuple[str, ...]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("int", "long", "float", "double"),
    float: ("float", "double"),
    str: ("string", "enum", "bytes", "fixed"),
    list: ("array",),
    dict: ("record", "map"),
}


class _Defaults:
    """Converts the defaults in a schema from JSON to values."""

    def __init__(self, avro: Any, schema: Schema) -> None:
        self._avro = avro
        self._types = named_types(schema)
        self._seen: set[int] = set()

    def fill(self, schema: Schema) -> bool:
        """Convert all defaults in a schema; returns whether some are mutable."""
        if isinstance(schema, list):
            return any([self.fill(member) for member in schema])
        if not isinstance(schema, dict) or id(schema) in self._seen:
            return False
        self._seen.add(id(schema))
        shares = any([self.fill(schema[part]) for part in ("items", "values") if part in schema])
        for field in schema.get("fields", ()):
            shares = self.fill(field["type"]) or shares
            if "default" in field:
                field["default"] = self._value(field["type"], field["default"])
                shares = shares or isinstance(field["default"], dict | list)
        return shares

    def _value(self, schema: Schema, default: Any) -> Any:
        schema = self._types.get(type_of(schema), schema)
        match type_of(schema):
            case "union":
                return self._value(self._member(schema, default), default)
            case "bytes" | "fixed":
                return self._logical(schema, default.encode("latin-1"))
            case "array":
                return [self._value(schema["items"], item) for item in default]
            case "map":
                return {key: self._value(schema["values"], item) for key, item in default.items()}
            case "record":
                return {
                    field["name"]: self._value(
                        field["type"], default.get(field["name"], field.get("default"))
                    )
                    for field in schema["fields"]
                }
            case "float" | "double":
                return float(default)
        return self._logical(schema, default)

    def _member(self, union: list[Schema], default: Any) -> Schema:
        kinds = _JSON_KINDS[type(default)]
        members = [self._types.get(type_of(member), member) for member in union]
        return next((m for m in members if type_of(m) in kinds), members[0])

    def _logical(self, schema: Schema, raw: Any) -> Any:
        """Value that Avro reads for a logical type, such as a date for a number."""
        if not isinstance(schema, dict) or "logicalType" not in schema:
            return raw
        out = BytesIO()
        bare = {name: part for name, part in schema.items() if name != "logicalType"}
        self._avro.schemaless_writer(out, bare, raw)
        return self._avro.schemaless_reader(BytesIO(out.getvalue()), schema, None)
