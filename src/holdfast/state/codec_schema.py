"""What is to be known of a state's type besides its bytes.

The description goes into every snapshot, so that a later program can tell whether and
how it reads the state. Its format, version 1, for values stored by their Python type:

    {"format": 1, "kind": "msgpack", "type": T}

    T := "int" | "str" | ...                              a scalar
       | {"list": T} | {"set": T} | {"tuple": [T, ...]}   and other containers
       | {"dict": [T, T]} | {"union": [T, ...]} | {"literal": [...]}
       | {"enum": name, "values": [...]}
       | {"class": name, "kind": k, "wire": w, "fields": [{"name", "type", "required"}, ...]}
       | {"ref": name}                                    a class already described above
"""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi

from holdfast.errors import StateDescriptorError
from holdfast.state.codec_checks import children, class_of, walk

FORMAT = 1
"""Version of the description."""

_SCALAR_NAMES: dict[type[mi.Type], str] = {
    mi.AnyType: "any",
    mi.NoneType: "none",
    mi.BoolType: "bool",
    mi.IntType: "int",
    mi.FloatType: "float",
    mi.StrType: "str",
    mi.BytesType: "bytes",
    mi.ByteArrayType: "bytearray",
    mi.DateTimeType: "datetime",
    mi.TimeType: "time",
    mi.DateType: "date",
    mi.TimeDeltaType: "timedelta",
    mi.UUIDType: "uuid",
    mi.DecimalType: "decimal",
}

_COLLECTION_NAMES: dict[type[mi.Type], str] = {
    mi.ListType: "list",
    mi.VarTupleType: "tuple_of",
    mi.SetType: "set",
    mi.FrozenSetType: "frozenset",
}

_CLASS_KINDS: dict[type[mi.Type], str] = {
    mi.DataclassType: "dataclass",
    mi.StructType: "struct",
    mi.NamedTupleType: "named_tuple",
    mi.TypedDictType: "typed_dict",
}

_MUTABLE = (
    mi.AnyType, mi.ByteArrayType, mi.ListType, mi.SetType, mi.DictType, mi.TypedDictType,
)  # fmt: skip

# Equal values of these can differ in their digits, their sign of zero, or their zone.
_AMBIGUOUS = (mi.FloatType, mi.DecimalType, mi.DateTimeType, mi.TimeType)


def schema_of(root: mi.Type) -> dict[str, Any]:
    """Description of a tree, fit for JSON."""
    return {"format": FORMAT, "kind": "msgpack", "type": _described(root, set())}


def is_immutable(root: mi.Type) -> bool:
    """Whether no value of the type can be changed in place."""
    return not any(_is_mutable(node) for node in walk(root))


def is_canonical(root: mi.Type) -> bool:
    """Whether equal values of the type always have equal bytes."""
    return is_immutable(root) and not any(isinstance(node, _AMBIGUOUS) for node in walk(root))


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
    if isinstance(node, mi.StructType):
        return not node.cls.__struct_config__.frozen
    if isinstance(node, mi.DataclassType):
        parameters = getattr(node.cls, "__dataclass_params__", None)
        return parameters is None or not parameters.frozen
    return isinstance(node, _MUTABLE)


def _described(node: mi.Type, above: set[str]) -> Any:
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


def _class_described(node: Any, above: set[str]) -> dict[str, Any]:
    name = _full_name(node.cls)
    if name in above:
        return {"ref": name}
    above.add(name)
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
    if isinstance(node, mi.StructType) and node.tag is not None:
        described["tag"] = node.tag
    return described


def _wire(node: Any) -> str:
    if isinstance(node, mi.StructType):
        return "array" if node.array_like else "map"
    return "array" if isinstance(node, mi.NamedTupleType) else "map"


def _full_name(cls: Any) -> str:
    # A parametrised class is described by its parameters too: `module.Box[int]`.
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)


def check_same_schema(name: str, stored: list[Any], declared: list[Any]) -> None:
    """Refuse a state that was written under another type: its bytes would be misread.

    Raises:
        StateDescriptorError: The schemas differ.
    """
    if msgspec.json.encode(stored) != msgspec.json.encode(declared):
        raise StateDescriptorError(
            f"state {name!r} was written with the type {_as_text(stored)} and is now declared "
            f"with {_as_text(declared)}; give it its old type back, or another name to start it "
            "empty"
        )


def _as_text(schemas: list[Any]) -> str:
    return " and ".join(msgspec.json.encode(schema).decode() for schema in schemas)
