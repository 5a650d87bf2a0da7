"""Builds the stored description of a type, from msgspec's type tree or from an Arrow type.

Every snapshot contains the descriptions, so that a later program knows whether and how it
can read the state. Format 1, for Python types:

    {"format": 1, "kind": "msgpack", "type": T}

    T := "int" | "str" | ...                              a scalar
       | {"list": T} | {"set": T} | {"tuple": [T, ...]}   and other containers
       | {"dict": [T, T]} | {"union": [T, ...]} | {"literal": [...]}
       | {"enum": name, "values": [...]}
       | {"class": name, "kind": k, "wire": w, "fields": [{"name", "type", "required"}, ...]}
       | {"ref": name}                                    a class already described above

A tagged class also has "tag", and "tag_field" if that is not "type". "omits" is true if
fields equal to their defaults are not stored, "closed" if the class rejects unknown fields.
A field without a default is required. Names of classes serve messages and references only.

`types/compatibility.py` compares descriptions.

Arrow types are described in the same language:

    struct      {"class": "struct", "kind": "row", "wire": "array", "fields": [...]}
    list, map   {"list": T}, {"dict": [T, T]}
    decimal     {"decimal": [precision, scale]}
    nullable    {"union": [T, "none"]}

A field is required if it is not nullable. Structs are numbered from the outside in to give
them names. Types whose values have the same bytes share a name: `large_string` is `string`,
and a timestamp in any zone is `timestamp`.

Format 2, for Arrow types:

    {"format": 2, "kind": "columns", "type": text of the Arrow type, "tree": T}
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, get_origin
from uuid import UUID

import msgspec
import msgspec.inspect as mi
import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.types.arrow import leaf_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.types.trees import Tree

    Names = dict[Any, str]
    """Names in the description, by class."""


FORMAT = 1
"""Version of all descriptions but those of Arrow types."""

COLUMNS_FORMAT = 2
"""Version of the description of an Arrow type."""


def columns_schema(column: pa.DataType) -> dict[str, Any]:
    """JSON description of a canonical Arrow type."""
    tree = _Describer().of(column)
    return {"format": COLUMNS_FORMAT, "kind": "columns", "type": str(column), "tree": tree}


def described_tree(schema: dict[str, Any]) -> Tree:
    """Tree in the description of a Python or Arrow type.

    Raises:
        StateMigrationError: The description has a format that this release does not read.
    """
    check_format(schema)
    return schema["tree" if schema["kind"] == "columns" else "type"]


def check_format(schema: dict[str, Any]) -> None:
    """Check that a stored description has the current format.

    Raises:
        StateMigrationError: It has another one.
    """
    current = COLUMNS_FORMAT if schema["kind"] == "columns" else FORMAT
    if schema["format"] != current:
        raise StateMigrationError(
            f"the stored description of the type ({schema['kind']}) has format "
            f"{schema['format']}, this Holdfast reads format {current}; use the Holdfast version "
            "that wrote it"
        )


class _Describer:
    def __init__(self) -> None:
        self._structs = 0

    def of(self, column: pa.DataType) -> Tree:
        of = pa.types
        if of.is_struct(column):
            return self._struct(column)
        if of.is_map(column):
            return {"dict": [self.of(column.key_type), self._field(column.item_field)]}
        if of.is_nested(column):
            return {"list": self._field(column.value_field)}
        if of.is_decimal(column):
            return {"decimal": [column.precision, column.scale]}
        leaf = leaf_of(column)
        assert leaf is not None
        return leaf.described

    def _field(self, field: pa.Field) -> Tree:
        described = self.of(field.type)
        return {"union": [described, "none"]} if field.nullable else described

    def _struct(self, column: pa.DataType) -> Tree:
        self._structs += 1
        name = "struct" if self._structs == 1 else f"struct {self._structs}"
        fields = [
            {"name": field.name, "type": self._field(field), "required": not field.nullable}
            for field in column
        ]
        return {"class": name, "kind": "row", "wire": "array", "fields": fields}


_SCALARS: dict[type[mi.Type], tuple[str, type]] = {
    mi.NoneType: ("none", type(None)),
    mi.BoolType: ("bool", bool),
    mi.IntType: ("int", int),
    mi.FloatType: ("float", float),
    mi.StrType: ("str", str),
    mi.BytesType: ("bytes", bytes),
    mi.ByteArrayType: ("bytearray", bytearray),
    mi.DateTimeType: ("datetime", datetime),
    mi.TimeType: ("time", time),
    mi.DateType: ("date", date),
    mi.TimeDeltaType: ("timedelta", timedelta),
    mi.UUIDType: ("uuid", UUID),
    mi.DecimalType: ("decimal", Decimal),
}
_COLLECTIONS: dict[type[mi.Type], tuple[str, type]] = {
    mi.ListType: ("list", list),
    mi.VarTupleType: ("tuple_of", tuple),
    mi.SetType: ("set", set),
    mi.FrozenSetType: ("frozenset", frozenset),
}
SCALARS = {kind: cls for kind, (_, cls) in _SCALARS.items()}
"""Classes of values without parts."""
COLLECTIONS = {kind: cls for kind, (_, cls) in _COLLECTIONS.items()}
"""Classes of values whose parts are all of one type."""
_SCALAR_NAMES = {mi.AnyType: "any"} | {kind: name for kind, (name, _) in _SCALARS.items()}
_COLLECTION_NAMES = {kind: name for kind, (name, _) in _COLLECTIONS.items()}
ClassNode = mi.DataclassType | mi.StructType | mi.NamedTupleType


def children(node: mi.Type) -> list[mi.Type]:
    """Child nodes of a node."""
    match node:
        case mi.Metadata():
            return [node.type]
        case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
            return [node.item_type]
        case mi.TupleType():
            return list(node.item_types)
        case mi.DictType():
            return [node.key_type, node.value_type]
        case mi.UnionType():
            return list(node.types)
        case mi.DataclassType() | mi.StructType() | mi.NamedTupleType() | mi.TypedDictType():
            return [field.type for field in node.fields]
    return []


def class_of(node: Any) -> type:
    """Class of a node; `Box` for `Box[int]`."""
    found: type = get_origin(node.cls) or node.cls
    return found


def walk(root: mi.Type) -> Iterator[mi.Type]:
    """All nodes of a tree, each class once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting += children(node)


