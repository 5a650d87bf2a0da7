"""Decides whether state stored under one schema can be read under another.

A schema is the stored description of a type (`types/schema.py`). Descriptions decide alone,
except that a user's serializer is asked about its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateMigrationError
from holdfast.types.avro import avro_problems, canonical_avro
from holdfast.types.resolution import TypeResolver
from holdfast.types.schema import check_format, described_tree
from holdfast.types.trees import canonical_tree

if TYPE_CHECKING:
    from holdfast.types.serializers import Verdict


@dataclass(frozen=True, slots=True)
class Resolution:
    """Result of comparing a stored schema with the declared one."""

    verdict: Verdict
    """Read as is, converted when read, or incompatible."""
    problems: list[str] = field(default_factory=list)
    """Why they are incompatible, each with its path."""


AS_IS = Resolution("as is")

AFTER_MIGRATION = Resolution("after migration")


def incompatible(*problems: str) -> Resolution:
    """Resolution of schemas with these problems."""
    return Resolution("incompatible", list(problems))


def resolve(stored: dict[str, Any], declared: dict[str, Any]) -> Resolution:
    """Compare a stored schema with the declared one.

    For a user's serializer only the stored descriptions are compared; `reading_of` asks the
    serializer itself.
    """
    try:
        if canonical(stored) == canonical(declared):
            return AS_IS
    except StateMigrationError as error:
        return incompatible(f"value: {error}")
    kind = stored["kind"]
    if kind != declared["kind"]:
        return incompatible(_other_kind(stored, declared))
    match kind:
        case "timestamped" | "either":
            return joined(kind, map(resolve, stored["of"], declared["of"]))
        case "serializer":
            return incompatible(_other_serializer(stored, declared))
        case "avro":
            problems = avro_problems(stored["schema"], declared["schema"])
            return incompatible(*problems) if problems else AFTER_MIGRATION
    problems = list(type_resolver(stored, declared).outcome().problems)
    return incompatible(*problems) if problems else AFTER_MIGRATION


def joined(kind: str, resolutions: Any) -> Resolution:
    """Resolution of a type, from those of its parts."""
    found: list[Resolution] = list(resolutions)
    names = ("first stream, ", "second stream, ") if kind == "either" else ("",)
    problems = [
        name + problem
        for name, resolution in zip(names, found, strict=True)
        for problem in resolution.problems
    ]
    if problems:
        return incompatible(*problems)
    return AS_IS if all(one.verdict == "as is" for one in found) else AFTER_MIGRATION


def type_resolver(stored: dict[str, Any], declared: dict[str, Any]) -> TypeResolver:
    """Resolver for two schemas of Python or Arrow types."""
    return TypeResolver(described_tree(stored), described_tree(declared))


def canonical(schema: Any) -> Any:
    """Canonical form: equal for schemas under which values have the same bytes.

    Raises:
        StateMigrationError: The schema has a format that this release does not read.
    """
    if isinstance(schema, dict) and "kind" in schema:
        check_format(schema)
    match schema:
        case {"kind": "msgpack" | "columns" as kind}:
            return {"kind": kind, "type": canonical_tree(described_tree(schema))}
        case {"kind": "avro", "schema": avro}:
            return {"kind": "avro", "schema": canonical_avro(avro)}
        case {"kind": kind, "of": parts}:
            return {"kind": kind, "of": list(map(canonical, parts))}
        case dict():
            return {name: part for name, part in schema.items() if name != "format"}
    return schema


def schema_id(schemas: list[Any]) -> str:
    """Id of a state's schemas: 8 hexadecimal digits, equal if values have the same bytes."""
    text = msgspec.json.encode(list(map(canonical, schemas)), order="sorted")
    return hashlib.sha256(text).hexdigest()[:8]


_KINDS = {
    "msgpack": "by a Python type",
    "columns": "by a type of columns",
    "avro": "by an Avro schema",
    "serializer": "by a serializer",
    "pickle": "without a type",
    "timestamped": "with the times of elements, for an evictor",
    "either": "for elements of two streams",
}


def _other_kind(stored: dict[str, Any], declared: dict[str, Any]) -> str:
    kinds = stored["kind"], declared["kind"]
    was, now = (_KINDS.get(kind, kind) for kind in kinds)
    problem = f"value: was stored {was}, is declared {now}"
    return f"{problem}; pickled state cannot evolve" if "pickle" in kinds else problem


def _other_serializer(stored: dict[str, Any], declared: dict[str, Any]) -> str:
    if stored["class"] == declared["class"]:
        problem = f"value: the serializer {stored['class']} has another snapshot"
    else:
        problem = f"value: was written by {stored['class']}, is declared with {declared['class']}"
    return f"{problem}; its method compatibility(stored) may say how to read the old bytes"
