"""Avro schemas as types of state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.errors import TypeDeclarationError


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """Values that Avro's binary form holds, as `fastavro` reads and writes them.

    Args:
        schema: The schema as JSON text, or parsed: a dict, a list for a union, or the name
            of a primitive type such as "long".

    Raises:
        TypeDeclarationError: The text is neither JSON nor the name of a type.
    """

    schema: Any

    def __post_init__(self) -> None:
        """Parse the text, if it is one."""
        object.__setattr__(self, "schema", _parsed(self.schema))

    def __hash__(self) -> int:
        """By the schema's text, since what is parsed has no hash."""
        return hash(json.dumps(self.schema, sort_keys=True))


_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _parsed(schema: Any) -> Any:
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise TypeDeclarationError(
                f"an Avro schema is JSON text, and this is none: {error}; to use a file, pass "
                "Path(...).read_text()"
            ) from None
    if isinstance(schema, dict | list) or (isinstance(schema, str) and schema in _PRIMITIVES):
        return schema
    raise TypeDeclarationError(
        f"an Avro schema is JSON text, a dict, a list or the name of a primitive type, not "
        f"{schema!r}"
    )
