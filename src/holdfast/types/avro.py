"""Avro schemas as types: parsing and schema evolution."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from holdfast.errors import TypeDeclarationError


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A type declared by an Avro schema; values are those that `fastavro` reads and writes.

    Args:
        schema: The schema as JSON text, or parsed: a dict, a list for a union, or the name
            of a primitive type such as "long".

    Raises:
        TypeDeclarationError: The text is neither JSON nor the name of a type.
    """

    schema: Any

    def __post_init__(self) -> None:
        """Parse the schema if it is text."""
        object.__setattr__(self, "schema", _parsed(self.schema))

    def __hash__(self) -> int:
        """Hash of the schema's text; a parsed schema has none."""
        return hash(json.dumps(self.schema, sort_keys=True))


_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _parsed(schema: Any) -> Any:
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise TypeDeclarationError(
                f"an Avro schema is JSON text, and this cannot be parsed: {error}; to use a "
                "file, pass Path(...).read_text()"
            ) from None
    if isinstance(schema, dict | list) or (isinstance(schema, str) and schema in _PRIMITIVES):
        return schema
    raise TypeDeclarationError(
        f"an Avro schema is JSON text, a dict, a list or the name of a primitive type, not "
        f"{schema!r}"
    )


Schema: TypeAlias = Any
"""A parsed schema: a name, a list for a union, or a dict."""


NAMED: Final = frozenset({"record", "enum", "fixed"})
_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_LOGICAL: Final = ("logicalType", "precision", "scale")
_PART: Final = {"array": "items", "map": "values"}


def canonical_avro(schema: Schema) -> Schema:
    """Canonical form: equal for schemas with the same type names and the same bytes of values."""
    return _canonical(schema, set())


def avro_problems(written: Schema, declared: Schema) -> list[str]:
    """Why values of one schema cannot be read by another; empty if they can."""
    return list(dict.fromkeys(_Comparison(written, declared).problems()))


def type_of(schema: Schema) -> str:
    """`union`, `record`, `long`, ..., or the name of a type defined elsewhere."""
    if isinstance(schema, list):
        return "union"
    found: str = schema["type"] if isinstance(schema, dict) else schema
    return "record" if found == "error" else found


def named_types(schema: Schema) -> dict[str, dict[str, Any]]:
    """All named types defined in a schema."""
    found: dict[str, dict[str, Any]] = {}
    kind = type_of(schema)
    if kind in NAMED:
        found[schema["name"]] = schema
    for part in parts_of(schema):
        found |= named_types(part)
    return found


def parts_of(schema: Schema) -> list[Schema]:
    """Schemas directly inside one."""
    match type_of(schema):
        case "union":
            return list(schema)
        case "array" | "map" as kind:
            return [schema[_PART[kind]]]
        case "record":
            return [field["type"] for field in schema["fields"]]
    return []


def _canonical(schema: Schema, seen: set[str]) -> Schema:
    kind = type_of(schema)
    if kind == "union":
        return [_canonical(member, seen) for member in schema]
    described = {"type": kind} | _logical(schema)
    if kind in NAMED:
        if schema["name"] in seen:
            return schema["name"]
        seen.add(schema["name"])
        described |= {part: schema[part] for part in ("name", "symbols", "size") if part in schema}
    if kind == "record":
        fields = [[field["name"], _canonical(field["type"], seen)] for field in schema["fields"]]
        described["fields"] = fields
    elif kind in _PART:
        described[_PART[kind]] = _canonical(schema[_PART[kind]], seen)
    return kind if described == {"type": kind} else described


def _logical(schema: Schema) -> dict[str, Any]:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return {}
    return {name: schema[name] for name in _LOGICAL if schema.get(name)}