def own_classes(node: mi.Type) -> frozenset[type]:
    """Classes that a value of the type can have, ignoring its parts."""
    match node:
        case mi.Metadata() | mi.UnionType():
            return frozenset().union(*map(own_classes, children(node)))
        case mi.AnyType():
            return PLAIN | {list, dict}
        case mi.LiteralType():
            return frozenset(map(type, node.values))
        case mi.TupleType():
            return frozenset({tuple})
        case mi.DictType() | mi.TypedDictType():
            return frozenset({dict})
    cls = SCALARS.get(type(node)) or COLLECTIONS.get(type(node))
    return frozenset({cls or class_of(node)})


PLAIN = frozenset({type(None), bool, int, float, str, bytes})


_CLASS_KINDS: dict[type[mi.Type], str] = {
    mi.DataclassType: "dataclass",
    mi.StructType: "struct",
    mi.NamedTupleType: "named_tuple",
    mi.TypedDictType: "typed_dict",
}

_MUTABLE = (
    mi.AnyType, mi.ByteArrayType, mi.ListType, mi.SetType, mi.DictType, mi.TypedDictType,
)  # fmt: skip

# Equal values of these types can differ in digits, sign of zero or zone.
_AMBIGUOUS = (mi.FloatType, mi.DecimalType, mi.DateTimeType, mi.TimeType)


def schema_of(root: mi.Type) -> dict[str, Any]:
    """JSON description of a type tree."""
    return {"format": FORMAT, "kind": "msgpack", "type": _described(root, {})}


def is_immutable(root: mi.Type) -> bool:
    """Whether no value of the type can be changed in place."""
    return not any(_is_mutable(node) for node in walk(root))


def is_canonical(root: mi.Type) -> bool:
    """Whether values of the type are equal exactly if their bytes are."""
    return is_immutable(root) and not any(_is_ambiguous(node) for node in walk(root))


def _is_ambiguous(node: mi.Type) -> bool:
    match node:
        case mi.UnionType():
            # True equals 1, and members of some enums equal their values.
            classes = own_classes(node)
            return any(sum(issubclass(c, base) for c in classes) > 1 for base in (int, str))
        case mi.DataclassType():
            cls: Any = class_of(node)
            return _by_identity(cls) or not all(field.compare for field in dataclass_fields(cls))
        case mi.StructType():
            return _by_identity(class_of(node))
    return isinstance(node, _AMBIGUOUS)


