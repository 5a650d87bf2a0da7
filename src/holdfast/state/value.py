"""Value state, and reducing and aggregating states on top of it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from holdfast.api.names import public_name
from holdfast.api.state import AggregatingState, ReducingState, ValueState
from holdfast.errors import StateValueError
from holdfast.state.table import NO_KEY, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.api.folds import Aggregator


@public_name("ValueState")
class ValueTable(StateTable, ValueState[Any]):
    """Values of an immutable type; the cache holds the objects."""

    __slots__ = ("_check", "_dirty", "_exact")

    @override
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._dirty: dict[Any, Any] = {}
        """Writes since the last drain; a subset of the cache."""
        self._exact = self._codec.exact_type
        self._check = self._codec.check

    def value(self) -> Any:
        """Value for the current key, or None."""
        try:
            return self._cache[self._current.key]
        except KeyError:
            return self._load()

    def update(self, value: Any) -> None:
        """Set the value for the current key; None clears it."""
        key = self._current.key
        if key is NO_KEY:
            raise self._no_key()
        if type(value) is not self._exact and value is not None:
            self._check(value)
        self._cache[key] = self._dirty[key] = value

    def clear(self) -> None:
        """Remove the value for the current key."""
        key = self._current.key
        if key is NO_KEY:
            raise self._no_key()
        self._cache[key] = self._dirty[key] = None

    @override
    def drain(self) -> list[tuple[bytes, bytes | None]]:
        keys, values = list(self._dirty), list(self._dirty.values())
        self._dirty.clear()
        beginnings = self._encoder.encode_all(self._prefix, keys)
        try:
            stored = list(self._stored(values))
            if None in stored:
                # Keys that are used up would fill the cache.
                for key, data in zip(keys, stored, strict=True):
                    if data is None:
                        del self._cache[key]
            return list(zip(beginnings, stored, strict=True))
        except StateValueError as error:
            raise self._refusal(keys, values, error) from error

    def _refusal(
        self, keys: list[Any], values: list[Any], error: StateValueError
    ) -> StateValueError:
        for key, value in zip(keys, values, strict=True):
            try:
                self._stored([value])
            except StateValueError as found:
                return self._unfit(key, found)
        return error

    def _stored(self, values: list[Any]) -> Iterable[bytes | None]:
        """Cached values as stored bytes; None for no value."""
        encode = self._codec.encode
        return [None if value is None else encode(value) for value in values]

    @override
    def save_point(self, key: Any) -> object:
        return self._cache.get(key, NO_KEY), self._dirty.get(key, NO_KEY)

    @override
    def roll_back(self, key: Any, saved: Any) -> None:
        for where, value in zip((self._cache, self._dirty), saved, strict=True):
            if value is NO_KEY:
                where.pop(key, None)
            else:
                where[key] = value

    def load_batch(self) -> None:
        """Load all keys of the current batch into the cache with one read."""
        cache = self._cache
        self._load_keys([key for key in self._current.distinct() if key not in cache])

    def stored(self) -> Iterator[Any]:
        """Values of all keys in the store, including uncommitted ones."""
        decode = self._codec.decode
        return (decode(data) for _, data in self._store.scan(self._prefix))

    def _load(self) -> Any:
        key = self._current.key
        if key is NO_KEY:
            raise self._no_key()
        if key in self._current.distinct():
            self.load_batch()
        else:
            self._load_keys([key])
        # By value(): the cache may hold another form than value() returns.
        return self.value()

    def _load_keys(self, keys: list[Any]) -> None:
        self._fill(keys, self._store.get_many(self._encoder.encode_all(self._prefix, keys)))

    def _fill(self, keys: list[Any], found: list[bytes | None]) -> None:
        decode = self._codec.decode
        self._cache.update(
            zip(
                keys,
                [None if data is None else decode(data) for data in found],
                strict=True,
            )
        )


@public_name("ValueState")
class EncodedValueTable(ValueTable):
    """Values of a mutable type; the cache holds bytes, and every read returns a new object."""

    __slots__ = ()

    def value(self) -> Any:
        """A new copy of the value for the current key, or None."""
        try:
            data = self._cache[self._current.key]
        except KeyError:
            return self._load()
        return None if data is None else self._codec.decode(data)

    def update(self, value: Any) -> None:
        """Store a copy of `value` for the current key; None clears it."""
        if value is not None:
            if type(value) is not self._exact:
                self._check(value)
            value = self._codec.encode(value)
        key = self._current.key
        if key is NO_KEY:
            raise self._no_key()
        self._cache[key] = self._dirty[key] = value

    def _stored(self, values: list[Any]) -> Iterable[bytes | None]:
        return values

    def _fill(self, keys: list[Any], found: list[bytes | None]) -> None:
        self._cache.update(zip(keys, found, strict=True))


@public_name("ValueState")
class DefaultedValue(ValueState[Any]):
    """A value state whose descriptor has a default."""

    __slots__ = ("_default", "_table")

    def __init__(self, table: ValueState[Any], default: Any) -> None:
        """Return copies of `default` where `table` has no value."""
        self._table = table
        self._default = default

    def value(self) -> Any:
        """Value for the current key, or a copy of the default."""
        value = self._table.value()
        return copy.deepcopy(self._default) if value is None else value

    def update(self, value: Any) -> None:
        """Set the value for the current key; None restores the default."""
        self._table.update(value)

    def clear(self) -> None:
        """Remove the value for the current key."""
        self._table.clear()


@public_name("ReducingState")
class ReducingValue(ReducingState[Any]):
    """Reducing state: folds added values with a function."""

    __slots__ = ("_reduce", "_table")

    def __init__(self, table: ValueState[Any], reduce: Callable[[Any, Any], Any]) -> None:
        """Fold into `table` with `reduce(old, new)`."""
        self._table = table
        self._reduce = reduce

    def get(self) -> Any:
        """Reduced value for the current key, or None."""
        return self._table.value()

    def add(self, value: Any) -> None:
        """Fold `value` in; None clears the state."""
        table = self._table
        if value is not None:
            old = table.value()
            if old is not None:
                value = self._reduce(old, value)
        table.update(value)

    def clear(self) -> None:
        """Remove the value for the current key."""
        self._table.clear()


@public_name("AggregatingState")
class AggregatingValue(AggregatingState[Any, Any]):
    """Aggregating state: keeps the accumulator of an aggregate function."""

    __slots__ = ("_aggregate", "_table")

    def __init__(self, table: ValueState[Any], aggregate: Aggregator) -> None:
        """Keep the accumulators of `aggregate` in `table`."""
        self._table = table
        self._aggregate = aggregate

    def accumulator(self) -> Any:
        """The accumulator for the current key, or None."""
        return self._table.value()

    def merge(self, accumulator: Any) -> None:
        """Merge another accumulator into that of the current key."""
        mine = self._table.value()
        if mine is not None:
            accumulator = self._aggregate.merge(mine, accumulator)
        self._table.update(accumulator)

    def get(self) -> Any:
        """Result for the current key, or None."""
        accumulator = self._table.value()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add `value` to the accumulator; None clears the state."""
        table, aggregate = self._table, self._aggregate
        if value is None:
            table.clear()
            return
        accumulator = table.value()
        if accumulator is None:
            accumulator = aggregate.create_accumulator()
        table.update(aggregate.add(value, accumulator))

    def clear(self) -> None:
        """Remove the accumulator for the current key."""
        self._table.clear()
