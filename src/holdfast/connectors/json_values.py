"""JSON forms of values that sinks share."""

from __future__ import annotations

import math


def json_float(value: float | None) -> float | str | None:
    """The number, or a string for NaN and the infinities, which JSON does not have."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