def _by_identity(cls: Any) -> bool:
    """Whether instances are compared by identity."""
    settings = getattr(cls, "__struct_config__", None)
    return not settings.eq if settings is not None else cls.__eq__ is object.__eq__


def name_of(node: mi.Type) -> str:
    """The type as its author would write it, for messages."""
    inner = [name_of(child) for child in children(node)] if not hasattr(node, "cls") else []
    match node:
        case mi.Metadata():
            return inner[0]
        case mi.UnionType():
            return " | ".join(inner)
        case mi.LiteralType():
            return f"Literal[{', '.join(map(repr, node.values))}]"
        case mi.TupleType():
            return f"tuple[{', '.join(inner)}]"
        case mi.VarTupleType():
            return f"tuple[{inner[0]}, ...]"
        case mi.DictType():
            return f"dict[{', '.join(inner)}]"
    if type(node) in _COLLECTION_NAMES:
        return f"{_COLLECTION_NAMES[type(node)]}[{inner[0]}]"
    if hasattr(node, "cls"):
        return class_of(node).__qualname__
    return _SCALAR_NAMES[type(node)].replace("none", "None")


def _is_mutable(node: mi.Type) -> bool:
    cls: Any = class_of(node) if hasattr(node, "cls") else None
    if isinstance(node, mi.StructType):
        return not cls.__struct_config__.frozen
    if isinstance(node, mi.DataclassType):
        parameters = getattr(cls, "__dataclass_params__", None)
        return parameters is None or not parameters.frozen
    return isinstance(node, _MUTABLE)


def _described(node: mi.Type, above: Names) -> Any:
    match node:
        case mi.Metadata():
            return _described(node.type, above)
        case mi.EnumType():
            return {"enum": _full_name(node.cls), "values": [m.value for m in node.cls]}
        case mi.LiteralType():
            return {"literal": list(node.values)}
        case mi.UnionType():
            return {"union": [_described(member, above) for member in node.types]}
        case mi.TupleType():
            return {"tuple": [_described(item, above) for item in node.item_types]}
        case mi.DictType():
            return {"dict": [_described(node.key_type, above), _described(node.value_type, above)]}
        case mi.DataclassType() | mi.StructType() | mi.NamedTupleType() | mi.TypedDictType():
            return _class_described(node, above)
    if type(node) in _COLLECTION_NAMES:
        return {_COLLECTION_NAMES[type(node)]: _described(children(node)[0], above)}
    return _SCALAR_NAMES[type(node)]


def _class_described(node: Any, above: Names) -> dict[str, Any]:
    if node.cls in above:
        return {"ref": above[node.cls]}
    name = above[node.cls] = _name_among(above.values(), _full_name(node.cls))
    described: dict[str, Any] = {
        "class": name,
        "kind": _CLASS_KINDS[type(node)],
        "wire": _wire(node),
        "fields": [
            {
                "name": field.encode_name,
                "type": _described(field.type, above),
                "required": field.required,
            }
            for field in node.fields
        ],
    }
    if isinstance(node, mi.StructType):
        described |= _struct_described(node)
    return described


def _struct_described(node: mi.StructType) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if node.tag is not None:
        described["tag"] = node.tag
        if node.tag_field != "type":
            described["tag_field"] = node.tag_field
    cls: Any = class_of(node)
    if cls.__struct_config__.omit_defaults and not node.array_like:
        described["omits"] = True
    if node.forbid_unknown_fields:
        described["closed"] = True
    return described


def _wire(node: Any) -> str:
    if isinstance(node, mi.StructType):
        return "array" if node.array_like else "map"
    return "array" if isinstance(node, mi.NamedTupleType) else "map"


def _full_name(cls: Any) -> str:
    # A parametrised class is described by its parameters too: `module.Box[int]`.
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)


def _name_among(taken: Iterable[str], name: str) -> str:
    """The name, with a number if another class has it: two functions may each define a `Row`."""
    names, number = frozenset(taken), 1
    found = name
    while found in names:
        number += 1
        found = f"{name} ({number})"
    return found


def defaults(root: mi.Type) -> Callable[[str, str], Any]:
    """Function from the described names of a class and a field to the field's default."""
    names: Names = {}
    _described(root, names)
    fields = {
        (names[node.cls], field.encode_name): field
        for node in walk(root)
        if isinstance(node, mi.StructType | mi.NamedTupleType)
        for field in node.fields
    }

    def default(cls: str, name: str) -> Any:
        field = fields[cls, name]
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return deepcopy(field.default)

    return default
