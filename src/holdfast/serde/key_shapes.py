"""The type that all keys of one operator share.

Python takes `1`, `True` and `1.0` for one key, and their bytes are those of three. So keys of
one operator have one type, and whatever holds keys of another refuses them: a task the keys of
its rows, a store those of its entries, the driver those of an epoch's tasks.

A null component of a tuple fits any type.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import KeyTypeError, NullKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CLASSES: Final = frozenset({bool, int, float, str, bytes, date, datetime, Decimal, tuple})


def key_class(key: object) -> type:
    """Class by which a key is encoded: its own, or the one that it inherits from.

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
        f"{type(key).__name__} cannot be a key; use bool, int, float, str, bytes, date, datetime, "
        "Decimal, or a tuple of those"
    )


@dataclass(frozen=True, slots=True)
class KeyShape:
    """The type of keys, as it is stored and compared."""

    name: str

    @classmethod
    def of(cls, key: object) -> KeyShape:
        """Shape of one key; a null component of a tuple may be of any type."""
        kind = key_class(key)
        if kind is tuple:
            parts = ["?" if part is None else cls.of(part).name for part in key]  # type: ignore[attr-defined]
            return cls(f"tuple[{', '.join(parts)}]")
        if kind is datetime and key.tzinfo is None:  # type: ignore[attr-defined]
            return cls("datetime_ntz")
        return cls(kind.__name__)

    def joined(self, other: KeyShape) -> KeyShape | None:
        """The shape that both fit, or None if there is none."""
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
        """Shapes of a tuple's components; nothing for other keys."""
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
    """What the keys that a task has seen of one operator have in common.

    Keys come in batches. A class that tells all about the type of a key is looked at once.
    """

    __slots__ = ("_columns", "_known", "example", "shape")

    def __init__(self, shape: KeyShape | None = None) -> None:
        """Keys of `shape`, or of that of the first one."""
        self.shape = shape
        """Shape of all keys so far; None before the first one."""
        self.example = ""
        """One of the keys that were seen, for messages."""
        self._known: set[type] = set()
        """Classes of keys that were compared, and need not be again."""
        self._columns: list[set[type]] = []
        """The same for the components of tuples."""

    def join(self, stored: KeyShape) -> None:
        """Take the shape of keys that are stored.

        Raises:
            KeyTypeError: It is not that of the others.
        """
        joined = stored if self.shape is None else self.shape.joined(stored)
        if joined is None:
            assert self.shape is not None
            raise KeyTypeError(other_types(f"{stored.name} in this store", self.shape.name))
        self.shape = joined

    def knows(self, classes: set[type]) -> bool:
        """Whether keys of these classes need not be compared any more."""
        return classes <= self._known

    def check(self, keys: list[Any]) -> None:
        """Refuse keys of another type than those before.

        Raises:
            KeyTypeError: One of the keys is of another type, or of one that cannot be a key.
            NullKeyError: One of them is null.
        """
        place = self.mismatch(keys)
        if place is not None:
            raise KeyTypeError(self.refusal(keys[place]))

    def mismatch(self, keys: list[Any]) -> int | None:
        """Place of a key whose type is not that of those before; None if there is none.

        Raises:
            KeyTypeError: A key is of a type that cannot be one.
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
        """What is said of a key of another type."""
        assert self.shape is not None
        return (
            f"key {key!r} is a {KeyShape.of(key).name}, but the keys of this operator are "
            f"{self.shape.name}; let the key function always return the same type"
        )

    def _to_compare(self, keys: list[Any]) -> Iterator[int]:
        """Places of keys that tell the types of all."""
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
    """Places of keys, or of components of keys, that tell the types of all but the known."""
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


def other_types(here: str, others: str) -> str:
    """What is said of stored keys whose type is not that of others, and what to do."""
    return (
        f"keys of different types are stored: {here}, and {others} elsewhere. The key function has "
        "returned both, and they went to different subtasks. Restore from a checkpoint or "
        "savepoint of before, with a key function that always returns the same type; or give the "
        "operator another uid, under which it starts empty"
    )
