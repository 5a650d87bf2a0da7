"""Pickling by value: classes and functions that exist in a script or a notebook only.

What `cloudpickle` does, with classes that come out as they went in:

* msgspec keeps what it has found out about a class on the class itself, as
  `__msgspec_cache__`. That cannot be pickled, and is found out anew elsewhere.
* The fields of a `msgspec.Struct` have to be known when the class is made.
* A field of a dataclass that has no default holds an object that is known by identity.
"""

from __future__ import annotations

import dataclasses
import types
from inspect import get_annotations
from io import BytesIO
from typing import Any, Final

import msgspec
from msgspec._core import Factory  # type: ignore[import-not-found]
from pyspark.cloudpickle import cloudpickle

_CACHE: Final = "__msgspec_cache__"
_POST_INIT: Final = "__post_init__"
_CONFIG: Final = (
    "array_like", "cache_hash", "dict", "eq", "forbid_unknown_fields", "frozen", "gc",
    "omit_defaults", "order", "repr_omit_defaults", "weakref",
)  # fmt: skip
"""Settings of a Struct that are given to its class again."""
_StructMeta: Final[Any] = type(msgspec.Struct)


def dumps(value: object) -> bytes:
    """A value, pickled; classes and functions of `__main__` and of notebooks by value."""
    with BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if obj is dataclasses.MISSING:
            return "MISSING"
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            attributes: dict[str, Any] = reduced[2][0]
            attributes.pop(_CACHE, None)
            if isinstance(obj, _StructMeta):
                return _struct_reduced(obj, *reduced)
        return reduced


def _struct_reduced(
    cls: Any, make: object, args: tuple[Any, ...], state: Any, *rest: object
) -> tuple[Any, ...]:
    """How a Struct class is pickled, given how cloudpickle would: with its fields."""
    metaclass, name, bases, namespace, tracker_id, _ = args
    wire_names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    own = [field for field in get_annotations(cls) if field in wire_names]
    settings = cls.__struct_config__
    config = {setting: getattr(settings, setting) for setting in _CONFIG}
    config |= {
        "tag": False if settings.tag is None else settings.tag,
        "tag_field": settings.tag_field,
        "rename": {field: wire_names[field] for field in own},
        "kw_only": any(_is_keyword_only(cls, field) for field in own),
    }
    state[0].pop("__slots__", None)
    late_init = _POST_INIT in vars(cls)
    made = (metaclass, name, bases, namespace, own, *_defaults(cls, own), config, late_init)
    return _make_struct, (*made, tracker_id), state, *rest


def _defaults(cls: Any, own: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Defaults of those fields of a Struct that have one; and what makes a default."""
    defaults = cls.__struct_defaults__
    pairs = zip(cls.__struct_fields__[-len(defaults) :], defaults, strict=True) if defaults else ()
    found = {name: one for name, one in pairs if name in own and one is not msgspec.NODEFAULT}
    made = {name: one.factory for name, one in found.items() if isinstance(one, Factory)}
    return {name: one for name, one in found.items() if name not in made}, made


def _is_keyword_only(cls: Any, field: str) -> bool:
    parameter = cls.__signature__.parameters[field]
    return bool(parameter.kind is parameter.KEYWORD_ONLY)


def _make_struct(
    metaclass: Any,
    name: str,
    bases: tuple[Any, ...],
    namespace: dict[str, Any],
    fields: list[str],
    defaults: dict[str, Any],
    factories: dict[str, Any],
    config: dict[str, Any],
    late_init: bool,
    tracker_id: str,
) -> Any:
    """A Struct class with its fields, whose types and methods are filled in once it exists."""
    body = namespace | defaults | {"__annotations__": dict.fromkeys(fields, Any)}
    body |= {field: msgspec.field(default_factory=make) for field, make in factories.items()}
    if late_init:
        body[_POST_INIT] = _call_post_init
    keywords = {"metaclass": metaclass, **config}
    cls = types.new_class(name, bases, keywords, lambda made: made.update(body))
    return cloudpickle._lookup_class_or_track(tracker_id, cls)  # type: ignore[no-untyped-call]


def _call_post_init(self: Any) -> None:
    """Stands for a method that the class must have when it is made, and gets later."""
    type(self).__post_init__(self)