class _Comparison:
    def __init__(self, written: Schema, declared: Schema) -> None:
        self._written = written
        self._declared = declared
        self._old_types = named_types(written)
        self._new_types = named_types(declared)
        self._seen: set[tuple[str, str]] = set()

    def problems(self) -> list[str]:
        kind = type_of(self._declared)
        path = _short(self._declared["name"]) if kind in NAMED else "value"
        return self._compared(self._written, self._declared, path)

    def _compared(self, written: Schema, declared: Schema, path: str) -> list[str]:
        written = self._old_types.get(type_of(written), written)
        declared = self._new_types.get(type_of(declared), declared)
        if type_of(written) == "union":
            found = [self._compared(member, declared, path) for member in written]
            return [problem for problems in found for problem in problems]
        if type_of(declared) == "union":
            return self._with_member(written, declared, path)
        if not _matches(written, declared):
            return [f"{path}: {_was(written, declared)}{_naming(written, declared)}"]
        if _logical(written) != _logical(declared):
            return [f"{path}: {_was(written, declared)}; a logical type cannot change"]
        return self._inside(written, declared, path)

    def _with_member(self, written: Schema, declared: list[Schema], path: str) -> list[str]:
        for member in declared:
            choice = self._new_types.get(type_of(member), member)
            if _matches(written, choice):
                return self._compared(written, choice, path)
        return [f"{path}: {_was(written, declared)}"]

    def _inside(self, written: Schema, declared: Schema, path: str) -> list[str]:
        match type_of(written):
            case "array":
                return self._compared(written["items"], declared["items"], f"{path}[]")
            case "map":
                return self._compared(written["values"], declared["values"], f"{path}[value]")
            case "record":
                return self._records(written, declared, path)
            case "enum":
                gone = [s for s in written["symbols"] if s not in declared["symbols"]]
                if gone and not declared.get("default"):
                    return [f"{path}: has lost {', '.join(gone)}, and has no default symbol"]
            case "fixed" if written["size"] != declared["size"]:
                return [f"{path}: had {written['size']} bytes, has {declared['size']}"]
        return []

    def _records(self, written: Schema, declared: Schema, path: str) -> list[str]:
        pair = (written["name"], declared["name"])
        if pair in self._seen:
            return []
        self._seen.add(pair)
        problems: list[str] = []
        for field in declared["fields"]:
            place = f"{path}.{field['name']}"
            found = _written_as(field, written, declared)
            if len(found) > 1:
                problems.append(f"{place}: {' and '.join(found)} are stored, and only one is read")
            elif found:
                (old,) = (other for other in written["fields"] if other["name"] == found[0])
                problems += self._compared(old["type"], field["type"], place)
            elif "default" not in field:
                problems.append(f"{place}: is new and has no default; give it one")
        return problems


def _written_as(field: Schema, written: Schema, declared: Schema) -> list[str]:
    """Names under which a declared field may have been written: its name and its aliases."""
    own = {other["name"] for other in declared["fields"]} - {field["name"]}
    names = {field["name"], *field.get("aliases", ())} - own
    return [other["name"] for other in written["fields"] if other["name"] in names]


def _matches(written: Schema, declared: Schema) -> bool:
    old, new = type_of(written), type_of(declared)
    if old in NAMED or new in NAMED:
        return old == new and _same_name(written, declared)
    return old == new or new in _PROMOTIONS.get(old, ())


def _same_name(written: dict[str, Any], declared: dict[str, Any]) -> bool:
    name, aliases = written["name"], declared.get("aliases", ())
    return _short(name) == _short(declared["name"]) or name in aliases or _short(name) in aliases


def _naming(written: Schema, declared: Schema) -> str:
    kind = type_of(written)
    if kind == type_of(declared) and kind in NAMED:
        return f"; a {kind} keeps its name, or has the old one among its aliases"
    return ""


def _was(written: Schema, declared: Schema) -> str:
    return f"was {_text(written)}, is {_text(declared)}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _text(schema: Schema) -> str:
    kind = type_of(schema)
    if kind == "union":
        return f"[{', '.join(map(_text, schema))}]"
    if kind in NAMED:
        return f"{kind} {_short(schema['name'])}"
    if kind in _PART:
        return f"{kind} of {_text(schema[_PART[kind]])}"
    return "-".join(map(str, (_short(kind), *_logical(schema).values())))
