"""Codecs of user-defined serializers.

Their description:

    {"format": 1, "kind": "serializer", "class": "module.Name", "snapshot": {...}}

with "snapshot" if the serializer has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.serde.codec import Codec, Reading, let_pass
from holdfast.types.compatibility import AFTER_MIGRATION, AS_IS, incompatible, resolve
from holdfast.types.schema import FORMAT
from holdfast.types.serializers import StateCompatibility

if TYPE_CHECKING:
    from holdfast.types.serializers import StateSerializer


def serializer_codec(serializer: StateSerializer) -> Codec:
    """Codec of a serializer object.

    Raises:
        StateDescriptorError: It is a class, or its snapshot is not a JSON object.
    """
    if isinstance(serializer, type):
        raise StateDescriptorError(
            f"{serializer.__qualname__} is a serializer class; pass an instance of it"
        )
    cls = type(serializer)
    name = f"{cls.__module__}.{cls.__qualname__}"

    def encode(value: Any) -> bytes:
        data: object = serializer.serialize(value)
        if not isinstance(data, bytes):
            raise StateValueError(
                f"{name}.serialize must return bytes, and returned {type(data).__name__}"
            )
        return data

    schema = {"format": FORMAT, "kind": "serializer", "class": name} | _snapshot(serializer, name)
    return Codec(
        encode,
        serializer.deserialize,
        # Only the serializer knows the classes of its values.
        let_pass,
        schema,
        reading=lambda stored: _reading(serializer, name, stored, schema),
    )


def _snapshot(serializer: Any, name: str) -> dict[str, Any]:
    take = getattr(serializer, "snapshot", None)
    if take is None:
        return {}
    snapshot: object = take()
    if not isinstance(snapshot, dict):
        raise StateDescriptorError(f"{name}.snapshot must return a dict, and returned {snapshot!r}")
    try:
        # As JSON returns it.
        return {"snapshot": msgspec.json.decode(msgspec.json.encode(snapshot))}
    except (TypeError, ValueError) as error:
        raise StateDescriptorError(f"{name}.snapshot must return a JSON value: {error}") from None


def _reading(serializer: Any, name: str, stored: dict[str, Any], schema: dict[str, Any]) -> Reading:
    resolution = resolve(stored, schema)
    if resolution.verdict == "as is":
        return Reading(resolution, serializer.deserialize)
    ask = getattr(serializer, "compatibility", None)
    if ask is None or stored["kind"] != "serializer":
        return Reading(resolution)
    answer: object = ask(stored.get("snapshot", {}))
    if not isinstance(answer, StateCompatibility):
        raise StateDescriptorError(
            f"{name}.compatibility must return a StateCompatibility, and returned {answer!r}"
        )
    match answer.verdict:
        case "as is":
            return Reading(AS_IS, serializer.deserialize)
        case "after migration":
            return Reading(AFTER_MIGRATION, answer.read)
    return Reading(incompatible(f"value: {name} cannot read it: {answer.reason}"))
