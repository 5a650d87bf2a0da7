"""User-defined serializers and their compatibility with bytes of earlier versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable


Verdict: TypeAlias = Literal["as is", "after migration", "incompatible"]


@dataclass(frozen=True, slots=True)
class StateCompatibility:
    """Whether and how the current serializer reads bytes of an earlier one.

    Create it with `as_is`, `after_migration` or `incompatible`.
    """

    verdict: Verdict
    read: Callable[[bytes], Any] | None = None
    """Reads a current value from old bytes."""
    reason: str = ""
    """Why the two are incompatible."""

    @staticmethod
    def as_is() -> StateCompatibility:
        """Both versions write the same bytes."""
        return StateCompatibility("as is")

    @staticmethod
    def after_migration(read: Callable[[bytes], Any]) -> StateCompatibility:
        """`read` turns old bytes into a current value."""
        return StateCompatibility("after migration", read)

    @staticmethod
    def incompatible(reason: str) -> StateCompatibility:
        """Old bytes cannot be read; `reason` says why."""
        return StateCompatibility("incompatible", reason=reason)


@runtime_checkable
class StateSerializer(Protocol):
    """Turns values of a user's class into bytes and back.

    `deserialize(serialize(value))` must equal `value` in every later version of the program
    that reads the state.
    """

    def serialize(self, value: Any, /) -> bytes:
        """Bytes of a value."""

    def deserialize(self, data: bytes, /) -> Any:
        """Value of bytes that `serialize` returned."""


@runtime_checkable
class EvolvingStateSerializer(StateSerializer, Protocol):
    """A serializer whose bytes may change from one version of the program to the next.

    Both methods are optional. Without `compatibility`, only a serializer of the same class
    with the same snapshot reads the state.
    """

    def snapshot(self) -> dict[str, Any]:
        """What a later version needs to read the bytes; stored with the state as JSON."""

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        """Whether and how this serializer reads bytes written under a snapshot.

        Args:
            stored: Result of `snapshot` when the state was written; empty if the serializer
                had no such method.
        """
