"""What a serializer of the user's own says about bytes of an earlier version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict: TypeAlias = Literal["as is", "after migration", "incompatible"]
"""Whether stored values are read as they are, are converted when read, or not at all."""


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
