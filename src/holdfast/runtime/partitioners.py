"""Decides which subtask of the next stage receives a row."""

from __future__ import annotations

import random
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.api.streams.graph import Partitioner
from holdfast.errors import KeyTypeError, NullKeyError
from holdfast.runtime.operators.base import short, user_error
from holdfast.serde.keys import canonical_key, key_group_of, key_hash
from holdfast.state.key_groups import subtask_of
from holdfast.types.columns.batches import BatchReader, BatchWriter

if TYPE_CHECKING:
    from holdfast.runtime.plan import Channel, KeyPlan
    from holdfast.serde.key_shapes import KeyTypes
    from holdfast.types.columns.rows import Columns
    from holdfast.types.stream_type import StreamType

MEMORY = 1_000_000
"""Keys whose subtask a partitioner remembers."""

_AS_THEY_ARE: Final = frozenset({int, str, bytes, bool})
"""Classes whose instances are dictionary keys in canonical form already."""
_AS_THEY_ARE_OR_NULL: Final = _AS_THEY_ARE | {type(None)}
_short = Repr()
_short.maxstring = _short.maxother = 60
_short.maxdict = _short.maxtuple = 10


class Keys:
    """Computes the keys of rows, from columns or by a function."""

    def __init__(
        self, plan: KeyPlan, stream: StreamType, operator: str, types: KeyTypes | None = None
    ) -> None:
        """Keys of rows of a stream.

        Args:
            plan: Columns or function of the key.
            stream: Type of the stream.
            operator: The operator, for messages.
            types: Checks that all inputs of the operator have keys of one type; None if the
                keys are only used for routing.
        """
        self._plan = plan
        self._types = types
        self._reader = BatchReader(stream)
        self._operator = operator

    @property
    def from_columns(self) -> bool:
        """Whether the key is made of columns alone."""
        return self._plan.selector is None

    def of_rows(self, rows: pa.RecordBatch) -> list[Any]:
        """Key of every row, for a key made of columns."""
        return self._joined([self._reader.column(rows, i) for i in self._plan.columns], rows)

    def of_columns(self, columns: Columns, rows: Any) -> list[Any]:
        """The same, of rows whose columns were read already; `rows` is for messages."""
        return self._joined([columns[i] for i in self._plan.columns], rows)

    def _joined(self, parts: Columns, rows: Any) -> list[Any]:
        return self._canonical(list(zip(*parts, strict=True)) if len(parts) > 1 else parts[0], rows)

    def of_elements(self, elements: list[Any]) -> list[Any]:
        """Key of every element, for a key given by a function."""
        keys: list[Any] = []
        try:
            keys.extend(map(self._plan.selector, elements))
        except Exception as error:
            where = f"{self._operator}, in the key function"
            raise user_error(where, error, f"  row: {short(elements[len(keys)])}\n") from error
        return self._canonical(keys, elements)

    def refusal(self, keys: list[Any], rows: Any, error: Exception) -> KeyTypeError:
        """The error for keys of which one is refused, as `error` says: with operator and row."""
        for place, key in enumerate(keys):
            try:
                key_hash(canonical_key(key))
            except (KeyTypeError, TypeError) as found:
                return self._located(found, rows, place)
        return KeyTypeError(f"{self._operator}: {error}")

    def _located(self, error: object, rows: Any, place: int) -> KeyTypeError:
        return KeyTypeError(f"{self._operator}: {error}\n  row: {short(_row(rows, place))}")

    def _canonical(self, keys: list[Any], rows: Any) -> list[Any]:
        """The keys in canonical form, in which equal keys are equal in dictionaries."""
        kinds = set(map(type, keys))
        if type(None) in kinds:
            row = _row(rows, keys.index(None))
            raise NullKeyError(
                f"{self._operator}: the key is null in row {short(row)}; filter such rows out "
                "before key_by, or give them a key"
            )
        try:
            if not (kinds <= _AS_THEY_ARE or (kinds == {tuple} and _are_plain(keys))):
                keys = list(map(canonical_key, keys))
            other = self._first_of_other_type(keys, kinds, rows)
        except KeyTypeError as error:
            raise self.refusal(keys, rows, error) from error
        if other is not None:
            assert self._types is not None
            raise self._located(self._types.refusal(keys[other]), rows, other)
        return keys

    def _first_of_other_type(self, keys: list[Any], kinds: set[type], rows: Any) -> int | None:
        """Position of a key of another type: `1`, `True` and `1.0` are one key in a dictionary."""
        types = self._types
        if types is None or types.knows(kinds):
            return None
        other = types.mismatch(keys)
        if keys and not types.example:
            types.example = f"key {_short.repr(keys[0])} of row {_short.repr(_row(rows, 0))}"
        return other


