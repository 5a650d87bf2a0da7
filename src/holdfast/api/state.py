"""The five kinds of keyed state, as user functions see them.

A function gets a handle once, in `open()`. The handle always accesses the current key. States
return copies: to change a value, write it back with `update`, `add` or `put`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from holdfast.api.type_variables import IN, OUT, K, T, V

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class State(ABC):
    """Base class of states."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key, if there is any."""


class ValueState(State, Generic[T]):
    """One value per key."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """Value for the current key; the descriptor's default, else None, if unset."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value for the current key; None clears it."""


class ListState(State, Generic[T]):
    """A list of elements per key, in the order they were added."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> list[T]:
        """Elements for the current key; an empty list if there are none."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Append one element, which must not be None."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append all of `values`, or none if one of them is invalid."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list; an empty one clears the state."""

    def __iter__(self) -> Iterator[T]:
        """Iterate over the elements for the current key."""
        return iter(self.get())


class ReadableMap(ABC, Generic[K, V]):
    """The part of a map that reads it."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Value under `key`, or None if there is none."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is an entry under `key`, even if its value is None."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]:
        """All entries; the map may be changed during the iteration."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def keys(self) -> Iterator[K]:
        """All keys; the map may be changed during the iteration."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """All values; the map may be changed during the iteration."""
        return (value for _, value in self.items())

    def __getitem__(self, key: K) -> V | None:
        """Value under `key`, or None."""
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        """Whether there is an entry under `key`."""
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys."""
        return self.keys()


class MapState(State, ReadableMap[K, V | None], Generic[K, V]):
    """A map per key. Values may be None; order of iteration is unspecified."""

    __slots__ = ()

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set the value under `key`."""

    @abstractmethod
    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set all of `entries`; other entries stay."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry under `key`, if there is one."""

    def __setitem__(self, key: K, value: V | None) -> None:
        """Set the value under `key`."""
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        """Remove the entry under `key`, if there is one."""
        self.remove(key)


class ReducingState(State, Generic[T]):
    """One value per key, into which a reduce function folds new values."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> T | None:
        """Reduced value for the current key, or None if nothing was added."""

    @abstractmethod
    def add(self, value: T | None) -> None:
        """Fold `value` in; the first one is kept as it is. None clears the state."""


class AggregatingState(State, Generic[IN, OUT]):
    """One accumulator per key; added values and the result may differ in type."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> OUT | None:
        """Result of the current key's accumulator, or None if nothing was added."""

    @abstractmethod
    def add(self, value: IN | None) -> None:
        """Add `value` to the accumulator. None clears the state."""
