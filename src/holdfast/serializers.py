"""State serializers that you write yourself, and schema compatibility."""

from holdfast.types.serializers import (
    EvolvingStateSerializer,
    StateCompatibility,
)

__all__ = [
    "EvolvingStateSerializer",
    "StateCompatibility",
]
