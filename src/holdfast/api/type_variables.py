"""The type variables of the public API.

All of them default to `Any`: a class that is not parametrized, as in `class F(MapFunction)`,
passes `mypy --strict`.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar

T = TypeVar("T", default=Any)
"""Type of a value or an element."""
K = TypeVar("K", default=Any)
"""Type of a key."""
V = TypeVar("V", default=Any)
"""Type of a map's values."""
W = TypeVar("W", default=Any)
"""Type of a window."""
IN = TypeVar("IN", default=Any)
"""Type of a function's input."""
IN1 = TypeVar("IN1", default=Any)
"""Type of the elements of a function's first input."""
IN2 = TypeVar("IN2", default=Any)
"""Type of the elements of a function's second input."""
ACC = TypeVar("ACC", default=Any)
"""Type of an accumulator."""
OUT = TypeVar("OUT", default=Any)
"""Type of a function's output."""
TXN = TypeVar("TXN", default=Any)
"""Type of a transaction."""
