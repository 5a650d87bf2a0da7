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

A class that has a tag also has "tag", and "tag_field" if that is not "type". "omits" is
true if fields that equal their defaults are not stored, "closed" if the class reads no
other fields. A field without a default is required. What the bytes hold is said in full
by the trees; names of classes are for messages, and for references.

How one description is compared with another is in `state/schema_resolution.py`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.inspect as mi

from holdfast.state.codec_checks import children, class_of, own_classes, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Names = dict[Any, str]
    """Names in the description, by the classes."""

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
    return {"format": FORMAT, "kind": "msgpack", "type": _described(root, {})}


def is_immutable(root: mi.Type) -> bool:
    """Whether no value of the type can be changed in place."""
    return not any(_is_mutable(node) for node in walk(root))


def is_canonical(root: mi.Type) -> bool:
    """Whether equal values of the type always have equal bytes, and others have others."""
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
    """Whether instances equal nothing but themselves."""
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
    """The name, with a number if another class has it: two functions may define a `Row` each."""
    names, number = frozenset(taken), 1
    found = name
    while found in names:
        number += 1
        found = f"{name} ({number})"
    return found


def defaults(root: mi.Type) -> Callable[[str, str], Any]:
    """Function that gives the default of a class's field, by their names in the description."""
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
