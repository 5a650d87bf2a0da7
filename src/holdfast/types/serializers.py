"""Serializers that users write, and what they say about bytes of an earlier version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable


Verdict: TypeAlias = Literal["as is", "after migration", "incompatible"]


@dataclass(frozen=True, slots=True)
class StateCompatibility:
    """Whether and how today's serializer reads what an earlier one has written.

    Made by `as_is`, `after_migration` or `incompatible`.
    """

    verdict: Verdict
    read: Callable[[bytes], Any] | None = None
    """Gives today's value of old bytes, after a migration."""
    reason: str = ""
    """Why the two are incompatible."""

    @staticmethod
    def as_is() -> StateCompatibility:
        """The bytes of both versions are the same; each reads those of the other."""
        return StateCompatibility("as is")

    @staticmethod
    def after_migration(read: Callable[[bytes], Any]) -> StateCompatibility:
        """Old bytes are read by `read`, which gives a value of today."""
        return StateCompatibility("after migration", read)

    @staticmethod
    def incompatible(reason: str) -> StateCompatibility:
        """Old bytes cannot be read; `reason` says why."""
        return StateCompatibility("incompatible", reason=reason)


@runtime_checkable
class StateSerializer(Protocol):
    """How a user's own class becomes bytes in state, and comes back.

    `deserialize(serialize(value))` must equal `value`, in every later version of the
    program that is to read the state.
    """

    def serialize(self, value: Any, /) -> bytes:
        """Bytes of a value."""

    def deserialize(self, data: bytes, /) -> Any:
        """Value of bytes that `serialize` once gave."""


@runtime_checkable
class EvolvingStateSerializer(StateSerializer, Protocol):
    """A serializer whose bytes may change from one version of the program to the next.

    A serializer may have either method, or both. Without `compatibility`, state is read by a
    serializer of the same class and the same snapshot only.
    """

    def snapshot(self) -> dict[str, Any]:
        """What a later version has to know to read the bytes; stored with the state, as JSON."""

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        """Whether and how this serializer reads bytes that were written under a snapshot.

        Args:
            stored: What `snapshot` gave when the state was written; empty if the serializer
                had no such method then.
        """