def _are_plain(keys: list[tuple[Any, ...]]) -> bool:
    """Whether tuples are in canonical form, since all their components are."""
    if len(set(map(len, keys))) != 1:
        return False
    columns = zip(*keys, strict=True)
    return all(set(map(type, column)) <= _AS_THEY_ARE_OR_NULL for column in columns)


def _row(rows: Any, place: int) -> Any:
    """The row or element at a position."""
    if isinstance(rows, pa.RecordBatch):
        return rows.slice(place, 1).to_pylist()[0]
    return rows[place]


class KeyPartitioner:
    """Routes rows by key group."""

    def __init__(self, channel: Channel, keys: Keys, *, memory: int = MEMORY) -> None:
        """Send rows to the subtasks that own their keys; remembers the subtasks of some keys."""
        self._parallelism = channel.parallelism
        self._max_parallelism = channel.max_parallelism
        self._keys = keys
        self.needs_elements = not keys.from_columns
        self._normalise = BatchWriter(channel.type).normalise
        self._memory = memory
        self._known: dict[Any, int] = {}

    def subtasks(self, elements: list[Any], rows: pa.RecordBatch) -> pa.Array:
        """Receiving subtask of every row."""
        if self._keys.from_columns:
            keys = self._keys.of_rows(rows)
        else:
            keys = self._keys.of_elements(self._normalise(elements))
        known = self._known
        try:
            for key in dict.fromkeys(keys):
                if key not in known:
                    group = key_group_of(key, self._max_parallelism)
                    known[key] = subtask_of(group, self._parallelism, self._max_parallelism)
        except (KeyTypeError, TypeError) as error:
            raise self._keys.refusal(keys, elements or rows, error) from error
        receivers = pa.array(list(map(known.__getitem__, keys)), pa.int32())
        if len(known) > self._memory:
            known.clear()
        return receivers


class InPlace:
    """Keeps rows on their subtask while they cross to a later stage."""

    needs_elements = False

    def __init__(self, parallelism: int, here: int) -> None:
        """Send all rows to `here`, modulo the parallelism."""
        self._here = here % parallelism

    def subtasks(self, elements: list[Any], rows: pa.RecordBatch) -> pa.Array:
        """Receiving subtask of every row."""
        return pa.repeat(pa.scalar(self._here, pa.int32()), rows.num_rows)


class RoundRobin:
    """Routes rows to all subtasks in turn."""

    needs_elements = False

    def __init__(self, parallelism: int, start: int) -> None:
        """Deal rows out over `parallelism` subtasks, the first to `start`."""
        self._parallelism = parallelism
        self._next = start % parallelism

    def subtasks(self, elements: list[Any], rows: pa.RecordBatch) -> pa.Array:
        """Receiving subtask of every row."""
        start, p, count = self._next, self._parallelism, rows.num_rows
        self._next = (start + count) % p
        return pa.array([(start + i) % p for i in range(count)], pa.int32())


class AtRandom:
    """Routes rows at random."""

    needs_elements = False

    def __init__(self, parallelism: int, seed: int) -> None:
        """Spread rows over `parallelism` subtasks."""
        self._parallelism = parallelism
        self._random = random.Random(seed)

    def subtasks(self, elements: list[Any], rows: pa.RecordBatch) -> pa.Array:
        """Receiving subtask of every row."""
        draw, p = self._random.randrange, self._parallelism
        return pa.array([draw(p) for _ in range(rows.num_rows)], pa.int32())


Route = KeyPartitioner | InPlace | RoundRobin | AtRandom
"""Any partitioner."""


def partitioner(channel: Channel, subtask: int, operator: str) -> Route:
    """The partitioner of a channel, as it runs on `subtask` behind `operator`."""
    match channel.partitioning.partitioner:
        case Partitioner.KEY:
            assert channel.key is not None
            return KeyPartitioner(
                channel, Keys(channel.key, channel.type, f"key_by after {operator}")
            )
        case Partitioner.SHUFFLE:
            return AtRandom(channel.parallelism, subtask)
        case Partitioner.FORWARD | Partitioner.BROADCAST:
            return InPlace(channel.parallelism, subtask)
        case _:
            return RoundRobin(channel.parallelism, subtask)
