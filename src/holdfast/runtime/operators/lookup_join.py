"""Joins rows with a table in memory.

A worker process builds a dictionary from a copy of the table once, and keeps it for later
epochs. Per row, one lookup and the concatenation of two tuples remain.
"""

from __future__ import annotations

from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from holdfast.runtime.operators.base import Operator, Reported
from holdfast.serde.keys import canonical_key
from holdfast.types.annotations import needs_rebuilding
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.columns.readers import column_reader
from holdfast.types.columns.rows import RowSplitter, column_hints
from holdfast.types.event import event_class
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.runtime.operators.base import Ends, Times
    from holdfast.runtime.plan import EpochPlan, TableCopy

    Matches = Sequence[tuple[Any, ...]]
    Index = dict[Any, Matches]
    ToRows = Callable[[Sequence[Any]], Sequence[tuple[Any, ...]]]

MOST_TABLES = 16
"""Most tables that a worker process keeps, also of jobs that have ended."""

_indexes: dict[str, tuple[int, Index]] = {}
"""The newest copy of every table, with its number, by the join's id; in order of last use."""


class LookupJoinOperator(Operator):
    """Joins every row with the rows of a table that have the same key."""

    @override
    def begin(self, epoch: EpochPlan | None, attempt_id: int, *, own_state: bool) -> None:
        super().begin(epoch, attempt_id, own_state=own_state)
        assert epoch is not None, "lookup joins never run at the sources"
        self._table = epoch.tables[self.plan.uid]
        if self.is_open:
            find = self._find()
            self._calls = (find, find)

    @override
    def end_epoch(self) -> None:
        # Only the newest copy of a table stays in memory, see `kept_index`.
        self._call, self._calls = _no_table, (_no_table, _no_table)

    def _bind(self) -> Callable[..., Any]:
        join: LookupJoin = self.plan.details
        kinds = [join.output.schema.field(place).type for place in join.columns]
        self._canonical = [_has_many_forms(kind) for kind in kinds]
        self._tuples, self._fields = _row_access(self.plan.input, join.columns)
        added = len(join.table) - len(join.columns)
        self._no_match: Matches = ((None,) * added,) if join.outer else ()
        return self._find()

    def _find(self) -> Callable[..., Any]:
        """Function that looks rows up in the table of the epoch."""
        with Reported(self, "reading its table"):
            return kept_index(self.plan.details, self._table).get

    def _run(self, elements: Sequence[Any], keys: Iterable[Any], out: list[Any]) -> None:
        rows = self._tuples(elements)
        out.extend(self._joined(rows, self._matches(rows)))

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        rows = self._tuples(elements)
        matches = self._matches(rows)
        [_, *after] = accumulate(map(len, matches), initial=len(out))
        ends.extend(after)
        out.extend(self._joined(rows, matches))

    def _matches(self, rows: Sequence[Any]) -> list[Matches]:
        find, no_match = self._call, self._no_match
        columns = [list(map(field, rows)) for field in self._fields]
        return [find(key, no_match) for key in _keys(columns, self._canonical)]

    def _joined(self, rows: Sequence[Any], matches: list[Matches]) -> list[Any]:
        # Rows share the lists and dicts of the table. No function can change them: columns
        # with lists and dicts are copied on their way to the next function anyway.
        pairs = zip(rows, matches, strict=True)
        return [row + match for row, found in pairs for match in found]


def _no_table(*args: Any) -> Any:
    raise AssertionError("no epoch runs")


def kept_index(join: LookupJoin, table: TableCopy) -> Index:
    """The rows of a copy by their keys; built once per process."""
    held = _indexes.pop(join.id, None)
    if held is None or held[0] != table.number:
        # Drop the older copy first: two may not fit into memory.
        held = None
        held = (table.number, _index(join, table.read()))
    _indexes[join.id] = held
    while len(_indexes) > MOST_TABLES:
        del _indexes[next(iter(_indexes))]
    return held[1]


def _index(join: LookupJoin, table: pa.Table) -> Index:
    """The matching rows by key. A key with a null equals no other, so it is left out.

    Matches are tuples, which are smaller than lists: nearly always there is one.
    """
    compared = len(join.columns)
    readers = [column_reader(field.type) for field in join.table]
    canonical = [_has_many_forms(field.type) for field in list(join.table)[:compared]]
    keys: list[Any] = []
    rows: list[tuple[Any, ...]] = []
    for batch in table.select(join.table.names).to_batches():
        columns = [read(batch.column(i)) for i, read in enumerate(readers)]
        keys += _keys(columns[:compared], canonical)
        added = columns[compared:]
        rows += zip(*added, strict=True) if added else [()] * batch.num_rows
    index: Index = dict(zip(keys, zip(rows, strict=True), strict=True))
    if len(index) < len(keys):
        index = _grouped(keys, rows)
    return {key: found for key, found in index.items() if not _has_null(key)}


def _grouped(keys: list[Any], rows: list[tuple[Any, ...]]) -> Index:
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for key, row in zip(keys, rows, strict=True):
        groups.setdefault(key, []).append(row)
    return {key: tuple(group) for key, group in groups.items()}


def _has_null(key: Any) -> bool:
    return key is None or (type(key) is tuple and any(part is None for part in key))


def _keys(columns: list[list[Any]], canonical: list[bool]) -> Sequence[Any]:
    """The keys made of these columns: bare values, or tuples of several."""
    values = [
        list(map(canonical_key, column)) if needed else column
        for column, needed in zip(columns, canonical, strict=True)
    ]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _has_many_forms(kind: pa.DataType) -> bool:
    """Whether values that Spark takes for equal may differ in a dictionary: NaN, timestamps."""
    return bool(pa.types.is_floating(kind) or (pa.types.is_timestamp(kind) and kind.tz))


def _row_access(
    stream: StreamType, places: tuple[int, ...]
) -> tuple[ToRows, list[Callable[[Any], Any]]]:
    """Functions that turn elements into tuples of columns, and that read the key."""
    if stream.kind == "row" and stream.element is None:
        names = event_class(stream.columns)._fields
        # By attribute: the subscript of an event also takes names, and is slower.
        return _as_they_are, [attrgetter(names[place]) for place in places]
    return _flattened(stream), [itemgetter(place) for place in places]


def _as_they_are(elements: Sequence[Any]) -> Sequence[Any]:
    return elements


def _flattened(stream: StreamType) -> ToRows:
    """Makes tuples of elements that are values or instances of a class."""
    if any(map(needs_rebuilding, column_hints(stream))):
        # Instances of classes in columns become what an event has there.
        plain = StreamType("row", stream.schema)
        writer, reader = BatchWriter(stream), BatchReader(plain)
        return lambda elements: reader.elements(writer.batch(list(elements)))
    if stream.kind == "value":
        return lambda elements: list(zip(elements, strict=True))
    splitter = RowSplitter(stream.columns, stream.element)
    return lambda elements: list(zip(*splitter.columns(list(elements)), strict=True))
