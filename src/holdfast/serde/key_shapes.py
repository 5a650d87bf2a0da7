"""The common type of an operator's keys.

To Python `1`, `True` and `1.0` are one key, but their bytes differ. So all keys of an
operator must have the same type. A task checks the keys of its rows, a store those of its
entries, and the driver those of an epoch's tasks.

A null component of a tuple fits any type.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.errors import KeyTypeError, NullKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CLASSES: Final = frozenset({bool, int, float, str, bytes, date, datetime, Decimal, tuple})


def key_class(key: object) -> type:
    """Class that decides a key's encoding: its own, or a base class.

    Raises:
        NullKeyError: The key is null.
        KeyTypeError: Its class cannot be a key.
    """
    for cls in type(key).__mro__:
        if cls in _CLASSES:
            return cls
    if key is None:
        raise NullKeyError("the key is null")
    raise KeyTypeError(
        f"{type(key).__name__} cannot be a key; {_advice(key)}bool, int, float, str, bytes, date, "
        "datetime, Decimal, or a tuple of those"
    )


def _advice(key: object) -> str:
    if isinstance(key, np.generic):
        return "call .item() on the NumPy value to get a "
    return "call tuple() on it; a key is a " if isinstance(key, list) else "use "


@dataclass(frozen=True, slots=True)
class KeyShape:
    """Type of keys, as stored and compared."""

    name: str

    @classmethod
    def of(cls, key: object) -> KeyShape:
        """Shape of one key; the shape of a null component is `?`."""
        kind = key_class(key)
        if kind is tuple:
            parts = ["?" if part is None else cls.of(part).name for part in key]  # type: ignore[attr-defined]
            return cls(f"tuple[{', '.join(parts)}]")
        if kind is datetime and key.tzinfo is None:  # type: ignore[attr-defined]
            return cls("datetime_ntz")
        return cls(kind.__name__)

    def described(self) -> str:
        """The name with its article, for messages."""
        return f"{'an' if self.name == 'int' else 'a'} {self.name}"

    def joined(self, other: KeyShape) -> KeyShape | None:
        """The shape that fits both; None if there is none."""
        if self == other:
            return self
        if "?" in (self.name, other.name):
            return other if self.name == "?" else self
        mine, theirs = self._components(), other._components()
        if not mine or len(mine) != len(theirs):
            return None
        parts = [a.joined(b) for a, b in zip(mine, theirs, strict=True)]
        names = [part.name for part in parts if part is not None]
        return KeyShape(f"tuple[{', '.join(names)}]") if len(names) == len(parts) else None

    def _components(self) -> list[KeyShape]:
        """Shapes of a tuple's components; empty for other keys."""
        if not self.name.startswith("tuple["):
            return []
        parts, depth = [""], 0
        for character in self.name.removeprefix("tuple[").removesuffix("]"):
            depth += (character == "[") - (character == "]")
            if character == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += character
        return [KeyShape(part.strip()) for part in parts if part]


class KeyTypes:
    """Checks that all keys of an operator on one task have the same type.

    Works on batches of keys, and looks at each class only once where the class decides.
    """

    __slots__ = ("_columns", "_known", "_stored", "example", "shape")

    def __init__(self, stored: KeyShape | None = None) -> None:
        """Expect keys of the shape `stored`, that of state; None for that of the first key."""
        self.shape = stored
        """Shape of all keys so far; None before the first one."""
        self._stored = stored
        self.example = ""
        """One of the keys seen, for messages."""
        self._known: set[type] = set()
        """Classes that need no further check."""
        self._columns: list[set[type]] = []
        """The same for the components of tuples."""

    def join(self, stored: KeyShape) -> None:
        """Add the shape of stored keys.

        Raises:
            KeyTypeError: It differs from that of the other keys.
        """
        joined = stored if self.shape is None else self.shape.joined(stored)
        if joined is None:
            assert self.shape is not None
            if self._stored is None:
                raise KeyTypeError(_unlike_stored(self.example or "a key", self.shape, stored))
            raise KeyTypeError(other_types(f"{stored.name} in this store", self.shape.name))
        self.shape = self._stored = joined

    def agree(self, shape: KeyShape) -> None:
        """Expect keys of the shape of state that all tasks of the operator agree on."""
        self.shape = self._stored = shape

    def forget(self) -> None:
        """Expect keys of any type, as before the first key."""
        self.shape = self._stored = None
        self._known.clear()
        self._columns.clear()

    def knows(self, classes: set[type]) -> bool:
        """Whether keys of these classes need no further check."""
        return classes <= self._known

    def check(self, keys: list[Any]) -> None:
        """Check that keys have the type of those before.

        Raises:
            KeyTypeError: A key has another type, or one that cannot be a key.
            NullKeyError: A key is null.
        """
        place = self.mismatch(keys)
        if place is not None:
            raise KeyTypeError(self.refusal(keys[place]))

    def mismatch(self, keys: list[Any]) -> int | None:
        """Position of a key with another type than those before; None if there is none.

        Raises:
            KeyTypeError: A key has a type that cannot be a key.
            NullKeyError: A key is null.
        """
        for place in self._to_compare(keys):
            shape = KeyShape.of(keys[place])
            joined = shape if self.shape is None else self.shape.joined(shape)
            if joined is None:
                return place
            self.shape = joined
        return None

    def refusal(self, key: object) -> str:
        """Message for a key of another type."""
        assert self.shape is not None
        shape = KeyShape.of(key)
        if self._stored is not None and self._stored.joined(shape) is None:
            return _unlike_stored(f"key {key!r}", shape, self._stored)
        return (
            f"key {key!r} is {shape.described()}, but the keys of this operator are "
            f"{self.shape.name}; let the key function always return the same type"
        )

    def _to_compare(self, keys: list[Any]) -> Iterator[int]:
        """Positions of keys that represent the types of all keys."""
        if set(map(type, keys)) != {tuple}:
            yield from _telling_places(keys, self._known)
            return
        length = len(self._columns) or len(keys[0])
        if set(map(len, keys)) != {length}:
            yield from range(len(keys))
            return
        if not self._columns:
            yield 0
            self._columns = [set() for _ in range(length)]
        for column, known in zip(zip(*keys, strict=True), self._columns, strict=True):
            yield from _telling_places(column, known)


def _telling_places(values: Sequence[Any], known: set[type]) -> Iterator[int]:
    """Positions of keys, or of components, that represent all types but the known ones."""
    new = set(map(type, values)) - known
    for place in sorted(next(i for i, one in enumerate(values) if type(one) is c) for c in new):
        kind = type(values[place])
        found = kind if kind is type(None) else key_class(values[place])
        if found is tuple:
            yield from range(len(values))
        elif found is datetime:
            zoned = {one.tzinfo is None: i for i, one in enumerate(values) if type(one) is kind}
            yield from zoned.values()
        else:
            yield place
            known.add(kind)


def _unlike_stored(key: str, shape: KeyShape, stored: KeyShape) -> str:
    return (
        f"{key} is {shape.described()}, but the stored state of this operator has {stored.name} "
        f"keys; let all keys be {stored.name} as before, or give the operator another uid, under "
        "which it starts empty"
    )


def other_types(here: str, others: str) -> str:
    """Message for stored keys of different types, with advice."""
    return (
        f"keys of different types are stored: {here}, and {others} elsewhere. The key function has "
        "returned both, and they went to different subtasks. Restore from a checkpoint or "
        "savepoint taken before that, with a key function that always returns the same type; or "
        "give the operator another uid, under which it starts empty"
    )
